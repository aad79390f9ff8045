"""More rounds for a run that is done, or under way: bit for bit the longer run.

Refused is a length that would have changed the rounds which were played: a schedule
that ends with the run, noise that was made for its length, prices that follow from it.
"""

from ml_collections import ConfigDict

from fl_sketch.config import arguments
from fl_sketch.config import privacy as protection
from fl_sketch.run.build import Experiment, build


def require(
    before: ConfigDict, experiment: Experiment, data_dir: str | None = None
) -> None:
    """Raises unless a run may go on to the last round of a longer one.

    Args:
      before: the config of the run so far.
      experiment: the longer run.
      data_dir: the folder of raw data sets.

    Raises:
      ValueError: in one line, with what the new length would change.
    """
    after = experiment.config
    if after.rounds < before.rounds:
        msg = f"Expected extend >= {before.rounds}, the rounds of the run, got "
        raise ValueError(msg + f"extend={after.rounds}.")
    if after.rounds == before.rounds:
        return
    for key in arguments.by_length(after):
        msg = (
            f"Expected a run whose rounds do not depend on how many there are, got "
            f"one with {key}, which is a part of all {before.rounds} rounds: a run of "
            f"rounds={after.rounds} from its beginning differs."
        )
        raise ValueError(msg)
    shorter = build(before, data_dir)
    if protection.asked_for(after):
        _require_same_noise(after, experiment, shorter)
    if experiment.facts["download"] != shorter.facts["download"]:
        msg = (
            "Expected clients to fetch the same way in both lengths, got "
            f"download={after.download}, which chooses another one for "
            f"rounds={after.rounds}."
        )
        raise ValueError(msg)


def _require_same_noise(config, after: Experiment, before: Experiment) -> None:
    """Raises where the noise of the rounds so far is not that of the longer run."""
    if config.privacy.randomness == "seed":
        msg = (
            "Expected a run whose noise does not follow from its config, the number of "
            "rounds included, got privacy.randomness=seed."
        )
        raise ValueError(msg)
    both = [one.guarantee for one in (before, after)]
    if len({own and own.noise_multiplier for own in both}) > 1:
        msg = (
            "Expected noise that was made for the longer run, got that of "
            f"rounds={before.config.rounds}: privacy.planned_rounds says beforehand "
            "how many there will be."
        )
        raise ValueError(msg)
    if after.rounds == before.rounds:
        msg = (
            f"Expected a budget for more than {before.rounds} rounds, got "
            f"target_epsilon={config.privacy.target_epsilon}, which is spent by then."
        )
        raise ValueError(msg)
