"""Find the loads that four threads beside each other repeat, so that quads share them.

In: a kernel as it is printed. Out: its loads of vectors that all threads of a quad run at once, the
threads that need the same vector, and the loads whose elements each thread holds in its own order.
A quad is four threads with consecutive numbers in the
workgroup. If all four threads load the same four elements, each thread loads one element, and all
get the vector:

    let r = A[p];    ->    let r = quad_vector_f32(A[p][quad_lane]);

All threads of a quad must run the statement, and no store may change the elements. A thread of a
software adapter loads each component on its own, which takes as long as many multiply-adds
(`benchmarks/gpu_results.md`).

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
two threads have the same vector, and two have the same columns: each thread loads half of both. So
a vector must be used in such products alone. A column must be used for one component alone, and the
places of the columns must have the same distance from each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

from webmlc.core.expr import Call, Const, Expr, Ramp, Var, as_int
from webmlc.core.machine import QUAD, WORD_BYTES
from webmlc.core.rewrite import rewrite, substitute, variables
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
    child_statements,
    own_loads,
    walk_statements,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.insert_barriers import reads_memory
from webmlc.target.registers import added_value
from webmlc.target.webgpu.choose_storage import vector_index
from webmlc.target.webgpu.join_updates import MatrixProduct, matrix_product
from webmlc.target.webgpu.names import QUAD_LANE

QUADS = "quads"
"""The feature of a machine whose threads share loads."""

AXIS = "threadIdx.x"
"""The axis along which the threads of a quad follow each other, if the size of the workgroup along
it is a multiple of four. No adapter need number threads in that way; SwiftShader and lavapipe do.
"""

LANE = QUAD_LANE
"""The number of a thread within its quad."""

BITS = QUAD - 1
"""The bits of a thread's number within its quad, as a mask."""

LANE_LINE = f"let {LANE} = thread.x & {BITS}u;"
"""The statement that numbers the threads of each quad."""

DIRECTIVE = "diagnostic(off, subgroup_uniformity);\n"
"""The directive that lets quads exchange values under conditions that differ only between quads.
WGSL's analysis takes a workgroup as a whole."""


def quad_loads(function: LoopFunction, inputs: Set[str], width: int) -> Mapping[Load, int]:
    """The loads that all threads of a quad run at once, each with a mask: the bits of the threads'
    numbers on which the vector may depend. `inputs` names the buffers of vectors to which the
    kernel does not store; `width` is the size of the workgroup along `AXIS`.
    """
    if width % QUAD:
        return {}
    search = _Search(inputs, width)
    search.visit(function.body)
    return {load: mask for load, mask in search.masks.items() if mask is not None}


def differing_bits(value: Expr, thread: Var) -> int:
    """The bits of `thread` on which a value depends within a quad, as a mask.

    >>> x = Var("x")
    >>> [differing_bits(value, x) for value in (x // 4, x // 2, x % 2, x - x // 2 * 2, x)]
    [0, 2, 1, 1, 3]
    """
    floored = rewrite(value, _floored)
    lanes = [simplify(substitute(floored, {thread: thread * QUAD + i})) for i in range(QUAD)]
    return sum(
        bit for bit in (1, 2) if any(lanes[i] != lanes[i ^ bit] for i in range(QUAD) if not i & bit)
    )


def _floored(node: Expr) -> Expr | None:
    """A shift, a mask or a division of indices, as the quotient or remainder that it stands for."""
    match node:
        case Call(op="truncdiv", args=(value, divisor)):
            return value // divisor
        case Call(op="truncmod", args=(value, divisor)):
            return value % divisor
        case Call(op="shift_right", args=(value, Const(value=int() as bits))):
            return value // (1 << bits)
        case Call(op="bit_and", args=(value, Const(value=int() as mask))) if not mask & mask + 1:
            return value % (mask + 1)
    return None


@dataclass(slots=True)
class _Search:
    """A walk over a kernel, and the mask of each load; None if not all threads run it."""

    inputs: Set[str]
    width: int
    thread: Var | None = None
    """The number of a thread along `AXIS`."""
    values: dict[Var, Expr] = field(default_factory=dict)
    """The variables that may differ within a quad, as expressions of `thread`."""
    unknown: set[Var] = field(default_factory=set)
    """The variables that memory decides, or loops that may differ."""
    obstacles: int = 0
    """The conditions and loops around the statement that may differ within a quad."""
    masks: dict[Load, int | None] = field(default_factory=dict)

    def visit(self, root: Stmt) -> None:
        """Visit the loads of a statement, and of the statements inside it."""
        while isinstance(root, Let):  # a loop: Python's recursion is too shallow for long chains
            self.look_at(root)
            self.note(root.var, root.value)
            root = root.body
        self.look_at(root)
        with self.inside(root):
            for child in child_statements(root):
                self.visit(child)

    def look_at(self, stmt: Stmt) -> None:
        """Note the loads directly in a statement."""
        for load in own_loads(stmt):
            mask = self.of_load(load)
            if self.masks.setdefault(load, mask) != mask:
                self.masks[load] = None

    def of_load(self, load: Load) -> int | None:
        """The mask of the vector that a load reads; None for other loads."""
        match load.indices:
            case (Ramp(base=base, stride=Const(value=1)),) if not self.obstacles:
                is_input = load.buffer.name in self.inputs
                if is_input and load.buffer.dtype.bytes == WORD_BYTES:
                    return self.mask(base)
        return None

    def note(self, var: Var, value: Expr) -> None:
        """Note the value of a variable, if it may differ."""
        if self.is_unknown(value):
            self.unknown.add(var)
        elif self.mask(value):
            self.values[var] = substitute(value, self.values)

    def is_unknown(self, value: Expr) -> bool:
        """True for a value that memory decides."""
        return reads_memory(value) or not variables(value).isdisjoint(self.unknown)

    def mask(self, value: Expr) -> int:
        """The bits of `thread` on which a value may depend."""
        if self.is_unknown(value):
            return BITS
        expanded = substitute(value, self.values)
        if self.thread is None or self.thread not in variables(expanded):
            return 0
        return differing_bits(expanded, self.thread)

    @contextmanager
    def inside(self, stmt: Stmt) -> Iterator[None]:
        """Enter the statements inside `stmt`, which some threads may not run."""
        is_obstacle, outer = False, self.thread
        match stmt:
            case For(kind="thread_binding", thread=axis, var=var, extent=extent):
                if axis == AXIS:
                    self.thread = var
                    count = as_int(extent)
                    is_obstacle = count != self.width and (count or 1) % QUAD != 0
            case For(var=var, extent=extent):
                if is_obstacle := self.mask(extent) > 0:
                    self.unknown.add(var)
            case If(condition=condition):
                is_obstacle = self.mask(condition) > 0
        self.obstacles += is_obstacle
        yield
        self.obstacles -= is_obstacle
        self.thread = outer


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
