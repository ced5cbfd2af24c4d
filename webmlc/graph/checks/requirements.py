"""The requirements of a function that its runs have to check.

In: what inference assumed at each node (`shapes.require`), and the elements that results may have.
Out: the requirements of nodes that the outputs depend on, each once, without what others imply.

    a window of 3 over h + 2, one of 3 over (h + 1) // 2 + 2  ->  3 is at most h + 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Call, Const, Expr, Var, as_int, const
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.graph.ir import Node, Requirement, TensorType
from webmlc.graph.ops.operator import Context, IndexInput, NotSupportedError
from webmlc.graph.ops.shapes import ZERO, canonical, require

MOST_ELEMENTS = const((1 << 31) - 1)
"""The elements of a tensor, whose positions are 32-bit integers."""


def count_requirements(
    node: Node, inputs: Iterable[TensorType | None], outputs: Iterable[TensorType]
) -> list[Requirement]:
    """The elements of results can be counted, where these grow faster than any operand: hosts check
    the size of every buffer, but a result that is used up inside a kernel has none.
    """
    operands = [_growth(operand) for operand in inputs if operand is not None]
    return [
        Requirement("at most", _product(result.shape), MOST_ELEMENTS, node.name)
        for result in outputs
        if not any(_growth(result) <= operand for operand in operands)
        and any(map(variables, result.shape))
    ]


def require_indices(context: Context, indices: Iterable[IndexInput]) -> None:
    """Indices that a build knows, as numbers or in terms of symbols, lie within their axes."""
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
    """`index` is from -before to size - 1."""
    above = require(context, "at most", canonical(index + 1), size)
    below = require(context, "at most", canonical(ZERO - index), before)
    if not (above and below):
        raise NotSupportedError(f"the index {index} into an axis of {size} elements")


def _growth(type_: TensorType) -> Counter[frozenset[Var]]:
    """How often each set of symbols is a factor of the number of elements."""
    return Counter(symbols for d in type_.shape if (symbols := variables(d)))


def _product(sizes: Sequence[Expr]) -> Expr:
    total: Expr = const(1)
    for size in sizes:
        total = total * size
    return total


def live_requirements(
    outputs: Iterable[str], by_node: Mapping[Node, Sequence[Requirement]]
) -> tuple[Requirement, ...]:
    """The requirements of the nodes that `outputs` depend on; nodes are in topological order."""
    live = set(outputs)
    result: list[Requirement] = []
    for node, requirements in reversed(list(by_node.items())):
        if not live.isdisjoint(node.outputs):
            live.update(node.inputs)
            result += reversed(requirements)
    return _without_implied(result[::-1])


def _without_implied(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Each requirement once; no bound that earlier ones imply, and of counts the largest."""
    unique: dict[tuple[str, Expr, Expr], Requirement] = {}
    ranges: dict[Var, Interval] = {}
    for requirement in requirements:
        for symbol in variables(requirement.left) | variables(requirement.right):
            ranges.setdefault(symbol, Interval(0, MOST_ELEMENTS.value))
        if requirement.rule == "at most" and requirement.right != MOST_ELEMENTS:
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
    """True of a count whose factors are all among those of a larger one."""
    if requirement.right != MOST_ELEMENTS:
        return False
    number, factors = _factors(requirement.left)
    for candidate in candidates:
        if candidate is not requirement and candidate.right == MOST_ELEMENTS:
            candidate_number, candidate_factors = _factors(candidate.left)
            if factors <= candidate_factors and number <= candidate_number:
                return True
    return False


def _factors(total: Expr) -> tuple[int, Counter[Expr]]:
    """A product as a number and how often each other factor occurs."""
    number, factors = 1, Counter[Expr]()
    pending = [total]
    while pending:
        factor = pending.pop()
        value = as_int(factor)
        if value is not None:
            number *= value
        elif isinstance(factor, Call) and factor.op == "mul":
            pending += factor.args
        else:
            factors[factor] += 1
    return number, factors
