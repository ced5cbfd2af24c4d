"""Random numbers by the counter-based Threefry-2x32, and the operators that draw them.

The element at flat position i is a hash of i under the node's key. So all elements are independent,
and every device computes the same elements. The key is the `seed` attribute, or else the node's
name. So a package draws the same numbers in every run, and two nodes draw different numbers. (ONNX
leaves the stream to the implementer.)

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, call, const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.element_types import ELEMENT_TYPES
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ZERO, Shape

Key = tuple[int, int]
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""The rotations of Threefry-2x32 in bits, which alternate every four rounds."""
ROUNDS = 20
"""The rounds of Threefry-2x32, as its authors recommend."""
PARITY = 0x1BD11BDA
"""The constant of Threefry from which its last key word is derived."""
RANDOM_BITS = {DType.float16: 11, DType.bfloat16: 8, DType.float32: 24, DType.float64: 32}
"""The random bits of a uniform number, by type: as many as the type's significand holds without
rounding. A float64 takes the 32 bits of one word.
"""


def random_key(node: Node) -> Key:
    """The key of a node's stream."""
    seed = node.attributes.get("seed")
    if seed is None:
        return zlib.crc32(node.name.encode()), 1
    (bits,) = struct.unpack("<I", struct.pack("<f", seed))
    return int(bits), 0


def threefry(key: Key, counter: Expr) -> tuple[Expr, Expr]:
    """Compute the two random words of a uint32 counter."""

    def word(value: int) -> Const:
        return Const(value & 0xFFFFFFFF, DType.uint32)

    keys = (*key, PARITY ^ key[0] ^ key[1])
    x, y = counter + word(keys[0]), word(keys[1]) + Const(0, DType.uint32)
    for number in range(ROUNDS):
        rotation = ROTATIONS[number // 4 % 2][number % 4]
        x = x + y
        rotated = call("shift_left", y, word(rotation)) | call(
            "shift_right", y, word(32 - rotation)
        )
        y = call("bit_xor", rotated, x)
        if number % 4 == 3:
            injection = number // 4 + 1
            x, y = x + word(keys[injection % 3]), y + word(keys[(injection + 1) % 3] + injection)
    return x, y


def _flat(index: Sequence[Expr], shape: Shape) -> Expr:
    position: Expr = ZERO
    for i, size in zip(index, shape, strict=True):
        position = position * size + i
    return position.astype(DType.uint32)


def _unit(bits: Expr, dtype: DType) -> Expr:
    """Make a number in [0, 1) from the highest bits of a word."""
    count = RANDOM_BITS[dtype]
    wide_dtype = dtype if dtype is DType.float64 else DType.float32
    high = call("shift_right", bits, Const(32 - count, DType.uint32)) if count < 32 else bits
    return high.astype(wide_dtype) * 2.0**-count


def _uniform(context: Context, dtype: DType, words: tuple[Expr, Expr]) -> Expr:
    low, high = (float(context.attribute(n, d)) for n, d in (("low", 0.0), ("high", 1.0)))
    return _unit(words[0], dtype) * (high - low) + low


def _normal(context: Context, dtype: DType, words: tuple[Expr, Expr]) -> Expr:
    """Transform two uniform numbers as Box and Muller do. One minus the first is never 0."""
    mean, scale = (float(context.attribute(n, d)) for n, d in (("mean", 0.0), ("scale", 1.0)))
    wide_dtype = DType.float64 if dtype is DType.float64 else DType.float32
    radius = call("sqrt", call("log", 1.0 - _unit(words[0], wide_dtype)) * -2.0)
    return radius * call("cos", _unit(words[1], wide_dtype) * (2 * math.pi)) * scale + mean


def _type(context: Context) -> TensorType:
    like = context.node.op.endswith("Like")
    number = context.attribute("dtype")
    dtype = ELEMENT_TYPES.get(number) if number else context.dtype(0) if like else DType.float32
    if dtype not in RANDOM_BITS:
        raise NotSupportedError(f"random numbers of {dtype or f'element type {number}'}")
    sizes: Sequence[int] = () if like else context.attribute("shape", ())
    return TensorType(dtype, context.shape(0) if like else tuple(const(int(n)) for n in sizes))


def _row(name: str, draw: Callable[[Context, DType, tuple[Expr, Expr]], Expr]) -> Operator:
    def meaning(context: Context, *_: Tensor) -> Tensor:
        output, key = context.outputs[0], context.attribute("key")

        def element(*i: Expr) -> Expr:
            words = threefry(key, _flat(i, output.shape))
            return draw(context, output.dtype, words).astype(output.dtype)

        return compute("random", output.shape, element)

    return Operator(name, _type, meaning, kind="injective", normalise=_with_key)


def _with_key(node: Node, opset: int) -> Node:
    return replace(node, attributes={**node.attributes, "key": random_key(node)})


def _multinomial(context: Context, build: Builder) -> Value:
    """Choose the class with the largest sum of log-probability and Gumbel noise. Each sample has
    its own noise.
    """
    samples = context.count("sample_size", 1)
    logits = build.inputs[0].unsqueeze(1)
    scores = build("Expand", logits, [1, samples, 1])
    uniform = build("RandomUniformLike", scores, key=context.attribute("key"))
    noise = -build("Log", -build("Log", uniform))
    classes = build("ArgMax", scores + noise, axis=2, keepdims=0)
    return build("Cast", classes, to=int(context.attribute("dtype", 6)))


def _dropout(context: Context, build: Builder) -> tuple[Value, ...]:
    """Expand a Dropout. Inference drops nothing. Training draws the elements that it keeps, and
    scales them.
    """
    x, wants_mask = build.inputs[0], len(context.node.outputs) > 1
    training = context.value(2) if context.has(2) else np.array([False], object)
    ratio = context.value(1) if context.has(1) else np.array([0.5], object)
    drops_nothing = training is not None and not training.reshape(-1)[0]
    if drops_nothing or (ratio is not None and float(ratio.reshape(-1)[0]) == 0.0):
        y = build("Identity", x)
        all_ = np.array([True])
        return (y, build("ConstantOfShape", build("Shape", x), value=all_)) if wants_mask else (y,)
    has_ratio = context.has(1)
    drop_ratio = (
        build.inputs[1].op("CastLike", x) if has_ratio else build.constant(0.5, context.dtype(0))
    )
    draws = build("RandomUniformLike", x, key=random_key(context.node))
    mask = build("GreaterOrEqual", draws, drop_ratio)
    scale = build("Reciprocal", 1 - drop_ratio)
    if training is None:
        scale = build.inputs[2].where(scale, 1)
        mask = mask | ~build.inputs[2]
    y = mask.where(x, 0) * scale
    return (y, mask) if wants_mask else (y,)


OPS: tuple[Operator, ...] = (
    _row("RandomUniform", _uniform),
    _row("RandomUniformLike", _uniform),
    _row("RandomNormal", _normal),
    _row("RandomNormalLike", _normal),
    Operator("Dropout", expand=_dropout, cases=(
        case("float32[2, 3]"), case("float32[2, 3]", outputs=2),
        case("float32[2, 3]", np.float32(0.3), np.bool_(False)))),
    Operator("Multinomial", expand=_multinomial, normalise=_with_key),
)  # fmt: skip
