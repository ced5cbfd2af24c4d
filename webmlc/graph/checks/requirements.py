"""Collect the requirements that the runs of a function must check.

In: the requirements that inference recorded at each node (`shapes.require`), and the number of
elements of its results. Out: the requirements of the nodes that the outputs depend on, each once. A
requirement that other requirements imply is left out.

    a window of 3 over h + 2, one of 3 over (h + 1) // 2 + 2  ->  3 is at most h + 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Call, Const, Expr, Var, as_int, const
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.graph.ir import Node, Requirement, TensorType
from webmlc.graph.ops.operator import Context, IndexInput, NotSupportedError
from webmlc.graph.ops.shapes import ONE, ZERO, canonical, require

MAX_ELEMENTS = const((1 << 31) - 1)
"""The most elements that a tensor may have: kernels count positions in signed 32-bit integers."""


def count_requirements(
    node: Node, inputs: Iterable[TensorType | None], outputs: Iterable[TensorType]
) -> list[Requirement]:
    """Require that a 32-bit integer can count the elements of each result that grows faster than
    all operands.

    Hosts check the size of every buffer. But a result that exists only inside a kernel has no
    buffer.
    """
    operands = [_growth(operand) for operand in inputs if operand is not None]
    return [
        Requirement("at most", prod(result.shape, start=ONE), MAX_ELEMENTS, node.name)
        for result in outputs
        if not any(_growth(result) <= operand for operand in operands)
        and any(map(variables, result.shape))
    ]


def require_indices(context: Context, indices: Iterable[IndexInput]) -> None:
    """Require that indices known at build time, as numbers or expressions of symbols, lie within
    their axes.
    """
    for index in indices:
        place = context.node.inputs.index(index.value)
        array = context.constant(place)
        array = context.value(place) if array is None else array
        if array is None or not array.size:
            continue
        columns = array.reshape(-1, len(index.sizes)).T
        for size, column in zip(index.sizes, columns, strict=True):
            numbers = [int(i) for i in column if not isinstance(i, Expr)]
            bounds = [const(n) for n in {min(numbers), max(numbers)}] if numbers else []
            for bound in (*bounds, *(i for i in column if isinstance(i, Expr))):
                _require_index(context, bound, size, size if index.from_end else ZERO)


def _require_index(context: Context, index: Expr, size: Expr, before: Expr) -> None:
    """Require that `index` lies between `-before` and `size - 1`."""
    above = require(context, "at most", canonical(index + 1), size)
    below = require(context, "at most", canonical(ZERO - index), before)
    if not (above and below):
        raise NotSupportedError(f"the index {index} into an axis of {size} elements")


def _growth(type_: TensorType) -> Counter[frozenset[Var]]:
    """Count the occurrences of each set of symbols as a factor of the number of elements."""
    return Counter(symbols for d in type_.shape if (symbols := variables(d)))


def live_requirements(
    outputs: Iterable[str], by_node: Mapping[Node, Sequence[Requirement]]
) -> tuple[Requirement, ...]:
    """The requirements of the nodes that `outputs` depend on. `by_node` is in topological order."""
    live = set(outputs)
    result: list[Requirement] = []
    for node, requirements in reversed(list(by_node.items())):
        if not live.isdisjoint(node.outputs):
            live.update(node.inputs)
            result += reversed(requirements)
    return _without_implied(result[::-1])


def _without_implied(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Keep each requirement once. Drop bounds that earlier bounds imply, and counts that are part
    of a larger count.
    """
    unique: dict[tuple[str, Expr, Expr], Requirement] = {}
    ranges: dict[Var, Interval] = {}
    for requirement in requirements:
        for symbol in variables(requirement.left) | variables(requirement.right):
            ranges.setdefault(symbol, Interval(0, MAX_ELEMENTS.value))
        if requirement.rule == "at most" and requirement.right != MAX_ELEMENTS:
            slack = simplify(requirement.right - requirement.left, ranges)
            if bounds(slack, ranges).low >= 0:
                continue
            _learn(slack, ranges)
        key = (requirement.rule, requirement.left, requirement.right)
        unique.setdefault(key, requirement)
    return tuple(r for r in unique.values() if not _is_smaller_count(r, unique.values()))


def _learn(slack: Expr, ranges: dict[Var, Interval]) -> None:
    """Raise the lower bound of the symbol `n` in a slack `n + c`, which is not negative."""
    match slack:
        case Var() as symbol:
            number = 0
        case Call(op="add", args=(Var() as symbol, Const(value=int(number)))):
            pass
        case Call(op="sub", args=(Var() as symbol, Const(value=int(number)))):
            number = -number
        case _:
            return
    interval = ranges[symbol]
    ranges[symbol] = Interval(max(interval.low, -number), interval.high)


def _is_smaller_count(requirement: Requirement, candidates: Iterable[Requirement]) -> bool:
    """True if a requirement is a count whose factors are all among those of a larger count."""
    if requirement.right != MAX_ELEMENTS:
        return False
    number, powers = factors(requirement.left)
    for candidate in candidates:
        if candidate is not requirement and candidate.right == MAX_ELEMENTS:
            candidate_number, candidate_powers = factors(candidate.left)
            if powers <= candidate_powers and number <= candidate_number:
                return True
    return False


def factors(total: Expr) -> tuple[int, Counter[Expr]]:
    """Split a product into a number and the count of each other factor."""
    number, powers = 1, Counter[Expr]()
    pending = [total]
    while pending:
        factor = pending.pop()
        value = as_int(factor)
        if value is not None:
            number *= value
        elif isinstance(factor, Call) and factor.op == "mul":
            pending += factor.args
        else:
            powers[factor] += 1
    return number, powers
