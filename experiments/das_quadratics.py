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

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import toy
from fl_sketch.algorithms import dp_fedavg
from fl_sketch.core import files
from fl_sketch.privacy import accounting, clipping
from fl_sketch.theory import das

MINUTES = 3

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
STARTS = {"w* + z": 1.0, "w* + z/5": 0.2}
THRESHOLDS, RATES = (40.0, 50.0, 100.0), (0.0005, 0.001, 0.002)


def problem(seed: int, *, clients=100, d=200, rank=20) -> tuple:
    """Returns the paper's random problem, and z; starts are parts of it from w*."""
    random = np.random.default_rng(seed)
    optima = random.normal(size=(clients, d))
    roots = random.normal(size=(clients, d, rank)) / rank
    q = np.einsum("cdr,cer->de", roots, roots) / clients
    right = np.einsum("cdr,cer,ce->d", roots, roots, optima) / clients
    optimum = np.linalg.solve(q, right)
    arrays = (optima, optimum, roots, random.uniform(size=d))
    optima, optimum, roots, offset = (jnp.asarray(x, jnp.float32) for x in arrays)
    return toy.Quadratics(None, optima, optimum, roots=roots), offset


def mean_loss(task: toy.Quadratics, params: jax.Array) -> jax.Array:
    """Returns the mean over clients of their losses."""
    off = jnp.einsum("cd,cdr->cr", params - task.optima, task.roots)
    return jnp.mean(jnp.sum(off**2, axis=1)) / 2


def measure(
    tasks: Sequence[tuple],
    noise_multiplier: float,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    rates: Sequence[float] = RATES,
    rounds: int = 500,
    steps: int = 20,
) -> Iterator[tuple[dict, dict]]:
    """Yields a row for every start, C and eta, of means over tasks, and its paths.

    The noise on a sum has the deviation z C. A path has, along its second axis, f(w_k)
    - f(w*), the norm of the mean bounded update over that of the noise on it, and w_k -
    w*. "ratio" is the excess of normalisation over that of clipping.
    """
    clients = len(tasks[0][0].optima)

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
            signal = energies["mechanism_signal_energy"]
            snr = jnp.sqrt(signal / energies["mechanism_noise_energy"])
            return mean_loss(task, now) - best, snr, now - task.optimum

        options = {"steps": steps, "clients": clients, "chunk": clients}
        _, (excess, snr, models) = toy.trajectory(
            lambda _: algorithm, first, key, jnp.zeros(rounds), observe, **options
        )
        begin = (mean_loss(task, first) - best)[None], (first - task.optimum)[None]
        excess = jnp.concatenate([begin[0], excess])
        return excess, snr, jnp.concatenate([begin[1], models])

    compiled = jax.jit(run, static_argnums=0)
    for start, C, eta in itertools.product(STARTS, thresholds, rates):
        row, paths = {"start": start, "C": C, "eta": eta}, {}
        for bound in BOUNDS:
            runs = []
            for seed, (task, offset) in enumerate(tasks):
                first, key = task.optimum + STARTS[start] * offset, jax.random.key(seed)
                known = jnp.float32(C), jnp.float32(eta)
                runs.append(compiled(bound, task, first, key, *known))
            paths[bound] = [np.stack(parts) for parts in zip(*runs, strict=True)]
            excess, snr, _ = paths[bound]
            row[f"{bound}_excess"] = float(np.mean(excess[:, -1]))
            row[f"{bound}_snr"] = float(np.mean(snr))
        row["ratio"] = row["normalise_excess"] / row["clip_excess"]
        yield row, paths


def draw(paths: Mapping[tuple[str, float, float], dict], path) -> None:
    """Draws Figures 1 to 3, of paths by start, C and eta."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(4 * len(THRESHOLDS), 13), layout="constrained")
    panels = figure.subplots(4, len(THRESHOLDS), squeeze=False)
    for column, C in enumerate(THRESHOLDS):
        for panel, start in zip(panels[:2, column], STARTS, strict=True):
            panel.set(title=f"{start}, C = {C:g}", yscale="log", xlabel="round")
            for bound, style in zip(BOUNDS, ("--", "-"), strict=True):
                for eta in RATES:
                    excess = paths[start, C, eta][bound][0].mean(0)
                    panel.plot(excess, style, label=f"{bound}, {eta:g}")
        ratio, plane = panels[2:, column]
        both = paths[next(iter(STARTS)), C, RATES[len(RATES) // 2]]
        models = [both[bound][2][0] for bound in BOUNDS]
        # The plane in which they move most, smoothed.
        axes = np.linalg.svd(np.concatenate(models), full_matrices=False)[2][:2]
        width = max(1, (len(models[0]) - 1) // 25)
        window = np.ones(width) / width
        for bound, of_bound in zip(BOUNDS, models, strict=True):
            ratio.plot(both[bound][1].mean(0), label=bound)
            line = [np.convolve(of_bound @ axis, window, "valid") for axis in axes]
            plane.plot(*line, label=bound)
        ratio.set(title=f"C = {C:g}", xlabel="round")
        plane.plot(0, 0, "k*", label="w*")
        plane.set(title=f"trajectories, C = {C:g}")
    panels[0][0].set_ylabel("f(w) - f(w*)")
    panels[2][0].set_ylabel("signal to noise")
    for panel in (panels[0][0], panels[2][0], panels[3][0]):
        panel.legend(fontsize="small")
    files.write_figure(path, figure)


def main(workdir: str, rounds: int, seeds: int):
    """Runs all settings by (5, 10^-6)-differential privacy for a client."""
    folder, paths = files.writable_folder(workdir), {}
    plan, promise = accounting.Plan(rounds, 100, 100), {"epsilon": 5.0, "delta": 1e-6}
    z = accounting.calibrate(plan, **promise)
    theirs = das.noise_multiplier(rounds=rounds, n=100, r=100, **promise)
    print(f"noise multiplier {z:.2f} (the formula of the paper: {theirs:.2f})")

    def rows():
        tasks = [problem(seed) for seed in range(seeds)]
        for row, of_row in measure(tasks, z, rounds=rounds):
            paths[row["start"], row["C"], row["eta"]] = of_row
            yield row

    toy.record(rows(), folder / "table.csv")
    draw(paths, folder / "figures.png")


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
    ROUNDS = flags.DEFINE_integer("rounds", 500, "Rounds of a run.", 1)
    SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs to average.", 1)
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value, ROUNDS.value, SEEDS.value))
