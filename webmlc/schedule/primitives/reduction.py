"""Primitives that take a reduction apart: its init from its updates, or its partial results from
its final result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webmlc.core.expr import Call, Expr, Var, call, select
from webmlc.core.rewrite import substitute, variables
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.graph.compute import identity
from webmlc.loops.ir import (
    Axis,
    AxisKind,
    Block,
    Buffer,
    For,
    Load,
    Stmt,
    Store,
    seq,
    substitute_statement,
)
from webmlc.schedule.edit import Edit, repeating_loops
from webmlc.schedule.nest import Part, axis_variables, copy_spatial_loops, full, nest_block
from webmlc.schedule.regions import relax, scan, within
from webmlc.schedule.tree import (
    Path,
    conjoin,
    conjuncts,
    loops_of,
    outer_blocks,
    replace_last,
    writes,
)


def decompose_reduction(edit: Edit, block: str, loop: str) -> str:
    """Move the init of `block` into a block before `loop`, under copies of the spatial loops from
    `loop` inwards.

    for i, k in T.grid(64, 16):                    for i in T.serial(64):
        with T.block("C"):                             with T.block("C_init"):
            with T.init(): C[i] = 0           ->           C[i] = 0
            C[i] = C[i] + A[i, k]                      for k in T.serial(16):
                                                           with T.block("C"):
                                                               C[i] = C[i] + A[i, k]

    Returns the new block, `<block>_init`. Raises `ScheduleError` if the block has no init, if
    `loop` is not around it, or if a loop outside `loop` belongs to the reduction.
    """
    path, old = edit.block(block)
    loop_path, target = edit.loop(loop)
    around = loops_of(path)
    if old.init is None:
        edit.refuse(f"block {block!r} has no init", block)
    position = next((i for i, outer in enumerate(around) if outer is target), None)
    if position is None:
        edit.refuse(f"loop {loop!r} is not around block {block!r}", loop, block)
    reduced = axis_variables(old, "reduce")
    for outer in around[:position]:
        if outer.var in reduced:
            along = f"the reduction of block {block!r} runs along loop {outer.var.name!r}"
            edit.refuse(f"{along}, outside {loop!r}", outer.var.name, loop, block)
    if again := repeating_loops(old, around[position:]):
        reason = f"loop {again[0]!r} runs the reduction of block {block!r} again, without its init"
        edit.refuse(reason, again[0], loop, block)
    for other in outer_blocks(target.body):
        if other is not old and writes(old.init) & writes(other):
            name = other.name
            reason = f"block {name!r} under loop {loop!r} writes the same buffer as block {block!r}"
            edit.refuse(reason, name, block)
    name = edit.block_name(f"{block}_init")
    copies = copy_spatial_loops(edit, old, around[position:], "init")
    axes: list[Axis] = []
    bindings: list[Expr] = []
    renamed: dict[Var, Expr] = {}
    for axis, binding in old.bound_axes():
        if axis.kind == "spatial":
            axes.append(replace(axis, var=edit.var(f"{axis.var.name}_init")))
            bindings.append(substitute(binding, copies.mapping))
            renamed[axis.var] = axes[-1].var
    body = substitute_statement(old.init, renamed)
    init = Block(name, tuple(axes), tuple(bindings), body, None, copies.predicate)
    after = replace_last(path[len(loop_path) - 1 :], replace(old, init=None))
    edit.put(loop_path, seq(copies.around(init), after))
    return name


def rfactor(edit: Edit, loop: str, axis: int) -> str:
    """Reduce every iteration of `loop` into a separate element of a new buffer, whose dimension
    `axis` is the loop. Then reduce the new buffer into the result, after the outermost loop of the
    reduction.

    for i, k0, k1 in T.grid(8, 4, 16):             for i in range(8):
        with T.block("Y"):                             for k0, k1 in T.grid(4, 16):
            Y[i] += A[i, k0 * 16 + k1]                     with T.block("Y_rf"):
                                              ->               Y_rf[i, k1] += A[i, k0 * 16 + k1]
                                                       for k1_1 in range(16):
                                                           with T.block("Y"):
                                                               Y[i] += Y_rf[i, k1_1]

    Returns the block that fills the new buffer, `<block>_rf`. Raises `ScheduleError` if the loop
    does not belong to a single reduction with an associative operator, or if the init is no longer
    part of the reduction.
    """
    _, target = edit.serial_loop(loop)
    inside = list(outer_blocks(target.body))
    if len(inside) != 1:
        edit.refuse(f"loop {loop!r} holds {len(inside)} blocks", loop)
    path, block = edit.block(inside[0].name)
    update = _match_update(edit, block)
    _check_loops(edit, path, block, target)
    rank = len(update.buffer.shape)
    position = axis if axis >= 0 else axis + rank + 1
    if not 0 <= position <= rank:
        edit.refuse(f"axis {axis} of {rank + 1} dimensions", loop)
    shape = list(update.buffer.shape)
    shape.insert(position, target.extent)
    name = edit.name(f"{update.buffer.name}_rf")
    partial = replace(update.buffer, name=name, shape=tuple(shape))
    division = _Division(edit, path, block, target, update, partial, position)
    factored = division.factored(edit.block_name(f"{block.name}_rf"))
    root = _reduction_root(path, block)
    final = division.final(root)
    edit.put(root, seq(replace_last(path[len(root) - 1 :], factored), final), partial)
    return factored.name


@dataclass(frozen=True, slots=True)
class _Update:
    """A reduction's body `buffer[indices] = op(buffer[indices], value)`, and its stage."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    op: str
    value: Expr
    stage: int


def _match_update(edit: Edit, block: Block) -> _Update:
    """The associative update in the body of `block`."""
    match block.body:
        case Store(buffer=buffer, indices=indices, value=Call(op="fma", args=(a, b, c))) if (
            block.init is not None and c == Load(buffer, indices)
        ):
            return _Update(buffer, indices, "add", call("mul", a, b), block.body.stage)
        case Store(buffer=buffer, indices=indices, value=Call(op=op, args=(a, b))) if (
            block.init is not None and SCALAR_OPERATORS[op].identity is not None
        ):
            accumulator = Load(buffer, indices)
            if accumulator in (a, b):
                value = b if a == accumulator else a
                return _Update(buffer, indices, op, value, block.body.stage)
    reason = f"block {block.name!r} is not `buffer[...] = op(buffer[...], value)` with an init"
    raise edit.refusal(reason, block.name)


def _check_loops(edit: Edit, path: Path, block: Block, target: For) -> None:
    """Refuse unless every loop runs along one kind of axis, and the target along the reduction."""
    symbols = set(edit.function.symbols)
    spatial = axis_variables(block, "spatial") - symbols
    reduced = axis_variables(block, "reduce") - symbols
    name = target.var.name
    if target.var not in reduced or target.var in spatial:
        reason = f"loop {name!r} does not run along the reduction of block {block.name!r} alone"
        edit.refuse(reason, name, block.name)
    if mixed := spatial & reduced:
        mixed_name = min(v.name for v in mixed)
        edit.refuse(f"loop {mixed_name!r} runs along both kinds of axes", block.name)
    for loop in loops_of(path):
        if variables(loop.extent) & (reduced | spatial):
            name = loop.var.name
            edit.refuse(f"the extent of loop {name!r} depends on another loop", name)


def _reduction_root(path: Path, block: Block) -> Path:
    """The path to the outermost loop that the reduction of `block` runs along."""
    along = axis_variables(block, "reduce")
    first = next(i for i, stmt in enumerate(path) if isinstance(stmt, For) and stmt.var in along)
    return path[: first + 1]


@dataclass(frozen=True, slots=True)
class _Division:
    """A reduction of `block`, the end of `path`, in which each iteration of the loop `target`
    reduces into an element of `partial`, along the dimension `position`.
    """

    edit: Edit
    path: Path
    block: Block
    target: For
    update: _Update
    partial: Buffer
    position: int

    def factored(self, name: str) -> Block:
        """The block that fills the new buffer: the target loop is a spatial axis of it, every other
        loop of the reduction a reduce axis.
        """
        edit, block, update = self.edit, self.block, self.update
        symbols = set(edit.function.symbols)
        reduced = axis_variables(block, "reduce") - symbols
        values: dict[Var, Expr] = {}
        axes: list[Axis] = []
        bindings: list[Expr] = []
        for axis, binding in block.bound_axes():
            if axis.kind == "reduce":
                values[axis.var] = binding
            else:
                axes.append(Axis(edit.var(axis.var.name), axis.extent, "spatial"))
                bindings.append(binding)
                values[axis.var] = axes[-1].var
        as_axes: dict[Var, Expr] = {}
        for loop in loops_of(self.path):
            if loop.var in reduced:
                var = edit.var(f"v{loop.var.name}")
                kind: AxisKind = "spatial" if loop is self.target else "reduce"
                axes.append(Axis(var, loop.extent, kind))
                bindings.append(loop.var)
                as_axes[loop.var] = var
        inner = {var: substitute(value, as_axes) for var, value in values.items()}
        indices = [substitute(index, inner) for index in update.indices]
        indices.insert(self.position, as_axes[self.target.var])
        neutral = identity(update.op, self.partial.dtype)
        value = substitute(update.value, inner)
        predicate: Expr | None = None
        for part in conjuncts(block.predicate):
            if not variables(part) & reduced:
                predicate = conjoin(predicate, part)
            elif variables(part) <= reduced | symbols:
                # Where the domain ends inside the reduction, its missing iterations change nothing.
                value = select(substitute(part, as_axes), value, neutral)
            else:
                ties = f"ties the reduction of block {block.name!r} to its output"
                edit.refuse(f"the predicate {part} {ties}", block.name)
        accumulator = Load(self.partial, tuple(indices))
        combined = call(update.op, accumulator, value)
        body = Store(self.partial, accumulator.indices, combined, update.stage)
        init = Store(self.partial, accumulator.indices, neutral, update.stage)
        return Block(name, tuple(axes), tuple(bindings), body, init, predicate)

    def final(self, root: Path) -> Stmt:
        """The loops and the block that reduce the new buffer into the result."""
        edit, block, update = self.edit, self.block, self.update
        assert block.init is not None
        ranges = edit.ranges(root[:-1])
        inside = scan(root[-1], ranges)
        mapping: dict[Var, Expr] = {}
        axes: list[Axis] = []
        parts: dict[Var, Part] = {}
        for axis, binding in block.bound_axes():
            if axis.kind == "spatial":
                var = edit.var(axis.var.name)
                axes.append(Axis(var, axis.extent, "spatial"))
                span = relax(binding, inside)
                closed = None if span is None else inside.close(span)
                domain = full(axis.extent)
                if closed is None:
                    parts[var] = Part(domain)
                else:
                    # Without a predicate every binding is in its domain, so the span's ends are.
                    in_domain = block.predicate is None or within(closed, domain, inside.ranges)
                    parts[var] = Part(closed, None if closed.exact and in_domain else domain)
                mapping[axis.var] = var
        factor = Axis(edit.var(f"v{self.target.var.name}"), self.target.extent, "reduce")
        axes.append(factor)
        parts[factor.var] = Part(full(self.target.extent))
        indices = tuple(substitute(index, mapping) for index in update.indices)
        source = (*indices[: self.position], factor.var, *indices[self.position :])
        value = call(update.op, Load(update.buffer, indices), Load(self.partial, source))
        final = Block(
            block.name,
            tuple(axes),
            tuple(axis.var for axis in axes),
            Store(update.buffer, indices, value, update.stage),
            substitute_statement(block.init, mapping),
        )
        return nest_block(edit, final, parts, ranges)
