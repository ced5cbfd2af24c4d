"""Find the loads that four threads beside each other repeat, so that quads share them.

In: a kernel as it is printed. Out: its loads of vectors that all threads of a quad run at once, and
the threads that need the same vector. A quad is four threads with consecutive numbers in the
workgroup. If all four threads load the same four elements, each thread loads one element, and all
get the vector:

    let r = A[p];    ->    let r = quad_vector_f32(A[p][quad_lane]);

All threads of a quad must run the statement, and no store may change the elements. A thread of a
software adapter loads each component on its own, which takes as long as many multiply-adds
(`benchmarks/gpu_results.md`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

from webmlc.core.expr import Call, Const, Expr, Ramp, Var, as_int
from webmlc.core.machine import QUAD, WORD_BYTES
from webmlc.core.rewrite import rewrite, substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import For, If, Let, Load, LoopFunction, Stmt, child_statements, own_loads
from webmlc.target.insert_barriers import reads_memory
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
    """A walk over a kernel. `masks` holds the mask of each load; None if some threads do not run
    the load.
    """

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
