"""Clipping against normalisation on quadratics: Das et al., section 5.3.

Clients have the losses (w - w_i)' A_i A_i' (w - w_i) / 2, all take part in every round,
and both algorithms see the very same noise. All settings of the figures run in one
program, with the engine's own rounds.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.algorithms import dp_fedavg
from fl_sketch.core import files
from fl_sketch.privacy import accounting, clipping, literature

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
STARTS = {"w* + z": 1.0, "w* + z/5": 0.2}


class Problem(NamedTuple):
    """The clients' losses, and what can be worked out of them.

    Attributes:
      roots: A, shape=(clients, d, rank).
      optima: `w_i`, shape=(clients, d).
      optimum: `w*`, the minimum of the mean loss, shape=(d,).
      offset: z, of which a start is some part away from there, shape=(d,).
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
    """What the figures vary, and the size of it all; by default the paper's.

    Attributes:
      thresholds: the values of C.
      rates: the values of eta, the rate of local steps.
      seeds: the seeds of problems and noise, over which means are taken.
      rounds: the number of rounds of a run.
      steps: the number of a client's local steps in a round.
      clients: the number of clients, all of whom take part.
      d: the number of parameters.
      rank: the columns of every A.
      epsilon: the epsilon that is promised to a client.
      delta: its delta.
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
    def noise_multiplier(self) -> float:
        """The least noise that keeps the promise, by our accountant."""
        plan = accounting.Plan(self.rounds, self.clients, self.clients)
        return accounting.calibrate(plan, epsilon=self.epsilon, delta=self.delta)

    @property
    def paper_noise_multiplier(self) -> float:
        """That of the paper's formula, the constant of which is nowhere stated."""
        plan = accounting.Plan(self.rounds, self.clients, self.clients)
        return literature.das_noise_multiplier(
            plan, epsilon=self.epsilon, delta=self.delta
        )


def problem(settings: Settings, seed: int) -> Problem:
    """Returns the paper's random problem of these sizes.

    Args:
      settings: the sizes: clients, d and rank.
      seed: the seed of all that is random in it.
    """
    random = np.random.default_rng(seed)
    shape = (settings.clients, settings.d)
    optima = random.normal(size=shape)
    roots = random.normal(size=(*shape, settings.rank)) / settings.rank
    q = np.einsum("cdr,cer->de", roots, roots) / settings.clients
    right = np.einsum("cdr,cer,ce->d", roots, roots, optima) / settings.clients
    optimum = np.linalg.solve(q, right)
    offset = random.uniform(size=settings.d)
    return Problem(
        *(jnp.asarray(x, jnp.float32) for x in (roots, optima, optimum, offset))
    )


class Path(NamedTuple):
    """One run of one algorithm.

    Attributes:
      excess: `f(w_k) - f(w*)`, shape=(rounds + 1,).
      snr: the norm of the mean bounded update over that of the noise on it,
        shape=(rounds,).
      models: `w_k - w*`, shape=(rounds + 1, d).
    """

    excess: np.ndarray
    snr: np.ndarray
    models: np.ndarray


def paths(
    settings: Settings, bound: str, start: str, noise_multiplier: float
) -> dict[tuple[float, float, int], Path]:
    """Returns a run for every (C, eta, seed) of the settings.

    Args:
      settings: the settings.
      bound: one of `BOUNDS`, what is done to updates.
      start: one of `STARTS`, where models begin.
      noise_multiplier: z; the noise on a sum has standard deviation z C.
    """
    found = {}
    run = jax.jit(functools.partial(_run, settings, bound, noise_multiplier))
    for seed in settings.seeds:
        task = problem(settings, seed)
        first = task.optimum + STARTS[start] * task.offset
        for threshold in settings.thresholds:
            for rate in settings.rates:
                key = jax.random.key(seed)
                one = run(task, first, key, jnp.float32(threshold), jnp.float32(rate))
                found[threshold, rate, seed] = Path(*jax.device_get(one))
    return found


def _run(settings, bound, noise_multiplier, task: Problem, first, key, threshold, rate):
    algorithm = dp_fedavg(
        task.loss,
        client_rate=rate,
        threshold=threshold,
        noise_multiplier=noise_multiplier,
        cohort=settings.clients,
        bound=BOUNDS[bound],
    )

    def fetch(data, client, plan, key):
        del data, plan, key
        return jnp.broadcast_to(client, (settings.steps,))

    one_round = engine.with_everyone(
        algorithm, fetch, settings.clients, chunk=settings.clients
    )
    best = task.mean_loss(task.optimum)

    def step(state, _):
        state, report = one_round(state, key)
        seen = report.simulator_only.diagnostics
        snr = jnp.sqrt(seen["signal_energy"] / seen["noise_energy"])
        now = state.server.params
        return state, (task.mean_loss(now) - best, snr, now - task.optimum)

    state = engine.initial_state(algorithm, first, settings.clients)
    _, (excess, snr, models) = jax.lax.scan(step, state, length=settings.rounds)
    begin = (task.mean_loss(first) - best)[None]
    return (
        jnp.concatenate([begin, excess]),
        snr,
        jnp.concatenate([(first - task.optimum)[None], models]),
    )


def rows(
    settings: Settings, found: Mapping[tuple[str, str], Mapping]
) -> Iterator[dict]:
    """Yields a row for every start, C and eta, means over seeds.

    Args:
      settings: the options of the runs.
      found: `paths` by bound and start, all of both.

    Yields:
      The settings, and for each bound the last excess and the mean snr; "ratio" is the
      excess of normalisation over that of clipping.
    """
    for start in STARTS:
        for threshold in settings.thresholds:
            for rate in settings.rates:
                row: dict[str, Any] = {"start": start, "C": threshold, "eta": rate}
                for bound in BOUNDS:
                    own = [
                        found[bound, start][threshold, rate, seed]
                        for seed in settings.seeds
                    ]
                    row[f"{bound}_excess"] = float(np.mean([p.excess[-1] for p in own]))
                    row[f"{bound}_snr"] = float(np.mean([p.snr for p in own]))
                row["ratio"] = row["normalise_excess"] / row["clip_excess"]
                yield row


def draw(settings: Settings, found: Mapping[tuple[str, str], Mapping], path) -> None:
    """Draws Figures 1 to 3: suboptimality, signal to noise, and two trajectories.

    Args:
      settings: the options of the runs.
      found: `paths` by bound and start, all of both.
      path: the path of the picture.
    """
    from matplotlib.figure import Figure  # takes a second to import

    columns = len(settings.thresholds)
    figure = Figure(figsize=(4 * columns, 13), layout="constrained")
    panels = figure.subplots(4, columns, squeeze=False)
    middle = settings.rates[len(settings.rates) // 2]
    for column, threshold in enumerate(settings.thresholds):
        for place, start in enumerate(STARTS):
            panel = panels[place][column]
            panel.set(title=f"{start}, C = {threshold:g}", yscale="log", xlabel="round")
            for bound, style in zip(BOUNDS, ("--", "-"), strict=True):
                for rate in settings.rates:
                    own = found[bound, start]
                    mean = _mean(settings, own, threshold, rate, "excess")
                    panel.plot(mean, style, label=f"{bound}, {rate:g}")
        first = next(iter(STARTS))
        for bound in BOUNDS:
            own = found[bound, first]
            panels[2][column].plot(
                _mean(settings, own, threshold, middle, "snr"), label=bound
            )
            path_of = own[threshold, middle, settings.seeds[0]].models
            panels[3][column].plot(
                *_plane(found, first, threshold, middle, path_of, settings), label=bound
            )
        panels[2][column].set(title=f"C = {threshold:g}", xlabel="round")
        panels[3][column].plot(0, 0, "k*", label="w*")
        panels[3][column].set(title=f"trajectories, C = {threshold:g}")
    panels[0][0].set_ylabel("f(w) - f(w*)")
    panels[2][0].set_ylabel("signal to noise")
    for panel in (panels[0][0], panels[2][0], panels[3][0]):
        panel.legend(fontsize="small")
    files.write_figure(path, figure)


def _mean(settings, own, threshold, rate, name) -> np.ndarray:
    each = [getattr(own[threshold, rate, seed], name) for seed in settings.seeds]
    return np.mean(each, axis=0)


def _plane(found, start, threshold, rate, models, settings) -> np.ndarray:
    """Returns a trajectory in the plane in which both move most, smoothed."""
    seed = settings.seeds[0]
    both = [found[bound, start][threshold, rate, seed].models for bound in BOUNDS]
    axes = np.linalg.svd(np.concatenate(both), full_matrices=False)[2][:2]
    width = max(1, settings.rounds // 25)
    window = np.ones(width) / width
    return np.stack([np.convolve(models @ axis, window, "valid") for axis in axes])
