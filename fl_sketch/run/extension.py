"""More rounds for a run that is done, or under way: bit for bit the longer run.

A length is refused if it would have changed earlier rounds: by a schedule that ends
with the run, noise for its length, or downloads that depend on it.
"""

from ml_collections import ConfigDict

from fl_sketch.config import arguments
from fl_sketch.engine.task import Task
from fl_sketch.privacy.guarantee import require_left
from fl_sketch.run.setup import Setup
from fl_sketch.run.task import of_setup


def require(before: int, setup: Setup, task: Task) -> None:
    """Raises unless a run of `before` rounds may be extended to a longer one.

    Raises:
      ValueError: in one line, with what the new length would change.
    """
    after = setup.config
    if after.rounds < before:
        msg = f"Expected extend >= {before}, the rounds of the run, got "
        raise ValueError(msg + f"extend={after.rounds}.")
    if after.rounds == before:
        return
    for key in arguments.by_length(after):
        msg = (
            "Expected a run whose rounds do not depend on their number with --extend, "
            f"got {key}, which was planned for rounds={before}."
        )
        raise ValueError(msg)
    shorter = of_setup(setup.changed("rounds", before).with_noise())
    if task.private:
        _require_same_noise(after.privacy, before, shorter, task)
    if task.facts["download"] != shorter.facts["download"]:
        msg = (
            f"Expected download={shorter.facts['download']}, as in the run so far, got "
            f"download={after.download}, which is {task.facts['download']} for "
            f"rounds={after.rounds}."
        )
        raise ValueError(msg)


def _require_same_noise(
    privacy: ConfigDict, before: int, shorter: Task, longer: Task
) -> None:
    """Raises where the noise of the rounds so far is not that of the longer run."""
    if privacy.randomness == "seed":
        msg = (
            "Expected privacy.randomness=system with --extend, got "
            "privacy.randomness=seed, whose noise depends on the number of rounds."
        )
        raise ValueError(msg)
    noises = {
        task.known.guarantee and task.known.guarantee.noise_multiplier
        for task in (shorter, longer)
    }
    if len(noises) > 1:
        msg = (
            f"Expected privacy.noise_multiplier for rounds={longer.config['rounds']}, "
            f"got noise that privacy.target_epsilon chose for rounds={before}."
        )
        raise ValueError(msg)
    require_left(longer.last, shorter.last, privacy.target_epsilon)
