"""A folder of raw files like the public ones, with a few examples each."""

import gzip
import io
import itertools
import tarfile

import numpy as np

TRAIN, TEST = 30, 10
SPEECHES = [("First Citizen", 11), ("ROMEO", 5), ("JULIET", 1)]


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.tobytes())


def tarred(members):
    """Returns a tar.gz archive of contents by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def records(images, labels):
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels[:, None], planes], axis=1).tobytes()


def write(folder):
    """Writes the folder; returns images and labels by name."""
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
    train, test = (images("cifar10", split, (32, 32, 3)) for split in ("train", "test"))
    first, second = ([array[i : i + 20] for array in train] for i in (0, 20))
    batches = {"data_batch_2": second, "test_batch": test, "data_batch_1": first}
    members = {f"{name}.bin": records(*batch) for name, batch in batches.items()}
    put("cifar-10-binary.tar.gz", tarred({"batches.meta.txt": b"", **members}))
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
    return truth
