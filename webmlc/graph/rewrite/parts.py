"""Split the output of an operator that puts parts together into these parts.

Each part is written by a separate block, without a test inside its loops. A `Part` is a pointwise
tensor and its region of the output. Parts do not overlap.

    Concat(a, b)  ->  a at 0, b at a.shape[axis]
    Pad(x)        ->  slabs of the fill value, or of x's own elements; x inside
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from webmlc.core.expr import Const, Expr, const
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ir import Region
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.slice import continued, is_natural, mirrored_axis, pads_of

Tensors = tuple[Tensor | None, ...]
Shape = tuple[Expr, ...]
Element = Callable[..., Expr]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a value: the elements of `tensor` fill `region`."""

    tensor: Tensor
    region: Region


def _concat(context: Context, tensors: Tensors) -> tuple[Part, ...]:
    axis = context.axis(0)
    whole = context.node.outputs[0]
    start: Expr = const(0)
    parts = []
    for tensor in tensors:
        assert tensor is not None
        region = Region.along(axis, start, whole, tensor.rank)
        parts.append(Part(copy_of("concat", tensor), region))
        start = simplify(start + tensor.shape[axis])
    return tuple(parts)


def _pad(context: Context, tensors: Tensors) -> tuple[Part, ...] | None:
    data = tensors[0]
    has_pads = "pads" in context.node.attributes or context.value(1) is not None
    if data is None or not has_pads:
        return None
    pads = pads_of(context)
    before, after = zip(*pads, strict=True)
    fill = _fill(context, data, pads)
    if fill is None or not all(map(is_natural, (*before, *after))):
        return None
    border = _border(context.outputs[0].shape, before, after, data.shape)
    whole = context.node.outputs[0]
    slabs = [
        Part(compute("fill", shape, fill(start)), Region(whole, start)) for start, shape in border
    ]
    return (*slabs, Part(copy_of("pad", data), Region(whole, before)))


def _fill(
    context: Context, data: Tensor, pads: Sequence[tuple[Expr, Expr]]
) -> Callable[[Shape], Element] | None:
    """A function from the start of a slab to its elements: the fill value, or elements of `data`.

    The result is `None` if the fill value is known at run time only, or if one loop over the whole
    output is as fast.
    """
    mode = context.attribute("mode", "constant")
    if mode == "constant":
        attribute = np.asarray(context.attribute("value", 0), data.dtype.numpy)
        value = context.constant(2) if context.has(2) else attribute
        if value is None:
            return None
        fill = Const(value.item(), data.dtype)
        return lambda _: lambda *_: fill
    if mode == "reflect" and mirrored_axis(data.shape, pads) is not None:
        return None

    def of_slab(start: Shape) -> Element:
        def element(*axes: Expr) -> Expr:
            index = (axis + first for axis, first in zip(axes, start, strict=True))
            return data[continued(mode, tuple(index), data.shape, pads)]

        return element

    return of_slab


def _border(
    whole: Shape, before: Shape, after: Shape, inside: Shape
) -> Iterator[tuple[Shape, Shape]]:
    """The start and the shape of each slab around `inside`. Slabs are disjoint, so that several
    threads can write them.

    A slab of one dimension extends only over the inside of the dimensions before it.
    """
    for d in range(len(whole)):
        for start, width in (
            (const(0), before[d]),
            (simplify(before[d] + inside[d]), after[d]),
        ):
            if width != const(0):
                starts = (*before[:d], start, *(const(0) for _ in whole[d + 1 :]))
                yield starts, (*inside[:d], width, *whole[d + 1 :])


def copy_of(name: str, tensor: Tensor) -> Tensor:
    """A copy of a tensor."""
    return compute(name, tensor.shape, lambda *axes: tensor[axes])


def part_of(name: str, tensor: Tensor, region: Region, shape: Shape) -> Tensor:
    """The elements of a tensor in a region of this shape."""
    return compute(name, shape, lambda *axes: tensor[region.index(axes)])


PARTS: dict[tuple[str, str], Callable[[Context, Tensors], tuple[Part, ...] | None]] = {
    ("", "Concat"): _concat,
    ("", "Pad"): _pad,
}
