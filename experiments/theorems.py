"""Compares the bound of each theorem of fl_sketch.theory with measured values.

python -m experiments.theorems --workdir=/tmp/theorems --paper=song

Each theorem runs with its own step size and number of rounds, on a small problem whose
constants are known exactly, and whose runs are made to meet its assumptions. A row of
theorems.csv has the constants by the letters of the paper, `needed`, the rounds after
which the quantity was below the bound (NaN: it has no such rounds, or never was), its
value at the `start` (a bound above it says nothing), the `bound`, the value `measured`,
and their `ratio`, below 1 where the theorem would be wrong.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import toy
from fl_sketch import algorithms, sketch, theory, transforms
from fl_sketch.algorithms import catalog
from fl_sketch.audit import game
from fl_sketch.core import files
from fl_sketch.privacy import clipping

MINUTES = 6

OPERATORS = ("count_sketch", "srht")
EXCESS, MEAN = "E f(w) - f*", "mean |grad f|^2"


def row(name, operator, problem, letters, quantity, bound, curve, start, **others):
    """Returns a row; `curve` has the quantity after every round."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in letters.items()}
    below, measured = np.flatnonzero(curve <= bound), float(curve[-1])
    return {
        "theorem": name,
        "operator": operator,
        "problem": problem,
        "constants": " ".join(f"{k}={v}" for k, v in texts.items() if not callable(v)),
        "quantity": quantity,
        "rounds": len(curve),
        "needed": float(below[0] + 1) if below.size else math.nan,
        "start": start,
        "bound": bound,
        "measured": measured,
        "ratio": bound / measured if measured else math.inf,
    } | others


def running_mean(values: np.ndarray) -> np.ndarray:
    """Returns the means of all places up to each, along the second axis."""
    counts = np.arange(1, values.shape[1] + 1).reshape(-1, *[1] * (values.ndim - 2))
    return np.cumsum(values, axis=1, dtype=np.float64) / counts


def squares(gradient, places: np.ndarray) -> np.ndarray:
    """Returns |grad f|^2 along trajectories."""
    return toy.along(lambda x: jnp.sum(gradient(x) ** 2), places)


def local_steps(task, params: jax.Array, eta: float, steps: int) -> jax.Array:
    """Returns where clients are before each full gradient step, and after the last."""

    def of_client(client):
        def step(x, _):
            return x - eta * jax.grad(task.loss)(x, client), x

        last, before = jax.lax.scan(step, params, length=steps)
        return jnp.concatenate([before, last[None]])

    return jax.vmap(of_client)(jnp.arange(len(task.optima)))


def song(operator, *, d=32, b=16, K=4, seeds=range(8)):
    """Yields the rows of Song et al.'s theorems, for a quarter of the start."""
    paper, op = theory.song, catalog.OPERATORS[operator](b, 1)
    quadratics = toy.quadratics(d=d, clients=4, condition=5.0, seed=0, apart=0.5)
    wells = toy.wells(d=d, clients=4, decay=0.5, seed=0)
    average, square = "E f(average) - f*", "mean E |grad f|^2"
    for name, rounds, theorem, letters, quantity in (
        ("E.1", paper.rounds_e1, paper.theorem_e1, "mu f0", EXCESS),
        ("E.2", paper.rounds_e2, paper.theorem_e2, "r2", average),
        ("5.1, 5.2", paper.corollary_5_2, paper.theorem_5_1, "mu r2 sigma2 K", EXCESS),
        ("5.3, 5.4", paper.corollary_5_4, paper.theorem_5_3, "r2 sigma2 K", average),
        ("E.3", paper.rounds_e3, paper.theorem_e3, "f0", square),
        ("G.2, corrected", paper.rounds_g2, paper.theorem_g2, "f0 G K", square),
    ):
        task = wells if quantity == square else quadratics
        gradient, start = jax.grad(wells.mean_loss), task.known["f0"]
        if task is wells:
            start = float(squares(gradient, np.zeros((1, 1, d)))[0, 0])
        numbers = task.known | {"K": K, "alpha": paper.alpha(operator, d, b)}
        numbers = {name: numbers[name] for name in ["L", *letters.split(), "alpha"]}
        eta, T = rounds(start / 4, **numbers)
        steps = numbers.get("K", 1)

        def make(rate, task=task):
            rates = {"client_rate": rate}
            return algorithms.iterative_sketching(task.loss, sketch=op, **rates)

        def on_the_way(x, eta=eta, task=task, steps=steps):
            return local_steps(task, x, eta, steps)[:, :-1].mean((0, 1))

        places = toy.trajectories(make, task, np.full(T, eta), seeds, steps=steps)
        if quantity == average and steps > 1:
            places = toy.along(on_the_way, places[:, :-1])
        if quantity == average:
            places = running_mean(places)
        if quantity == square:
            found = squares(gradient, places).mean(0, keepdims=True)
            curve = running_mean(found)[0, 1:]
        else:
            curve = toy.along(task.excess, places).mean(0)[-T:]
        names = f"Song {name}", operator, "wells" if task is wells else "quadratics"
        bound, known = theorem(eta, T, **numbers), {"d": d, "b": b, "eta": eta}
        yield row(*names, numbers | known, quantity, bound, curve, start)


def chen_tails(*, d=256, sizes=(32, 128), draws=20_000):
    """Yields how far inner products of de-sketched vectors stray: Property 3.

    What |<R^T R v, h> - <v, h>| / (|v| |h|) exceeds with a probability of 1 %, for the
    worst of some pairs; NaN stands for the bound where the paper has none. At the first
    size two coordinates meet more often than that, and at the second less often.
    """
    random, spike, pair = np.random.default_rng(0), np.zeros(d), np.zeros(d)
    spike[0], pair[[0, -1]] = 1, 1
    flat, last = np.ones(d), (1 / np.arange(1.0, d + 1), random.normal(size=d))
    pairs = np.array([(spike, spike), (pair, pair), (flat, flat), last])
    pairs /= np.linalg.norm(pairs, axis=2, keepdims=True)
    pairs, keys = pairs.astype(np.float32), jax.random.split(jax.random.key(0), draws)
    sketches = [name for name in catalog.OPERATORS if name != "identity"]
    for b, operator in itertools.product(sizes, sketches):
        op = catalog.OPERATORS[operator](b, 1)

        def of_pairs(key, op=op):
            sent = jax.vmap(jax.vmap(lambda x: op.apply(key, x)))(pairs)
            return jnp.sum(sent[:, 0] * sent[:, 1], axis=range(1, sent.ndim - 1))

        found = jax.jit(lambda k, f=of_pairs: jax.lax.map(f, k, batch_size=100))(keys)
        off = np.abs(np.asarray(found) - np.sum(pairs[:, 0] * pairs[:, 1], axis=1))
        worst, bound = np.quantile(off, 0.99, axis=0).max(), math.nan
        if operator not in ("sparse_embedding", "uniform_sampling"):
            bound = theory.safl.tail(operator, d, b, 0.01)
        known = {"d": d, "b": b, "delta": 0.01, "draws": draws}
        names = "Chen Property 3", operator, "pairs of vectors", known
        what = "|<R'Rv - v, h>|", bound, np.array([worst]), math.nan
        yield row(*names, *what, rounds=0, needed=math.nan)


def chen(operator, *, d=256, b=64, T=10_000, b1=0.0, early=False, seeds=range(4)):
    """Yields the rows of Chen et al.'s theorems, or that of Corollary 2, `early`.

    Clients take whole gradients (sigma = 0). The bounds hold with high probability, so
    the largest of several runs counts. They are lowest with a b1 of 0.
    """
    paper, K, kappa, b2, eps = theory.safl, 2, 0.1, 0.99, 0.1
    task = toy.wells(d=d, clients=4, decay=1.5, seed=0)
    gradient, op = jax.grad(task.mean_loss), catalog.OPERATORS[operator](b, 1)
    numbers = task.known | {"d": d, "C": 4, "K": K, "b1": b1, "eps": eps}
    numbers |= {"union": paper.union_of(operator, d, b, 1e-3)}
    bounded = numbers | {"sigma": 0.0, "kappa": kappa}
    del numbers["G"]

    def measured(rates, kappa=kappa):
        server = transforms.paper_amsgrad(kappa, b1, b2, eps)

        def make(rate):
            options = {"sketch": op, "client_rate": rate, "server": server}
            return algorithms.safl(task.loss, **options)

        return squares(gradient, toy.trajectories(make, task, rates, seeds, steps=K))

    def row_of(name, bound, curve, eta, kappa=kappa, quantity=MEAN, **others):
        known = bounded | {"kappa": kappa, "b2": b2, "b": b, "eta": eta}
        names = f"Chen {name}", operator, "wells", known, quantity
        return row(*names, bound, curve, start, **others)

    eta = 1 / (K * math.sqrt(T))
    means = running_mean(measured(np.full(T, eta))[:, :-1]).max(0)
    start = float(means[0])
    if early:
        J_3 = 2 * bounded["G"] + eps * math.sqrt(T)
        bound = paper.corollary_2(T, J_3, **bounded)
        yield row_of("Corollary 2, corrected", bound, means, eta)
        return
    yield row_of("3.2, corrected", paper.theorem_3_2(eta, T, **bounded), means, eta)
    yield row_of("Corollary 1, corrected", paper.corollary_1(T, **bounded), means, eta)

    etas = np.array([paper.decaying_step(t + 1, K=K, b1=b1) for t in range(T)])
    means = running_mean(measured(etas)[:, :-1]).max(0)
    yield row_of("B.3, corrected", paper.theorem_b3(T, **bounded), means, etas[-1])

    eta, G, bound = paper.theorem_4_4(T, Delta=0.0, b2=b2, **numbers)
    run = {"eta": eta, "kappa": 1 / math.sqrt(G)}
    found = measured(np.full(T, eta), run["kappa"])
    largest = np.maximum.accumulate(found.max(0))[1:]
    run |= {"quantity": "largest |grad f|^2", "needed": math.nan}
    yield row_of("4.4, corrected: largest", G, largest, **run)
    means = running_mean(found[:, :-1]).max(0)
    yield row_of("4.4, corrected: mean", bound, means, eta, run["kappa"])


def das(*, d=32, r=20, E=4, rho=0.05, seeds=range(4)):
    """Yields the rows of Das et al.'s Theorems 2 to 4, and of Proposition 1.

    The threshold is the smallest that theorems admit; G of Proposition 1 is twice the
    longest gradient at the start, and `longest` that of the runs.
    """
    paper, everyone = theory.das, jnp.arange(r)
    task = toy.quadratics(d=d, clients=r, condition=5.0, seed=0, apart=0.02)
    off = np.asarray(task.optimum - task.optima, np.float64)
    gaps = np.einsum("ci,cij,cj->c", off, np.asarray(task.matrices), off) / 2
    L, r2, Delta = task.L, task.known["r2"], float(gaps.max())
    numbers = {"rho": rho, "L": L, "E": E, "Delta": Delta, "r2": r2}
    losses = jax.vmap(task.loss, (None, 0))
    gradients = jax.vmap(jax.grad(task.loss), (None, 0))

    def seen_by(params, eta):
        """Returns |u_i|, f_i(w) - f_i(w*), f_i(w*) - min f_i, and |grad f_i(w)|."""
        places, gap = local_steps(task, params, eta, E), losses(task.optimum, everyone)
        length = jnp.linalg.norm(places[:, 0] - places[:, -1], axis=1) / eta
        slope = jnp.linalg.norm(gradients(params, everyone), axis=1)
        return jnp.stack([length, losses(params, everyone) - gap, gap, slope])

    def run(C, alpha, T, limit):
        """Returns what clients see along DP-FedAvg, and the letters."""
        eta, z = rho / (2 * alpha * L), rho * r * math.sqrt(T / d)

        def make(rate):
            rates = {"client_rate": rate, "threshold": C, "noise_multiplier": z}
            return algorithms.dp_fedavg(task.loss, **rates, cohort=r, bound=limit)

        places = toy.trajectories(make, task, np.full(T, eta), seeds, steps=E)[:, :-1]
        seen = np.moveaxis(toy.along(lambda x: seen_by(x, eta), places), 2, 0)
        known = {"C": C, "d": d, "r": r, "alpha": alpha, "eta": eta, "z": z}
        return seen, numbers | known

    def row_of(name, known, quantity, bound, counted):
        curve, start = running_mean(counted.mean(2)).mean(0), counted.mean(2)[0, 0]
        names = f"Das {name}", "none", "quadratics", known, quantity
        return row(*names, bound, curve, float(start))

    C, gamma = paper.least_threshold(L=L, E=E, Delta=Delta), L * math.sqrt(r2)
    least = paper.theorem_2(1e9, gamma, C=C, **numbers)
    for name, theorem, limit, part, quantity in (
        ("Theorem 2", paper.theorem_2, clipping.clip, 1, "left side of (6)"),
        ("Theorem 3", paper.theorem_3, clipping.clip, 4 / 5, "left side of (7)"),
        ("Theorem 4", paper.theorem_4, clipping.normalise, 1, "left side of (14)"),
    ):
        alpha, T = paper.rounds_for(1.1 * part * least, theorem, C=C, **numbers)
        (length, excess, gap, slope), known = run(C, alpha, T, limit)
        s, cut = rho * E / alpha, 3 * C * length / (8 * L * E**2)
        counted = np.where(length <= C, (2 - s - s**2) * excess, cut)
        if name == "Theorem 3":
            counted = np.minimum(excess, paper.OF_GRADIENT * C / (E * L) * slope)
        if name == "Theorem 4":
            whole = (2 * excess - s**2 * (excess + gap)) * C / length
            counted = np.where(length <= C, whole, cut)
        bound = theorem(alpha, gamma, C=C, **numbers)
        yield row_of(name, known, quantity, bound, counted)

    G = 2.0 * float(seen_by(jnp.zeros(d), 1e-6)[3].max())
    C, T, bound = paper.proposition_1(lambda_=task.mu, G=G, **numbers)
    (length, excess, _, slope), known = run(C, 1.0, T, clipping.clip)
    known |= {"lambda": task.mu, "G": G, "longest": float(slope.max())}
    yield row_of("Proposition 1: error", known, EXCESS, bound, excess)
    curve = np.maximum.accumulate(length.max((0, 2)))
    names = "Das Proposition 1: C", "none", "quadratics", known, "largest |u|"
    yield row(*names, C, curve, float(curve[0]), needed=math.nan)


def haddadpour(*, d=64, cols=16, k=4, delta=1e-3, seeds=range(4), targets=(0.03, 0.1)):
    """Yields the rows of Haddadpour et al.'s Corollary 5 and Theorems 5 to 7 and 3.

    Theorem 3 states orders. With constants of one it is a bound that may fail, and a
    ratio below 1 means that a constant is larger. Its gain is as printed.
    """
    paper, sigma, (target, target_7) = theory.fedsketch, 0.3, targets
    unlike = toy.quadratics(d=d, clients=k, condition=5.0, seed=0, apart=0.5)
    alike = toy.alike(unlike)

    def row_of(name, task, variant, make, eta, R, bound, numbers, phi=0.0):
        """Returns a row of runs whose losses have the penalty phi/2 |w|^2."""
        rows, tau = paper.rows(d=d, R=R, delta=delta), numbers["tau"]
        known = {"d": d, "cols": cols, "rows": rows, "phi": phi, "eta": eta}
        options = {}
        if variant != "none":
            op = sketch.count_sketch(cols, rows)
            # HEAPRIX is biased without fresh hashes.
            options = {"sketch": op, "query": variant, "values": "fresh"}

        def loss(params, batch):
            return toy.noisy(task.loss)(params, batch) + phi / 2 * params @ params

        def noise(key):
            return jax.random.normal(key, (tau, d)) * sigma / d**0.5

        def of_rate(rate):
            rates = {"client_rate": rate, "server_rate": numbers["gamma"]}
            return make(loss, **rates, **options)

        run = {"steps": tau, "noise": noise}
        places = toy.trajectories(of_rate, task, np.full(R, eta), seeds, **run)
        names = f"Haddadpour {name}", variant, "quadratics", numbers | known
        if name.endswith((" pl", " convex")):
            curve = toy.along(task.excess, places).mean(0)[1:]
            return row(*names, EXCESS, bound, curve, task.known["f0"])
        hessian = task.matrices.mean(0)
        found = squares(lambda x: hessian @ (x - task.optimum), places)
        curve = running_mean(found[:, :-1]).mean(0)
        return row(*names, MEAN, bound, curve, float(found[0, 0]))

    f0, mu, r2 = (alike.known[letter] for letter in ("f0", "mu", "r2"))
    omegas = {name: paper.omega(name, d=d, cols=cols) for name in ("privix", "heaprix")}
    for variant, omega in {"none": 0.0, **omegas}.items():
        letters = {"L": alike.L, "k": k, "tau": 4, "gamma": float(k), "omega": omega}
        letters |= {"sigma": sigma, "f0": f0}
        make, name = algorithms.fedsketch, "5, nonconvex"
        if variant == "none":
            make, name, letters["gamma"] = algorithms.fedavg, "Corollary 5", 1.0
        eta, R = paper.rounds_5(target, **letters)
        bound = paper.theorem_5(eta, R, **letters)
        yield row_of(name, alike, variant, make, eta, R, bound, letters)
        if variant == "none":
            continue
        of_6 = letters | {"mu": mu}
        eta, R = paper.rounds_6(target, **of_6)
        bound = paper.theorem_6(eta, R, **of_6)
        yield row_of("6, pl", alike, variant, make, eta, R, bound, of_6)
        del letters["tau"]
        eta, tau, R = paper.rounds_7(target_7, r2=r2, **letters)
        letters |= {"tau": tau, "r2": r2}
        bound, phi = paper.theorem_7(R, **letters), 1 / math.sqrt(k * tau)
        yield row_of("7, convex", alike, variant, make, eta, R, bound, letters, phi)
    for variant, omega in omegas.items():
        for objective, gamma in {"pl": 6.0, "nonconvex": 4.0}.items():
            letters = {"L": unlike.L, "k": k, "gamma": gamma, "omega": omega}
            eta, tau, R = paper.theorem_3(target, objective=objective, mu=mu, **letters)
            make = functools.partial(algorithms.fedsketchgate, gain=1 / tau)
            letters, name = letters | {"tau": tau, "sigma": sigma}, f"3, {objective}"
            yield row_of(name, unlike, variant, make, eta, R, target, letters)


def haddadpour_1(trials: int = 4_000_000):
    """Yields rows of Theorem 1: privacy of a sketch without noise.

    t ln(1 + x) for x = alpha C^2 m (m - 1) (1 + ln(l - m)) / (sigma^2 (l - 2)), if x is
    at most 1/2 - 1/alpha, for t rows of m columns and l numbers of size C at most. It
    takes these for independent draws of N(0, sigma^2), which then hide one of them. Two
    worlds differ in one number, -C or C, and an attacker who knows the hashes sees
    the sketch. Where the other numbers are no draws but known, nothing hides the one.
    """
    sizes, C = {"rows": 1, "cols": 3, "length": 4096, "alpha": 3.0}, 2.0
    m, length, alpha = sizes["cols"], sizes["length"], sizes["alpha"]
    inside = alpha * C**2 * m * (m - 1) * (1 + math.log(length - m)) / (length - 2)
    assert inside <= 0.5 - 1 / alpha
    claim = sizes["rows"] * math.log1p(inside)
    op, hashes = sketch.count_sketch(sizes["cols"], sizes["rows"]), jax.random.key(0)
    table = jax.vmap(functools.partial(op.apply, hashes))(jnp.eye(sizes["length"]))
    table = np.asarray(table.reshape(sizes["length"], -1), np.float64)
    others = np.linalg.cholesky(table[1:].T @ table[1:])
    for problem, sigma in {"normal numbers": 1.0, "known numbers": 0.0}.items():
        one = jnp.asarray(C * table[0], jnp.float32)
        rest = jnp.asarray(sigma * others.T, jnp.float32)

        def observe(key, present, one=one, rest=rest):
            # A sketch of normal numbers is normal, with the covariance of its columns.
            hidden = jax.random.normal(key, (1, len(rest))) @ rest
            return hidden + (2 * present - 1) * one

        options = {"delta": 1e-5, "trials": trials, "key": jax.random.key(1)}
        found = game.play(observe, lambda delta: claim, **options)
        known = sizes | {"sigma": sigma, "C": C, "delta": found.delta}
        names = "Haddadpour 1", "count_sketch", problem, known, "epsilon", claim
        counts = {"rounds": found.trials, "needed": math.nan}
        yield row(*names, np.array([found.found_epsilon]), found.most_epsilon, **counts)


def main(workdir: str, papers):
    """Measures the theorems of some papers."""
    path = files.writable_folder(workdir) / "theorems.csv"
    early = chen("srht", d=1 << 17, b=1 << 16, T=10, early=True)
    parts = {
        "song": map(song, OPERATORS),
        "chen": (chen_tails(), early, chen("identity", b=256), *map(chen, OPERATORS)),
        "das": (das(),),
        "haddadpour": (haddadpour_1(), haddadpour()),
    }
    rows = (row for paper in papers for part in parts[paper] for row in part)
    toy.record(rows, path, hidden=("problem", "constants"))


if __name__ == "__main__":
    from launch import command

    PAPERS = ["song", "chen", "das", "haddadpour"]
    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for theorems.csv.")
    PAPER = flags.DEFINE_multi_enum("paper", PAPERS, PAPERS, "Paper. Repeatable.")
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value, PAPER.value))
