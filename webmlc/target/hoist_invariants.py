"""Move values that an innermost loop does not change in front of it.

Needs: the lowered form after `common_subexpressions`. Guarantees: the loop-invariant values of an
innermost loop are bound before it: operations, broadcasts (of literals, too), and, if the loop runs
at least once, loads from buffers that it does not store to. Values move out of the enclosing loops
as well while those loops contain nothing else. Vectors move only while registers remain
(`vector_registers`). Index expressions and conditional statements stay in place.

before                                             after
    for i in range(64):                                s[r] = T.broadcast(scale[0], 4)
        Y[...] = X[...] * T.broadcast(scale[0], 4)     for i in range(64):
                                                           Y[...] = X[...] * s[r]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Broadcast, Call, Const, Expr, Ramp, Var, as_int
from webmlc.core.rewrite import postorder, variables, walk
from webmlc.loops.ir import (
    Binder,
    Buffer,
    For,
    Load,
    LoopFunction,
    Stmt,
    Store,
    map_statements,
    stores,
    walk_statements,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.common_subexpressions import buffers_read, operands
from webmlc.target.registers import (
    LANES,
    read_register,
    register_lanes,
    register_pressure,
    registers_stored_once,
)
from webmlc.target.scoped import Item, Names, join_lets, split_lets

_EVALUATION_REGISTERS = 2
"""The vector registers reserved for evaluating one expression. Hoisted values get the remaining
registers. Chosen by hand.
"""

_MAY_TRAP = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})
"""The operators that may trap, and so must not run before a loop that may not run."""


def hoist_invariants(function: LoopFunction, vector_registers: int = 15) -> LoopFunction:
    """Hoist invariant values out of every innermost loop of `function`."""
    lanes = register_lanes(function)
    hoister = _Hoister(
        Names.of(function),
        lanes,
        registers_stored_once(function, lanes.keys()),
        vector_registers,
        _registers_of_threads(function),
    )

    def rule(stmt: Stmt) -> Stmt | None:
        return join_lets(hoister.loop(stmt)) if isinstance(stmt, For) else None

    body = map_statements(function.body, rule)
    return replace(function, body=body, allocations=(*function.allocations, *hoister.created))


def _registers_of_threads(function: LoopFunction) -> frozenset[Buffer]:
    """The local buffers whose values differ between the threads of a workgroup."""
    return frozenset(
        store.buffer
        for loop in walk_statements(function.body)
        if isinstance(loop, For) and (loop.thread or "").startswith("threadIdx")
        for store in stores(loop.body)
        if store.buffer.scope == "local"
    )


@dataclass(slots=True)
class _Hoister:
    """A walk over a function: the function's registers by kind, and the registers that the walk
    creates."""

    names: Names
    registers: dict[Buffer, int]
    stored_once: frozenset[Buffer]
    vector_registers: int
    of_threads: frozenset[Buffer]
    created: list[Buffer] = field(default_factory=list)

    def loop(self, loop: For) -> list[Item]:
        """The items that were hoisted, then the loop."""
        items = split_lets(loop.body)
        inner_loops = [item for item in items if isinstance(item, For)]
        is_innermost = not any(isinstance(s, For) for s in walk_statements(loop.body))
        if not is_innermost and (
            len(inner_loops) != 1 or not all(map(self.is_binding, items[:-1]))
        ):
            return [loop]
        variant = _Variant.of(loop)
        if loop.kind == "thread_binding":
            variant.buffers |= self.of_threads
        hoisted: list[Item] = []
        remaining: list[Item] = []
        for item in items:
            if self.is_binding(item) and variant.allows(_value(item)):
                hoisted.append(item)
                if isinstance(item, tuple):
                    variant.names.discard(item[0])
                elif isinstance(item, Store):
                    variant.buffers.discard(item.buffer)
            else:
                remaining.append(item)
        if is_innermost:
            remaining = self.values(remaining, variant, hoisted)
        return [*hoisted, replace(loop, body=join_lets(remaining))] if hoisted else [loop]

    def is_binding(self, item: Item) -> bool:
        """True for a let, and for the only store to a register."""
        return isinstance(item, tuple) or (
            isinstance(item, Store) and item.buffer in self.stored_once
        )

    def values(self, items: list[Item], variant: _Variant, hoisted: list[Item]) -> list[Item]:
        """Hoist invariant values out of expressions, most used first, while registers remain."""
        counts: Counter[Expr] = Counter()
        for item in items:
            if isinstance(item, Store | tuple):
                self.count(_value(item), variant, counts)
        free_registers = (
            self.vector_registers - _EVALUATION_REGISTERS - self.pressure(items, hoisted)
        )
        names: dict[Expr, Expr] = {}
        for value, _ in sorted(counts.items(), key=lambda pair: _is_literal(pair[0])):
            if value.lanes > 1:
                free_registers -= 1
                if free_registers < 0:
                    continue
            names[value] = self.bind(value, hoisted)
        if not names:
            return items
        return [_replace_values(item, names) for item in items]

    def pressure(self, items: list[Item], hoisted: list[Item]) -> int:
        """The vector registers that a loop of `items` after `hoisted` occupies at once."""
        vectors = {b for b, lanes in self.registers.items() if lanes == VECTOR_LANES}
        body, before = (
            [item for item in part if not isinstance(item, tuple)] for part in (items, hoisted)
        )
        return register_pressure(body, vectors, self.stored_once, before)

    def count(self, root: Expr, variant: _Variant, counts: Counter[Expr]) -> None:
        """Count the largest invariant values under `root`."""
        stack = [root]
        while stack:
            node = stack.pop()
            if self.is_candidate(node) and variant.allows(node):
                counts[node] += 1
                continue
            stack.extend(operands(node))

    def is_candidate(self, node: Expr) -> bool:
        """True for a value that costs more than a register read."""
        match node:
            case Const() | Var() | Ramp() | Broadcast(value=Const(value=0)):
                return False
            case Load(buffer=buffer) if buffer in self.registers:
                return False
            case Call(args=args) if node.dtype == INDEX and node.lanes == 1:
                return any(buffers_read(a) for a in args)
        return node.lanes in (1, VECTOR_LANES) and node.dtype is not DType.bool

    def bind(self, value: Expr, hoisted: list[Item]) -> Expr:
        """Bind a value before the loop, and return the read of it."""
        if value.lanes == 1:
            var = Var(self.names.fresh("h"), value.dtype)
            hoisted.append((var, value))
            return var
        register = Buffer(self.names.fresh("h"), (Const(VECTOR_LANES),), value.dtype, "local")
        self.created.append(register)
        self.registers[register] = VECTOR_LANES
        self.stored_once |= {register}
        hoisted.append(Store(register, (LANES,), value))
        return read_register(register)


@dataclass(slots=True)
class _Variant:
    """The variables and buffers that change between the iterations of a loop, and whether loads may
    move before the loop."""

    names: set[Var]
    buffers: set[Buffer]
    may_load: bool

    @classmethod
    def of(cls, loop: For) -> _Variant:
        """The changes by the iterations of `loop`. Loads may move if it runs at least once."""
        bound = {s.var for s in walk_statements(loop.body) if isinstance(s, Binder)}
        buffers = {s.buffer for s in stores(loop.body)}
        return cls(bound | {loop.var}, buffers, (as_int(loop.extent) or 0) >= 1)

    def allows(self, value: Expr) -> bool:
        """True where `value` is the same in every iteration and may be computed before the loop."""
        buffers = buffers_read(value)
        if any(b in self.buffers for b in buffers) or (
            not self.may_load and any(b.scope != "local" for b in buffers)
        ):
            return False
        if not self.names.isdisjoint(variables(value)):
            return False
        return self.may_load or not any(
            isinstance(n, Call) and n.op in _MAY_TRAP for n in walk(value)
        )


def _value(item: Item) -> Expr:
    if isinstance(item, tuple):
        return item[1]
    assert isinstance(item, Store)
    return item.value


def _is_literal(value: Expr) -> bool:
    return isinstance(value, Broadcast) and isinstance(value.value, Const)


def _replace_values(item: Item, names: dict[Expr, Expr]) -> Item:
    match item:
        case (Var() as var, Expr() as value):
            return var, _use(value, names)
        case Store(value=value):
            return replace(item, value=_use(value, names))
    return item


def _use(root: Expr, names: dict[Expr, Expr]) -> Expr:
    """Replace whole values by their names, from the root down. Indices stay."""
    results: dict[Expr, Expr] = dict(names)
    for node in postorder(root, operands, results):
        node_operands = operands(node)
        children = tuple([results[c] if c in node_operands else c for c in node.children])
        results[node] = node if children == node.children else node.rebuild(children)
    return results[root]
