"""Scans: each element becomes a fold of the elements before it along an axis.

A scan runs in blocks of `BLOCK` elements. First, each full block is folded. Then a scan of these
results gives the value before each block. Last, each block runs through its elements in order.
Blocks are independent, so that threads share them. Rounding errors grow with the number of levels,
not with the length.

    x: 0 1 2 3 | 4 5 6 7  ->  blocks: 6 22  ->  before: 0 6  ->  y: 0 1 3 6 | 10 15 21 28
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from webmlc.core.expr import Expr, as_int, call, const, minimum, select
from webmlc.graph.compute import Tensor, identity, reduce, scatter
from webmlc.graph.ops.shapes import ONE, ZERO, Shape, canonical

BLOCK = 256
"""The elements of a block. It decides the levels of a scan, and the serial work of a GPU thread.
Derived: four levels of 256 elements cover 2^31 elements or more.
"""


def scan(
    name: str,
    shape: Shape,
    axis: int,
    combine: str,
    source: Callable[..., Expr],
    exclusive: bool,
) -> Tensor:
    """Fold `source(*index)` by `combine` over all elements before each element along `axis`. Unless
    `exclusive`, the fold includes the element itself.
    """
    max_size = as_int(shape[axis])
    return _scan(name, shape, axis, combine, source, exclusive, shape[axis], max_size or 1 << 31)


def _scan(
    name: str,
    shape: Shape,
    axis: int,
    combine: str,
    source: Callable[..., Expr],
    exclusive: bool,
    sources: Expr,
    max_sources: int,
) -> Tensor:
    """Scan a source that has `sources` elements along `axis`, at most `max_sources`."""
    size = shape[axis]
    is_single_block = max_sources <= BLOCK
    full_blocks = canonical(sources // BLOCK)
    dtype = source(*(ZERO for _ in shape)).dtype
    neutral = identity(combine, dtype)

    def sized(count: Expr) -> Shape:
        return (*shape[:axis], count, *shape[axis + 1 :])

    def at(index: Sequence[Expr], place: Expr) -> tuple[Expr, ...]:
        return (*index[:axis], place, *index[axis + 1 :])

    def folded(*index: Expr) -> Expr:
        *block, r = index
        return source(*at(block, block[axis] * BLOCK + r))

    before: Tensor | None = None
    if not is_single_block:
        totals = reduce(f"{name}_blocks", sized(full_blocks), (const(BLOCK),), combine, folded)
        starts = sized(canonical(full_blocks + 1))
        before = _scan(
            f"{name}_before",
            starts,
            axis,
            combine,
            lambda *i: totals[i],
            True,
            full_blocks,
            max_sources // BLOCK,
        )

    def update(state: Tensor, *index: Expr) -> tuple[tuple[Expr, ...], Expr]:
        *block, r = index
        place = block[axis] * BLOCK + r
        first = neutral if before is None else before[tuple(block)]
        last = state[at(block, place - 1)]
        if exclusive:
            total = call(combine, last, source(*at(block, place - 1)))
            return at(block, place), select(r.equals(0), first, total)
        start = select(r.equals(0), first, last)
        return at(block, place), call(combine, start, source(*at(block, place)))

    count = ONE if is_single_block else canonical((size + (BLOCK - 1)) // BLOCK)
    length = canonical(minimum(size, BLOCK))
    return scatter(name, shape, sized(count), (length,), update, dtype)
