"""The requirements that several primitives share before they change a loop or a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Block, Buffer, For, Load, LoopFunction, Stmt, Store, loads, stores
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.tree import Path, depends_on, outer_blocks


def require_serial(primitive: str, function: LoopFunction, loop: For) -> None:
    """Refuse a loop that already has a kind: the kind has no meaning for the new loops."""
    if loop.kind != "serial":
        kind = loop.kind.replace("_", " ")
        reason = f"loop {loop.var.name!r} is {kind}; {primitive} it before that"
        raise ScheduleError(primitive, reason, function, loop.var.name)


def require_data_parallel(primitive: str, function: LoopFunction, loop: For) -> None:
    """Refuse a loop that a reduce axis runs along: its iterations meet in one element."""
    name = loop.var.name
    for block in outer_blocks(loop.body):
        for axis, binding in block.bound_axes():
            if axis.kind == "reduce" and depends_on(binding, {name}):
                reason = (
                    f"loop {name!r} runs along the reduce axis {axis.var.name!r} of block "
                    f"{block.name!r}: its iterations meet in one element"
                )
                raise ScheduleError(primitive, reason, function, name, block.name)


def require_own_locals(primitive: str, function: LoopFunction, loop: For) -> None:
    """Refuse a loop that shares a `local` buffer with statements outside: each thread has its own
    buffer.
    """
    for buffer in locals_shared_with(function, loop):
        name = loop.var.name
        reason = f"loop {name!r} shares {buffer.name!r} with what is outside; each thread has one"
        raise ScheduleError(primitive, reason, function, name)


def locals_shared_with(function: LoopFunction, loop: For) -> list[Buffer]:
    """The `local` buffers that are used both under `loop` and elsewhere."""
    local = [buffer for buffer in function.allocations if buffer.scope == "local"]
    if not local:
        return []
    inside, everywhere = _uses(loop), _uses(function.body)
    return [b for b in local if 0 < inside[b.name] < everywhere[b.name]]


def _uses(stmt: Stmt) -> Counter[str]:
    """How often a statement loads from and stores to each buffer, by the buffer's name."""
    accesses: Iterable[Load | Store] = chain(loads(stmt), stores(stmt))
    return Counter(access.buffer.name for access in accesses)


def only_output(primitive: str, function: LoopFunction, block: Block) -> Buffer:
    """The one buffer that `block` writes."""
    written = {store.buffer.name: store.buffer for store in stores(block)}
    if len(written) != 1:
        reason = f"block {block.name!r} writes {len(written)} buffers; {primitive} needs one"
        raise ScheduleError(primitive, reason, function, block.name)
    return next(iter(written.values()))


def require_outermost(primitive: str, function: LoopFunction, path: Path, name: str) -> None:
    """Refuse a loop or block inside another block: the outer block isolates it from statements
    outside.
    """
    for stmt in path[:-1]:
        if isinstance(stmt, Block):
            reason = f"{name!r} is inside block {stmt.name!r}, which isolates it"
            raise ScheduleError(primitive, reason, function, name, stmt.name)


def repeating_loops(block: Block, loops: Iterable[For]) -> list[str]:
    """The `loops` that run an instance of `block` again. No axis of the block follows such a loop,
    or a spatial axis takes a value twice along it (`i + j`, after `compute_at`; and `min(i, n) +
    j`).

    A reduction that is begun once and run twice counts everything twice.
    """
    extents = {loop.var: as_int(loop.extent) for loop in loops if as_int(loop.extent) != 1}
    followed = {var for binding in block.bindings for var in variables(binding)}
    names = [var.name for var in extents if var not in followed]
    for axis, binding in block.bound_axes():
        if axis.kind == "spatial":
            names += _overlapping(binding, extents)
    return sorted(set(names))


def _overlapping(binding: Expr, extents: Mapping[Var, int | None]) -> list[str]:
    """The loops of a sum `a·i + b·j` whose steps do not exceed the reach of the finer terms."""
    terms: list[tuple[int, Var]] = []
    names: list[str] = []
    stack = [binding]
    while stack:
        match stack.pop():
            case Call(op="add", args=(a, b)):
                stack += [a, b]
            case Call(op="mul", args=(Var() as var, Const(value=int() as step))) if var in extents:
                terms.append((step, var))
            case Var() as var if var in extents:
                terms.append((1, var))
            case Call(op="min", args=args):
                inside = {var for arg in args for var in variables(arg)}
                names += [var.name for var in extents if var in inside]
    reach, before = 0, ""
    for step, var in sorted(terms, key=lambda term: (term[0], term[1].name)):
        if step <= reach:
            names += [before, var.name]
        size = extents[var]
        if size is None:  # an unknown reach: assume that later steps exceed it
            continue
        reach, before = reach + step * (size - 1), var.name
    return names
