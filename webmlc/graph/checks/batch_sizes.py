"""Find the sizes of batches that a model refuses, and warn of the size 1 that users run most.

In: the shapes of a model's inputs, and the model's requirements on its symbols. Out: the symbols
that count a batch, and the requirement that a size of such a symbol does not meet:

    >>> from webmlc.core.expr import Var, const
    >>> batch, frames = Var("batch"), Var("frames")
    >>> batch_symbols([(batch, const(1), frames)])
    ('batch',)
    >>> squeeze = Requirement("unequal", batch, const(1), "Squeeze_1")
    >>> refusal([squeeze], "batch", 1).node
    'Squeeze_1'
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from webmlc.core.errors import InputError, ModelWarning
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import variables
from webmlc.core.sizes import Rule, evaluate_size
from webmlc.graph.checks.example_sizes import SIZES
from webmlc.graph.ir import Module, Requirement


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
            _holds(requirement, dict.fromkeys(names, other) | {symbol: size})
            for other in (SIZES if len(names) > 1 else SIZES[:1])
        ):
            return requirement
    return None


def _names(requirement: Requirement) -> set[str]:
    """The symbols of a requirement."""
    return {v.name for side in (requirement.left, requirement.right) for v in variables(side)}


def _holds(requirement: Requirement, sizes: dict[str, int]) -> bool:
    try:
        left, right = (evaluate_size(e, sizes) for e in (requirement.left, requirement.right))
    except InputError:  # a size is too large to count
        return False
    return requirement.allows(left, right)


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
