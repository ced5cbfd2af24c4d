"""Convolutions and pools over NHWC feature maps: padding becomes a node, weights are packed,
transposed convolutions become convolutions, and global pools become reductions.

In: a convolution or pool of ONNX. Out: for instance `webmlc.Conv` or `webmlc.DepthwiseConv` over
a feature map that is padded so that every window lies inside it, then the addition of the bias:

    %y = Conv(%x, %w, %b)  ->  %y.pad = Pad(%x.nhwc); %y.sum = webmlc.Conv(%y.pad, %w.packed);
                               %y.nhwc = Add(%y.sum, %b)
    %y = MaxPool(%x)       ->  %y.pad = Pad(%x.nhwc); %y.nhwc = webmlc.MaxPool(%y.pad)
    %y = GlobalMaxPool(%x) ->  %y.nhwc = ReduceMax(%x.nhwc, [1, 2])

ConvInteger multiplies x - z by the weights, where z is the zero point. The padding is z, so that
every window has the same correction: (x - z) · w = x · w - z · Σw. A transposed convolution is a
sub-pixel convolution (`Subpixels`), after which elements beyond the output are cut off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, const
from webmlc.core.simplify import simplify
from webmlc.graph.builder import Builder
from webmlc.graph.compute import identity
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Array, Node, TensorType
from webmlc.graph.layout.layout_values import HALVES, LayoutValues
from webmlc.graph.layout.weights import (
    centred,
    less_zero_point,
    pack_convolution,
    pack_depthwise,
    zero_point,
)
from webmlc.graph.ops.convolution import transposed_windows
from webmlc.graph.ops.operator import Context, Scope, array_type
from webmlc.graph.ops.windows import WINDOW_ATTRIBUTES, Windows


def convolution(values: LayoutValues, node: Node) -> bool:
    """Write a convolution by constant weights. If the weights or the padding are known only at run
    time, write nothing and return False.
    """
    weights = values.weights(node.inputs[1])
    if not values.is_map(node.inputs[0]) or weights is None:
        return False
    quantised = node.op == "ConvInteger"
    weights = centred(values, node, 0) if quantised else weights
    windows = None if weights is None else windows_of(values, node, weights.shape[2:])
    if weights is None or windows is None:
        return False
    twin = values.define_nhwc(node.outputs[0])
    bias = "" if quantised else node.input(2)
    zero = zero_point(values, node) if quantised else ""
    total = f"{twin}.sum" if bias or zero else twin
    _emit(values, node, weights, windows, zero or 0.0, total)
    if bias:
        Builder(node, values)("Add", total, values.nchw(bias), output=twin)
    elif zero:
        sums = weights.sum(tuple(range(1, weights.ndim)), np.int32)
        less_zero_point(values, node, zero, sums, twin)
    return True


@dataclass(frozen=True, slots=True)
class Subpixels:
    """A convolution in `windows` of stride 1 that stands for a transposed convolution with strides
    (sy, sx). Its channels are the sy·sx outputs ("phases") between two inputs: `weights` is
    `[groups · sy · sx · O, I, KH, KW]`. The phases are then interleaved. Every output is a sum over
    the taps that reach it, so no tap needs a test:

        ConvTranspose of 2x2, strides 2, 16 -> 1 channels  ->  Conv of 1x1, 16 -> 4, interleaved

    Output `s·q + r` takes tap `k` from input `q + (r + begin - k·dilation) / s`, if this quotient
    is whole. So the phase `r` decides the taps, and `q` slides. Source: W. Shi et al., "Is the
    deconvolution layer the same as a convolutional layer?" (2016).
    """

    weights: Array
    windows: Windows
    strides: tuple[int, ...]

    @property
    def phases(self) -> int:
        """The number of outputs at the place of one input."""
        return math.prod(self.strides)

    @staticmethod
    def of(weights: Array, windows: Windows, sizes: tuple[Expr, ...], groups: int) -> Subpixels:
        """The convolution that replaces a transposed convolution by `weights` with outputs of these
        `sizes`. The weights are `[groups · I, O, KH, KW]`.
        """
        rank, strides = windows.rank, windows.strides
        places = [_places(windows, d) for d in range(rank)]
        lows = [min(0, *inputs_of.values()) for inputs_of in places]
        kernel = [
            max(0, *inputs_of.values()) - low + 1
            for inputs_of, low in zip(places, lows, strict=True)
        ]
        inputs, outputs = weights.shape[0] // groups, weights.shape[1]
        source: Any = weights.reshape(groups, inputs, outputs, *weights.shape[2:]).swapaxes(1, 2)
        result: Any = np.zeros((groups, *strides, outputs, inputs, *kernel), weights.dtype)
        for reads in itertools.product(*(p.items() for p in places)):
            phases = [phase for (phase, _), _ in reads]
            taps = [tap for (_, tap), _ in reads]
            positions = [place - low for (_, place), low in zip(reads, lows, strict=True)]
            result[(slice(None), *phases, ..., *positions)] = source[(..., *taps)]
        steps = [simplify((size + (s - 1)) // s) for size, s in zip(sizes, strides, strict=True)]
        ends = [
            simplify(step + (k - 1 + low) - size)
            for step, k, low, size in zip(steps, kernel, lows, windows.inputs, strict=True)
        ]
        ones = (1,) * rank
        begins = tuple(Const(-low) for low in lows)
        moved = Windows(windows.inputs, tuple(kernel), ones, ones, begins, tuple(ends), False)
        return Subpixels(result.reshape(-1, inputs, *kernel), moved, strides)


def _places(windows: Windows, d: int) -> dict[tuple[int, int], int]:
    """The input that each (phase, tap) reads, relative to the place of the phase. Taps that do not
    reach a phase are missing.
    """
    begin, stride = as_int(windows.begins[d]), windows.strides[d]
    assert begin is not None
    moved = {
        (phase, tap): phase + begin - tap * windows.dilations[d]
        for phase in range(stride)
        for tap in range(windows.kernel[d])
    }
    return {key: at // stride for key, at in moved.items() if at % stride == 0}


def transposed_convolution(values: LayoutValues, node: Node) -> bool:
    """Write a transposed convolution by constant weights as a sub-pixel convolution; False if the
    weights, the bias, the padding, or the outputs to cut off are known at run time only.
    """
    weights, bias = values.weights(node.inputs[1]), node.input(2)
    if weights is None or (bias and bias not in values.constants):
        return False
    if not values.is_map(node.inputs[0]):
        return False
    groups = int(node.attributes.get("group", 1))
    windows, sizes = transposed_windows(_context(values, node))
    # The phases of the last window may be beyond the output.
    surplus = [as_int(simplify(-n % s)) for n, s in zip(sizes, windows.strides, strict=True)]
    cut = {axis: as_int(sizes[axis]) for axis, count in enumerate(surplus) if count}
    if None in (*surplus, *cut.values(), *map(as_int, windows.begins)):
        return False
    build = Builder(node, values)
    subpixels = Subpixels.of(weights, windows, sizes, groups)
    phases = f"{node.outputs[0]}.phases"
    total = f"{phases}.sum" if bias else phases
    _emit(values, node, subpixels.weights, subpixels.windows, 0.0, total)
    if bias:
        repeats = (1, subpixels.phases, 1)
        repeated = np.tile(values.constants[bias].reshape(groups, 1, -1), repeats).reshape(-1)
        shift = build.constant(repeated, name=f"{phases}.bias")
        build("Add", total, shift, output=phases)
    twin = values.define_nhwc(node.outputs[0])
    whole = f"{twin}.whole" if cut else twin
    _interleave(values, build, phases, whole, subpixels.strides, groups)
    if cut:
        axes = [1 + axis for axis in cut]
        bounds = {"starts": [0] * len(cut), "ends": list(cut.values()), "axes": axes}
        names = [
            build.constant(np.array(numbers, np.int64), name=f"{twin}.{name}")
            for name, numbers in bounds.items()
        ]
        build("Slice", whole, *names, output=twin)
    return True


def _interleave(
    values: LayoutValues,
    build: Builder,
    phases: str,
    output: str,
    strides: tuple[int, ...],
    groups: int,
) -> None:
    """Write `[N, H, W, groups · sy · sx · O]` as `[N, H · sy, W · sx, groups · O]`, or of another
    rank. A Transpose makes H and sy neighbours, and W and sx.
    """
    type_ = values.types[phases]
    if math.prod(strides) == 1:
        values.view(build, phases, type_, output)
        return
    batch, *sizes, channels = type_.shape
    rank = len(sizes)
    outputs = simplify(channels // (groups * math.prod(strides)))
    apart = TensorType(type_.dtype, (batch, *sizes, const(groups), *map(const, strides), outputs))
    values.view(build, phases, apart, f"{phases}.apart")
    pairs = ((1 + d, 2 + rank + d) for d in range(rank))
    order = (0, *itertools.chain(*pairs), 1 + rank, 2 + 2 * rank)
    build("Transpose", f"{phases}.apart", output=f"{phases}.together", perm=order)
    larger = (simplify(size * stride) for size, stride in zip(sizes, strides, strict=True))
    whole = TensorType(type_.dtype, (batch, *larger, simplify(outputs * groups)))
    values.view(build, f"{phases}.together", whole, output)


def _emit(
    values: LayoutValues,
    node: Node,
    weights: Array,
    windows: Windows,
    fill: float | str,
    output: str,
) -> None:
    """Write the convolution of the node's feature map, padded with `fill`, by weights
    `[O, I, *kernel]`. Weights of half precision are widened after packing.
    """
    groups = int(node.attributes.get("group", 1))
    depthwise = weights.shape[1] == 1 and groups == weights.shape[0] and groups > 1
    packed = pack_depthwise(weights) if depthwise else pack_convolution(weights, groups)
    build = Builder(node, values)
    operand = build.constant(packed, name=f"{node.outputs[0]}.packed")
    is_half = array_type(packed).dtype in HALVES
    if is_half and values.types[node.inputs[0]].dtype not in HALVES:
        operand = build("Cast", operand, output=f"{operand}.wide", to=TYPE_NUMBERS[DType.float32])
    build(
        "DepthwiseConv" if depthwise else "Conv",
        padded(values, node, windows, fill),
        operand,
        output=output,
        domain="webmlc",
        channels=weights.shape[0],
        groups=groups,
        windows=windows,
    )


def windows_of(
    values: LayoutValues, node: Node, kernel: Sequence[int], ceil: bool = False
) -> Windows | None:
    """The windows of a convolution or pool. `None` if the padding before the feature map depends on
    symbols, and with it the padding after it.
    """
    windows = Windows.of(_context(values, node), kernel, ceil)
    return windows if all(as_int(b) is not None for b in windows.begins) else None


def padded(values: LayoutValues, node: Node, windows: Windows, fill: float | str) -> str:
    """The node's feature map in NHWC, padded with a number or a value so that every window lies
    inside it.
    """
    data = values.as_nhwc(node.inputs[0])
    begins, ends = [as_int(b) or 0 for b in windows.begins], []  # `windows_of` accepts no others
    for d, (reach, size) in enumerate(zip(windows.reaches, windows.inputs, strict=True)):
        missing = as_int(simplify(reach - size - begins[d]))
        if missing is None:  # a symbolic size: at most the declared padding and one stride
            declared = as_int(windows.ends[d])
            assert declared is not None, node.name
            missing = declared + (windows.strides[d] - 1 if windows.ceil else 0)
        ends.append(max(missing, 0))
    if not any((*begins, *ends)):
        return data
    name = f"{node.outputs[0]}.pad"
    dtype = values.types[data].dtype
    pads = np.array([0, *begins, 0, 0, *ends, 0], np.int64)
    build = Builder(node, values)
    amounts = build.constant(pads, name=f"{name}.amounts")
    value = fill if isinstance(fill, str) else f"{name}.value"
    if not isinstance(fill, str):
        build.constant(fill, dtype, value)
    return build("Pad", data, amounts, value, output=name, mode="constant")


def _context(values: LayoutValues, node: Node) -> Context:
    return Scope(values.types, values.constants, {}).context(node)


_REDUCTIONS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}


def pool(values: LayoutValues, node: Node) -> bool:
    """Write a pool; False if its padding depends on a run, or it also gives indices."""
    if not values.is_map(node.inputs[0]):
        return False
    kernel = tuple(node.attributes["kernel_shape"])
    windows = windows_of(values, node, kernel, bool(node.attributes.get("ceil_mode", 0)))
    if windows is None or len([o for o in node.outputs if o]) > 1:
        return False
    dtype = values.types[node.inputs[0]].dtype
    fill = identity("max", dtype).value if node.op == "MaxPool" else 0.0
    twin = values.define_nhwc(node.outputs[0])
    data = padded(values, node, windows, fill)
    attributes = {n: a for n, a in node.attributes.items() if n not in WINDOW_ATTRIBUTES}
    passes = [windows]
    if node.op == "MaxPool":
        passes = windows.separated(values.types[data].shape[1:-1]) or passes
    for number, part in enumerate(passes, 1):
        data = Builder(node, values)(
            node.op,
            data,
            output=twin if number == len(passes) else f"{twin}.rows",
            domain="webmlc",
            windows=part,
            **attributes,
        )
    return True


def global_pool(values: LayoutValues, node: Node) -> bool:
    """Write a global pool as a reduction; False for data that are no feature map."""
    if not values.is_map(node.inputs[0]):
        return False
    build = Builder(node, values)
    data = values.as_nhwc(node.inputs[0])
    twin = values.define_nhwc(node.outputs[0])
    spatial = np.arange(1, values.rank(data) - 1, dtype=np.int64)
    axes = build.constant(spatial, name=f"{twin}.axes")
    build(_REDUCTIONS[node.op], data, axes, output=twin, keepdims=1)
    return True
