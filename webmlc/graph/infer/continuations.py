"""Move the nodes behind an If into its branches, until the results of both branches are alike.

In: an If whose branches give results of other ranks or element types, sequences of other elements,
or an empty optional; and the nodes that depend on these results. Out: an If whose branches contain
some of these nodes, or the branch that the nodes can read.

    %y = If(%c) {then: %t = Squeeze(%x), else: %x}      %z = If(%c) {
    %z = ReduceSum(%y)                              ->      then: %t = Squeeze(%x); ReduceSum(%t),
                                                            else: ReduceSum(%x) }

Exporters write such an If for an axis that may have size 1, and mostly only one branch fits the
nodes behind it. A run then checks that it takes this branch (`ops.control`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from webmlc.core.errors import Unsupported, UnsupportedError, WebmlcError
from webmlc.graph.ir import Function, Node, TensorType
from webmlc.graph.ops.control import ONLY_BRANCH, RUNS_ON_HOST
from webmlc.graph.ops.operator import UnknownValueError
from webmlc.graph.ops.subgraphs import functions_in, rename_captures

BRANCHES = ("then_branch", "else_branch")
"""The attributes of an If that are its branches."""

IS_POSTPONED = "postponed"
"""An attribute of an If with unlike branches: the nodes behind it depend on it, or on another such
If.
"""

DEPTH, MAX_DEPTH = "depth", 4
"""An attribute of an If: the number of branches that contain it because it follows other such Ifs;
and the largest number. Chosen by hand: each level copies the nodes behind the If.
"""


FIRST_FOLLOWERS = 8
"""The number of nodes behind an If that inference first moves into its branches. It doubles until
the results are alike. Chosen by hand.
"""

Types = Mapping[str, TensorType | None]
"""The type of each result in a branch. `None` if the branch cannot compute it as a tensor."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The types of the results of a branch, and the reason why some of them have none."""

    types: Types
    error: WebmlcError | None


class UnlikeBranchesError(UnknownValueError):
    """The branches of an If give results that no type has in common: tensors of other ranks or
    element types, sequences of unequal elements, or an empty optional.
    """

    def __init__(self, condition: str) -> None:
        super().__init__(condition, "the condition of an If whose branches give unlike results")


class TooManyBranchesError(UnsupportedError):
    """More Ifs with unlike branches follow each other than inference tries."""

    def __init__(self, node: Node) -> None:
        reason = (
            f"it follows {MAX_DEPTH} other Ifs whose branches give unlike results; make the sizes "
            "that decide them constant (--dim)"
        )
        super().__init__((Unsupported(node.name, node.op, reason),))


def continue_branches(
    continuation: Continuation,
    infer_branch: Callable[[Continuation, str, int], Trial],
    end: Callable[[Continuation, Sequence[Types]], Continuation],
) -> list[Node]:
    """The nodes in place of an If with unlike branches and of its followers.

    `infer_branch` infers a branch with some followers. `end` returns another continuation if the
    results are unlike behind all followers. Raises the error of a branch if no branch can compute
    the followers.
    """
    count = FIRST_FOLLOWERS
    while True:
        trials = [infer_branch(continuation, key, count) for key in BRANCHES]
        types = [trial.types for trial in trials]
        length = continuation.shortest(types)
        if length is not None:
            return continuation.moved(length, types)
        match [trial.error for trial in trials]:
            case None, None if count < len(continuation.followers):
                count *= 2
            case None, None:
                continuation = end(continuation, types)
                count = len(continuation.followers)
            case None, _:
                return continuation.only(BRANCHES[0])
            case _, None:
                return continuation.only(BRANCHES[1])
            case WebmlcError() as error, _:
                raise error


def postponed(node: Node, nodes: Iterable[Node]) -> list[Node]:
    """The nodes behind an If that do not depend on it, then the If, then the other nodes."""
    dependent = _dependent(node, nodes)
    attributes = {**node.attributes, IS_POSTPONED: 1}
    return [
        *(other for other in nodes if dependent.isdisjoint(other.outputs)),
        replace(node, attributes=attributes),
        *(other for other in nodes if not dependent.isdisjoint(other.outputs)),
    ]


@dataclass(frozen=True, slots=True)
class Continuation:
    """An If, the `followers` behind it in order, and the `outputs` of the function around them."""

    node: Node
    followers: Sequence[Node]
    outputs: Sequence[str]

    def values(self, count: int) -> tuple[str, ...]:
        """The results of the If and of the first `count` followers."""
        return (*self.node.outputs, *(o for n in self.followers[:count] for o in n.outputs))

    def branch(self, key: str, nodes: Sequence[Node], outputs: Sequence[str]) -> Function:
        """A branch that ends with copies of `nodes`, and gives `outputs`."""
        branch: Function = self.node.attributes[key]
        names = dict(zip(self.node.outputs, branch.outputs, strict=True))
        depth = self.node.attributes.get(DEPTH, 0) + 1
        copies = tuple(
            _deeper(rename_captures(node, names).reading(names), depth) for node in nodes
        )
        return replace(
            branch,
            nodes=(*branch.nodes, *copies),
            outputs=tuple(names.get(output, output) for output in outputs),
        )

    def unlike(self, types: Sequence[Types]) -> set[str]:
        """The results with `types` that are unlike in the branches. A result that does not depend
        on the If is alike.
        """
        values = _dependent(self.node, self.followers) & types[0].keys()
        return {v for v in values if not _are_alike(types[0][v], types[1][v])}

    def shortest(self, types: Sequence[Types]) -> int | None:
        """The fewest followers behind which all results that are read further are alike. `None` if
        there is no such number among the followers whose results have `types`.
        """
        last_reader = dict.fromkeys(self.outputs, len(self.followers))
        for number, node in enumerate(self.followers):
            for value in _values_read(node):
                last_reader[value] = max(last_reader.get(value, 0), number)
        unlike, end = self.unlike(types), 0
        for count in range(len(self.followers) + 1):
            new = self.followers[count - 1].outputs if count else self.node.outputs
            if not types[0].keys() >= set(new):
                return None
            for value in unlike.intersection(new):
                end = max(end, last_reader.get(value, -1) + 1)
            if end <= count:
                return count
        return None

    def only(self, key: str) -> list[Node]:
        """The If, of which each run must take one branch, and its followers."""
        attributes = {**self.node.attributes, ONLY_BRANCH: key}
        return [replace(self.node, attributes=attributes), *self.followers]

    def moved(self, count: int, types: Sequence[Types]) -> list[Node]:
        """The If that contains the followers, among the first `count`, that need its results of
        several ranks; and the followers behind it.
        """
        needed, moved, behind = set[str](), list[Node](), list[Node]()
        unlike = self.unlike(types)
        for node in reversed(self.followers[:count]):
            if unlike.isdisjoint(_values_read(node)) and needed.isdisjoint(node.outputs):
                behind.append(node)
            else:
                moved.append(node)
                needed.update(_values_read(node))
        moved.reverse()
        behind = [*reversed(behind), *self.followers[count:]]
        results = (*self.node.outputs, *(o for n in moved for o in n.outputs))
        read = {*self.outputs, *(v for node in behind for v in _values_read(node))}
        outputs = [value for value in results if value in read]
        if not outputs:
            return behind
        branches = {key: self.branch(key, moved, outputs) for key in BRANCHES}
        attributes = {k: v for k, v in self.node.attributes.items() if k != RUNS_ON_HOST}
        attributes |= branches
        return [replace(self.node, attributes=attributes, outputs=tuple(outputs)), *behind]


def _dependent(node: Node, nodes: Iterable[Node]) -> set[str]:
    """The results of a node, and of the nodes behind it that depend on it."""
    values = set(node.outputs)
    for other in nodes:
        if not values.isdisjoint(_values_read(other)):
            values.update(other.outputs)
    return values


def _deeper(node: Node, depth: int) -> Node:
    """The node. An If records that a branch of another If contains it."""
    if node.operator != ("", "If"):
        return node
    return replace(node, attributes={**node.attributes, DEPTH: depth})


def _values_read(node: Node) -> Iterable[str]:
    """The values that a node and its sub-graphs read."""
    yield from node.inputs
    for function in functions_in(node).values():
        yield from function.outputs
        for inner in function.nodes:
            yield from _values_read(inner)


def _are_alike(left: TensorType | None, right: TensorType | None) -> bool:
    """True if two branches give a value of one rank and element type."""
    if left is None or right is None:
        return False
    return (left.dtype, left.rank) == (right.dtype, right.rank)
