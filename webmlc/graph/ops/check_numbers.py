"""Check that sizes and positions fit into 32-bit integers, in which kernels count.

In: sizes, or the tensors that a node computes. Out: nothing, or a `NotSupportedError`. If sizes are
symbolic, the result of `Tile(%x, [2**40])` has no number of elements before a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Const, Expr
from webmlc.core.rewrite import walk
from webmlc.graph.compute import Reduction, Scatter, Tensor
from webmlc.graph.ops.operator import NotSupportedError


def check_sizes(sizes: Iterable[Expr]) -> None:
    """Raise `NotSupportedError` for a size that a number beyond 32 bits is part of."""
    for size in sizes:
        for part in walk(size):
            if isinstance(part, Const) and part.dtype is INDEX and not _fits(part.value):
                raise NotSupportedError(
                    f"{part.value} in a size or a position; they are at most {INDEX.limits[1]}"
                )


def check_numbers(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Raise `NotSupportedError` for a number beyond 32 bits that computes a position in results, or
    in a tensor between the inputs and them.
    """
    pending, visited = list(results), {*inputs}
    while pending:
        tensor = pending.pop()
        if tensor in visited:
            continue
        visited.add(tensor)
        pending += tensor.sources
        check_sizes((*tensor.shape, *tensor.expressions))
        match tensor.body:
            case Reduction(axes=axes) | Scatter(axes=axes):
                check_sizes(axis.extent for axis in axes)


def _fits(value: float) -> bool:
    return INDEX.limits[0] <= value <= INDEX.limits[1]
