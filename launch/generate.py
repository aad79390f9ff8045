r"""Prints what a trained language model writes, behind a beginning.

python -m launch.generate --workdir=/tmp/bard --prompt="ROMEO, " --tokens=300
python -m launch.generate --workdir=/tmp/bard --temperature=0.5 --seed=1
"""

from absl import flags

from fl_sketch.run import generate
from launch import command, options

LOAD = options.trained()
PROMPT = flags.DEFINE_string("prompt", "", "How the text begins.")
TOKENS = flags.DEFINE_integer("tokens", 200, "How many characters or words follow.")
TEMPERATURE = flags.DEFINE_float(
    "temperature", 1.0, "Lower is more probable; 0: always the most probable one."
)
SEED = flags.DEFINE_integer("seed", 0, "Of what is drawn.", lower_bound=0)


def main():
    """Prints a text that begins with --prompt."""
    print(
        generate(
            LOAD(),
            PROMPT.value,
            tokens=TOKENS.value,
            temperature=TEMPERATURE.value,
            seed=SEED.value,
        )
    )


if __name__ == "__main__":
    command.run(main, devices=1)
