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

from webmlc.core.expr import Expr, Var, substitute, variables
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
from webmlc.schedule.tree import (
    block_names,
    conjoin,
    conjuncts,
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

    Returns the function and the new block's name, `<block>_init`. Raises `ScheduleError` where the
    block has no init, `loop` is not around it, or a loop outside `loop` belongs to the reduction.
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
    reduced = _variables(old, "reduce")
    for outer in around[:position]:
        if outer.var in reduced:
            reason = (
                f"the reduction of block {block!r} runs along loop {outer.var.name!r}, outside "
                f"{loop!r}"
            )
            raise refuse(reason, outer.var.name, loop, block)
    written = {store.buffer.name for store in stores(old.init)}
    for other in outer_blocks(target.body):
        if other is not old and written & {store.buffer.name for store in stores(other)}:
            reason = (
                f"block {other.name!r} under loop {loop!r} writes the same buffer as block "
                f"{block!r}"
            )
            raise refuse(reason, other.name, block)
    init = _init_nest(function, old, around[position:], reduced, refuse)
    update = replace(old, init=None)
    new_path = (*path[:-1], old)
    after = replace_last(new_path[len(loop_path) - 1 :], update)
    body = replace_last(loop_path, seq(init[0], after))
    return with_body(function, body), init[1]


def _variables(block: Block, kind: str) -> frozenset[Var]:
    """The loop variables in the bindings of the axes of one kind."""
    found: set[Var] = set()
    for axis, binding in zip(block.axes, block.bindings, strict=True):
        if axis.kind == kind:
            found |= variables(binding)
    return frozenset(found)


def _init_nest(
    function: LoopFunction,
    block: Block,
    loops: tuple[For, ...],
    reduced: frozenset[Var],
    refuse: object,
) -> tuple[Stmt, str]:
    """The init block under copies of the spatial `loops`, and its name."""
    assert block.init is not None
    taken = used_names(function)
    name = fresh(f"{block.name}_init", block_names(function))
    spatial = [
        (a, b) for a, b in zip(block.axes, block.bindings, strict=True) if a.kind == "spatial"
    ]
    used = _variables(block, "spatial")
    inner = {loop.var for loop in loops}
    predicate: Expr | None = None
    for part in conjuncts(block.predicate):
        mentioned = variables(part)
        if mentioned & reduced & inner:
            if mentioned & used & inner:
                reason = (
                    f"the predicate {part} of block {block.name!r} ties its reduction to its output"
                )
                raise ScheduleError("decompose_reduction", reason, function, block.name)
            continue
        predicate = conjoin(predicate, part)
        used |= mentioned
    mapping: dict[Var, Expr] = {}
    copies: list[For] = []
    for loop in loops:
        if loop.var in used and loop.var not in reduced:
            copy = replace(loop, var=Var(fresh(f"{loop.var.name}_init", taken)))
            mapping[loop.var] = copy.var
            copies.append(copy)
    renamed = {axis.var: Var(fresh(f"{axis.var.name}_init", taken)) for axis, _ in spatial}
    nest: Stmt = Block(
        name,
        tuple(Axis(renamed[axis.var], axis.extent, "spatial") for axis, _ in spatial),
        tuple(substitute(binding, mapping) for _, binding in spatial),
        substitute_statement(block.init, dict(renamed)),
        None,
        None if predicate is None else substitute(predicate, mapping),
    )
    for copy in reversed(copies):
        nest = replace(copy, extent=substitute(copy.extent, mapping), body=nest)
    return nest, name
