"""Compares clipping with normalisation on quadratics (Das et al., Figures 1 to 3).

python -m experiments.das_quadratics --workdir=/tmp/das_quadratics
python -m experiments.das_quadratics --workdir=/tmp/few --rounds=50 --seeds=2

Clients have the losses (w - w_i)' A_i A_i' (w - w_i) / 2, all take part in every round,
and both algorithms see the very same noise. A row of table.csv is a starting point, a
threshold C and a rate eta, with means over seeds: the last f(w) - f(w*) of each
algorithm, that of normalisation over that of clipping with half of its 95% interval,
and the mean ratio of signal to noise on the way. best.csv has the runs of each
algorithm at its best rate for each C, and at its best C. figures.png has the paper's
figures.
"""

import functools
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
from fl_sketch.workdir.tables import half_width

MINUTES = 26

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
STARTS = {"w* + z": 1.0, "w* + z/5": 0.2}
THRESHOLDS, DRAWN = (5.0, 10.0, 20.0, 40.0, 50.0, 100.0), (40.0, 50.0, 100.0)
STEPS = {  # C eta, how far an update may move the model
    "w* + z": (0.02, 0.04, 0.08, 0.16),
    "w* + z/5": (0.00125, 0.0025, 0.005, 0.01),
}


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
    rounds: int = 500,
    steps: int = 20,
) -> Iterator[tuple[dict, dict]]:
    """Yields a row for every C, start and eta, and what each algorithm did there.

    The noise on a sum has the deviation z C. Of each algorithm there are f(w_k) - f(w*)
    and the norm of the mean bounded update over that of the noise on it, of shape=(
    seeds, rounds), and w_k - w* of the first seed. "ratio" is the mean over seeds of
    normalisation's excess over clipping's.
    """
    clients = len(tasks[0][0].optima)

    def run(bound, task, key, threshold, first, rate):
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

    @functools.partial(jax.jit, static_argnums=0)
    def compiled(bound, task, key, threshold, firsts, rates):
        of_lane = functools.partial(run, bound, task, key, threshold)
        return jax.vmap(of_lane)(firsts, rates)

    settings = [(start, step) for start in STEPS for step in STEPS[start]]
    shifts = jnp.asarray([STARTS[start] for start, _ in settings])[:, None]
    for C in thresholds:
        rates = jnp.asarray([step / C for _, step in settings], jnp.float32)
        found: dict[str, list] = {bound: [] for bound in BOUNDS}
        for bound, runs in found.items():
            for seed, (task, offset) in enumerate(tasks):
                firsts = task.optimum + shifts * offset
                known = jax.random.key(seed), jnp.float32(C), firsts, rates
                runs.append([*map(np.asarray, compiled(bound, task, *known))])
        for lane, (start, step) in enumerate(settings):
            row, paths = {"start": start, "C": C, "eta": step / C}, {}
            for bound, runs in found.items():
                excess, snr = (np.stack([r[n][lane] for r in runs]) for n in (0, 1))
                paths[bound] = excess, snr, runs[0][2][lane]
                row[f"{bound}_excess"] = float(np.mean(excess[:, -1]))
                row[f"{bound}_snr"] = float(np.mean(snr))
            ratios = paths["normalise"][0][:, -1] / paths["clip"][0][:, -1]
            row["ratio"], row["half_width"] = float(ratios.mean()), half_width(ratios)
            yield row, paths


def best_runs(paths: Mapping[tuple[str, float, float], dict]) -> Iterator[dict]:
    """Yields the last excess of each seed, at the best eta for each C, and of all."""
    for start, bound in itertools.product(STARTS, BOUNDS):
        last = {
            key[1:]: of[bound][0][:, -1] for key, of in paths.items() if key[0] == start
        }
        for C in [*sorted({C for C, _ in last}), "best"]:
            mine = [key for key in last if C in (key[0], "best")]
            chosen = min(mine, key=lambda key: last[key].mean())
            for seed, excess in enumerate(last[chosen]):
                row = {"start": start, "C": C, "method": bound, "seed": seed}
                yield row | {
                    "excess": float(excess),
                    "of_C": chosen[0],
                    "eta": chosen[1],
                }


def draw(paths: Mapping[tuple[str, float, float], dict], path) -> None:
    """Draws Figures 1 to 3, of paths by start, C and eta."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(4 * len(DRAWN), 13), layout="constrained")
    panels = figure.subplots(4, len(DRAWN), squeeze=False)
    for column, C in enumerate(DRAWN):
        for panel, start in zip(panels[:2, column], STARTS, strict=True):
            panel.set(title=f"{start}, C = {C:g}", yscale="log", xlabel="round")
            for bound, style in zip(BOUNDS, ("--", "-"), strict=True):
                for step in STEPS[start]:
                    excess = paths[start, C, step / C][bound][0].mean(0)
                    panel.plot(excess, style, label=f"{bound}, C eta {step:g}")
            panel.legend(fontsize="x-small")
        ratio, plane = panels[2:, column]
        start = next(iter(STARTS))
        both = paths[start, C, STEPS[start][len(STEPS[start]) // 2] / C]
        models = [both[bound][2] for bound in BOUNDS]
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
    for panel in (panels[2][0], panels[3][0]):
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
    files.write_rows(folder / "best.csv", [*best_runs(paths)])
    draw(paths, folder / "figures.png")


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the results.")
    ROUNDS = flags.DEFINE_integer("rounds", 500, "Rounds of a run.", 1)
    SEEDS = flags.DEFINE_integer("seeds", 10, "Number of paired runs.", 1)
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value, ROUNDS.value, SEEDS.value))
