r"""Tries to reconstruct images from the messages that clients would send.

python -m launch.attack --config=configs/attack_mnist.py --workdir=/tmp/attack \
    --over=sketch.compression=1,2,10,50 --data_dir=DATA
python -m launch.attack --config=configs/quickstart.py --workdir=/tmp/mine --images=4

Prints a verdict for each setting. The folder gets attack.csv and images.png, with the
true images above the reconstructions. If a swept key is a number, attack_curves.png
shows PSNR against it; --beside adds the curves of other attacks. With --prior=gaussian
the attacker moves towards the mean image where noise is large.
"""

from absl import flags

from fl_sketch.audit import attack, attack_pictures
from fl_sketch.config import parse
from fl_sketch.core import files
from fl_sketch.sweep import grid
from fl_sketch.workdir.tables import named
from launch import command, options, parsing

CONFIG = parsing.config_flag()
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
DATA_DIR = options.data_dir()
OVER = flags.DEFINE_multi_string(
    "over", [], "KEY=VALUE,VALUE: config values to attack in turn. Repeatable."
)
ATTACK = options.of(attack.Attack)
BESIDE = flags.DEFINE_multi_string(
    "beside", [], "Folder of another attack, to draw in the same picture. Repeatable."
)
flags.mark_flags_as_required(["config", "workdir"])


def main():
    """Attacks every setting, and writes the results."""
    how, rows, results = ATTACK(), [], {}
    points = list(grid.points_of(CONFIG.value, OVER.value))
    for _, config in points:
        parse.check(config)
    beside = attack_pictures.rows_of(BESIDE.value)
    folder = files.writable_folder(WORKDIR.value)
    for point, config in points:
        name = named(point) or "as configured"
        results[name] = attack.run(config, how, DATA_DIR.value)
        rows.append({**point, "prior": how.prior, **attack.row(results[name])})
        files.write_rows(folder / "attack.csv", rows)
        print(f"{name}: {attack.verdict(rows[-1])}", flush=True)
    attack_pictures.draw(results, folder / "images.png")
    attack_pictures.draw_curves(rows, folder / "attack_curves.png", beside)
    print(f"results in {WORKDIR.value}")


if __name__ == "__main__":
    command.run(main)
