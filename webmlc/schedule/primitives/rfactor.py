"""`rfactor`: the iterations of a reduction loop reduce into separate elements, then into the
result.

for i, k0, k1 in T.grid(8, 4, 16):             for i in range(8):
    with T.block("Y"):                             for k0, k1 in T.grid(4, 16):
        Y[i] += A[i, k0 * 16 + k1]                     with T.block("Y_rf"):
                                          ->               Y_rf[i, k1] += A[i, k0 * 16 + k1]
                                                   for k1_1 in range(16):
                                                       with T.block("Y"):
                                                           Y[i] += Y_rf[i, k1_1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webmlc.core.expr import Call, Expr, Var, call, select
from webmlc.core.rewrite import substitute, variables
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.graph.compute import identity
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    Load,
    LoopFunction,
    Stmt,
    Store,
    seq,
    substitute_statement,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.legality import require_serial
from webmlc.schedule.nest import Part, full, nest_block
from webmlc.schedule.regions import relax, scan, within
from webmlc.schedule.tree import (
    Path,
    block_names,
    conjoin,
    conjuncts,
    fresh,
    loops_of,
    outer_blocks,
    path_to_block,
    path_to_loop,
    ranges_along,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body

_NAME = "rfactor"


@dataclass(frozen=True, slots=True)
class Update:
    """A reduction's body `buffer[indices] = op(buffer[indices], value)`, and its stage."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    op: str
    value: Expr
    stage: int


def rfactor(function: LoopFunction, loop: str, axis: int) -> tuple[LoopFunction, str]:
    """Reduce every iteration of `loop` into a separate element of a new buffer, whose dimension
    `axis` is the loop. Then reduce the new buffer into the result, after the outermost loop of the
    reduction.

    Returns the function and the name of the block that fills the new buffer, `<block>_rf`. Raises
    `ScheduleError` if the loop does not belong to a single reduction with an associative operator,
    or if the init is no longer part of the reduction.
    """
    _, target = path_to_loop(function, _NAME, loop)
    inside = list(outer_blocks(target.body))
    if len(inside) != 1:
        raise ScheduleError(_NAME, f"loop {loop!r} holds {len(inside)} blocks", function, loop)
    path, block = path_to_block(function, _NAME, inside[0].name)
    require_serial(_NAME, function, target)
    update = match_update(function, block)
    _check_loops(function, path, block, target)
    rank = len(update.buffer.shape)
    position = axis if axis >= 0 else axis + rank + 1
    if not 0 <= position <= rank:
        raise ScheduleError(_NAME, f"axis {axis} of {rank + 1} dimensions", function, loop)
    taken_names = used_names(function)
    shape = list(update.buffer.shape)
    shape.insert(position, target.extent)
    partial = replace(
        update.buffer, name=fresh(f"{update.buffer.name}_rf", taken_names), shape=tuple(shape)
    )
    name = fresh(f"{block.name}_rf", block_names(function))
    division = _Division(function, block, target, update, partial, position)
    factored = _factored(division, path, name, taken_names)
    root = _root(path, block)
    final = _final(division, root, taken_names)
    after = replace_last(path[len(root) - 1 :], factored)
    body = replace_last(root, seq(after, final))
    return with_body(function, body, (*function.allocations, partial)), name


def match_update(function: LoopFunction, block: Block) -> Update:
    """The associative update in the body of `block`."""
    reason = f"block {block.name!r} is not `buffer[...] = op(buffer[...], value)` with an init"
    match block.body:
        case Store(buffer=buffer, indices=indices, value=Call(op="fma", args=(a, b, c))) if (
            block.init is not None and c == Load(buffer, indices)
        ):
            return Update(buffer, indices, "add", call("mul", a, b), block.body.stage)
        case Store(buffer=buffer, indices=indices, value=Call(op=op, args=(a, b))) if (
            block.init is not None and SCALAR_OPERATORS[op].identity is not None
        ):
            accumulator = Load(buffer, indices)
            if accumulator in (a, b):
                value = b if a == accumulator else a
                return Update(buffer, indices, op, value, block.body.stage)
    raise ScheduleError(_NAME, reason, function, block.name)


def _check_loops(function: LoopFunction, path: Path, block: Block, target: For) -> None:
    """Refuse unless every loop runs along one kind of axis, and the target along the reduction."""
    along = {"spatial": set[Var](), "reduce": set[Var]()}
    for axis, binding in block.bound_axes():
        along[axis.kind] |= variables(binding) - set(function.symbols)
    name = target.var.name
    if target.var not in along["reduce"] or target.var in along["spatial"]:
        reason = f"loop {name!r} does not run along the reduction of block {block.name!r} alone"
        raise ScheduleError(_NAME, reason, function, name, block.name)
    if mixed := along["spatial"] & along["reduce"]:
        reason = f"loop {min(v.name for v in mixed)!r} runs along both kinds of axes"
        raise ScheduleError(_NAME, reason, function, block.name)
    for loop in loops_of(path):
        if variables(loop.extent) & (along["reduce"] | along["spatial"]):
            reason = f"the extent of loop {loop.var.name!r} depends on another loop"
            raise ScheduleError(_NAME, reason, function, loop.var.name)


@dataclass(frozen=True, slots=True)
class _Division:
    """A reduction of `block` in which each iteration of the loop `target` reduces into an element
    of `partial`, along the dimension `position`.
    """

    function: LoopFunction
    block: Block
    target: For
    update: Update
    partial: Buffer
    position: int


def _factored(division: _Division, path: Path, name: str, taken_names: set[str]) -> Block:
    """The block that fills the new buffer: the target loop is a spatial axis of it, every other
    loop of the reduction a reduce axis.
    """
    function, block, target = division.function, division.block, division.target
    update, partial = division.update, division.partial
    reduced = set[Var]()
    values: dict[Var, Expr] = {}
    axes: list[Axis] = []
    bindings: list[Expr] = []
    for axis, binding in block.bound_axes():
        if axis.kind == "reduce":
            reduced |= variables(binding) - set(function.symbols)
            values[axis.var] = binding
        else:
            axes.append(Axis(Var(fresh(axis.var.name, taken_names)), axis.extent, "spatial"))
            bindings.append(binding)
            values[axis.var] = axes[-1].var
    as_axes: dict[Var, Expr] = {}
    for loop in loops_of(path):
        if loop.var in reduced:
            var = Var(fresh(f"v{loop.var.name}", taken_names))
            axes.append(Axis(var, loop.extent, "spatial" if loop is target else "reduce"))
            bindings.append(loop.var)
            as_axes[loop.var] = var
    inner = {var: substitute(value, as_axes) for var, value in values.items()}
    indices = [substitute(index, inner) for index in update.indices]
    indices.insert(division.position, as_axes[target.var])
    neutral = identity(update.op, partial.dtype)
    value = substitute(update.value, inner)
    predicate: Expr | None = None
    for part in conjuncts(block.predicate):
        if not variables(part) & reduced:
            predicate = conjoin(predicate, part)
        elif variables(part) <= reduced | set(function.symbols):
            # Where the domain ends inside the reduction, its missing iterations change nothing.
            value = select(substitute(part, as_axes), value, neutral)
        else:
            reason = (
                f"the predicate {part} ties the reduction of block {block.name!r} to its output"
            )
            raise ScheduleError(_NAME, reason, function, block.name)
    accumulator = Load(partial, tuple(indices))
    body = Store(partial, accumulator.indices, call(update.op, accumulator, value), update.stage)
    init = Store(partial, accumulator.indices, neutral, update.stage)
    return Block(name, tuple(axes), tuple(bindings), body, init, predicate)


def _root(path: Path, block: Block) -> Path:
    """The path to the outermost loop that the reduction of `block` runs along."""
    along = set[Var]()
    for axis, binding in block.bound_axes():
        if axis.kind == "reduce":
            along |= variables(binding)
    first = next(i for i, stmt in enumerate(path) if isinstance(stmt, For) and stmt.var in along)
    return path[: first + 1]


def _final(division: _Division, root: Path, taken_names: set[str]) -> Stmt:
    """The loops and the block that reduce the new buffer into the result."""
    block, target, update = division.block, division.target, division.update
    assert block.init is not None
    ranges = ranges_along(division.function, root[:-1])
    inside = scan(root[-1], ranges)
    mapping: dict[Var, Expr] = {}
    axes: list[Axis] = []
    parts: dict[Var, Part] = {}
    for axis, binding in block.bound_axes():
        if axis.kind == "spatial":
            var = Var(fresh(axis.var.name, taken_names))
            axes.append(Axis(var, axis.extent, "spatial"))
            span = relax(binding, inside)
            closed = None if span is None else inside.close(span)
            domain = full(axis.extent)
            if closed is None:
                parts[var] = Part(domain)
            else:
                # Without a predicate every binding is in its domain, so both ends of the span are.
                in_domain = block.predicate is None or within(closed, domain, inside.ranges)
                sure = closed.exact and in_domain
                parts[var] = Part(closed, None if sure else domain)
            mapping[axis.var] = var
    factor = Axis(Var(fresh(f"v{target.var.name}", taken_names)), target.extent, "reduce")
    axes.append(factor)
    parts[factor.var] = Part(full(target.extent))
    indices = tuple(substitute(index, mapping) for index in update.indices)
    accumulator = Load(update.buffer, indices)
    source = list(indices)
    source.insert(division.position, factor.var)
    value = call(update.op, accumulator, Load(division.partial, tuple(source)))
    final = Block(
        block.name,
        tuple(axes),
        tuple(axis.var for axis in axes),
        Store(update.buffer, indices, value, update.stage),
        substitute_statement(block.init, mapping),
    )
    return nest_block(final, parts, taken_names, ranges)
