"""Products with weights that are quantised in blocks, and rows of such weights.

A row of the weights is divided into blocks of `block` elements. A block has a scale, and may have
a minimum:

    W[n, k] = scales[n, k // block] * values[n, k] + minimums[n, k // block]

The values stay packed in the package and in memory. `pack_values` writes them in panels of `PACK`
columns of the product: `[N/8][K/block][words][8]` int32 words. A byte of a word holds a value of
each of 8 / `bits` parts of the block, the first part in the lowest bits. So `word & mask` has four
consecutive values of the first part, and `word >> bits & mask` has four values of the second part:

    bits 4, block 32:   byte j of word w   =   value 4·w + j   |   value 16 + 4·w + j   << 4

Stored numbers are unsigned: they are `excess` larger than the values, which is 128 for signed
values of eight bits. If all minimums are -2^(bits-1) times their scales, they become an excess,
too, and are left out.

`BlockProduct` becomes two kernels:

    %q, %scale, %sum = QuantiseBlocks(%x)       int8 activations, four to a word; by block
    %y = PackedBlockProduct(%q, %scale, %sum, %values, %scales, %minimums)

    y[n] = Σ over blocks b: scale[b] · (scales[n, b] · Σ q · values + minimums[n, b] · sum[b])

With the attribute `exact`, activations stay float32: %q is the data, and %scale is omitted.
llama.cpp computes products in the same two ways.

`FloatBlockProduct` computes the same as an `exact` product, but widens each weight before the
multiplication:

    y[*, n] = Σ over k: x[*, k] · (scales[n, k // block] · (values[n, k] - excess) + minimums[...])

So the product has one reduction, and a kernel may add a prologue and an epilogue to it. A GPU waits
for memory, not for the additional multiplication. With the attribute `first`, the columns start at
row `first` of the weights: several products may read parts of one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_expr, as_int, call, const, literal, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Array
from webmlc.graph.ops.index import clamped
from webmlc.graph.ops.layout import BYTES_PER_WORD, PACK
from webmlc.graph.ops.operator import Context, IndexInput, NotSupportedError, Operator
from webmlc.graph.ops.shapes import canonical

DOMAIN = "webmlc"
PRODUCT = (DOMAIN, "PackedBlockProduct")
QUANTISE_BLOCKS = (DOMAIN, "QuantiseBlocks")
WEIGHTS = 3
"""The first operand of a `PackedBlockProduct` that belongs to the weights."""
_LARGEST = 127
"""The largest magnitude of a quantised activation. -128 is not used, so that the range is
symmetric.
"""


@dataclass(frozen=True, slots=True, eq=False)
class BlockQuantised:
    """A matrix `[N, K]` that is quantised in blocks along K.

    `values` are unsigned numbers of `bits` bits, or signed numbers if `bits` is 8. `scales` and
    `minimums` are float32 arrays `[N, K / block]`.
    """

    values: Array
    bits: int
    block: int
    scales: Array
    minimums: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """N rows and K columns."""
        rows, columns = self.values.shape
        return rows, columns

    def floats(self) -> Array:
        """The weights as float32 `[N, K]`."""
        blocks = self.values.reshape(*self.scales.shape, self.block).astype(np.float32)
        weights = blocks * self.scales[..., None]
        if self.minimums is not None:
            weights += self.minimums[..., None]
        return weights.reshape(self.shape)


def block_product(build: Builder, data: Value, weights: BlockQuantised, output: str = "") -> Value:
    """Multiply float32 data `[*, K]` by the transpose of the weights, to `[*, N]`."""
    return _write(build, "BlockProduct", data, weights, output)


def block_gather(
    build: Builder, indices: Value, weights: BlockQuantised, output: str = ""
) -> Value:
    """Read rows of the weights, as float32: int64 indices `[*]` give `[*, K]`."""
    return _write(build, "BlockGather", indices, weights, output)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """The constants and attributes that operators read as block-quantised weights."""

    arrays: tuple[Array, ...]
    attributes: Mapping[str, int]


def pack_blocks(weights: BlockQuantised) -> PackedWeights:
    """Pack values, scales and perhaps minimums in panels of columns."""
    bits, scales, minimums = weights.bits, weights.scales, weights.minimums
    middle = 1 << (bits - 1)
    excess = middle if bits == 8 else 0
    values = (weights.values.astype(np.int16) + excess).astype(np.uint8)
    if not excess and minimums is not None and np.array_equal(minimums, -middle * scales):
        excess, minimums = middle, None
    arrays = [pack_values(values, bits, weights.block), pack_columns(_stored(scales))]
    if minimums is not None:
        arrays.append(pack_columns(_stored(minimums)))
    attributes = {"bits": bits, "block": weights.block, "columns": len(values), "excess": excess}
    return PackedWeights(tuple(arrays), attributes)


def _write(build: Builder, op: str, data: Value, weights: BlockQuantised, output: str) -> Value:
    """Write an operator on data and weights. The weights are stored as packed constants."""
    packed = pack_blocks(weights)
    constants = map(build.constant, packed.arrays)
    attributes: dict[str, Any] = dict(packed.attributes)
    return build(op, data, *constants, output=output, domain=DOMAIN, **attributes)


def _stored(numbers: Array) -> Array:
    """The numbers as float16, which kernels widen, if all numbers are finite and float16 represents
    them exactly. The numbers of GGUF files are of this kind.
    """
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    is_exact = np.array_equal(halves.astype(np.float32), numbers)
    return halves if is_exact and np.isfinite(numbers).all() else numbers


# -- layout ----------------------------------------------------------------------------


def pack_values(values: Array, bits: int, block: int) -> Array:
    """Pack unsigned values `[N, K]` to int32 words `[N/8][K/block][words][8]`. Missing columns are
    zero.
    """
    rows, depth = values.shape
    check_form(bits, block, depth)
    parts, blocks = 8 // bits, depth // block
    shifts = (bits * np.arange(parts, dtype=np.uint8))[:, None]
    split = values.reshape(rows, blocks, parts, block // parts)
    packed = np.bitwise_or.reduce(split << shifts, axis=2)
    words = np.ascontiguousarray(packed).view("<i4").reshape(rows, -1)
    return pack_columns(words).reshape(-1, blocks, words.shape[1] // blocks, PACK)


def pack_columns(matrix: Array) -> Array:
    """Pack a matrix `[N, D]` in panels of columns, `[N/8][D][8]`. Missing columns are zero."""
    rows, depth = matrix.shape
    padded = np.zeros((-(-rows // PACK) * PACK, depth), matrix.dtype)
    padded[:rows] = matrix
    return np.ascontiguousarray(padded.reshape(-1, PACK, depth).transpose(0, 2, 1))


def check_form(bits: int, block: int, depth: int) -> None:
    """Raise `NotSupportedError` for weights that cannot be packed."""
    if bits not in (1, 2, 4, 8):
        raise NotSupportedError(f"weights of {bits} bits. Use 1, 2, 4 or 8 bits")
    if depth % block:
        raise NotSupportedError(f"{depth} elements do not fill blocks of {block}")
    if block * bits % 32:
        raise NotSupportedError(f"blocks of {block} elements of {bits} bits are not whole words")


# -- operators -------------------------------------------------------------------------


def _expand_product(context: Context, build: Builder) -> Value:
    """Expand to a kernel that quantises the data by block (or only sums it), and the product."""
    data, *weights = build.inputs
    names = ("bits", "block", "columns", "excess")
    attributes = {name: int(context.attribute(name)) for name in names}
    check_form(attributes["bits"], attributes["block"], _depth(context))
    exact = bool(context.attribute("exact", 0))
    return packed_product(build, data, weights, attributes, exact)


def packed_product(
    build: Builder,
    data: Value,
    weights: Sequence[Value],
    attributes: Mapping[str, int],
    exact: bool,
) -> Value:
    """Write the kernels of a product of float32 data `[*, K]` and packed weights."""
    block = attributes["block"]
    if exact:
        needs_sums = len(weights) > 2  # the minimums are there
        sums = build("SumBlocks", data, domain=DOMAIN, block=block) if needs_sums else None
        operands: tuple[Value | None, ...] = (data, None, sums)
    else:
        operands = build.many("QuantiseBlocks", data, outputs=3, domain=DOMAIN, block=block)
    numbers: dict[str, Any] = dict(attributes)
    return build("PackedBlockProduct", *operands, *weights, domain=DOMAIN, **numbers)


def gathered_rows(
    build: Builder, indices: Value, weights: Sequence[Value], attributes: Mapping[str, int]
) -> Value:
    """Write the kernel that gathers rows of packed weights."""
    numbers: dict[str, Any] = dict(attributes)
    return build("BlockGather", indices, *weights, domain=DOMAIN, **numbers)


def _depth(context: Context) -> int:
    """The elements of a row of the weights, from the shape of the packed scales."""
    blocks = as_int(context.shape(2)[1])
    assert blocks is not None
    return blocks * int(context.attribute("block"))


def _blocks(context: Context) -> tuple[Expr, ...]:
    """The shape of an array with one element for each block of the data."""
    *rows, depth = context.shape(0)
    return (*rows, canonical(depth // int(context.attribute("block"))))


def _quantise_blocks(context: Context, data: Tensor) -> tuple[Tensor, ...]:
    """Quantise each block by its largest magnitude: the words, the scales, and the sums of the
    quantised numbers. Data that the same kernel computes are stored: two stages read them.
    """
    block = int(context.attribute("block"))
    if data.body is not None:
        computed = data
        data = compute("data", data.shape, lambda *axes: computed[axes], keep=True)
    blocks = _blocks(context)
    words = (*blocks, const(block // BYTES_PER_WORD))

    def magnitude(*axes: Expr) -> Expr:
        *rows, number, k = axes
        return call("abs", data[(*rows, number * block + k)])

    largest = reduce("largest", blocks, (const(block),), "max", magnitude)
    scale = compute("scale", blocks, lambda *i: largest[i] * literal(1 / _LARGEST, largest[i]))

    def inverse(*axes: Expr) -> Expr:
        zero = Const(0.0, DType.float32)
        return select(
            largest[axes] > zero, Const(float(_LARGEST), DType.float32) / largest[axes], zero
        )

    factor = compute("factor", blocks, inverse)

    def word(*axes: Expr) -> Expr:
        *place, word = axes
        *rows, number = place
        first = number * block + word * BYTES_PER_WORD
        numbers = (data[(*rows, first + n)] * factor[tuple(place)] for n in range(BYTES_PER_WORD))
        return call("word_u8", *(call("round", x).astype(DType.int32) for x in numbers))

    quantised = compute("quantise", words, word, keep=True)

    def number(*axes: Expr) -> Expr:
        return call("dot_u7_i8", const(0x01010101), quantised[axes])

    total = reduce("total", blocks, words[-1:], "add", number)
    return quantised, scale, total


def _sum_blocks(context: Context, data: Tensor) -> Tensor:
    block = int(context.attribute("block"))

    def element(*axes: Expr) -> Expr:
        *rows, number, k = axes
        return data[(*rows, number * block + k)]

    return reduce("total", _blocks(context), (const(block),), "add", element)


def _packed_product(
    context: Context,
    data: Tensor,
    scale: Tensor | None,
    sums: Tensor | None,
    values: Tensor,
    *numbers: Tensor,
) -> Tensor:
    """The products of the blocks (`dots`), then the sum of the scaled products. `numbers` are the
    scales, and perhaps the minimums.
    """
    scales, minimums = numbers[0], numbers[1] if len(numbers) > 1 else None
    *rows, _ = data.shape if scale is None else scale.shape
    columns = as_expr(context.attribute("columns"))
    blocks = scales.shape[1]
    dots_of = _float_dots if scale is None else _integer_dots
    dots = dots_of(context, data, values, (*rows, blocks, columns))
    excess = 0 if scale is None else int(context.attribute("excess"))

    def element(*axes: Expr) -> Expr:
        *row, column, block = axes
        place = (column // PACK, block, column % PACK)
        dot = dots[(*row, block, column)]
        if excess and sums is not None:
            dot = dot - sums[(*row, block)] * excess
        value = scale_at(scales, place) * dot.astype(DType.float32)
        if minimums is not None and sums is not None:
            total = sums[(*row, block)].astype(DType.float32)
            value = value + scale_at(minimums, place) * total
        return value if scale is None else scale[(*row, block)] * value

    return reduce("product", (*rows, columns), (blocks,), "add", element)


def _integer_dots(
    context: Context, data: Tensor, values: Tensor, shape: tuple[Expr, ...]
) -> Tensor:
    """The products of blocks of bytes."""
    bits = int(context.attribute("bits"))
    parts, words = 8 // bits, values.shape[2]
    product = "dot_u8_i8" if bits == 8 else "dot_u7_i8"

    def element(*axes: Expr) -> Expr:
        *row, block, column, word, part = axes
        packed = values[(column // PACK, block, word, column % PACK)]
        return call(product, _part(packed, bits, part), data[(*row, block, part * words + word)])

    return reduce("dots", shape, (words, const(parts)), "add", element)


def _float_dots(context: Context, data: Tensor, values: Tensor, shape: tuple[Expr, ...]) -> Tensor:
    """The products of blocks of floats and the values in the bytes of words."""
    bits = int(context.attribute("bits"))
    parts, words, excess = 8 // bits, values.shape[2], int(context.attribute("excess"))

    def element(*axes: Expr) -> Expr:
        *row, block, column, word, part, byte = axes
        packed = values[(column // PACK, block, word, column % PACK)]
        number = ((block * parts + part) * words + word) * BYTES_PER_WORD + byte
        value = stored_value(packed, bits, part, byte) - excess
        return data[(*row, number)] * value.astype(DType.float32)

    extents = (words, const(parts), const(BYTES_PER_WORD))
    return reduce("dots", shape, extents, "add", element)


def _part(word: Expr, bits: int, part: Expr) -> Expr:
    """The four values of a part of a block that a word holds, in its bytes."""
    if bits == 8:
        return word
    mask = ((1 << bits) - 1) * 0x01010101
    return call("shift_right", word, part * bits) & const(mask)


def stored_value(word: Expr, bits: int, part: Expr, byte: Expr) -> Expr:
    """An unsigned value that a word holds, as an int32."""
    return call("shift_right", word, byte * 8 + part * bits) & const((1 << bits) - 1)


def scale_at(scales: Tensor, place: tuple[Expr, ...]) -> Expr:
    """A scale or minimum as float32. Numbers that are stored in half precision are finite."""
    number = scales[place]
    return number if number.dtype is DType.float32 else call("finite", number).astype(DType.float32)


def _gathered(context: Context) -> tuple[IndexInput, ...]:
    """The data are indices into the rows of the weights."""
    return (IndexInput(context.node.inputs[0], (as_expr(context.attribute("columns")),)),)


def _gather(
    context: Context,
    indices: Tensor,
    values: Tensor,
    scales: Tensor,
    minimums: Tensor | None = None,
) -> Tensor:
    bits, block = int(context.attribute("bits")), int(context.attribute("block"))
    length = block * bits // 8

    def element(*axes: Expr) -> Expr:
        *row, k = axes
        column = clamped(indices[tuple(row)], as_expr(context.attribute("columns")))
        number, within = k // block, k % block
        word = values[(column // PACK, number, within % length // BYTES_PER_WORD, column % PACK)]
        stored = stored_value(word, bits, within // length, k % BYTES_PER_WORD)
        value = (stored - int(context.attribute("excess"))).astype(DType.float32)
        place = (column // PACK, number, column % PACK)
        scaled = scale_at(scales, place) * value
        return scaled if minimums is None else scaled + scale_at(minimums, place)

    return compute("gather", (*indices.shape, as_expr(_depth(context))), element)


def _float_product(
    context: Context,
    data: Tensor,
    values: Tensor,
    scales: Tensor,
    minimums: Tensor | None = None,
) -> Tensor:
    """Sum over blocks, the words of a block, the parts of a word, and the bytes of a part."""
    bits, excess = int(context.attribute("bits")), int(context.attribute("excess"))
    first = int(context.attribute("first", 0))
    parts, words = 8 // bits, values.shape[2]

    def element(*axes: Expr) -> Expr:
        *row, column, block, word, part, byte = axes
        panel, lane = (first + column) // PACK, (first + column) % PACK
        stored = stored_value(values[(panel, block, word, lane)], bits, part, byte)
        value = (stored - excess).astype(DType.float32)
        weight = value * scale_at(scales, (panel, block, lane))
        if minimums is not None:
            weight = weight + scale_at(minimums, (panel, block, lane))
        number = ((block * parts + part) * words + word) * BYTES_PER_WORD + byte
        return data[(*row, number)] * weight

    extents = (values.shape[1], words, const(parts), const(BYTES_PER_WORD))
    shape = (*data.shape[:-1], as_expr(context.attribute("columns")))
    return reduce("product", shape, extents, "add", element)


OPS: tuple[Operator, ...] = (
    Operator("BlockProduct", expand=_expand_product, domain=DOMAIN),
    Operator("QuantiseBlocks", compute=_quantise_blocks, domain=DOMAIN),
    Operator("SumBlocks", compute=_sum_blocks, kind="reduction", domain=DOMAIN),
    Operator("PackedBlockProduct", compute=_packed_product, kind="contraction",
             domain=DOMAIN),
    Operator("BlockGather", compute=_gather, indices=_gathered, domain=DOMAIN),
    Operator("FloatBlockProduct", compute=_float_product, kind="contraction",
             domain=DOMAIN),
)  # fmt: skip
