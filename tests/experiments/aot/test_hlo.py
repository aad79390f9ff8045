"""Collectives and cycles are read off programs as compilers print them."""

import pytest

from fl_sketch.experiments.aot import hlo, report
from fl_sketch.experiments.aot.hlo import Array, Collective

pytestmark = pytest.mark.fast

PROGRAM = """HloModule jit_f, entry_computation_layout={()->f32[]}

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}

%turn (state: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %gathered = bf16[8,4]{1,0:T(8,128)} all-gather(%part), channel_id=3, replica_groups=[4,2]<=[8], dimensions={0}
  %start = (f32[4], f32[4]{0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}
  %done = f32[4] collective-permute-done(%start)
  ROOT %out = (s32[], f32[8,4]) tuple(%i, %y)
}

%again (state: (s32[], f32[8,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(5)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%inner (p: f32[3]) -> f32[3] {
  %scattered = f32[3] reduce-scatter(%p), channel_id=8, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum
}

%unknown (state: (s32[])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%outer (state: (s32[])) -> (s32[]) {
  %loop.2 = (s32[], f32[8,4]) while(%t), condition=%again, body=%turn
}

ENTRY %main (p: f32[10]) -> f32[] {
  %reduced = (f32[1,100]{1,0}, f32[]) all-reduce(%p, %q), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%sum
  %loop = (s32[], f32[8,4]) while(%t), condition=%unknown, body=%outer
  %gather = (f32[2,5], f32[16,5]) all-gather-start(%z), replica_groups={}, dimensions={0}
  %fused = f32[3] fusion(%p), kind=kLoop, calls=%inner
  ROOT %r = f32[] get-tuple-element(%reduced), index=1
}
"""  # noqa: E501


def test_each_is_found_with_its_arrays_its_group_and_how_often_it_is_played():
    found = hlo.collectives(PROGRAM, 8)
    numbers = Array("f32", (1, 100)), Array("f32", ())
    assert sorted(found) == [
        Collective("all-gather", (Array("bf16", (8, 4)),), 2, 5),
        Collective("all-gather", (Array("f32", (16, 5)),), 8, 1),
        Collective("all-reduce", numbers, 8, 1),
        Collective("collective-permute", (Array("f32", (4,)),), 2, 5),
        Collective("reduce-scatter", (Array("f32", (3,)),), 4, 1),
    ]
    assert max(one.numbers for one in found) == 100


def test_a_chip_sends_what_a_ring_makes_it_send():
    found = hlo.collectives(PROGRAM, 8)
    sent = {one.kind: one.sent for one in found if one.arrays[0].dtype == "f32"}
    assert sent["all-reduce"] == 404 * 2 * 7 / 8
    assert sent["all-gather"] == 16 * 5 * 4 * 7 / 8
    assert sent["collective-permute"] == 5 * 16
    assert sent["reduce-scatter"] == 3 * 12


def test_types_have_their_bytes():
    for dtype, size in {"pred": 1, "bf16": 2, "s32": 4, "u8": 1, "f8e4m3": 1}.items():
        assert Array(dtype, (3, 2)).nbytes == 6 * size


def test_equal_ones_are_told_in_one_line():
    one = Collective("all-reduce", (Array("f32", (7,)), Array("f32", ())), 4, 1)
    other = Collective("all-gather", (Array("bf16", (8, 2)),), 2, 3)
    assert report.described([one, other, one]) == [
        "2 x all-reduce of f32[7], f32[] between 4",
        "all-gather of bf16[8,2] between 2, 3 times",
    ]


def test_cycles_count_as_often_as_their_loop_turns():
    guess = ', backend_config={"estimated_cycles":"%d"}'
    text = PROGRAM.replace(
        "f32[4] collective-permute-done(%start)", "f32[4] copy(%x)" + guess % 7
    )
    text = text.replace(
        "f32[3] fusion(%p), kind=kLoop", "f32[3] fusion(%p)" + guess % 2
    )
    assert hlo.cycles(PROGRAM) == 0
    assert hlo.cycles(text) == 5 * 7 + 2
