"""More rounds for a run that is done, or under way: bit for bit the longer run.

A length is refused if it would have changed the rounds which were played: by a schedule
that ends with the run, noise that was made for its length, or downloads that follow
from it.
"""

from ml_collections import ConfigDict

from fl_sketch.config import arguments
from fl_sketch.engine.task import Task
from fl_sketch.run.setup import Setup
from fl_sketch.run.task import of_setup


def require(before: int, setup: Setup, task: Task) -> None:
    """Raises unless a run of `before` rounds may go on to the end of a longer one.

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
            f"Expected a run whose rounds do not depend on how many there are, got "
            f"one with {key}, which is a part of all {before} rounds: a run of "
            f"rounds={after.rounds} from its beginning differs."
        )
        raise ValueError(msg)
    shorter = of_setup(setup.changed("rounds", before).with_noise())
    if task.private:
        _require_same_noise(after.privacy, before, shorter, task)
    if task.facts["download"] != shorter.facts["download"]:
        msg = (
            "Expected clients to fetch the same way in both lengths, got "
            f"download={after.download}, which chooses another one for "
            f"rounds={after.rounds}."
        )
        raise ValueError(msg)


def _require_same_noise(
    privacy: ConfigDict, before: int, shorter: Task, longer: Task
) -> None:
    """Raises where the noise of the rounds so far is not that of the longer run."""
    if privacy.randomness == "seed":
        msg = (
            "Expected a run whose noise does not follow from its config, the number of "
            "rounds included, got privacy.randomness=seed."
        )
        raise ValueError(msg)
    noises = {
        task.known.guarantee and task.known.guarantee.noise_multiplier
        for task in (shorter, longer)
    }
    if len(noises) > 1:
        msg = (
            "Expected noise that was made for the longer run, got that of "
            f"rounds={before}: privacy.planned_rounds says beforehand how many there "
            "will be."
        )
        raise ValueError(msg)
    if longer.last == shorter.last:
        msg = (
            f"Expected a budget for more than {shorter.last} rounds, got "
            f"target_epsilon={privacy.target_epsilon}, which is spent by then."
        )
        raise ValueError(msg)
