"""TopK, by sorting (`ops.sorting`).

Along a short axis, each element counts the elements that come before it. That takes quadratic time,
but elements are independent. If the node asks for few of many elements, only the blocks that can
contain them are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, call, const, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, ZERO, check_single, dimensions, require
from webmlc.graph.ops.sorting import (
    comparable,
    inside,
    sorting_steps,
    stable_order,
    word_bits,
    words,
)

MAX_COMPARED = 128
"""The most elements of an axis for which comparing all pairs takes less time than a radix sort.
Derived: 128 elements have 16,384 pairs; a radix sort of 32 bits visits about 5,120 counters several
times.
"""
SEARCH_SPEEDUP = 8
"""The number of elements that a search for the best element visits in the time of one sorting step.
Searches run in vectors. Chosen by hand with `MIN_SPEEDUP`, and checked on k = 100 of 10^6 floats.
"""
MIN_SPEEDUP = 4
"""Sort by blocks only if blocks take this many times fewer steps than sorting all elements. The
saved steps pay for the further kernels. Chosen by hand: k = 100 of 10^6 floats then takes 1.0 ms
instead of 275.
"""


def _count(context: Context) -> Expr:
    if "k" in context.node.attributes:
        return const(int(context.attribute("k")))
    count = dimensions(context, 1, "k")[0]
    is_empty = as_int(context.shape(0)[context.axis(-1)]) == 0
    return ZERO if is_empty and as_int(count) is None else count


def _top_k_type(context: Context) -> tuple[TensorType, ...]:
    x, axis = context.type(0), context.axis(-1)
    check_single(context, 1)
    count, size = _count(context), x.shape[axis]
    if not require(context, "at most", count, size):
        raise NotSupportedError(f"the first {count} of {size} elements")
    shape = (*x.shape[:axis], _count(context), *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape), TensorType(DType.int64, shape))


def _top_k(context: Context, x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    """The first `k` elements and their positions. Equal elements keep their order; NaN is the
    largest.
    """
    axis = context.axis(-1)
    size, count = as_int(x.shape[axis]), as_int(_count(context))
    if size is not None and size <= MAX_COMPARED:
        place = _by_count(x, axis, context)
    elif size is not None and count and (block := _block_size(x.dtype, size, count)):
        place = _by_blocks(x, axis, context, count, block)
    else:
        place = _by_sort(x, axis, context)
    shape = (*x.shape[:axis], _count(context), *x.shape[axis + 1 :])

    def value(*i: Expr) -> Expr:
        return x[(*i[:axis], place(*i), *i[axis + 1 :])]

    values = compute("values", shape, value)
    indices = compute("indices", shape, lambda *i: place(*i).astype(DType.int64))
    return (values, indices)


def _by_sort(x: Tensor, axis: int, context: Context) -> Callable[..., Expr]:
    """The position along the axis of each element of the result, found by sorting."""
    descending = bool(context.attribute("largest", 1))
    shape = (*x.shape[:axis], *x.shape[axis + 1 :], x.shape[axis])

    def element(*i: Expr) -> Expr:
        return x[(*i[:axis], i[-1], *i[axis:-1])]

    keys = _words("word", shape, x.dtype, descending, element)
    order = stable_order("order", keys, word_bits(x.dtype))
    size = x.shape[axis]
    return lambda *i: inside(order[(*i[:axis], *i[axis + 1 :], i[axis])], size)


def _block_size(dtype: DType, size: int, count: int) -> int | None:
    """The number of elements of a block, if sorting blocks by their best elements takes fewer steps
    than sorting all elements. Otherwise None.
    """
    block = 1 << round(math.log2(size / count) / 2)
    blocks = size // block
    if blocks <= count:
        return None

    def steps(elements: int) -> int:
        return sorting_steps(elements, word_bits(dtype)) * (2 if dtype.bits == 64 else 1)

    candidates = steps(blocks) + steps((count + 1) * block)
    parts = candidates + sorting_steps(count, blocks.bit_length()) + size // SEARCH_SPEEDUP
    return block if MIN_SPEEDUP * parts < steps(size) else None


def _by_blocks(
    x: Tensor, axis: int, context: Context, count: int, block: int
) -> Callable[..., Expr]:
    """The position along the axis of each element of the result, found by sorting blocks.

    Blocks are sorted by their best elements. The result lies in the first `count` blocks: any
    element of a later block comes after the best elements of these blocks. Then the elements of
    these blocks are sorted, together with the elements behind the last full block.

        k = 2; 3 1 | 9 8 | 2 0 | 5 7 | 4  ->  best: 3 9 2 7  ->  9 8 | 5 7 | 4  ->  places 2 3
    """
    descending = bool(context.attribute("largest", 1))
    size = int(as_int(x.shape[axis]) or 0)
    blocks, block_elements = size // block, count * block
    lines = (*x.shape[:axis], *x.shape[axis + 1 :])

    def key(line: tuple[Expr, ...], place: Expr) -> Expr:
        return comparable(x[(*line[:axis], place, *line[axis:])])

    def of_block(*index: Expr) -> Expr:
        *i, element = index
        return key((*i[:axis], *i[axis + 1 :]), i[axis] * block + element)

    shape = (*x.shape[:axis], const(blocks), *x.shape[axis + 1 :])
    best = reduce("best", shape, (const(block),), "max" if descending else "min", of_block)
    dtype = best.dtype

    def best_of(*i: Expr) -> Expr:
        return best[(*i[:axis], i[-1], *i[axis:-1])]

    keys = _words("best_word", (*lines, const(blocks)), dtype, descending, best_of)
    order = stable_order("block_order", keys, word_bits(dtype))
    count_shape = (*lines, const(count))
    first = compute("first", count_shape, lambda *i: inside(order[i], const(blocks)), keep=True)
    forward = stable_order("forward", [first], (blocks - 1).bit_length())

    def start(*i: Expr) -> Expr:
        return first[(*i[:-1], inside(forward[i], const(count)))] * block

    starts = compute("starts", count_shape, start, keep=True)

    def place(line: tuple[Expr, ...], candidate: Expr) -> Expr:
        if blocks * block == size:
            return starts[(*line, candidate // block)] + candidate % block
        block_place = starts[(*line, minimum(candidate // block, count - 1))] + candidate % block
        return select(
            candidate < block_elements, block_place, candidate + (blocks * block - block_elements)
        )

    candidates = const(block_elements + size - blocks * block)
    keys = _words(
        "word",
        (*lines, candidates),
        dtype,
        descending,
        lambda *i: key(i[:-1], place(i[:-1], i[-1])),
    )
    ranks = stable_order("order", keys, word_bits(dtype))

    def result(*i: Expr) -> Expr:
        line = (*i[:axis], *i[axis + 1 :])
        return place(line, inside(ranks[(*line, i[axis])], candidates))

    return result


def _words(
    name: str,
    shape: tuple[Expr, ...],
    dtype: DType,
    descending: bool,
    key: Callable[..., Expr],
) -> list[Tensor]:
    """The words of keys of this type, the least significant first."""

    def word(number: int) -> Callable[..., Expr]:
        return lambda *i: words(key(*i), descending)[number]

    count = len(words(Const(0, dtype)))
    return [compute(f"{name}{n}", shape, word(n), keep=True) for n in range(count)]


def _by_count(x: Tensor, axis: int, context: Context) -> Callable[..., Expr]:
    """The position along the axis of each element of the result, found by counting. The element at
    place n of the result has n elements before it.
    """
    size = x.shape[axis]
    better = "gt" if context.attribute("largest", 1) else "lt"
    keys = x
    if x.dtype.is_float:
        keys = compute("keys", x.shape, lambda *i: comparable(x[i]), keep=True)

    def precedes(*index: Expr) -> Expr:
        *i, competitor = index
        own_key, other_key = keys[tuple(i)], keys[(*i[:axis], competitor, *i[axis + 1 :])]
        first = call("eq", other_key, own_key) & (competitor < i[axis])
        return select(call(better, other_key, own_key) | first, ONE, ZERO)

    rank = reduce("rank", x.shape, (size,), "add", precedes)
    shape = (*x.shape[:axis], _count(context), *x.shape[axis + 1 :])

    def position(*index: Expr) -> Expr:
        *i, at = index
        place = rank[(*i[:axis], at, *i[axis + 1 :])]
        return select(call("eq", place, i[axis]), at, ZERO)

    positions = reduce("place", shape, (size,), "max", position)
    return lambda *i: positions[i]


X, LONG = "float32[3, 5]", "float32[3, 150]"

OPS: tuple[Operator, ...] = (
    Operator("TopK", _top_k_type, _top_k, kind="reduction", cases=(
        case(X, [3], outputs=2), case(X, [2], outputs=2, axis=0, largest=0),
        case([[1.0, 3, 3, 2, 3]], [4], outputs=2), case(LONG, [7], outputs=2),
        case(LONG, [150], outputs=2, axis=1, largest=0),
        case("int64[200, 2] in -9..9", [200], outputs=2, axis=0),
        case("float32[2, 4003]", [5], outputs=2), case("float32[4096, 2]", [5], outputs=2, axis=0),
        case("int64[4003, 2] in -9..9", [7], outputs=2, axis=0, largest=0),
        case("uint8[2, 200]", [9], outputs=2, largest=0))),
)  # fmt: skip
