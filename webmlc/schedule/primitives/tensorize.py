"""Primitives that make a block of a loop nest, which then moves as one, or becomes an intrinsic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.instruction import InstructionCall
from webmlc.core.rewrite import substitute, variables
from webmlc.core.simplify import divides, prove_equal, simplify
from webmlc.loops.ir import (
    Axis,
    Binder,
    Block,
    Buffer,
    For,
    Let,
    Load,
    LoopFunction,
    Stmt,
    Store,
    grid,
    inside_loops,
    loads_in,
    map_accesses,
    map_statements,
    substitute_statement,
    walk_statements,
)
from webmlc.loops.write_out_instructions import instructions_of
from webmlc.schedule.describe_instruction import nest as nest_of_loops
from webmlc.schedule.edit import Edit
from webmlc.schedule.intrinsics import INTRINSICS, Intrinsic
from webmlc.schedule.match_intrinsic import (
    Match,
    call_instruction,
    difference,
    match_intrinsic,
)
from webmlc.schedule.regions import Scan, relax
from webmlc.schedule.tree import Intervals, Path, loop_names, loops_of


def blockize(edit: Edit, loop: str) -> str:
    """Make a block of `loop`, the loops inside it and their only block.

    for i0, k0, i1, k1 in T.grid(16, 8, 4, 4):     for i0, k0 in T.grid(16, 8):
        with T.block("Y"):                             with T.block("Y_o"):
            vi = T.axis.spatial(64, i0 * 4 + i1)           vio, vko = T.axis.remap("SR", [i0, k0])
            vk = T.axis.reduce(32, k0 * 4 + k1)   ->       for i1, k1 in T.grid(4, 4):
            Y[vi] += A[vi, vk]                                 with T.block("Y"):
                                                                   vi = ...(64, vio * 4 + i1)
                                                                   vk = ...(32, vko * 4 + k1)
                                                                   Y[vi] += A[vi, vk]

    The init of a reduction moves to the new block, over the loops of spatial axes. Returns the new
    block, `<block>_o`. Raises `ScheduleError` if the loops are not a perfect nest around one block,
    or do not run over whole tiles of its axes.
    """
    path, target = edit.loop(loop)
    loops, block = nest_of_loops(target)
    if not isinstance(block, Block):
        edit.refuse(f"the loops from {loop!r} inwards hold more than one block", loop)
    inner = {each.var for each in loops}
    for each in loops:
        if variables(each.extent) & inner:
            name = each.var.name
            edit.refuse(f"the extent of loop {name!r} depends on another loop", name)
    if block.predicate is not None and variables(block.predicate) & inner:
        reason = f"block {block.name!r} has the predicate {block.predicate} on the inner loops"
        edit.refuse(reason, block.name)
    ranges = edit.ranges((*path, *loops[1:]))
    axes: list[Axis] = []
    outer_bindings: list[Expr] = []
    bindings: list[Expr] = []
    for axis, binding in block.bound_axes():
        tile = _tile(edit, axis, binding, loops, ranges)
        if tile is None:
            whole = f"whole tiles of axis {axis.var.name!r} of block {block.name!r}"
            reason = f"the loops from {loop!r} inwards do not run over {whole}"
            edit.refuse(reason, block.name, loop)
        var = edit.var(f"{axis.var.name}o")
        extent = simplify((axis.extent + (tile.size - 1)) // tile.size, ranges)
        axes.append(Axis(var, extent, axis.kind))
        outer_bindings.append(tile.outer)
        bindings.append(simplify(var * tile.size + tile.inner, ranges))
    name = edit.block_name(f"{block.name}_o")
    init = None if block.init is None else _init(edit, block, block.init, bindings, loops)
    body = replace(block, bindings=tuple(bindings), init=None, predicate=None)
    nest = inside_loops(loops, body)
    new = Block(name, tuple(axes), tuple(outer_bindings), nest, init, block.predicate)
    edit.put(path, new)
    return name


@dataclass(frozen=True, slots=True)
class _Tile:
    """A binding as `outer · size + inner`: `inner` covers 0 to `size` - 1 over the inner loops."""

    outer: Expr
    size: int
    inner: Expr


def _tile(
    edit: Edit, axis: Axis, binding: Expr, loops: list[For], ranges: Intervals
) -> _Tile | None:
    """The binding taken apart; `None` if the inner loops do not run over whole tiles of the
    axis.
    """
    inner_vars = {loop.var: loop.extent for loop in loops}
    outer_vars = variables(binding) - inner_vars.keys()
    zeros: dict[Var, Expr] = dict.fromkeys(inner_vars, Const(0))
    outer = simplify(substitute(binding, zeros), ranges)
    inner = simplify(binding - outer, ranges)
    span = relax(inner, Scan(inner=inner_vars, ranges=ranges))
    size = None if span is None else as_int(simplify(span.width + 1, ranges))
    if span is None or size is None or variables(inner) & outer_vars or not span.exact:
        return None
    symbols = edit.ranges()
    is_whole = divides(size, outer, ranges) and (
        divides(size, axis.extent, symbols) or prove_equal(axis.extent, Const(size), symbols)
    )
    if not is_whole or span.low != Const(0):
        return None
    return _Tile(simplify(outer // size, ranges), size, inner)


def _init(edit: Edit, block: Block, init: Stmt, bindings: list[Expr], loops: list[For]) -> Stmt:
    """The init over copies of the loops of spatial axes, as a block of its own."""
    name = edit.block_name(f"{block.name}_init")
    spatial = {
        axis: binding
        for axis, binding in zip(block.axes, bindings, strict=True)
        if axis.kind == "spatial"
    }
    used = frozenset[Var]().union(*map(variables, spatial.values()))
    copies = {loop.var: edit.var(f"{loop.var.name}_init") for loop in loops if loop.var in used}
    axes = [replace(axis, var=edit.var(f"{axis.var.name}_init")) for axis in spatial]
    renamed: dict[Var, Expr] = {old.var: new.var for old, new in zip(spatial, axes, strict=True)}
    body = Block(
        name,
        tuple(axes),
        tuple(substitute(binding, copies) for binding in spatial.values()),
        substitute_statement(init, renamed),
    )
    return grid([(copies[loop.var], loop.extent) for loop in loops if loop.var in copies], body)


def tensorize(edit: Edit, nest: str, intrinsic: str) -> str:
    """Replace a loop and its body by the implementation of `intrinsic`, in a block that `blockize`
    makes.

    for i0, j0, k0, i1, j1, k1 in T.grid(...):     for i0, j0, k0 in T.grid(16, 16, 16):
        with T.block("C"):                             with T.block("C_o"):
            vi = ...(64, i0 * 4 + i1)         ->           vio, vjo, vko = T.axis.remap(...)
            ...                                            T.intrinsic("matmul_4x4_f32")
            C[vi, vj] += A[vi, vk] * B[vk, vj]             ...the 4x4 tile, in registers...

    An init stays in this block. If `nest` is a block, its elements are lanes of an instruction.
    Each part of its value that is the meaning of one lane becomes a call of the instruction.

    Returns the block. Raises `ScheduleError` if there is no such intrinsic, if the schedule's
    machine lacks it, if `blockize` refuses, or if the nest has another meaning.
    """
    if intrinsic not in INTRINSICS:
        names = ", ".join(INTRINSICS)
        edit.refuse(f"no intrinsic {intrinsic!r}; there are {names}", nest)
    row = INTRINSICS[intrinsic]
    _require_machine(edit, row, nest)
    if nest in loop_names(edit.function):
        return _tensorize_loop(edit, nest, row)
    return _tensorize_block(edit, nest, row)


def _require_machine(edit: Edit, row: Intrinsic, nest: str) -> None:
    """Refuse an instruction that the schedule's machine lacks."""
    machine = edit.machine
    if machine is None:
        return
    for call in instructions_of(row.implementation):
        text = call.instruction.text(machine.device)
        if text is None:
            edit.refuse(f"{row.name!r} has no text for {machine.device}", nest)
        if not text.runs_with(machine.features):
            reason = f"{row.name!r} needs the feature {text.feature!r}"
            edit.refuse(f"{reason}, which the machine {machine.name!r} lacks", nest)


def _tensorize_loop(edit: Edit, loop: str, row: Intrinsic) -> str:
    if row.instruction is not None and row.instruction.folds:
        edit.refuse(f"{row.name!r} folds the values of a block: tensorize the block", loop)
    before = edit.function
    name = blockize(edit, loop)
    path, outer = edit.block(name)
    loops, inner = nest_of_loops(outer.body)
    assert isinstance(inner, Block)  # `blockize` made a perfect nest around one block
    ranges = edit.ranges((*path, *loops))
    if not isinstance(inner.body, Store):
        edit.change(before)
        edit.refuse(f"block {inner.name!r} is more than one store", inner.name)
    store = substitute_statement(inner.body, inner.axis_values())
    assert isinstance(store, Store)
    places = match_intrinsic(loops, store, row.semantics, ranges)
    if places is None:
        edit.change(before)
        reason = difference(loops, store, row.semantics)
        edit.refuse(f"loop {loop!r} is not what {row.name!r} means: {reason}", loop)
    body, own = _written(edit, row.implementation, places, inner.body.stage)
    edit.put(path, replace(outer, body=body, intrinsic=row.name), *own)
    return name


def _tensorize_block(edit: Edit, name: str, row: Intrinsic) -> str:
    path, block = edit.block(name)
    instruction, store = row.instruction, block.body
    if instruction is None:
        edit.refuse(f"{row.name!r} has no lanes: tensorize a loop", name)
    if not isinstance(store, Store):
        edit.refuse(f"block {name!r} is more than one store", name)
    lanes = instruction.lanes
    vectors = [loop for loop in loops_of(path) if loop.kind == "vectorized"]
    if lanes > 1 and not any(divides(lanes, loop.extent, {}) for loop in vectors):
        reason = f"block {name!r} is in no vectorized loop of a multiple of {lanes} iterations"
        edit.refuse(reason, name)
    if instruction.folds:
        value = _folded(edit, path, block, row)
    else:
        value = call_instruction(store.value, instruction)
    if value is store.value:
        lane = f"one lane of {row.name!r} computes {instruction.meaning}"
        edit.refuse(f"{lane}, which is no part of the value of block {name!r}", name)
    edit.put(path, replace(block, body=replace(store, value=value), intrinsic=row.name))
    return name


def _folded(edit: Edit, path: Path, block: Block, row: Intrinsic) -> Expr:
    """The value of a fold, whose terms the threads of a subgroup share. Refuses terms that threads
    may not share: all threads fold the same values of workgroup memory into a register.
    """
    store, (_, pattern) = block.body, nest_of_loops(row.semantics.body)
    assert isinstance(store, Store) and isinstance(pattern, Store)  # of the callers and the rows
    assert isinstance(pattern.value, Call) and row.instruction is not None
    op, result = pattern.value.op, Load(store.buffer, store.indices)
    match store.value:
        case Call(op=other, args=(first, last)) if other == op and result in (first, last):
            term = last if first == result else first
        case _:
            edit.refuse(f"block {block.name!r} is no fold by {op!r}", block.name)
    if term.dtype != pattern.buffer.dtype:
        reason = f"{row.name!r} folds {pattern.buffer.dtype}, not {term.dtype}"
        edit.refuse(reason, block.name)
    loops = loops_of(path)
    scopes = {load.buffer.scope for load in loads_in(term)}
    if scopes != {"shared"} or store.buffer.scope != "local":
        reason = f"block {block.name!r} does not fold shared values into a local one"
        edit.refuse(reason, block.name)
    if not loops or loops[-1].kind != "serial" or path[-2] is not loops[-1]:
        edit.refuse(f"block {block.name!r} is in no serial loop of its own", block.name)
    call = InstructionCall(row.instruction, (term,))
    return Call(op, (result, call), store.value.dtype)


def _written(
    edit: Edit, implementation: LoopFunction, places: Match, stage: int
) -> tuple[Stmt, Iterable[Buffer]]:
    """An implementation over the buffers of a match, and its own buffers, under free names."""
    renamed = {
        stmt.var: replace(stmt.var, name=edit.name(stmt.var.name))
        for stmt in walk_statements(implementation.body)
        if isinstance(stmt, Binder)
    }
    allocations = {b: replace(b, name=edit.name(b.name)) for b in implementation.allocations}

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For() | Let():
                return replace(stmt, var=renamed[stmt.var])
            case Store():
                return replace(stmt, stage=stage)
        return None

    def element(buffer: Buffer, indices: tuple[Expr, ...]) -> Load:
        place = places.get(buffer.name)
        return Load(allocations[buffer], indices) if place is None else place.element(indices)

    body = map_statements(substitute_statement(implementation.body, renamed), rule)
    return map_accesses(body, element), allocations.values()
