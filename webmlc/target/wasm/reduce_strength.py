"""Index arithmetic becomes pointers that the loops bump.

Needs: the lowered form. Guarantees: the index of every memory access is a literal, or a pointer
register plus a literal that is not negative. A pointer belongs to one buffer
(`StrengthReduced.pointers`), so the printer can keep it as a byte address. Accesses to one buffer
whose indices differ by a constant share a pointer; an affine loop variable bumps it at the end of
the body; what is not affine is computed where its variables are bound. Of pointers that are set in
one place, one is set from another where their difference is the shorter sum.

before                                             after
    for i in range(9):                                 p_1[()] = 0
        for k in range(64):                            for i in range(9):
            ... A[i * 384 + k] ...                         p[()] = p_1[()]
            ... A[i * 384 + k + 64] ...                    for k in range(64):
                                                               ... A[p[()]] ...
                                                               ... A[p[()] + 64] ...
                                                               p[()] = p[()] + 1
                                                           p_1[()] = p_1[()] + 384
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from webmlc.core.affine import canonical, constant_part, depends, split_linear
from webmlc.core.bounds import bounds
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Const, Expr, Ramp
from webmlc.core.rewrite import rewrite, walk
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
    seq,
    walk_statements,
)
from webmlc.target.common_subexpressions import buffers_read
from webmlc.target.registers import register_lanes
from webmlc.target.scoped import Names, Scope, loop_range, symbol_ranges

_MOST_BUMPED_OUTSIDE = 8
"""Pointers that a loop around loops bumps; past that, registers are worth more than an addition in
each iteration.
"""


@dataclass(frozen=True, slots=True)
class StrengthReduced:
    """The function over pointers, and the buffer each pointer register points into."""

    function: LoopFunction
    pointers: dict[Buffer, Buffer]


Key = tuple[Buffer, Expr]
Needs = dict[Key, Buffer]
"""Pointers that a statement wants set before it: `(buffer, index)` to the register."""


def reduce_strength(function: LoopFunction) -> StrengthReduced:
    """Replace the indices of `function` by pointers."""
    registers = frozenset(register_lanes(function))
    state = _State(Names.of(function), registers)
    body, needs = state.statement(function.body, symbol_ranges(function))
    body = set_before(body, needs)
    pointers = {register: buffer for (buffer, _), register in state.made.items()}
    allocations = (*function.allocations, *pointers)
    return StrengthReduced(replace(function, body=body, allocations=allocations), pointers)


@dataclass(slots=True)
class _State:
    names: Names
    registers: frozenset[Buffer]
    made: Needs = field(default_factory=dict)

    def pointer(self, needs: Needs, buffer: Buffer, index: Expr) -> Expr:
        """The pointer to `index`, remembered in `needs`. One register an index: variables have one
        meaning each.
        """
        key = (buffer, index)
        register = self.made.get(key)
        if register is None:
            register = Buffer(self.names.fresh(f"{buffer.name}_p"), (), INDEX, "local")
            self.made[key] = register
        needs[key] = register
        return Load(register, ())

    def statement(self, stmt: Stmt, scope: Scope) -> tuple[Stmt, Needs]:
        """The statement over pointers and the pointers it needs."""
        match stmt:
            case Store():
                return self.leaf(stmt, scope)
            case For():
                return self.loop(stmt, scope)
            case Let(var=var, value=value, body=body):
                needs: Needs = {}
                new = self.use(value, scope, needs)
                inner = {**scope, var: bounds(value, scope)} if var.dtype.is_integer else scope
                body, below = self.statement(body, inner)
                here, above = _partition(below, lambda index: depends(index, var))
                return bind(replace(stmt, value=new, body=set_before(body, here)), needs, above)
            case If(condition=condition, then=then, otherwise=otherwise):
                needs = {}
                new = self.use(condition, scope, needs)
                then, below = self.statement(then, scope)
                other: Stmt | None = None
                if otherwise is not None:
                    other, more = self.statement(otherwise, scope)
                    below |= more
                return bind(If(new, then, other), needs, below)
            case Seq(statements=statements):
                below = {}
                parts: list[Stmt] = []
                for child in statements:
                    part, more = self.statement(child, scope)
                    below |= more
                    parts.append(part)
                return seq(*parts), below
        return stmt, {}

    def leaf(self, store: Store, scope: Scope) -> tuple[Stmt, Needs]:
        needs: Needs = {}
        value = self.use(store.value, scope, needs)
        indices = store.indices
        if store.buffer not in self.registers:
            indices = (self.address(store.buffer, indices[0], scope, needs),)
        return bind(Store(store.buffer, indices, value), needs, {})

    def use(self, root: Expr, scope: Scope, needs: Needs) -> Expr:
        """`root` with the index of every memory load replaced."""

        def rule(node: Expr) -> Expr | None:
            match node:
                case Load(buffer=buffer, indices=(index,)) if buffer not in self.registers:
                    return Load(buffer, (self.address(buffer, index, scope, needs),))
            return None

        return rewrite(root, rule)

    def address(self, buffer: Buffer, index: Expr, scope: Scope, needs: Needs) -> Expr:
        """The index as pointer plus literal, remembered in `needs`."""
        if isinstance(index, Ramp):
            base = self.address(buffer, index.base, scope, needs)
            return Ramp(base, index.stride, index.width)
        moving, constant = constant_part(index)
        if moving == Const(0):
            return index
        if constant < 0 or bounds(moving, scope).low < 0:
            # The pointer itself must not lie before the buffer: addresses are unsigned.
            moving, constant = moving + constant, 0
        return self.pointer(needs, buffer, moving) + constant

    def loop(self, loop: For, scope: Scope) -> tuple[Stmt, Needs]:
        inner = {**scope, loop.var: loop_range(loop.extent, scope)}
        body, below = self.statement(loop.body, inner)
        needs: Needs = {}
        extent = self.use(loop.extent, scope, needs)
        bound: Needs = {}
        start: list[Stmt] = []
        bumps: list[Stmt] = []
        innermost = not any(isinstance(s, For) for s in walk_statements(loop.body))
        above: Needs = {}
        for (buffer, index), register in below.items():
            if not depends(index, loop.var):
                above[buffer, index] = register
                continue
            split = split_linear(index, loop.var)
            bumped = loop.kind == "serial" and (innermost or len(bumps) < _MOST_BUMPED_OUTSIDE)
            if split is None or not bumped:
                bound[buffer, index] = register
                continue
            first, stride = split  # it may start before its buffer: addresses wrap
            start.append(Store(register, (), self.first(buffer, first, above)))
            bumps.append(Store(register, (), Load(register, ()) + stride))
        new: Stmt = replace(loop, extent=extent, body=seq(set_before(body, bound), *bumps))
        return bind(seq(*start, new), needs, above)

    def first(self, buffer: Buffer, index: Expr, above: Needs) -> Expr:
        """Where a bumped pointer starts: a pointer of the loops around, or a literal."""
        moving, constant = constant_part(index)
        if moving == Const(0):
            return index
        if constant < 0:
            moving, constant = index, 0
        return self.pointer(above, buffer, moving) + constant


def set_before(stmt: Stmt, needs: Needs) -> Stmt:
    """`stmt` after its pointers are set."""
    stores: list[Stmt] = []
    done: Needs = {}
    for (buffer, index), register in needs.items():
        others = ((i, r) for (b, i), r in done.items() if b == buffer)
        sums = [index, *(Load(r, ()) + canonical(index - i) for i, r in others)]
        stores.append(Store(register, (), min(sums, key=_length)))
        done[buffer, index] = register
    return seq(*stores, stmt)


def _length(root: Expr) -> int:
    return sum(1 for _ in walk(root))


def bind(stmt: Stmt, needs: Needs, above: Needs) -> tuple[Stmt, Needs]:
    """Set the pointers that depend on what memory holds right here; pass the others up."""
    here, more = _partition(needs, lambda index: bool(buffers_read(index)))
    return set_before(stmt, here), above | more


def _partition(needs: Needs, test: Callable[[Expr], bool]) -> tuple[Needs, Needs]:
    """The needs whose index passes, and the others."""
    here = {key: register for key, register in needs.items() if test(key[1])}
    return here, {key: register for key, register in needs.items() if key not in here}
