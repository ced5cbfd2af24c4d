"""Sequences and optionals, which exist only at build time. A sequence is a tuple of values. An
optional is its value, or None.

All rows expand, so that only tensors remain after `infer_shapes`. A model output that is a sequence
becomes one output for each element.

    s = SequenceConstruct(a, b); t = SequenceInsert(s, c); y = SequenceAt(t, 2)  ->  y = Identity(c)
"""

from __future__ import annotations

import numpy as np

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ops.control import splice
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, Result

Results = tuple[Result, ...]


def _construct(context: Context, build: Builder) -> Results:
    return (context.node.inputs,)


def _empty(context: Context, build: Builder) -> Results:
    return ((),)


def _position(context: Context, index: int, length: int, last: int) -> int:
    """A position input, counted from the front. `last` is the largest position allowed."""
    (position,) = context.integers("position", index) or (last,)
    if not -length <= position <= last:
        raise NotSupportedError(f"position {position} is outside a sequence of {length}")
    return position + length if position < 0 else position


def _insert(context: Context, build: Builder) -> Results:
    values = context.sequence(0)
    at = _position(context, 2, len(values), len(values))
    return ((*values[:at], build.inputs[1], *values[at:]),)


def _erase(context: Context, build: Builder) -> Results:
    values = context.sequence(0)
    at = _position(context, 1, len(values), len(values) - 1)
    return ((*values[:at], *values[at + 1 :]),)


def _at(context: Context, build: Builder) -> Results:
    values = context.sequence(0)
    return (values[_position(context, 1, len(values), len(values) - 1)],)


def _length(context: Context, build: Builder) -> Results:
    return (build.constant(np.int64(len(context.sequence(0)))),)


def _concat(context: Context, build: Builder) -> Results:
    values, axis = context.sequence(0), int(context.attribute("axis"))
    if context.attribute("new_axis", 0):
        values = tuple(build.value(v).unsqueeze(axis) for v in values)
    return (build("Concat", *values, axis=axis),)


def _split(context: Context, build: Builder) -> Results:
    """Split a tensor into parts of `split` elements, or of the sizes that `split` lists. In the
    first case, the last part may be smaller.
    """
    axis, data = context.axis(0), build.inputs[0]
    if context.has(1) and context.rank(1) == 1:
        count = as_int(context.shape(1)[0])
        if count is None:
            raise NotSupportedError("how many parts there are is known at run time only")
        return (build.many("Split", data, build.inputs[1], outputs=count, axis=axis),)
    size = as_int(context.shape(0)[axis])
    if size is None:
        raise NotSupportedError(f"axis {axis} is symbolic: the sequence's length is unknown")
    (step,) = context.integers("split", 1) or (1,)
    split = [min(step, size - at) for at in range(0, size, step)]
    sizes = build.constant(np.array(split, np.int64))
    parts = build.many("Split", data, sizes, outputs=len(split), axis=axis)
    if not context.has(1) and not context.attribute("keepdims", 1):
        parts = tuple(build("Squeeze", part, axes=(axis,)) for part in parts)
    return (parts,)


def _map(context: Context, build: Builder) -> Results:
    """Apply `body` to each element. Inputs after the first may be tensors, which all calls
    share.
    """
    body = context.attribute("body")
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
    return (name,)


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
    Operator("Optional", expand=_optional),
    Operator("OptionalHasElement", expand=_has_element),
    Operator("OptionalGetElement", expand=_get_element),
)
