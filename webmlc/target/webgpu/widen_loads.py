"""Replace four scalar loads from one aligned vector by a single load.

In: a lowered function. Out: an equal function, with vector registers that say so. Rows of a left
operand are read element by element along the reduction. Where four unrolled steps read the
same `vec4`, one load and four components replace them:

    a0[...] = T.broadcast(A[m * 64 + k * 4], 4)              v = A[T.ramp(m * 64 + k * 4, 1, 4)]
    C_0 = C_0 + a0 * b0                                ->    C_0 = C_0 + T.broadcast(v[0], 4) * b0
    a1[...] = T.broadcast(A[m * 64 + k * 4 + 1], 4)
    C_0 = C_0 + a1 * b1                                      C_0 = C_0 + T.broadcast(v[1], 4) * b1

The steps may be stores, or values that several stores share (`let`). Vectors of workgroup memory
are loaded anew after a barrier or a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from webmlc.core.affine import terms
from webmlc.core.expr import Broadcast, Const, Expr, Ramp, as_int
from webmlc.core.rewrite import rewrite, rewriter
from webmlc.core.simplify import divides, simplify
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
    child_statements,
    expressions,
    loads_in,
    map_children,
    map_expressions,
    map_statements,
    seq,
    stores,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import LANES, register_lanes
from webmlc.target.scoped import Names, Scope, inside, symbol_ranges
from webmlc.target.webgpu.threads import bindings

Place = tuple[str, Expr]
"""The name of a buffer, and the number of a vector in it."""


@dataclass(frozen=True, slots=True)
class _Element:
    """The vector that a scalar load belongs to, and its component."""

    buffer: Buffer
    unit: Expr
    lane: int


def widen_loads(function: LoopFunction) -> LoopFunction:
    """Needs the lowered form. Guarantees the same results. Each new load is of an aligned vector of
    a buffer that the function only reads, or of workgroup memory. An element of that vector was
    read at the same place before. The registers whose components it reads have the storage of
    registers.
    """
    names_written = {s.buffer.name for s in stores(function.body)}
    params = {b for b in function.params if b.name not in names_written}
    shared = _shared_vectors(function)
    readable = frozenset(
        b.name for b in params | shared if b.dtype.bytes <= 4 and divides(VECTOR_LANES, b.shape[0])
    )
    single = _scalars_in_lanes(function)
    widener = _Widener(Names.of(function), readable, frozenset(b.name for b in shared), single)
    body = widener.statement(function.body, symbol_ranges(function))
    allocations = (*function.allocations, *widener.created)
    widened = replace(function, body=body, allocations=allocations)
    return _inline(widened, widener)


def _shared_vectors(function: LoopFunction) -> set[Buffer]:
    """The buffers of workgroup memory whose stores are all of vectors."""
    shared = {b for b in function.allocations if b.scope == "shared"}
    written = (store for store in stores(function.body) if store.buffer in shared)
    return shared - {store.buffer for store in written if store.indices[0].lanes == 1}


def _scalars_in_lanes(function: LoopFunction) -> frozenset[str]:
    """The registers that are stored to once, which may hold a component in all lanes."""
    counts = Counter(store.buffer.name for store in stores(function.body))
    return frozenset(b.name for b in register_lanes(function) if counts[b.name] == 1)


@dataclass(slots=True)
class _Widener:
    """One walk over a function: its new registers, components, and places of loads."""

    names: Names
    readable: frozenset[str]
    shared: frozenset[str]
    single: frozenset[str]
    created: list[Buffer] = field(default_factory=list)
    components: dict[str, Expr] = field(default_factory=dict)
    elements_of: dict[Load, _Element | None] = field(default_factory=dict)

    def statement(self, root: Stmt, scope: Scope) -> Stmt:
        """Widen the loads of a statement. The loads of a loop's body, or of a branch, are joined
        only with each other.
        """
        if isinstance(root, For | If):
            inner = inside(root, scope)
            return map_children(root, lambda child: self.statement(child, inner))
        lanes: dict[Place, set[int]] = {}
        self.count_lanes(root, scope, lanes)
        places = frozenset(place for place, lanes_read in lanes.items() if len(lanes_read) > 1)
        if not places:
            return self.inner_statements(root, scope)
        return self.straight_line(root, scope, places, {})

    def inner_statements(self, root: Stmt, scope: Scope) -> Stmt:
        """Widen the loads in the loops and branches of a statement only."""
        if isinstance(root, For | If):
            return self.statement(root, scope)
        inner = inside(root, scope)
        return map_children(root, lambda child: self.inner_statements(child, inner))

    def count_lanes(self, root: Stmt, scope: Scope, lanes: dict[Place, set[int]]) -> None:
        """Note which elements of each vector are read on the way through a statement, except in
        loops and branches.
        """
        if isinstance(root, Seq | Let):
            for child in child_statements(root):
                self.count_lanes(child, inside(root, scope), lanes)
        for element in self.elements(root, scope):
            lanes.setdefault((element.buffer.name, element.unit), set()).add(element.lane)

    def straight_line(
        self, root: Stmt, scope: Scope, places: frozenset[Place], registers: dict[Place, Buffer]
    ) -> Stmt:
        """Load each vector of `places` before the first statement that reads an element of it. All
        statements read components of the vector.
        """
        if isinstance(root, Seq):
            return seq(*(self.straight_line(s, scope, places, registers) for s in root.statements))
        if isinstance(root, For | If):
            self.forget(registers, self.shared)
            return self.statement(root, scope)
        if not isinstance(root, Let | Store):
            self.forget(registers, self.shared)
            return root
        first: list[Stmt] = []
        for element in self.elements(root, scope):
            place = (element.buffer.name, element.unit)
            if place in places and place not in registers:
                registers[place] = self.register(element)
                base = simplify(element.unit * VECTOR_LANES, scope)
                load = Load(element.buffer, (Ramp(base, Const(1), VECTOR_LANES),))
                first.append(Store(registers[place], (LANES,), load))
        if isinstance(root, Store):
            store = self.store(root, registers, scope)
            self.forget(registers, self.shared & {root.buffer.name})
            return seq(*first, store)
        value = self.components_of(root.value, registers, scope)
        if any(bindings(root.body)):
            registers = dict(registers)  # a nest of threads after this one cannot read its vectors
        body = self.straight_line(root.body, inside(root, scope), places, registers)
        return seq(*first, replace(root, value=value, body=body))

    def forget(self, registers: dict[Place, Buffer], names: frozenset[str]) -> None:
        """Let later reads of some buffers load their vectors again, which may have changed."""
        for place in [place for place in registers if place[0] in names]:
            del registers[place]

    def register(self, element: _Element) -> Buffer:
        """Create the register for the vector of an element."""
        name = self.names.fresh(f"{element.buffer.name}_w")
        buffer = Buffer(name, (Const(VECTOR_LANES),), element.buffer.dtype, "local", "register")
        self.created.append(buffer)
        return buffer

    def elements(self, stmt: Stmt, scope: Scope) -> list[_Element]:
        """The elements that a store reads, or the value of a let, in the order of their use."""
        elements: list[_Element] = []
        if not isinstance(stmt, Let | Store):
            return elements
        for load in (load for expr in reversed(expressions(stmt)) for load in loads_in(expr)):
            element = self.element(load, scope)
            if element is not None:
                elements.append(element)
        return elements

    def element(self, load: Load, scope: Scope) -> _Element | None:
        """The place of a scalar load whose component is known at build time, else None. A variable
        has one range in a function, so the scope does not matter to a load that was seen before.
        """
        if load.buffer.name not in self.readable or load.indices[0].lanes > 1:
            return None
        if load not in self.elements_of:
            (index,) = load.indices
            lane = _lane(index, scope)
            unit = None if lane is None else simplify(index // VECTOR_LANES, scope)
            element = None if lane is None or unit is None else _Element(load.buffer, unit, lane)
            self.elements_of[load] = element
        return self.elements_of[load]

    def components_of(self, value: Expr, registers: Mapping[Place, Buffer], scope: Scope) -> Expr:
        """A value that reads components of `registers` instead of memory."""

        def rule(node: Expr) -> Expr | None:
            return self.component(node, registers, scope) if isinstance(node, Load) else None

        has_components = any(rule(load) is not None for load in loads_in(value))
        return rewrite(value, rule) if has_components else value

    def component(self, load: Load, registers: Mapping[Place, Buffer], scope: Scope) -> Load | None:
        """The component of one of `registers` that a load reads; None for other loads."""
        element = self.element(load, scope)
        if element is None:
            return None
        register = registers.get((element.buffer.name, element.unit))
        return None if register is None else Load(register, (Const(element.lane),))

    def store(self, stmt: Store, registers: Mapping[Place, Buffer], scope: Scope) -> Stmt:
        """A store that reads components of `registers` instead of memory."""
        value = self.components_of(stmt.value, registers, scope)
        match value:
            case Broadcast(value=Load(buffer=buffer)) if buffer in self.created:
                if stmt.buffer.name in self.single:
                    self.components[stmt.buffer.name] = value
        indices = tuple(self.components_of(i, registers, scope) for i in stmt.indices)
        return Store(stmt.buffer, indices, value, stmt.stage)


def _lane(index: Expr, scope: Scope) -> int | None:
    """The component that an index reads of its vector; None if it is known only at run time."""
    parts = terms(index)
    if all(factor % VECTOR_LANES == 0 for term, factor in parts.items() if term):
        return parts.get((), 0) % VECTOR_LANES
    return as_int(simplify(index % VECTOR_LANES, scope))


def _inline(function: LoopFunction, widener: _Widener) -> LoopFunction:
    """Use components directly, in place of registers that hold a component in all lanes."""
    values = widener.components
    if not values:
        return function

    def load(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=buffer) if buffer.name in values:
                return values[buffer.name]
        return None

    def drop(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(buffer=buffer) if buffer.name in values:
                return Seq(())
        return None

    body = map_statements(map_expressions(function.body, rewriter(load)), drop)
    allocations = tuple(b for b in function.allocations if b.name not in values)
    return replace(function, body=body, allocations=allocations)
