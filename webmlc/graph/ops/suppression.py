"""NonMaxSuppression: among boxes that overlap, keep the one with the highest score.

A loop has as many iterations as boxes may be kept. Each iteration takes the best box of each class
and batch, and removes the boxes that overlap with it. These boxes are then counted and listed
(`ops.selection`): by batch, class, and score.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Const, Expr, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import Function, TensorType
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.selection import flat, places_of
from webmlc.graph.ops.shapes import ZERO, check_shapes, check_single, operand

Inputs = tuple[Tensor | None, ...]
REMOVED_SCORE = -float("inf")
"""The score of a box that has been removed."""
AREA_ROW = 4
"""The row of `BoxSides` that holds the areas, behind the four sides."""


def _sides_type(context: Context) -> tuple[TensorType, ...]:
    boxes = context.type(0)
    return (TensorType(boxes.dtype, (boxes.shape[0], const(AREA_ROW + 1), boxes.shape[1])),)


def _sides(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """The low sides along both axes, the high sides, and the area of each box [batch, box, 4].

    The result is [batch, 5, box], so that an iteration reads boxes in vectors.
    """
    boxes = operand(inputs, 0)

    def sides(b: Expr, axis: Expr, n: Expr) -> tuple[Expr, Expr]:
        first, second = boxes[b, n, axis], boxes[b, n, axis + 2]
        if context.attribute("center_point_box", 0):
            return first - second * 0.5, first + second * 0.5
        return minimum(first, second), maximum(first, second)

    def element(b: Expr, number: Expr, n: Expr) -> Expr:
        low, high = sides(b, number % 2, n)
        width, height = (end - start for start, end in (sides(b, const(i), n) for i in (0, 1)))
        return select(number.equals(AREA_ROW), width * height, select(number < 2, low, high))

    return (compute("sides", context.outputs[0].shape, element),)


def _suppress_type(context: Context) -> tuple[TensorType, ...]:
    return (context.type(0),)


def _suppress(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Remove boxes: lower the scores [batch, class, box] of the best boxes [batch, class, 1], and
    of the boxes that overlap with them.

    Boxes overlap if their intersection is more than a fraction of their union.
    """
    scores, best, sides, limit = (operand(inputs, i) for i in range(4))
    threshold = limit[(ZERO,) * limit.rank]
    batches, classes, _ = scores.shape
    number = compute(
        "number", (batches, classes), lambda b, c: best[b, c, ZERO].astype(INDEX), keep=True
    )
    best_sides = compute(
        "kept",
        (batches, classes, const(AREA_ROW + 1)),
        lambda b, c, k: sides[b, k, number[b, c]],
        keep=True,
    )

    def element(b: Expr, c: Expr, n: Expr) -> Expr:
        intersection: Expr = const(1.0, sides.dtype)
        for axis in (0, 1):
            low, high = (
                (best_sides[b, c, const(k)], sides[b, const(k), n]) for k in (axis, axis + 2)
            )
            intersection = intersection * maximum(minimum(*high) - maximum(*low), 0.0)
        union = best_sides[b, c, const(AREA_ROW)] + sides[b, const(AREA_ROW), n] - intersection
        overlaps = call("gt", union, 0.0) & call("gt", intersection / union, threshold)
        is_removed = call("eq", n, number[b, c]) | overlaps
        return select(is_removed, Const(REMOVED_SCORE, scores.dtype), scores[b, c, n])

    return (compute("suppress", scores.shape, element),)


def _iteration(builder: Builder, sides: str, limit: str, none: str, removed: str) -> Function:
    """One iteration of the loop. It returns the new scores, and the boxes that it takes, or
    `none`.
    """
    build, expansion = builder.inner("iteration")
    step, condition, scores = (build.fresh(name) for name in ("step", "going", "scores"))
    best = build("ArgMax", scores, axis=2)
    top = build("GatherElements", scores, best, axis=2)
    is_box = build("Greater", top, removed)
    best_boxes = build("Where", is_box, best, none)
    new_scores = build("Suppress", scores, best, sides, limit, domain="webmlc")
    inputs, outputs = (step, condition, scores), (condition, new_scores, best_boxes)
    return Function("iteration", inputs, outputs, tuple(expansion.nodes), {}, expansion.constants)


def _never(context: Context) -> tuple[TensorType, ...]:
    raise AssertionError("NonMaxSuppression expands")


def _non_max_suppression(context: Context, builder: Builder) -> tuple[str, ...]:
    check_shapes(context, "batch boxes 4", "batch classes boxes")
    check_single(context, 2, 3, 4)
    boxes, scores = context.node.inputs[:2]
    box_limit, overlap_limit, score_limit = (
        context.node.inputs[i] if context.has(i) else None for i in (2, 3, 4)
    )
    if box_limit is None:
        return (builder.constant(np.zeros((0, 3), np.int64)),)
    removed = builder.constant(np.float32(REMOVED_SCORE))
    if score_limit is not None:
        scores = builder("Where", builder("Greater", scores, score_limit), scores, removed)
    sizes = builder("Shape", boxes, start=1, end=2)
    iterations = builder("Min", flat(builder, box_limit), sizes)
    trips = builder("Sizes", builder("Squeeze", iterations), domain="webmlc")
    form = context.attribute("center_point_box", 0)
    sides = builder("BoxSides", boxes, domain="webmlc", center_point_box=form)
    none = builder.constant(np.int64(-1))
    body = _iteration(
        builder, sides, overlap_limit or builder.constant(np.float32(0)), none, removed
    )
    _, best_boxes = builder.many("Loop", trips, "", scores, outputs=2, body=body)
    return (builder("ListBoxes", best_boxes, domain="webmlc"),)


def _list_boxes(context: Context, builder: Builder) -> tuple[str, ...]:
    """List (batch, class, box) for each selected box. The input holds box numbers [iteration,
    batch, class, 1].
    """
    trips, batches, classes, _ = context.shape(0)
    boxes = flat(builder, builder("Transpose", context.node.inputs[0], perm=(1, 2, 0, 3)))
    mask = builder("GreaterOrEqual", boxes, builder.constant(np.int64(0)))
    places = places_of(builder, mask)
    sizes = (batches, classes, trips)
    index = builder("Unravel", places, domain="webmlc", sizes=sizes)
    start, end = (builder.constant(np.array([n])) for n in (0, 2))
    owners = builder("Slice", index, start, end, start)
    numbers = builder("Unsqueeze", builder("Gather", boxes, places, axis=0), start)
    return (builder("Transpose", builder("Concat", owners, numbers, axis=0), perm=(1, 0)),)


OPS: tuple[Operator, ...] = (
    Operator("BoxSides", _sides_type, _sides, domain="webmlc", kind="injective"),
    Operator("Suppress", _suppress_type, _suppress, domain="webmlc", kind="injective"),
    Operator("ListBoxes", _never, expand=_list_boxes, domain="webmlc"),
    Operator("NonMaxSuppression", _never, expand=_non_max_suppression),
)  # fmt: skip
