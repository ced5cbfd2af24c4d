"""Rows of operators that move elements: reshape, slice, join, pad, gather, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.graph.builder import Operand, Value
from webmlc.graph.element_types import TYPE_NUMBERS

END = np.iinfo(np.int64).max
"""The end of a slice that takes all elements."""


def _reshape(op: Operation) -> Value:
    """Give another shape: input 1, or an option of older files."""
    shape = op.indices(1) if op.has(1) else tuple(op.options.NewShape)
    if isinstance(shape, tuple):
        # One size may be left open, and the file's sizes of 1 may stand for sizes of a run.
        return op.build("Reshape", op.input(0), shape, allowzero=int(0 in shape))
    return op.build("Reshape", op.input(0), shape)


def _squeeze(op: Operation) -> Value:
    axes = [op.axis(axis) for axis in op.options.SqueezeDims]
    return op.build("Squeeze", op.input(0), axes or None)


def _expand_dims(op: Operation) -> Value:
    (axis,) = op.integers(1, "the axis")
    return op.input(0).unsqueeze(op.axis(axis, extra=1))


def _transpose(op: Operation) -> Value:
    order = op.integers(1, "the order of dimensions")
    return op.input(0).transpose(*(op.axis(axis) for axis in order))


def _concatenate(op: Operation) -> Value:
    return op.build("Concat", *op.inputs(), axis=op.axis(op.options.Axis))


def _pack(op: Operation) -> Value:
    axis = op.axis(op.options.Axis, extra=1)
    return op.build("Concat", *(x.unsqueeze(axis) for x in op.inputs()), axis=axis)


def _unpack(op: Operation) -> Sequence[Value]:
    axis, x = op.axis(op.options.Axis), op.input(0)
    return [x.element(index, axis) for index in range(len(op.operator.outputs))]


def _split(op: Operation) -> Sequence[Value]:
    """Split into equal parts along an axis, which is the first input."""
    (axis,) = op.integers(0, "the axis")
    axis, parts = op.axis(axis, 1), len(op.operator.outputs)
    if parts == 1:
        return [op.input(1)]
    return op.build.many("Split", op.input(1), outputs=parts, axis=axis, num_outputs=parts)


def _split_by_sizes(op: Operation) -> Sequence[Value]:
    """Split into parts of these sizes. One size may be -1: the remaining size."""
    sizes = op.integers(1, "the sizes of the parts")
    (axis,) = op.integers(2, "the axis")
    axis = op.axis(axis)
    if -1 in sizes:
        size = op.size(0, axis, "the size that is split")
        remaining = size - sum(s for s in sizes if s >= 0)
        sizes = tuple(remaining if s < 0 else s for s in sizes)
    return op.build.many("Split", op.input(0), sizes, outputs=len(sizes), axis=axis)


def _slice(op: Operation) -> Value:
    """Take `size` elements from `begin`. A size of -1 takes all elements to the end."""
    begin, size = op.indices(1), op.indices(2)
    axes = tuple(range(op.rank(0)))
    if isinstance(begin, tuple) and isinstance(size, tuple):
        ends: Operand = tuple(END if s < 0 else b + s for b, s in zip(begin, size, strict=True))
    else:
        starts, counts = (op.input(index).cast(DType.int64) for index in (1, 2))
        ends = counts.op("Less", 0).where(np.int64(END), starts + counts)
    return op.build("Slice", op.input(0), begin, ends, axes)


def _strided_slice(op: Operation) -> Value:
    """Slice as Python's `x[begin:end:step, ...]`. Bits of the masks belong to the positions in the
    brackets: a bit says that a limit is left out, or that the position is an ellipsis, a new axis,
    or an index that removes its axis.
    """
    options = op.options
    begin, end = op.indices(1), op.indices(2)
    step_values = op.integers(3, "the step")
    plan = _positions(op, len(step_values))
    starts: list[Any] = []
    ends: list[Any] = []
    axes, strides, removed, added = [], [], [], []
    result_axis = axis = 0
    for position, kind in plan:
        if kind == "new":
            added.append(result_axis)
            result_axis += 1
            continue
        if kind == "all":
            axis, result_axis = axis + 1, result_axis + 1
            continue
        step, bit = step_values[position], 1 << position
        start, stop = _element(begin, position), _element(end, position)
        if options.BeginMask & bit:
            start = 0 if step > 0 else -1
        if kind == "index":
            stop, step = _end(start, 1), 1
            removed.append(axis)
        else:
            result_axis += 1
            if options.EndMask & bit:
                stop = END if step > 0 else -END
            elif options.Offset:
                stop = _end(start, stop) if step > 0 else start + stop
        starts.append(start)
        ends.append(stop)
        axes.append(axis)
        strides.append(step)
        axis += 1
    x = op.input(0)
    if axes:
        limits = (_vector(op, starts), _vector(op, ends))
        x = op.build("Slice", x, *limits, tuple(axes), tuple(strides))
    x = op.build("Squeeze", x, tuple(removed)) if removed else x
    return x.unsqueeze(*added) if added else x


def _positions(op: Operation, count: int) -> list[tuple[int, str]]:
    """What each position in the brackets does: a slice, an index, a new axis, or all elements of a
    dimension, where an ellipsis or the end of the brackets covers it.
    """
    options, rank = op.options, op.rank(0)
    kinds: list[tuple[int, str]] = []
    ellipsis = None
    for position in range(count):
        bit = 1 << position
        if options.EllipsisMask & bit:
            ellipsis = len(kinds)
        elif options.NewAxisMask & bit:
            kinds.append((position, "new"))
        else:
            kinds.append((position, "index" if options.ShrinkAxisMask & bit else "slice"))
    sliced = sum(kind != "new" for _, kind in kinds)
    if sliced > rank:
        op.refuse(f"it slices {sliced} dimensions of a tensor of rank {rank}")
    position = len(kinds) if ellipsis is None else ellipsis
    kinds[position:position] = [(-1, "all")] * (rank - sliced)
    return kinds


def _element(values: Value | tuple[int, ...], position: int) -> Any:
    """An element of a vector: a number, or a value of one element."""
    if isinstance(values, tuple):
        return values[position]
    return values.slice(position, position + 1, 0)


def _end(start: Any, count: Any) -> Any:
    """The end of a slice of `count` elements. A negative start counts from the end of the tensor,
    where 0 would be the first element again.
    """
    end = start + count
    if not isinstance(start, Value) and start >= 0:
        return end
    if not isinstance(end, Value):
        return end if end < 0 else END
    is_past = end.op("GreaterOrEqual", 0)
    if isinstance(start, Value):
        is_past = start.op("Less", 0) & is_past
    return is_past.where(np.int64(END), end)


def _vector(op: Operation, elements: Sequence[Any]) -> Operand:
    """A vector of numbers and of values of one element."""
    if not any(isinstance(element, Value) for element in elements):
        return tuple(elements)
    values = [
        e if isinstance(e, Value) else op.build.constant(np.array([e], np.int64)) for e in elements
    ]
    return op.build("Concat", *values, axis=0)


def _pads(op: Operation, index: int = 1) -> Operand:
    """Paddings [rank, 2] as ONNX's list of all paddings before, then after."""
    array = op.constant(index)
    if array is not None:
        return tuple(int(v) for v in array.T.reshape(-1))
    return op.input(index).cast(DType.int64).transpose(1, 0).reshape(-1)


def _pad(op: Operation) -> Value:
    """Pad with input 2, or with zeros: the zero points of quantised tensors."""
    filler = op.input(2).reshape() if op.has(2) else _stored_zero(op)
    return op.build("Pad", op.input(0), _pads(op), filler)


def _stored_zero(op: Operation) -> Operand:
    """The stored form of zero in input 0: the zero point if the operator works on quantised
    integers, and ONNX's default otherwise.
    """
    tensor = op.tensor(0)
    zero: Operand = None
    if op.is_stored and tensor.quantisation is not None and tensor.dtype is not None:
        zero = tensor.quantisation.zeros[0].astype(tensor.dtype.numpy)
    return zero


def _mirror_pad(op: Operation) -> Value:
    """Pad with mirrored elements, without the elements of the edge (REFLECT) or with them."""
    is_reflect = op.options.Mode == 0
    if is_reflect:
        return op.build("Pad", op.input(0), _pads(op), mode="reflect")
    pads = op.integers(1, "the padding")
    x = op.input(0)
    for axis in range(op.rank(0)):
        before, after = pads[2 * axis : 2 * axis + 2]
        parts = [x]
        if before:
            parts.insert(0, _reversed(x.slice(0, before, axis), axis))
        if after:
            parts.append(_reversed(x.slice(-after, END, axis), axis))
        x = x if len(parts) == 1 else op.build("Concat", *parts, axis=axis)
    return x


def _reversed(x: Value, axis: int) -> Value:
    return x.op("Slice", (-1,), (-END,), (axis,), (-1,))


def _reverse(op: Operation) -> Value:
    axes = [op.axis(axis) for axis in op.integers(1, "the axes")]
    x = op.input(0)
    for axis in axes:
        x = _reversed(x, axis)
    return x


def _reverse_sequence(op: Operation) -> Value:
    """Reverse the first elements of each sequence. ONNX's operator takes the axes 0 and 1."""
    sequence, batch = op.axis(op.options.SeqDim), op.axis(op.options.BatchDim)
    inner_axes = [axis for axis in range(op.rank(0)) if axis not in (sequence, batch)]
    order = [batch, sequence, *inner_axes]
    x = op.input(0).transpose(*order)
    y = x.op("ReverseSequence", op.input(1).cast(DType.int64), batch_axis=0, time_axis=1)
    return y.transpose(*(order.index(axis) for axis in range(len(order))))


def _tile(op: Operation) -> Value:
    return op.build("Tile", op.input(0), op.indices(1))


def _broadcast_to(op: Operation) -> Value:
    return op.build("Expand", op.input(0), op.indices(1))


def _broadcast_args(op: Operation) -> Value:
    """The shape to which two shapes are broadcast."""
    shapes = [op.input(index).cast(DType.int64) for index in (0, 1)]
    ranks = [op.size(index, 0, "the rank of a shape") for index in (0, 1)]
    wide = [
        s if r == max(ranks) else op.build("Pad", s, (max(ranks) - r, 0), np.int64(1))
        for s, r in zip(shapes, ranks, strict=True)
    ]
    return wide[0].op("Equal", 1).where(wide[1], wide[0])


def _gather(op: Operation) -> Value:
    """Gather slices along an axis. With batches, each batch has its indices."""
    axis, batches = op.axis(op.options.Axis), op.options.BatchDims
    batches += op.rank(1) if batches < 0 else 0
    if not batches:
        return op.build("Gather", op.input(0), op.input(1), axis=axis)
    if axis != batches:
        op.refuse(f"its {batches} dimensions of batches are not just before axis {axis}")
    return op.build(
        "GatherND",
        op.input(0),
        op.input(1).cast(DType.int64).unsqueeze(op.rank(1)),
        batch_dims=batches,
    )


def _gather_nd(op: Operation) -> Value:
    return op.build("GatherND", op.input(0), op.input(1).cast(DType.int64))


def _scatter_nd(op: Operation) -> Value:
    """Add updates to zeros at indices."""
    zeros = op.build("Expand", _zero(op, 1), op.indices(2))
    indices = op.input(0).cast(DType.int64)
    return op.build("ScatterND", zeros, indices, op.input(1), reduction="add")


def _zero(op: Operation, index: int) -> Value:
    """A zero of the element type of an input."""
    dtype = op.input(index).type.dtype
    return op.build.constant(np.zeros((), dtype.numpy))


def _embedding_lookup(op: Operation) -> Value:
    """Gather rows of a table, which is the second input."""
    return op.build("Gather", op.input(1), op.input(0), axis=0)


def _space_to_batch(op: Operation) -> Value:
    """Move blocks of the dimensions after the batch into the batch."""
    blocks = op.integers(1, "the size of blocks")
    pads = np.array(op.integers(2, "the padding"), np.int64).reshape(-1, 2)
    rank, count = op.rank(0), len(blocks)
    spatial = [op.size(0, d + 1, "the size of the input") for d in range(count)]
    amounts = np.zeros((rank, 2), np.int64)
    amounts[1 : count + 1] = pads
    x = op.build("Pad", op.input(0), tuple(amounts.T.reshape(-1).tolist()), _stored_zero(op))
    sizes = [n + int(p.sum()) for n, p in zip(spatial, pads, strict=True)]
    tail = op.shape(0)[count + 1 :]
    block_counts = [n // b for n, b in zip(sizes, blocks, strict=True)]
    pairs = [size for pair in zip(block_counts, blocks, strict=True) for size in pair]
    x = x.reshape(0, *pairs, *tail)
    count_axes, block_axes = range(1, 2 * count, 2), range(2, 2 * count + 1, 2)
    x = x.transpose(*block_axes, 0, *count_axes, *range(2 * count + 1, 2 * count + 1 + len(tail)))
    return x.reshape(-1, *block_counts, *tail)


def _batch_to_space(op: Operation) -> Value:
    """Move parts of the batch into blocks of the dimensions after it, then cut edges off."""
    blocks = op.integers(1, "the size of blocks")
    crops = np.array(op.integers(2, "the crops"), np.int64).reshape(-1, 2)
    count = len(blocks)
    spatial = [op.size(0, d + 1, "the size of the input") for d in range(count)]
    tail = op.shape(0)[count + 1 :]
    x = op.input(0).reshape(*blocks, -1, *spatial, *tail)
    pairs = [axis for d in range(count) for axis in (count + 1 + d, d)]
    x = x.transpose(count, *pairs, *range(2 * count + 1, 2 * count + 1 + len(tail)))
    sizes = [n * b for n, b in zip(spatial, blocks, strict=True)]
    x = x.reshape(-1, *sizes, *tail)
    for d, (first, last) in enumerate(crops.tolist()):
        if first or last:
            x = x.slice(first, sizes[d] - last, d + 1)
    return x


def _shape(op: Operation) -> Value:
    return op.input(0).op("Shape")


def _rank(op: Operation) -> Any:
    return np.array(op.rank(0), np.int32)


def _fill(op: Operation) -> Value:
    """A tensor of the shape in input 0, full of input 1."""
    return op.build("Expand", op.input(1).reshape(), op.indices(0))


def _zeros_like(op: Operation) -> Value:
    return op.build("Expand", _zero(op, 0), op.input(0).op("Shape"))


def _range(op: Operation) -> Value:
    return op.build("Range", *(op.input(index).reshape() for index in range(3)))


def _one_hot(op: Operation) -> Value:
    """A vector with `on` at an index and `off` elsewhere. Indices outside are all `off`."""
    depth, on, off = (op.input(index) for index in (1, 2, 3))
    values = op.build("Concat", off.reshape(1), on.reshape(1), axis=0)
    axis, indices = op.options.Axis, op.input(0)
    count = depth.cast(DType.int64).reshape()
    wide = indices.cast(DType.int64)
    # ONNX counts negative indices from the end; here they are outside.
    positions = wide.op("Less", 0).where(count, wide)
    return op.build("OneHot", positions, count, values, axis=axis)


def _dynamic_update(op: Operation) -> Value:
    """Write `update` at `start`, moved so that it stays inside."""
    update = [op.size(1, axis, "the size of the update") for axis in range(op.rank(1))]
    operand = [op.size(0, axis, "the size of the operand") for axis in range(op.rank(0))]
    starts = op.input(2).cast(DType.int64)
    limits = np.array(operand, np.int64) - np.array(update, np.int64)
    starts = starts.op("Max", np.int64(0)).op("Min", limits)
    grid = np.stack(np.meshgrid(*map(np.arange, update), indexing="ij"), axis=-1)
    indices = op.build.constant(grid.astype(np.int64)) + starts
    return op.build("ScatterND", op.input(0), indices, op.input(1))


def _densify(op: Operation) -> Any:
    """A sparse constant, which is dense already (`sparse.py`)."""
    array = op.constant(0)
    return op.input(0) if array is None else array


def _sparse_to_dense(op: Operation) -> Value:
    """Write values at indices of a tensor that is full of a default value."""
    full = op.build("Expand", op.input(3).reshape(), op.indices(1))
    indices = op.input(0).cast(DType.int64)
    if op.rank(0) == 0:
        indices = indices.reshape(1, 1)
    elif op.rank(0) == 1:
        indices = indices.unsqueeze(1)
    count = indices.op("Shape").slice(0, 1, 0)
    return op.build("ScatterND", full, indices, op.build("Expand", op.input(2), count))


def _matrix_diagonal(op: Operation) -> Value:
    """Matrices with vectors on their diagonals."""
    rank = op.rank(0)
    size = op.size(0, rank - 1, "the size of the diagonal")
    mask = op.build.constant(np.eye(size, dtype=np.bool_))
    return mask.where(op.input(0).unsqueeze(rank), _zero(op, 0))


def _matrix_set_diagonal(op: Operation) -> Value:
    """Matrices with other diagonals."""
    rank = op.rank(0)
    rows, columns = (op.size(0, axis, "the size of the matrix") for axis in (rank - 2, rank - 1))
    size = min(rows, columns)
    diagonal = op.input(1)
    if columns > size:
        pads = [0] * (2 * (rank - 1))
        pads[-1] = columns - size
        diagonal = op.build("Pad", diagonal, tuple(pads))
    mask = op.build.constant(np.eye(rows, columns, dtype=np.bool_))
    return mask.where(diagonal.unsqueeze(rank - 2), op.input(0))


def _dilate(op: Operation) -> Value:
    """Write the padding value between the elements along each axis, which is the last meanwhile."""
    x, rank = op.input(0), op.rank(0)
    for axis, step in enumerate(op.integers(1, "the dilations")):
        size = op.size(0, axis, "the size of the input")
        if step > 1 and size > 1:
            order = [*(a for a in range(rank) if a != axis), axis]
            pads = (*[0] * (2 * rank + 1), step - 1)
            x = op.build("Pad", x.transpose(*order).unsqueeze(rank), pads, op.input(2).reshape())
            x = x.reshape(*[0] * (rank - 1), size * step).slice(0, (size - 1) * step + 1, rank - 1)
            x = x.transpose(*(order.index(a) for a in range(rank)))
    return x


def _bit_cast(op: Operation) -> Value:
    """Read the bits of elements as another type of the same size."""
    dtype = op.output().dtype
    sizes = {t.numpy.itemsize for t in (dtype, op.tensor(0).dtype) if t is not None}
    if dtype is None or len(sizes) != 1:
        op.refuse("the elements have another size; convert with types of the same size")
    return op.build("BitCast", op.input(0), to=TYPE_NUMBERS[dtype])


ROWS = (
    Row("BATCH_TO_SPACE_ND", _batch_to_space, moves=True),
    Row("BITCAST", _bit_cast),
    Row("BROADCAST_ARGS", _broadcast_args),
    Row("BROADCAST_TO", _broadcast_to, moves=True),
    Row("CONCATENATION", _concatenate, moves=True),
    Row("DENSIFY", _densify, moves=True),
    Row("DILATE", _dilate, moves=True),
    Row("DYNAMIC_UPDATE_SLICE", _dynamic_update, moves=True),
    Row("EMBEDDING_LOOKUP", _embedding_lookup, moves=True),
    Row("EXPAND_DIMS", _expand_dims, moves=True),
    Row("FILL", _fill, moves=True),
    Row("GATHER", _gather, moves=True),
    Row("GATHER_ND", _gather_nd, moves=True),
    Row("MATRIX_DIAG", _matrix_diagonal),
    Row("MATRIX_SET_DIAG", _matrix_set_diagonal),
    Row("MIRROR_PAD", _mirror_pad, moves=True),
    Row("ONE_HOT", _one_hot),
    Row("PACK", _pack, moves=True),
    Row("PAD", _pad, moves=True),
    Row("PADV2", _pad, moves=True),
    Row("RANGE", _range),
    Row("RANK", _rank),
    Row("RESHAPE", _reshape, moves=True),
    Row("REVERSE_SEQUENCE", _reverse_sequence, moves=True),
    Row("REVERSE_V2", _reverse, moves=True),
    Row("SCATTER_ND", _scatter_nd),
    Row("SHAPE", _shape),
    Row("SLICE", _slice, moves=True),
    Row("SPACE_TO_BATCH_ND", _space_to_batch, moves=True),
    Row("SPARSE_TO_DENSE", _sparse_to_dense),
    Row("SPLIT", _split, moves=True),
    Row("SPLIT_V", _split_by_sizes, moves=True),
    Row("SQUEEZE", _squeeze, moves=True),
    Row("STRIDED_SLICE", _strided_slice, moves=True),
    Row("TILE", _tile, moves=True),
    Row("TRANSPOSE", _transpose, moves=True),
    Row("UNPACK", _unpack, moves=True),
    Row("ZEROS_LIKE", _zeros_like),
)
"""The rows."""
