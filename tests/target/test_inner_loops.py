"""Compare inner loops with golden files, and check the properties that make them fast.

The loops are those of a matrix product, a 3x3 and a depthwise convolution, as the rules and the
lowering build them.

WEBMLC_UPDATE_GOLDEN=1 pytest tests/target/test_inner_loops.py      # after an intended change
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.schedule.rules import kernels
from webmlc.core.machine import RELAXED
from webmlc.schedule.rules import choose_rule
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import Step, emit_module

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "matmul": (kernels.matmul(12, 16, 480, epilogue=False), 12, 1),
    "matmul_in_pairs": (kernels.matmul(2, 4096, 124, epilogue=False), 8, 1),
    "conv_3x3": (kernels.convolution(14, 12, 64, 16, 3), 12, 1),
    "conv_3x3_stride_2": (kernels.convolution(14, 12, 64, 16, 3, 2), 12, 1),
    "depthwise": (kernels.depthwise(8, 8, 16, 3), 8, 9),
    "depthwise_stride_2": (kernels.depthwise(8, 8, 16, 3, 2), 8, 9),
}
"""A kernel, the accumulators of its tile, and the taps in one iteration of its inner loop."""
Tree = list["Tree | str"]
"""An S-expression as nested lists of words."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def loop(case: str) -> str:
    """The text of the innermost loop with the most multiply-adds, up to and including its
    branch back.
    """
    function = CASES[case][0]
    lowered = lower(choose_rule(function, RELAXED)[1].function, RELAXED)
    steps = [Step("kernel", tuple(range(len(function.params))))]
    text = emit_module({"kernel": lowered}, steps, "relaxed").text
    loops = re.findall(r"\(loop (?:(?!\(loop ).)*?\(br_if[^\n]*", text, re.DOTALL)
    return max(loops, key=lambda part: part.count("relaxed_madd"))


def statements(loop: str) -> list[Tree]:
    """The statements of a loop's body, as nested lists of words."""
    open_lists: list[Tree] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", loop):
        if token == "(":
            open_lists.append([])
        elif token == ")":
            statement = open_lists.pop()
            open_lists[-1].append(statement)
        else:
            open_lists[-1].append(token)
    return [part for part in open_lists[-1] if isinstance(part, list)]


def nodes(tree: Tree) -> Iterator[Tree]:
    """Every instruction of a statement."""
    yield tree
    for part in tree:
        if isinstance(part, list):
            yield from nodes(part)


def register_pressure(body: list[Tree]) -> int:
    """The largest number of vectors that are needed at once anywhere in a loop: locals that a later
    statement or iteration reads, and the operands that a statement loads itself.
    """
    kinds = ("v128", "f32x4", "i8x16")
    vectors = {s[1] for s in body if s[0] == "local.set" and str(s[2][0]).startswith(kinds)}
    reads = [{n[1] for n in nodes(s) if n[0] == "local.get"} & vectors for s in body]
    writes = [{s[1]} & vectors if s[0] == "local.set" else set() for s in body]
    operand_loads = [
        sum(n[0] == "v128.load" for n in nodes(s)) - (s[2][0] == "v128.load") for s in body
    ]
    alive: set[str] = set()
    pressure = 0
    for _ in range(2):  # the second pass includes reads of the next iteration
        for position in reversed(range(len(body))):
            pressure = max(pressure, len(alive | writes[position]))
            alive = alive - writes[position] | reads[position]
            pressure = max(pressure, len(alive) + operand_loads[position])
    return pressure


def test_the_loop_is_golden(case: str, loop: str) -> None:
    path = GOLDEN / f"loop_{case}.wat"
    if os.environ.get("WEBMLC_UPDATE_GOLDEN"):
        path.write_text(loop + "\n")
    assert path.read_text() == loop + "\n"


def test_addresses_are_pointers_that_the_loop_increments(loop: str) -> None:
    """Addresses differ by literal offsets only, and the loop ends with the increments of the
    pointers.
    """
    assert "i32.mul" not in loop and "i32.shl" not in loop
    adds = [s for s in statements(loop) if any(n[0] == "i32.add" for n in nodes(s))]
    assert adds and adds == statements(loop)[-1 - len(adds) : -1]
    assert all(s[0] == "local.set" and s[2][1] == ["local.get", s[1]] for s in adds)


def test_all_vectors_fit_in_registers(loop: str) -> None:
    assert 8 < register_pressure(statements(loop)) <= RELAXED.vector_registers


def test_only_loads_stand_between_multiply_adds(case: str, loop: str) -> None:
    """Each sum is used again only after all other sums were."""
    _, accumulators, taps = CASES[case]
    body = statements(loop)
    places = [i for i, s in enumerate(body) if s[2][0] == "f32x4.relaxed_madd"]
    assert len(places) == accumulators * taps
    between = {s[2][0] for s in body[places[0] : places[-1] + 1]} - {"f32x4.relaxed_madd"}
    assert between <= {"v128.load", "v128.load32_splat", "v128.load64_zero", "i8x16.shuffle"}
    sums = [body[i][1] for i in places]
    for start in range(0, len(sums), accumulators):
        assert sorted(sums[start : start + accumulators]) == sorted(set(sums))
        assert sums[start : start + accumulators] == sums[:accumulators]
