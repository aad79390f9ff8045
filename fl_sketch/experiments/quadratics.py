"""Clipping against normalisation on quadratics: Das et al., section 5.3.

Clients have the losses (w - w_i)' A_i A_i' (w - w_i) / 2, all take part in every round,
and both algorithms see the very same noise. All settings of the figures run in one
program, with the engine's own rounds.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.algorithms import dp_fedavg
from fl_sketch.core import files
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.experiments.verify import walks
from fl_sketch.privacy import accounting, clipping, literature

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
STARTS = {"w* + z": 1.0, "w* + z/5": 0.2}
TABLE = Table(
    {
        "start": Column("10"),
        "C": Column("6g"),
        "eta": Column("8g"),
        "clip_excess": Column("12.4g", "clip"),
        "normalise_excess": Column("12.4g", "normalise"),
        "ratio": Column("7.3f"),
        "clip_snr": Column("9.3f", "SNR clip"),
        "normalise_snr": Column("9.3f", "SNR norm"),
    }
)
Point = tuple[str, str, float, float]  # bound, start, C and eta


class LowRankQuadratics(NamedTuple):
    """The clients' losses.

    Attributes:
      roots: A, shape=(clients, d, rank).
      optima: `w_i`, shape=(clients, d).
      optimum: `w*`, the minimum of the mean loss, shape=(d,).
      offset: z; a start is some part of it away from the optimum, shape=(d,).
    """

    roots: jax.Array
    optima: jax.Array
    optimum: jax.Array
    offset: jax.Array

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss at `params` of `client`, a number that may be traced."""
        root = self.roots[client]
        return jnp.sum(((params - self.optima[client]) @ root) ** 2) / 2

    def mean_loss(self, params: jax.Array) -> jax.Array:
        """Returns the mean over clients of their losses at `params`."""
        off = jnp.einsum("cd,cdr->cr", params - self.optima, self.roots)
        return jnp.mean(jnp.sum(off**2, axis=1)) / 2


class Settings(NamedTuple):
    """What the figures vary, and all sizes; by default the paper's.

    Attributes:
      thresholds: the values of C.
      rates: the values of eta, the rate of local steps.
      seeds: the seeds of problems and noise, over which means are taken.
      rank: the number of columns of every A.
      epsilon: the guarantee for a client, with `delta`.
    """

    thresholds: Sequence[float] = (40.0, 50.0, 100.0)
    rates: Sequence[float] = (0.0005, 0.001, 0.002)
    seeds: Sequence[int] = (0, 1, 2)
    rounds: int = 500
    steps: int = 20
    clients: int = 100
    d: int = 200
    rank: int = 20
    epsilon: float = 5.0
    delta: float = 1e-6

    @property
    def plan(self) -> accounting.Plan:
        """What an accountant counts: every client in every round."""
        return accounting.Plan(self.rounds, self.clients, self.clients)

    @property
    def noise_multiplier(self) -> float:
        """The smallest noise that keeps the guarantee, by our accountant."""
        promise = {"epsilon": self.epsilon, "delta": self.delta}
        return accounting.calibrate(self.plan, **promise)

    @property
    def paper_noise_multiplier(self) -> float:
        """That of the paper's formula, the constant of which is nowhere stated."""
        promise = {"epsilon": self.epsilon, "delta": self.delta}
        return literature.das_noise_multiplier(self.plan, **promise)


def problem(settings: Settings, seed: int) -> LowRankQuadratics:
    """Returns the paper's random problem, in the sizes of the settings."""
    random = np.random.default_rng(seed)
    shape = (settings.clients, settings.d)
    optima = random.normal(size=shape)
    roots = random.normal(size=(*shape, settings.rank)) / settings.rank
    q = np.einsum("cdr,cer->de", roots, roots) / settings.clients
    right = np.einsum("cdr,cer,ce->d", roots, roots, optima) / settings.clients
    optimum = np.linalg.solve(q, right)
    offset = random.uniform(size=settings.d)
    arrays = (roots, optima, optimum, offset)
    return LowRankQuadratics(*(jnp.asarray(x, jnp.float32) for x in arrays))


class Path(NamedTuple):
    """The runs of one algorithm, of all seeds.

    Attributes:
      excess: `f(w_k) - f(w*)`, shape=(seeds, rounds + 1).
      snr: the norm of the mean bounded update over that of the noise on it,
        shape=(seeds, rounds).
      models: `w_k - w*`, shape=(seeds, rounds + 1, d).
    """

    excess: np.ndarray
    snr: np.ndarray
    models: np.ndarray


def paths(settings: Settings, noise_multiplier: float) -> dict[Point, Path]:
    """Returns the runs of every point; the noise on a sum has the deviation z C."""
    tasks = {seed: problem(settings, seed) for seed in settings.seeds}
    axes = STARTS, settings.thresholds, settings.rates
    walked = {}
    for bound in BOUNDS:
        run = jax.jit(functools.partial(_run, settings, bound, noise_multiplier))
        for start, *numbers in itertools.product(*axes):
            runs = []
            for seed, task in tasks.items():
                first = task.optimum + STARTS[start] * task.offset
                rates = map(jnp.float32, numbers)
                runs.append(run(task, first, jax.random.key(seed), *rates))
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *runs)
            walked[bound, start, *numbers] = Path(*stacked)
    return walked


def _run(settings, bound, noise_multiplier, task, first, key, threshold, rate):
    algorithm = dp_fedavg(
        task.loss,
        client_rate=rate,
        threshold=threshold,
        noise_multiplier=noise_multiplier,
        cohort=settings.clients,
        bound=BOUNDS[bound],
    )
    clients, best = settings.clients, task.mean_loss(task.optimum)
    one_round = walks.round_of(
        algorithm, steps=settings.steps, clients=clients, chunk=clients
    )

    def step(state, _):
        state, report = one_round(state, key)
        energies = report.simulator_only.diagnostics
        signal, noise = (energies[f"mechanism_{k}_energy"] for k in ("signal", "noise"))
        snr = jnp.sqrt(signal / noise)
        now = state.server.params
        return state, (task.mean_loss(now) - best, snr, now - task.optimum)

    state = engine.initial_state(algorithm, first, clients)
    _, (excess, snr, models) = jax.lax.scan(step, state, length=settings.rounds)
    begin = (task.mean_loss(first) - best)[None]
    return (
        jnp.concatenate([begin, excess]),
        snr,
        jnp.concatenate([(first - task.optimum)[None], models]),
    )


def rows(settings: Settings, walked: Mapping[Point, Path]) -> Iterator[dict[str, Any]]:
    """Yields a row for every start, C and eta, of means over seeds.

    A row has the last excess and the mean snr of each bound; "ratio" is the excess of
    normalisation over that of clipping.
    """
    axes = STARTS, settings.thresholds, settings.rates
    for start, threshold, rate in itertools.product(*axes):
        row: dict[str, Any] = {"start": start, "C": threshold, "eta": rate}
        for bound in BOUNDS:
            path = walked[bound, start, threshold, rate]
            row[f"{bound}_excess"] = float(np.mean(path.excess[:, -1]))
            row[f"{bound}_snr"] = float(np.mean(path.snr))
        row["ratio"] = row["normalise_excess"] / row["clip_excess"]
        yield row


def draw(settings: Settings, walked: Mapping[Point, Path], path) -> None:
    """Draws Figures 1 to 3: suboptimality, signal to noise, and two trajectories."""
    from matplotlib.figure import Figure  # takes a second to import

    columns = len(settings.thresholds)
    figure = Figure(figsize=(4 * columns, 13), layout="constrained")
    panels = figure.subplots(4, columns, squeeze=False)
    middle, first = settings.rates[len(settings.rates) // 2], next(iter(STARTS))
    for column, threshold in enumerate(settings.thresholds):
        for panel, start in zip(panels[:2, column], STARTS, strict=True):
            panel.set(title=f"{start}, C = {threshold:g}", yscale="log", xlabel="round")
            for bound, style in zip(BOUNDS, ("--", "-"), strict=True):
                for rate in settings.rates:
                    excess = walked[bound, start, threshold, rate].excess.mean(0)
                    panel.plot(excess, style, label=f"{bound}, {rate:g}")
        ratio, plane = panels[2:, column]
        both = [walked[bound, first, threshold, middle] for bound in BOUNDS]
        trajectories = _plane([of_bound.models[0] for of_bound in both])
        for bound, of_bound, line in zip(BOUNDS, both, trajectories, strict=True):
            ratio.plot(of_bound.snr.mean(0), label=bound)
            plane.plot(*line, label=bound)
        ratio.set(title=f"C = {threshold:g}", xlabel="round")
        plane.plot(0, 0, "k*", label="w*")
        plane.set(title=f"trajectories, C = {threshold:g}")
    panels[0][0].set_ylabel("f(w) - f(w*)")
    panels[2][0].set_ylabel("signal to noise")
    for panel in (panels[0][0], panels[2][0], panels[3][0]):
        panel.legend(fontsize="small")
    files.write_figure(path, figure)


def _plane(both: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns trajectories in the plane in which they move most, smoothed."""
    axes = np.linalg.svd(np.concatenate(both), full_matrices=False)[2][:2]
    width = max(1, (len(both[0]) - 1) // 25)
    window = np.ones(width) / width
    return [
        np.stack([np.convolve(models @ axis, window, "valid") for axis in axes])
        for models in both
    ]
