"""Sorting along an axis: radix sort, and TopK.

Radix sort orders elements in linear time. Each element becomes words whose order as unsigned
integers is the order of the elements. Words are split into digits. There is one round for each
digit, from the least significant to the most. A round counts the occurrences of each digit. The
sums of these counts give the place where the elements of each digit start. Then the round writes
the elements to these places, in the order of the round before. So equal elements keep their order.

Source: Knuth, "The Art of Computer Programming" 3, 5.2.5, algorithm R.

    words(3.0 -1.0 2.0 -1.0), then stable_order  ->  1 3 2 0

TopK counts, for each element of a short axis, the elements that come before it. That takes
quadratic time, but elements are independent. If the node asks for few of many elements, TopK sorts
only the blocks that can contain them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Bitcast, Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce, scatter
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.reduction import scan
from webmlc.graph.ops.shapes import ONE, ZERO, check_single, dimensions, require, with_axis

MAX_DIGIT_BITS = 11
"""The most bits of a digit. It decides the number of rounds: three sort 32 bits. Derived: the 2,048
counters of such a digit take 8 KiB, so that they stay in the first-level cache.
"""
COUNTER_STEPS = 3
"""The passes over the counters of one round, which clear, sum and copy them. `sorting_steps` counts
them as cost.
"""
_SIGN = -(1 << 31)


def comparable(x: Expr) -> Expr:
    """An integer whose order is the order of the elements. NaN is the largest; 0 and -0 are
    equal.
    """
    if not x.dtype.is_float:
        return x if x.dtype.is_integer else x.astype(INDEX)
    number = x if x.dtype is DType.float64 else x.astype(DType.float32)
    integer = DType.int64 if x.dtype is DType.float64 else INDEX
    largest = Const((1 << integer.bits - 1) - 1, integer)
    bits = Bitcast(number, integer)
    signed = select(bits < 0, call("bit_xor", bits, largest), bits)
    zero = Const(0, integer)
    return select(call("isnan", number), largest, select(number.equals(0.0), zero, signed))


def words(x: Expr, descending: bool = False) -> tuple[Expr, ...]:
    """The unsigned words of an element, the least significant first. Their order is the order of
    the elements, or the opposite order if `descending`.
    """
    number = comparable(x)
    dtype = number.dtype
    parts: tuple[Expr, ...]
    if dtype.bits == 64:
        high = (number // Const(1 << 32, dtype)).astype(INDEX)
        parts = (number.astype(INDEX), call("bit_xor", high, _SIGN) if dtype.is_signed else high)
    elif dtype is DType.uint32:
        parts = (Bitcast(number, INDEX),)
    elif dtype is INDEX:
        parts = (number if x.dtype is DType.bool else call("bit_xor", number, _SIGN),)
    else:
        parts = (number.astype(INDEX) - int(dtype.limits[0]),)
    bits = word_bits(x.dtype)
    mask = -1 if bits == 32 else (1 << bits) - 1
    return tuple(call("bit_xor", word, mask) for word in parts) if descending else parts


def word_bits(dtype: DType) -> int:
    """The bits that the words of a type's elements use."""
    return dtype.bits if dtype.bits < 32 and not dtype.is_float else 32


def digit_bits(size: int | None, bits: int) -> int:
    """The digit size, in bits, that sorts a line of `size` words of `bits` bits in the fewest
    steps. It is the largest digit size if `size` is unknown.
    """
    if size is None:
        return MAX_DIGIT_BITS
    return min(reversed(range(1, MAX_DIGIT_BITS + 1)), key=lambda d: _steps(size, bits, d))


def sorting_steps(size: int, bits: int) -> int:
    """The cost of sorting a line of `size` words of `bits` bits, in elements and counters
    visited.
    """
    return _steps(size, bits, digit_bits(size, bits))


def _steps(size: int, bits: int, digit: int) -> int:
    return -(-bits // digit) * (2 * size + (COUNTER_STEPS << min(digit, bits)))


def inside(position: Expr, size: Expr) -> Expr:
    """Clamp a position that another kernel computed. A step that is profiled alone reads positions
    from arbitrary memory, and must not read outside a tensor because of them.
    """
    return maximum(minimum(position, size - 1), 0)


def stable_order(
    name: str, keys: Sequence[Tensor], bits: int, before: Tensor | None = None
) -> Tensor:
    """The positions along the last axis, sorted by words of `bits` bits. `keys` holds the least
    significant word first. Equal elements keep the order of the axis, or the order `before`.
    """
    digit = digit_bits(as_int(keys[0].shape[-1]), bits)
    for number, word in enumerate(keys):
        for shift in range(0, bits, digit):
            count = 1 << min(digit, bits - shift)
            before = _round(f"{name}{number}_{shift}", word, shift, count, before)
    assert before is not None
    return before


def _round(name: str, keys: Tensor, shift: int, digits: int, before: Tensor | None) -> Tensor:
    """Sort by one digit; elements with equal digits keep the order `before`."""
    *lines, size = keys.shape
    counters = (*lines, const(digits))

    def digit(*index: Expr) -> Expr:
        return call("shift_right", keys[index], shift) & (digits - 1)

    def count(_: Tensor, *index: Expr) -> tuple[tuple[Expr, ...], Expr]:
        return (*index[:-1], digit(*index)), const(1)

    zero = const(0)
    counts = scatter(f"{name}_counts", counters, lines, (size,), count, INDEX, zero, "add")

    starts = scan(f"{name}_starts", counters, len(lines), "add", lambda *i: counts[i], True)

    # One tensor holds the counters and, behind them, the order. An update reads a counter, writes a
    # position to the place that the counter says, then increments the counter.
    def place(state: Tensor, *index: Expr) -> tuple[tuple[Expr, ...], Expr]:
        *line, position, step = index
        element = position if before is None else before[(*line, position)]
        counter = digit(*line, inside(element, size))
        there = state[(*line, counter)]
        counts_up = step.equals(1)
        target = select(counts_up, counter, there + digits)
        return (*line, target), select(counts_up, there + 1, element)

    shape = (*lines, size + digits)
    first = compute(f"{name}_first", shape, lambda *i: select(i[-1] < digits, starts[i], zero))
    places = scatter(f"{name}_places", shape, lines, (size, const(2)), place, INDEX, first)
    return compute(name, keys.shape, lambda *i: places[(*i[:-1], i[-1] + digits)])


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
    shape = with_axis(x.shape, axis, _count(context))
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
    shape = with_axis(x.shape, axis, _count(context))
    values = compute("values", shape, lambda *i: x[with_axis(i, axis, place(*i))])
    indices = compute("indices", shape, lambda *i: place(*i).astype(DType.int64))
    return (values, indices)


def _by_sort(x: Tensor, axis: int, context: Context) -> Callable[..., Expr]:
    """The position along the axis of each element of the result, found by sorting."""
    descending = bool(context.attribute("largest", 1))
    shape = (*x.shape[:axis], *x.shape[axis + 1 :], x.shape[axis])
    keys = _words("word", shape, x.dtype, descending, lambda *i: x[(*i[:axis], i[-1], *i[axis:-1])])
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
    in_blocks, in_best = size // block * block, count * block
    lines = with_axis(x.shape, axis)

    def key(line: tuple[Expr, ...], place: Expr) -> Expr:
        return comparable(x[(*line[:axis], place, *line[axis:])])

    def of_block(*index: Expr) -> Expr:
        *i, element = index
        return key(with_axis(i, axis), i[axis] * block + element)

    shape = with_axis(x.shape, axis, const(size // block))
    best = reduce("best", shape, (const(block),), "max" if descending else "min", of_block)
    starts = _best_blocks(best, axis, descending, count, block)

    def place(line: tuple[Expr, ...], candidate: Expr) -> Expr:
        if in_blocks == size:
            return starts[(*line, candidate // block)] + candidate % block
        block_place = starts[(*line, minimum(candidate // block, count - 1))] + candidate % block
        return select(candidate < in_best, block_place, candidate + (in_blocks - in_best))

    candidates = const(in_best + size - in_blocks)

    def candidate_key(*i: Expr) -> Expr:
        return key(i[:-1], place(i[:-1], i[-1]))

    keys = _words("word", (*lines, candidates), best.dtype, descending, candidate_key)
    ranks = stable_order("order", keys, word_bits(best.dtype))

    def result(*i: Expr) -> Expr:
        line = with_axis(i, axis)
        return place(line, inside(ranks[(*line, i[axis])], candidates))

    return result


def _best_blocks(best: Tensor, axis: int, descending: bool, count: int, block: int) -> Tensor:
    """The starts of the `count` blocks that have the best elements, in ascending order. `best`
    holds the best element of each block along the axis.
    """
    blocks, lines = best.shape[axis], with_axis(best.shape, axis)

    def best_of(*i: Expr) -> Expr:
        return best[(*i[:axis], i[-1], *i[axis:-1])]

    keys = _words("best_word", (*lines, blocks), best.dtype, descending, best_of)
    order = stable_order("block_order", keys, word_bits(best.dtype))
    shape = (*lines, const(count))
    first = compute("first", shape, lambda *i: inside(order[i], blocks), keep=True)
    forward = stable_order("forward", [first], ((as_int(blocks) or 1) - 1).bit_length())

    def start(*i: Expr) -> Expr:
        return first[(*i[:-1], inside(forward[i], const(count)))] * block

    return compute("starts", shape, start, keep=True)


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
        own_key, other_key = keys[tuple(i)], keys[with_axis(i, axis, competitor)]
        first = call("eq", other_key, own_key) & (competitor < i[axis])
        return select(call(better, other_key, own_key) | first, ONE, ZERO)

    rank = reduce("rank", x.shape, (size,), "add", precedes)
    shape = with_axis(x.shape, axis, _count(context))

    def position(*index: Expr) -> Expr:
        *i, at = index
        place = rank[with_axis(i, axis, at)]
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
