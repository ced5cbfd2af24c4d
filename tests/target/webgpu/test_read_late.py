"""Test that what a register holds is read right before its first use, and that results stay."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tests.schedule.rules import kernels as k
from webmlc.core.machine import SOFTWARE
from webmlc.loops.ir import Load, LoopFunction, Seq, Store, loads, walk_statements
from webmlc.loops.text import parse_function
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.webgpu.choose_storage import choose_storage
from webmlc.target.webgpu.read_late import read_late
from webmlc.target.webgpu.widen_loads import widen_loads

KERNEL = """\
@T.kernel
def kernel(A: T.Buffer((8,), "float32"), C: T.Output((8,), "float32")):
    x = T.alloc_buffer((), "float32", scope="local")
    y = T.alloc_buffer((), "float32", scope="local")
    for i in T.thread_binding(2, "threadIdx.x"):
        x[()] = {x}
        y[()] = A[i + 2]
        C[i] = y[()]
        C[i + 2] = x[()]
"""


def _order(text: str) -> list[str]:
    function = parse_function(text)
    late = read_late(choose_storage(function))
    return [s.buffer.name for s in walk_statements(late.body) if isinstance(s, Store)]


def test_a_load_moves_to_its_first_use() -> None:
    assert _order(KERNEL.format(x="A[i]")) == ["y", "C", "x", "C"]


def test_what_may_change_stays() -> None:
    for value in ("C[i]", "A[i] + T.float32(1.0)"):
        assert _order(KERNEL.format(x=value)) == ["x", "y", "C", "C"]


def test_rows_of_a_tile_are_read_one_after_the_other() -> None:
    lowered = lower(schedule_kernel(k.matmul(64, 64, 64), SOFTWARE).function, SOFTWARE)
    widened = choose_storage(widen_loads(lowered))
    late = read_late(widened)
    assert _late_vectors(widened) == 0
    assert _late_vectors(late) == 4 - 1  # the columns come after the first one
    (got,), (want,) = k.outputs_of(late, {}), k.outputs_of(lowered, {})
    np.testing.assert_array_equal(got, want)


def _late_vectors(function: LoopFunction) -> int:
    """The vectors of the left operand that are read right before an update with them."""
    sequences = [s.statements for s in walk_statements(function.body) if isinstance(s, Seq)]
    return sum(
        isinstance(first, Store)
        and isinstance(first.value, Load)
        and first.value.buffer.name == "a"
        and first.buffer in {load.buffer for load in loads(second)}
        for statements in sequences
        for first, second in pairwise(statements)
    )
