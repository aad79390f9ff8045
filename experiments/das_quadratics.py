"""Compares clipping with normalisation on quadratics (Das et al., Figures 1 to 3).

python -m experiments.das_quadratics --workdir=/tmp/das_quadratics
python -m experiments.das_quadratics --workdir=/tmp/few --rounds=50 --seeds=1

Clients have the losses (w - w_i)' A_i A_i' (w - w_i) / 2, all take part in every round,
and both algorithms see the very same noise. A row of table.csv is a starting point, a
threshold C and a rate eta, with the last f(w) - f(w*) of each algorithm, and the mean
ratio of signal to noise on the way. figures.png has the paper's figures.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import toy
from fl_sketch.algorithms import dp_fedavg
from fl_sketch.core import files
from fl_sketch.privacy import accounting, clipping, literature

MINUTES = 3

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
STARTS = {"w* + z": 1.0, "w* + z/5": 0.2}


class Settings(NamedTuple):
    """What the figures vary, and all sizes; by default the paper's.

    Attributes:
      thresholds: the values of C.
      rates: the values of eta, the rate of local steps.
      seeds: the seeds of problems and noise, over which means are taken.
      rank: the number of columns of every A.
    """

    thresholds: Sequence[float] = (40.0, 50.0, 100.0)
    rates: Sequence[float] = (0.0005, 0.001, 0.002)
    seeds: Sequence[int] = (0, 1, 2)
    rounds: int = 500
    steps: int = 20
    clients: int = 100
    d: int = 200
    rank: int = 20


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


def problem(settings: Settings, seed: int) -> tuple[toy.Quadratics, jax.Array]:
    """Returns the paper's random problem, and z; starts are parts of it from w*."""
    random = np.random.default_rng(seed)
    shape = (settings.clients, settings.d)
    optima = random.normal(size=shape)
    roots = random.normal(size=(*shape, settings.rank)) / settings.rank
    q = np.einsum("cdr,cer->de", roots, roots) / settings.clients
    right = np.einsum("cdr,cer,ce->d", roots, roots, optima) / settings.clients
    optimum = np.linalg.solve(q, right)
    offset = random.uniform(size=settings.d)
    arrays = (jnp.asarray(x, jnp.float32) for x in (optima, optimum, roots, offset))
    optima, optimum, roots, offset = arrays
    return toy.Quadratics(None, optima, optimum, roots=roots), offset


def mean_loss(task: toy.Quadratics, params: jax.Array) -> jax.Array:
    """Returns the mean over clients of their losses."""
    off = jnp.einsum("cd,cdr->cr", params - task.optima, task.roots)
    return jnp.mean(jnp.sum(off**2, axis=1)) / 2


def measure(
    settings: Settings, noise_multiplier: float
) -> Iterator[tuple[dict[str, Any], dict[str, Path]]]:
    """Yields a row for every start, C and eta, of means over seeds, and its runs.

    The noise on a sum has the deviation z C. A row has the last excess and the mean snr
    of each bound; "ratio" is the excess of normalisation over that of clipping.
    """
    tasks = {seed: problem(settings, seed) for seed in settings.seeds}
    steps, clients = settings.steps, settings.clients

    def run(bound, task, first, key, threshold, rate):
        algorithm = dp_fedavg(
            task.loss,
            client_rate=rate,
            threshold=threshold,
            noise_multiplier=noise_multiplier,
            cohort=clients,
            bound=BOUNDS[bound],
        )
        best = mean_loss(task, task.optimum)

        def observe(state, report):
            energies, now = report.simulator_only.diagnostics, state.server.params
            both = (energies[f"mechanism_{k}_energy"] for k in ("signal", "noise"))
            signal, noise = both
            snr = jnp.sqrt(signal / noise)
            return mean_loss(task, now) - best, snr, now - task.optimum

        _, (excess, snr, models) = toy.trajectory(
            lambda _: algorithm,
            first,
            key,
            jnp.zeros(settings.rounds),
            observe=observe,
            steps=steps,
            clients=clients,
            chunk=clients,
        )
        begin = (mean_loss(task, first) - best)[None]
        return (
            jnp.concatenate([begin, excess]),
            snr,
            jnp.concatenate([(first - task.optimum)[None], models]),
        )

    compiled = jax.jit(run, static_argnums=0)
    for start, *numbers in itertools.product(
        STARTS, settings.thresholds, settings.rates
    ):
        row: dict[str, Any] = {"start": start, "C": numbers[0], "eta": numbers[1]}
        paths = {}
        for bound in BOUNDS:
            runs = []
            for seed, (task, offset) in tasks.items():
                first = task.optimum + STARTS[start] * offset
                key, known = jax.random.key(seed), map(jnp.float32, numbers)
                runs.append(compiled(bound, task, first, key, *known))
            path = Path(*jax.tree.map(lambda *leaves: np.stack(leaves), *runs))
            row[f"{bound}_excess"] = float(np.mean(path.excess[:, -1]))
            row[f"{bound}_snr"] = float(np.mean(path.snr))
            paths[bound] = path
        row["ratio"] = row["normalise_excess"] / row["clip_excess"]
        yield row, paths


def draw(
    settings: Settings, paths: Mapping[tuple[str, float, float], dict[str, Path]], path
) -> None:
    """Draws Figures 1 to 3: suboptimality, signal to noise, and two trajectories.

    The `paths` are by start, C and eta.
    """
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
                    excess = paths[start, threshold, rate][bound].excess.mean(0)
                    panel.plot(excess, style, label=f"{bound}, {rate:g}")
        ratio, plane = panels[2:, column]
        both = paths[first, threshold, middle]
        models = [both[bound].models[0] for bound in BOUNDS]
        # The plane in which they move most, smoothed.
        axes = np.linalg.svd(np.concatenate(models), full_matrices=False)[2][:2]
        width = max(1, (len(models[0]) - 1) // 25)
        window = np.ones(width) / width
        for bound, of_bound in zip(BOUNDS, models, strict=True):
            ratio.plot(both[bound].snr.mean(0), label=bound)
            line = [np.convolve(of_bound @ axis, window, "valid") for axis in axes]
            plane.plot(*line, label=bound)
        ratio.set(title=f"C = {threshold:g}", xlabel="round")
        plane.plot(0, 0, "k*", label="w*")
        plane.set(title=f"trajectories, C = {threshold:g}")
    panels[0][0].set_ylabel("f(w) - f(w*)")
    panels[2][0].set_ylabel("signal to noise")
    for panel in (panels[0][0], panels[2][0], panels[3][0]):
        panel.legend(fontsize="small")
    files.write_figure(path, figure)


def main(workdir: str, settings: Settings):
    """Runs all settings by (5, 10^-6)-differential privacy for a client."""
    folder, paths = files.writable_folder(workdir), {}
    promise = {"epsilon": 5.0, "delta": 1e-6}
    plan = accounting.Plan(settings.rounds, settings.clients, settings.clients)
    z = accounting.calibrate(plan, **promise)
    theirs = literature.das_noise_multiplier(plan, **promise)
    print(f"noise multiplier {z:.2f} (the formula of the paper: {theirs:.2f})")

    def rows():
        for row, of_row in measure(settings, z):
            paths[row["start"], row["C"], row["eta"]] = of_row
            yield row

    toy.record(rows(), folder / "table.csv")
    draw(settings, paths, folder / "figures.png")


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
    ROUNDS = flags.DEFINE_integer("rounds", 500, "Rounds of a run.", 1)
    SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs to average.", 1)
    flags.mark_flag_as_required("workdir")
    command.run(
        lambda: main(
            WORKDIR.value, Settings(rounds=ROUNDS.value, seeds=range(SEEDS.value))
        )
    )
