"""Sequences whose elements differ in size: one tensor has all elements, and one all shapes.

In: a `Ragged` sequence. Out: tensor operators, which hosts and devices compute. The sizes of a
single element are read from memory in a run.

    s = SplitToSequence(x: float[a, 3], n: int64[k])  ->  elements: float[3 * a], sizes: int64[k, 2]
    y = SequenceAt(s, i)  ->  y = Reshape(Slice(elements, ends[i] - counts[i], ends[i]), sizes[i])

    x       sizes        elements
    a b c   [[1, 3],     a b c d e f g h i      the element 1 begins at 3 = ends[1] - counts[1]
    d e f    [2, 3]]
    g h i
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Ragged
from webmlc.graph.ops.operator import Context, NotSupportedError

LAST = (1 << 63) - 1
"""The end of a Slice up to the end of an axis."""


def length_of(build: Builder, sequence: Ragged) -> Value:
    """The number of elements: a scalar."""
    return build("Squeeze", build("Shape", sequence.sizes, start=0, end=1))


def _counts(build: Builder, sequence: Ragged) -> tuple[Value, Value]:
    """The number of numbers of each element, and the position behind its last one."""
    counts = build("ReduceProd", sequence.sizes, [1], keepdims=0)
    return counts, build("CumSum", counts, np.int64(0))


def element(build: Builder, sequence: Ragged, place: Value) -> Value:
    """The element at a place, a tensor of one integer."""
    counts, ends = _counts(build, sequence)
    end = build("Gather", ends, place, axis=0)
    start = end - build("Gather", counts, place, axis=0)
    shape = build("Gather", sequence.sizes, build("Squeeze", place), axis=0)
    part = build("Slice", sequence.elements, start, end, [0])
    return build("Reshape", part, shape, allowzero=1)


def appended(build: Builder, sequence: Ragged, tensor: Value) -> Ragged:
    """The sequence with a further element at its end."""
    elements = build("Concat", sequence.elements, tensor.op("Reshape", [-1]), axis=0)
    sizes = build("Concat", sequence.sizes, build("Shape", tensor).unsqueeze(0), axis=0)
    return Ragged(elements, sizes)


def inserted(build: Builder, sequence: Ragged, place: Value, tensor: Value) -> Ragged:
    """The sequence with a further element at a place."""
    ends = build("Concat", [0], _counts(build, sequence)[1], axis=0)
    start = build("Gather", ends, place, axis=0)
    row, numbers = build("Shape", tensor).unsqueeze(0), tensor.op("Reshape", [-1])
    return Ragged(
        _replaced(build, sequence.elements, start, start, numbers),
        _replaced(build, sequence.sizes, place, place, row),
    )


def erased(build: Builder, sequence: Ragged, place: Value) -> Ragged:
    """The sequence without the element at a place."""
    counts, ends = _counts(build, sequence)
    end = build("Gather", ends, place, axis=0)
    start = end - build("Gather", counts, place, axis=0)
    return Ragged(
        _replaced(build, sequence.elements, start, end),
        _replaced(build, sequence.sizes, place, place + 1),
    )


def _replaced(build: Builder, tensor: str, start: Value, end: Value, *new: Value) -> Value:
    """The tensor with `new` rows in place of the rows from `start` to `end`."""
    before = build("Slice", tensor, [0], start, [0])
    after = build("Slice", tensor, end, [LAST], [0])
    return build("Concat", before, *new, after, axis=0)


def of_tensors(build: Builder, tensors: tuple[Value, ...]) -> Ragged:
    """The sequence of some tensors."""
    elements = build("Concat", *(t.op("Reshape", [-1]) for t in tensors), axis=0)
    sizes = build("Concat", *(build("Shape", t).unsqueeze(0) for t in tensors), axis=0)
    return Ragged(elements, sizes)


def of_stack(build: Builder, stack: Value) -> Ragged:
    """The sequence of the slices of a tensor."""
    row = build("Shape", stack, start=1).unsqueeze(0)
    count = build("Concat", build("Shape", stack, start=0, end=1), [1], axis=0)
    return Ragged(stack.op("Reshape", [-1]), build("Expand", row, count))


def joined(build: Builder, first: Ragged, second: Ragged) -> Ragged:
    """The elements of two sequences."""
    elements = build("Concat", first.elements, second.elements, axis=0)
    return Ragged(elements, build("Concat", first.sizes, second.sizes, axis=0))


def _positions(build: Builder, lengths: Value, outer: Value, inner: Value) -> Value:
    """The position among all elements of each number of a tensor [outer, sum of lengths, inner],
    which is split into parts of `lengths` along its second axis. All are tensors of rank 1.
    """
    ends = build("CumSum", lengths, np.int64(0))
    starts, columns = ends - lengths, _range(build, build("ReduceSum", lengths, [0]))
    is_behind = build("LessOrEqual", ends.unsqueeze(0), columns.unsqueeze(1))
    part = build("ReduceSum", is_behind.cast(DType.int64), [1], keepdims=0)
    start = build("Gather", starts, part, axis=0)
    base = start * outer * inner + (columns - start) * inner
    stride = build("Gather", lengths, part, axis=0) * inner
    row = _range(build, outer).unsqueeze(1, 2)
    return (
        base.unsqueeze(0, 2) + row * stride.unsqueeze(0, 2) + _range(build, inner).unsqueeze(0, 1)
    )


def _range(build: Builder, end: Value) -> Value:
    """The integers from 0 to before `end`, a tensor of one integer."""
    return build("Range", np.int64(0), build("Squeeze", end), np.int64(1))


def _product(build: Builder, shape: Value, first: int, last: int) -> Value:
    """The product of some sizes of a shape, as a tensor of one integer."""
    product = build.constant([1])
    for axis in range(first, last):
        product = product * shape.slice(axis, axis + 1, 0)
    return product


def parts_of(build: Builder, lengths: Value, rank: int) -> Ragged:
    """The parts of input 0, of this rank, along its first axis. A run counts an index out of range
    unless the lengths add up to the size of the axis.
    """
    data = build.inputs[0]
    size, row = build("Shape", data, start=0, end=1), build("Shape", data, start=1)
    differs = build("Not", build("Equal", build("ReduceSum", lengths, [0]), size))
    lengths = _checked(build, lengths, differs)
    count = build("Concat", build("Shape", lengths), [1], axis=0)
    columns = [lengths.unsqueeze(1)]
    columns += [build("Expand", row.unsqueeze(0), count)] if rank > 1 else []
    return Ragged(data.op("Reshape", [-1]), build("Concat", *columns, axis=1))


def _checked(build: Builder, value: Value, *mistakes: Value) -> Value:
    """The value. A run counts an index out of range if an element of `mistakes` is true."""
    numbers = (m.cast(DType.int64).op("Reshape", [-1]) for m in mistakes)
    count = build("ReduceSum", build("Concat", *numbers, axis=0), [0], keepdims=0)
    return build("Gather", value.unsqueeze(0), build("Min", count, np.int64(1)), axis=0)


def join(context: Context, build: Builder) -> tuple[str, ...]:
    """Concatenate the elements of a sequence, given as `elements` and `sizes`, along one of their
    axes, or along a new axis. Sizes of other axes must be equal.
    """
    elements, sizes = build.inputs
    rank, new_axis = as_int(context.shape(1)[1]), context.attribute("new_axis")
    if rank is None:
        raise NotSupportedError("the rank of the elements of the sequence is not known")
    axis = int(context.attribute("axis")) % (rank + 1 if new_axis else rank)
    no_row = build.constant(np.zeros((1, rank), np.int64))
    first = build("ReduceMax", build("Concat", no_row, sizes, axis=0), [0], keepdims=0)
    differs = build("Not", build("Equal", sizes, first.unsqueeze(0)))
    count = build("Shape", sizes, start=0, end=1)
    is_empty = build("Equal", count, 0)
    if new_axis:
        shape = _checked(build, build("Concat", count, first, axis=0), differs, is_empty)
        stack = build("Reshape", elements, shape, allowzero=1)
        order = (*range(1, axis + 1), 0, *range(axis + 1, rank + 1))
        return (stack.transpose(*order) if axis else stack,)
    lengths = build("Gather", sizes, np.int64(axis), axis=1)
    before, after = first.slice(0, axis, 0), build("Slice", first, [axis + 1], [LAST], [0])
    mistakes = differs.slice(0, axis, 1), build("Slice", differs, [axis + 1], [LAST], [1]), is_empty
    shape = build("Concat", before, build("ReduceSum", lengths, [0]), after, axis=0)
    shape = _checked(build, shape, *mistakes)
    if axis:
        outer, inner = _product(build, first, 0, axis), _product(build, first, axis + 1, rank)
        elements = build("Gather", elements, _positions(build, lengths, outer, inner), axis=0)
    return (build("Reshape", elements, shape, allowzero=1),)
