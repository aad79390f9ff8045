"""What a run says on the screen."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.engine.task import Task
from fl_sketch.privacy.guarantee import mark, rounded_up
from fl_sketch.workdir import rows

COLUMNS = {
    "round": (7, "{}"),
    "train loss": (11, "{:.4f}"),
    "test loss": (10, "{:.4f}"),
}
SCORE = (13, "{:.4f}")
COSTS = {
    "MB up": (9, "{}"),
    "MB down": (9, "{}"),
    "rounds/s": (9, "{:.1f}"),
}
EPSILON = (9, "{:.4f}")
NOISED = (14, "{:.4f}")


SECRET = {
    "system": "noise, cohorts and batches from the operating system",
    "simulated": "SIMULATED: noise, cohorts and batches follow from the config",
}


def plan(config: ConfigDict, task: Task) -> list[str]:
    """Returns lines on what is known of the task of a config before it is compiled."""
    facts, who = task.facts, _cohorts(config.cohort)
    return [
        f"{facts['algorithm']}: {facts['model']} of {_size(facts)} on "
        f"{facts['dataset']}, {facts['clients']} clients, {facts['devices']} devices",
        f"  a message: {message(facts)}; {_sent(task)}",
        f"  {config.rounds} rounds, cohorts: {who}; held in memory: "
        f"updates of {facts['kept_updates']}; privacy: {_kept(task.known.guarantee)}",
        *_bank(facts),
        *_slow(config.compute.dtype),
        *_how(task.known.guarantee, config.rounds),
    ]


def _size(facts: Mapping[str, Any]) -> str:
    """Says how many parameters train, and how many numbers do not."""
    still = f", {facts['frozen']} more that do not train," if "frozen" in facts else ""
    return f"{facts['d']} parameters{still}"


def message(facts: Mapping[str, Any]) -> str:
    """Says how short a message is: in numbers, or in bytes if it is compressed."""
    sent, up, d = facts["sketch_size"], facts["bytes_up_planned"], facts["d"]
    short = f"{sent} numbers, {facts['compression']:.4g} times fewer than the model has"
    if up is not None and up < FLOAT_BYTES * sent:
        short = f"{up} bytes, {FLOAT_BYTES * d / up:.4g} times fewer than the model's"
    elif sent == d:
        short = f"{d} numbers, as many as the model has"
    elif sent > d:
        short = f"{sent} numbers, {sent / d:.4g} times as many as the model has"
    several = facts["exchanges"] > 1
    return short + f", {facts['exchanges']} exchanges" * several


def _sent(task: Task) -> str:
    """Says what is sent in a round: by a client and to it, or over a graph."""
    facts = task.facts
    up, prices = facts["bytes_up_planned"], task.known.prices
    if task.known.prices.relay is None:
        sent = f"{up / 1e3:.4g} kB up" if up is not None else "up: depends on the round"
        return f"a client's round: {sent}, {_down(prices)}"
    whole = facts["bytes_over_edges_planned"]
    size = rows.sized(whole) if whole is not None else "as long as the round has them"
    return (
        f"no server but the {facts['edges']} edges of {facts['graph']}: a round takes "
        f"{facts['messages']} messages by {facts['relay']}, {size}, and an exchange "
        f"{facts['hops']} hops"
    )


def _bank(facts: Mapping[str, Any]) -> list[str]:
    """Returns a line on what is kept of clients between rounds, if anything is."""
    if not facts["client_state"]:
        return []
    size, people = facts["client_state_bytes"] / 1e6, facts["clients"]
    where = {"devices": "every device", "host": "the host"}[facts["client_state"]]
    return [f"  states of {people} clients: {size:.4g} MB in the memory of {where}"]


def _slow(dtype: str) -> list[str]:
    """Returns a line on a type that this platform computes slowly in, if it is one."""
    if dtype == "float32" or jax.default_backend() != "cpu":
        return []
    return [f"  local work in {dtype}, which takes CPUs longer than float32"]


def _kept(guarantee) -> str:
    if guarantee is None:
        return "none"
    if not guarantee.noise_multiplier:
        return "none (messages are bounded, without noise)"
    spent = guarantee.epsilon(guarantee.rounds)
    return f"epsilon {rounded_up(spent)} at delta {guarantee.delta:g}"


def _how(guarantee, asked: int) -> list[str]:
    """Returns lines on what makes a run private, if anything does."""
    if guarantee is None or not guarantee.noise_multiplier:
        return []
    plan, rounds = guarantee.plan, guarantee.rounds
    many = plan.releases * guarantee.per_round
    early = f" (not {asked}, which would pass target_epsilon)" * (rounds < asked)
    return [
        f"  for every {guarantee.unit} after {rounds} rounds{early}: {plan.relation}, "
        f"{guarantee.accountant}, noise multiplier {guarantee.noise_multiplier:.4g}, "
        f"{many} release{'s' * (many > 1)} a round",
        f"  {SECRET[guarantee.randomness]}; train loss and bytes are the simulator's "
        "own",
    ]


def _down(prices) -> str:
    told, model = prices.follow.missed + prices.follow.always, prices.model
    ways = f"{told / 1e3:.4g} kB a round down to follow", f"{model / 1e3:.4g} kB"
    once = f", {prices.once / 1e3:.4g} kB once" * bool(prices.once)
    if prices.followed:
        return f"{ways[0]} (the model: {ways[1]}){once}"
    return f"{ways[1]} down, the model (to follow: {told / 1e3:.4g} kB a round){once}"


def _cohorts(own: ConfigDict) -> str:
    who = own.sampling
    if own.sampling != "everyone":
        who += f", {own.size}"
    who += f" of those in {own.available}" * bool(own.available)
    who += f", {own.dropout:g} of whom never answer" * bool(own.dropout)
    who += f", times {own.times}" * bool(own.times)
    return who + f", late after {own.deadline:g} s" * bool(own.deadline)


def head(task: Task) -> str:
    """Returns the head of the table of `task`, with epsilon if it is private."""
    scores = {f"test {name}": SCORE for name in task.facts["metrics"]}
    columns = COLUMNS | scores | COSTS
    if task.private:
        columns["epsilon"] = EPSILON
    columns |= {name.replace("_train_", " "): NOISED for name in task.facts["noised"]}
    return " ".join(f"{name:>{width}}" for name, (width, _) in columns.items())


def row(values: Mapping[str, Any]) -> str:
    """Returns one evaluation, `values` by their names, as a line of the table."""
    values = rows.plain(values)
    own = (name for name in rows.measured(values) if name.startswith("test_"))
    scores = [float(values[name]) for name in own if name != "test_loss"]
    cells = (
        values["round"],
        values["train_loss"],
        values["test_loss"],
        *scores,
        rows.megabytes(values["bytes_up_total"]),
        rows.megabytes(values["bytes_down_total"]),
        values["rounds_per_second"],
    )
    columns = [*COLUMNS.values(), *[SCORE] * len(scores), *COSTS.values()]
    if values.get("epsilon") not in (None, ""):
        cells, columns = (*cells, _up(values["epsilon"])), [*columns, EPSILON]
    noised = [values[name] for name in values if name.startswith("noised_")]
    cells, columns = (*cells, *noised), [*columns, *[NOISED] * len(noised)]
    return " ".join(
        f"{form.format(math.nan if cell is None else cell):>{width}}"
        for (width, form), cell in zip(columns, cells, strict=True)
    )


def _up(epsilon: float) -> float:
    """Returns a number of four decimals that is no less than `epsilon`."""
    return math.ceil(1e4 * epsilon) / 1e4 if math.isfinite(epsilon) else epsilon


def done_before(summary: Mapping[str, Any], task: Task, workdir: str) -> list[str]:
    """Returns the lines for a run that has ended before."""
    return [
        f"{workdir} holds this run already, done; its last row:",
        head(task),
        row({**summary, "round": summary["rounds"]}),
    ]


def result(summary: Mapping[str, Any], workdir: str) -> list[str]:
    """Returns the lines that end a run: what its `summary` holds, and its `workdir`."""
    hidden = any(name.startswith(rows.MARK) for name in summary)
    whose = " (the simulator's own)" * hidden
    summary = rows.plain(summary)
    by = rows.score_of(summary)
    up = summary["bytes_up_per_client_round"] / 1e3
    down = summary["bytes_down_per_client_round"] / 1e3
    return [
        f"{by.title} {by.of(summary):.4f} after {summary['rounds']} "
        f"rounds; {up:.4g} kB up and {down:.4g} kB down a client and round; compiled "
        f"in {summary['compile_seconds']:.1f} s",
        *_absent(summary, whose),
        *_of_clients(summary, whose),
        *_given_away(summary),
        f"results in {workdir}",
    ]


def _absent(summary: Mapping[str, Any], mark: str) -> list[str]:
    """Returns a line on how many clients answered, where some may not have."""
    if "answered" not in summary:
        return []
    asked, answered = (int(summary[name]) for name in ("asked", "answered"))
    line = f"clients: {answered} of {asked} that were asked answered{mark}"
    if "simulated_seconds" in summary:
        line += f", in {summary['simulated_seconds']:.4g} simulated seconds"
    return [line]


def _of_clients(summary: Mapping[str, Any], mark: str) -> list[str]:
    """Returns lines on single clients, where they were looked at."""
    lines = []
    for whose, words in (("clients", "each"), ("personal", "each, with its own model")):
        name = rows.score_of(summary).name
        if f"{whose}_{name}" in summary:
            mean, worst = (summary[f"{whose}_{name}{x}"] for x in ("", "_worst_tenth"))
            lines.append(
                f"clients, {words}, on what they held out: {name} {mean:.4f} on "
                f"average, {worst:.4f} for the worst tenth{mark}"
            )
    return lines


def _given_away(summary: Mapping[str, Any]) -> list[str]:
    if summary["epsilon"] is None:
        return []
    how = mark(summary["randomness"])
    return [
        f"given away of every {summary['privacy_unit']}: epsilon "
        f"{rounded_up(summary['epsilon'])} at delta {summary['delta']:g}{how}"
    ]
