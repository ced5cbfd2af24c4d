"""Multiply bytes four at a time, as dot products of words.

In: a function after layouts. Out: the same meaning; a `webmlc.Conv` or `webmlc.MatMul` of bytes
with constant weights reads both as int32 words of four channels, and sums their dot products.
The words of a feature map are a `View` of its bytes, padded to whole words. The words of the
weights are packed at build, and both devices share them.

    %y = webmlc.Conv(%p, %w)  ->  %v = View(%p)         uint8[n, y, x, 4·i] as int32[n, y, x, i]
                                  %y = webmlc.Conv(%v, %w.words)
                                                        int8[o/8, ky, kx, 4·i, 8] as
                                                        int32[o/8, ky, kx, i, 8]

A depthwise convolution has no channels to sum. On the CPU, its kernel multiplies four taps of a
column at once, and packs the words of the feature map itself. The words of its weights are packed
at load: GPUs read the bytes.

    %y = webmlc.DepthwiseConv(%p, %w)  ->  %q = PackBytes(%w transposed)   int32[kx, ky/4, c]
                                           %y = webmlc.DepthwiseConv(%p, %q)

A word of a feature map with one or two channels also holds the channels of its neighbours
(`Neighbours`), so that four taps of a line become one or two taps.

The bytes of the left word are unsigned on CPUs, and signed on GPUs, as their instructions need. A
feature map of the other type is read as 128 more or less: Σ x · w = Σ (x + 128) · w - 128 · Σ w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.core.simplify import simplify
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Module, Node, TensorType
from webmlc.graph.ops.layout import BYTES_PER_WORD, ByteOperator, ByteProduct, column_axis
from webmlc.graph.ops.windows import Windows
from webmlc.graph.rewrite.patterns import P, Rule, by_operator, constant, value
from webmlc.graph.rewrite.rewriting import Rewriting, remove_dead_code

_BYTES = (DType.int8, DType.uint8)
_PRODUCTS: Mapping[ByteOperator, frozenset[str]] = {
    "dot_u8_i8": frozenset({"Conv", "MatMul", "DepthwiseConv"}),
    "dot_i8": frozenset({"Conv", "MatMul"}),
}
"""The products that are rewritten, by the operator. On a GPU, joining the taps of a depthwise
convolution in words would take longer than multiplying them (an estimate).
"""
_FEWEST_OUTPUTS = 8
"""The fewest output channels for which padding the feature map to whole words is faster (an
estimate: the padding is a copy of the feature map).
"""


def use_byte_products(module: Module, operator: ByteOperator) -> Module:
    """Rewrite the products of every function. `operator` is the target's operator.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    product = P(_PRODUCTS[operator], value("data"), constant("weights"), domain="webmlc")
    rules = by_operator([Rule(product, _use_words)])
    return module.map_functions(
        lambda f: remove_dead_code(_Words(f, rules, operator=operator).run())
    )


def _use_words(data: Value, weights: Value, y: Value, rewriting: _Words) -> str | None:
    """A product of bytes  ->  the product of their words, less the excess of shifted bytes"""
    build, node = y.build, y.build.source
    if data.type.dtype not in _BYTES or not _fills_words(data, weights.array, y):
        return None
    bytes_ = ByteProduct(data.type.dtype, rewriting.operator)
    attributes: dict[str, Any] = {**node.attributes, "bytes": bytes_}
    columns, left = str(weights), str(data)
    if node.op == "DepthwiseConv":
        columns = rewriting.columns(build, weights)
    elif (span := rewriting.span(node)) > 1:
        left, columns, attributes["windows"] = rewriting.neighbours(build, span)
    else:
        left = rewriting.whole(build, data)
    packed = f"{columns}.words"
    is_packed = packed in rewriting.types  # convolutions may share weights
    if node.op != "DepthwiseConv":
        left = rewriting.words(build, left)
        if not is_packed:
            build.constant(_words(rewriting.constants[columns]), name=packed)
    elif not is_packed:
        build("PackBytes", columns, output=packed, domain="webmlc")
    output = f"{y}.shifted" if bytes_.offset else y
    product = build(node.op, left, packed, output=output, domain=node.domain, **attributes)
    if not bytes_.offset:
        return product
    excess = rewriting.sums(node) * np.int32(bytes_.offset)
    return product - build.constant(excess, name=f"{y}.excess")


def _fills_words(data: Value, weights: Array, y: Value) -> bool:
    """True for constant bytes, if the channels are whole words or worth padding to whole words."""
    node = y.build.source
    if weights.dtype != np.int8 or as_int(data.shape[-1]) is None:
        return False
    if node.op == "DepthwiseConv":
        return bool(weights.shape[column_axis(weights.ndim - 1)] > 1)
    if weights.shape[-2] % BYTES_PER_WORD == 0:
        return True
    outputs = as_int(y.shape[-1]) or 0
    return node.attributes.get("groups", 1) == 1 and outputs >= _FEWEST_OUTPUTS


@dataclass(slots=True)
class _Words(Rewriting):
    """The function whose products read words, and their operator."""

    operator: ByteOperator = field(kw_only=True)

    def columns(self, build: Builder, weights: str) -> str:
        """Weights of a depthwise convolution with the taps of a column side by side."""
        array = self.constants[weights]
        axis = column_axis(array.ndim - 1)
        return build.constant(np.moveaxis(array, axis, -2), name=f"{weights}.columns")

    def sums(self, node: Node) -> Array:
        """The sum of the weights of each output channel, in int32."""
        weights = self.constants[node.inputs[1]]
        if node.op == "DepthwiseConv":
            of_channels: Array = weights.sum(tuple(range(weights.ndim - 1)), dtype=np.int32)
            return of_channels
        groups = int(node.attributes.get("groups", 1))
        panels = weights if groups > 1 else weights[np.newaxis]
        summed = panels.sum(tuple(range(2, panels.ndim - 1)), dtype=np.int32)
        count = as_int(self.types[node.outputs[0]].shape[-1]) or 0
        sums: Array = summed.reshape(groups, -1)[:, : count // groups].reshape(-1)
        return sums

    def span(self, node: Node) -> int:
        """The number of neighbouring pixels whose channels fill a word; 1 if taps stay apart."""
        channels: int = self.constants[node.inputs[1]].shape[-2]
        if node.op != "Conv" or node.attributes["groups"] != 1 or BYTES_PER_WORD % channels:
            return 1
        windows: Windows = node.attributes["windows"]
        if windows.kernel[-1] == 1 or windows.dilations[-1] != 1:
            return 1
        return BYTES_PER_WORD // channels

    def neighbours(self, build: Builder, span: int) -> tuple[str, str, Windows]:
        """The feature map, weights and windows of the convolution in which each `span` taps along a
        line become one tap.
        """
        data, weights = build.source.inputs
        windows: Windows = build.source.attributes["windows"]
        taps = -(-windows.kernel[-1] // span)
        missing = taps * span - windows.kernel[-1]
        columns = simplify(windows.reaches[-1] + missing - (span - 1))
        name = f"{data}.neighbours.{windows.kernel[-1]}.{windows.strides[-1]}"
        if name not in self.types:  # convolutions may share a feature map
            wide = self.padded(build, data, -2, missing, f"{name}.wide")
            build("Neighbours", wide, output=name, domain="webmlc", columns=columns, span=span)
        array = self.constants[weights]
        *outer, _, channels, lanes = array.shape
        none = np.zeros((*outer, missing, channels, lanes), array.dtype)
        panels = np.concatenate((array, none), -3).reshape(*outer, taps, span * channels, lanes)
        word_windows = replace(
            windows,
            inputs=(*windows.inputs[:-1], columns),
            kernel=(*windows.kernel[:-1], taps),
            dilations=(*windows.dilations[:-1], span),
            begins=(*windows.begins[:-1], 0),
            ends=(*windows.ends[:-1], 0),
        )
        return name, build.constant(panels, name=f"{weights}.{span}"), word_windows

    def whole(self, build: Builder, data: str) -> str:
        """The feature map, padded to whole words of channels."""
        missing = -(as_int(self.types[data].shape[-1]) or 0) % BYTES_PER_WORD
        return self.padded(build, data, -1, missing, f"{data}.whole")

    def padded(self, build: Builder, data: str, axis: int, missing: int, name: str) -> str:
        """The feature map with `missing` more elements along an axis; the weights of these elements
        are zeros. If a Pad computes the feature map, a larger Pad replaces it.
        """
        if not missing or name in self.types:
            return name if missing else data
        type_ = self.types[data]
        pads = np.zeros(2 * type_.rank, np.int64)
        pads[axis] = missing
        maker = self.producer(data)
        if maker is not None and maker.op == "Pad" and len(maker.inputs) == 3:
            source, amounts, value = maker.inputs
            pads = pads + self.constants[amounts]
        else:
            source, value = data, build.constant(0, type_.dtype, f"{name}.value")
        amounts = build.constant(pads, name=f"{name}.amounts")
        return build("Pad", source, amounts, value, output=name, mode="constant")

    def words(self, build: Builder, data: str) -> str:
        """A view of the bytes of the feature map as words."""
        type_ = self.types[data]
        name = f"{data}.words"
        if name in self.types:
            return name
        shape = (*type_.shape[:-1], simplify(type_.shape[-1] // BYTES_PER_WORD))
        return self.view(build, data, TensorType(DType.int32, shape), name)


def _words(panels: Array) -> Array:
    """Pack four rows of each column of int8 panels into a word: `[..., K, 8]` as int32
    `[..., K/4, 8]`. Missing rows are zero.
    """
    *outer, rows, columns = panels.shape
    count = -(-rows // BYTES_PER_WORD)
    padded = np.zeros((*outer, count * BYTES_PER_WORD, columns), np.int8)
    padded[..., :rows, :] = panels
    split = padded.reshape(*outer, count, BYTES_PER_WORD, columns)
    words: Array = np.moveaxis(split, -2, -1).copy().view("<i4")[..., 0]
    return words
