"""Test which numbers come in pairs, and that values stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.target.programs import gemm
from webmlc.core.machine import RELAXED
from webmlc.loops import interp
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function, print_function
from webmlc.schedule.schedule import Schedule
from webmlc.target.targets import lower
from webmlc.target.wasm.pair_loads import pair_loads

BROADCASTS = """
@T.kernel
def sums(A: T.Buffer((64,), "float32"), C: T.Output((64,), "float32")):
    s = T.alloc_buffer((4,), "float32", scope="local")
    t = T.alloc_buffer((4,), "float32", scope="local")
    k = T.alloc_buffer((), "int32", scope="local")
    for i in range(16):
        k[()] = i
        s[T.ramp(0, 1, 4)] = T.broadcast({first}, 4)
        C[T.ramp(i * 4, 1, 4)] = s[T.ramp(0, 1, 4)]
        k[()] = i + 1
        t[T.ramp(0, 1, 4)] = T.broadcast({second}, 4)
        C[T.ramp(i * 4, 1, 4)] = s[T.ramp(0, 1, 4)] + t[T.ramp(0, 1, 4)]
"""


def product(rows: int, steps: int) -> LoopFunction:
    """A product of 24 x 64 and 64 x 16 in tiles of `rows`, in the lowered form."""
    schedule = Schedule(gemm(24, 16, 64, rows))
    if steps > 1:
        schedule.unroll(schedule.split("k", [None, steps])[1])
    return lower(schedule.function, RELAXED)


@pytest.mark.parametrize(("rows", "steps", "pairs"), [(4, 2, 4), (4, 4, 8), (4, 1, 0), (6, 2, 0)])
def test_a_tile_has_pairs_where_registers_remain(rows: int, steps: int, pairs: int) -> None:
    """Tiles of six rows and two vectors leave three registers: a panel's row and a number."""
    function = product(rows, steps)
    text = print_function(function)
    assert text.count("= A[T.ramp(") == pairs
    assert text.count("T.broadcast(A[") == (0 if pairs else rows * steps)

    rng = np.random.default_rng(0)
    a = rng.integers(-8, 9, (24, 64)).astype(np.float32)
    b = rng.integers(-8, 9, (64, 16)).astype(np.float32)
    bias = rng.integers(-8, 9, 16).astype(np.float32)
    result = np.full(24 * 16, np.nan, np.float32)
    panels = np.ascontiguousarray(b.reshape(64, 2, 8).transpose(1, 0, 2)).ravel()
    interp.run(function, {"A": a.ravel(), "B": panels, "bias": bias, "C": result})
    np.testing.assert_array_equal(result.reshape(24, 16), np.maximum(a @ b + bias, 0))


@pytest.mark.parametrize(
    ("first", "second", "is_pair"),
    [
        ("A[i * 2]", "A[i * 2 + 1]", True),
        ("A[i * 2 + 1]", "A[i * 2]", False),
        ("A[i * 2]", "A[i * 2 + 2]", False),
        ("C[i * 4 + 1]", "C[i * 4 + 2]", False),
        ("A[k[()]]", "A[k[()] + 1]", False),
    ],
    ids=["adjacent", "the other way round", "apart", "of a changed buffer", "at another index"],
)
def test_a_pair_is_read_once_before_its_first_use(first: str, second: str, is_pair: bool) -> None:
    function = parse_function(BROADCASTS.format(first=first, second=second))
    paired = pair_loads(function, RELAXED.vector_registers)
    assert (paired is not function) is is_pair

    a, zeros = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    results = []
    for version in (function, paired):
        results.append(zeros.copy())
        interp.run(version, {"A": a, "C": results[-1]})
    np.testing.assert_array_equal(*results)
