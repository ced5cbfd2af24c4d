"""Operators whose output sizes depend on data: NonZero, Compress, and the selection in Unique.

First, the selected elements are counted. A run binds the count to a symbol. Then each selected
element is written to its place: the number of selected elements before it.

    %running, %count = webmlc.RunningCounts(%mask)
    %places: int32[k] = webmlc.Places(%running, %count)        (after a Bind of k)
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Expr, const, maximum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, scatter
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Operator, case
from webmlc.graph.ops.scans import scan
from webmlc.graph.ops.shapes import ONE, ZERO, check_shapes, dimensions, product, select_among


def _running_counts_type(context: Context) -> tuple[TensorType, ...]:
    return TensorType(INDEX, context.shape(0)), TensorType(DType.int64, (ONE,))


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


def _unravel_type(context: Context) -> TensorType:
    sizes = context.attribute("sizes")
    return TensorType(DType.int64, (const(len(sizes)), *context.shape(0)))


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

    return compute("unravel", context.outputs[0].shape, element)


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

OPS: tuple[Operator, ...] = (
    Operator("RunningCounts", _running_counts_type, _running_counts, domain="webmlc"),
    Operator("Places", _places_type, _places, domain="webmlc"),
    Operator("Unravel", _unravel_type, _unravel, domain="webmlc", kind="injective"),
    Operator("NonZero", expand=_non_zero, cases=(
        case("int32[3, 4] in 0..1"), case("float32[200] in 0..1"), case("bool[5, 70, 20]"),
        case("int64[2, 3] in 0..0"), case("float32[3, 0]"), case(np.zeros((0, 2), np.float32)))),
    Operator("Compress", expand=_compress, cases=(
        case(X, "bool[12]"), case(X, "bool[3]", axis=0), case(X, "bool[2]", axis=-1))),
)  # fmt: skip
