"""Walk and rewrite expressions: every traversal in webmlc uses one of these functions.

All functions use an explicit stack, because deep expressions would exceed Python's recursion limit.
All functions visit a shared sub-expression once, because the tree may be exponentially larger than
the graph.

    >>> from webmlc.core.expr import Var
    >>> n = Var("n")
    >>> evaluate(substitute(n * 2 + 1, {n: Var("m") + 3}), {"m": 4})
    15
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import filterfalse
from operator import attrgetter
from typing import Any, TypeVar

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Leaf,
    Var,
    call,
)
from webmlc.core.scalar_operators import SCALAR_OPERATORS

T = TypeVar("T")

CACHED = 1 << 16
"""The number of results after which a `bottom_up` cache is cleared.

A larger number costs memory, a smaller number repeats work. Chosen by hand: a large model has about
this number of distinct expressions.
"""


def bottom_up(
    operands: Callable[[Expr], tuple[Expr, ...]] = attrgetter("children"),
) -> Callable[[Callable[[Expr], T]], Callable[[Expr], T]]:
    """Cache a function of expressions that calls itself for the `operands` of its argument.

    The operands are computed first. The recursion is therefore one level deep for any expression,
    and shared operands are computed once. The function must not call itself for other expressions.
    """

    def cached(function: Callable[[Expr], T]) -> Callable[[Expr], T]:
        table: dict[Expr, T] = {}

        @wraps(function)
        def lookup(root: Expr) -> T:
            nonlocal table
            results = table
            result = results.get(root)
            if result is not None:
                return result
            if len(results) > CACHED:
                results = table = {}  # another thread may still fill the old one
            for operand in operands(root):
                if operand not in results:
                    for node in postorder(root, operands, results):
                        results[node] = function(node)
                    return results[root]
            result = results[root] = function(root)
            return result

        return lookup

    return cached


def postorder(
    root: Expr, operands: Callable[[Expr], tuple[Expr, ...]], results: Mapping[Expr, object]
) -> Iterator[Expr]:
    """Yield the nodes of `root`, operands first, without the nodes in `results`."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node in results:
            stack.pop()
            continue
        stack.extend(filterfalse(results.__contains__, operands(node)))
        if stack[-1] is node:
            stack.pop()
            yield node


@bottom_up()
def written_out(root: Expr) -> int:
    """Count the nodes of an expression as a tree, where each use of a shared node counts."""
    return 1 + sum(map(written_out, root.children))


def walk(root: Expr, into: Callable[[Expr], bool] = lambda _: True) -> Iterator[Expr]:
    """Yield every node of `root` once, parents before children.

    The children of a node are skipped if `into(node)` is false.
    """
    visited: set[Expr] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node not in visited:
            visited.add(node)
            yield node
            if into(node):
                stack.extend(node.children[::-1])


@bottom_up()
def variables(root: Expr) -> frozenset[Var]:
    """The variables that occur in `root`."""
    if isinstance(root, Var):
        return frozenset((root,))
    result: frozenset[Var] = frozenset()
    for child in root.children:
        of_child = variables(child)
        if not of_child <= result:  # most parents share the set of one child
            result = result | of_child if result else of_child
    return result


@bottom_up()
def contents(root: Expr) -> frozenset[object]:
    """The classes and element types of the nodes of `root`, and the names of its operators.

    A pass that rewrites a few of them leaves an expression without them as it is.
    """
    inner = [contents(child) for child in root.children]
    kinds = (
        {type(root), root.dtype, root.op} if isinstance(root, Call) else {type(root), root.dtype}
    )
    for of_child in inner:  # most parents share the set of one child
        if kinds <= of_child and all(map(of_child.issuperset, inner)):
            return of_child
    return frozenset(kinds).union(*inner)


def containing(*kinds: object) -> Callable[[Expr], bool]:
    """Return the test of an expression for classes, element types or operators of its nodes."""
    return lambda root: not contents(root).isdisjoint(kinds)


def rewrite(root: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrite an expression bottom-up.

    `rule` receives each node with its rewritten children, and returns a replacement or `None`.
    """
    return _rewrite(root, rule, None, {})


def rewriter(
    rule: Callable[[Expr], Expr | None], concerns: Callable[[Expr], object] | None = None
) -> Callable[[Expr], Expr]:
    """Return a function that rewrites the expressions of one function or statement.

    A node that several expressions share is rewritten once, and its result is shared, too. The rule
    must not depend on the place of the node. An expression stays as it is if `concerns` of it is
    false: the rule changes none of its nodes.
    """
    results: dict[Expr, Expr] = {}

    def rewritten(root: Expr) -> Expr:
        result = results.get(root)
        return _rewrite(root, rule, concerns, results) if result is None else result

    return rewritten


def _rewrite(
    root: Expr,
    rule: Callable[[Expr], Expr | None],
    concerns: Callable[[Expr], object] | None,
    results: dict[Expr, Expr],
) -> Expr:
    """Rewrite `root`. `results` holds the nodes that are rewritten already."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node in results:
            stack.pop()
            continue
        if concerns is not None and not concerns(node):
            results[stack.pop()] = node
            continue
        children = node.children
        rebuilt = node
        if children:
            stack.extend(filterfalse(results.__contains__, children))
            if stack[-1] is not node:
                continue
            new_children = tuple(map(results.__getitem__, children))
            if new_children != children:
                rebuilt = node.rebuild(new_children)
        stack.pop()
        result = rule(rebuilt)
        results[node] = rebuilt if result is None else result
    return results[root]


def unfold(
    root: Expr,
    rule: Callable[[Expr], Expr | None],
    definition: Callable[[Expr], Expr | None],
    finish: Callable[[Expr], Expr],
) -> Expr:
    """Rewrite bottom-up, as `rewrite` does, and replace nodes by their definitions.

    `definition` receives each node with its rewritten children. If it returns an expression, that
    expression is unfolded too, and `finish` of the result replaces the node. `rule` rewrites the
    other nodes. Equal nodes are unfolded once, and definitions may nest to any depth.
    """
    results: dict[Expr, Expr] = {}
    definitions: dict[Expr, Expr] = {}
    unfolded: dict[Expr, Expr] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if node in results:
            stack.pop()
            continue
        children = node.children
        waiting = [child for child in children if child not in results]
        if waiting:
            stack.extend(waiting)
            continue
        new_children = tuple([results[child] for child in children])
        rebuilt = node if new_children == children else node.rebuild(new_children)
        inner = definitions.get(rebuilt)
        if inner is None and (inner := definition(rebuilt)) is not None:
            definitions[rebuilt] = inner
        if inner is None:
            result = rule(rebuilt)
            results[node] = rebuilt if result is None else result
        elif inner in results:
            if rebuilt not in unfolded:
                unfolded[rebuilt] = finish(results[inner])
            results[node] = unfolded[rebuilt]
        else:
            stack.append(inner)
            continue
        stack.pop()
    return results[root]


def substitute(root: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Replace variables by expressions, and fold index arithmetic that becomes constant.

    A sub-expression without any of the variables stays the same object.
    """
    return substitution(mapping)(root)


def substitution(mapping: Mapping[Var, Expr]) -> Callable[[Expr], Expr]:
    """Return a function that substitutes in several expressions, as `rewriter` rewrites them."""
    results: dict[Expr, Expr] = {}

    def replaced(root: Expr) -> Expr:
        if isinstance(root, Var):
            return mapping.get(root, root)
        if not mapping or not root.children or variables(root).isdisjoint(mapping):
            return root
        return _substitute(root, mapping, results)

    return replaced


def _substitute(root: Expr, mapping: Mapping[Var, Expr], results: dict[Expr, Expr]) -> Expr:
    """Substitute in `root`, an operation on some of the variables. `results` holds the nodes that
    are finished already.
    """
    stack = [root]
    while stack:
        node = stack[-1]
        if node in results:
            stack.pop()
            continue
        children = node.children
        for child in children:
            if child in results:
                continue
            if isinstance(child, Leaf):
                results[child] = mapping.get(child, child)  # type: ignore[arg-type]
            elif variables(child).isdisjoint(mapping):
                results[child] = child
            else:
                stack.append(child)
        if stack[-1] is not node:
            continue
        stack.pop()
        new_children = tuple(map(results.__getitem__, children))
        if new_children == children:
            results[node] = node
        elif isinstance(node, Call) and node.dtype is INDEX:
            results[node] = call(node.op, *new_children)
        else:
            results[node] = node.rebuild(new_children)
    return results[root]


def evaluate(root: Expr, values: Mapping[str, Any]) -> Any:
    """Evaluate `root` on numpy, with variables bound by name. Integers are exact.

    Raises `KeyError` if a variable is unbound.
    """
    results: dict[Expr, Any] = {}

    def rule(node: Expr) -> Expr | None:
        match node:
            case Const(value=value, dtype=dtype):
                results[node] = value if not dtype.is_float else dtype.numpy.type(value)
            case Var(name=name):
                results[node] = values[name]
            case Call(op=op, args=args):
                results[node] = SCALAR_OPERATORS[op].meaning(*(results[a] for a in args))
            case Cast(value=inner, dtype=dtype):
                results[node] = dtype.numpy.type(results[inner])
            case _:
                raise TypeError(f"cannot evaluate {type(node).__name__} without memory: {node}")
        return None

    rewrite(root, rule)
    return results[root]
