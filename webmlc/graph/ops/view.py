"""Views and copies: operators that move elements without computing.

A view keeps the row-major order. A permutation, an expansion, a join or a split does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_expr, as_int, const, maximum, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.axes import squeeze, unsqueeze
from webmlc.graph.ops.operator import (
    VIEW,
    Context,
    Layout,
    NotSupportedError,
    Operator,
    case,
    same_type,
)
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    Shape,
    aligned,
    axes_within,
    broadcast,
    canonical,
    check_shapes,
    dimensions,
    product,
    reindex,
    require,
    same,
    select_among,
    with_axis,
)


def _view(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    shape = context.outputs[0].shape
    name = context.node.op.lower()
    return compute(name, shape, lambda *i: x[reindex(x.shape, shape, i)])


def _reshape_type(context: Context) -> TensorType:
    x = context.type(0)
    if "shape" in context.node.attributes:
        target = [as_expr(d) for d in context.attribute("shape")]
    else:
        target = dimensions(context, 1, "the shape")
    if not context.attribute("allowzero", 0):
        copied_axes = axes_within((d for d, n in enumerate(target) if n == ZERO), x.rank)
        target = [x.shape[d] if d in copied_axes else n for d, n in enumerate(target)]
    if (unknown_axes := [d for d, n in enumerate(target) if as_int(n) == -1]) != []:
        known_product = product(n for d, n in enumerate(target) if d not in unknown_axes)
        target[unknown_axes[0]] = _quotient(x.shape, target, known_product)
    total = product(x.shape)
    if not require(context, "equal", total, product(target)):
        raise NotSupportedError(f"{total} elements cannot take the shape {list(map(str, target))}")
    return TensorType(x.dtype, tuple(canonical(n) for n in target))


def _reshape(context: Context, build: Builder) -> Value | None:
    """Expand a Reshape whose shape only a run knows: the run also resolves the zeros and the -1."""
    resolved = "shape" in context.node.attributes or context.attribute("resolved", 0)
    if resolved or context.value(1) is not None:
        return None
    x, shape = build.inputs
    sizes = build("Shape", x)
    allow_zero = context.attribute("allowzero", 0)
    target = build("ReshapeSizes", sizes, shape, domain="webmlc", allowzero=allow_zero)
    return build("Reshape", x, target, allowzero=1, resolved=1)


def _reshape_sizes_type(context: Context) -> TensorType:
    if as_int(context.shape(1)[0]) is None:
        raise NotSupportedError("the length of the shape is symbolic, so the rank is not known")
    return context.type(1)


def _reshape_sizes(context: Context, sizes: Tensor, shape: Tensor) -> Tensor:
    """The sizes that a tensor with the sizes of input 0 takes when it is reshaped to input 1. They
    are all -1 if the numbers of elements differ.
    """
    rank, dtype = as_int(shape.shape[0]) or 0, DType.int64
    one, minus_one = const(1, dtype), const(-1, dtype)
    target: list[Expr] = [shape[d] for d in range(rank)]
    if not context.attribute("allowzero", 0):
        source_rank = as_int(sizes.shape[0]) or 0
        target = [
            select(n.equals(0), sizes[d], n) if d < source_rank else n for d, n in enumerate(target)
        ]
    total = reduce(mul, (sizes[d] for d in range(as_int(sizes.shape[0]) or 0)), one)
    known_product = reduce(mul, (select(n.equals(-1), one, n) for n in target), one)
    result = [select(n.equals(-1), total // maximum(known_product, 1), n) for n in target]
    fits = total.equals(reduce(mul, result, one))
    return compute("sizes", shape.shape, lambda i: select(fits, select_among(result, i), minus_one))


def _quotient(shape: Shape, target: Sequence[Expr], known_product: Expr) -> Expr:
    """The dimension that -1 stands for. Equal dimensions, which may be symbolic, cancel first."""
    left, right = list(shape), [n for n in target if as_int(n) != -1]
    for n in list(right):
        match = next((d for d in left if same(d, n)), None)
        if match is not None and n != ZERO:
            left.remove(match)
            right.remove(n)
    divisor = product(right)
    return canonical(product(left)) if divisor == ONE else canonical(product(left) // divisor)


def _flatten_type(context: Context) -> TensorType:
    x = context.type(0)
    axis = int(context.attribute("axis", 1))
    if axis != x.rank:
        axis = context.axis(1)
    return TensorType(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:])))


def _squeeze_type(context: Context) -> TensorType:
    x = context.type(0)
    axes = context.integers("axes", 1)
    if axes is None:
        removed_axes = {d for d, n in enumerate(x.shape) if n == ONE}
        for n in x.shape:  # a symbol that is 1 would change the rank
            if n != ONE:
                require(context, "unequal", n, ONE)
    else:
        removed_axes = set(axes_within(axes, x.rank))
    if not all(require(context, "equal", x.shape[d], ONE) for d in removed_axes):
        raise NotSupportedError(f"axes {sorted(removed_axes)} of {x} are not all of size 1")
    return TensorType(x.dtype, tuple(n for d, n in enumerate(x.shape) if d not in removed_axes))


def _unsqueeze_type(context: Context) -> TensorType:
    x = context.type(0)
    axes = context.integers("axes", 1) or ()
    rank = x.rank + len(axes)
    new_axes = axes_within(axes, rank)
    if len(new_axes) < len(axes):
        raise NotSupportedError(f"axes {list(axes)} name one twice")
    old_sizes = iter(x.shape)
    return TensorType(
        x.dtype, tuple(ONE if d in new_axes else next(old_sizes) for d in range(rank))
    )


def permutation(context: Context) -> tuple[int, ...]:
    """The permutation of a Transpose: output axis d is input axis `permutation[d]`."""
    rank = context.rank(0)
    axes = tuple(context.attribute("perm", tuple(range(rank))[::-1]))
    if sorted(axes) != list(range(rank)):
        raise NotSupportedError(f"{list(axes)} does not permute the axes of rank {rank}")
    return axes


def _transpose_type(context: Context) -> TensorType:
    x = context.type(0)
    return TensorType(x.dtype, tuple(x.shape[a] for a in permutation(context)))


def _transpose(context: Context, x: Tensor) -> Tensor:
    axes = permutation(context)
    places = [axes.index(d) for d in range(x.rank)]
    shape = context.outputs[0].shape
    return compute("transpose", shape, lambda *i: x[tuple(i[p] for p in places)])


def _channel_shuffle(context: Context, x: Tensor) -> Tensor:
    """Take the first channel of each group, then the second channel of each group, and so on."""
    axis, groups = context.axis(0), int(context.attribute("groups"))
    group_size = canonical(x.shape[axis] // groups)

    def element(*i: Expr) -> Expr:
        channel = i[axis] % groups * group_size + i[axis] // groups
        return x[with_axis(i, axis, channel)]

    return compute("channel_shuffle", x.shape, element)


def _expand_type(context: Context) -> TensorType:
    target = tuple(dimensions(context, 1, "the shape"))
    return TensorType(context.dtype(0), broadcast(context, context.shape(0), target))


def _expand(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    shape = context.outputs[0].shape
    return compute("expand", shape, lambda *i: x[aligned(i, x.shape, shape)])


def _tile_type(context: Context) -> TensorType:
    x, repeats = context.type(0), dimensions(context, 1, "the number of repeats")
    check_shapes(context, "", "rank", rank=x.rank)
    sizes = tuple(canonical(n * r) for n, r in zip(x.shape, repeats, strict=True))
    return TensorType(x.dtype, sizes)


def _tile(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    shape = context.outputs[0].shape

    def element(*i: Expr) -> Expr:
        pairs = zip(i, x.shape, shape, strict=True)
        return x[tuple(v if same(n, out) else v % n for v, n, out in pairs)]

    return compute("tile", shape, element)


def _concat_type(context: Context) -> TensorType:
    axis, count = context.axis(0), len(context.node.inputs)
    shape = list(context.shape(0))
    if not shape:
        raise NotSupportedError("scalars have no axis to concatenate: unsqueeze them first")
    for i in range(1, count):
        part_shape = context.shape(i)
        if len(part_shape) != len(shape):
            raise NotSupportedError("the ranks of the parts differ")
        for d, size in enumerate(part_shape):
            if d == axis:
                shape[d] = canonical(shape[d] + size)
            elif not require(context, "equal", size, shape[d]):
                raise NotSupportedError(
                    f"input {i} is of size {size} along axis {d}, others of {shape[d]}"
                )
            elif isinstance(size, Const):
                shape[d] = size
    return TensorType(context.dtype(0), tuple(shape))


def _concat(context: Context, *parts: Tensor) -> Tensor:
    axis = context.axis(0)

    def element(*i: Expr) -> Expr:
        offsets: list[Expr] = [ZERO]
        for part in parts[:-1]:
            offsets.append(canonical(offsets[-1] + part.shape[axis]))
        values = [
            part[with_axis(i, axis, i[axis] - offset)]
            for part, offset in zip(parts, offsets, strict=True)
        ]
        value = values.pop()
        for previous in reversed(values):
            value = select(i[axis] < offsets.pop(), previous, value)
        return value

    return compute("concat", context.outputs[0].shape, element)


START = "start"
"""An attribute of a Split that covers a part of its input: the position at which its first part
starts.
"""


def split_sizes(context: Context) -> list[Expr]:
    """The sizes of the parts along the axis. Without sizes, the parts are as equal as possible."""
    size, outputs = context.shape(0)[context.axis(0)], len(context.node.outputs)
    if "split" in context.node.attributes:
        parts: list[Expr] = [const(n) for n in context.attribute("split")]
    elif context.has(1):
        parts = dimensions(context, 1, "the sizes of the parts")
    else:
        parts = _equal_parts(context, size, outputs)
    if START in context.node.attributes:
        return parts
    total = canonical(sum(parts, ZERO))
    if len(parts) != outputs or not require(context, "equal", total, size):
        sizes = ", ".join(map(str, parts))
        raise NotSupportedError(f"{size} elements cannot be {outputs} parts of sizes [{sizes}]")
    return parts


def _equal_parts(context: Context, size: Expr, outputs: int) -> list[Expr]:
    """Equal sizes. From opset 18 on, the last may be smaller."""
    count = int(context.attribute("num_outputs", outputs))
    if count != outputs:
        raise NotSupportedError(f"num_outputs is {count}, for {outputs} outputs")
    if "num_outputs" not in context.node.attributes or canonical(size % count) == ZERO:
        return [canonical(size // count)] * count
    part = (size + (count - 1)) // count
    if not require(context, "at most", canonical(part * (count - 1)), size):
        raise NotSupportedError(f"{size} elements in {count} parts, of which only the last is less")
    return [canonical(maximum(minimum(part, size - part * k), 0)) for k in range(count)]


def _split_type(context: Context) -> tuple[TensorType, ...]:
    x, axis = context.type(0), context.axis(0)
    return tuple(
        TensorType(x.dtype, with_axis(x.shape, axis, size)) for size in split_sizes(context)
    )


def _split(context: Context, x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    axis = context.axis(0)
    parts: list[Tensor] = []
    offset: Expr = context.attribute(START, ZERO)
    for number, size in enumerate(split_sizes(context)):
        shape = with_axis(x.shape, axis, size)

        def element(*i: Expr, offset: Expr = offset) -> Expr:
            return x[with_axis(i, axis, i[axis] + offset)]

        parts.append(compute(f"split_{number}", shape, element))
        offset = canonical(offset + size)
    return tuple(parts)


def _depth_to_space_type(context: Context) -> TensorType:
    b = context.count("blocksize")
    check_shapes(context, "batch block*block*channels height width", block=b)
    n, c, h, w = context.shape(0)
    sizes = (n, canonical(c // (b * b)), canonical(h * b), canonical(w * b))
    return TensorType(context.dtype(0), sizes)


def _depth_to_space(context: Context, x: Tensor) -> Tensor:
    b = context.count("blocksize")
    shape = context.outputs[0].shape
    columns_first = context.attribute("mode", "DCR") == "CRD"

    def element(n: Expr, c: Expr, y: Expr, x_: Expr) -> Expr:
        block = y % b * b + x_ % b
        channel = c * (b * b) + block if columns_first else block * shape[1] + c
        return x[n, channel, y // b, x_ // b]

    return compute("depth_to_space", shape, element)


def _space_to_depth_type(context: Context) -> TensorType:
    b = context.count("blocksize")
    check_shapes(context, "batch channels block*height block*width", block=b)
    n, c, h, w = context.shape(0)
    sizes = (n, canonical(c * (b * b)), canonical(h // b), canonical(w // b))
    return TensorType(context.dtype(0), sizes)


def _space_to_depth(context: Context, x: Tensor) -> Tensor:
    b = context.count("blocksize")
    channels = x.shape[1]
    columns_first = context.attribute("mode", "DCR") == "CRD"

    def element(n: Expr, c: Expr, y: Expr, x_: Expr) -> Expr:
        block, channel = (
            (c % (b * b), c // (b * b)) if columns_first else (c // channels, c % channels)
        )
        return x[n, channel, y * b + block // b, x_ * b + block % b]

    return compute("space_to_depth", context.outputs[0].shape, element)


BLOCKS = {"mode": ("DCR", "CRD")}
"""Whether depth is blocks of channels, or channels of blocks."""

X = "float32[2, 3, 4]"

OPS: tuple[Operator, ...] = (
    Operator("Reshape", _reshape_type, _view, _reshape, kind="injective", layout=VIEW, cases=(
        case(X, [4, 6]), case(X, [0, -1]), case(X, [2, 2, 2, 3, 1]), case(X, [3, 2, 4]))),
    Operator("ReshapeSizes", _reshape_sizes_type, _reshape_sizes, domain="webmlc",
             kind="injective"),
    Operator("Flatten", _flatten_type, _view, kind="injective", layout=VIEW, cases=(
        case(X), case(X, axis=0), case(X, axis=-1), case(X, axis=3))),
    Operator("Squeeze", _squeeze_type, _view, squeeze, kind="injective", layout=VIEW, cases=(
        case("float32[1, 3, 1, 4]"), case("float32[1, 3, 1, 4]", [2]),
        case("float32[1, 3, 1, 4]", [0, -2]), case("float32[1, 3]", axes=(0,), opset=11))),
    Operator("Unsqueeze", _unsqueeze_type, _view, unsqueeze, kind="injective", layout=VIEW, cases=(
        case(X, [0]), case(X, [1, -1]), case(X, axes=(0, 4), opset=11))),
    Operator("Transpose", _transpose_type, _transpose, kind="injective", cases=(
        case(X), case(X, perm=(0, 2, 1)), case(X, perm=(2, 0, 1)))),
    Operator("ChannelShuffle", same_type, _channel_shuffle, domain="webmlc",
             kind="injective", layout=Layout(("map",), axis=1)),
    Operator("Expand", _expand_type, _expand, kind="injective", cases=(
        case("float32[3, 1]", [2, 1, 4]), case("float32[3, 1]", [3, 4]), case("float32[4]", [1]))),
    Operator("Tile", _tile_type, _tile, kind="injective", cases=(case(X, [1, 2, 3]),)),
    Operator("Concat", _concat_type, _concat, kind="injective",
             layout=Layout(("map",), axis=0), cases=(
        case(X, X, axis=0), case(X, "float32[2, 1, 4]", X, axis=1), case(X, axis=-1))),
    Operator("Split", _split_type, _split, kind="injective", cases=(
        case(X, outputs=2, num_outputs=2), case(X, [1, 2], outputs=2, axis=1),
        case(X, outputs=2, axis=2, opset=13), case(X, split=(3, 1), axis=2, outputs=2, opset=11))),
    Operator("DepthToSpace", _depth_to_space_type, _depth_to_space, kind="injective",
             choices=BLOCKS, cases=(
        case("float32[1, 8, 2, 3]", blocksize=2),
        case("float32[1, 8, 2, 3]", blocksize=2, mode="CRD"))),
    Operator("SpaceToDepth", _space_to_depth_type, _space_to_depth, kind="injective",
             choices=BLOCKS, cases=(
        case("float32[1, 2, 4, 6]", blocksize=2),)),
)  # fmt: skip
