"""Test that loops over the rows of a register tile are rolled where a serial loop computed them."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.loops.interp import run
from webmlc.loops.ir import For, LoopFunction, walk_statements
from webmlc.loops.text import parse_function
from webmlc.target.scalar_replacement import scalar_replacement
from webmlc.target.unroll_loops import unroll_loops
from webmlc.target.webgpu.roll_epilogues import roll_epilogues

TILE = """\
@T.kernel
def sums(A: T.Buffer((96,), "float32"), C: T.Output((24,), "float32")):
    Y = T.alloc_buffer((24,), "float32", scope="local")
    for i in T.unrolled(6):
        Y[T.ramp(i * 4, 1, 4)] = T.broadcast(T.float32(0.0), 4)
    for k in range(4):
        for i in T.unrolled(6):
            Y[T.ramp(i * 4, 1, 4)] = Y[T.ramp(i * 4, 1, 4)] + A[T.ramp(k * 24 + i * 4, 1, 4)]
    for i in T.unrolled({rows}):
        {body}
"""
STORE = "C[T.ramp(i * 4, 1, 4)] = Y[T.ramp({at}, 1, 4)] * T.broadcast(T.float32(2.0), 4)"


def tile(body: str, rows: int = 6) -> LoopFunction:
    return parse_function(TILE.format(rows=rows, body=body))


def serial_loops(function: LoopFunction) -> int:
    loops = (s for s in walk_statements(function.body) if isinstance(s, For))
    return sum(loop.kind == "serial" for loop in loops)


def result(function: LoopFunction) -> list[float]:
    arrays = {"A": np.arange(96, dtype=np.float32), "C": np.zeros(24, np.float32)}
    run(function, arrays)
    return arrays["C"].tolist()


@pytest.mark.parametrize("rows", [3, 6])
def test_rows_of_a_tile_move_through_the_first_one(rows: int) -> None:
    function = tile(STORE.format(at="i * 4"), rows)
    rolled = roll_epilogues(function)
    assert serial_loops(rolled) == 2
    registers = scalar_replacement(unroll_loops(rolled)).allocations
    assert len(registers) == 6  # no array remains
    assert any(result(rolled))
    assert result(rolled) == result(function)


@pytest.mark.parametrize(
    "body",
    [
        STORE.format(at="20 - i * 4"),  # the last row first
        STORE.format(at="i // 2 * 4"),  # each row twice
        STORE.format(at="0"),  # no row of its own
        f"{STORE.format(at='i * 4')} + Y[T.ramp(20 - i * 4, 1, 4)]",
    ],
)
def test_other_orders_stay_unrolled(body: str) -> None:
    function = tile(body)
    assert roll_epilogues(function) == function


def test_a_tile_that_is_read_again_stays_as_it_is() -> None:
    text = TILE.format(rows=6, body=STORE.format(at="i * 4"))
    function = parse_function(f"{text}    C[0] = Y[0]\n")
    assert roll_epilogues(function) == function


def test_two_rows_stay_unrolled() -> None:
    function = tile(STORE.format(at="i * 4"), rows=2)
    assert roll_epilogues(function) == function
