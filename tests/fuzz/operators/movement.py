"""How to draw what moves elements: views, slices, gathers, scatters, resizing."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from tests.fuzz.operators.elementwise import types
from tests.fuzz.operators.reductions import an_axis, channels_first
from tests.fuzz.sketch import DTYPES, Retry, Sketch


def any_value(sketch: Sketch, low: int = 0, high: int = 4) -> str:
    """A value of any type."""
    return sketch.value(DTYPES, low, high)


def transpose(sketch: Sketch) -> None:
    """A permutation, or the reverse."""
    x = any_value(sketch)
    rank = sketch.array(x).ndim
    order = list(range(rank))
    for i in range(rank - 1, 0, -1):
        j = sketch.integer(0, i)
        order[i], order[j] = order[j], order[i]
    sketch.node("Transpose", x, perm=order if rank and sketch.chance(80) else None)


def reshape(sketch: Sketch) -> None:
    """Dimensions merged and split; one may be -1, some 0."""
    x = any_value(sketch)
    array = sketch.array(x)
    left, shape = array.size, []
    if left == 0:
        raise Retry
    while left > 1 and len(shape) < 4 and sketch.chance(70):
        divisors = [d for d in range(1, min(left, 64) + 1) if left % d == 0]
        shape.append(sketch.choose(divisors))
        left //= shape[-1]
    shape.append(left)
    if sketch.chance(50):
        shape[sketch.integer(0, len(shape) - 1)] = -1
    for axis, (new, old) in enumerate(zip(shape, array.shape, strict=False)):
        if new == old and sketch.chance(50):
            shape[axis] = 0
    sketch.node("Reshape", x, sketch.parameter(shape))


def flatten(sketch: Sketch) -> None:
    """To two dimensions."""
    x = any_value(sketch)
    rank = sketch.array(x).ndim
    sketch.node("Flatten", x, axis=sketch.integer(-rank, rank))


def squeeze(sketch: Sketch) -> None:
    """Some or all dimensions of size 1."""
    x = any_value(sketch)
    ones = [a for a, n in enumerate(sketch.array(x).shape) if n == 1]
    axes = [a for a in ones if sketch.chance(60)]
    sketch.node("Squeeze", x, *((sketch.parameter(axes),) if axes else ()))


def unsqueeze(sketch: Sketch) -> None:
    """One or two new dimensions of size 1."""
    x = any_value(sketch, 0, 3)
    rank = sketch.array(x).ndim
    axes = [sketch.integer(-rank - 1, rank)]
    if sketch.chance(30):
        axes = [0, rank + 1]
    sketch.node("Unsqueeze", x, sketch.parameter(axes))


def concat(sketch: Sketch) -> None:
    """Two or three parts, alike but for one axis."""
    x = any_value(sketch, 1)
    array = sketch.array(x)
    axis = an_axis(sketch, array.ndim)
    inputs = [x]
    for _ in range(sketch.choose((1, 2, 3))):
        shape = list(array.shape)
        shape[axis] = sketch.size()
        same = sketch.find((array.dtype.name,), lambda a: a.shape == array.shape)
        inputs.append(same or sketch.new(array.dtype.name, shape))
    sketch.node("Concat", *inputs, axis=axis)


def split(sketch: Sketch) -> None:
    """Given sizes, or so many parts."""
    x = any_value(sketch, 1)
    array = sketch.array(x)
    axis = an_axis(sketch, array.ndim)
    size = array.shape[axis]
    if sketch.chance(50):
        first = sketch.integer(0, size)
        sizes = sketch.parameter([first, size - first])
        sketch.node("Split", x, sizes, outputs=2, axis=axis)
        return
    parts = sketch.integer(1, 3)
    if size < parts:
        raise Retry
    sketch.node("Split", x, outputs=parts, axis=axis, num_outputs=parts)


def slice_(sketch: Sketch) -> None:
    """Starts and ends beyond the borders, steps backwards."""
    x = any_value(sketch, 1)
    array = sketch.array(x)
    axes = [a for a in range(array.ndim) if sketch.chance(50)] or [0]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = array.shape[axis]
        a, b = sketch.integer(-size - 1, size + 1), sketch.integer(-size - 1, size + 1)
        starts.append(a)
        ends.append(sketch.choose((b, 2**31 - 1, 2**63 - 1)) if sketch.chance(20) else b)
        steps.append(sketch.choose((1, 2, -1, -2, 3)))
    signed = [a - array.ndim if sketch.chance(20) else a for a in axes]
    inputs = [sketch.parameter(v) for v in (starts, ends, signed, steps)]
    sketch.node("Slice", x, *inputs)


def pad(sketch: Sketch) -> None:
    """Every mode; less than a whole size for reflection."""
    x = any_value(sketch, 1)
    array = sketch.array(x)
    if array.size == 0 or array.dtype == bool:
        raise Retry
    mode = sketch.choose(("constant", "edge", "reflect", "wrap"))
    if mode == "wrap" and sketch.opset < 19:
        raise Retry
    most = [max(0, min(n - 1, 3)) if mode != "constant" else 3 for n in array.shape]
    pads = [sketch.integer(0, m) for m in most * 2]
    inputs = [sketch.parameter(pads)]
    if mode == "constant" and sketch.chance(50):
        inputs.append(sketch.constant(1, array.dtype))
    sketch.node("Pad", x, *inputs, mode=mode)


def expand(sketch: Sketch) -> None:
    """Ones stretched, dimensions added in front."""
    x = any_value(sketch, 0, 3)
    shape = [n if n != 1 or sketch.chance(40) else sketch.size() for n in sketch.array(x).shape]
    shape = [1 if sketch.chance(20) else n for n in shape]
    if sketch.chance(40):
        shape = [sketch.choose((2, 3, 1)), *shape]
    sketch.node("Expand", x, sketch.parameter(shape))


def tile(sketch: Sketch) -> None:
    """Repeats of every axis."""
    x = any_value(sketch, 1)
    repeats = [sketch.choose((1, 2, 3, 0) if sketch.chance(5) else (1, 2, 3))
               for _ in sketch.array(x).shape]  # fmt: skip
    sketch.node("Tile", x, sketch.parameter(repeats))


def gather(sketch: Sketch) -> None:
    """Indices of any shape."""
    x = any_value(sketch, 1)
    array = sketch.array(x)
    axis = an_axis(sketch, array.ndim)
    sketch.node("Gather", x, sketch.indices(sketch.shape(0, 2), array.shape[axis]), axis=axis)


def gather_elements(sketch: Sketch) -> None:
    """Indices as large as the data, or smaller."""
    x = any_value(sketch, 1)
    array = sketch.array(x)
    axis = an_axis(sketch, array.ndim)
    shape = [sketch.integer(min(n, 1), n) for n in array.shape]
    sketch.node("GatherElements", x, sketch.indices(shape, array.shape[axis]), axis=axis)


def gather_nd(sketch: Sketch) -> None:
    """Index tuples, within a batch."""
    x = any_value(sketch, 1)
    array = sketch.array(x)
    batch = sketch.integer(0, array.ndim - 1) if sketch.chance(40) else 0
    depth = sketch.integer(1, array.ndim - batch)
    indices = tuples(sketch, (*array.shape[:batch], sketch.choose((2, 1, 4))),
                     array.shape[batch : batch + depth])  # fmt: skip
    sketch.node("GatherND", x, indices, batch_dims=batch)


def tuples(sketch: Sketch, shape: tuple[int, ...], sizes: tuple[int, ...]) -> str:
    """Index tuples into dimensions of these sizes."""
    if 0 in sizes:
        raise Retry
    rng = sketch.generator()
    columns = [rng.integers(-n, n, shape) for n in sizes]
    array = np.stack(columns, axis=-1).astype(np.int64)
    return sketch.constant(array) if sketch.chance(50) else sketch.input(array)


def scatter_elements(sketch: Sketch) -> None:
    """Each place at most once, or added up."""
    x = sketch.value(("float32", "int32", "int64", "float64"), 1)
    array = sketch.array(x)
    axis = sketch.integer(0, array.ndim - 1)
    size = array.shape[axis]
    shape = list(array.shape)
    shape[axis] = sketch.integer(min(size, 1), size)
    if 0 in shape:
        raise Retry
    reduction = sketch.choose(("none", "add", "max", "min", "mul"))
    rng = sketch.generator()
    places = np.argsort(rng.random(array.shape), axis=axis).take(range(shape[axis]), axis=axis)
    places = np.where(rng.random(places.shape) < 0.3, places - size, places).astype(np.int64)
    updates = sketch.new(array.dtype.name, shape)
    indices = sketch.constant(places) if sketch.chance(50) else sketch.input(places)
    sketch.node("ScatterElements", x, indices, updates, axis=axis, reduction=reduction)


def scatter_nd(sketch: Sketch) -> None:
    """Slices written, or added up."""
    x = sketch.value(("float32", "int32", "int64"), 1)
    array = sketch.array(x)
    depth = sketch.integer(1, array.ndim)
    sizes = array.shape[:depth]
    if array.size == 0:
        raise Retry
    count = sketch.integer(1, min(4, int(np.prod(sizes))))
    flat = sketch.generator().permutation(int(np.prod(sizes)))[:count]
    places = np.stack(np.unravel_index(flat, sizes), axis=-1).astype(np.int64)
    reduction = sketch.choose(("none", "add", "max", "min", "mul"))
    updates = sketch.new(array.dtype.name, (count, *array.shape[depth:]))
    indices = sketch.constant(places) if sketch.chance(50) else sketch.input(places)
    sketch.node("ScatterND", x, indices, updates, reduction=reduction)


def depth_to_space(sketch: Sketch) -> None:
    """Blocks of channels become space."""
    block = sketch.choose((2, 1, 3))
    shape = (sketch.choose((1, 2)), block * block * sketch.choose((1, 2, 3)), sketch.size(),
             sketch.size())  # fmt: skip
    x = sketch.new("float32", shape)
    sketch.node("DepthToSpace", x, blocksize=block, mode=sketch.choose(("DCR", "CRD")))


def space_to_depth(sketch: Sketch) -> None:
    """Blocks of space become channels."""
    block = sketch.choose((2, 1, 3))
    shape = (sketch.choose((1, 2)), sketch.choose((1, 2, 3)), block * sketch.choose((1, 2, 3)),
             block * sketch.choose((1, 2)))  # fmt: skip
    sketch.node("SpaceToDepth", sketch.new("float32", shape), blocksize=block)


def trilu(sketch: Sketch) -> None:
    """A triangle, off the diagonal by k."""
    x = any_value(sketch, 2)
    inputs = (sketch.constant(sketch.integer(-3, 3), np.int64),) if sketch.chance(60) else ()
    sketch.node("Trilu", x, *inputs, upper=sketch.integer(0, 1))


def eye_like(sketch: Sketch) -> None:
    """Ones on a diagonal."""
    x = sketch.value(types("EyeLike", sketch.opset), 2, 2)
    sketch.node("EyeLike", x, k=sketch.integer(-3, 3), dtype=sketch.choose((1, 7, 6, 10)))


def constant_of_shape(sketch: Sketch) -> None:
    """A filled tensor."""
    shape = sketch.constant(sketch.shape(1), np.int64)
    dtype = sketch.choose(("float32", "int64", "int32", "bool"))
    value = numpy_helper.from_array(np.array([1], dtype))
    sketch.node("ConstantOfShape", shape, value=value if sketch.chance(70) else None)


def range_(sketch: Sketch) -> None:
    """Upwards and downwards, of floats and integers."""
    dtype = sketch.choose(("int64", "float32", "int32"))
    start, step = sketch.integer(-5, 5), sketch.choose((1, 2, -1, -3))
    limit = start + step * sketch.integer(0, 9) + sketch.choose((0, 1, -1))
    sketch.node("Range", *(sketch.constant(v, dtype) for v in (start, limit, step)))


def shape_(sketch: Sketch, op: str) -> None:
    """Shape and Size."""
    x = any_value(sketch)
    if op == "Size" or sketch.array(x).ndim == 0:
        sketch.node(op, x)
        return
    rank = sketch.array(x).ndim
    start, end = sketch.integer(-rank, rank), sketch.integer(-rank, rank)
    sketch.node(op, x, **({"start": start, "end": end} if sketch.chance(40) else {}))


def one_hot(sketch: Sketch) -> None:
    """Indices become rows; those that are outside give no hot one."""
    depth = sketch.choose((4, 3, 1, 7))
    indices = sketch.indices(sketch.shape(1, 2), depth)
    values = sketch.new(sketch.choose(("float32", "int32")), (2,))
    rank = sketch.array(indices).ndim
    axis = sketch.integer(-rank - 1, rank)
    sketch.node("OneHot", indices, sketch.constant(depth, np.int64), values, axis=axis)


def reverse_sequence(sketch: Sketch) -> None:
    """The first elements of each row backwards."""
    x = sketch.value(("float32", "int64", "int32"), 2)
    array = sketch.array(x)
    batch, time = sketch.choose(((0, 1), (1, 0)))
    if array.size == 0:
        raise Retry
    lengths = sketch.generator().integers(1, array.shape[time] + 1, array.shape[batch])
    given = sketch.constant(lengths) if sketch.chance(50) else sketch.input(lengths)
    sketch.node("ReverseSequence", x, given, batch_axis=batch, time_axis=time)


def resize(sketch: Sketch) -> None:
    """By sizes or scales, nearest or linear."""
    x, _ = channels_first(sketch, 4, 4)
    shape = sketch.array(x).shape
    mode = sketch.choose(("nearest", "linear", "cubic"))
    attributes: dict[str, object] = {"mode": mode}
    rules = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attributes["coordinate_transformation_mode"] = sketch.choose(rules)
    if mode == "nearest":
        rounding = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")
        attributes["nearest_mode"] = sketch.choose(rounding)
    if sketch.chance(50):
        factors = [1.0, 1.0, *(sketch.choose((2.0, 1.0, 0.5, 3.0)) for _ in range(2))]
        if any(int(n * f) == 0 for n, f in zip(shape, factors, strict=True)):
            raise Retry
        sketch.node("Resize", x, "", sketch.constant(factors, np.float32), **attributes)
    else:
        sizes = [*shape[:2], *(sketch.integer(1, 9) for _ in range(2))]
        sketch.node("Resize", x, "", "", sketch.constant(sizes, np.int64), **attributes)


def grid_sample(sketch: Sketch) -> None:
    """Two dimensions of space."""
    x, _ = channels_first(sketch, 4, 4)
    shape = (sketch.array(x).shape[0], sketch.integer(1, 4), sketch.integer(1, 4), 2)
    grid = sketch.new("float32", shape, (-1.2, 1.2))
    modes = ("linear", "nearest", "cubic") if sketch.opset >= 20 else ("bilinear", "nearest")
    padding = sketch.choose(("zeros", "border", "reflection"))
    align = sketch.integer(0, 1)
    mode = sketch.choose(modes)
    sketch.node("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=align)
