"""NonMaxSuppression: of boxes that overlap much, the one with the highest score is kept.

A loop of as many iterations as boxes may be kept: each takes the best box of every class of every
batch at once, and removes those that overlap with it. What was taken is then counted and listed
(`ops.selection`), by batch, class, and in the order of the scores.
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Const, Expr, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import Function, Node, TensorType
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.selection import flat, places_of
from webmlc.graph.ops.shapes import ZERO, check_shapes, check_single, given

Inputs = tuple[Tensor | None, ...]
REMOVED = -float("inf")


def _suppress_type(context: Context) -> tuple[TensorType, ...]:
    return (context.type(0),)


def _suppress(context: Context, inputs: Inputs) -> tuple[Tensor, ...]:
    """Scores [batch, class, box] without the best boxes [batch, class, 1], and without those whose
    intersection with them is more than a part of their union.
    """
    scores, best, boxes, limit = (given(inputs, i) for i in range(4))
    threshold = limit[(ZERO,) * limit.rank]

    def sides(b: Expr, n: Expr, axis: int) -> tuple[Expr, Expr]:
        one, two = boxes[b, n, const(axis)], boxes[b, n, const(axis + 2)]
        if context.attribute("center_point_box", 0):
            return one - two * 0.5, one + two * 0.5
        return minimum(one, two), maximum(one, two)

    def element(b: Expr, c: Expr, n: Expr) -> Expr:
        kept = best[b, c, ZERO].astype(INDEX)
        common: Expr = const(1.0, boxes.dtype)
        areas = [common, common]
        for axis in (0, 1):
            low, high = zip(*(sides(b, box, axis) for box in (kept, n)), strict=True)
            common = common * maximum(minimum(*high) - maximum(*low), 0.0)
            areas = [a * (end - start) for a, start, end in zip(areas, low, high, strict=True)]
        union = areas[0] + areas[1] - common
        overlaps = call("gt", union, 0.0) & call("gt", common / union, threshold)
        gone = call("eq", n, kept) | overlaps
        return select(gone, Const(REMOVED, scores.dtype), scores[b, c, n])

    return (compute("suppress", scores.shape, element),)


def _iteration(boxes: str, limit: str, none: str, removed: str, **form: int) -> Function:
    """One iteration of the loop: the scores that remain, and which boxes it took (-1: none)."""
    nodes = (
        Node("ArgMax", ("scores",), ("best",), {"axis": 2}),
        Node("GatherElements", ("scores", "best"), ("top",), {"axis": 2}),
        Node("Greater", ("top", removed), ("is_box",)),
        Node("Where", ("is_box", "best", none), ("taken",)),
        Node("Suppress", ("scores", "best", boxes, limit), ("rest",), form, "webmlc"),
    )
    return Function("iteration", ("i", "go", "scores"), ("go", "rest", "taken"), nodes, {}, {})


def _never(context: Context) -> tuple[TensorType, ...]:
    raise AssertionError("NonMaxSuppression expands")


def _non_max_suppression(context: Context, builder: Builder) -> tuple[str, ...]:
    check_shapes(context, "batch boxes 4", "batch classes boxes")
    check_single(context, 2, 3, 4)
    boxes, scores = context.node.inputs[:2]
    count, limit, least = (context.node.inputs[i] if context.has(i) else None for i in (2, 3, 4))
    if count is None:
        return (builder.constant(np.zeros((0, 3), np.int64)),)
    removed = builder.constant(np.float32(REMOVED))
    if least is not None:
        scores = builder("Where", builder("Greater", scores, least), scores, removed)
    sizes = builder("Shape", boxes, start=1, end=2)
    fewest = builder("Min", flat(builder, count), sizes)
    trips = builder("Sizes", builder("Squeeze", fewest), domain="webmlc")
    body = _iteration(
        boxes, limit or builder.constant(np.float32(0)), builder.constant(np.int64(-1)), removed,
        center_point_box=context.attribute("center_point_box", 0),
    )  # fmt: skip
    _, taken = builder.many("Loop", trips, "", scores, outputs=2, body=body)
    return (builder("ListBoxes", taken, domain="webmlc"),)


def _list_boxes(context: Context, builder: Builder) -> tuple[str, ...]:
    """(batch, class, box) of each box that was taken, of numbers [iteration, batch, class, 1]."""
    trips, batches, classes, _ = context.shape(0)
    taken = flat(builder, builder("Transpose", context.node.inputs[0], perm=(1, 2, 0, 3)))
    mask = builder("GreaterOrEqual", taken, builder.constant(np.int64(0)))
    places = places_of(builder, mask)
    sizes = (batches, classes, trips)
    index = builder("Unravel", places, domain="webmlc", sizes=sizes)
    first, last = (builder.constant(np.array([n])) for n in (0, 2))
    owners = builder("Slice", index, first, last, first)
    numbers = builder("Unsqueeze", builder("Gather", taken, places, axis=0), first)
    return (builder("Transpose", builder("Concat", owners, numbers, axis=0), perm=(1, 0)),)


OPS: tuple[Operator, ...] = (
    Operator("Suppress", _suppress_type, _suppress, domain="webmlc", kind="injective"),
    Operator("ListBoxes", _never, expand=_list_boxes, domain="webmlc"),
    Operator("NonMaxSuppression", _never, expand=_non_max_suppression),
)  # fmt: skip
