"""Inputs for the runs of one model: of other sizes, with other indices, with NaN and infinity.

In: the inputs that a graph was drawn for, and the symbol of each dimension. Out: inputs of the same
types. Most runs change one thing, so that many still fit; others change several.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np

from tests.fuzz.graph import Array

Feeds = dict[str, Array]
Symbols = Mapping[tuple[str, int], str]
SIZES = (0, 0, 1, 1, 2, 3, 4, 5, 6, 8, 9, 16, 17, 31, 33, 64)
LARGE = (127, 300, 1000, 4097)
MOST_ELEMENTS = 50_000
SPECIAL = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e30, -1e30, 1e-40, 0.5, 1.5, 2.5),
    *(-0.5, 1.0, -1.0, 2.0**31, -(2.0**31) - 1024, 2.0**63, 127.5, 255.5, -128.5, 65504.0),
)
INDICES = (0, 1, -1, 2, -2, 3, 2**31, 2**31 - 1, -(2**31), 2**40, -(2**40), 2**63 - 1, -(2**63))
FEW = 12
"""Elements of an integer input that may become huge: a longer one holds data rather than sizes."""


def runs_of(drawn: Feeds, symbols: Symbols, choice: random.Random, count: int) -> list[Feeds]:
    """The inputs of `count` runs."""
    return [_changed(drawn, symbols, choice) for _ in range(count)]


def _changed(drawn: Feeds, symbols: Symbols, choice: random.Random) -> Feeds:
    changes: list[Callable[[Feeds], Feeds]] = []
    if symbols:
        changes += [lambda f: _resize_together(f, symbols, choice)] * 4
        changes += [lambda f: _resize_one(f, symbols, choice)] * 3
    if any(a.dtype.kind in "iu" for a in drawn.values()):
        changes += [lambda f: _move_indices(f, choice)] * 4
    if any(_is_float(a) for a in drawn.values()):
        changes += [lambda f: _special_numbers(f, choice)] * 2
    feeds = drawn
    for _ in range(choice.choice((1, 1, 1, 2, 2, 3))):
        feeds = choice.choice(changes)(feeds) if changes else feeds
    return feeds


def _size(choice: random.Random, old: int) -> int:
    if choice.random() < 0.12:
        return choice.choice(LARGE)
    return choice.choice((*SIZES, old + 1, old + 1, max(old - 1, 0), 2 * old))


def _resize_together(feeds: Feeds, symbols: Symbols, choice: random.Random) -> Feeds:
    """All symbolic dimensions of one size take another."""
    old = choice.choice([feeds[name].shape[axis] for name, axis in symbols])
    new = _size(choice, old)
    sizes = {(name, axis): new for name, axis in symbols if feeds[name].shape[axis] == old}
    return _resized(feeds, _with_equal_symbols(sizes, symbols))


def _resize_one(feeds: Feeds, symbols: Symbols, choice: random.Random) -> Feeds:
    """One symbol takes another size."""
    name, axis = choice.choice(list(symbols))
    new = _size(choice, feeds[name].shape[axis])
    return _resized(feeds, _with_equal_symbols({(name, axis): new}, symbols))


def _with_equal_symbols(
    sizes: dict[tuple[str, int], int], symbols: Symbols
) -> dict[tuple[str, int], int]:
    """The sizes of all dimensions of the symbols that change."""
    values = {symbols[place]: size for place, size in sizes.items()}
    return {place: values[name] for place, name in symbols.items() if name in values}


def _resized(feeds: Feeds, sizes: dict[tuple[str, int], int]) -> Feeds:
    """The same elements, repeated or cut."""
    result = dict(feeds)
    for name, array in feeds.items():
        shape = tuple(sizes.get((name, axis), n) for axis, n in enumerate(array.shape))
        if shape == array.shape:
            continue
        if np.prod(shape) > MOST_ELEMENTS:
            return feeds
        source = array if array.size else np.ones(1, array.dtype)
        result[name] = np.resize(source, shape)
    return result


def _move_indices(feeds: Feeds, choice: random.Random) -> Feeds:
    """Some elements of an integer input become others: near a size of the graph, or huge."""
    names = [name for name, array in feeds.items() if array.dtype.kind in "iu" and array.size]
    if not names:
        return feeds
    name = choice.choice(names)
    array = feeds[name].copy()
    sizes = sorted({n for other in feeds.values() for n in other.shape})
    near = [m for n in sizes for m in (n, n - 1, -n, -n - 1, n + 1)]
    limits = np.iinfo(array.dtype)
    flat = array.reshape(-1)
    for at in choice.sample(range(flat.size), min(flat.size, choice.choice((1, 1, 2, FEW)))):
        value = choice.choice(near) if near and choice.random() < 0.6 else choice.choice(INDICES)
        flat[at] = min(max(value, limits.min), limits.max)
    return {**feeds, name: array}


def _special_numbers(feeds: Feeds, choice: random.Random) -> Feeds:
    """Some elements of a float input become NaN, infinite, huge or tiny."""
    names = [name for name, array in feeds.items() if _is_float(array) and array.size]
    if not names:
        return feeds
    name = choice.choice(names)
    array = feeds[name].copy()
    flat = array.reshape(-1)
    share = choice.choice((0.05, 0.3, 1.0))
    for at in range(flat.size):
        if at < 1 or choice.random() < share:
            with np.errstate(all="ignore"):
                flat[at] = np.asarray(choice.choice(SPECIAL)).astype(array.dtype)
    return {**feeds, name: array}


def _is_float(array: Array) -> bool:
    return array.dtype.name in ("float16", "float32", "float64", "bfloat16")
