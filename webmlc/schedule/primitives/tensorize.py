"""Primitives that make a block of a loop nest, which then moves as one, or becomes an intrinsic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from webmlc.core.bounds import iterations
from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.rewrite import substitute, variables
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.simplify import divides, prove_equal, simplify
from webmlc.loops.ir import (
    NO_STAGE,
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
    map_accesses,
    map_statements,
    substitute_statement,
    walk_statements,
)
from webmlc.schedule.edit import Edit
from webmlc.schedule.intrinsics import INTRINSICS, parsed
from webmlc.schedule.regions import Scan, relax
from webmlc.schedule.tree import Intervals


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
    loops, block = _perfect_nest(target)
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


def _perfect_nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """The loops from a statement inwards, and the first statement that is no loop."""
    loops: list[For] = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


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


def tensorize(edit: Edit, loop: str, intrinsic: str) -> str:
    """Replace `loop` and its body by the implementation of `intrinsic`, in a block that `blockize`
    makes.

    for i0, j0, k0, i1, j1, k1 in T.grid(...):     for i0, j0, k0 in T.grid(16, 16, 16):
        with T.block("C"):                             with T.block("C_o"):
            vi = ...(64, i0 * 4 + i1)         ->           vio, vjo, vko = T.axis.remap(...)
            ...                                            T.intrinsic("matmul_4x4_f32")
            C[vi, vj] += A[vi, vk] * B[vk, vj]             ...the 4x4 tile, in registers...

    An init stays in this block. Returns the block. Raises `ScheduleError` if there is no such
    intrinsic, if `blockize` refuses, or if the nest has another meaning.
    """
    if intrinsic not in INTRINSICS:
        names = ", ".join(INTRINSICS)
        edit.refuse(f"no intrinsic {intrinsic!r}; there are {names}", loop)
    before = edit.function
    name = blockize(edit, loop)
    path, outer = edit.block(name)
    semantics, implementation = parsed(intrinsic)
    loops, inner = _perfect_nest(outer.body)
    assert isinstance(inner, Block)  # `blockize` made a perfect nest around one block
    ranges = edit.ranges((*path, *loops))
    matched_places: Match | None = None
    stage = NO_STAGE
    if isinstance(inner.body, Store):
        stage = inner.body.stage
        store = substitute_statement(inner.body, inner.axis_values())
        assert isinstance(store, Store)
        matched_places = match_intrinsic(loops, store, semantics, ranges)
    if matched_places is None:
        edit.change(before)
        edit.refuse(f"loop {loop!r} and what is inside it is not what {intrinsic!r} means", loop)
    body, own = _written(edit, implementation, matched_places, stage)
    edit.put(path, replace(outer, body=body, intrinsic=intrinsic), *own)
    return name


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


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter's tile: its start in `buffer`, and the dimension of the buffer for each of its
    dimensions.
    """

    buffer: Buffer
    start: tuple[Expr, ...]
    dimensions: tuple[int, ...]

    def element(self, inner: Sequence[Expr]) -> Load:
        """The buffer's element that is the tile's element `inner`."""
        result = list(self.start)
        for dimension, index in zip(self.dimensions, inner, strict=True):
            result[dimension] = simplify(result[dimension] + index)
        return Load(self.buffer, tuple(result))


Match = Mapping[str, Place]


def match_intrinsic(
    loops: Sequence[For], store: Store, semantics: LoopFunction, ranges: Intervals
) -> Match | None:
    """The places of the semantics' parameters under which `loops` around `store` mean the same;
    `None` if there are none.

    Loops match in any order of equal extents, operands of commutative operators in any order. A
    parameter may be a tile of a buffer of higher rank:

    C[vi * 4 + i1, vj * 4 + j1]  matches  C[i, j]  with  C -> Place(C, (vi * 4, vj * 4), (0, 1))
    """
    own_loops, body = _perfect_nest(semantics.body)
    if len(loops) != len(own_loops):
        return None
    names: dict[Var, Expr] = {loop.var: Var(f"~{loop.var.name}") for loop in own_loops}
    pattern_loops = [(Var(f"~{loop.var.name}"), loop.extent) for loop in own_loops]
    pattern = substitute_statement(body, names)
    assert isinstance(pattern, Store)  # INTRINSICS' semantics are perfect nests around one store
    ranges = {**ranges, **{var: iterations(extent, {}) for var, extent in pattern_loops}}
    for order in permutations(pattern_loops):
        pairs = list(zip(loops, order, strict=True))
        if all(prove_equal(loop.extent, extent) for loop, (_, extent) in pairs):
            renamed: dict[Var, Expr] = {loop.var: var for loop, (var, _) in pairs}
            attempt = _Attempt({var for var, _ in order}, renamed, ranges)
            for places in attempt.store(store, pattern):
                return places
    return None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One assignment of loops: `renamed` maps the nest's loop variables to the pattern's."""

    inner: set[Var]
    renamed: Mapping[Var, Expr]
    ranges: Intervals

    def store(self, store: Store, pattern: Store) -> Iterator[Match]:
        own, other = Load(store.buffer, store.indices), Load(pattern.buffer, pattern.indices)
        for places in self.expr(own, other, {}):
            yield from self.expr(store.value, pattern.value, places)

    def expr(self, expr: Expr, pattern: Expr, places: Match) -> Iterator[Match]:
        """Every extension of `places` under which `expr` is `pattern`."""
        match expr, pattern:
            case Load(), Load(buffer=parameter):
                place = self.place(expr, pattern)
                earlier = places.get(parameter.name, place)
                if place is not None and earlier == place:
                    yield {**places, parameter.name: place}
            case Call(op="fma", args=(a, b, c)), Call(op="add"):
                expanded = Call("add", (c, Call("mul", (a, b), a.dtype)), c.dtype)
                yield from self.expr(expanded, pattern, places)
            case Call(op=op, args=args), Call(op=other, args=others) if op == other:
                for order in permutations(args) if SCALAR_OPERATORS[op].commutative else [args]:
                    yield from self.all(order, others, places)
            case Const(), Const() if expr == pattern:
                yield places

    def all(
        self, exprs: Sequence[Expr], patterns: Sequence[Expr], places: Match
    ) -> Iterator[Match]:
        if not exprs:
            yield places
            return
        for extended in self.expr(exprs[0], patterns[0], places):
            yield from self.all(exprs[1:], patterns[1:], extended)

    def place(self, load: Load, pattern: Load) -> Place | None:
        """Where the pattern's parameter lies, so that both access the same elements."""
        if load.dtype != pattern.dtype:
            return None
        indices = list(pattern.indices)
        start: list[Expr] = []
        dimensions: list[int] = []
        zeros: dict[Var, Expr] = {var: Const(0) for var in self.inner}
        for dimension, index in enumerate(load.indices):
            renamed = substitute(index, self.renamed)
            origin = simplify(substitute(renamed, zeros), self.ranges)
            start.append(origin)
            inside = simplify(renamed - origin, self.ranges)
            if inside == Const(0):
                continue
            if not indices or variables(inside) - self.inner or inside != simplify(indices.pop(0)):
                return None
            dimensions.append(dimension)
        return None if indices else Place(load.buffer, tuple(start), tuple(dimensions))
