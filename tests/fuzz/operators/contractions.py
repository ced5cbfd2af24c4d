"""How to draw matrix products, convolutions and pooling."""

from __future__ import annotations

import numpy as np

from tests.fuzz.operators.elementwise import types
from tests.fuzz.operators.reductions import channels_first
from tests.fuzz.sketch import Retry, Sketch

EINSUMS = (
    "ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij,ij->", "i,j->ij", "bij,bkj->bik", "ij->i", "ii->i",
    "...ij,...jk->...ik", "bhid,bhjd->bhij",
)  # fmt: skip


def matmul(sketch: Sketch) -> None:
    """Matrices, vectors, and batches that broadcast."""
    x = sketch.value(types("MatMul", sketch.opset), low=1)
    array = sketch.array(x)
    sketch.node("MatMul", x, right_operand(sketch, array, array.dtype.name))


def right_operand(sketch: Sketch, left: np.ndarray, dtype: str) -> str:
    """A right operand for a product with `left`."""
    depth = left.shape[-1]
    found = sketch.find((dtype,), lambda a: a.ndim == 2 and a.shape[0] == depth)
    if found:
        return found
    if sketch.chance(15):
        return sketch.new(dtype, (depth,))
    batch = left.shape[:-2] if sketch.chance(40) else ()
    batch = tuple(1 if sketch.chance(20) else n for n in batch)
    return sketch.new(dtype, (*batch, depth, sketch.size()))


def gemm(sketch: Sketch) -> None:
    """With transposed operands, factors and a bias that is stretched."""
    x = sketch.value(("float32", "float64", "float16"), low=2, high=2)
    dtype = sketch.array(x).dtype.name
    left, right = int(sketch.chance(40)), int(sketch.chance(40))
    rows, depth = sketch.array(x).shape[:: -1 if left else 1]
    columns = sketch.size()
    w = sketch.new(dtype, (columns, depth) if right else (depth, columns))
    shapes = ((columns,), (rows, columns), (1, columns), (rows, 1), (1,), ())
    bias = (sketch.new(dtype, sketch.choose(shapes)),) if sketch.chance(70) else ()
    alpha, beta = sketch.choose((None, 0.5)), sketch.choose((None, 2.0))
    sketch.node("Gemm", x, w, *bias, transA=left, transB=right, alpha=alpha, beta=beta)


def einsum(sketch: Sketch) -> None:
    """A few equations, at random sizes."""
    equation = sketch.choose(EINSUMS)
    sizes = {letter: sketch.size() for letter in sorted(set(equation) - set(",->. "))}
    batch = sketch.shape(0, 2) if "..." in equation else ()
    inputs = []
    for term in equation.partition("->")[0].split(","):
        shape = (*(batch if "..." in term else ()), *(sizes[c] for c in term.replace(".", "")))
        inputs.append(sketch.new("float32", shape))
    sketch.node("Einsum", *inputs, equation=equation)


def matmul_integer(sketch: Sketch) -> None:
    """8-bit operands with zero points, 32-bit sums."""
    x = sketch.value(("uint8", "int8"), low=2, high=3)
    array = sketch.array(x)
    dtype = sketch.choose((array.dtype.name, "int8", "uint8"))
    w = right_operand(sketch, array, dtype)
    if sketch.array(w).ndim < 2:
        raise Retry
    zeros: list[str] = []
    if sketch.chance(60):
        zeros = [sketch.new(array.dtype.name, (), (0, 5)), sketch.new(dtype, (), (0, 5))]
    sketch.node("MatMulInteger", x, w, *zeros)


def qlinear_matmul(sketch: Sketch) -> None:
    """8-bit in, 8-bit out."""
    x = sketch.value(("uint8", "int8"), low=2, high=3)
    array = sketch.array(x)
    w = sketch.new(array.dtype.name, (array.shape[-1], sketch.size()), (-9, 9))
    inputs: list[str] = []
    for name in (x, w):
        scale = sketch.new("float32", (), (0.01, 0.1))
        inputs += [name, scale, sketch.new(array.dtype.name, (), (0, 5))]
    scale = sketch.new("float32", (), (0.1, 0.5))
    sketch.node("QLinearMatMul", *inputs, scale, sketch.new(array.dtype.name, (), (0, 5)))


def window(
    sketch: Sketch, space: tuple[int, ...], most: int = 4
) -> tuple[list[int], dict[str, object]]:
    """Kernel sizes, and strides, dilations and padding that leave something."""
    kernel = [sketch.integer(1, most) for _ in space]
    strides = [sketch.choose((1, 2, 3)) for _ in space] if sketch.chance(50) else [1] * len(space)
    dilations = [sketch.choose((1, 2)) for _ in space] if sketch.chance(30) else [1] * len(space)
    attributes: dict[str, object] = {"strides": strides, "dilations": dilations}
    if sketch.chance(25):
        if max(dilations) > 1:
            raise Retry
        attributes["auto_pad"] = sketch.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
        pads = [0] * 2 * len(space)
        if attributes["auto_pad"] != "VALID":
            if any(k < s for k, s in zip(kernel, strides, strict=True)):
                raise Retry  # onnxruntime crops; ONNX's inference pads by nothing, or makes more
            return kernel, attributes
    else:
        pads = [sketch.integer(0, k - 1) for k in kernel * 2] if sketch.chance(60) else []
        attributes["pads"] = pads or [0] * 2 * len(space)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    rank = len(space)
    padded = [n + (pads[i] + pads[i + rank] if pads else 0) for i, n in enumerate(space)]
    if any(n < e for n, e in zip(padded, extents, strict=True)):
        raise Retry
    return kernel, attributes


def conv(sketch: Sketch) -> None:
    """One to three dimensions of space, groups, depthwise too."""
    x, channels = channels_first(sketch, 3, 5)
    kernel, attributes = window(sketch, sketch.array(x).shape[2:])
    group = sketch.choose([g for g in range(1, channels + 1) if channels % g == 0])
    if sketch.chance(20):
        group = channels
    made = group * sketch.choose((1, 2, 4, 3))
    inputs = [x, sketch.new("float32", (made, channels // group, *kernel))]
    if sketch.chance(60):
        inputs.append(sketch.new("float32", (made,)))
    sketch.node("Conv", *inputs, group=group, kernel_shape=kernel, **attributes)


def conv_transpose(sketch: Sketch) -> None:
    """The gradient of a convolution."""
    x, channels = channels_first(sketch, 3, 4)
    kernel, attributes = window(sketch, sketch.array(x).shape[2:], 3)
    group = sketch.choose([g for g in (1, 2, 3) if channels % g == 0])
    made = sketch.choose((1, 2, 4))
    inputs = [x, sketch.new("float32", (channels, made, *kernel))]
    if sketch.chance(60):
        inputs.append(sketch.new("float32", (made * group,)))
    sketch.node("ConvTranspose", *inputs, group=group, kernel_shape=kernel, **attributes)


def conv_integer(sketch: Sketch) -> None:
    """8-bit operands, 32-bit sums."""
    x = sketch.value(("uint8",), low=4, high=4)
    if sketch.array(x).size == 0:
        raise Retry
    channels = sketch.array(x).shape[1]
    kernel, attributes = window(sketch, sketch.array(x).shape[2:], 3)
    w = sketch.new("uint8", (sketch.choose((2, 1, 4)), channels, *kernel), (0, 9))
    zeros = (sketch.new("uint8", (), (0, 5)),) if sketch.chance(60) else ()
    sketch.node("ConvInteger", x, w, *zeros, kernel_shape=kernel, **attributes)


def pool(sketch: Sketch, op: str) -> None:
    """Average, maximum and Lp pooling, rounded up or down."""
    x, _ = channels_first(sketch, 3, 5)
    kernel, attributes = window(sketch, sketch.array(x).shape[2:])
    if op == "AveragePool":
        attributes["count_include_pad"] = sketch.integer(0, 1)
        if sketch.opset < 19:
            attributes.pop("dilations")
    if op == "LpPool":
        attributes["p"] = sketch.choose((2, 1))
        if sketch.opset < 18:
            attributes.pop("dilations")
    outputs = 2 if op == "MaxPool" and sketch.chance(25) else 1
    sketch.node(op, x, outputs=outputs, kernel_shape=kernel, **attributes)
