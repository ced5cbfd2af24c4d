"""Shape operators: the same elements at other places; and those that ask for shapes, or make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.dtypes import DType
from webmlc.core.expr import (
    Const,
    Expr,
    as_expr,
    as_int,
    call,
    const,
    maximum,
    minimum,
    select,
    variables,
)
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.elementwise import cast_to
from webmlc.graph.ops.operator import (
    ELEMENT_TYPES,
    SYMBOLIC_CONSTANT,
    Builder,
    Context,
    NotSupportedError,
    Operator,
    UnknownValueError,
    case,
)
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    Shape,
    aligned,
    broadcast,
    canonical,
    given,
    product,
    reindex,
    same,
)

Inputs = tuple[Tensor | None, ...]


def dimensions(context: Context, index: int, what: str) -> list[Expr]:
    """The elements of an input that is a shape: numbers, or expressions of symbols."""
    return [as_expr(e if isinstance(e, Expr) else int(e))
            for e in context.known(index, what).reshape(-1).tolist()]  # fmt: skip


# -- views: row-major order stays ---------------------------------------------------------------


def _view(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, shape = given(inputs, 0), context.outputs[0].shape
    name = context.node.op.lower()
    return (compute(name, shape, lambda *i: x[reindex(x.shape, shape, i)]),)


def _reshape_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    if "shape" in context.node.attributes:
        wanted = [as_expr(d) for d in context.attribute("shape")]
    else:
        wanted = dimensions(context, 1, "the shape")
    if not context.attribute("allowzero", 0):
        wanted = [x.shape[d] if n == ZERO else n for d, n in enumerate(wanted)]
    if (unknown := [d for d, n in enumerate(wanted) if as_int(n) == -1]) != []:
        rest = product(n for d, n in enumerate(wanted) if d not in unknown)
        wanted[unknown[0]] = _quotient(x.shape, wanted, rest)
    total, target = as_int(product(x.shape)), as_int(product(wanted))
    if total is not None and target is not None and total != target:
        raise NotSupportedError(f"{total} elements cannot take the shape {list(map(str, wanted))}")
    return (TensorType(x.dtype, tuple(canonical(n) for n in wanted)),)


def _quotient(shape: Shape, wanted: Sequence[Expr], rest: Expr) -> Expr:
    """The dimension that -1 stands for. Equal dimensions cancel first: they may be symbolic."""
    left, right = list(shape), [n for n in wanted if as_int(n) != -1]
    for n in list(right):
        match = next((d for d in left if same(d, n)), None)
        if match is not None and n != ZERO:
            left.remove(match)
            right.remove(n)
    divisor = product(right)
    return canonical(product(left)) if divisor == ONE else canonical(product(left) // divisor)


def _flatten_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    axis = int(context.attribute("axis", 1))
    axis += x.rank if axis < 0 else 0
    return (TensorType(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:]))),)


def _squeeze_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    axes = context.integers("axes", 1)
    if axes is None:
        gone = {d for d, n in enumerate(x.shape) if n == ONE}
    else:
        gone = {a % x.rank for a in axes}
    return (TensorType(x.dtype, tuple(n for d, n in enumerate(x.shape) if d not in gone)),)


def _unsqueeze_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    axes = context.integers("axes", 1) or ()
    rank = x.rank + len(axes)
    new = {a % rank for a in axes}
    rest = iter(x.shape)
    return (TensorType(x.dtype, tuple(ONE if d in new else next(rest) for d in range(rank))),)


# -- permutations and copies --------------------------------------------------------------------


def permutation(context: Context) -> tuple[int, ...]:
    """The axes of a Transpose: output axis d is input axis `permutation[d]`."""
    rank = context.rank(0)
    axes = context.attribute("perm", tuple(range(rank))[::-1])
    return tuple(int(a) % max(rank, 1) for a in axes)


def _transpose_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    return (TensorType(x.dtype, tuple(x.shape[a] for a in permutation(context))),)


def _transpose(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, axes = given(inputs, 0), permutation(context)
    places = [axes.index(d) for d in range(x.rank)]
    shape = context.outputs[0].shape
    return (compute("transpose", shape, lambda *i: x[tuple(i[p] for p in places)]),)


def _expand_type(context: Context) -> tuple[TensorType, ...]:
    wanted = tuple(dimensions(context, 1, "the shape"))
    return (TensorType(context.dtype(0), broadcast(context.shape(0), wanted)),)


def _expand(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, shape = given(inputs, 0), context.outputs[0].shape
    return (compute("expand", shape, lambda *i: x[aligned(i, x.shape, shape)]),)


def _tile_type(context: Context) -> tuple[TensorType, ...]:
    x, repeats = context.type(0), dimensions(context, 1, "the number of repeats")
    sizes = tuple(canonical(n * r) for n, r in zip(x.shape, repeats, strict=True))
    return (TensorType(x.dtype, sizes),)


def _tile(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, shape = given(inputs, 0), context.outputs[0].shape

    def element(*i: Expr) -> Expr:
        pairs = zip(i, x.shape, shape, strict=True)
        return x[tuple(v if same(n, out) else v % n for v, n, out in pairs)]

    return (compute("tile", shape, element),)


def _concat_type(context: Context) -> tuple[TensorType, ...]:
    axis, count = context.axis(0), len(context.node.inputs)
    shape = list(context.shape(0))
    for i in range(1, count):
        other = context.shape(i)
        if len(other) != len(shape):
            raise NotSupportedError("the ranks of the parts differ")
        for d, size in enumerate(other):
            if d == axis:
                shape[d] = canonical(shape[d] + size)
            elif isinstance(size, Const):
                shape[d] = size
    return (TensorType(context.dtype(0), tuple(shape)),)


def _concat(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    parts = [given(inputs, i) for i in range(len(inputs))]
    axis = context.axis(0)

    def element(*i: Expr) -> Expr:
        offsets: list[Expr] = [ZERO]
        for part in parts[:-1]:
            offsets.append(canonical(offsets[-1] + part.shape[axis]))
        values = [
            part[(*i[:axis], i[axis] - offset, *i[axis + 1 :])]
            for part, offset in zip(parts, offsets, strict=True)
        ]
        value = values.pop()
        for previous in reversed(values):
            value = select(i[axis] < offsets.pop(), previous, value)
        return value

    return (compute("concat", context.outputs[0].shape, element),)


def split_sizes(context: Context) -> list[Expr]:
    """The parts' sizes along the axis: given, or as equal as they can be."""
    size = context.shape(0)[context.axis(0)]
    count = sum(1 for o in context.node.outputs if o)
    if "split" in context.node.attributes:
        return [const(n) for n in context.attribute("split")]
    if context.has(1):
        return dimensions(context, 1, "the sizes of the parts")
    count = int(context.attribute("num_outputs", count))
    number = as_int(size)
    if number is None or number % count == 0:
        return [canonical(size // count)] * count
    part = -(-number // count)
    return [const(max(0, min(part, number - k * part))) for k in range(count)]


def _split_type(context: Context) -> tuple[TensorType, ...]:
    x, axis = context.type(0), context.axis(0)
    return tuple(
        TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]))
        for size in split_sizes(context)
    )


def _split(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, axis = given(inputs, 0), context.axis(0)
    parts: list[Tensor] = []
    offset: Expr = ZERO
    for number, size in enumerate(split_sizes(context)):
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])

        def element(*i: Expr, offset: Expr = offset) -> Expr:
            return x[(*i[:axis], i[axis] + offset, *i[axis + 1 :])]

        parts.append(compute(f"split_{number}", shape, element))
        offset = canonical(offset + size)
    return tuple(parts)


# -- Slice and Pad ------------------------------------------------------------------------------

FAR = 2**31 - 1


def slices(context: Context) -> list[tuple[Expr, Expr, int]]:
    """(start, size, step) of every axis; starts and ends may be symbolic, steps not."""
    shape = context.shape(0)
    result: list[tuple[Expr, Expr, int]] = [(ZERO, size, 1) for size in shape]
    if "starts" in context.node.attributes:
        starts = [as_expr(int(v)) for v in context.attribute("starts")]
        ends = [as_expr(int(v)) for v in context.attribute("ends")]
    else:
        starts = dimensions(context, 1, "the start of the slice")
        ends = dimensions(context, 2, "the end of the slice")
    axes = context.integers("axes", 3) or tuple(range(len(starts)))
    steps = context.integers("steps", 4) or (1,) * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis % len(shape)]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, last = _clamped(start, size, low, high), _clamped(end, size, low, high, step < 0)
        distance = last - first if step > 0 else first - last
        count = (distance + (abs(step) - 1)) // abs(step)
        number = canonical(count)
        known = as_int(number)
        positive = known is None and _is_natural(number)
        number = number if positive or (known or 0) > 0 else canonical(maximum(number, 0))
        result[axis % len(shape)] = (first, number, step)
    return result


def _is_natural(expr: Expr) -> bool:
    return bounds(expr, dict.fromkeys(variables(expr), SYMBOL)).low >= 0


def _clamped(value: Expr, size: Expr, low: Expr | int, high: Expr, end: bool = False) -> Expr:
    """A start or end counted from the front and kept within the axis.

    Huge numbers mean "to the end"; `end` says that -1 - size and below mean "before the first".
    """
    number = as_int(value)
    if number is not None and number >= FAR:
        return canonical(high)
    if number is not None and number <= -FAR:
        return canonical(low if not end else -1)
    absolute = value + size if number is not None and number < 0 else value
    limited = minimum(maximum(absolute, low), high)
    if number is None and not _is_natural(value):
        limited = minimum(maximum(select(value < 0, value + size, value), low), high)
    return canonical(limited)


def _slice_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(context.dtype(0), tuple(size for _, size, _ in slices(context))),)


def _slice(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, cuts = given(inputs, 0), slices(context)

    def element(*i: Expr) -> Expr:
        return x[tuple(start + v * step for v, (start, _, step) in zip(i, cuts, strict=True))]

    return (compute("slice", context.outputs[0].shape, element),)


def pads_of(context: Context) -> list[tuple[Expr, Expr]]:
    """(before, after) of every axis; negative ones cut."""
    rank = context.rank(0)
    if "pads" in context.node.attributes:
        flat = [as_expr(int(v)) for v in context.attribute("pads")]
    else:
        flat = dimensions(context, 1, "the padding")
    axes = context.integers("axes", 3) or tuple(range(rank))
    result: list[tuple[Expr, Expr]] = [(ZERO, ZERO)] * rank
    for place, axis in enumerate(axes):
        result[axis % rank] = (flat[place], flat[len(axes) + place])
    return result


def _pad_type(context: Context) -> tuple[TensorType, ...]:
    x = context.type(0)
    pairs = zip(x.shape, pads_of(context), strict=True)
    return (TensorType(x.dtype, tuple(canonical(n + a + b) for n, (a, b) in pairs)),)


def _pad(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, pads = given(inputs, 0), pads_of(context)
    mode = context.attribute("mode", "constant")
    constant = context.constant(2)
    if constant is not None and constant.size:
        fill: Any = constant.reshape(-1)[0].item()
    else:
        fill = context.attribute("value", 0)
    dynamic = inputs[2] if len(inputs) > 2 and constant is None else None

    def element(*index: Expr) -> Expr:
        inside: Expr | None = None
        place: list[Expr] = []
        for i, size, (before, after) in zip(index, x.shape, pads, strict=True):
            at = i - before
            if before == ZERO and after == ZERO:
                place.append(i)
            elif mode == "constant":
                place.append(at)
                here = (at >= 0) & (at < size)
                inside = here if inside is None else inside & here
            else:
                place.append(_outside(mode, at, size))
        if inside is None:
            return x[tuple(place)]
        filling = Const(fill, x.dtype) if dynamic is None else dynamic[(ZERO,) * dynamic.rank]
        return select(inside, x[tuple(place)], filling)

    return (compute("pad", context.outputs[0].shape, element),)


def _outside(mode: str, at: Expr, size: Expr) -> Expr:
    """The element that stands at `at` in a tensor continued at both ends."""
    match mode:
        case "edge":
            return minimum(maximum(at, 0), size - 1)
        case "wrap":
            return at % size
        case "reflect":
            period = maximum(size * 2 - 2, 1)
            folded = at % period
            return minimum(folded, period - folded)
    raise NotSupportedError(f"padding mode {mode!r}")


# -- depth and space ----------------------------------------------------------------------------


def _depth_to_space_type(context: Context) -> tuple[TensorType, ...]:
    (n, c, h, w), b = context.shape(0), int(context.attribute("blocksize"))
    sizes = (n, canonical(c // (b * b)), canonical(h * b), canonical(w * b))
    return (TensorType(context.dtype(0), sizes),)


def _depth_to_space(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, b = given(inputs, 0), int(context.attribute("blocksize"))
    shape = context.outputs[0].shape
    columns_first = context.attribute("mode", "DCR") == "CRD"

    def element(n: Expr, c: Expr, y: Expr, x_: Expr) -> Expr:
        block = y % b * b + x_ % b
        channel = c * (b * b) + block if columns_first else block * shape[1] + c
        return x[n, channel, y // b, x_ // b]

    return (compute("depth_to_space", shape, element),)


def _space_to_depth_type(context: Context) -> tuple[TensorType, ...]:
    (n, c, h, w), b = context.shape(0), int(context.attribute("blocksize"))
    sizes = (n, canonical(c * (b * b)), canonical(h // b), canonical(w // b))
    return (TensorType(context.dtype(0), sizes),)


def _space_to_depth(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    x, b = given(inputs, 0), int(context.attribute("blocksize"))
    channels = x.shape[1]
    columns_first = context.attribute("mode", "DCR") == "CRD"

    def element(n: Expr, c: Expr, y: Expr, x_: Expr) -> Expr:
        block, channel = (
            (c % (b * b), c // (b * b)) if columns_first else (c // channels, c % channels)
        )
        return x[n, channel, y * b + block // b, x_ * b + block % b]

    return (compute("space_to_depth", context.outputs[0].shape, element),)


# -- shapes as values ---------------------------------------------------------------------------


def select_among(values: Sequence[Expr], index: Expr) -> Expr:
    """`values[index]`, as a chain of selects."""
    result = values[-1]
    for position in reversed(range(len(values) - 1)):
        result = select(call("eq", index, position), values[position], result)
    return result


def _shape_bounds(context: Context) -> Shape:
    return context.shape(0)[context.attribute("start", 0) : context.attribute("end", FAR)]


def _shape_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(DType.int64, (const(len(_shape_bounds(context))),)),)


def _shape(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    sizes = [d.astype(DType.int64) for d in _shape_bounds(context)] or [Const(0, DType.int64)]
    return (compute("shape", context.outputs[0].shape, lambda i: select_among(sizes, i)),)


def _size_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(DType.int64, ()),)


def _size(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    total = product(context.shape(0)).astype(DType.int64)
    return (compute("size", (), lambda: total),)


def _constant_of_shape_type(context: Context) -> tuple[TensorType, ...]:
    dtype = DType.of(np.asarray(context.attribute("value", np.zeros(1, np.float32))).dtype)
    return (TensorType(dtype, tuple(canonical(d) for d in dimensions(context, 0, "the shape"))),)


def _constant_of_shape(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    value = np.asarray(context.attribute("value", np.zeros(1, np.float32))).reshape(-1)[0].item()
    y = context.outputs[0]
    return (compute("fill", y.shape, lambda *_: Const(value, y.dtype)),)


def _range_type(context: Context) -> tuple[TensorType, ...]:
    start, limit, delta = (
        context.known(i, what).reshape(-1)[0]
        for i, what in enumerate(("the start", "the limit", "the step"))
    )
    dtype = context.dtype(0)
    if isinstance(delta, Expr):
        raise UnknownValueError(context.node.inputs[2], "the step")
    if not isinstance(start, Expr) and not isinstance(limit, Expr):
        return (TensorType(dtype, (const(max(0, int(np.ceil((limit - start) / delta)))),)),)
    distance = (as_expr(limit) - start) if delta > 0 else (as_expr(start) - limit)
    step = abs(int(delta))
    return (TensorType(dtype, (canonical((distance + (step - 1)) // step),)),)


def _range(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    start, delta = given(inputs, 0), given(inputs, 2)
    y = context.outputs[0]

    def scalar(t: Tensor) -> Expr:
        return t[(ZERO,) * t.rank]

    def element(i: Expr) -> Expr:
        return scalar(start) + i.astype(y.dtype) * scalar(delta)

    return (compute("range", y.shape, element),)


def _eye_like_type(context: Context) -> tuple[TensorType, ...]:
    dtype = ELEMENT_TYPES.get(context.attribute("dtype", -1), context.dtype(0))
    return (TensorType(dtype, context.shape(0)),)


def _eye_like(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    k, y = int(context.attribute("k", 0)), context.outputs[0]

    def element(i: Expr, j: Expr) -> Expr:
        return select(call("eq", i + k, j), Const(1, y.dtype), Const(0, y.dtype))

    return (compute("eye", y.shape, element),)


def _symbolic_constant_type(context: Context) -> tuple[TensorType, ...]:
    sizes = tuple(const(n) for n in context.attribute("shape"))
    return (TensorType(context.attribute("dtype"), sizes),)


def _symbolic_constant(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Few elements, each an expression of symbols: a chain of selects over the flat index."""
    y = context.outputs[0]
    values = [cast_to(as_expr(e), y.dtype) for e in context.attribute("elements")]

    def element(*i: Expr) -> Expr:
        flat: Expr = ZERO
        for v, size in zip(i, y.shape, strict=True):
            flat = flat * size + v
        return select_among(values, flat)

    return (compute("symbols", y.shape, element),)


# -- rows that become others --------------------------------------------------------------------


def _first_like(context: Context) -> tuple[TensorType, ...]:
    return (context.type(0), TensorType(DType.bool, context.shape(0)))[: _outputs(context)]


def _outputs(context: Context) -> int:
    return sum(1 for o in context.node.outputs if o)


def _dropout(context: Context, builder: Builder) -> tuple[str, ...]:
    """Inference drops nothing; the mask says so."""
    training = context.value(2) if context.has(2) else None
    if training is not None and bool(training.reshape(-1)[0]):
        ratio = context.value(1)
        if ratio is None or float(ratio.reshape(-1)[0]) != 0.0:
            raise NotSupportedError("random dropout (training mode) is not supported")
    elif context.has(2) and training is None:
        raise UnknownValueError(context.node.inputs[2], "the training mode")
    x = builder("Identity", context.node.inputs[0])
    if _outputs(context) < 2:
        return (x,)
    shape = builder("Shape", context.node.inputs[0])
    return (x, builder("ConstantOfShape", shape, value=np.array([True])))


X = "float32[2, 3, 4]"

OPS: tuple[Operator, ...] = (
    Operator("Reshape", _reshape_type, _view, kind="injective", cases=(
        case(X, [4, 6]), case(X, [0, -1]), case(X, [2, 2, 2, 3, 1]), case(X, [3, 2, 4]))),
    Operator("Flatten", _flatten_type, _view, kind="injective", cases=(
        case(X), case(X, axis=0), case(X, axis=-1), case(X, axis=3))),
    Operator("Squeeze", _squeeze_type, _view, kind="injective", cases=(
        case("float32[1, 3, 1, 4]"), case("float32[1, 3, 1, 4]", [2]),
        case("float32[1, 3, 1, 4]", [0, -2]), case("float32[1, 3]", axes=(0,), opset=11))),
    Operator("Unsqueeze", _unsqueeze_type, _view, kind="injective", cases=(
        case(X, [0]), case(X, [1, -1]), case(X, axes=(0, 4), opset=11))),
    Operator("Transpose", _transpose_type, _transpose, kind="injective", cases=(
        case(X), case(X, perm=(0, 2, 1)), case(X, perm=(2, 0, 1)))),
    Operator("Expand", _expand_type, _expand, kind="injective", cases=(
        case("float32[3, 1]", [2, 1, 4]), case("float32[3, 1]", [3, 4]), case("float32[4]", [1]))),
    Operator("Tile", _tile_type, _tile, kind="injective", cases=(case(X, [1, 2, 3]),)),
    Operator("Concat", _concat_type, _concat, kind="injective", cases=(
        case(X, X, axis=0), case(X, "float32[2, 1, 4]", X, axis=1), case(X, axis=-1))),
    Operator("Split", _split_type, _split, kind="injective", cases=(
        case(X, outputs=2, num_outputs=2), case(X, [1, 2], outputs=2, axis=1),
        case(X, outputs=2, axis=2, opset=13), case(X, split=(3, 1), axis=2, outputs=2, opset=11))),
    Operator("Slice", _slice_type, _slice, kind="injective", cases=(
        case(X, [0, 1], [2, 3]), case(X, [-2], [2**62], [1]), case(X, [3], [0], [2], [-1]),
        case(X, [-1], [-100], [2], [-2]), case(X, [0], [4], [2], [3]), case(X, [5], [9], [2]),
        case(X, starts=(1,), ends=(-1,), axes=(2,), opset=9))),
    Operator("Pad", _pad_type, _pad, kind="injective", cases=(
        case(X, [0, 1, 2, 1, 0, 3]), case(X, [0, 0, 1, 0, 0, 1], np.float32(1.5)),
        case(X, [0, 1, 2, 0, 1, 1], mode="edge"), case(X, [0, 1, 2, 0, 1, 1], mode="reflect"),
        case(X, [0, 1, 2, 0, 1, 1], mode="wrap"), case(X, [0, -1, 0, 0, 0, -2]),
        case(X, [2, 1], None, [2]), case(X, pads=(0, 0, 1, 0, 0, 1), value=0.5, opset=10))),
    Operator("DepthToSpace", _depth_to_space_type, _depth_to_space, kind="injective", cases=(
        case("float32[1, 8, 2, 3]", blocksize=2), case("float32[1, 8, 2, 3]", blocksize=2, mode="CRD"))),
    Operator("SpaceToDepth", _space_to_depth_type, _space_to_depth, kind="injective", cases=(
        case("float32[1, 2, 4, 6]", blocksize=2),)),
    Operator("Shape", _shape_type, _shape, kind="injective", cases=(
        case(X), case(X, start=1), case(X, start=-2, end=-1))),
    Operator("Size", _size_type, _size, kind="injective", cases=(case(X),)),
    Operator("ConstantOfShape", _constant_of_shape_type, _constant_of_shape, kind="injective", cases=(
        case([2, 3]), case([2, 3], value=np.array([5], np.int64)))),
    Operator("Range", _range_type, _range, kind="injective", cases=(
        case(np.int64(1), np.int64(10), np.int64(3)), case(np.int64(5), np.int64(-5), np.int64(-2)),
        case(np.float32(0.5), np.float32(3), np.float32(0.5)))),
    Operator("EyeLike", _eye_like_type, _eye_like, kind="injective", cases=(
        case("float32[3, 4]"), case("float32[3, 4]", k=1, dtype=7))),
    Operator("SymbolicConstant", _symbolic_constant_type, _symbolic_constant, kind="injective",
             domain=SYMBOLIC_CONSTANT[0]),
    Operator("Dropout", _first_like, expand=_dropout, cases=(case(X), case(X, outputs=2))),
)  # fmt: skip
