"""The lines that a run prints."""

import math
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config.privacy import expected
from fl_sketch.core import shown
from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.models.metrics import measured, score_of
from fl_sketch.privacy import noise_size
from fl_sketch.privacy.guarantee import mark, rounded_up
from fl_sketch.run.facts import facts_of, model_of
from fl_sketch.run.setup import Setup

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
SHOWN = 5  # names of arrays


SECRET = {
    "system": "noise, cohorts and batches are drawn from the operating system",
    "simulated": "SIMULATED: noise, cohorts and batches follow from the seed",
}


def plan(setup: Setup) -> list[str]:
    """Returns lines on the run of a setup, before it is compiled."""
    config, facts, guarantee = setup.config, facts_of(setup), setup.experiment.guarantee
    return [
        f"{facts['algorithm']}: {facts['model']} of {size(facts)} on "
        f"{facts['dataset']}, {facts['clients']} clients, {devices(facts['devices'])}",
        f"  upload: {message(facts)}{_up_each(facts)}",
        f"  download: {_down(setup.experiment.prices, facts)}",
        f"  {config.rounds} rounds, cohort: {_cohort(config.cohort)}; memory: client "
        f"updates of {facts['kept_updates']}; privacy: {_kept(guarantee)}",
        *_bank(facts),
        *_begun(model_of(setup)),
        *_slow(config.compute.dtype),
        *_how(guarantee, config),
    ]


def size(facts: Mapping[str, Any]) -> str:
    """Returns the number of parameters that are trained, and of those that are not."""
    still = f" (and {facts['frozen']} frozen)" if "frozen" in facts else ""
    return f"{facts['d']} parameters{still}"


def devices(count: int) -> str:
    """Returns a number of the platform's devices in words, such as "2 CPU cores"."""
    device = jax.devices()[0]
    kind = device.device_kind
    if device.platform == "cpu":
        each = count == engine.cores() * jax.process_count()
        kind = ("CPU core" if each else "CPU device") + "s" * (count > 1)
    return f"{count} {kind}"


def message(facts: Mapping[str, Any]) -> str:
    """Returns the size of a message: in numbers, or in bytes if it is compressed."""
    sent, up, d = facts["sketch_size"], facts["bytes_up_planned"], facts["d"]
    size = f"{sent} numbers, {facts['compression']:.4g} times fewer than "
    if up is not None and up < FLOAT_BYTES * sent:
        size = f"{up} bytes, {FLOAT_BYTES * d / up:.4g} times fewer than "
    elif sent == d:
        size = f"{d} numbers, as many as "
    elif sent > d:
        size = f"{sent} numbers, {sent / d:.4g} times as many as "
    most, several = "at most " * (up is None), facts["exchanges"] > 1
    size += "the part that trains" if "frozen" in facts else "the model"
    return most + size + f", in {facts['exchanges']} exchanges" * several


def _up_each(facts: Mapping[str, Any]) -> str:
    up = facts["bytes_up_planned"]
    if up is None:
        return "; the bytes depend on the round"
    return f"; {up / 1e3:.4g} kB per client and round"


def _bank(facts: Mapping[str, Any]) -> list[str]:
    """Returns a line on what is kept of clients between rounds, if anything is."""
    if not facts["client_state_bytes"]:
        return []
    size, people = facts["client_state_bytes"] / 1e6, facts["clients"]
    return [f"  state of {people} clients: {size:.4g} MB in the memory of every device"]


def _begun(model: Mapping[str, Any]) -> list[str]:
    """Returns a line on the folder of a pretrained model, if a run begins with one."""
    found = model.get("pretrained", {})
    if "fresh" not in found:
        return []
    fresh, left = (
        shown.listed(found[kind], SHOWN) or "nothing" for kind in ("fresh", "left_out")
    )
    return [f"  begins with {model['init_from']}; fresh: {fresh}; left out: {left}"]


def _slow(dtype: str) -> list[str]:
    """Returns a line on a type that this platform computes slowly in, if it is one."""
    if dtype == "float32" or jax.default_backend() != "cpu":
        return []
    return [f"  note: on CPUs, local training in {dtype} is slower than in float32"]


def _kept(guarantee) -> str:
    if guarantee is None:
        return "none"
    if not guarantee.noise_multiplier:
        return "none (messages are bounded, but get no noise)"
    spent = guarantee.epsilon(guarantee.rounds)
    return f"epsilon = {rounded_up(spent)} at delta = {guarantee.delta:g}"


def _how(guarantee, config: ConfigDict) -> list[str]:
    """Returns lines on what makes a run private, if anything does, and on its noise."""
    if guarantee is None or not guarantee.noise_multiplier:
        return []
    plan, rounds = guarantee.plan, guarantee.rounds
    many = plan.releases * guarantee.per_round
    bits = f", {plan.noise} at {plan.integers.bits} bits" if plan.integers else ""
    early = f" (not {config.rounds}: target_epsilon is reached)"
    early *= rounds < config.rounds
    noise = noise_size.lines(guarantee, clients=expected(config))
    return [
        f"  privacy per {guarantee.unit} after {rounds} rounds{early}: relation "
        f"{plan.relation}, accountant {guarantee.accountant}, noise multiplier "
        f"{guarantee.noise_multiplier:.4g}{bits}, {many} noised "
        f"sum{'s' * (many > 1)} per round",
        f"  {SECRET[guarantee.randomness]}; the guarantee does not cover train loss, "
        "bytes and rounds/s: do not publish them",
        *(f"  {line}" for line in noise),
    ]


def _down(prices, facts: Mapping[str, Any]) -> str:
    whole = "the part that trains" if "frozen" in facts else "the whole model"
    once = f", and {prices.once / 1e3:.4g} kB once per client" * bool(prices.once)
    within = prices.within / 1e3
    if not prices.followed:
        whole += " and server state" * bool(prices.read)
        whole += f", and {within:.4g} kB during the round" * bool(within)
        size = prices.model / 1e3 + within
        return f"{size:.4g} kB per client and round ({whole}){once}"
    once = f", and {within:.4g} kB during each round" * bool(within) + once
    follow = prices.follow
    missed, most = follow.missed, prices.most
    more = f" and {follow.always / 1e3:.4g} kB per round" * bool(follow.always)
    whole += " and server state" * bool(follow.begin)
    return (
        f"{prices.params / 1e3:.4g} kB at first, then {missed / 1e3:.4g} kB for each "
        f"round since the client last took part{more}, at most {most / 1e3:.4g} kB "
        f"({whole}){once}"
    )


def _cohort(own: ConfigDict) -> str:
    who = "all clients"
    if own.sampling != "everyone":
        who = f"{own.size} clients ({own.sampling})"
    return who + f", dropout {own.dropout:g}" * bool(own.dropout)


def head(setup: Setup) -> str:
    """Returns the head of a run's table, with epsilon if it is private."""
    scores = {f"test {name}": SCORE for name in setup.metrics}
    columns = COLUMNS | scores | COSTS
    if setup.experiment.private:
        columns["epsilon"] = EPSILON
    return " ".join(f"{name:>{width}}" for name, (width, _) in columns.items())


def row(values: Mapping[str, Any]) -> str:
    """Returns one evaluation, `values` by their names, as a line of the table."""
    own = (name for name in measured(values) if name.startswith("test_"))
    scores = [float(values[name]) for name in own if name != "test_loss"]
    loss = values["train_loss"]  # NaN or, of JSON, None: none of the clients told it
    cells = (
        values["round"],
        None if loss is None or math.isnan(loss) else loss,
        values["test_loss"],
        *scores,
        shown.megabytes(values["bytes_up_total"]),
        shown.megabytes(values["bytes_down_total"]),
        values["rounds_per_second"],
    )
    columns = [*COLUMNS.values(), *[SCORE] * len(scores), *COSTS.values()]
    if values.get("epsilon") not in (None, ""):
        cells, columns = (*cells, _up(values["epsilon"])), [*columns, EPSILON]
    return " ".join(
        f"{'-' if cell is None else form.format(cell):>{width}}"
        for (width, form), cell in zip(columns, cells, strict=True)
    )


def _up(epsilon: float) -> float:
    """Returns a number of four decimals that is no less than `epsilon`."""
    return math.ceil(1e4 * epsilon) / 1e4 if math.isfinite(epsilon) else epsilon


def done_before(summary: Mapping[str, Any], setup: Setup, workdir: str) -> list[str]:
    """Returns the lines for a run that has ended before."""
    return [
        f"{workdir} already has this run, finished; its last row:",
        head(setup),
        row({**summary, "round": summary["rounds"]}),
    ]


def result(summary: Mapping[str, Any], workdir: str) -> list[str]:
    """Returns the lines that end a run: what its `summary` holds, and its `workdir`."""
    whose = " (simulator only)" * (summary["epsilon"] is not None)
    by = score_of(summary)
    return [
        f"{by.title} {by.of(summary):.4f} after {summary['rounds']} rounds; "
        f"{_sent(summary)}; compiled in {summary['compile_seconds']:.1f} s",
        *_absent(summary, whose),
        *_of_clients(summary, whose),
        *_spent(summary),
        f"results in {workdir}",
    ]


def _sent(summary: Mapping[str, Any]) -> str:
    """Returns the mean bytes of a client in a round."""
    up = f"{summary['bytes_up_per_client_round'] / 1e3:.4g} kB"
    down = f"{summary['bytes_down_per_client_round'] / 1e3:.4g} kB"
    if "answered" in summary:
        return f"upload {up} per answer, download {down} per request"
    return f"upload {up}, download {down} per client and round"


def _absent(summary: Mapping[str, Any], mark: str) -> list[str]:
    """Returns a line on how many clients answered, where some may not have."""
    if "answered" not in summary:
        return []
    asked, answered = (int(summary[name]) for name in ("asked", "answered"))
    return [f"clients answered {answered} of {asked} requests{mark}"]


def _of_clients(summary: Mapping[str, Any], mark: str) -> list[str]:
    """Returns lines on single clients, where they were looked at."""
    name = score_of(summary).name
    if f"clients_{name}" not in summary:
        return []
    mean, worst = (summary[f"clients_{name}{x}"] for x in ("", "_worst_tenth"))
    return [
        f"per client, on held-out examples: mean {name} {mean:.4f}, worst tenth "
        f"{worst:.4f}{mark}"
    ]


def _spent(summary: Mapping[str, Any]) -> list[str]:
    if summary["epsilon"] is None:
        return []
    how = mark(summary["randomness"])
    return [
        f"privacy spent per {summary['privacy_unit']}: epsilon = "
        f"{rounded_up(summary['epsilon'])} at delta = {summary['delta']:g}{how}"
    ]
