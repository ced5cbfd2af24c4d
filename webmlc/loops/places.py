"""Decide where in its buffer a kernel reads or writes a value.

In: a value of a function, which may be a region of a larger value. Out: its `Place`: the type of
the buffer that holds the value, the region of that buffer, and a displacement. If the device allows
it, and the start of the region is a number, the kernel receives a pointer to the start. So kernels
that differ only in the place of their results stay one kernel. Any other start becomes a part of
the kernel's indices, whose symbols are then parameters of the kernel.

    %a: float32[4, 8] in %y[0, 64]   ->  a buffer float32[4, 72], displaced by 256 bytes
    %a: float32[1, 8] in %y[n, 0]    ->  a buffer float32[9, 8], of which row n is read or written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webmlc.core.expr import as_int, const
from webmlc.graph.compute import Tensor
from webmlc.graph.ir import Function, Node, Region, TensorType
from webmlc.graph.rewrite.parts import Part, copy_of, part_of
from webmlc.loops.kernel_form import KernelForm


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value: a region of a buffer of type `buffer`, or the whole buffer (`None`).
    The buffer begins `displacement` bytes after the start of its memory.
    """

    buffer: TensorType
    region: Region | None = None
    displacement: int = 0

    def part(self, tensor: Tensor, type_: TensorType) -> Tensor:
        """A value of this type, if `tensor` stands for the buffer that holds it."""
        if self.region is None:
            return tensor
        return part_of("crop", tensor, self.region, type_.shape)

    def parts(self, tensor: Tensor | None, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts of the buffer that make up a value: the value's `parts`, or `tensor`."""
        region = self.region
        assert region is not None
        if parts:
            return tuple(replace(part, region=part.region.within(region)) for part in parts)
        assert tensor is not None
        return (Part(copy_of("put", tensor), region),)


def place_of(value: str, body: Function, form: KernelForm) -> Place:
    """The place of a value in a kernel of this form."""
    region = body.regions.get(value)
    if region is None:
        return Place(body.type(value))
    whole = body.type(region.whole)
    start = as_int(region.start(whole.shape))
    if start is None or not form.displaces_buffers:
        return Place(whole, region)
    origin = replace(region, offsets=(const(0),) * whole.rank)
    return Place(whole, origin, start * whole.dtype.bytes)


def placed_body(node: Node, function: Function) -> Function:
    """The body of a fused node, with the regions that its inputs and outputs have in `function`."""
    body = node.attributes["body"]
    assert isinstance(body, Function)
    inner, outer = (*body.inputs, *body.outputs), (*node.inputs, *node.outputs)
    regions = {
        value: function.regions[name]
        for value, name in zip(inner, outer, strict=True)
        if name in function.regions
    }
    wholes = {region.whole: function.type(region.whole) for region in regions.values()}
    return replace(body, types={**body.types, **wholes}, regions=regions)
