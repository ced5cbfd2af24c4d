"""The function that `choose_layouts` writes, in which a value may have an NHWC twin.

In: nodes in some layout. Out: nodes, types and constants. A value is transposed at most once, when
a pass asks for its other layout. NHWC stands for channels last, in feature maps of any rank (NWC
for sound).

    layouts.as_nhwc("x")  ->  "x.nhwc", and the node %x.nhwc = Transpose(%x) where it is new
"""

from __future__ import annotations

from dataclasses import dataclass, field

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array, TensorType
from webmlc.graph.ops.operator import array_type
from webmlc.graph.rewrite.rewriting import Rewriting

MAP_RANKS = range(3, 6)
"""Ranks of feature maps: one to three spatial dimensions between batch and channels."""
HALVES = (DType.float16, DType.bfloat16)
"""The types of constant weights that are packed as they are, and widened afterwards."""


def channels_last(rank: int) -> tuple[int, ...]:
    """The permutation from NCHW to NHWC."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """The permutation from NHWC to NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


@dataclass(slots=True)
class LayoutValues(Rewriting):
    """The function being written. The values of `twins` have an NHWC twin. Only the twin of a
    `pending` value is written so far.
    """

    twins: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)

    def rank(self, value: str) -> int:
        """The number of a value's dimensions."""
        return self.types[value].rank

    def is_map(self, value: str) -> bool:
        """True for a value that may be a feature map."""
        return bool(value) and self.rank(value) in MAP_RANKS

    def weights(self, value: str) -> Array | None:
        """The array of a constant, or of the half-precision constant that a Cast widens; `None` for
        other values.
        """
        if value in self.constants:
            return self.constants[value]
        maker = self.producer(value)
        if maker is None or maker.operator != ("", "Cast"):
            return None
        halves = self.constants.get(maker.inputs[0])
        is_half = halves is not None and array_type(halves).dtype in HALVES
        return halves if is_half and self.types[value].dtype is DType.float32 else None

    def transpose(self, value: str, output: str, permutation: tuple[int, ...]) -> str:
        """`value` with its dimensions permuted, as a `View` where only dimensions of size one
        move.
        """
        build = Builder.without_origin(self)
        type_ = self.types[value]
        permuted = TensorType(type_.dtype, tuple(type_.shape[p] for p in permutation))
        if value in self.constants:
            return build.constant(self.constants[value].transpose(permutation), name=output)
        if keeps_order(type_, permutation):
            return self.view(build, value, permuted, output)
        return build("Transpose", value, output=output, perm=permutation)

    def as_nhwc(self, value: str) -> str:
        """The NHWC twin of an NCHW value."""
        if value not in self.twins:
            self.twins.add(value)
            self.transpose(value, f"{value}.nhwc", channels_last(self.rank(value)))
        return f"{value}.nhwc"

    def nchw(self, value: str) -> str:
        """The value in NCHW. If only its NHWC twin is written so far, transpose the twin."""
        if value in self.pending:
            self.pending.remove(value)
            twin = f"{value}.nhwc"
            self.transpose(twin, value, channels_first(self.rank(twin)))
        return value

    def define_nhwc(self, value: str) -> str:
        """Return the name of the NHWC form of `value`, which the caller writes. The value itself is
        written only if a node needs it.
        """
        self.twins.add(value)
        self.pending.add(value)
        return f"{value}.nhwc"


def keeps_order(type_: TensorType, permutation: tuple[int, ...]) -> bool:
    """True if the permutation moves only dimensions of size one."""
    order = [p for p in permutation if as_int(type_.shape[p]) != 1]
    return order == sorted(order)
