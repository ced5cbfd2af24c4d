"""Compute products and gathers with weights that are quantised in blocks (`ops/block_quantised`).

In: a function after `simplify_graph`. Out: the same function, in which block-quantised weights stay
packed. before → after:

    %w = DequantizeLinear(%q: int4[K, N], %scales, %zeros) {axis=0, block_size=32}
    %y = MatMul(%x, %w)                       ->   %y = PackedBlockProduct(%x, ..., %q.packed, ...)

With a `quantisation`, float weights become block-quantised, too (`quantise_weights`). Products with
them quantise the activations to int8, unless they are `exact`. Products with weights that the model
itself quantises are always exact: the model multiplies floats.

The weights are the right operand of a MatMul, the matrix of a Gemm, or the table of a Gather along
its first axis. They are constant matrices. These stay as they are:
- weights of convolutions, and weights of more than two dimensions;
- float weights that another node reads, too, or whose bytes blocks would not halve;
- weights in blocks that do not lie along the summed axis, or that are not whole words.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Array, Function, Module, Node, consumers
from webmlc.graph.ops.block_quantised import (
    BlockQuantised,
    PackedWeights,
    gathered_rows,
    pack_blocks,
    packed_product,
)
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import ONE
from webmlc.graph.quantise.quantise_weights import Quantisation, quantise_matrix, stored_bytes
from webmlc.graph.rewrite.patterns import P, Rule, by_operator
from webmlc.graph.rewrite.rewriting import Rewriting, Simplification, remove_dead_code

MIN_SAVING = 2
"""Float weights become block-quantised if blocks divide their bytes by at least this number. Chosen
by hand: it leaves out matrices of few columns, whose blocks are mostly filled with zeros.
"""

_FLOATS = tuple(dtype.numpy for dtype in (DType.float32, DType.float16, DType.bfloat16))
"""The types of weights that can become block-quantised."""


def use_block_products(
    module: Module, quantisation: Quantisation | None = None, exact: bool = False
) -> Module:
    """Rewrite every function.

    needs: inferred types, a simplified graph whose quantised weights are not dequantised yet.
    guarantees: inferred types.
    """
    return module.map_functions(lambda f: _BlockProducts(f, quantisation, exact).run())


@dataclass(frozen=True, slots=True)
class _Operand:
    """Weights as an operand of a node: input `index`, whose rows run along axis `row_axis`."""

    index: int
    row_axis: int


def _weights_operand(node: Node) -> _Operand | None:
    """The operand of a node that may be weights, as a matrix `[N, K]`."""
    match node.domain, node.op:
        case "", "MatMul":
            return _Operand(1, 1)
        case "", "Gemm" if not node.attributes.get("transA", 0):
            return _Operand(1, 0 if node.attributes.get("transB", 0) else 1)
        case "", "Gather" if not node.attributes.get("axis", 0):
            return _Operand(0, 0)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Weights:
    """Packed weights of `depth` elements a row, before the last block was filled up."""

    packed: PackedWeights
    depth: int
    exact: bool

    @property
    def padded_depth(self) -> int:
        """The elements of a row, with the zeros that fill up its last block."""
        _, blocks, _ = self.packed.arrays[1].shape
        return int(blocks) * self.packed.attributes["block"]


@dataclass(slots=True)
class _BlockProducts:
    """The rewriting of a function. Weights that several nodes read are packed once: `values` holds
    packed weights by value and axis of their rows, and `matrices` holds the weights of float
    matrices by content.
    """

    function: Function
    quantisation: Quantisation | None
    exact: bool
    users: dict[str, list[Node]] = field(init=False)
    values: dict[tuple[str, int], _Weights | None] = field(default_factory=dict)
    matrices: dict[object, _Weights] = field(default_factory=dict)

    def run(self) -> Function:
        is_quantised = any(node.op == "DequantizeLinear" for node in self.function.nodes)
        if not is_quantised and self.quantisation is None:
            return self.function
        self.users = consumers(self.function)
        rules = by_operator([Rule(P(("MatMul", "Gemm", "Gather")), self.rewritten)])
        return remove_dead_code(Simplification(self.function, rules).run())

    def rewritten(self, rewriting: Rewriting, node: Node, context: Context) -> str | None:
        """The value that takes the place of a product or gather with weights."""
        operand = _weights_operand(node)
        if operand is None or context.rank(operand.index) != 2:
            return None
        weights = self._weights(rewriting, node.inputs[operand.index], operand.row_axis)
        if weights is None:
            return None
        build = Builder(node, rewriting)
        if node.op == "Gather":
            return _gather(build, context, weights)
        return _product(build, context, weights)

    def _weights(self, rewriting: Rewriting, value: str, row_axis: int) -> _Weights | None:
        """The weights that a value holds, if they are block-quantised or become block-quantised."""
        key = (value, row_axis)
        if key not in self.values:
            blocks = dequantised_blocks(rewriting, value, row_axis)
            if blocks is not None:
                depth = as_int(rewriting.types[value].shape[1 - row_axis])
                assert depth is not None
                self.values[key] = _Weights(pack_blocks(blocks), depth, exact=True)
            else:
                array = rewriting.constants.get(value)
                self.values[key] = None
                if array is not None and array.dtype in _FLOATS:
                    self.values[key] = self._quantised(value, array, row_axis)
        return self.values[key]

    def _quantised(self, value: str, array: Array, row_axis: int) -> _Weights | None:
        """The weights that a float matrix becomes. Equal matrices `[N, K]` become the same weights,
        even if one of their values is transposed.
        """
        form, matrix = self.quantisation, array if row_axis == 0 else array.T
        if form is None or not self._is_only_weights(value):
            return None
        rows, depth = matrix.shape
        if stored_bytes(rows, depth, form) * MIN_SAVING > array.nbytes:
            return None
        if not np.isfinite(array).all():
            return None
        digest = hashlib.sha256(np.ascontiguousarray(matrix).tobytes()).digest()
        key = (matrix.shape, digest)
        if key not in self.matrices:
            packed = pack_blocks(quantise_matrix(matrix, form))
            self.matrices[key] = _Weights(packed, depth, self.exact)
        return self.matrices[key]

    def _is_only_weights(self, value: str) -> bool:
        """True if all nodes that read a constant read it as weights, and it is no output."""
        operands = ((node, _weights_operand(node)) for node in self.users.get(value, ()))
        is_operand = (
            operand is not None
            and node.inputs.count(value) == 1
            and node.inputs[operand.index] == value
            for node, operand in operands
        )
        return value not in self.function.outputs and all(is_operand)


def _product(build: Builder, context: Context, weights: _Weights) -> str:
    """Write the product that a MatMul or a Gemm computes."""
    node, dtype = context.node, context.dtype(0)
    data, constants = build.inputs[0], [build.constant(a) for a in weights.packed.arrays]
    missing = weights.padded_depth - weights.depth
    if missing:
        pads = [0] * (2 * context.rank(0) - 1) + [missing]
        data = build("Pad", data, build.constant(pads))
    if dtype is not DType.float32:
        data = build("Cast", data, to=TYPE_NUMBERS[DType.float32])
    result = packed_product(build, data, constants, weights.packed.attributes, weights.exact)
    if node.op == "Gemm" and (alpha := float(context.attribute("alpha", 1.0))) != 1:
        result = build("Mul", result, build.constant(alpha, DType.float32))
    if dtype is not DType.float32:
        result = build("Cast", result, to=TYPE_NUMBERS[dtype])
    if node.op != "Gemm" or not context.has(2):
        return result
    addend, array = node.inputs[2], context.constant(2)
    if (beta := float(context.attribute("beta", 1.0))) != 1:
        if array is not None:
            addend = build.constant(array * array.dtype.type(beta))
        else:
            addend = build("Mul", addend, build.constant(beta, dtype))
    return build("Add", result, addend)


def _gather(build: Builder, context: Context, weights: _Weights) -> str:
    """Write the rows that a Gather reads."""
    constants = [build.constant(array) for array in weights.packed.arrays]
    rows = gathered_rows(build, build.inputs[1], constants, weights.packed.attributes)
    if weights.padded_depth != weights.depth:
        limits = [build.constant([n]) for n in (0, weights.depth, -1)]
        rows = build("Slice", rows, *limits)
    dtype = context.dtype(0)
    return rows if dtype is DType.float32 else build("Cast", rows, to=TYPE_NUMBERS[dtype])


_BLOCKS = (128, 64, 32)
"""The sizes of the blocks into which rows with one scale are divided. Large blocks have fewer
scales. The last size serves for any row: zeros fill up the row's last block.
"""
_WORD_BITS = 32
"""The bits of a word. A block fills several words."""


def dequantised_blocks(rewriting: Rewriting, value: str, row_axis: int) -> BlockQuantised | None:
    """The weights `[N, K]` that a DequantizeLinear of constants computes, perhaps transposed, whose
    rows run along `row_axis` of the value. Rows are filled up to whole blocks. `None` for any other
    value, and if blocks along K do not have one scale and one zero point each.

        DequantizeLinear(%q: int4[K, N], %scales: [K/32, N], %zeros) {axis=0, block_size=32}
        ->  values = q - low, scales, minimums = (low - zeros) · scales     low: the least int4, -8

    Weights of up to four bits may also have a single scale, or one scale for each row. Such weights
    of eight bits become products of bytes: see `compute_in_integers`.
    """
    maker = rewriting.producer(value)
    if maker is not None and (maker.domain, maker.op) == ("", "Transpose"):
        value, row_axis = maker.inputs[0], 1 - row_axis
        maker = rewriting.producer(value)
    if maker is None or (maker.domain, maker.op) != ("", "DequantizeLinear"):
        return None
    context = rewriting.scope.context(maker)
    array, scale, zero = (context.constant(index) for index in range(3))
    if array is None or scale is None or (context.has(2) and zero is None) or array.ndim != 2:
        return None
    dtype = context.dtype(0)
    if dtype.is_float or dtype.bits not in (2, 4, 8):
        return None
    shape = array.shape if row_axis == 0 else array.shape[::-1]
    block = _block_size(context, maker, row_axis, shape[1], dtype.bits)
    if block is None:
        return None
    blocks = -(-shape[1] // block)
    scales, zeros = (
        _by_block(parameter, row_axis, (shape[0], blocks)) for parameter in (scale, zero)
    )
    assert scales is not None
    low = int(dtype.limits[0])
    values = np.zeros((shape[0], blocks * block), np.int16)
    values[:, : shape[1]] = (array if row_axis == 0 else array.T).astype(np.int16)
    return _record(values, dtype.bits, block, scales, zeros, low)


def _block_size(context: Context, maker: Node, row_axis: int, depth: int, bits: int) -> int | None:
    """The size of the blocks of rows; `None` if blocks do not lie along the rows."""
    scale = context.shape(1)
    block = int(maker.attributes.get("block_size", 0))
    if block and len(scale) == 2:
        fits = context.axis(1) == 1 - row_axis and block * bits % _WORD_BITS == 0
        return block if fits else None
    is_single = all(size == ONE for size in scale)  # its axis is ignored, and may be outside
    if bits > 4 or not (is_single or (len(scale) == 1 and context.axis(1) == row_axis)):
        return None
    return next((size for size in _BLOCKS if depth % size == 0), _BLOCKS[-1])


def _by_block(parameter: Array | None, row_axis: int, shape: tuple[int, int]) -> Array | None:
    """Scales or zero points as float32 `[N, blocks]`."""
    if parameter is None:
        return None
    matrix = parameter.astype(np.float32)
    if matrix.ndim < 2:
        matrix = matrix.reshape(-1, 1)
    elif row_axis == 1:
        matrix = matrix.T
    return np.ascontiguousarray(np.broadcast_to(matrix, shape))


def _record(
    values: Array, bits: int, block: int, scales: Array, zeros: Array | None, low: int
) -> BlockQuantised:
    """The record of weights `(values - zeros) · scales`. `low` is the least value of their type."""
    if bits == 8:  # stored signed
        shift = 0 if low else 128
        stored = (values - shift).astype(np.int8)
    else:
        shift = low
        stored = (values - shift).astype(np.uint8)
    offsets = np.float32(shift) - (np.float32(0) if zeros is None else zeros)
    minimums = np.ascontiguousarray(np.broadcast_to(offsets * scales, scales.shape))
    return BlockQuantised(stored, bits, block, scales, minimums if minimums.any() else None)
