"""`decompose_reduction`: the init of a reduction becomes a block of its own, before a loop.

for i, k in T.grid(64, 16):                    for i in T.serial(64):
    with T.block("C"):                             with T.block("C_init"):
        with T.init(): C[i] = 0           ->           C[i] = 0
        C[i] = C[i] + A[i, k]                      for k in T.serial(16):
                                                       with T.block("C"):
                                                           C[i] = C[i] + A[i, k]
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import substitute
from webmlc.loops.ir import (
    Axis,
    Block,
    For,
    LoopFunction,
    Stmt,
    seq,
    stores,
    substitute_statement,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import repeating_loops
from webmlc.schedule.nest import axis_variables, copy_spatial_loops
from webmlc.schedule.tree import (
    block_names,
    fresh,
    loops_of,
    outer_blocks,
    path_to_block,
    path_to_loop,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body


def decompose_reduction(function: LoopFunction, block: str, loop: str) -> tuple[LoopFunction, str]:
    """Move the init of `block` into a block before `loop`, under copies of the spatial loops from
    `loop` inwards.

    Returns the function and the new block's name, `<block>_init`. Raises `ScheduleError` if the
    block has no init, if `loop` is not around it, or if a loop outside `loop` belongs to the
    reduction.
    """
    path, old = path_to_block(function, "decompose_reduction", block)
    loop_path, target = path_to_loop(function, "decompose_reduction", loop)
    around = loops_of(path)

    def refuse(reason: str, *culprits: str) -> ScheduleError:
        return ScheduleError("decompose_reduction", reason, function, *culprits)

    if old.init is None:
        raise refuse(f"block {block!r} has no init", block)
    position = next((i for i, outer in enumerate(around) if outer is target), None)
    if position is None:
        raise refuse(f"loop {loop!r} is not around block {block!r}", loop, block)
    reduced = axis_variables(old, "reduce")
    for outer in around[:position]:
        if outer.var in reduced:
            reason = (
                f"the reduction of block {block!r} runs along loop {outer.var.name!r}, outside "
                f"{loop!r}"
            )
            raise refuse(reason, outer.var.name, loop, block)
    if again := repeating_loops(old, around[position:]):
        reason = f"loop {again[0]!r} runs the reduction of block {block!r} again, without its init"
        raise refuse(reason, again[0], loop, block)
    written = {store.buffer.name for store in stores(old.init)}
    for other in outer_blocks(target.body):
        if other is not old and written & {store.buffer.name for store in stores(other)}:
            reason = (
                f"block {other.name!r} under loop {loop!r} writes the same buffer as block "
                f"{block!r}"
            )
            raise refuse(reason, other.name, block)
    init = _init_nest(function, old, around[position:])
    update = replace(old, init=None)
    new_path = (*path[:-1], old)
    after = replace_last(new_path[len(loop_path) - 1 :], update)
    body = replace_last(loop_path, seq(init[0], after))
    return with_body(function, body), init[1]


def _init_nest(function: LoopFunction, block: Block, loops: tuple[For, ...]) -> tuple[Stmt, str]:
    """The init block under copies of the spatial `loops`, and its name."""
    assert block.init is not None
    taken_names = used_names(function)
    name = fresh(f"{block.name}_init", block_names(function))
    copies = copy_spatial_loops("decompose_reduction", function, block, loops, "init", taken_names)
    axes: list[Axis] = []
    bindings: list[Expr] = []
    renamed: dict[Var, Expr] = {}
    for axis, binding in block.bound_axes():
        if axis.kind == "spatial":
            axes.append(replace(axis, var=Var(fresh(f"{axis.var.name}_init", taken_names))))
            bindings.append(substitute(binding, copies.mapping))
            renamed[axis.var] = axes[-1].var
    init = Block(
        name,
        tuple(axes),
        tuple(bindings),
        substitute_statement(block.init, renamed),
        None,
        copies.predicate,
    )
    return copies.around(init), name
