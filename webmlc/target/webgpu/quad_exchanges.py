"""Find the products of matrices whose terms each thread of a quad adds in its own order.

In: a kernel as it is printed, and its loads that quads run at once. Out: the loads of vectors and
columns whose elements each thread holds in its own order, and how a thread loads or swaps them.

A sum of four products may have its terms in any order, so component i of a vector may be the
element `lane ^ i`: a different element in each thread of a quad. Threads that need the same
elements then load some elements each, and swap. A swap is faster than a broadcast of one thread's
element: SwiftShader takes 0.5 instead of 2.9 ns, and 20 ns for a load.

    let a = A[p];                          let a = quad_swaps_f32(A[p][lane]);
    let b0 = B[q];                         let b0 = B[q + lane * 2];
    let b1 = B[q + 2];                     let b1 = B[q + (lane ^ 1) * 2];
    let b2 = B[q + 4];               ->    let b2 = B[q + (lane ^ 2) * 2];
    let b3 = B[q + 6];                     let b3 = B[q + (lane ^ 3) * 2];
    r += mat4x4f(b0, b1, b2, b3) * a;      r += mat4x4f(b0, b1, b2, b3) * a;

Here all threads have the same vector, and columns of their own. In a square of two by two threads,
two threads have the same vector, and two have the same columns: each thread loads half of both.

So a vector must be used in such products alone. A column must be used for one component alone, and
the places of the columns must have the same distance from each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from webmlc.core.expr import Const, Expr, Ramp, as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Buffer, Load, LoopFunction, Seq, Stmt, Store, own_loads, walk_statements
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import added_value
from webmlc.target.webgpu.choose_storage import vector_index
from webmlc.target.webgpu.join_updates import MatrixProduct, matrix_product
from webmlc.target.webgpu.quad_loads import BITS, LANE, LANE_LINE

OFFSET = "quad_offset"
"""The name of the distance between two places, before its number."""
SWAPS = {1: "quadSwapX", 2: "quadSwapY", 3: "quadSwapDiagonal"}
"""The built-in function that gives a thread the value of the thread `lane ^ i`, by i."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place from which a thread loads the column for a component. `first` is the place for
    element 0, and each further element is `step` vectors further.
    """

    first: Expr
    step: int
    component: int


@dataclass(frozen=True, slots=True)
class Swap:
    """The column for a component from another thread: a built-in `function` returns the value of
    the other thread's `register`.
    """

    function: str
    register: Buffer


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The loads of vectors, each with a mask of the threads between which it differs, and the loads
    of columns, each with its source.
    """

    vectors: Mapping[Load, int] = field(default_factory=dict)
    columns: Mapping[Load, Place | Swap] = field(default_factory=dict)


def loaded_components(mask: int) -> tuple[int, ...]:
    """The components that a thread loads itself. `mask` has the bits of threads' numbers on which
    the vector depends. Component i comes from component `i & mask` of another thread.

    >>> [loaded_components(mask) for mask in range(4)]
    [(0,), (0, 1), (0, 2), (0, 1, 2, 3)]
    """
    return tuple(i for i in range(VECTOR_LANES) if i & mask == i)


def lane_lines(text: str, offsets: Mapping[tuple[int, int], str]) -> list[str]:
    """The statements that number the threads of each quad, and the elements that a thread has as
    components, if the text uses them. Then the `offsets` of places, by component and step.

    >>> for line in lane_lines("A[p][quad_lane2]", {(3, 2): "quad_offset"}):
    ...     print(line)
    let quad_lane = thread.x & 3u;
    let quad_lane2 = quad_lane ^ 2u;
    let quad_lane3 = quad_lane ^ 3u;
    let quad_offset = i32(quad_lane3) * 2;
    """
    lines = [f"let {name} = i32({lane_of(i)}) * {step};" for (i, step), name in offsets.items()]
    used = [i for i in SWAPS if any(lane_of(i) in line for line in (text, *lines))]
    return [LANE_LINE, *(f"let {lane_of(i)} = {LANE} ^ {i}u;" for i in used), *lines]


def lane_of(component: int) -> str:
    """The number of the element that a thread has as a component."""
    return f"{LANE}{component or ''}"


def exchanges(function: LoopFunction, quads: Mapping[Load, int], inputs: Set[str]) -> Exchanges:
    """The exchanges of a kernel. `quads` are the loads that quads run at once, each with a mask of
    the bits of threads' numbers on which it depends. `inputs` names the buffers of vectors to which
    the kernel does not store.
    """
    if not quads:
        return Exchanges()
    statements = list(walk_statements(function.body))
    updates = [(stmt, _product(stmt)) for stmt in statements]
    products = [product for _, product in updates if product is not None]
    apart = {load.buffer for stmt, product in updates if not product for load in own_loads(stmt)}
    values = {
        register: load for register, load in _values(statements, inputs).items() if load in quads
    }
    candidates = values.keys() - apart
    order = _order(statements)
    while True:
        columns: dict[Buffer, Place | Swap] = {}
        refused: set[Buffer] = set()
        for product in products:
            registers = {product.vector, *product.columns}
            sources = None
            if candidates >= registers:
                sources = _columns(product, values, quads, order)
            if sources is None or any(
                columns.setdefault(register, source) != source
                for register, source in sources.items()
            ):
                refused |= registers
        if not refused & candidates:
            break
        candidates -= refused
    vectors = {product.vector for product in products} & candidates
    return Exchanges(
        {values[b]: quads[values[b]] for b in vectors},
        {values[b]: source for b, source in columns.items()},
    )


def _values(statements: list[Stmt], inputs: Set[str]) -> dict[Buffer, Load]:
    """The registers that are loaded once, from an input, by a load that occurs only once."""
    all_stores = [stmt for stmt in statements if isinstance(stmt, Store)]
    counts = Counter(store.buffer for store in all_stores)
    loads = Counter(load for stmt in statements for load in own_loads(stmt))
    return {
        store.buffer: store.value
        for store in all_stores
        if isinstance(store.value, Load)
        and store.value.buffer.name in inputs
        and counts[store.buffer] == 1
        and loads[store.value] == 1
    }


def _order(statements: list[Stmt]) -> dict[Buffer, tuple[int, int]]:
    """The sequence in which each register is stored to, by number, and its place there."""
    return {
        stmt.buffer: (number, place)
        for number, sequence in enumerate(statements)
        if isinstance(sequence, Seq)
        for place, stmt in enumerate(sequence.statements)
        if isinstance(stmt, Store)
    }


def _product(stmt: Stmt) -> MatrixProduct | None:
    """The product that an update adds to a register."""
    addend = added_value(stmt) if isinstance(stmt, Store) else None
    return None if addend is None else matrix_product(addend)


def _columns(
    product: MatrixProduct,
    values: Mapping[Buffer, Load],
    quads: Mapping[Load, int],
    order: Mapping[Buffer, tuple[int, int]],
) -> dict[Buffer, Place | Swap] | None:
    """The places and swaps for the columns of a product. None if swaps gain nothing, or if the
    columns do not have the same distance from each other.
    """
    places = _places(product, values)
    masks = {quads[values[column]] for column in product.columns}
    if places is None or len(masks) > 1 or len(set(product.columns)) < VECTOR_LANES:
        return None
    mask = masks.pop()
    if mask & quads[values[product.vector]] == BITS:
        return None
    columns: dict[Buffer, Place | Swap] = {}
    for component, (column, place) in enumerate(zip(product.columns, places, strict=True)):
        columns[column] = place
        if distance := component & ~mask:
            register = product.columns[component & mask]
            (sequence, position), (other, later) = order[register], order[column]
            if sequence != other or position > later:
                return None
            columns[column] = Swap(SWAPS[distance], register)
    return columns


def _places(product: MatrixProduct, values: Mapping[Buffer, Load]) -> list[Place] | None:
    """The places of the columns of a matrix; None unless they have the same distance."""
    units: list[Expr] = []
    for column in product.columns:
        match values[column].indices:
            case (Ramp(base=base, stride=Const(value=1)),):
                units.append(vector_index(base))
            case _:
                return None
    step = as_int(simplify(units[1] - units[0]))
    if step is None:
        return None
    firsts = [simplify(unit - step * i) for i, unit in enumerate(units)]
    if any(as_int(simplify(first - firsts[0])) != 0 for first in firsts):
        return None
    return [Place(first, step, i) for i, first in enumerate(firsts)]
