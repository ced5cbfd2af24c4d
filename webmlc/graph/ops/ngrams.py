"""TfIdfVectorizer: count how often each n-gram of a pool occurs in rows of integers.

Each length of n-grams has a count of its own. `webmlc.CountGrams` compares the n-grams of one
length with a row at every start. The distance between items takes every value that `max_skip_count`
allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, call, const, minimum, select
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Array, TensorType
from webmlc.graph.ops.operator import (
    Context,
    NotSupportedError,
    Operator,
    always_expands,
    case,
)
from webmlc.graph.ops.shapes import ONE, ZERO, check_shapes, operand

MODES = ("TF", "IDF", "TFIDF")
Inputs = tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of one length in the pool. `items` has the shape [grams][length]; `places` and
    `weights` hold the output position and the weight of each n-gram.
    """

    items: Array
    places: Array
    weights: Array


def _pool(context: Context) -> list[Grams]:
    """The n-grams of the lengths that the node counts."""
    if context.attribute("pool_strings"):
        raise NotSupportedError("n-grams of strings: tensors hold numbers")
    pool = np.array(context.attribute("pool_int64s", ()), np.int64)
    starts = [int(n) for n in context.attribute("ngram_counts")]
    places = np.array(context.attribute("ngram_indexes"), np.int64)
    weights = _weights(context, len(places))
    shortest, longest = (int(context.attribute(f"{name}_gram_length")) for name in ("min", "max"))
    if not 1 <= shortest <= longest <= len(starts):
        raise NotSupportedError(
            f"n-grams of {shortest} to {longest} items from a pool of n-grams of 1 to {len(starts)}"
        )
    if sorted(starts) != starts or not 0 <= starts[0] <= starts[-1] <= len(pool):
        raise NotSupportedError(f"ngram_counts {starts} for a pool of {len(pool)} items")
    lengths = range(shortest, longest + 1)
    grams, first_place = [], 0
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        items = pool[start:end].reshape(-1, length)
        if length in lengths and len(items):
            span = slice(first_place, first_place + len(items))
            grams.append(Grams(items, places[span], weights[span]))
        first_place += len(items)
    return grams


def _weights(context: Context, count: int) -> Array:
    """The weight of each n-gram of the pool: 1 by default."""
    weights, mode = context.attribute("weights"), context.attribute("mode")
    if mode not in MODES:
        raise NotSupportedError(f"mode {mode!r}: it is one of {', '.join(MODES)}")
    if mode == "TF" or not weights:
        return np.ones(count, np.float32)
    if len(weights) != count:
        raise NotSupportedError(f"{len(weights)} weights of {count} n-grams")
    return np.array(weights, np.float32)


def _vectorise(context: Context, build: Builder) -> tuple[str, ...]:
    x, rank = context.node.inputs[0], context.rank(0)
    check_shapes(context, "elements" if rank < 2 else "rows elements")
    indexes = [int(i) for i in context.attribute("ngram_indexes")]
    size = max(indexes) + 1
    is_one = context.attribute("mode") == "IDF"  # a count is 1 if the n-gram occurs
    if is_one and len(set(indexes)) < len(indexes):
        raise NotSupportedError("n-grams that share an output, of mode IDF")
    if rank < 2:
        x = build("Reshape", x, build.constant(np.array([1, -1])))
    total, skipped = "", int(context.attribute("max_skip_count"))
    if skipped < 0:
        raise NotSupportedError(f"max_skip_count {skipped}")
    for grams in _pool(context):
        length = grams.items.shape[1]
        skips = skipped if length > 1 else 0
        count = build("CountGrams", x, build.constant(grams.items, context.dtype(0)),
                      domain="webmlc", skips=skips)  # fmt: skip
        spread = np.zeros((len(grams.items), size), np.float32)
        spread[np.arange(len(grams.items)), grams.places] = grams.weights
        if is_one:
            count = build("Min", count, build.constant(np.float32(1)))
        placed = build("MatMul", count, build.constant(spread))
        total = build("Add", total, placed) if total else placed
    if not total:
        raise NotSupportedError("a pool without n-grams of the wanted lengths")
    return (total if rank == 2 else build("Reshape", total, build.constant(np.array([size]))),)


def _count_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(DType.float32, (context.shape(0)[0], context.shape(1)[0])),)


def _count(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The counts [row][gram]: a sum over starts and distances of the places where all items
    match.
    """
    x, grams = operand(inputs, 0), operand(inputs, 1)
    length, size = as_int(grams.shape[1]) or 1, x.shape[1]

    def matches(row: Expr, gram: Expr, start: Expr, skip: Expr) -> Expr:
        is_match = start + (skip + 1) * (length - 1) < size
        for k in range(length):
            position = minimum(start + (skip + 1) * k, size - 1)
            is_match = is_match & call("eq", x[row, position], grams[gram, const(k)])
        return select(is_match, ONE, ZERO)

    extents = (size, const(int(context.attribute("skips")) + 1))
    shape = context.outputs[0].shape
    total = reduce("grams", shape, extents, "add", matches)
    return (compute("count", shape, lambda *i: total[i].astype(DType.float32)),)


POOL: dict[str, Any] = {
    "ngram_counts": (0, 4),
    "pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7),
    "weights": (0.5, 1, 2, 3, 4, 5, 6),
}
X = "int64[2, 12] in 2..8"

OPS: tuple[Operator, ...] = (
    Operator("CountGrams", _count_type, _count, kind="reduction", domain="webmlc"),
    Operator("TfIdfVectorizer", always_expands, expand=_vectorise, cases=tuple(
        case(x, mode=mode, min_gram_length=1, max_gram_length=2, max_skip_count=skips,
             ngram_indexes=tuple(places), **POOL)
        for x, mode, skips, places in (
            (X, "TF", 0, range(7)), (X, "IDF", 2, range(7)),
            ("int32[20] in 2..8", "TFIDF", 1, range(7)),
            (X, "IDF", 1, (6, 4, 5, 2, 3, 9, 0)), (X, "TFIDF", 1, (6, 4, 5, 2, 3, 9, 0))))),
)  # fmt: skip
