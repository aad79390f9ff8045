"""Laws of compiled programs: what crosses between chips is the sketch, and no more."""

import jax
import pytest

from configs import accelerators
from fl_sketch.experiments.aot import hlo, memory, placing, report, topology
from fl_sketch.privacy import gaussian
from fl_sketch.run import prepare
from tests.experiments.aot.problems import (
    METHODS,
    OF_METHODS,
    OPERATORS,
    PRIVATE,
    SLICES,
    D,
    placed,
    setup_of,
)

SAFL_B = D // 10


def sizes(compiled):
    return [array.size for array in compiled.arrays]


@pytest.mark.parametrize(
    "slice_of", ["v5e:2x2", pytest.param("v5e:4x4", marks=pytest.mark.slow)]
)
def test_a_round_of_safl_sends_one_sum_of_b_numbers_and_scalars(slice_of):
    compiled = placed(slice_of)
    assert compiled.fits and (compiled.lowered.d, compiled.lowered.numbers) == (
        D,
        SAFL_B,
    )
    (only,) = report.collectives_of(compiled)
    assert (only.kind, only.group, only.times) == ("all-reduce", SLICES[slice_of], 1)
    assert sorted(sizes(only))[-2:] == [1, SAFL_B]


def test_a_round_without_a_sketch_sends_the_model():
    parts = report.collectives_of(placed("v5e:2x2", {"algorithm": "fedopt"}))
    assert sum(sum(sizes(part)) for part in parts) >= D


def test_noise_is_added_by_each_chip_and_never_sent():
    (with_noise,) = report.collectives_of(placed("v5e:2x2", PRIVATE))
    assert sorted(sizes(with_noise))[-2:] == [1, SAFL_B]


@pytest.mark.parametrize(
    ("noise", "differs"), [("central", False), ("distributed", True)]
)
def test_noise_is_drawn_once_for_all_unless_every_client_adds_its_own(
    monkeypatch, noise, differs
):
    drawn, standard = [], gaussian.standard

    def recorded(key, count):
        drawn.append((count, "clients" in str(jax.typeof(key))))
        return standard(key, count)

    monkeypatch.setattr(gaussian, "standard", recorded)
    placing.lower(setup_of(PRIVATE | {"privacy.noise": noise}))
    assert {count for count, _ in drawn} == {SAFL_B}
    own = [differing for _, differing in drawn]
    assert True in own if differs else own == [False]


@pytest.mark.slow
def test_temporaries_do_not_grow_with_the_cohort():
    mlp = {"model.name": "mlp", "compute.chunk": 2}
    few, many = (placed("v5e:2x2", mlp | {"cohort.size": size}) for size in (8, 40))
    assert many.temporaries - few.temporaries < 4 * few.lowered.d  # not one model more


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.slow
def test_every_operator_compiles(operator):
    compiled = placed("v5e:2x2", {"sketch.operator": operator})
    b = D if operator == "identity" else SAFL_B
    assert compiled.fits
    crossed = [sorted(sizes(only))[-2:] for only in report.collectives_of(compiled)]
    assert crossed == [[1, b]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_every_method_compiles(method):
    compiled = placed("v5e:2x2", {"algorithm": method} | OF_METHODS.get(method, {}))
    assert compiled.fits and report.collectives_of(compiled)


@pytest.mark.slow
def test_one_chip_sends_nothing():
    assert not report.collectives_of(placed("v5e:1x1"))


@pytest.mark.slow
def test_between_the_rows_of_a_mesh_go_sketches_alone():
    """Within a row go activations; between rows, where clients meet, b numbers."""
    compiled = placed("v5e:4x4", {"model.name": "mlp", "compute.model_devices": 2})
    d, b = compiled.lowered.d, compiled.lowered.numbers
    between = [c for c in report.collectives_of(compiled) if c.group == 8]
    within = [c for c in report.collectives_of(compiled) if c.group == 2]
    assert len(between) + len(within) == len(report.collectives_of(compiled))
    assert [sorted(sizes(c))[-2:] for c in between] == [[1, b]]
    assert b in [c.numbers for c in within]
    assert all(c.numbers < d for c in within)


@pytest.mark.slow
def test_the_most_clients_at_a_time_are_found_and_one_too_large_is_refused(monkeypatch):
    setup = setup_of({"cohort.size": 20}, "v5e:1x1")

    def with_chunk(chunk):
        return placing.place(placing.lower(setup.changed("compute.chunk", chunk)))

    compiled = placing.place(placing.lower(setup))
    assert compiled.lowered.chunk == 7  # of 20 in three turns
    assert memory.most_clients(setup, compiled) == 20
    memory.require_fit(setup.config, compiled)
    some = with_chunk(3)
    limit = some.arguments + some.temporaries
    monkeypatch.setattr(topology, "memory", lambda mesh: limit)
    most = memory.most_clients(setup, placing.place(placing.lower(setup)))
    fitting = [with_chunk(most + n) for n in (0, 1)]
    assert 3 <= most < 20 and [c.fits for c in fitting] == [True, False]
    with pytest.raises(ValueError, match=r"got .* GiB: compute.chunk=\d+ needs less"):
        memory.require_fit(setup.config, fitting[1])


@pytest.mark.slow
def test_a_round_that_does_not_fit_is_told_with_what_it_takes():
    """The compiler itself says so; nothing of a program is known then."""
    large = {"model.name": "mlp", "model.width": 25000, "compute.chunk": 1}
    compiled = placed("v5e:1x1", large | {"client.batch": 2})
    assert not compiled.fits and not compiled.text
    assert (
        compiled.arguments + compiled.temporaries
        > compiled.room
        > compiled.arguments
        > 4 * compiled.lowered.d
    )
    row = report.row(compiled)
    assert row["fits"] is False and row["collectives"] == row["sent_bytes"] == ""
    config = setup_of(
        large | {"client.batch": 2}, "v5e:1x1"
    ).config.copy_and_resolve_references()
    with pytest.raises(ValueError, match="GiB: client.batch=1 needs less"):
        memory.require_fit(config, compiled)
    config.client.batch = 1
    with pytest.raises(ValueError, match="are state and data; a smaller model or more"):
        memory.require_fit(config, compiled)


def test_the_round_of_gpus_is_lowered_and_not_compiled():
    config = setup_of({}).config
    lowered = placing.lower(prepare(config, mesh=topology.of_gpus(2)))
    printed = report.lines_of_lowered(lowered)
    assert printed[0].startswith("devices: 2 clients; 8 clients per round, 4 at a time")
    assert "3 all_reduce" in printed[3]
    assert printed[4].endswith(": none")


def test_what_takes_less_is_a_key_that_may_be():
    setup = setup_of({"model.name": "mlp"})
    config = setup.config.copy_and_resolve_references()
    lowered = placing.lower(setup.changed("compute.chunk", 1))
    compiled = placing.Placed(lowered, 2**30, 2**35, 2**34, "", 0.0)
    with pytest.raises(ValueError, match="compute.model_devices=2 needs less"):
        memory.require_fit(config, compiled)
    full = compiled._replace(lowered=lowered._replace(inputs=2**34, chunk=4))
    with pytest.raises(ValueError, match="compute.model_devices=2 needs less"):
        memory.require_fit(config, full)  # fewer clients at a time would not help
    config.algorithm = "sketched_sgd"  # of vectors, which devices do not share
    with pytest.raises(ValueError, match=r"client.batch=\d+ needs less"):
        memory.require_fit(config, compiled)


@pytest.mark.slow
def test_eight_chips_hold_an_eighth_of_a_billion_parameters_each(tmp_path):
    """The shape of results/accelerators, lowered: compiling it takes minutes."""
    (tmp_path / "shakespeare").mkdir()
    lines = [f"Speaker {n % 9}:\n" + "To be, or not. " * 99 for n in range(99)]
    (tmp_path / "shakespeare" / "input.txt").write_text("\n\n".join(lines) + "\n")
    config, mesh = accelerators.get_config("billion"), topology.of_tpus("v5e:4x4", 8)
    lowered = placing.lower(prepare(config, str(tmp_path), mesh=mesh))
    assert dict(lowered.mesh.shape) == {"clients": 2, "model": 8}
    assert (lowered.d, lowered.numbers) == (1_310_773_347, 1_310_773)
    each = 3 * 4 * lowered.d / 8  # the model and two moments
    assert each <= lowered.inputs < 1.03 * each


@pytest.mark.slow
def test_bfloat16_is_what_a_client_computes_in_and_nobody_sends():
    """Products and what they leave behind are bfloat16; state and messages are not."""
    own = {"model.name": "vit", "client.steps": 1, "client.batch": 32}
    plain = placed("v5e:2x2", own)
    low = placed("v5e:2x2", own | {"compute.dtype": "bfloat16"})
    assert set(hlo.products(low.text)) == {("bf16", "bf16")}
    assert set(hlo.products(plain.text)) != {("bf16", "bf16")}
    (only,) = report.collectives_of(low)
    assert {array.dtype for array in only.arrays} == {"f32"}
    assert low.arguments == pytest.approx(plain.arguments, rel=0.2)
    assert low.temporaries < plain.temporaries
