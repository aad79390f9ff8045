"""What a config costs before anything is compiled: the lines of `launch.plan`."""

from fl_sketch.config import privacy
from fl_sketch.core import shown
from fl_sketch.run import display
from fl_sketch.run.facts import facts_of
from fl_sketch.run.setup import Setup


def lines(setup: Setup) -> list[str]:
    """Returns the lines that a run begins with, and the bytes of its rounds."""
    config, prices, text = setup.config, setup.experiment.prices, display.plan(setup)
    up, clients = facts_of(setup)["bytes_up_planned"], privacy.expected(config)
    if up is None:
        return [*text, "per round: the bytes depend on the round"]
    in_all, rounds_away = config.rounds * clients, config.data.clients / clients
    average = prices.average(config.rounds, rounds_away) + prices.within
    first = prices.once * min(config.data.clients, in_all)
    about = "about " * bool(prices.followed or prices.once)
    return [
        *text,
        f"per round: {clients * up} bytes up, {about}{round(clients * average)} down; "
        f"{config.rounds} rounds: {shown.sized(in_all * up)} up, "
        f"{about}{shown.sized(round(in_all * average) + first)} down"
        + ", first downloads included"
        * bool(about),
    ]
