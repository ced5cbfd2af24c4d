"""Recognise loops that every thread of a workgroup runs alike, and spell them with subgroups.

In: a serial loop of a lowered kernel, whose terms are calls of an instruction that folds, and the
variables that differ between its threads. Out: the fold of the loop, or None for other loops. Each
thread folds the same values, which are in workgroup memory, into a register. The threads of a
subgroup can share the iterations: each thread folds some values, and one operation of the subgroup
folds the parts.

    for u in range(128):                         var part = 0.0f;
        S[()] = S[()] + T.call_intrin(      ->   for (var u = lane; u < 128; u += lanes) {
                    "subgroupAdd", P[u])             part += P[u]; }
                                                 S += subgroupAdd(part);

Here `lane` is the number of the subgroup's threads before this thread, and `lanes` is the number of
all its threads. So a subgroup may have any size, and any threads of the workgroup in any order.
Each subgroup folds all elements: no barrier is needed to exchange the sums of subgroups.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from webmlc.core.expr import Call, Expr, Var, as_int, call
from webmlc.core.instruction import InstructionCall
from webmlc.core.machine import Gpu
from webmlc.core.rewrite import variables
from webmlc.graph.compute import identity
from webmlc.loops.ir import For, Load, Store, loads_in
from webmlc.target.webgpu.names import SUBGROUP_LANE, SUBGROUP_LANES, wgsl_name
from webmlc.target.webgpu.print_expression import ExpressionPrinter
from webmlc.target.webgpu.table import HELPERS, suffix

FEATURE = "subgroups"
"""The feature of WebGPU that these spellings need."""

LANE, LANES = SUBGROUP_LANE, SUBGROUP_LANES
"""The number of a thread within its subgroup, and the number of threads in the subgroup."""

LANES_LINES = (
    f"let {LANE} = i32(subgroupExclusiveAdd(1u));",
    f"let {LANES} = i32(subgroupAdd(1u));",
)
"""The statements that number the threads of each subgroup, where all its threads run."""

MIN_ITERATIONS = 8
"""The fewest iterations that a subgroup shares. An operation of a subgroup costs about as much as 8
iterations (derived: it takes a step for each doubling of the lanes, up to 8 to 64 lanes)."""


@dataclass(frozen=True, slots=True)
class SubgroupFold:
    """A fold of `value`, for `var` from 0 to `count - 1`, into `result` by `op`. A subgroup folds
    the parts of its threads by `function`.
    """

    var: Var
    count: int
    op: str
    result: Load
    value: Expr
    function: str

    @property
    def identity(self) -> Expr:
        """The value that each thread starts from."""
        return identity(self.op, self.value.dtype)


def subgroup_fold(loop: For, differing: Set[Var]) -> SubgroupFold | None:
    """The fold of a loop whose iterations the threads of a subgroup share; `None` for other
    loops. The `differing` variables have other values in other threads.
    """
    count = as_int(loop.extent)
    if loop.kind != "serial" or count is None or count < MIN_ITERATIONS:
        return None
    match loop.body:
        case Store(
            buffer=buffer,
            indices=indices,
            value=Call(
                op=op,
                args=(Load() as result, InstructionCall(instruction=row) as term)
                | (InstructionCall(instruction=row) as term, Load() as result),
            ),
        ) if row.folds and result == Load(buffer, indices):
            text, (value,) = row.text(Gpu.device), term.args
            is_in_register = buffer.scope == "local" and loop.var not in variables(result)
            if text is not None and is_in_register and _is_common(value, differing):
                function, _, _ = text.text.partition("(")
                return SubgroupFold(loop.var, count, op, result, value, function)
    return None


def _is_common(value: Expr, differing: Set[Var]) -> bool:
    """True for a value of workgroup memory that is the same in all threads."""
    buffers = [load.buffer for load in loads_in(value)]
    is_shared = bool(buffers) and all(buffer.scope == "shared" for buffer in buffers)
    return is_shared and variables(value).isdisjoint(differing)


def fold_lines(fold: SubgroupFold, expressions: ExpressionPrinter) -> list[str]:
    """Print a fold whose iterations the threads of a subgroup share."""
    dtype, name, function = fold.value.dtype, wgsl_name(fold.var.name), fold.function
    if function in HELPERS:
        expressions.declare(function, dtype, 1)
        function = f"{function}_{suffix(dtype, 1)}"
    part = expressions.text(call(fold.op, Var("part", dtype), fold.value))
    total = expressions.text(call(fold.op, fold.result, Var("total", dtype)))
    result = expressions.access(fold.result.buffer, fold.result.indices)
    head = f"var {name} = {LANE}; {name} < {fold.count}; {name} += {LANES}"
    return [
        "{",
        f" var part = {expressions.text(fold.identity)};",
        f" for ({head}) {{ part = {part}; }}",
        f" let total = {function}(part);",
        f" {result} = {total};",
        "}",
    ]
