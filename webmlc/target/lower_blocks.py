"""Turn blocks into plain statements.

Needs: predicates over loop variables; no reduction without a step (`clear_empty_reductions`).
Guarantees: no `Block`, and what `simplify_function` guarantees. Block axes are replaced by their
bindings. A predicate is an `If` around the block's statements. An `init` runs under the condition
that all reduce axes are zero. The simplification omits a condition that always holds.

before                                             after
    for i, k in T.grid(8, 16):                         for i in range(8):
        with T.block("Y"):                                 for k in range(16):
            vi, vk = T.axis.remap("SR", [i, k])                if k == 0:
            with T.init():                                         Y[i] = 0
                Y[vi] = 0                                      Y[i] = Y[i] + A[i, k]
            Y[vi] = Y[vi] + A[vi, vk]
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Block,
    If,
    LoopFunction,
    Stmt,
    blocks,
    map_statements,
    seq,
    substitute_statement,
)
from webmlc.schedule.edit import Edit
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.nest import axis_variables
from webmlc.schedule.primitives.reduction import decompose_reduction
from webmlc.schedule.tree import loops_of
from webmlc.target.scoped import simplify_function


def clear_empty_reductions(function: LoopFunction) -> LoopFunction:
    """Move the init of every block that may reduce nothing before its outermost reduction loop. An
    init inside the loop would not run, and the result would be the old content of its memory.

    A reduction may be cut into parts. Only the part that begins at 0 is cleared here; the init of
    another part runs only if all parts before it are empty. An init stays if `decompose_reduction`
    refuses to move it: the loop then writes the result elsewhere, too. Only a symbolic size can be
    0 in a run.

    before                                         after
        for i, k in T.grid(8, n):                      for i in range(8):
            with T.block("Y"):                             with T.block("Y_init"):
                with T.init(): Y[i] = 0                        Y[i] = 0
                Y[i] = Y[i] + A[i, k]                      for k in range(n):
                                                               with T.block("Y"):
                                                                   Y[i] = Y[i] + A[i, k]
    """
    edit = Edit("clear_empty_reductions", function)
    for block in tuple(blocks(function.body)):
        if block.init is None or not _may_be_empty(block):
            continue
        path, _ = edit.block(block.name)
        bound = axis_variables(block, "reduce")
        loops = [loop.var for loop in loops_of(path) if loop.var in bound]
        if loops and _begins_at_zero(block, loops):
            with suppress(ScheduleError):
                decompose_reduction(edit, block.name, loops[0].name)
    return edit.function


def _may_be_empty(block: Block) -> bool:
    """True if a run may give a reduce axis of a block no elements."""
    extents = [axis.extent for axis in block.axes if axis.kind == "reduce"]
    return any(bounds(n, dict.fromkeys(variables(n), SYMBOL)).low < 1 for n in extents)


def _begins_at_zero(block: Block, loops: Sequence[Var]) -> bool:
    """True if all reduce axes of a block are 0 in the first iteration of these loops."""
    first = dict.fromkeys(loops, Const(0))
    bindings = block.bound_axes()
    return all(
        as_int(simplify(substitute(binding, first))) == 0
        for axis, binding in bindings
        if axis.kind == "reduce"
    )


def lower_blocks(function: LoopFunction) -> LoopFunction:
    """Replace every block of `function` by plain statements, inner blocks first, and simplify the
    result under the ranges of its loops.
    """
    body = map_statements(function.body, lambda s: _lower(s) if isinstance(s, Block) else None)
    return simplify_function(replace(function, body=body))


def _lower(block: Block) -> Stmt:
    bindings = block.axis_values()
    body = substitute_statement(block.body, bindings)
    if block.init is not None:
        is_first: Expr = Const(True, DType.bool)
        for axis, binding in block.bound_axes():
            if axis.kind == "reduce":
                is_first = is_first & binding.equals(0)
        body = seq(If(is_first, substitute_statement(block.init, bindings)), body)
    return body if block.predicate is None else If(block.predicate, body)
