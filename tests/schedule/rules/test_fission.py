"""Loop fission: a loop of two stages becomes two loops, where no iteration needs the old order."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.loops.interp import run
from webmlc.loops.text import parse_function
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule, replay

STAGES = """
@T.kernel
def stages(A: T.Buffer((8, 16), "float32"), D: T.Output((8,), "float32")):
    C = T.alloc_buffer((9,), "float32")
    for i in range(8):
        for k in range(16):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]
        with T.block("D"):
            vi = T.axis.spatial(8, i)
            D[vi] = C[{index}] + T.float32(1)
"""


def test_each_statement_gets_a_loop() -> None:
    function = parse_function(STAGES.replace("{index}", "vi"))
    schedule = Schedule(function)
    first, second = schedule.fission("i")
    assert schedule.loops("C") == [first, "k"]
    assert schedule.loops("D") == [second]
    assert replay(function, schedule.trace) == schedule.function
    data = {"A": np.arange(128, dtype=np.float32).reshape(8, 16), "D": np.zeros(8, np.float32)}
    run(schedule.function, data, {})
    np.testing.assert_array_equal(data["D"], data["A"].sum(1) + 1)


@pytest.mark.parametrize("index", ["vi + 1", "0"])
def test_iterations_that_meet_keep_their_order(index: str) -> None:
    schedule = Schedule(parse_function(STAGES.replace("{index}", index)))
    with pytest.raises(ScheduleError, match="may meet in buffer 'C'"):
        schedule.fission("i")


PLANES = """
@T.kernel
def planes(A: T.Buffer((2, 24), "float32"), D: T.Output((24,), "float32")):
    C = T.alloc_buffer((2, 4, 6), "float32")
    for i in range(12):
        for p, j in T.grid(2, 2):
            with T.block("C"):
                vp, vi, vj = T.axis.remap("SSS", [p, i, j])
                C[vp, vi // 3, vi % 3 * 2 + vj] = A[vp, vi * 2 + vj]
        for j in range({count}):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi * 2 + vj] = C[0, vi // 3, vi % 3 * 2 + vj] + C[1, vi // 3, vi % 3 * 2 + vj]
"""


def test_lines_that_are_walked_as_one_are_apart_in_every_plane() -> None:
    function = parse_function(PLANES.replace("{count}", "2"))
    schedule = Schedule(function)
    first, second = schedule.fission("i")
    assert (schedule.loops("C")[0], schedule.loops("D")[0]) == (first, second)
    data = {"A": np.arange(48, dtype=np.float32).reshape(2, 24), "D": np.zeros(24, np.float32)}
    run(schedule.function, data, {})
    np.testing.assert_array_equal(data["D"], data["A"].sum(0))


def test_neighbours_in_a_line_may_meet() -> None:
    """A loop that reads three elements of every two also reads the next iteration's first."""
    schedule = Schedule(parse_function(PLANES.replace("{count}", "3")))
    with pytest.raises(ScheduleError, match="may meet in buffer 'C'"):
        schedule.fission("i")


def test_one_statement_cannot_be_parted() -> None:
    schedule = Schedule(parse_function(STAGES.replace("{index}", "vi")))
    with pytest.raises(ScheduleError, match="only one statement"):
        schedule.fission("k")


EXTRA = """        with T.block("E"):
            vi = T.axis.spatial(8, i)
            E[vi] = A[vi, 0]
"""


def test_some_blocks_stay_together() -> None:
    text = STAGES.replace("{index}", "vi")
    text = text.replace('        with T.block("D")', EXTRA + '        with T.block("D")')
    allocation = '    E = T.alloc_buffer((8,), "float32")\n'
    text = text.replace("    for i in", allocation + "    for i in")
    schedule = Schedule(parse_function(text))
    first, last = schedule.fission("i", ("C", "D"))
    assert schedule.blocks() == ["E", "C", "D"]
    assert schedule.loops("E") == [first]
    assert schedule.loops("C") == [last, "k"]
    assert schedule.loops("D") == [last]


def test_a_block_does_not_move_behind_its_reader() -> None:
    schedule = Schedule(parse_function(STAGES.replace("{index}", "vi")))
    with pytest.raises(ScheduleError, match="may meet in buffer 'C'"):
        schedule.fission("i", ("C",))
