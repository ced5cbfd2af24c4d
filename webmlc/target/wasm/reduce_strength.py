"""Replace index arithmetic by pointers that the loops increment.

Needs: the lowered form. Guarantees: the index of every memory access is a literal, or a pointer
register plus a literal that is not negative. A pointer belongs to one buffer
(`StrengthReduced.pointers`), so the printer can hold it as a byte address. Accesses to a buffer
whose indices differ by a constant share a pointer. A loop whose variable is affine in the index
increments the pointer at the end of its body. Other indices are computed where their variables are
bound. Where several pointers are set in one place, a pointer may be set relative to another, if
their difference is the shorter sum.

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
from webmlc.target.scoped import Names, Scope, inside, symbol_ranges

_MAX_OUTER_INCREMENTS = 8
"""The pointers that a loop around other loops increments, at most. It computes other pointers in
its body: an addition per iteration costs less than a register that is always occupied. Chosen by
hand.
"""


@dataclass(frozen=True, slots=True)
class StrengthReduced:
    """A function over pointers, and the buffer that each pointer register points into."""

    function: LoopFunction
    pointers: dict[Buffer, Buffer]


Key = tuple[Buffer, Expr]
"""A buffer, and the index that a pointer points to."""
Needs = dict[Key, Buffer]
"""The pointers that must be set before a statement: `(buffer, index)` to the register."""


def reduce_strength(function: LoopFunction) -> StrengthReduced:
    """Replace the indices of `function` by pointers."""
    registers = frozenset(register_lanes(function))
    reducer = _Reducer(Names.of(function), registers)
    body, needs = reducer.statement(function.body, symbol_ranges(function))
    body = set_before(body, needs)
    pointers = {register: buffer for (buffer, _), register in reducer.created.items()}
    allocations = (*function.allocations, *pointers)
    return StrengthReduced(replace(function, body=body, allocations=allocations), pointers)


@dataclass(slots=True)
class _Reducer:
    """A walk over a function: the function's registers, and the pointers that the walk creates."""

    names: Names
    registers: frozenset[Buffer]
    created: Needs = field(default_factory=dict)

    def pointer(self, needs: Needs, buffer: Buffer, index: Expr) -> Expr:
        """The pointer to `index`, recorded in `needs`. Each index has a single register, because
        variables have unique names.
        """
        key = (buffer, index)
        register = self.created.get(key)
        if register is None:
            register = Buffer(self.names.fresh(f"{buffer.name}_p"), (), INDEX, "local")
            self.created[key] = register
        needs[key] = register
        return Load(register, ())

    def statement(self, stmt: Stmt, scope: Scope) -> tuple[Stmt, Needs]:
        """The statement over pointers, and the pointers it needs."""
        match stmt:
            case Store():
                return self.leaf(stmt, scope)
            case For():
                return self.loop(stmt, scope)
            case Let(var=var, value=value, body=body):
                needs: Needs = {}
                new = self.use(value, scope, needs)
                body, inner_needs = self.statement(body, inside(stmt, scope))
                local_needs, outer_needs = _partition(
                    inner_needs, lambda index: depends(index, var)
                )
                return bind(
                    replace(stmt, value=new, body=set_before(body, local_needs)), needs, outer_needs
                )
            case If(condition=condition, then=then, otherwise=otherwise):
                needs = {}
                new = self.use(condition, scope, needs)
                then, inner_needs = self.statement(then, scope)
                new_otherwise: Stmt | None = None
                if otherwise is not None:
                    new_otherwise, child_needs = self.statement(otherwise, scope)
                    inner_needs |= child_needs
                return bind(If(new, then, new_otherwise), needs, inner_needs)
            case Seq(statements=statements):
                inner_needs = {}
                parts: list[Stmt] = []
                for child in statements:
                    part, child_needs = self.statement(child, scope)
                    inner_needs |= child_needs
                    parts.append(part)
                return seq(*parts), inner_needs
        return stmt, {}

    def leaf(self, store: Store, scope: Scope) -> tuple[Stmt, Needs]:
        """A store over pointers, and the pointers it needs."""
        needs: Needs = {}
        value = self.use(store.value, scope, needs)
        indices = store.indices
        if store.buffer not in self.registers:
            indices = (self.address(store.buffer, indices[0], scope, needs),)
        return bind(Store(store.buffer, indices, value, store.stage), needs, {})

    def use(self, root: Expr, scope: Scope, needs: Needs) -> Expr:
        """`root` with the index of every load from memory replaced."""
        if self.registers.issuperset(buffers_read(root)):
            return root

        def rule(node: Expr) -> Expr | None:
            match node:
                case Load(buffer=buffer, indices=(index,)) if buffer not in self.registers:
                    return Load(buffer, (self.address(buffer, index, scope, needs),))
            return None

        return rewrite(root, rule)

    def address(self, buffer: Buffer, index: Expr, scope: Scope, needs: Needs) -> Expr:
        """The index as a pointer plus a literal. The pointer is recorded in `needs`."""
        if isinstance(index, Ramp):
            base = self.address(buffer, index.base, scope, needs)
            return Ramp(base, index.stride, index.width)
        moving, constant = constant_part(index)
        if moving == Const(0):
            return index
        if constant < 0 or bounds(moving, scope).low < 0:
            # Addresses are unsigned, so the pointer may not lie before its buffer.
            moving, constant = moving + constant, 0
        return self.pointer(needs, buffer, moving) + constant

    def loop(self, loop: For, scope: Scope) -> tuple[Stmt, Needs]:
        """A loop that increments the pointers whose index is affine in its variable."""
        body, inner_needs = self.statement(loop.body, inside(loop, scope))
        needs: Needs = {}
        extent = self.use(loop.extent, scope, needs)
        set_in_body: Needs = {}
        initial_stores: list[Stmt] = []
        increments: list[Stmt] = []
        is_innermost = not any(isinstance(s, For) for s in walk_statements(loop.body))
        outer_needs: Needs = {}
        for (buffer, index), register in inner_needs.items():
            if not depends(index, loop.var):
                outer_needs[buffer, index] = register
                continue
            split = split_linear(index, loop.var)
            is_incremented = loop.kind == "serial" and (
                is_innermost or len(increments) < _MAX_OUTER_INCREMENTS
            )
            if split is None or not is_incremented:
                set_in_body[buffer, index] = register
                continue
            first, stride = split  # this pointer may start before its buffer: addresses wrap
            initial_stores.append(
                Store(register, (), self.initial_value(buffer, first, outer_needs))
            )
            increments.append(Store(register, (), Load(register, ()) + stride))
        new: Stmt = replace(
            loop, extent=extent, body=seq(set_before(body, set_in_body), *increments)
        )
        return bind(seq(*initial_stores, new), needs, outer_needs)

    def initial_value(self, buffer: Buffer, index: Expr, outer_needs: Needs) -> Expr:
        """The first value of an incremented pointer: a literal, or a pointer of the
        enclosing loops plus a literal.
        """
        moving, constant = constant_part(index)
        if moving == Const(0):
            return index
        if constant < 0:
            moving, constant = index, 0
        return self.pointer(outer_needs, buffer, moving) + constant


def set_before(stmt: Stmt, needs: Needs) -> Stmt:
    """`stmt`, after stores that set the pointers it needs."""
    stores: list[Stmt] = []
    registers_set: Needs = {}
    for (buffer, index), register in needs.items():
        pointers_set = ((i, r) for (b, i), r in registers_set.items() if b == buffer)
        sums = [index, *(Load(r, ()) + canonical(index - i) for i, r in pointers_set)]
        stores.append(Store(register, (), min(sums, key=_length)))
        registers_set[buffer, index] = register
    return seq(*stores, stmt)


def _length(root: Expr) -> int:
    """The number of nodes of an expression."""
    return sum(1 for _ in walk(root))


def bind(stmt: Stmt, needs: Needs, outer_needs: Needs) -> tuple[Stmt, Needs]:
    """Set the pointers whose index depends on memory right here; return the others to the
    caller.
    """
    local_needs, other_needs = _partition(needs, lambda index: bool(buffers_read(index)))
    return set_before(stmt, local_needs), outer_needs | other_needs


def _partition(needs: Needs, test: Callable[[Expr], bool]) -> tuple[Needs, Needs]:
    """The needs whose index passes the test, and the other needs."""
    passing = {key: register for key, register in needs.items() if test(key[1])}
    return passing, {key: register for key, register in needs.items() if key not in passing}
