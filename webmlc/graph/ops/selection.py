"""Operators whose output sizes depend on data: NonZero, Compress, Unique.

What is kept is counted first; a run binds the count to a symbol; then every element of the result
finds its source. Counts run within blocks of 64, blocks of blocks, and all of these, so that all
kernels are parallel: an element descends the three levels, 64 comparisons at a time.

    %low, %middle, %high, %count = webmlc.RunningCounts(%mask)
    %places: int32[k] = webmlc.Places(%low, %middle, %high, %count)        (after a Bind of k)
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Expr, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Builder, Context, Operator, case
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    canonical,
    check_shapes,
    dimensions,
    given,
    product,
    select_among,
)

Inputs = tuple[Tensor | None, ...]
BLOCK = 64


def _levels(size: Expr) -> tuple[Expr, Expr]:
    """How many blocks there are, and blocks of blocks: at least one, if there is nothing in it."""
    return canonical(size // BLOCK + 1), canonical(size // BLOCK**2 + 1)


def _running_counts_type(context: Context) -> tuple[TensorType, ...]:
    size = product(context.shape(0))
    middle, high = _levels(size)
    counts = tuple(TensorType(INDEX, (n,)) for n in (size, middle, high))
    return (*counts, TensorType(DType.int64, (ONE,)))


def _running_counts(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """How many elements of a mask are true up to each, within its block; up to each block, within
    its block of blocks; up to each of these; and in all.
    """
    mask = given(inputs, 0)
    size = mask.shape[0]
    blocks, groups = _levels(size)

    def up_to(i: Expr, r: Expr) -> Expr:
        at = i // BLOCK * BLOCK + r
        return select(at <= i, select(mask[minimum(at, size - 1)], ONE, ZERO), ZERO)

    def total(counts: Tensor, at: Expr) -> Expr:
        """The last count of a block; 0 of one that is empty."""
        last = minimum(at * BLOCK + (BLOCK - 1), counts.shape[0] - 1)
        return select(at * BLOCK < counts.shape[0], counts[maximum(last, 0)], ZERO)

    def blocks_up_to(i: Expr, r: Expr) -> Expr:
        at = i // BLOCK * BLOCK + r
        return select(at <= i, total(low, at), ZERO)

    low = reduce("low", (size,), (const(BLOCK),), "add", up_to)
    middle = reduce("middle", (blocks,), (const(BLOCK),), "add", blocks_up_to)
    high = reduce(
        "high", (groups,), (groups,), "add", lambda i, r: select(r <= i, total(middle, r), ZERO)
    )
    count = compute("count", (ONE,), lambda _: high[groups - 1].astype(DType.int64))
    return low, middle, high, count


def _places_type(context: Context) -> tuple[TensorType, ...]:
    return (TensorType(INDEX, (dimensions(context, 3, "how many there are")[0],)),)


def _places(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Where the elements that are true stand, in order."""
    low, middle, high = (given(inputs, i) for i in range(3))
    shape = context.outputs[0].shape
    group = reduce("group", shape, high.shape, "add", lambda p, k: select(high[k] <= p, ONE, ZERO))

    def before(counts: Tensor, at: Expr) -> Expr:
        """The count before a block's first element."""
        return select(at > 0, counts[maximum(at - 1, 0)], ZERO)

    def passed(counts: Tensor, at: Expr, rest: Expr) -> Expr:
        inside = at < counts.shape[0]
        found = counts[minimum(at, maximum(counts.shape[0] - 1, 0))]
        return select(inside, select(found <= rest, ONE, ZERO), ZERO)

    rest = compute("rest", shape, lambda p: p - before(high, group[p]))
    block = reduce(
        "block", shape, (const(BLOCK),), "add",
        lambda p, r: passed(middle, group[p] * BLOCK + r, rest[p]),
    )  # fmt: skip

    def left(p: Expr) -> Expr:
        first = group[p] * BLOCK
        return rest[p] - select(block[p] > 0, middle[first + maximum(block[p] - 1, 0)], ZERO)

    left_over = compute("left", shape, left)
    start = compute("start", shape, lambda p: (group[p] * BLOCK + block[p]) * BLOCK)
    inner = reduce(
        "inner", shape, (const(BLOCK),), "add",
        lambda p, r: passed(low, start[p] + r, left_over[p]),
    )  # fmt: skip
    return (compute("places", shape, lambda p: start[p] + inner[p]),)


def places_of(builder: Builder, mask: str) -> str:
    """The positions at which a boolean vector is true: int32[k], k bound in a run."""
    counts = builder.many("RunningCounts", mask, outputs=4, domain="webmlc")
    return builder("Places", *counts, domain="webmlc")


def flat(builder: Builder, value: str) -> str:
    """The elements as a vector."""
    return builder("Reshape", value, builder.constant(np.array([-1])))


def _unravel_type(context: Context) -> tuple[TensorType, ...]:
    sizes = context.attribute("sizes")
    return (TensorType(DType.int64, (const(len(sizes)), *context.shape(0))),)


def _unravel(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The index, an axis a row, of each flat position in a tensor of these sizes."""
    places, sizes = given(inputs, 0), context.attribute("sizes")

    def element(axis: Expr, p: Expr) -> Expr:
        strides = [product(sizes[d + 1 :]) for d in range(len(sizes))]
        place = places[p]
        along = [place // strides[0]] + [
            place // stride % size for stride, size in zip(strides[1:], sizes[1:], strict=True)
        ]
        return select_among(along, axis).astype(DType.int64)

    return (compute("unravel", context.outputs[0].shape, element),)


def _never(context: Context) -> tuple[TensorType, ...]:
    raise AssertionError(f"{context.node.op} expands")


def _non_zero(context: Context, builder: Builder) -> tuple[str, ...]:
    mask = builder("Cast", flat(builder, context.node.inputs[0]), to=9)
    sizes = context.shape(0) or (ONE,)
    unravel = builder("Unravel", places_of(builder, mask), domain="webmlc", sizes=sizes)
    if context.rank(0):
        return (unravel,)
    none = builder.constant(np.array([0]))
    return (builder("Slice", unravel, none, none, none),)


def _compress(context: Context, builder: Builder) -> tuple[str, ...]:
    x, condition = context.node.inputs
    check_shapes(context, "", "elements")
    places = places_of(builder, condition)
    if "axis" not in context.node.attributes:
        return (builder("Gather", flat(builder, x), places, axis=0),)
    return (builder("Gather", x, places, axis=context.axis(0)),)


X = "float32[3, 4]"

OPS: tuple[Operator, ...] = (
    Operator("RunningCounts", _running_counts_type, _running_counts, domain="webmlc",
             kind="reduction"),
    Operator("Places", _places_type, _places, domain="webmlc", kind="reduction"),
    Operator("Unravel", _unravel_type, _unravel, domain="webmlc", kind="injective"),
    Operator("NonZero", _never, expand=_non_zero, cases=(
        case("int32[3, 4] in 0..1"), case("float32[200] in 0..1"), case("bool[5, 70, 20]"),
        case("int64[2, 3] in 0..0"))),
    Operator("Compress", _never, expand=_compress, cases=(
        case(X, "bool[12]"), case(X, "bool[3]", axis=0), case(X, "bool[2]", axis=-1))),
)  # fmt: skip
