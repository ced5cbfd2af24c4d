"""Operators on tokens: repeated n-grams and hashes."""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes


def _repeat_block(context: Context, build: Builder) -> Value:
    """Expand NGramRepeatBlock. The score of a forbidden token becomes -infinity."""
    check_shapes(context, "batch tokens", "batch vocabulary")
    ids, scores = build.inputs
    size, vocabulary = context.count("ngram_size"), context.shape(1)[1]
    return repeated_tokens(build, ids, scores, size, vocabulary).where(-np.inf, scores)


def repeated_tokens(
    build: Builder, ids: Value, scores: Value, size: int, vocabulary: Expr | None = None
) -> Value:
    """True for tokens that followed the last `size - 1` tokens of `ids` before. The result has the
    shape of `scores`, of `vocabulary` columns.
    """
    length = ids.size(1)
    count = build("Max", length - (size - 1), 0)
    is_repeated: Value | None = None
    for place in range(size - 1):
        window = build("Slice", ids, [place], (count + place).unsqueeze(0), [1])
        last = build("Max", length - (size - 1) + place, 0)
        equal = window.op("Equal", build("Gather", ids, last, axis=1).unsqueeze(1))
        is_repeated = equal if is_repeated is None else is_repeated & equal
    followers = build("Slice", ids, [size - 1], (count + (size - 1)).unsqueeze(0), [1])
    return tokens_in(build, followers, scores, vocabulary, is_repeated)


def tokens_in(
    build: Builder,
    ids: Value,
    scores: Value,
    vocabulary: Expr | None = None,
    is_marked: Value | None = None,
) -> Value:
    """True for tokens that occur in `ids`, or in its marked elements. The result has the shape of
    `scores`, of `vocabulary` columns. A run checks the tokens if the number of columns is given.
    """
    if vocabulary is not None:
        ids = require_within(build, ids, vocabulary)
    if is_marked is None:
        marks = build("Expand", build.constant(1, DType.int32), ids.op("Shape"))
    else:
        marks = is_marked.cast(DType.int32)
    zeros = build("ConstantOfShape", scores.op("Shape"), value=np.zeros(1, np.int32))
    marked = build("ScatterElements", zeros, ids, marks, axis=1, reduction="max")
    return marked.op("Greater", 0)


def _murmur(context: Context, build: Builder) -> Value:
    """Expand MurmurHash3 of numbers of 32 bits."""
    if context.dtype(0).bits != 32:
        raise NotSupportedError(f"a hash of {context.dtype(0).name}: only numbers of 32 bits")
    x = build.inputs[0]
    if context.dtype(0) is not DType.uint32:
        x = build("BitCast", x, to=UINT32)
    y = murmur(x, int(context.attribute("seed", 0)))
    return y if context.attribute("positive", 1) else build("BitCast", y, to=INT32)


def murmur(x: Value, seed: int) -> Value:
    """The hash of each uint32 by MurmurHash3, in uint32 arithmetic that wraps."""
    build = x.build

    def number(value: int) -> Value:
        return build.constant(value, DType.uint32)

    def rotated(x: Value, bits: int) -> Value:
        left = build("BitShift", x, number(bits), direction="LEFT")
        return build("BitwiseOr", left, build("BitShift", x, number(32 - bits), direction="RIGHT"))

    def mixed(x: Value, bits: int) -> Value:
        return build("BitwiseXor", x, build("BitShift", x, number(bits), direction="RIGHT"))

    key = rotated(x * number(0xCC9E2D51), 15) * number(0x1B873593)
    y = rotated(build("BitwiseXor", number(seed & 0xFFFFFFFF), key), 13)
    y = y * number(5) + number(0xE6546B64)
    y = mixed(build("BitwiseXor", y, number(4)), 16) * number(0x85EBCA6B)
    return mixed(mixed(y, 13) * number(0xC2B2AE35), 16)


INT32, UINT32 = 6, 12
"""The element types int32 and uint32, as ONNX numbers them."""

IDS = np.array([[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 5, 5, 5, 5, 5, 5]], np.int64)

OPS: tuple[Operator, ...] = (
    row("NGramRepeatBlock", 2, "ngram_size", _repeat_block,
        case(IDS, "float32[2, 9]", ngram_size=3), case(IDS, "float32[2, 9]", ngram_size=1),
        case(IDS, np.full((2, 9), np.nan, np.float32), ngram_size=3),
        case("int64[2, 8] in 0..2", "float32[2, 4]", ngram_size=2),
        case("int64[2, 2] in 0..2", "float32[2, 4]", ngram_size=4)),
    row("MurmurHash3", 1, "positive seed", _murmur, case(np.array([3, -7, 2**31 - 1], np.int32)),
        case("int32[4] in -99..99", seed=42, positive=0),
        case("uint32[2, 3] in 0..99999", positive=1)),
)  # fmt: skip
