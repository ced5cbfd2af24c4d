"""Write calls of instructions out as their meanings.

Needs: nothing. Guarantees: no call of an instruction that `keeps` does not name. The interpreter
and the counts of work write all calls out. A lowering keeps the instructions of its machine.

before                                             after
    C[i] = C[i] + T.call_intrin("f32x4.mul",           C[i] = C[i] + A[i] * B[i]
                                A[i], B[i])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from webmlc.core.expr import Expr
from webmlc.core.instruction import InstructionCall
from webmlc.core.rewrite import contents, rewriter, walk
from webmlc.loops.ir import LoopFunction, expressions, map_expressions, walk_statements


def instructions_of(function: LoopFunction) -> Iterator[InstructionCall]:
    """The calls of instructions in a function, in any order."""
    for stmt in walk_statements(function.body):
        for root in expressions(stmt):
            if InstructionCall in contents(root):
                yield from (node for node in walk(root) if isinstance(node, InstructionCall))


def write_out_instructions(
    function: LoopFunction, keeps: Callable[[InstructionCall], bool] = lambda _: False
) -> LoopFunction:
    """Replace every call of an instruction in `function` by its meaning, unless `keeps` it."""
    if next(instructions_of(function), None) is None:
        return function

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, InstructionCall) and not keeps(node):
            return node.written_out
        return None

    return replace(function, body=map_expressions(function.body, rewriter(rule)))
