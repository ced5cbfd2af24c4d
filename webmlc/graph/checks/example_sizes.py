"""Choose sizes for the symbolic dimensions of a model that is tried.

In: the model's requirements on its symbols, the shapes of its results, and the sizes that a user
names. Out: a size for every symbol. The size is 1 where the model allows it:

    >>> from webmlc.core.expr import Var, const
    >>> batch, height, width = map(Var, ("batch", "height", "width"))
    >>> kernel = Requirement("at most", const(3), height, "conv")
    >>> pooled = (batch, height // 8, width // 8)
    >>> example_sizes([kernel], [pooled], ["batch", "height", "width"], {"width": 20})
    {'batch': 1, 'height': 8, 'width': 20}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from webmlc.core.errors import InputError
from webmlc.core.expr import Expr, const
from webmlc.core.rewrite import variables
from webmlc.core.sizes import evaluate_size
from webmlc.core.symbol_names import symbol_sizes
from webmlc.graph.ir import Requirement

SIZES = tuple(1 << i for i in range(11))
"""The sizes to try. The sizes of pictures and sequences often have to be multiples of a power of 2.
"""


def example_sizes(
    requirements: Iterable[Requirement],
    results: Iterable[Sequence[Expr]],
    symbols: Iterable[str],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """The sizes of the symbols. Symbols that `sizes` does not name get the least of `SIZES` with
    which the requirements hold and no result is empty. If no size fits, they get 1, and a run
    reports the error.

    Raises `InputError` if `sizes` has a name that is no symbol.
    """
    symbols = sorted(set(symbols))
    named = symbol_sizes(sizes, symbols)
    symbolic = [size for shape in results for size in shape if variables(size)]
    fills = [Requirement("at most", const(1), size, "") for size in symbolic]
    requirements = [r for r in (*requirements, *fills) if _names(r) <= set(symbols)]
    choices = [dict.fromkeys(symbols, size) | named for size in SIZES]
    chosen = next((c for c in choices if _hold(requirements, c)), None)
    if chosen is None:
        return choices[0]
    for symbol in sorted(chosen.keys() - named.keys()):
        smaller = ({**chosen, symbol: size} for size in SIZES if size < chosen[symbol])
        chosen = next((c for c in smaller if _hold(requirements, c)), chosen)
    return chosen


def _names(requirement: Requirement) -> set[str]:
    """The symbols that decide whether a requirement holds."""
    return {v.name for size in (requirement.left, requirement.right) for v in variables(size)}


def _hold(requirements: Sequence[Requirement], sizes: Mapping[str, int]) -> bool:
    """True if all requirements hold with these sizes."""
    try:
        return all(
            r.allows(evaluate_size(r.left, sizes), evaluate_size(r.right, sizes))
            for r in requirements
        )
    except InputError:  # a size is too large to count
        return False
