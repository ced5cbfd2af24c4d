"""How to draw elementwise operators: types from ONNX's schema, shapes that broadcast."""

from __future__ import annotations

import numpy as np
import onnx

from tests.fuzz.sketch import DTYPES, FLOATS, INTEGERS, Retry, Sketch

DOMAINS: dict[str, tuple[float, float]] = {
    "Acos": (-0.95, 0.95), "Acosh": (1.05, 9), "Asin": (-0.95, 0.95), "Atanh": (-0.9, 0.9),
    "Cosh": (-6, 6), "Sinh": (-6, 6), "Exp": (-9, 6), "Log": (0.05, 9), "Sqrt": (0, 9),
    "Reciprocal": (0.2, 4), "Tan": (-1.3, 1.3), "Sin": (-3.1, 3.1), "Cos": (-3.1, 3.1),
    "Softplus": (-9, 9),
}  # fmt: skip
"""Where a function is defined, and well enough conditioned for what a GPU promises of it."""

UNARY = (
    "Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Exp", "Sqrt", "Log", "Erf", "Floor", "Ceil", "Round",
    "Sign", "Reciprocal", "Identity", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
    "Asinh", "Acosh", "Atanh", "Softplus", "Softsign", "HardSwish", "Mish", "Not", "BitwiseNot",
    "IsNaN", "IsInf", "Elu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Celu", "Gelu",
    "Shrink", "Swish",
)  # fmt: skip
BINARY = (
    "Add", "Mul", "Sub", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
)  # fmt: skip
VARIADIC = ("Max", "Min", "Sum", "Mean")


def types(op: str, opset: int, index: int = 0) -> tuple[str, ...]:
    """The element types an operator's input takes, of those that the fuzzer draws."""
    if not onnx.defs.has(op, opset):
        raise Retry
    schema = onnx.defs.get_schema(op, opset)
    spelled = schema.inputs[min(index, len(schema.inputs) - 1)].types
    numpy_names = {"float": "float32", "double": "float64"}
    found = {t[len("tensor(") : -1] for t in spelled if t.startswith("tensor(")}
    return tuple(d for d in DTYPES if d in {numpy_names.get(t, t) for t in found})


def unary(sketch: Sketch, op: str) -> None:
    """One operand; attributes are small positive numbers."""
    limits = DOMAINS.get(op)
    dtypes = types(op, sketch.opset)
    if op in ("Erf", "Gelu", "HardSwish"):  # onnx.reference computes them with float32 in between
        dtypes = tuple(d for d in dtypes if d != "float64")
    if op == "Shrink":  # its function body and onnx.reference cut fractions at different places
        dtypes = FLOATS
    x = sketch.value(dtypes, within=limits or (-4, 4), limits=limits)
    attributes: dict[str, object] = {}
    for name, attribute in onnx.defs.get_schema(op, sketch.opset).attributes.items():
        if attribute.type == onnx.defs.OpSchema.AttrType.FLOAT and sketch.chance(60):
            attributes[name] = sketch.choose((0.5, 1.0, 0.2, 1.5))
    if op == "Gelu" and sketch.chance(50):
        attributes["approximate"] = "tanh"
    sketch.node(op, x, **attributes)


def broadcast(sketch: Sketch, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with this one: dimensions dropped in front, or 1, or added."""
    dropped = sketch.integer(0, len(shape)) if sketch.chance(40) else 0
    other = [1 if sketch.chance(25) else n for n in shape[dropped:]]
    if sketch.chance(10) and len(shape) < 4:
        other = [sketch.choose((1, 2, 3)), *shape[:dropped], *other]
    return tuple(other)


def partner(
    sketch: Sketch, x: str, within: tuple[float, float] = (-3, 3), dtype: str | None = None
) -> str:
    """A second operand that broadcasts with the first."""
    array = sketch.array(x)
    wanted = dtype or array.dtype.name
    least, most = within

    def fits(other: np.ndarray) -> bool:
        try:
            np.broadcast_shapes(array.shape, other.shape)
        except ValueError:
            return False
        bounded = within == (-3, 3) or bool((other >= least).all() and (other <= most).all())
        return other.ndim <= 5 and bounded

    return sketch.find((wanted,), fits) or sketch.new(
        wanted, broadcast(sketch, array.shape), within
    )


def binary(sketch: Sketch, op: str) -> None:
    """Two operands, either of which may be stretched."""
    x = sketch.value(types(op, sketch.opset))
    y = partner(sketch, x)
    sketch.node(op, *((x, y) if sketch.chance(70) else (y, x)))


def variadic(sketch: Sketch, op: str) -> None:
    """One to four operands."""
    x = sketch.value(types(op, sketch.opset))
    sketch.node(op, x, *(partner(sketch, x) for _ in range(sketch.choose((1, 0, 2, 3)))))


def divide(sketch: Sketch, op: str) -> None:
    """Div and Mod: no divisor near zero; the smallest integer is not divided by -1."""
    x = sketch.value(types(op, sketch.opset))
    dtype = sketch.array(x).dtype
    y = partner(sketch, x, sketch.choose(((0.5, 4), (1, 9))))
    if dtype.kind in "iu" and sketch.array(x).size and sketch.array(x).min() < -100:
        raise Retry
    if op == "Div":
        sketch.node(op, x, y)
        return
    if dtype.kind == "f":
        sketch.node(op, x, y, fmod=1)
    else:
        sketch.node(op, x, y, fmod=int(sketch.chance(30)))


def power(sketch: Sketch) -> None:
    """Positive bases, or small whole exponents."""
    if sketch.chance(50):
        x = sketch.value(FLOATS, within=(0.2, 3), limits=(0.1, 20))
        y = partner(sketch, x, (-2, 2))
    else:
        x = sketch.value((*FLOATS, "int32", "int64"), limits=(-9, 9))
        y = sketch.constant(sketch.choose((2, 3, 1, 0)), sketch.array(x).dtype)
    sketch.node("Pow", x, y)


def clip(sketch: Sketch) -> None:
    """Limits may be missing; they do not cross."""
    x = sketch.value(types("Clip", sketch.opset))
    dtype = sketch.array(x).dtype
    low = sketch.constant(sketch.choose((0, 1)), dtype) if sketch.chance(70) else ""
    high = sketch.constant(sketch.choose((2, 6, 1)), dtype) if sketch.chance(70) else ""
    sketch.node("Clip", x, low, high)


def cast(sketch: Sketch, op: str) -> None:
    """Between any two types, where the number is one of the target's."""
    x = sketch.value(DTYPES)
    array = sketch.array(x)
    target = sketch.choose(DTYPES)
    if target in INTEGERS and array.size:
        range_, least, most = np.iinfo(target), float(array.min()), float(array.max())
        if array.dtype.name in FLOATS and not range_.min <= least <= most <= range_.max:
            raise Retry  # the result is undefined
    if op == "Cast":
        sketch.node(op, x, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    else:
        sketch.node(op, x, sketch.new(target, (1,)))


def bit_shift(sketch: Sketch) -> None:
    """Shifts by less than the width."""
    x = sketch.value(tuple(d for d in types("BitShift", sketch.opset) if d.startswith("uint")))
    direction = sketch.choose(("LEFT", "RIGHT"))
    sketch.node("BitShift", x, partner(sketch, x, (0, 7)), direction=direction)


def where(sketch: Sketch) -> None:
    """The condition, too, may be stretched."""
    x = sketch.value(types("Where", sketch.opset, 1))
    y = partner(sketch, x)
    sketch.node("Where", partner(sketch, x, dtype="bool"), x, y)


def prelu(sketch: Sketch) -> None:
    """The slope is stretched, never the data."""
    x = sketch.value(types("PRelu", sketch.opset))
    shape = sketch.array(x).shape
    dropped = sketch.integer(0, len(shape))
    slope = tuple(1 if sketch.chance(30) else n for n in shape[dropped:])
    sketch.node("PRelu", x, sketch.new(sketch.array(x).dtype.name, slope))


def quantize(sketch: Sketch) -> None:
    """A tensor's or an axis' scales, with or without zero points."""
    x = sketch.value(("float32",), low=1)
    scale, zero, axis = quantisation(
        sketch, sketch.array(x).shape, sketch.choose(("uint8", "int8"))
    )
    sketch.node("QuantizeLinear", x, scale, *zero, axis=axis)


def dequantize(sketch: Sketch) -> None:
    """The same the other way; int32 has no zero point."""
    x = sketch.value(("uint8", "int8", "int32"), low=1)
    array = sketch.array(x)
    scale, zero, axis = quantisation(sketch, array.shape, array.dtype.name)
    sketch.node("DequantizeLinear", x, scale, *(() if array.dtype == np.int32 else zero), axis=axis)


def quantisation(
    sketch: Sketch, shape: tuple[int, ...], dtype: str
) -> tuple[str, tuple[str, ...], int | None]:
    """Scales, zero points and the axis they go along."""
    axis = sketch.integer(-len(shape), len(shape) - 1) if sketch.chance(40) else None
    sizes = () if axis is None else (shape[axis],)
    scale = sketch.new("float32", sizes, (0.01, 0.5))
    zero = (sketch.new(dtype, sizes, (-9, 9)),)
    needed = dtype == "int8" or sketch.chance(60)
    return scale, zero if needed else (), axis
