"""Tree ensembles of ai.onnx.ml: TreeEnsemble and the older TreeEnsembleClassifier and -Regressor.

A forest becomes tables, which hold each node's feature, threshold and two children. A leaf is its
own child. `webmlc.TreeStep` takes all rows one step down all trees at once. There are as many steps
as the deepest tree has levels, and they share one kernel. `webmlc.TreeSum` folds the weights of the
leaves over the trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, call, const, select
from webmlc.core.machine import ADDRESSABLE_BYTES
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Array
from webmlc.graph.ops.ml.scores import DOMAIN, float_rows, number_labels, pick_label, transform
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.shapes import require

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
"""The comparisons of a node. Their positions are the numbers of opset 5."""
COMPARE = ("le", "lt", "ge", "gt", "eq", "ne")
"""The scalar operators of these comparisons, in the same order."""
MEMBER = 6
"""The number of the membership test in opset 5."""
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""The functions that fold votes. Their positions are the numbers of opset 5."""
COMBINE = {"AVERAGE": "add", "SUM": "add", "MIN": "min", "MAX": "max"}
"""The scalar operators of these functions."""


@dataclass(frozen=True, slots=True)
class Forest:
    """The tables of a forest. Interior nodes come first, then leaves. A child is at
    `children[2 * node + outcome]`, a weight at `weights[leaf][target]`.
    """

    features: Array
    thresholds: Array
    modes: Array
    missing: Array
    children: Array
    roots: Array
    weights: Array

    @property
    def depth(self) -> int:
        """The number of steps from the roots to the deepest leaf."""
        interior = len(self.features) - len(self.weights)
        level, depth = {int(r) for r in self.roots if r < interior}, 0
        while level:
            depth += 1
            next_level = {int(c) for n in level for c in self.children[2 * n : 2 * n + 2]}
            level = {n for n in next_level if n < interior}
            if depth > interior:
                raise NotSupportedError("a tree with a cycle")
        return depth


def _numbers(context: Context, name: str, dtype: Any = np.int32) -> Array:
    """The numbers of a list attribute, or of the tensor `<name>_as_tensor` in its place."""
    tensor = context.attribute(f"{name}_as_tensor")
    value = context.attribute(name, ()) if tensor is None else tensor
    return np.asarray(value, dtype).reshape(-1)


def _aggregate(context: Context, default: int | str) -> str:
    """The function that folds the votes of the trees. The attribute is its name, or its number in
    opset 5.
    """
    value = context.attribute("aggregate_function", default)
    name = AGGREGATES[value] if value in range(len(AGGREGATES)) else str(value)
    if name not in AGGREGATES:
        raise NotSupportedError(f"aggregate_function {value!r}")
    return name


def _no_votes(leaves: int, targets: int, aggregate: str) -> Array:
    """The weights [leaf][target] of leaves without a vote."""
    if leaves * targets * DType.float64.bytes > ADDRESSABLE_BYTES:
        raise NotSupportedError(f"{targets} targets of {leaves} leaves: more than 32-bit memory")
    return np.full((leaves, targets), {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0))


def read_forest(context: Context, votes: str, targets: int, aggregate: str) -> Forest:
    """Read a forest of opset 1 or 3. `votes` is the prefix of the leaves' attributes: `class` or
    `target`.
    """
    trees, ids = _numbers(context, "nodes_treeids"), _numbers(context, "nodes_nodeids")
    modes = [str(m).removeprefix("BRANCH_") for m in context.attribute("nodes_modes")]
    leaves = np.array([m == "LEAF" for m in modes])
    order = np.argsort(leaves, kind="stable")
    place = {(int(trees[k]), int(ids[k])): p for p, k in enumerate(order)}
    interior, count = int((~leaves).sum()), len(modes)
    children = np.repeat(np.arange(count, dtype=np.int32), 2)
    for outcome, name in enumerate(("nodes_falsenodeids", "nodes_truenodeids")):
        below = _numbers(context, name)
        for p, k in enumerate(order[:interior]):
            children[2 * p + outcome] = place[int(trees[k]), int(below[k])]
    weights = _no_votes(count - interior, targets, aggregate)
    votes_of = zip(*(_numbers(context, f"{votes}_{n}") for n in ("treeids", "nodeids", "ids")),
                   _numbers(context, f"{votes}_weights", np.float64), strict=True)  # fmt: skip
    for tree, node, target, weight in votes_of:
        leaf = place[int(tree), int(node)] - interior
        if leaf < 0:
            continue  # an interior node has no vote: no row ends there
        row = weights[leaf]
        row[target] = weight if np.isinf(row[target]) else row[target] + weight
    missing = _numbers(context, "nodes_missing_value_tracks_true", bool)
    child_places = set(children[: 2 * interior].tolist())
    root_of = {int(tree): p for p, tree in reversed(list(enumerate(trees[order])))
             if p not in child_places}  # fmt: skip
    return Forest(
        _numbers(context, "nodes_featureids")[order],
        _numbers(context, "nodes_values", np.float64)[order],
        np.array([MODES.index(modes[k]) if not leaves[k] else 0 for k in order], np.int32),
        missing[order] if missing.size else np.zeros(count, bool),
        children,
        np.array([root_of[t] for t in dict.fromkeys(trees.tolist())], np.int32),
        weights,
    )


def read_ensemble(context: Context, targets: int, aggregate: str) -> Forest:
    """Read a forest of opset 5. A test of membership becomes a chain of tests of equality."""
    modes = _numbers(context, "nodes_modes").tolist()
    splits = _numbers(context, "nodes_splits", np.float64).tolist()
    features = _numbers(context, "nodes_featureids").tolist()
    missing = _numbers(context, "nodes_missing_value_tracks_true").tolist() or [0] * len(modes)
    links = [
        list(zip(_numbers(context, f"nodes_{side}nodeids").tolist(),
                 _numbers(context, f"nodes_{side}leafs", bool).tolist(), strict=True))
        for side in ("false", "true")
    ]  # fmt: skip
    members = np.split(values := _numbers(context, "membership_values", np.float64),
                       np.flatnonzero(np.isnan(values)) + 1)  # fmt: skip
    sets = iter(m[~np.isnan(m)].tolist() for m in members)
    for node in range(len(modes)):
        if modes[node] != MEMBER:
            continue
        first_member, *other_members = next(sets)
        modes[node], splits[node], last = COMPARE.index("eq"), first_member, node
        for value in other_members:
            modes.append(COMPARE.index("eq"))
            splits.append(value)
            features.append(features[node])
            missing.append(missing[node])
            links[0].append(links[0][last])
            links[1].append(links[1][last])
            links[0][last] = (len(modes) - 1, False)
            last = len(modes) - 1
    ids, leaf_weights = (
        _numbers(context, "leaf_targetids"), _numbers(context, "leaf_weights", np.float64)
    )  # fmt: skip
    interior, leaves = len(modes), len(ids)
    weights = _no_votes(leaves, targets, aggregate)
    weights[np.arange(leaves), ids] = leaf_weights
    children = np.repeat(np.arange(interior + leaves, dtype=np.int32), 2)
    for outcome, side in enumerate(links):
        for node, (below, leaf) in enumerate(side):
            children[2 * node + outcome] = below + interior if leaf else below

    def padded(values: list[Any], dtype: Any) -> Array:
        return np.array([*values, *([0] * leaves)], dtype)

    return Forest(
        padded(features, np.int32), padded(splits, np.float64), padded(modes, np.int32),
        padded(missing, bool), children, _numbers(context, "tree_roots"), weights,
    )  # fmt: skip


def walk_forest(
    context: Context, build: Builder, x: Value, dtype: DType, forest: Forest, aggregate: str
) -> Value:
    """The folded weights [rows][targets] of the leaves that the rows of `x` reach."""
    interior = len(forest.features) - len(forest.weights)
    columns, read = context.shape(0)[-1], forest.features[:interior]
    if read.size and not (
        read.min() >= 0 and require(context, "at most", const(int(read.max()) + 1), columns)
    ):
        raise NotSupportedError(
            f"trees of features {read.min()} to {read.max()} for an input of {columns} features"
        )
    mode_numbers = tuple(sorted({int(m) for m in forest.modes[:interior]}))
    tables: list[Value | None] = [
        build.constant(table)
        for table in (forest.features, forest.thresholds.astype(dtype.numpy), forest.children)
    ]
    if len(mode_numbers) > 1 or forest.missing.any():
        tables.append(build.constant(forest.modes) if len(mode_numbers) > 1 else None)
        tables.append(build.constant(forest.missing) if forest.missing.any() else None)
    node = build.constant(forest.roots)
    for _ in range(max(forest.depth, 1)):
        node = build("TreeStep", x, node, *tables, domain="webmlc", modes=mode_numbers)
    weights = build.constant(forest.weights.astype(dtype.numpy))
    return build("TreeSum", node, weights, domain="webmlc", aggregate=aggregate, interior=interior)


def _step(
    context: Context,
    x: Tensor,
    nodes: Tensor,
    features: Tensor,
    thresholds: Tensor,
    children: Tensor,
    *options: Tensor | None,
) -> Tensor:
    """The children to which rows go. The current nodes are [row][tree], or the roots [tree]."""
    modes, missing = (*options, None, None)[:2]
    mode_numbers: tuple[int, ...] = context.attribute("modes") or (0,)

    def element(row: Expr, tree: Expr) -> Expr:
        node = nodes[tree] if nodes.rank == 1 else nodes[row, tree]
        value, threshold = x[row, features[node]], thresholds[node]
        outcome = call(COMPARE[mode_numbers[-1]], value, threshold)
        for mode in mode_numbers[:-1]:
            assert modes is not None
            has_mode = call("eq", modes[node], Const(mode, DType.int32))
            outcome = select(has_mode, call(COMPARE[mode], value, threshold), outcome)
        if missing is not None:
            outcome = outcome | (call("isnan", value) & missing[node])
        return children[node * 2 + outcome.astype(INDEX)]

    return compute("step", (x.shape[0], nodes.shape[-1]), element)


def _sum(context: Context, leaf: Tensor, weights: Tensor) -> Tensor:
    aggregate, trees = context.attribute("aggregate"), leaf.shape[1]
    interior = int(context.attribute("interior"))
    shape = (leaf.shape[0], weights.shape[1])

    def vote(row: Expr, target: Expr, tree: Expr) -> Expr:
        return weights[leaf[row, tree] - interior, target]

    total = reduce("trees", shape, (trees,), COMBINE[aggregate], vote)

    def element(*i: Expr) -> Expr:
        if aggregate == "AVERAGE":
            return total[i] / trees.astype(weights.dtype)
        return select(call("isinf", total[i]), Const(0, weights.dtype), total[i])  # no votes

    return total if aggregate == "SUM" else compute("votes", shape, element)


def _ensemble(context: Context, build: Builder) -> Value:
    x, dtype = float_rows(context, build)
    aggregate = _aggregate(context, 1)
    forest = read_ensemble(context, context.count("n_targets", 1), aggregate)
    scores = walk_forest(context, build, x, dtype, forest, aggregate)
    return transform(build, scores, int(context.attribute("post_transform", 0)))


def _regressor(context: Context, build: Builder) -> Value:
    x, dtype = float_rows(context, build)
    aggregate = _aggregate(context, "SUM")
    targets = context.count("n_targets", 1)
    forest = read_forest(context, "target", targets, aggregate)
    scores = walk_forest(context, build, x, dtype, forest, aggregate)
    base = _numbers(context, "base_values", np.float64)
    if base.any():
        scores = scores + build.constant(base, dtype)
    scores = scores.cast(DType.float32)
    return transform(build, scores, context.attribute("post_transform", "NONE"))


def _classifier(context: Context, build: Builder) -> tuple[Value, ...]:
    """The best class and all scores. If only one of two classes has votes, its votes are the score
    of the second class.
    """
    labels = number_labels(context, "classlabels_int64s")
    x, dtype = float_rows(context, build)
    forest = read_forest(context, "class", len(labels), "SUM")
    voted_classes = {int(c) for c in _numbers(context, "class_ids")}
    scores = walk_forest(context, build, x, dtype, forest, "SUM")
    base = _numbers(context, "base_values", np.float64)
    if base.any() and voted_classes != {1}:
        scores = scores + build.constant(base if len(base) > 1 else [base[0], 0], dtype)
    scores = scores.cast(DType.float32)
    kind = context.attribute("post_transform", "NONE")
    if len(labels) != 2 or len(voted_classes) != 1:
        index = build("ArgMax", scores, axis=1, keepdims=0)
        return pick_label(build, index, labels), transform(build, scores, kind)
    positive = bool((_numbers(context, "class_weights", np.float64) >= 0).all())
    score = scores.element(voted_classes.pop(), 1)
    index = build("Greater", score, 0.5 if positive else 0.0).cast(DType.int64)
    if 0 in {int(c) for c in _numbers(context, "class_ids")}:
        scores = _both(build, score, kind, positive)
    else:
        scores = transform(build, scores, kind)
    return pick_label(build, index, labels), scores


def _both(build: Builder, score: Value, kind: str, positive: bool) -> Value:
    """The scores of both classes, computed from the score of the second class."""
    column = score.unsqueeze(1)
    first_class = -column if kind == "LOGISTIC" or not positive else 1 - column
    both = build("Concat", first_class, column, axis=1)
    return build("Sigmoid", both) if kind == "LOGISTIC" else both


OPS: tuple[Operator, ...] = (
    Operator("TreeStep", compute=_step, domain="webmlc"),
    Operator("TreeSum", compute=_sum, kind="reduction", domain="webmlc"),
    Operator("TreeEnsemble", expand=_ensemble, domain=DOMAIN),
    Operator("TreeEnsembleRegressor", expand=_regressor, domain=DOMAIN),
    Operator("TreeEnsembleClassifier", expand=_classifier, domain=DOMAIN),
)  # fmt: skip
