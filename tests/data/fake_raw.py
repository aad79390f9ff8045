"""A folder of raw files like the real ones, with a few examples each."""

import gzip
import hashlib
import io
import itertools
import zipfile

import numpy as np
from PIL import Image

TRAIN, TEST = 30, 10
SPEECHES = [("First Citizen", 11), ("ROMEO", 5), ("JULIET", 1)]


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.tobytes())


def webp(images):
    file = io.BytesIO()
    strip = images.reshape(-1, *images.shape[2:])
    Image.fromarray(strip).save(file, "webp", lossless=True)
    return file.getvalue()


def write(folder):
    """Writes the folder and its checksums; returns images and labels by name."""
    random, truth = np.random.default_rng(0), {}

    def images(name, split, shape):
        count = {"train": TRAIN, "test": TEST}[split]
        pixels = random.integers(0, 256, (count, *shape), np.uint8)
        truth[name, split] = pixels, random.integers(0, 10, count).astype(np.uint8)
        return truth[name, split]

    def put(path, content):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    for name, split in itertools.product(("mnist", "fashion_mnist"), ("train", "test")):
        pixels, labels = images(name, split, (28, 28, 1))
        stem = {"train": "train", "test": "t10k"}[split]
        put(f"{name}/{stem}-images-idx3-ubyte.gz", idx(pixels[..., 0]))
        put(f"{name}/{stem}-labels-idx1-ubyte.gz", idx(labels))
    with zipfile.ZipFile(folder / "cifar10_webp.zip", "w") as archive:
        for split in ("train", "test"):
            pixels, labels = images("cifar10", split, (32, 32, 3))
            for number, part in enumerate(np.array_split(pixels, 3)):
                archive.writestr(f"{split}_{number:03}.webp", webp(part))
            archive.writestr(f"{split}_labels.u8", labels.tobytes())
    for split in ("train", "test"):
        lines = [f"{n % 2}\tsentence {n} of {split} , à la crème" for n in range(TEST)]
        put(f"sst2/{split}.tsv", "\n".join(["label\tcontent", *lines, ""]).encode())
    most = max(count for _, count in SPEECHES)
    speeches = [
        f"{speaker}:\nSpeech {n} of {speaker}.\nIt has two lines."
        for n in range(most)
        for speaker, count in SPEECHES
        if n < count
    ]
    put("shakespeare/input.txt", ("\n\n".join(speeches) + "\n").encode())
    sign(folder)
    return truth


def sign(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(folder)}"
        for path in files
        if path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")
