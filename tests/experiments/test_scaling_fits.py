"""The powers that gaps go by are found where they are known."""

import numpy as np
import pytest

from fl_sketch.experiments.scaling_tables import fits

pytestmark = pytest.mark.fast


def gap(d, b, value, method="Adam, x", dimension=None):
    return {
        "method": method,
        "d": d,
        "b": b,
        "gap": value,
        "train_gap": 2 * value,
        "intrinsic_dimension": np.sqrt(d) if dimension is None else dimension,
    }


def table(law):
    return [gap(d, d // of, law(d, d // of)) for d in (1e3, 4e4, 5e6) for of in (2, 30)]


def test_powers_of_two_sizes_are_found():
    found = {
        (row["of"], row["against"]): row
        for row in fits(table(lambda d, b: 7 * b**-0.4 * d**0.1))
    }
    assert len(found) == 10
    for of in ("gap", "train_gap"):
        both = found[of, "b and d"]
        assert (both["power"], both["second_power"]) == pytest.approx((-0.4, 0.1))
        assert both["explained"] == pytest.approx(1)
        by_dimension = found[of, "b and I"]  # the root of d here
        assert by_dimension["second_power"] == pytest.approx(0.2)
        rows = table(lambda d, b: 7 * b**-0.4 * d**0.1)
        logs = np.log([[row["b"], row[of]] for row in rows])  # far from a mean of zero
        squared = np.corrcoef(logs.T)[0, 1] ** 2
        assert found[of, "b"]["explained"] == pytest.approx(squared) and squared < 0.999
        assert found[of, "b / d"]["explained"] < found[of, "b"]["explained"]


def test_what_goes_by_a_ratio_is_explained_by_it_alone():
    rows = fits(table(lambda d, b: (b / np.sqrt(d)) ** -0.5))
    found = {row["against"]: row for row in rows}
    assert found["b / I"]["explained"] == pytest.approx(1)
    assert found["b / I"]["power"] == pytest.approx(-0.5)
    assert found["b / I"]["second_power"] == ""


def test_a_law_that_holds_from_some_size_on_is_seen_there():
    def law(d, b):
        return b**-0.4 * (5 if d < 100 else 1)

    rows = [gap(d, b, law(d, b)) for d in (64, 1e3, 4e4, 5e6) for b in (2, 30)]
    found = {(row["of"], row["from_d"], row["against"]): row for row in fits(rows)}
    assert len(found) == 20
    for of in ("gap", "train_gap"):
        assert found[of, 64, "b"]["explained"] < 0.9
        assert found[of, 1000, "b"]["explained"] == pytest.approx(1)
        assert found[of, 1000, "b"]["gaps"] == 6
        assert found[of, 1000, "b"]["power"] == pytest.approx(-0.4)


def test_only_the_first_servers_gaps_above_zero_count_and_each_size_once():
    rows = table(lambda d, b: b**-0.4)
    more = [gap(1e3, 77, -0.1), rows[0], gap(1e3, 50, 9.0, "SGD, x")]
    assert [row["gaps"] for row in fits(rows + more)] == [6] * 10
    assert fits(rows + more) == fits(rows)


def test_too_few_gaps_and_dimensions_that_nobody_looked_at_are_left_out():
    assert fits([]) == []
    few = table(lambda d, b: b**-0.4)[:3]
    assert {row["against"] for row in fits(few)} == {"b", "b / d", "b / I"}
    blind = [{**row, "intrinsic_dimension": np.nan} for row in few]
    assert {row["against"] for row in fits(blind)} == {"b", "b / d"}
