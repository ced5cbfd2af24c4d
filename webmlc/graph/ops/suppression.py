"""NonMaxSuppression: among boxes that overlap, keep the one with the highest score.

A loop runs once for each box that a class may keep. Each iteration takes the best remaining box of
every class in every batch entry, and removes the boxes that overlap with it. The chosen boxes are
then listed (`ops.selection`) by batch and class, the highest score first.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Const, Expr, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import Function, TensorType
from webmlc.graph.ops.operator import Context, Operator, same_type
from webmlc.graph.ops.selection import places_of
from webmlc.graph.ops.shapes import ZERO, check_shapes, check_single

REMOVED_SCORE = -float("inf")
"""The score of a box that is no longer a candidate."""
AREA_ROW = 4
"""The index of the row of `BoxSides` that holds the areas, after the four rows of sides."""


def _sides_type(context: Context) -> TensorType:
    boxes = context.type(0)
    return TensorType(boxes.dtype, (boxes.shape[0], const(AREA_ROW + 1), boxes.shape[1]))


def _sides(context: Context, boxes: Tensor) -> Tensor:
    """The coordinates of the low sides of boxes [batch, box, 4] along both axes, the coordinates of
    the high sides, and the areas.

    The result is [batch, 5, box]: the boxes are the last axis, so that an iteration reads vectors.
    """

    def interval(b: Expr, axis: Expr, n: Expr) -> tuple[Expr, Expr]:
        first, second = boxes[b, n, axis], boxes[b, n, axis + 2]
        if context.attribute("center_point_box", 0):
            return first - second * 0.5, first + second * 0.5
        return minimum(first, second), maximum(first, second)

    def element(b: Expr, row: Expr, n: Expr) -> Expr:
        low, high = interval(b, row % 2, n)
        first, second = (end - start for start, end in (interval(b, const(i), n) for i in (0, 1)))
        return select(row.equals(AREA_ROW), first * second, select(row < 2, low, high))

    return compute("sides", context.outputs[0].shape, element)


def _suppress(
    context: Context, scores: Tensor, best: Tensor, sides: Tensor, limit: Tensor
) -> Tensor:
    """The scores [batch, class, box], with `REMOVED_SCORE` for the best box of each class and for
    the boxes that overlap with it. An input [batch, class, 1] holds the index of the best box.

    Boxes overlap if their intersection is more than the fraction `limit` of their union.
    """
    threshold = limit[(ZERO,) * limit.rank]
    batches, classes, _ = scores.shape
    best_index = compute(
        "number", (batches, classes), lambda b, c: best[b, c, ZERO].astype(INDEX), keep=True
    )
    best_sides = compute(
        "kept",
        (batches, classes, const(AREA_ROW + 1)),
        lambda b, c, k: sides[b, k, best_index[b, c]],
        keep=True,
    )

    def element(b: Expr, c: Expr, n: Expr) -> Expr:
        intersection: Expr = const(1.0, sides.dtype)
        for axis in (0, 1):
            lows, highs = (
                (best_sides[b, c, const(k)], sides[b, const(k), n]) for k in (axis, axis + 2)
            )
            intersection = intersection * maximum(minimum(*highs) - maximum(*lows), 0.0)
        union = best_sides[b, c, const(AREA_ROW)] + sides[b, const(AREA_ROW), n] - intersection
        overlaps = call("gt", union, 0.0) & call("gt", intersection / union, threshold)
        is_removed = call("eq", n, best_index[b, c]) | overlaps
        return select(is_removed, Const(REMOVED_SCORE, scores.dtype), scores[b, c, n])

    return compute("suppress", scores.shape, element)


def _iteration(build: Builder, sides: Value, limit: Value, none: Value, removed: Value) -> Function:
    """One iteration of the loop. It returns the new scores, and the boxes that it takes, or
    `none`.
    """
    build, expansion = build.inner("iteration")
    step, condition, scores = (build.fresh(name) for name in ("step", "going", "scores"))
    best = build("ArgMax", scores, axis=2)
    top = build("GatherElements", scores, best, axis=2)
    is_box = build("Greater", top, removed)
    best_boxes = is_box.where(best, none)
    new_scores = build("Suppress", scores, best, sides, limit, domain="webmlc")
    inputs, outputs = (step, condition, scores), (condition, new_scores, best_boxes)
    return Function("iteration", inputs, outputs, tuple(expansion.nodes), {}, expansion.constants)


def _non_max_suppression(context: Context, build: Builder) -> Value:
    check_shapes(context, "batch boxes 4", "batch classes boxes")
    check_single(context, 2, 3, 4)
    boxes, scores = build.inputs[:2]
    box_limit, overlap_limit, score_limit = (build.optional(i) for i in (2, 3, 4))
    if box_limit is None:  # the default is 0
        return build.constant(np.zeros((0, 3), np.int64))
    removed = build.constant(np.float32(REMOVED_SCORE))
    if score_limit is not None:
        scores = build("Greater", scores, score_limit).where(scores, removed)
    box_count = build("Shape", boxes, start=1, end=2)
    iterations = build("Min", box_limit.reshape(-1), box_count)
    trips = build("Sizes", build("Squeeze", iterations), domain="webmlc")
    form = context.attribute("center_point_box", 0)
    sides = build("BoxSides", boxes, domain="webmlc", center_point_box=form)
    none = build.constant(np.int64(-1))
    body = _iteration(build, sides, overlap_limit or build.constant(np.float32(0)), none, removed)
    _, best_boxes = build.many("Loop", trips, "", scores, outputs=2, body=body)
    return build("ListBoxes", best_boxes, domain="webmlc")


def _list_boxes(context: Context, build: Builder) -> Value:
    """The rows (batch, class, box) of the boxes taken, from their indices [iteration, batch, class,
    1], where -1 stands for no box.
    """
    trips, batches, classes, _ = context.shape(0)
    boxes = build.inputs[0].transpose(1, 2, 0, 3).reshape(-1)
    mask = build("GreaterOrEqual", boxes, 0)
    places = places_of(build, mask)
    sizes = (batches, classes, trips)
    index = build("Unravel", places, domain="webmlc", sizes=sizes)
    owners = index.slice(0, 2, 0)
    indices = build("Gather", boxes, places, axis=0).unsqueeze(0)
    return build("Concat", owners, indices, axis=0).transpose(1, 0)


OPS: tuple[Operator, ...] = (
    Operator("BoxSides", _sides_type, _sides, domain="webmlc", kind="injective"),
    Operator("Suppress", same_type, _suppress, domain="webmlc", kind="injective"),
    Operator("ListBoxes", expand=_list_boxes, domain="webmlc"),
    Operator("NonMaxSuppression", expand=_non_max_suppression),
)  # fmt: skip
