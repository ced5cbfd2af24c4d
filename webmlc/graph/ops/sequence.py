"""Sequences and optionals. An optional is its value, or None, at build time.

A sequence is a tuple of values, if its length and all positions are known at build time. Otherwise
it is one tensor, whose slices along the first axis are its elements (`Stacked`), if all elements
have one shape. If they have not, two tensors hold their numbers and their shapes (`ops.ragged`).

All rows expand, so that only tensors remain after `infer_shapes`. A model output that is a sequence
becomes one output for each element, or one tensor.

    s = SequenceConstruct(a, b); t = SequenceInsert(s, c); y = SequenceAt(t, 2)  ->  y = Identity(c)
    s = SequenceConstruct(a, b); y = SequenceAt(s, i)    ->  t = Concat([a], [b]); y = Gather(t, i)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function, Ragged, Stacked
from webmlc.graph.ops.operator import (
    Context,
    NotSupportedError,
    Operator,
    Result,
    UnknownValueError,
)
from webmlc.graph.ops.ragged import (
    LAST,
    appended,
    element,
    erased,
    inserted,
    join,
    joined,
    length_of,
    of_stack,
    of_tensors,
    parts_of,
)
from webmlc.graph.ops.shapes import same
from webmlc.graph.ops.stacked_loops import ELEMENTS
from webmlc.graph.ops.subgraphs import splice

Results = tuple[Result, ...]


def _construct(context: Context, build: Builder) -> Results:
    return (context.node.inputs,)


def _empty(context: Context, build: Builder) -> Results:
    return ((),)


def _is_decided_by_run(context: Context, position: int | None = None) -> bool:
    """True if a run decides the length of input 0, or the position that another input gives."""
    if not isinstance(context.sequences.get(context.node.inputs[0]), tuple):
        return True
    if position is None or not context.has(position):
        return False
    value = context.value(position)
    return value is None or isinstance(value.reshape(-1)[0], Expr)


def _over_one(context: Context, build: Builder, position: int) -> Results:
    """The node over a sequence that does not depend on names of values: a run decides a position
    in it.
    """
    sequence, *operands = build.inputs
    one = build("AsOne", sequence, domain="webmlc", decided_by=context.node.inputs[position])
    return (build(context.node.op, one, *operands),)


def _position(context: Context, index: int, length: int, last: int) -> int:
    """A position input, counted from the front. `last` is the largest position allowed."""
    (position,) = context.integers("position", index) or (last,)
    if not -length <= position <= last:
        raise NotSupportedError(f"position {position} is outside a sequence of {length}")
    return position + length if position < 0 else position


def _stack(context: Context, build: Builder, index: int = 0, position: int = -1) -> Value:
    """A sequence input as one tensor. A run may decide the position that another input gives."""
    decides = position >= 0 and context.is_decided_by_run(position)
    value = context.node.inputs[position] if decides else ""
    return build("AsTensor", context.node.inputs[index], domain="webmlc", decided_by=value)


def _length_of(build: Builder, stack: Value) -> Value:
    """The number of elements of a stack: a scalar."""
    return build("Squeeze", build("Shape", stack, start=0, end=1))


def _place(build: Builder, position: str, length: Value, places: Value) -> Value:
    """A position of a run, counted from the front, as a tensor of one element. A position that is
    none of the `places`, which count from 0, is out of range.
    """
    start = build.value(position).op("Reshape", [1])
    from_front = build("Less", start, 0).where(start + length, start)
    outside = build("Less", from_front, 0).where(length + 1, from_front)
    return build("Gather", build("Range", np.int64(0), places, np.int64(1)), outside)


def _insert(context: Context, build: Builder) -> Results:
    values = context.sequences.get(context.node.inputs[0])
    if not _is_decided_by_run(context, 2):
        values = context.sequence(0)
        at = _position(context, 2, len(values), len(values))
        return ((*values[:at], build.inputs[1], *values[at:]),)
    row = build.inputs[1].unsqueeze(0)
    position = build.inputs[2].cast(DType.int64) if context.has(2) else None
    if values == ():
        zero = build.constant(np.int64(0))
        place = zero if position is None else _place(build, position, zero, zero + 1)
        return (Stacked(row if position is None else build("Gather", row, place, axis=0)),)
    if isinstance(values, tuple):
        return _over_one(context, build, 2)
    if ragged := context.ragged(0):
        if position is None:
            return (appended(build, ragged, build.inputs[1]),)
        length = length_of(build, ragged)
        place = _place(build, position, length, length + 1)
        return (inserted(build, ragged, place, build.inputs[1]),)
    stack = _stack(context, build, position=2)
    if position is None:
        return (Stacked(build("Concat", stack, row, axis=0)),)
    length = _length_of(build, stack)
    place = _place(build, position, length, length + 1)
    before = build("Slice", stack, [0], place, [0])
    after = build("Slice", stack, place, [LAST], [0])
    return (Stacked(build("Concat", before, row, after, axis=0)),)


def _erase(context: Context, build: Builder) -> Results:
    if not _is_decided_by_run(context, 1):
        values = context.sequence(0)
        at = _position(context, 1, len(values), len(values) - 1)
        return ((*values[:at], *values[at + 1 :]),)
    if isinstance(context.sequences[context.node.inputs[0]], tuple):
        return _over_one(context, build, 1)
    ragged = context.ragged(0)
    length = length_of(build, ragged) if ragged else _length_of(build, _stack(context, build))
    position = build.inputs[1].cast(DType.int64) if context.has(1) else length - 1
    place = _place(build, position, length, length)
    if ragged:
        return (erased(build, ragged, place),)
    stack = _stack(context, build, position=1)
    before = build("Slice", stack, [0], place, [0])
    after = build("Slice", stack, place + 1, [LAST], [0])
    return (Stacked(build("Concat", before, after, axis=0)),)


def _at(context: Context, build: Builder) -> Results:
    if not _is_decided_by_run(context, 1):
        values = context.sequence(0)
        return (values[_position(context, 1, len(values), len(values) - 1)],)
    if isinstance(context.sequences[context.node.inputs[0]], tuple):
        return _over_one(context, build, 1)
    if ragged := context.ragged(0):
        length = length_of(build, ragged)
        place = _place(build, build.inputs[1].cast(DType.int64), length, length)
        return (element(build, ragged, place),)
    position = build("Squeeze", build.inputs[1])
    return (build("Gather", _stack(context, build, position=1), position, axis=0),)


def _length(context: Context, build: Builder) -> Results:
    if ragged := context.ragged(0):
        return (length_of(build, ragged),)
    if context.is_stacked(0):
        return (_length_of(build, _stack(context, build)),)
    return (build.constant(np.int64(len(context.sequence(0)))),)


def _concat(context: Context, build: Builder) -> Results:
    axis, new_axis = int(context.attribute("axis")), int(context.attribute("new_axis", 0))
    if ragged := context.ragged(0):
        tensors = ragged.elements, ragged.sizes
        return (build("JoinRagged", *tensors, domain="webmlc", axis=axis, new_axis=new_axis),)
    if context.is_stacked(0):
        stack = _stack(context, build)
        return (build("JoinElements", stack, domain="webmlc", axis=axis, new_axis=new_axis),)
    values = context.sequence(0)
    if new_axis:
        values = tuple(build.value(v).unsqueeze(axis) for v in values)
    return (build("Concat", *values, axis=axis),)


def _join_elements(context: Context, build: Builder) -> Results:
    """Join the slices of a stack along one of their axes, or along a new axis."""
    stack, rank = build.inputs[0], context.rank(0)
    new_axis = context.attribute("new_axis")
    axis = int(context.attribute("axis")) % (rank if new_axis else rank - 1)
    moved = stack
    if axis:
        order = (*range(1, axis + 1), 0, *range(axis + 1, rank))
        moved = build("Transpose", stack, perm=order)
    if new_axis:
        return (moved,)
    sizes = build("Shape", moved)
    joined = sizes.op("Slice", [axis], [axis + 1]) * sizes.op("Slice", [axis + 1], [axis + 2])
    before, after = sizes.op("Slice", [0], [axis]), sizes.op("Slice", [axis + 2], [LAST])
    shape = build("Concat", before, joined, after, axis=0)
    return (build("Reshape", moved, shape, allowzero=1),)


def _split(context: Context, build: Builder) -> Results:
    """Split a tensor into parts of `split` elements, or of the sizes that `split` lists. In the
    first case, the last part may be smaller.
    """
    axis, data, rank = context.axis(0), build.inputs[0], context.rank(0)
    if context.has(1) and context.rank(1) == 1:
        count = as_int(context.shape(1)[0])
        if count is None and axis:
            raise NotSupportedError("a run decides how many parts an axis but the first has")
        if count is None:
            return (parts_of(build, build.inputs[1].cast(DType.int64), rank),)
        return (build.many("Split", data, build.inputs[1], outputs=count, axis=axis),)
    has_axis = context.has(1) or bool(context.attribute("keepdims", 1))
    size = as_int(context.shape(0)[axis])
    if axis == 0 and context.has(1) and (size is None or context.is_decided_by_run(1)):
        return (parts_of(build, _lengths(build, data), rank),)
    if size is None or context.is_decided_by_run(1):
        return (Stacked(_equal_parts(context, build, axis, has_axis)),)
    (step,) = context.integers("split", 1) or (1,)
    split = [min(step, size - at) for at in range(0, size, step)]
    sizes = build.constant(np.array(split, np.int64))
    parts = build.many("Split", data, sizes, outputs=len(split), axis=axis)
    if not has_axis:
        parts = tuple(build("Squeeze", part, axes=(axis,)) for part in parts)
    return (parts,)


def _lengths(build: Builder, data: Value) -> Value:
    """The sizes of the parts of axis 0, of which each but the last has the size of input 1."""
    size = build("Shape", data, start=0, end=1)
    step = build.inputs[1].cast(DType.int64).op("Reshape", [1])
    count = build("Squeeze", (size + step - 1) / step)
    starts = build("Range", np.int64(0), count, np.int64(1)) * step
    return build("Min", size - starts, step)


def _equal_parts(context: Context, build: Builder, axis: int, has_axis: bool) -> Value:
    """The parts of an axis of a run, all of one size, as a stack."""
    data, rank = build.inputs[0], context.rank(0)
    sizes = build("Shape", data)
    step = (
        build.inputs[1].cast(DType.int64).op("Reshape", [1])
        if context.has(1)
        else build.constant([1])
    )
    count = sizes.op("Slice", [axis], [axis + 1]) / step
    before, after = sizes.op("Slice", [0], [axis]), sizes.op("Slice", [axis + 1], [LAST])
    shape = build("Concat", before, count, *([step] if has_axis else []), after, axis=0)
    parts = build("Reshape", data, shape, allowzero=1)
    last = rank + has_axis
    order = (axis, *range(axis), *range(axis + 1, last))
    return parts if axis == 0 else build("Transpose", parts, perm=order)


def _map(context: Context, build: Builder) -> Results:
    """Apply `body` to each element. Inputs after the first may be tensors, which all calls
    share.
    """
    body: Function = context.attribute("body")
    inputs = range(len(context.node.inputs))
    if any(context.is_stacked(i) or context.ragged(i) for i in inputs):
        return _map_in_loop(context, build, body)
    length = len(context.sequence(0))
    columns = [
        context.sequence(i) if context.holds_values(i) else (name,) * length
        for i, name in enumerate(context.node.inputs)
    ]
    rows = [
        splice(body, build, dict(zip(body.inputs, row, strict=True)))
        for row in zip(*columns, strict=True)
    ]
    return tuple(tuple(row[k] for row in rows) for k in range(len(body.outputs)))


def _map_in_loop(context: Context, build: Builder, body: Function) -> Results:
    """Apply `body` in a Loop over the elements, which scans the results."""
    inner, expansion = build.inner("map")
    step, condition = inner.fresh("step"), inner.fresh("condition")
    arguments: dict[str, str] = {}
    for index, (name, value) in enumerate(zip(body.inputs, context.node.inputs, strict=True)):
        if not context.holds_values(index):
            arguments[name] = value
        elif context.ragged(index):
            arguments[name] = inner("SequenceAt", value, step)
        else:
            arguments[name] = inner("Gather", _stack(context, build, index), step, axis=0)
    results = splice(body, inner, arguments)
    outputs = (inner.constant(np.bool_(True)), *results)
    nodes = tuple(expansion.nodes)
    loop = Function(body.name, (step, condition), outputs, nodes, {}, expansion.constants)
    count = build("SequenceLength", context.node.inputs[0])
    marks: dict[str, Any] = {"decided_by": count, ELEMENTS: len(results)}
    stacks = build.many("Loop", count, "", outputs=len(results), body=loop, **marks)
    return tuple(build("AsSequence", stack, domain="webmlc") for stack in stacks)


def _as_tensor(context: Context, build: Builder) -> Results:
    """The elements of a sequence as slices of one tensor."""
    values = context.sequences.get(context.node.inputs[0])
    if isinstance(values, Stacked):
        return (values.value,)
    if not isinstance(values, tuple) or not values:
        problem = "has elements that differ in size"
        if not values:
            problem = "is empty at first, so its elements have no type"
        raise _undecided(context, f"this sequence {problem}")
    return (build("JoinTensors", *values, domain="webmlc", **context.node.attributes),)


def _join_tensors(context: Context, build: Builder) -> Results:
    """Stack tensors of one shape."""
    first, *others = (context.type(i) for i in range(len(context.node.inputs)))
    for other in others:
        has_form = (other.dtype, other.rank) == (first.dtype, first.rank)
        if not has_form or not all(map(same, first.shape, other.shape)):
            raise _undecided(context, f"a sequence has elements of types {first} and {other}")
    rows = (build.value(v).unsqueeze(0) for v in context.node.inputs)
    return (build("Concat", *rows, axis=0),)


def _as_one(context: Context, build: Builder) -> Results:
    """A sequence as one tensor of slices, or as two tensors of elements and shapes."""
    values = context.sequences.get(context.node.inputs[0])
    if not isinstance(values, tuple):
        return (values,)
    if not values:
        raise _undecided(context, "this sequence is empty at first, so its elements have no type")
    return (build("OneOfTensors", *values, domain="webmlc", **context.node.attributes),)


def _one_of_tensors(context: Context, build: Builder) -> Results:
    """A sequence of tensors as one tensor of slices, or as two tensors."""
    first, *later_types = (context.type(i) for i in range(len(context.node.inputs)))
    for other in later_types:
        if (other.dtype, other.rank) != (first.dtype, first.rank):
            raise _undecided(context, f"a sequence has elements of types {first} and {other}")
    if all(all(map(same, first.shape, other.shape)) for other in later_types):
        return (Stacked(build("JoinTensors", *build.inputs, domain="webmlc")),)
    return (of_tensors(build, build.inputs),)


def _join_sequences(context: Context, build: Builder) -> Results:
    """The elements of two sequences, both of which are one tensor or two tensors."""
    values = [context.sequences[name] for name in context.node.inputs]
    stacks = [value.value for value in values if isinstance(value, Stacked)]
    if len(stacks) == 2:
        return (build("JoinStacks", *stacks, domain="webmlc", **context.node.attributes),)
    first, second = (
        of_stack(build, build.value(value.value)) if isinstance(value, Stacked) else value
        for value in values
    )
    assert isinstance(first, Ragged) and isinstance(second, Ragged)
    return (joined(build, first, second),)


def _join_stacks(context: Context, build: Builder) -> Results:
    """Join the slices of two tensors to one sequence."""
    first, second = context.type(0), context.type(1)
    if (first.dtype, first.rank) != (second.dtype, second.rank):
        raise _undecided(context, f"a sequence has elements in stacks {first} and {second}")
    if all(map(same, first.shape[1:], second.shape[1:])):
        return (Stacked(build("Concat", *build.inputs, axis=0)),)
    return (joined(build, *(of_stack(build, stack) for stack in build.inputs)),)


def _undecided(context: Context, reason: str) -> NotSupportedError:
    """The error for a sequence that cannot be one tensor. It names the value that a run decides."""
    value = context.attribute("decided_by", "")
    if value:
        return UnknownValueError(value, f"{reason}, and its length or a position")
    return NotSupportedError(f"{reason}; give all elements one shape")


def _as_sequence(context: Context, build: Builder) -> Results:
    return (context.ragged(0) or Stacked(build.inputs[0]),)


def _optional(context: Context, build: Builder) -> Results:
    return (build.inputs[0],) if context.has(0) else (None,)


def _has_element(context: Context, build: Builder) -> Results:
    name = build.inputs[0] if context.has(0) else ""
    there = name != "" and context.sequences.get(name, ()) is not None
    return (build.constant(np.bool_(there)),)


def _get_element(context: Context, build: Builder) -> Results:
    name = build.inputs[0]
    if context.sequences.get(name, ()) is None:
        raise NotSupportedError("this optional is empty")
    return (context.sequences.get(name, name),)


OPS: tuple[Operator, ...] = (
    Operator("SequenceConstruct", expand=_construct),
    Operator("SequenceEmpty", expand=_empty),
    Operator("SequenceInsert", expand=_insert),
    Operator("SequenceErase", expand=_erase),
    Operator("SequenceAt", expand=_at),
    Operator("SequenceLength", expand=_length),
    Operator("SequenceMap", expand=_map),
    Operator("SplitToSequence", expand=_split),
    Operator("ConcatFromSequence", expand=_concat),
    Operator("JoinElements", expand=_join_elements, domain="webmlc"),
    Operator("AsTensor", expand=_as_tensor, domain="webmlc"),
    Operator("JoinTensors", expand=_join_tensors, domain="webmlc"),
    Operator("JoinRagged", expand=join, domain="webmlc"),
    Operator("JoinStacks", expand=_join_stacks, domain="webmlc"),
    Operator("JoinSequences", expand=_join_sequences, domain="webmlc"),
    Operator("AsOne", expand=_as_one, domain="webmlc"),
    Operator("OneOfTensors", expand=_one_of_tensors, domain="webmlc"),
    Operator("AsSequence", expand=_as_sequence, domain="webmlc"),
    Operator("Optional", expand=_optional),
    Operator("OptionalHasElement", expand=_has_element),
    Operator("OptionalGetElement", expand=_get_element),
)
