"""The table of bits says what the accountant says, rounded up."""

from fl_sketch.privacy import accounting, bits_table, lattice
from fl_sketch.privacy.plans import Plan
from tests.refusals import refused

PLAN = Plan(5, 20, 20, "everyone", relation="replace_one")
PROMISE = {"epsilon": 4.0, "delta": 1e-5}


def table(plan=PLAN, bits=(8, 16), **changes):
    return list(
        bits_table.lines(plan, **{"numbers": 100, "bits": bits} | PROMISE | changes)
    )


def test_every_kind_has_a_row_for_all_bits():
    head, _, floats, *rows = table()
    assert "100 numbers, 128 as integers" in head and "clients" in head
    assert floats.split()[-2:] == ["1", "400"]
    assert len(rows) == 2 * len(lattice.KINDS)
    for row, (kind, bits) in zip(
        rows, [(kind, bits) for kind in lattice.KINDS for bits in (8, 16)], strict=True
    ):
        own = bits_table.with_integers(
            PLAN, bits_table.integers_of(PLAN, bits), kind, 100
        )
        *name, z, error, size = row.split()
        assert name == [str(bits), "bits,", kind] and int(size) == 128 * bits // 8
        least = accounting.calibrate(own, **PROMISE)
        assert least <= float(z) <= 1.00001 * least and float(error) >= 1


def test_bits_that_keep_no_promise_are_said_to_be_too_few():
    (*_, last) = table(bits=(8,), epsilon=0.05)
    assert "too few bits" in last


def test_the_server_draws_what_clients_cannot():
    poisson = Plan(5, 20, 100)
    everyone = PLAN._replace(relation="add_remove")
    for plan in (poisson, everyone):
        head, _, _, *rows = table(plan)
        assert "the server" in head
        kinds = [row.split()[2] for row in rows]
        assert kinds == ["discrete_gaussian"] * 2  # the only one that a config allows
    sums = bits_table.integers_of(poisson, 16)
    assert sums.smallest == 0 and 20 < sums.most <= 100


def test_impossible_tables_are_refused():
    for changes, word in (
        ({"bits": (4,)}, "bits=4"),
        ({"numbers": 0}, "numbers=0"),
    ):
        with refused(word):
            table(**changes)
