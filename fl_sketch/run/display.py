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
from fl_sketch.engine.prices import Prices
from fl_sketch.models.metrics import measured, score_of
from fl_sketch.privacy import noise_size
from fl_sketch.privacy.guarantee import Guarantee, mark, rounded_up
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
    kept = "none"
    if guarantee and not guarantee.private:
        kept = "none (messages are bounded, but get no noise)"
    elif guarantee:
        spent = rounded_up(guarantee.epsilon(guarantee.rounds) or 0)
        kept = f"epsilon = {spent} at delta = {guarantee.delta:g}"
    each, own = facts["bytes_up_planned"], config.cohort
    up = "the bytes depend on the round"
    if each is not None:
        up = f"{each / 1e3:.4g} kB per client and round"
    who = "all clients"
    if own.sampling != "everyone":
        who = f"{own.size} clients ({own.sampling})"
    who += f", dropout {own.dropout:g}" * bool(own.dropout)
    lines = [
        f"{facts['algorithm']}: {facts['model']} of {size(facts)} on "
        f"{facts['dataset']}, {facts['clients']} clients, {devices(facts['devices'])}",
        f"  upload: {message(facts)}; {up}",
        f"  download: {_download(setup.experiment.prices, facts)}",
        f"  {config.rounds} rounds, cohort: {who}; memory: client updates of "
        f"{facts['kept_updates']}; privacy: {kept}",
    ]
    if kept_states := facts["client_state_bytes"]:
        states = f"  state of {facts['clients']} clients: {kept_states / 1e6:.4g} MB"
        lines.append(f"{states} in the memory of every device")
    model = model_of(setup)
    begun = model.get("pretrained", {})
    if "fresh" in begun:
        fresh, left = (
            shown.listed(begun[kind], SHOWN) or "nothing"
            for kind in ("fresh", "left_out")
        )
        source = model["init_from"]
        lines.append(f"  begins with {source}; fresh: {fresh}; left out: {left}")
    if config.compute.dtype != "float32" and jax.default_backend() == "cpu":
        slow = f"local training in {config.compute.dtype} is slower than in float32"
        lines.append(f"  note: on CPUs, {slow}")
    return [*lines, *(_promise(guarantee, config) if guarantee else ())]


def _promise(guarantee: Guarantee, config: ConfigDict) -> list[str]:
    """Returns lines on what makes a run private, if anything does, and on its noise."""
    if not guarantee.private:
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


def _download(prices: Prices, facts: Mapping[str, Any]) -> str:
    """Returns a description of a client's downloads."""
    whole = "the part that trains" if "frozen" in facts else "the whole model"
    once = f", and {prices.once / 1e3:.4g} kB once per client" * bool(prices.once)
    within, follow = prices.within / 1e3, prices.follow
    if not prices.followed:
        whole += " and server state" * bool(prices.read)
        whole += f", and {within:.4g} kB during the round" * bool(within)
        size = prices.model / 1e3 + within
        return f"{size:.4g} kB per client and round ({whole}){once}"
    once = f", and {within:.4g} kB during each round" * bool(within) + once
    more = f" and {follow.always / 1e3:.4g} kB per round" * bool(follow.always)
    whole += " and server state" * bool(follow.begin)
    return (
        f"{prices.params / 1e3:.4g} kB at first, then {follow.missed / 1e3:.4g} kB for "
        f"each round since the client last took part{more}, at most "
        f"{prices.most / 1e3:.4g} kB ({whole}){once}"
    )


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
    """Returns the size of a message: in entries, or in bytes if it is compressed."""
    sent, up, d = facts["sketch_size"], facts["bytes_up_planned"], facts["d"]
    size = f"{sent} entries, {facts['compression']:.4g} times fewer than "
    if up is not None and up < FLOAT_BYTES * sent:
        size = f"{up} bytes, {FLOAT_BYTES * d / up:.4g} times fewer than "
    elif sent == d:
        size = f"{d} entries, as many as "
    elif sent > d:
        size = f"{sent} entries, {sent / d:.4g} times as many as "
    most, several = "at most " * (up is None), facts["exchanges"] > 1
    size += "the part that trains" if "frozen" in facts else "the model"
    return most + size + f", in {facts['exchanges']} exchanges" * several


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
    # NaN, or None of JSON or of a client without a loss: there is none to show.
    loss = values.get("train_loss")
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
    epsilon = values.get("epsilon")
    if epsilon not in (None, ""):  # never shown as less than it is
        up = math.ceil(1e4 * epsilon) / 1e4 if math.isfinite(epsilon) else epsilon
        cells, columns = (*cells, up), [*columns, EPSILON]
    return " ".join(
        f"{'-' if cell is None else form.format(cell):>{width}}"
        for (width, form), cell in zip(columns, cells, strict=True)
    )


def result(summary: Mapping[str, Any], workdir: str) -> list[str]:
    """Returns the lines that end a run: what its `summary` holds, and its `workdir`."""
    by, epsilon = score_of(summary), summary["epsilon"]
    whose = " (simulator only)" * (epsilon is not None)
    up = f"{summary['bytes_up_per_client_round'] / 1e3:.4g} kB"
    down = f"{summary['bytes_down_per_client_round'] / 1e3:.4g} kB"
    sent = f"upload {up}, download {down} per client and round"
    if "answered" in summary:
        sent = f"upload {up} per answer, download {down} per request"
    lines = [
        f"{by.title} {by.of(summary):.4f} after {summary['rounds']} rounds; {sent}; "
        f"compiled in {summary['compile_seconds']:.1f} s"
    ]
    if "answered" in summary:
        asked, answered = (int(summary[name]) for name in ("asked", "answered"))
        lines.append(f"clients answered {answered} of {asked} requests{whose}")
    if f"clients_{by.name}" in summary:
        mean, worst = (summary[f"clients_{by.name}{x}"] for x in ("", "_worst_tenth"))
        lines.append(
            f"per client, on held-out examples: mean {by.name} {mean:.4f}, worst tenth "
            f"{worst:.4f}{whose}"
        )
    if epsilon is not None:
        lines.append(
            f"privacy spent per {summary['privacy_unit']}: epsilon = "
            f"{rounded_up(epsilon)} at delta = {summary['delta']:g}"
            f"{mark(summary['randomness'])}"
        )
    return [*lines, f"results in {workdir}"]
