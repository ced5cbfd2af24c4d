"""Operators whose output sizes depend on data: NonZero, Compress, Unique, NonMaxSuppression.

First, the selected elements are counted. A run binds the count to a symbol. Then each selected
element is written to its place: the number of selected elements before it.

    %running, %count = webmlc.RunningCounts(%mask)
    %places: int32[k] = webmlc.Places(%running, %count)        (after a Bind of k)
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Const, Expr, as_int, call, const, maximum, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce, scatter
from webmlc.graph.ir import Function, TensorType
from webmlc.graph.ops.operator import Context, Operator, case, same_type
from webmlc.graph.ops.reduction import scan
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    check_shapes,
    check_single,
    dimensions,
    product,
    select_among,
)
from webmlc.graph.ops.sort import comparable, inside, stable_order, word_bits, words


def _running_counts(context: Context, mask: Tensor) -> tuple[Tensor, ...]:
    """Count the elements of a mask that are true up to each element, and in total."""
    size = mask.shape[0]
    running = scan(
        "running", mask.shape, 0, "add", lambda i: select(mask[i], ONE, ZERO), exclusive=False
    )

    def total(_: Expr) -> Expr:
        return select(size > 0, running[maximum(size - 1, 0)], ZERO).astype(DType.int64)

    return running, compute("count", (ONE,), total)


def _places_type(context: Context) -> TensorType:
    return TensorType(INDEX, (dimensions(context, 1, "how many there are")[0],))


def _places(context: Context, running: Tensor, *_: Tensor) -> Tensor:
    """The positions of the elements that are true, in order. The count of such an element is
    greater by one than the count before.
    """

    def update(_: Tensor, i: Expr) -> tuple[tuple[Expr, ...], Expr]:
        before = select(i > 0, running[maximum(i - 1, 0)], ZERO)
        return (select(running[i] > before, before, const(-1)),), i

    shape = context.outputs[0].shape
    return scatter("places", shape, (), running.shape, update, INDEX)


def places_of(build: Builder, mask: Value) -> Value:
    """The positions at which a boolean vector is true: int32[k]. A run binds k."""
    counts = build.many("RunningCounts", mask, outputs=2, domain="webmlc")
    return build("Places", *counts, domain="webmlc")


def _unravel(context: Context, places: Tensor) -> Tensor:
    """The index of each flat position in a tensor of these sizes. Each row holds one axis."""
    sizes = context.attribute("sizes")

    def element(axis: Expr, p: Expr) -> Expr:
        strides = [product(sizes[d + 1 :]) for d in range(len(sizes))]
        place = places[p]
        along = [place // strides[0]] + [
            place // stride % size for stride, size in zip(strides[1:], sizes[1:], strict=True)
        ]
        return select_among(along, axis).astype(DType.int64)

    return compute("unravel", (const(len(sizes)), *places.shape), element)


def _non_zero(context: Context, build: Builder) -> Value:
    mask = build.inputs[0].reshape(-1).cast(DType.bool)
    sizes = context.shape(0) or (ONE,)
    unravel = build("Unravel", places_of(build, mask), domain="webmlc", sizes=sizes)
    if context.rank(0):
        return unravel
    return unravel.slice(0, 0, 0)


def _compress(context: Context, build: Builder) -> Value:
    x, condition = build.inputs
    check_shapes(context, "", "elements")
    places = places_of(build, condition)
    if "axis" not in context.node.attributes:
        return build("Gather", x.reshape(-1), places, axis=0)
    return build("Gather", x, places, axis=context.axis(0))


X = "float32[3, 4]"


Index = tuple[Expr, ...]
MAX_UNROLLED_COLUMNS = 8
"""The most columns that are sorted by without a loop. Each column adds one kernel. Chosen by
hand.
"""


def _order(
    context: Context, rows: Tensor, before: Tensor | None = None, number: Tensor | None = None
) -> Tensor:
    """Sort the slices by one column. Equal slices keep the order of input 1, if it is present.

    Input 2 is the number of the column, counted from the last.
    """
    last = rows.shape[1] - 1
    column = last if number is None else inside(last - number[()].astype(INDEX), rows.shape[1])
    count = len(words(rows[ZERO, ZERO]))
    keys = [
        compute(f"word{n}", rows.shape[:1], lambda i, n=n: words(rows[i, column])[n], keep=True)
        for n in range(count)
    ]
    return stable_order("order", keys, word_bits(rows.dtype), before)


def _groups(context: Context, rows: Tensor, order: Tensor) -> tuple[Tensor, ...]:
    """A mask of the first slice of each group, and the group of each slice.

    If `sorted`, the mask runs along the sorted order. Otherwise it runs over the slices as they
    appear, and groups are numbered in that order.
    """
    shape = order.shape

    def differs(p: Expr, column: Expr) -> Expr:
        places = (inside(order[maximum(q, 0)], shape[0]) for q in (p, p - 1))
        current, previous = (comparable(rows[place, column]) for place in places)
        return select(current.equals(previous), ZERO, ONE)

    changes = reduce("changes", shape, rows.shape[1:], "max", differs)
    starts = compute(
        "starts", shape, lambda p: select(p.equals(0) | (changes[p] > 0), ONE, ZERO), keep=True
    )
    group = scan("group", shape, 0, "add", lambda p: starts[p], exclusive=False)
    mask, number = starts, group
    if not context.attribute("sorted"):
        mask = scatter("mask", shape, (), shape, lambda _, p: ((order[p],), starts[p]), INDEX)
        number = scan("number", shape, 0, "add", lambda i: mask[i], exclusive=False)

    def leader(_: Tensor, p: Expr) -> tuple[Index, Expr]:
        """The first slice of each group."""
        return (select(starts[p] > 0, group[p] - 1, const(-1)),), order[p]

    leaders = scatter("leaders", shape, (), shape, leader, INDEX, ZERO)

    def update(_: Tensor, p: Expr) -> tuple[Index, Expr]:
        place = p if context.attribute("sorted") else leaders[inside(group[p] - 1, shape[0])]
        return (order[p],), number[inside(place, shape[0])] - 1

    inverse = scatter("inverse", shape, (), shape, update, INDEX)
    return compute("is_first", shape, lambda p: mask[p] > 0), inverse


def _members(context: Context, inverse: Tensor, places: Tensor) -> Tensor:
    """Count the slices of each group."""
    counts = scatter(
        "counts", places.shape, (), inverse.shape, lambda _, i: ((inverse[i],), ONE), INDEX, ZERO,
        "add",
    )  # fmt: skip
    return compute("counts_out", places.shape, lambda r: counts[r].astype(DType.int64))


def _sorted_rows(build: Builder, rows: Value, columns: Expr) -> Value:
    """Sort the rows, by the last column first. So the first column decides."""
    order = build("Order", rows, domain="webmlc")
    count = as_int(columns)
    if count is not None and count <= MAX_UNROLLED_COLUMNS:
        for number in range(1, count):
            order = build("Order", rows, order, np.int64(number), domain="webmlc")
        return order
    trips = build("Sizes", build("Squeeze", build("Shape", rows, start=1)), domain="webmlc")
    inner, expansion = build.inner("sort")
    column, condition, before = (inner.fresh(name) for name in ("column", "going", "order"))
    outputs = (condition, inner("Order", rows, before, column, domain="webmlc"))
    inputs = (column, condition, before)
    body = Function("sort_by_column", inputs, outputs, tuple(expansion.nodes), {}, {})
    return build("Loop", trips, "", order, body=body)


def _unique(context: Context, build: Builder) -> tuple[Value, ...]:
    """Expand Unique. Slices are rows of words, sorted by their last element, then by each element
    before it. So equal slices become neighbours, and the first slice of each group is selected.

        %order = webmlc.Order(%rows, %before)            sort by a column; ties keep the order
                                                         %before
        %mask, %inverse = webmlc.Groups(%rows, %order)   mask the first slice of each group; number
                                                         the groups
        %counts = webmlc.Members(%inverse, %places)      count the slices of each group
    """
    x, axis = build.inputs[0], 0
    columns: Expr = ONE
    if "axis" in context.node.attributes:
        axis = context.axis(0)
        other_axes = [d for d in range(context.rank(0)) if d != axis]
        rows = build("Flatten", x.transpose(axis, *other_axes), axis=1)
        columns = product(context.shape(0)[d] for d in other_axes)
    else:
        x = x.reshape(-1)
        rows = x.unsqueeze(1)
    order = _sorted_rows(build, rows, columns)
    is_sorted = int(context.attribute("sorted", 1))
    mask, inverse = build.many("Groups", rows, order, outputs=2, domain="webmlc", sorted=is_sorted)
    places = places_of(build, mask)
    counts = build("Members", inverse, places, domain="webmlc")
    if is_sorted:
        places = build("Gather", order, places)
    values = build("Gather", x, places, axis=axis)
    index_outputs = (index.cast(DType.int64) for index in (places, inverse))
    return (values, *index_outputs, counts)


ROW = np.array([2, 1, 1, 3, 4, 3], np.float32)
ROWS = np.array([[1, 0, 0], [1, 0, 0], [2, 3, 4]], np.float32)
NUMBERS = "int16[4, 3] in 0..1"
NANS = np.array([2, np.nan, -0.0, 2, np.nan, 0.0], np.float32)


REMOVED_SCORE = -float("inf")
"""The score of a box that is no longer a candidate."""
AREA_ROW = 4
"""The index of the row of `BoxSides` that holds the areas, after the four rows of sides."""


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

    shape = (boxes.shape[0], const(AREA_ROW + 1), boxes.shape[1])
    return compute("sides", shape, element)


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
    """Expand NonMaxSuppression to a loop that runs once for each box that a class may keep. Each
    iteration takes the best remaining box of every class in every batch entry, and removes the
    boxes that overlap with it. The chosen boxes are then listed by batch and class, the highest
    score first.
    """
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
    Operator("RunningCounts", compute=_running_counts, domain="webmlc"),
    Operator("Places", _places_type, _places, domain="webmlc"),
    Operator("Unravel", compute=_unravel, domain="webmlc", kind="injective"),
    Operator("NonZero", expand=_non_zero, cases=(
        case("int32[3, 4] in 0..1"), case("float32[200] in 0..1"), case("bool[5, 70, 20]"),
        case("int64[2, 3] in 0..0"), case("float32[3, 0]"), case(np.zeros((0, 2), np.float32)))),
    Operator("Compress", expand=_compress, cases=(
        case(X, "bool[12]"), case(X, "bool[3]", axis=0), case(X, "bool[2]", axis=-1))),
    Operator("Order", compute=_order, domain="webmlc"),
    Operator("Groups", compute=_groups, domain="webmlc"),
    Operator("Members", compute=_members, domain="webmlc"),
    Operator("Unique", expand=_unique, cases=(
        case(ROW, outputs=4), case(ROW, outputs=4, sorted=0), case(ROWS, outputs=4, axis=0),
        case("int64[40] in -9..9", outputs=4), case(NUMBERS, outputs=4, axis=1),
        case("float32[3, 1, 2]", axis=-1), case(NUMBERS, outputs=4, axis=0, sorted=0),
        case("uint8[3, 20] in 0..1", outputs=4, axis=0), case("int8[300] in -9..9", outputs=4),
        case(NANS, outputs=4))),
    Operator("BoxSides", compute=_sides, domain="webmlc", kind="injective"),
    Operator("Suppress", same_type, _suppress, domain="webmlc", kind="injective"),
    Operator("ListBoxes", expand=_list_boxes, domain="webmlc"),
    Operator("NonMaxSuppression", expand=_non_max_suppression),
)  # fmt: skip
