"""Choose sizes for symbolic dimensions: sizes to try a model with, and sizes that it refuses.

In: the model's requirements on its symbols, the shapes of its inputs or results, and the sizes that
a user names. Out: a size for every symbol, which is 1 where the model allows it; or the symbols
that count a batch, and the requirement that a size of such a symbol does not meet:

    >>> from webmlc.core.expr import Var, const
    >>> batch, height, width = map(Var, ("batch", "height", "width"))
    >>> kernel = Requirement("at most", const(3), height, "conv")
    >>> pooled = (batch, height // 8, width // 8)
    >>> example_sizes([kernel], [pooled], ["batch", "height", "width"], {"width": 20})
    {'batch': 1, 'height': 8, 'width': 20}
    >>> batch_symbols([(batch, const(1), width)])
    ('batch',)
    >>> squeeze = Requirement("unequal", batch, const(1), "Squeeze_1")
    >>> refusal([squeeze], "batch", 1).node
    'Squeeze_1'
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

from webmlc.core.errors import InputError, ModelWarning
from webmlc.core.expr import Expr, Var, const
from webmlc.core.rewrite import variables
from webmlc.core.sizes import Rule, evaluate_size
from webmlc.core.symbol_names import symbol_sizes
from webmlc.graph.ir import Module, Requirement

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
    return {v.name for side in (requirement.left, requirement.right) for v in variables(side)}


def _hold(requirements: Sequence[Requirement], sizes: Mapping[str, int]) -> bool:
    """True if all requirements hold with these sizes."""
    try:
        return all(
            r.allows(evaluate_size(r.left, sizes), evaluate_size(r.right, sizes))
            for r in requirements
        )
    except InputError:  # a size is too large to count
        return False


def batch_symbols(shapes: Iterable[Iterable[Expr]]) -> tuple[str, ...]:
    """The symbols that are the first size of an input, or that have "batch" in their names."""
    names: dict[str, None] = {}
    for shape in shapes:
        for axis, size in enumerate(shape):
            if isinstance(size, Var) and (axis == 0 or "batch" in size.name.lower()):
                names[size.name] = None
    return tuple(names)


def refusal(requirements: Iterable[Requirement], symbol: str, size: int) -> Requirement | None:
    """The first requirement that a symbol of this size does not meet, whatever the sizes of other
    symbols are. Each of `SIZES` is tried for the other symbols.
    """
    for requirement in requirements:
        names = _names(requirement)
        if symbol in names and not any(
            _hold([requirement], dict.fromkeys(names, other) | {symbol: size})
            for other in (SIZES if len(names) > 1 else SIZES[:1])
        ):
            return requirement
    return None


def warn_of_refused_sizes(module: Module) -> None:
    """Warn of each batch whose size 1 the model refuses. Sizes that a run computes may take any
    value, so requirements on such sizes say nothing about a batch.

    needs: inferred types.
    """
    main = module.main
    shapes = [main.type(name).shape for name in main.inputs]
    inputs = {v.name for shape in shapes for size in shape for v in variables(size)}
    requirements = [r for r in main.requirements if _names(r) <= inputs]
    for symbol in batch_symbols(shapes):
        if (requirement := refusal(requirements, symbol, 1)) is not None:
            advice = "The model itself decides that: was it exported for other sizes?"
            if requirement.rule == "unequal":
                advice = (
                    "The rank of the result changes there. To run this size, build for it alone: "
                    f'--dim {symbol}=1, or dims={{"{symbol}": 1}} in Python'
                )
            warnings.warn(
                f"the package will refuse {symbol} = 1: node {requirement.node!r} needs "
                f"{requirement.left} and {requirement.right} to be {REQUIRED[requirement.rule]}. "
                f"{advice}",
                ModelWarning,
                stacklevel=2,
            )


REQUIRED: Mapping[Rule, str] = {
    "equal": "equal",
    "unequal": "different",
    "at most": "in this order of size",
    "broadcast": "equal, or one of them 1",
    "stretch": "equal, or the first 1",
}
"""The relation of a requirement's two sizes in words, by its rule."""
