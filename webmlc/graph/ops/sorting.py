"""Radix sort: the order of the elements along an axis, in linear time.

Each element becomes words whose order as unsigned integers is the order of the elements. Words are
split into digits. There is one round for each digit, from the least significant to the most. A
round counts the occurrences of each digit. The sums of these counts give the place where the
elements of each digit start. Then the round writes the elements to these places, in the order of
the round before. So equal elements keep their order.

Source: Knuth, "The Art of Computer Programming" 3, 5.2.5, algorithm R.

    words(3.0 -1.0 2.0 -1.0), then stable_order  ->  1 3 2 0
"""

from __future__ import annotations

from collections.abc import Sequence

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Bitcast, Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, scatter
from webmlc.graph.ops.scans import scan

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
