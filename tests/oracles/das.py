"""Das et al., Algorithms 1 and 2, as a plain loop in numpy on |x - o_i|^2 / 2."""

import numpy as np


def run(
    optima,
    cohorts,
    noise,
    *,
    bound,
    rate,
    decay,
    steps,
    limit,
    momentum,
    gamma,
    grid=None,
):
    """Returns w_0, ..., w_K.

    Args:
      optima: o, of shape (clients, d).
      cohorts: for each round the clients drawn.
      noise: for each round what is added to the sum, of shape (d,).
      bound: "clip" or "normalise".
      rate: eta_0.
      decay: eta_k = decay^k eta_0.
      steps: E.
      limit: C.
      momentum: at the server.
      gamma: beta_k = gamma eta_k.
      grid: what noisy sums are multiples of; exact numbers without it.
    """
    w, velocity = np.zeros(optima.shape[1]), 0.0
    iterates, expected = [w], len(optima) / 2
    for k, drawn in enumerate(cohorts):
        eta, total = rate * decay**k, np.zeros_like(w)
        for i in drawn:
            local = w
            for _ in range(steps):  # lines 6 to 8
                local = local - eta * (local - optima[i])
            u = (w - local) / eta  # line 9
            size = np.linalg.norm(u)
            if bound == "clip":
                total += u * min(1.0, limit / size)
            else:
                total += limit * u / size
        noisy = total + noise[k]
        if grid is not None:
            noisy = np.round(noisy / grid) * grid
        a = noisy / expected  # line 12, r = n / 2
        velocity = momentum * velocity + a
        w = w - gamma * eta * velocity
        iterates.append(w)
    return iterates
