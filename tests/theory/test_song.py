"""Song et al.'s bounds: by hand, and the rounds to a target."""

import math

import pytest

from fl_sketch.theory import song

LETTERS = {
    "E.1": ("mu", "f0"),
    "E.2": ("r2",),
    "E.3": ("f0",),
    "5.1": ("mu", "r2", "sigma2", "K"),
    "5.3": ("r2", "sigma2", "K"),
    "G.2": ("f0", "G", "K", "gamma"),
}
THEOREMS = {
    "E.1": (song.theorem_e1, song.rounds_e1),
    "E.2": (song.theorem_e2, song.rounds_e2),
    "E.3": (song.theorem_e3, song.rounds_e3),
    "5.1": (song.theorem_5_1, song.corollary_5_2),
    "5.3": (song.theorem_5_3, song.corollary_5_4),
    "G.2": (song.theorem_g2, song.rounds_g2),
}


def of(name, **letters):
    """Returns the letters that a theorem takes."""
    return {key: letters[key] for key in ("L", "alpha", *LETTERS[name])}


@pytest.mark.parametrize(
    ("name", "rounds", "value"),
    [
        # L/2 |w0 - w*|^2 e^(-mu eta T) + 4 eta^2 L^2 K^3 sigma^2 / mu
        ("5.1", 100, 3 * math.exp(-0.5) + 4 * 1e-4 * 4 * 8 * 0.25 / 0.5),
        # 4 |w0 - w*|^2 / (eta K T) + 32 eta^2 L K^2 sigma^2
        ("5.3", 100, 4 * 3 / 2 + 32 * 1e-4 * 2 * 4 * 0.25),
        # f0 / ((T + 1) gamma eta K) + L K G^2 eta (1 + gamma (1 + alpha) / 2)
        ("G.2", 9, 3.5 / (10 * 0.5 * 0.02) + 2 * 2 * 1.5**2 * 0.01 * 1.5),
        ("E.1", 9, (1 - 0.5 * 0.01) ** 9 * 3.5),
        ("E.2", 9, 3 / (0.01 * 10)),
        ("E.3", 9, 2 * 3.5 / (0.01 * 10)),
    ],
)
def test_the_values_of_a_hand_calculation(name, rounds, value):
    letters = of(
        name, L=2.0, mu=0.5, r2=3.0, f0=3.5, sigma2=0.25, G=1.5, alpha=1.0, gamma=0.5,
        K=2,
    )  # fmt: skip
    bound = THEOREMS[name][0](0.01, rounds, **letters)
    assert bound == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("sigma2", [0.0, 1e-6, 30.0])
@pytest.mark.parametrize("target", [1e-1, 1e-3])
@pytest.mark.parametrize("name", THEOREMS)
def test_rounds_to_a_target_are_enough_and_mostly_the_fewest(name, target, sigma2):
    letters = of(
        name, L=2.0, mu=0.2, r2=5.0, f0=3.0, sigma2=sigma2, G=1.5, alpha=12.0,
        gamma=0.5, K=4,
    )  # fmt: skip
    theorem, rounds = THEOREMS[name]
    eta, T = rounds(target, **letters)
    assert theorem(eta, T, **letters) <= target * (1 + 1e-9)
    if sigma2 == 0 and name != "G.2":  # it is the longest step that is admitted
        with pytest.raises(ValueError, match="eta <="):
            theorem(1.01 * eta, T, **letters)
    if name not in ("5.1", "5.3"):
        assert theorem(eta, T - 1, **letters) > target
    if name == "5.1" and sigma2 == 30 and target == 1e-3:  # drift is half of it
        drift = 4 * eta**2 * 4 * 4**3 * 30 / 0.2
        assert drift == pytest.approx(target / 2)
