"""Allocations shrink to the part that is live at once.

Needs: no blocks; schedules leave intermediate buffers full-size. Guarantees: an allocation is rank
1 and covers the region used under the lowest common ancestor of its accesses, for one iteration of
the loops around it; the part of the index that only those loops decide is gone. Nothing changes
where an iteration may read what an earlier one wrote.

before                                              after
    Y: local (56, 64)                                   Y: local (48,)
    for mo in range(9):                                 for mo in range(9):
        for mi, n in T.grid(6, 8):                          for mi, n in T.grid(6, 8):
            Y[mo * 6 + mi, n] = ...                             Y[mi * 8 + n] = ...
        for mi, n in T.grid(6, 8):                          for mi, n in T.grid(6, 8):
            C[mo * 6 + mi, n] = Y[mo * 6 + mi, n]               C[mo * 6 + mi, n] = Y[mi * 8 + n]

The region is found on row-major offsets, so that fused loops (`f // 56, f % 56`) cost nothing:
each term of an offset belongs to the dimension with the largest stride that divides it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from webmlc.core.affine import Term, from_terms, terms
from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import rewrite, variables, walk
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
    map_expressions,
    map_statements,
)
from webmlc.target.flatten_buffers import offset
from webmlc.target.scoped import Scope, loop_range, symbol_ranges


def compact_buffers(function: LoopFunction) -> LoopFunction:
    """Shrink every allocation of `function` that can be shrunk."""
    found = _collect(function)
    for buffer in function.allocations:
        accesses = found.get(buffer, [])
        if _is_one_element(buffer, accesses, frozenset(function.symbols)):
            function = _as_one_element(function, buffer)
            continue
        region = _region(buffer, accesses, frozenset(function.symbols))
        if region is not None:
            function = _rewrite(function, buffer, accesses, region)
    return function


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or store: its indices into a buffer of this shape, its row-major offset, the
    statements around it with the child taken, the ranges in scope.
    """

    indices: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    offset: Expr
    is_store: bool
    path: tuple[tuple[Stmt, int], ...]
    scope: Scope

    def loops(self, depth: int | None = None) -> list[For]:
        """The loops around it, outermost first, in the first `depth` steps of the path."""
        return [stmt for stmt, _ in self.path[:depth] if isinstance(stmt, For)]


@dataclass(frozen=True, slots=True)
class _Region:
    """How offsets shrink: `strides` of the old dimensions, the loops whose part of the offset goes,
    how constants are told apart (`_split_constant`), low and extent of each new dimension."""

    strides: tuple[Expr, ...]
    outer: frozenset[Var]
    nearest: bool
    lows: tuple[int, ...]
    extents: tuple[int, ...]


def _collect(function: LoopFunction) -> dict[Buffer, list[_Access]]:
    """Every access to an allocation, in program order."""
    found: dict[Buffer, list[_Access]] = {b: [] for b in function.allocations}

    def visit(stmt: Stmt, path: tuple[tuple[Stmt, int], ...], scope: Scope) -> None:
        here = (*path, (stmt, 0))
        for expr in expressions(stmt):
            for node in walk(expr):
                if isinstance(node, Load) and node.buffer in found:
                    index = simplify(offset(node.buffer, node.indices), scope)
                    access = _Access(node.indices, node.buffer.shape, index, False, here, scope)
                    found[node.buffer].append(access)
        match stmt:
            case Store(buffer=buffer, indices=indices) if buffer in found:
                index = simplify(offset(buffer, indices), scope)
                found[buffer].append(_Access(indices, buffer.shape, index, True, here, scope))
            case Seq(statements=statements):
                for position, child in enumerate(statements):
                    visit(child, (*path, (stmt, position)), scope)
            case For(var=var, extent=extent, body=body):
                visit(body, here, {**scope, var: loop_range(extent, scope)})
            case Let(var=var, value=value, body=body):
                inner = {**scope, var: bounds(value, scope)} if var.dtype.is_integer else scope
                visit(body, here, inner)
            case If(then=then, otherwise=otherwise):
                visit(then, here, scope)
                if otherwise is not None:
                    visit(otherwise, (*path, (stmt, 1)), scope)

    visit(function.body, (), symbol_ranges(function))
    return found


def _is_one_element(buffer: Buffer, accesses: list[_Access], symbols: frozenset[Var]) -> bool:
    """True where each thread sees a single element of its buffer: one index throughout, which only
    the thread's number decides (perhaps by quotients of symbols, which have no strides).
    """
    is_static = all(as_int(size) is not None for size in buffer.shape)
    if buffer.scope != "local" or not accesses or is_static:
        return False
    indices = accesses[0].indices
    threads = {f.var for f in accesses[0].loops() if f.kind == "thread_binding"}
    used = {v for index in indices for v in variables(index)}
    return used <= threads | symbols and all(access.indices == indices for access in accesses)


def _as_one_element(function: LoopFunction, buffer: Buffer) -> LoopFunction:
    new = replace(buffer, shape=(Const(1),))

    def expression(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=b) if b == buffer:
                return Load(new, (Const(0),))
        return None

    def statement(node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=b, value=value) if b == buffer:
                return Store(new, (Const(0),), value)
        return None

    body = map_expressions(function.body, lambda e: rewrite(e, expression))
    allocations = tuple(new if b == buffer else b for b in function.allocations)
    return replace(function, body=map_statements(body, statement), allocations=allocations)


def _ancestor_depth(accesses: list[_Access]) -> int:
    """How many steps of the paths all accesses share (the same statement and the same child of
    it).
    """
    first = accesses[0].path
    depth = len(first)
    for access in accesses[1:]:
        common = 0
        for (a, i), (b, j) in zip(first[:depth], access.path, strict=False):
            if a is not b or i != j:
                break
            common += 1
        depth = min(depth, common)
    return depth


def _is_shared_axis(buffer: Buffer, loop: For) -> bool:
    """True for a loop whose iterations see one another's part of the buffer while they run."""
    if buffer.scope == "local" or loop.kind != "thread_binding":
        return False
    return buffer.scope == "global" or (loop.thread or "").startswith("threadIdx")


def _is_private(buffer: Buffer, loop: For) -> bool:
    """True for a loop each iteration of which has the buffer to itself: a thread, a workgroup."""
    return (
        loop.kind == "thread_binding"
        and buffer.scope != "global"
        and not _is_shared_axis(buffer, loop)
    )


def _region(buffer: Buffer, accesses: list[_Access], symbols: frozenset[Var]) -> _Region | None:
    """The region to keep, or `None` to leave the buffer as it is."""
    if not accesses or not buffer.shape:
        return None
    depth = _ancestor_depth(accesses)
    loops = [loop for loop in accesses[0].loops(depth) if loop.kind != "vectorized"]
    outer = symbols | {loop.var for loop in loops if not _is_shared_axis(buffer, loop)}
    own = [loop for loop in loops if not _is_private(buffer, loop)]
    strides = _strides(buffer)
    while True:
        clash = _clashing(accesses, strides, outer)
        if not clash:
            clash = outer
            for nearest in (True, False):
                region = _box(buffer, accesses, strides, outer, nearest)
                if region is not None:
                    carried = _carrying(accesses, own, depth, outer, region)
                    if not carried:
                        return region
                    clash = carried if clash is outer else clash
        if not outer & clash:
            return None
        outer -= clash


def _strides(buffer: Buffer) -> tuple[Expr, ...]:
    result: list[Expr] = []
    stride: Expr = Const(1)
    for extent in reversed(buffer.shape):
        result.append(simplify(stride))
        stride = stride * extent
    return tuple(reversed(result))


def _outer_terms(
    index: Expr, outer: frozenset[Var], strides: tuple[Expr, ...] = ()
) -> dict[Term, int]:
    """The terms of an offset that only the outer loops (and the symbols) decide, without the
    multiples of `strides`: those are literal indices.
    """
    return {
        term: factor
        for term, factor in terms(index).items()
        if term
        and (used := _variables(term))
        and used <= outer
        and not any(_is_multiple(term, factor, stride) for stride in strides)
    }


def _is_multiple(term: Term, factor: int, stride: Expr) -> bool:
    rest = _divide(term, factor, stride)
    return rest is not None and not rest[0]


def _variables(term: Term) -> frozenset[Var]:
    return frozenset(v for factor in term for v in variables(factor))


def _clashing(
    accesses: list[_Access], strides: tuple[Expr, ...], outer: frozenset[Var]
) -> frozenset[Var]:
    """Outer variables that move some accesses and not others."""
    parts = [_outer_terms(access.offset, outer, strides) for access in accesses]
    clash: set[Var] = set()
    for part in parts[1:]:
        for term, _ in part.items() ^ parts[0].items():
            clash |= _variables(term)
    return frozenset(clash)


def _box(
    buffer: Buffer,
    accesses: list[_Access],
    strides: tuple[Expr, ...],
    outer: frozenset[Var],
    nearest: bool,
) -> _Region | None:
    """The box of all accesses, one interval a dimension; `None` where it is not finite or wraps
    around.
    """
    boxes = [_digits(access, strides, outer, nearest) for access in accesses]
    lows: list[int] = []
    extents: list[int] = []
    for dimension in range(len(strides)):
        low = min(box[dimension].low for box in boxes)
        high = max(box[dimension].high for box in boxes)
        if math.isinf(low) or math.isinf(high):
            return None
        lows.append(int(low))
        extents.append(int(high - low) + 1)
        full = as_int(buffer.shape[dimension])
        wraps = extents[-1] > (1 if full is None else full)
        moves = any(extent > 1 for extent in extents[:-1])
        if wraps and moves and not all(_is_by_index(a, strides, outer, nearest) for a in accesses):
            return None
    return _Region(strides, outer, nearest, tuple(lows), tuple(extents))


def _is_by_index(
    access: _Access, strides: tuple[Expr, ...], outer: frozenset[Var], nearest: bool
) -> bool:
    """True where the digits of the offset are the inner parts of the indices themselves, which lie
    within their dimensions and so cannot wrap.
    """
    digits = _split(access.offset, strides, outer, nearest)
    for digit, index, stride in zip(digits, access.indices, strides, strict=True):
        own = simplify(index, access.scope)
        taken = _outer_terms(own, outer)
        inner = {term: factor for term, factor in terms(own).items() if term not in taken}
        difference = simplify(from_terms(inner) - digit)
        if difference != Const(0) and (as_int(difference) is None or as_int(stride) is not None):
            return False  # (a symbolic size times a stride is a literal index of the next)
    return True


def _digits(
    access: _Access, strides: tuple[Expr, ...], outer: frozenset[Var], nearest: bool
) -> list[Interval]:
    """The interval of the inner part of an offset in each dimension."""
    parts = _split(access.offset, strides, outer, nearest)
    return [bounds(part, access.scope) for part in parts]


def _split(
    index: Expr, strides: tuple[Expr, ...], outer: frozenset[Var], nearest: bool
) -> list[Expr]:
    """The inner part of an offset, one expression a dimension: what is left of each term over the
    stride.
    """
    taken = _outer_terms(index, outer, strides)
    digits: list[dict[Term, int]] = [{} for _ in strides]
    for term, factor in terms(index).items():
        if term in taken:
            continue
        if not term:
            _split_constant(factor, strides, digits, nearest)
            continue
        for digit, stride in zip(digits, strides, strict=True):
            rest = _divide(term, factor, stride)
            if rest is not None:
                digit[rest[0]] = digit.get(rest[0], 0) + rest[1]
                break
    return [from_terms(digit) for digit in digits]


def _split_constant(
    value: int, strides: tuple[Expr, ...], digits: list[dict[Term, int]], nearest: bool
) -> None:
    """A constant offset in mixed radix. Digits are rounded to `nearest`, so that a small negative
    (a halo) stays small, or down, so that the last elements of a row stay in it.
    """
    for digit, stride in zip(digits, strides, strict=True):
        unit = as_int(stride)
        if unit is None:
            continue
        quotient = (value + (unit // 2 if nearest else 0)) // unit if unit > 1 else value
        digit[()] = quotient
        value -= quotient * unit


def _divide(term: Term, factor: int, stride: Expr) -> tuple[Term, int] | None:
    """`factor · term / stride`, where it divides; a sum (`6n - 18`) divides nothing."""
    if len(terms(stride)) != 1:
        return None
    ((bottom, unit),) = terms(stride).items()
    rest = list(term)
    for atom in bottom:
        if atom not in rest:
            return None
        rest.remove(atom)
    return (tuple(rest), factor // unit) if factor % unit == 0 else None


def _carrying(
    accesses: list[_Access], loops: list[For], depth: int, outer: frozenset[Var], region: _Region
) -> frozenset[Var]:
    """Collapsed variables under a loop whose later iterations may read what earlier ones wrote;
    empty where safe.
    """
    used = {v for t in _outer_terms(accesses[0].offset, outer) for v in _variables(t)}
    used &= {loop.var for loop in loops}
    if not used or _is_written_first(accesses, depth, region):
        return frozenset()
    carrier = False
    clash: set[Var] = set()
    for loop in loops:
        if loop.var not in used and loop.kind not in ("parallel", "thread_binding"):
            carrier = True
        elif loop.var in used and carrier:
            clash.add(loop.var)
    if not clash and not _is_injective(accesses[0], loops, region):
        clash |= used
    return frozenset(clash)


def _is_written_first(accesses: list[_Access], depth: int, region: _Region) -> bool:
    """True where each iteration fills the whole region before reading: its first statement only
    stores, all of it.
    """
    if any(len(access.path) <= depth for access in accesses):
        return False
    first = accesses[0].path[depth][1]
    if not isinstance(accesses[0].path[depth][0], Seq):
        return False
    opening = [access for access in accesses if access.path[depth][1] == first]
    if any(not access.is_store for access in opening):
        return False
    for dimension, (low, extent) in enumerate(zip(region.lows, region.extents, strict=True)):
        boxes = [
            _digits(a, region.strides, region.outer, region.nearest)[dimension] for a in opening
        ]
        if min(b.low for b in boxes) > low or max(b.high for b in boxes) < low + extent - 1:
            return False
    return True


def _is_injective(access: _Access, loops: list[For], region: _Region) -> bool:
    """True where different iterations of the outer loops use disjoint parts of the full buffer."""
    return _tells_by_indices(access, loops, region) or _tells_by_strides(access, loops, region)


def _tells_by_indices(access: _Access, loops: list[For], region: _Region) -> bool:
    """True where the outer variables can be read off the indices: each is one of them, or, fused
    from several loops, spelled by several (`f // (n * 4), f // 4 % n, f % 4`).
    """
    outer = {v for t in _outer_terms(access.offset, region.outer) for v in _variables(t)}
    return all(
        loop.var in access.indices or _is_spelled(loop.var, access)
        for loop in loops
        if loop.var in outer
    )


def _is_spelled(var: Var, access: _Access) -> bool:
    digits = [
        (index, size)
        for index, size in zip(access.indices, access.shape, strict=True)
        if var in _variables((index,))
    ]
    stride: Expr = Const(1)
    for position in reversed(range(len(digits))):
        index, size = digits[position]
        digit = var // stride if position == 0 else var // stride % size
        if simplify(digit, access.scope) != simplify(index, access.scope):
            return False
        stride = simplify(stride * size)
    return bool(digits)


def _tells_by_strides(access: _Access, loops: list[For], region: _Region) -> bool:
    """True where the outer loops step over what the loops inside them cover."""
    extents = {loop.var: as_int(loop.extent) for loop in loops}
    levels: list[list[tuple[int, int]]] = [[] for _ in region.strides]
    for term, factor in _outer_terms(access.offset, region.outer).items():
        if not _variables(term) & extents.keys():
            continue  # of symbols alone: the same for every iteration
        for level, stride in zip(levels, region.strides, strict=True):
            rest = _divide(term, factor, stride)
            if rest is None:
                continue
            (atom, *others) = rest[0]
            extent = extents.get(atom) if isinstance(atom, Var) and not others else None
            if extent is None:
                extent = -1
            level.append((rest[1], extent))
            break
    for level, covered in zip(levels, region.extents, strict=True):
        reach = covered
        for position, (step, extent) in enumerate(sorted(level)):
            if step < reach or (extent < 0 and position < len(level) - 1):
                return False
            reach = step * extent
    return True


def _rewrite(
    function: LoopFunction, buffer: Buffer, accesses: list[_Access], region: _Region
) -> LoopFunction:
    """Use the compact buffer in every access."""
    compact = replace(buffer, shape=(Const(math.prod(region.extents)),))
    offsets = {access.indices: _compact_offset(access.offset, region) for access in accesses}

    def load(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer == buffer:
            return Load(compact, (offsets[node.indices],))
        return None

    def store(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and stmt.buffer == buffer:
            return replace(stmt, buffer=compact, indices=(offsets[stmt.indices],))
        return None

    body = map_statements(map_expressions(function.body, lambda e: rewrite(e, load)), store)
    allocations = tuple(compact if b == buffer else b for b in function.allocations)
    return replace(function, body=body, allocations=allocations)


def _compact_offset(index: Expr, region: _Region) -> Expr:
    digits = _split(index, region.strides, region.outer, region.nearest)
    result: Expr = Const(0)
    for digit, low, extent in zip(digits, region.lows, region.extents, strict=True):
        result = result * extent + (digit - low)
    return result
