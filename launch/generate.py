r"""Generates text with a trained language model.

python -m launch.generate --workdir=/tmp/bard --prompt="ROMEO, " --tokens=300
python -m launch.generate --workdir=/tmp/bard --temperature=0.5 --seed=1
"""

from absl import flags

from fl_sketch.run import generate
from launch import command, options

LOAD = options.trained()
PROMPT = flags.DEFINE_string("prompt", "", "Beginning of the text.")
TOKENS = flags.DEFINE_integer("tokens", 200, "Characters or words to generate.")
TEMPERATURE = flags.DEFINE_float(
    "temperature", 1.0, "Sampling temperature; 0 = always take the most probable token."
)
SEED = flags.DEFINE_integer("seed", 0, "Seed of the sampling.", lower_bound=0)


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
