"""Sliding windows of convolutions and pools: output sizes, padding and window positions.

>>> from webmlc.core.expr import const
>>> w = Windows((const(7),), (3,), (2,), (1,), (1,), (1,), False)
>>> str(w.sizes[0])
'4'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from webmlc.core.expr import Const, Expr, as_int, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ops.operator import Context, NotSupportedError
from webmlc.graph.ops.shapes import ZERO, canonical, require

AUTO_PAD = {"auto_pad": ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")}
"""How windows may be padded. An empty text is "NOTSET", as in onnxruntime."""

MIN_TAP_RATIO = 1.6
"""A pool is separated only if that takes this many times fewer taps. It pays for writing and
reading one more feature map. Chosen by hand: a pool of 13 x 13 windows takes 26 taps instead of 169
and a quarter of the time.
"""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial dimensions `inputs`. Each field has one entry for each dimension."""

    inputs: tuple[Expr, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[Expr | int, ...]
    ends: tuple[Expr | int, ...]
    ceil: bool

    @staticmethod
    def of(context: Context, kernel: Sequence[int], ceil: bool = False) -> Windows:
        """The windows of a node, from its strides, dilations, pads and auto_pad. Spatial dimensions
        are the last ones.
        """
        inputs = context.shape(0)[2:]
        rank = len(inputs)
        if rank == 0 or len(kernel) != rank:
            raise NotSupportedError(f"a kernel of shape {list(kernel)} over rank {rank + 2}")
        strides = tuple(context.attribute("strides", (1,) * rank))
        dilations = tuple(context.attribute("dilations", (1,) * rank))
        mode = context.attribute("auto_pad", "NOTSET")
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            pads = [
                _same_padding(size, k, s, d, mode == "SAME_LOWER")
                for size, k, s, d in zip(inputs, kernel, strides, dilations, strict=True)
            ]
            begins: tuple[Expr | int, ...] = tuple(p[0] for p in pads)
            ends: tuple[Expr | int, ...] = tuple(p[1] for p in pads)
        else:
            attribute = None if mode == "VALID" else context.attribute("pads")
            flat: tuple[Expr | int, ...] = tuple(attribute or (0,) * (2 * rank))
            begins, ends = flat[:rank], flat[rank:]
        if {len(part) for part in (strides, dilations, begins, ends)} != {rank}:
            raise NotSupportedError(f"strides, dilations and pads are not of {rank} dimensions")
        if min(*strides, *dilations, *kernel) < 1:
            raise NotSupportedError(
                f"kernel {list(kernel)}, strides {list(strides)} and dilations {list(dilations)}: "
                "all are 1 at least"
            )
        windows = Windows(inputs, tuple(kernel), strides, dilations, begins, ends, ceil)
        windows = windows.clipped() if ceil else windows
        for extent, room, stride in zip(windows.extents, windows.rooms, strides, strict=True):
            if not require(context, "at most", extent, canonical(room + stride)):  # or none fits
                raise NotSupportedError(f"a window of {extent} elements over {room}, with padding")
        return windows

    def clipped(self) -> Windows:
        """The windows without the taps that lie behind the padded input in every window.

        If sizes are rounded up, a window may be far larger than the input. Exporters write it so to
        cover the whole input.
        """
        kernel = list(self.kernel)
        for d, dilation in enumerate(self.dilations):
            room = as_int(self.rooms[d])
            if room is not None and room > 0:
                kernel[d] = min(kernel[d], (room - 1) // dilation + 1)
        return replace(self, kernel=tuple(kernel))

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.inputs)

    @property
    def extents(self) -> tuple[Expr, ...]:
        """The elements from the first tap of a window to its last, along each dimension."""
        pairs = zip(self.dilations, self.kernel, strict=True)
        return tuple(const(dilation * (taps - 1) + 1) for dilation, taps in pairs)

    @property
    def rooms(self) -> tuple[Expr, ...]:
        """The elements of the padded input along each dimension."""
        ends = zip(self.inputs, self.begins, self.ends, strict=True)
        return tuple(canonical(size + before + after) for size, before, after in ends)

    @property
    def are_elements(self) -> bool:
        """True if each window is one element, and each element belongs to a window."""
        return {*self.kernel, *self.strides} == {1}

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The window positions along each dimension. No window starts in the padding at the end."""
        return tuple(self._size(d) for d in range(self.rank))

    def _size(self, d: int) -> Expr:
        slack = self.rooms[d] - self.extents[d]
        stride = self.strides[d]
        if not self.ceil:
            return canonical(slack // stride + 1)
        size = canonical((slack + (stride - 1)) // stride + 1)
        last = canonical((size - 1) * stride - self.begins[d] - self.inputs[d])
        start = as_int(last)
        return canonical(size - 1) if start is not None and start >= 0 else size

    @property
    def reaches(self) -> tuple[Expr, ...]:
        """The padded elements that the windows read along each dimension."""
        return tuple(
            canonical((size - 1) * s + (k - 1) * dilation + 1)
            for size, s, k, dilation in zip(
                self.sizes, self.strides, self.kernel, self.dilations, strict=True
            )
        )

    def is_inside(self, d: int) -> bool:
        """True if no window reaches outside the input along dimension `d`."""
        if as_int(self.begins[d]) != 0:
            return False
        if as_int(self.ends[d]) == 0 and not self.ceil:
            return True
        excess = as_int(canonical(self.reaches[d] - self.inputs[d]))
        return excess is not None and excess <= 0

    def positions(self, index: Sequence[Expr], taps: Sequence[Expr]) -> tuple[Expr, ...]:
        """The positions in the padded input of a tap of the window at `index`."""
        return tuple(
            i * s + r * dilation
            for i, r, s, dilation in zip(index, taps, self.strides, self.dilations, strict=True)
        )

    def pad(self, x: Tensor, value: float | int) -> Tensor:
        """Pad the input with `value` as far as windows reach. If no window reaches outside, return
        the input.
        """
        if all(self.is_inside(d) for d in range(self.rank)):
            return x
        shape = list(x.shape)
        for d, reach in enumerate(self.reaches):
            if not self.is_inside(d):
                shape[2 + d] = reach

        def element(*index: Expr) -> Expr:
            is_inside: Expr | None = None
            place = list(index)
            for d, size in enumerate(self.inputs):
                if self.is_inside(d):
                    continue
                place[2 + d] = index[2 + d] - self.begins[d]
                is_inside_axis = (place[2 + d] >= 0) & (place[2 + d] < size)
                is_inside = is_inside_axis if is_inside is None else is_inside & is_inside_axis
            assert is_inside is not None
            return select(is_inside, x[tuple(place)], Const(value, x.dtype))

        return compute("pad", shape, element)

    def separated(self, padded: tuple[Expr, ...]) -> list[Windows] | None:
        """Separate windows: first along the last dimension of the padded input, then along the
        others.

        This is valid for reductions that do not depend on the order of taps, such as a maximum.
        Returns None if it does not save enough taps.
        """
        *kernel, across = self.kernel
        *strides, step = self.strides
        down = math.prod(kernel)
        if down * across < MIN_TAP_RATIO * (math.prod(strides) * across + down):
            return None
        ones, zeros = (1,) * (self.rank - 1), (0,) * self.rank
        rows = Windows(
            padded, (*ones, across), (*ones, step), (*ones, self.dilations[-1]), zeros, zeros, False
        )
        columns = Windows(
            rows.sizes, (*kernel, 1), (*strides, 1), (*self.dilations[:-1], 1), zeros, zeros, False
        )
        return [rows, columns] if columns.sizes == self.sizes else None

    def taps_inside(self, d: int, position: Expr, low: Expr | int, high: Expr) -> Expr:
        """Count the taps of the window at `position` that lie in [low, high) of the unpadded
        input.
        """
        start = position * self.strides[d] - self.begins[d]
        dilation = self.dilations[d]
        first = maximum((low - start + (dilation - 1)) // dilation, 0)
        stop = (high - start + (dilation - 1)) // dilation
        return maximum(minimum(stop, self.kernel[d]) - first, 0)


def _same_padding(
    size: Expr, kernel: int, stride: int, dilation: int, lower: bool
) -> tuple[Expr, Expr]:
    """The padding (begin, end) that gives `ceil(size / stride)` positions. An odd element is added
    at the begin if `lower`, else at the end.
    """
    positions = (size + (stride - 1)) // stride
    total = maximum((positions - 1) * stride + (kernel - 1) * dilation + 1 - size, ZERO)
    half = canonical(total // 2)
    other_half = canonical(total - half)
    return (other_half, half) if lower else (half, other_half)
