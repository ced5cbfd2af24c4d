"""Recognise loads that four threads beside each other repeat, and spell them with quads.

In: the loads of a kernel as it is printed, statement by statement. Out: which of them a quad can
share. A quad is four threads whose numbers in the workgroup follow each other. Where all of them
load the same four elements, each loads one of these, and all get the vector:

    let r = A[p];    ->    let r = quad_vector_f32(A[p][quad_lane]);

All threads of a quad must run the statement, and no store may change the elements. A thread of a
software adapter loads each component on its own, which takes as long as many multiply-adds
(`benchmarks/gpu_results.md`).

    >>> from webmlc.core.dtypes import DType
    >>> a = Buffer("A", (Const(64),), DType.float32)
    >>> row, column = (Ramp(Var(thread) * 4, Const(1), 4) for thread in ("ty", "tx"))
    >>> quads = Quads(True, frozenset({"A"}), differing={Var("tx")})
    >>> quads.shares(a, (row,)), quads.shares(a, (column,))
    (True, False)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from webmlc.core.expr import Const, Expr, Ramp, Var, as_int
from webmlc.core.machine import QUAD
from webmlc.loops.ir import Buffer, For
from webmlc.target.divergence import differs

QUADS = "quads"
"""The feature of a machine whose threads share loads."""

WORD_BYTES = 4
"""Bytes of the elements that quads exchange."""

AXIS = "threadIdx.x"
"""The axis along which the threads of a quad follow each other, if the size of the workgroup along
it is a multiple of four. No adapter need number threads in that way; SwiftShader and lavapipe do.
"""

LANE = "quad_lane"
"""The number of a thread within its quad."""

LANE_LINE = f"let {LANE} = thread.x & {QUAD - 1}u;"
"""The statement that numbers the threads of each quad."""

DIRECTIVE = "diagnostic(off, subgroup_uniformity);\n"
"""Lets quads exchange values under conditions that differ only between quads. WGSL's analysis takes
a workgroup as a whole."""


@dataclass(slots=True)
class Quads:
    """The quads of a kernel at the statement that is printed, if its threads share loads. No
    statement stores to the `inputs`.
    """

    are_used: bool = False
    inputs: frozenset[str] = frozenset()
    differing: set[Var] = field(default_factory=set)
    """The variables that may differ between the threads of a quad."""
    obstacles: int = 0
    """The conditions and loops around the statement that may differ between them."""

    def note(self, var: Var, value: Expr) -> None:
        """Note a variable, which has a value or counts up to it."""
        if differs(value, self.differing):
            self.differing.add(var)

    @contextmanager
    def where(self, value: Expr) -> Iterator[None]:
        """Enter statements that some threads run, as `value` decides."""
        is_obstacle = differs(value, self.differing)
        self.obstacles += is_obstacle
        yield
        self.obstacles -= is_obstacle

    @contextmanager
    def threads(self, loop: For, *, is_full: bool = False) -> Iterator[None]:
        """Enter a loop over threads of the workgroup. It is full if it leaves out none of them."""
        is_obstacle = False
        if loop.thread == AXIS:
            self.differing.add(loop.var)
            is_obstacle = not is_full and (as_int(loop.extent) or 1) % QUAD != 0
        self.obstacles += is_obstacle
        yield
        self.obstacles -= is_obstacle

    def shares(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """True if all threads of each quad load the same vector."""
        if self.obstacles or not self.are_used:
            return False
        match indices:
            case (Ramp(base=base, stride=Const(value=1)),):
                is_input = buffer.name in self.inputs and buffer.dtype.bytes == WORD_BYTES
                return is_input and not differs(base, self.differing)
        return False
