"""The operators that `choose_layouts` creates (domain `webmlc`): NHWC feature maps, packed weights,
views.

Feature maps have one to three spatial dimensions. They are already padded, so that every window
lies inside. The attribute `windows` is a `Windows` record. Weights are packed in panels of eight
columns and padded with zeros:

- of a convolution: `[O/8][KH][KW][I][8]`, with as many taps as there are spatial dimensions;
- of a convolution with one output channel: `[1][KH][KW][I][1]`;
- of a matrix product: `[N/8][K][8]`.

The CPU loads a row of a panel as vectors, and the GPU as two `vec4`. Products of quantised feature
maps (int8, uint8) are summed in int32. Quantised weights of a float feature map are converted when
they are read.

If the attribute `bytes` is set, a `ByteProduct`, operands are int32 words of four bytes. For `Conv`
and `MatMul`, a word holds four channels. For `DepthwiseConv`, a word of the weights holds four taps
of a column: `[KX][KY/4][C]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_expr, call, const, minimum, select
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.shapes import product_type
from webmlc.graph.ops.windows import CHANNELS_LAST, Groups, Windows, convolution

PACK = 8
"""The columns of a panel of packed weights: two vectors of four 32-bit elements. It is a format of
the package, and the columns of every machine's register tile (`Machine.tile.columns`).
"""
BYTES_PER_WORD = 4
"""The bytes of an int32 word, which the dot-product instructions multiply at once."""
_SIGN_BITS = 0x80808080 - (1 << 32)
"""The sign bits of the four bytes of a word. An exclusive or with these bits makes signed bytes
unsigned by adding 128, and unsigned bytes signed by subtracting 128.
"""

ByteOperator = Literal["dot_u8_i8", "dot_i8"]
"""The scalar operators that multiply the words of two operands. The bytes of the right operand are
signed. The bytes of the left operand are unsigned for `dot_u8_i8`, and signed for `dot_i8`.
"""


@dataclass(frozen=True, slots=True)
class ByteProduct:
    """The product of words of four bytes: the element type of the feature map (int8 or uint8), and
    the operator. If the operator takes the other signedness, a product reads each element as 128
    more or less than it is.
    """

    dtype: DType
    operator: ByteOperator

    @property
    def offset(self) -> int:
        """The number that is added to each element of the feature map: 0, 128 or -128."""
        if self.operator == "dot_i8":
            return 0 if self.dtype.is_signed else -128
        return 128 if self.dtype.is_signed else 0


# -- convolution -----------------------------------------------------------------------


def _product(left: Expr, right: Expr, bytes_: ByteProduct | None = None) -> Expr:
    """One term of a contraction, in the type of its sum. If `bytes_` is set, the operands are
    words.
    """
    if bytes_ is not None:
        shifted = call("bit_xor", left, _SIGN_BITS) if bytes_.offset else left
        return call(bytes_.operator, shifted, right)
    wide_dtype = product_type(left.dtype)
    return left.astype(wide_dtype) * right.astype(wide_dtype)


def _convolution(context: Context, data: Tensor, weights: Tensor) -> Tensor:
    count, (inputs, width) = int(context.attribute("groups")), weights.shape[-2:]
    groups = Groups(count, inputs, const(int(context.attribute("channels")) // count))
    bytes_ = context.attribute("bytes", None)

    def term(read: Expr, o: Expr, i: Expr, taps: Sequence[Expr]) -> Expr:
        if count == 1:
            return _product(read, weights[(o // width, *taps, i, o % width)], bytes_)
        group, within = o // groups.outputs, o % groups.outputs
        weight = weights[(group, within // width, *taps, i, within % width)]
        return _product(read, weight, bytes_)

    return convolution(data, context.attribute("windows"), CHANNELS_LAST, groups, term)


def _depthwise(context: Context, data: Tensor, weights: Tensor) -> Tensor:
    windows: Windows = context.attribute("windows")
    bytes_ = context.attribute("bytes", None)

    def element(n: Expr, *axes: Expr) -> Expr:
        place, (c, *taps) = axes[: windows.rank], axes[windows.rank :]

        def read(taps: Sequence[Expr]) -> Expr:
            return data[(n, *windows.positions(place, taps), c)]

        if not bytes_:
            return _product(read(taps), weights[(*taps, c)])
        if weights.shape[-2] == Const(1):
            taps[-1] = const(0)
        return _product(_column(windows.kernel, taps, read), weights[(*taps, c)], bytes_)

    shape = (data.shape[0], *windows.sizes, data.shape[-1])
    return reduce("depthwise", shape, weights.shape[:-1], "add", element)


def column_axis(rank: int) -> int:
    """The spatial axis along which a depthwise convolution of bytes has four taps in a word. It is
    not the last axis, because neighbouring pixels along the last axis share the words.
    """
    return max(rank - 2, 0)


def _column(
    kernel: Sequence[int], taps: Sequence[Expr], read: Callable[[Sequence[Expr]], Expr]
) -> Expr:
    """The word of four taps along the column axis. The last of `taps` is the number of the word;
    all others are single taps. Taps behind the window are zero.
    """
    *other_taps, word = taps
    axis = column_axis(len(kernel))

    def byte(n: int) -> Expr:
        tap = simplify(word * BYTES_PER_WORD + n)
        is_inside = simplify(tap < kernel[axis])
        value = read([*other_taps[:axis], minimum(tap, kernel[axis] - 1), *other_taps[axis:]])
        return select(is_inside, value.astype(DType.int32), const(0))

    return call("word_u8", *map(byte, range(BYTES_PER_WORD)))


# -- matrix product --------------------------------------------------------------------


def _matmul(context: Context, left: Tensor, right: Tensor) -> Tensor:
    bytes_ = context.attribute("bytes", None)
    shape = (*left.shape[:-1], as_expr(context.attribute("columns")))
    return packed_product("matmul", shape, left, right, bytes_)


def packed_product(
    name: str,
    shape: tuple[Expr, ...],
    left: Tensor,
    right: Tensor,
    bytes_: ByteProduct | None = None,
) -> Tensor:
    """The product of `left` and the packed `right`. Both may have batch dimensions."""
    batch = right.rank - 3

    def element(*axes: Expr) -> Expr:
        *rows, column, k = axes
        shared = rows[:batch]
        weight = right[(*shared, column // PACK, k, column % PACK)]
        return _product(left[(*rows, k)], weight, bytes_)

    return reduce(name, shape, (left.shape[-1],), "add", element)


def _pack(context: Context, matrix: Tensor) -> Tensor:
    """Pack a right operand in panels of columns. Copies of the last column fill the last panel: no
    result reads them.
    """
    *outer, rows, columns = matrix.shape
    panels = simplify((columns + (PACK - 1)) // PACK)

    def element(*axes: Expr) -> Expr:
        *batch, panel, k, lane = axes
        column = panel * PACK + lane
        if simplify(columns % PACK) != Const(0):
            column = minimum(column, columns - 1)
        return matrix[(*batch, k, column)]

    return compute("pack", (*outer, panels, rows, const(PACK)), element)


def _pack_bytes(context: Context, weights: Tensor) -> Tensor:
    """Pack four channels of each lane of packed weights into a word. Missing channels are zero."""
    *outer_sizes, channels, lanes = weights.shape
    words = simplify((channels + (BYTES_PER_WORD - 1)) // BYTES_PER_WORD)

    def element(*axes: Expr) -> Expr:
        *outer, word, lane = axes

        def byte(n: int) -> Expr:
            channel = word * BYTES_PER_WORD + n
            if simplify(channels % BYTES_PER_WORD) == Const(0):
                return weights[(*outer, channel, lane)].astype(DType.int32)
            value = weights[(*outer, minimum(channel, channels - 1), lane)].astype(DType.int32)
            return select(channel < channels, value, const(0))

        return call("word_u8", *map(byte, range(BYTES_PER_WORD)))

    return compute("pack_bytes", (*outer_sizes, words, lanes), element)


# -- neighbours ------------------------------------------------------------------------


def _neighbours(context: Context, data: Tensor) -> Tensor:
    """The first `columns` pixels of each line, each with the channels of the `span - 1` pixels
    after it. Lines of the input are `span - 1` pixels longer.
    """
    *outer_sizes, _, channels = data.shape
    span = simplify(channels * context.attribute("span"))

    def element(*axes: Expr) -> Expr:
        *outer, x, i = axes
        return data[(*outer, x + i // channels, i % channels)]

    return compute("neighbours", (*outer_sizes, context.attribute("columns"), span), element)


# -- views -----------------------------------------------------------------------------


def _infer_view(context: Context) -> TensorType:
    dtype: DType = context.attribute("dtype", context.dtype(0))
    return TensorType(dtype, context.attribute("shape"))


def _view(context: Context, data: Tensor) -> Tensor:
    shape = context.outputs[0].shape

    def read(flat: Expr) -> Expr:
        indices: list[Expr] = []
        for extent in reversed(data.shape):
            indices.append(flat % extent)
            flat = flat // extent
        return data[tuple(reversed(indices))]

    def element(*axes: Expr) -> Expr:
        flat: Expr = const(0)
        for axis, extent in zip(axes, shape, strict=True):
            flat = flat * extent + axis
        if context.outputs[0].dtype == data.dtype:
            return read(flat)
        places = (flat * BYTES_PER_WORD + n for n in range(BYTES_PER_WORD))
        return call("word_u8", *(read(place).astype(DType.int32) for place in places))

    return compute("view", shape, element)


OPS: tuple[Operator, ...] = (
    Operator("Conv", compute=_convolution, kind="contraction", domain="webmlc"),
    Operator("DepthwiseConv", compute=_depthwise, kind="contraction", domain="webmlc"),
    Operator("MatMul", compute=_matmul, kind="contraction", domain="webmlc"),
    Operator("Pack", compute=_pack, kind="injective", domain="webmlc"),
    Operator("PackBytes", compute=_pack_bytes, domain="webmlc"),
    Operator("Neighbours", compute=_neighbours, kind="injective", domain="webmlc"),
    Operator("View", _infer_view, _view, domain="webmlc"),
)
