"""Test that updates of a register are joined where nothing between them needs its value."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction, stores
from webmlc.loops.text import parse_function
from webmlc.target.webgpu.join_updates import MOST_TERMS, join_updates

KERNEL = """\
@T.kernel
def updates(A: T.Buffer((16,), "float32"), C: T.Output((2,), "float32")):
    R = T.alloc_buffer((), "float32", scope="local")
    S = T.alloc_buffer((), "float32", scope="local")
    W = T.alloc_buffer((), "float32", scope="local")
    R[()] = T.float32(1)
    S[()] = T.float32(2)
    W[()] = T.float32(3)
{lines}
    C[0] = R[()]
    C[1] = S[()]
"""


def kernel(*lines: str) -> LoopFunction:
    return parse_function(KERNEL.format(lines="\n".join(f"    {line}" for line in lines)))


def counts(function: LoopFunction) -> tuple[int, int]:
    """The stores to each of the registers R and S, after their first values."""
    names = [store.buffer.name for store in stores(function.body)]
    return names.count("R") - 1, names.count("S") - 1


def add(register: str, term: str) -> str:
    return f"{register}[()] = {register}[()] + {term}"


def by_turns(registers: str) -> list[str]:
    """An update of each register, by another element each."""
    return [add(register, f"A[{i}]") for i, register in enumerate(registers)]


LOOP = ["for i in range(4):", f"    {add('R', 'A[i]')}", f"    {add('R', 'A[i + 4]')}"]
CONDITION = ["if A[1] < 0.5:", f"    {add('S', 'R[()]')}"]
JOINED: dict[str, tuple[list[str], tuple[int, int]]] = {
    "two registers by turns": (by_turns("RSRSRS"), (1, 1)),
    "operands in registers": (
        [add("R", "W[()] * A[0]"), add("S", "W[()]"), *by_turns("R")],
        (1, 1),
    ),
    "many": (by_turns("R" * (2 * MOST_TERMS + 1)), (3, 0)),
    "in a loop": (LOOP, (1, 0)),
    "read between": ([*by_turns("R"), add("S", "R[()]"), *by_turns("R")], (2, 1)),
    "an operand changes": ([add("R", "W[()]"), "W[()] = A[3]", add("R", "W[()]")], (2, 0)),
    "written between": ([*by_turns("R"), "R[()] = A[3]", *by_turns("R")], (3, 0)),
    "a loop between": ([*by_turns("R"), *LOOP, *by_turns("R")], (3, 0)),
    "twice the register": ([add("R", "R[()]"), add("R", "R[()]")], (2, 0)),
    "a condition between": ([*by_turns("R"), *CONDITION, *by_turns("R")], (2, 1)),
}


@pytest.mark.parametrize("name", JOINED)
def test_updates_are_joined(name: str) -> None:
    lines, updates = JOINED[name]
    function = kernel(*lines)
    joined = join_updates(function)
    assert counts(joined) == updates
    a = np.sin(np.arange(16, dtype=np.float32))
    want, got = np.zeros((2, 2), np.float32)
    run(function, {"A": a, "C": want})
    run(joined, {"A": a, "C": got})
    np.testing.assert_allclose(got, want, rtol=1e-5)
