"""Sliding windows of convolutions and pools: output sizes, padding and window positions, and the
mathematics of both, over feature maps whose channels come first or last.

>>> from webmlc.core.expr import const
>>> w = Windows((const(7),), (3,), (2,), (1,), (1,), (1,), False)
>>> str(w.sizes[0])
'4'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, const, maximum, minimum, select
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ops.operator import Context, NotSupportedError
from webmlc.graph.ops.shapes import ZERO, accumulator, all_of, canonical, product_type, require

AUTO_PAD = {"auto_pad": ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")}
"""How windows may be padded. An empty text is "NOTSET", as in onnxruntime."""

WINDOW_ATTRIBUTES = frozenset(
    {"auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"}
)
"""The attributes of ONNX's operators that describe windows, as `Windows` does."""

MIN_TAP_RATIO = 1.6
"""A pool is separated only if it then takes this many times fewer taps. The saved taps pay for
writing and reading one more feature map. Chosen by hand: a pool of 13 x 13 windows takes 26 taps
instead of 169 and a quarter of the time.
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
        strides, dilations = steps_of(context, kernel)
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
        _check_lengths(rank, begins, ends)
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

        If sizes are rounded up, a window may be far larger than the input. Exporters write such a
        window to cover the whole input.
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
        padded_axes = [d for d in range(self.rank) if not self.is_inside(d)]
        if not padded_axes:
            return x
        shape = list(x.shape)
        for d in padded_axes:
            shape[2 + d] = self.reaches[d]

        def element(*index: Expr) -> Expr:
            place = list(index)
            for d in padded_axes:
                place[2 + d] = index[2 + d] - self.begins[d]
            places = ((place[2 + d], self.inputs[d]) for d in padded_axes)
            is_inside = all_of((i >= 0) & (i < size) for i, size in places)
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


@dataclass(frozen=True, slots=True)
class MapOrder:
    """The order of a feature map's dimensions: `[N, C, *]`, or `[N, *, C]` if channels come last.

    A convolution folds channels and taps in the same order: `[I, *taps]` or `[*taps, I]`.
    """

    channels_last: bool

    def joined(self, channel: Expr, spatial: Sequence[Expr]) -> tuple[Expr, ...]:
        """The items of channels and of the spatial dimensions, in this order of dimensions."""
        return (*spatial, channel) if self.channels_last else (channel, *spatial)

    def split(self, axes: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]]:
        """The channels' item, and the items of spatial dimensions."""
        if self.channels_last:
            return axes[-1], tuple(axes[:-1])
        return axes[0], tuple(axes[1:])

    def channels(self, x: Tensor) -> Expr:
        """The number of a feature map's channels."""
        return self.split(x.shape[1:])[0]


CHANNELS_FIRST, CHANNELS_LAST = MapOrder(False), MapOrder(True)


def pool(
    x: Tensor,
    windows: Windows,
    order: MapOrder,
    combine: str,
    before: Callable[[Expr], Expr] = lambda element: element,
) -> Tensor:
    """The stage `pool`, which folds the taps of each window of a padded feature map."""
    count = 1 + windows.rank

    def element(n: Expr, *axes: Expr) -> Expr:
        channel, place = order.split(axes[:count])
        positions = windows.positions(place, axes[count:])
        return before(x[(n, *order.joined(channel, positions))])

    shape = (x.shape[0], *order.joined(order.channels(x), windows.sizes))
    return reduce("pool", shape, [const(k) for k in windows.kernel], combine, element)


def average(x: Tensor, windows: Windows, order: MapOrder, is_padding_counted: bool) -> Tensor:
    """The sum over each window, divided by the number of its elements.

    Elements of the padding count if `is_padding_counted`. Elements that lie behind the padding,
    because sizes are rounded up, never count. The mean of quantised numbers is a float.
    """
    sum_dtype, dtype = product_type(accumulator(x.dtype)), mean_type(x.dtype)
    total = pool(x, windows, order, "add", lambda element: element.astype(sum_dtype))
    mean_dtype = dtype if sum_dtype.is_integer else sum_dtype
    mean = _window_mean(windows, is_padding_counted)

    def element(n: Expr, *axes: Expr) -> Expr:
        _, place = order.split(axes)
        return mean(total[(n, *axes)].astype(mean_dtype), place).astype(dtype)

    return compute("average", total.shape, element)


def mean_type(dtype: DType) -> DType:
    """The dtype of a mean. The mean of quantised numbers is a float, which is scaled and rounded
    once.
    """
    return DType.float32 if product_type(dtype) != dtype else dtype


def _window_mean(windows: Windows, padded: bool) -> Callable[[Expr, Sequence[Expr]], Expr]:
    """Return a function from the sum over the window at a spatial position to its mean. Elements of
    the padding count if `padded`.
    """
    whole = 1
    partial_axes: list[int] = []
    for d, kernel in enumerate(windows.kernel):
        if windows.is_inside(d) or (padded and not windows.ceil):
            whole *= kernel
        else:
            partial_axes.append(d)

    def mean(total: Expr, position: Sequence[Expr]) -> Expr:
        if not partial_axes:
            return total * (1 / whole)
        count: Expr = const(whole)
        for d in partial_axes:
            low = const(0) - windows.begins[d] if padded else ZERO
            high = windows.inputs[d] + (windows.ends[d] if padded else 0)
            count = count * windows.taps_inside(d, position[d], low, high)
        return total / count.astype(total.dtype)

    return mean


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a convolution: their number, and each group's input and output channels."""

    count: int
    inputs: Expr
    outputs: Expr

    def source(self, output: Expr, i: Expr) -> Expr:
        """The input channel `i` of the group of an output channel."""
        return i if self.count == 1 else output // self.outputs * self.inputs + i


def convolution(
    x: Tensor,
    windows: Windows,
    order: MapOrder,
    groups: Groups,
    term: Callable[[Expr, Expr, Expr, Sequence[Expr]], Expr],
) -> Tensor:
    """The stage `conv`, which sums over the channels of a group and the taps of a window of a
    padded feature map. `term` is the product of an element and the weight of an output channel, an
    input channel of its group, and a tap.
    """
    count = 1 + windows.rank

    def element(n: Expr, *axes: Expr) -> Expr:
        output, place = order.split(axes[:count])
        i, taps = order.split(axes[count:])
        source = groups.source(output, i)
        read = x[(n, *order.joined(source, windows.positions(place, taps)))]
        return term(read, output, i, taps)

    outputs = canonical(groups.outputs * groups.count)
    shape = (x.shape[0], *order.joined(outputs, windows.sizes))
    extents = order.joined(groups.inputs, [const(k) for k in windows.kernel])
    return reduce("conv", shape, extents, "add", element)


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


def steps_of(context: Context, kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strides and the dilations of a node. Raises `NotSupportedError` if the kernel, the
    strides or the dilations do not have the input's spatial rank, which is at least 1.
    """
    rank = context.rank(0) - 2
    if rank == 0 or len(kernel) != rank:
        raise NotSupportedError(f"a kernel of shape {list(kernel)} over rank {rank + 2}")
    strides = tuple(context.attribute("strides", (1,) * rank))
    dilations = tuple(context.attribute("dilations", (1,) * rank))
    _check_lengths(rank, strides, dilations)
    return strides, dilations


def _check_lengths(rank: int, *parts: Sequence[Expr | int]) -> None:
    if {len(part) for part in parts} != {rank}:
        raise NotSupportedError(f"strides, dilations and pads are not of {rank} dimensions")
