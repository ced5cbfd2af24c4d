"""Convolutions in Winograd's form, where it is faster.

In: a function after layouts. Out: the same meaning; a chosen `webmlc.Conv` is three transforms
around matrix products, fewer than its taps (`ops/winograd.py`). The weights' transform depends on
constants only: it runs once, at load, so that the package ships the small form.

    %y = webmlc.Conv(%p, %w)  ->  %v = WinogradInput(%p); %u = WinogradWeights(%w)
                                  %m = WinogradProduct(%v, %u); %y = WinogradOutput(%m)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from webmlc.core.expr import as_int, const
from webmlc.graph.function_writer import FunctionRewriter
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.windows import Windows
from webmlc.graph.ops.winograd import Form
from webmlc.graph.simplify_graph import remove_dead_code

Forms = tuple[Form, Form]

TILES = (2, 3, 4)
"""Outputs along a tile: with more, results err more."""
MOST_TAPS = 5
"""The longest window that is one block. Those of longer ones are as long as a tile."""
_TRANSFORM_COST = 7
"""Multiply-adds that transforming one element costs as much as; twice as many where planes of more
than `_CACHED` elements leave the second-level cache.
"""
_CACHED = 500_000
_STREAM_COST = 6
"""Tiles in whose products a transformed weight takes as long to arrive from memory."""
_START_COST = 4
"""Steps of a product's inner loop that beginning and ending one take."""
_LANES = 4
"""Channels that the transforms take at once."""
SAVED = 8_000_000
"""Multiply-adds that Winograd's form must save at least in the layers of one shape, which share
their kernels: these are about 20 KB of code.
"""


def use_winograd(module: Module) -> Module:
    """Rewrite the convolutions of `main`.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    main = remove_dead_code(_Rewrite(module.main).run())
    return replace(module, functions={**module.functions, "main": main})


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of one image: its channels; its outputs, the taps of its windows and their
    strides along each dimension. Equal layers share their kernels.
    """

    channels: int
    outputs: int
    sizes: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)

    def forms(self) -> list[Forms]:
        """The forms it can have: the same along both dimensions if their windows are."""
        rows, columns = map(_forms, self.kernel, self.strides)
        return [(a, b) for a in rows for b in columns if rows != columns or a == b]


def _forms(kernel: int, stride: int) -> list[Form]:
    """The forms of windows along one dimension."""
    if kernel <= MOST_TAPS:
        return [Form(kernel, stride, tile, kernel) for tile in TILES]
    return [Form(kernel, stride, tile, tile * stride) for tile in TILES]


def saved(layer: Layer, forms: Forms) -> int:
    """Multiply-adds that the transforms and products of a form save, by a model of both."""
    channels, outputs = layer.channels, layer.outputs
    counts = [as_int(f.tiles(const(n))) or 1 for f, n in zip(forms, layer.sizes, strict=True)]
    count = math.prod(counts)
    seen = math.prod(n + form.blocks - 1 for n, form in zip(counts, forms, strict=True))
    planes = math.prod(form.planes for form in forms)
    depth = math.prod(form.blocks for form in forms) * channels
    direct = math.prod(layer.kernel) * math.prod(layer.sizes) * channels * outputs
    products = planes * (depth + _START_COST) * outputs * (count + _STREAM_COST)
    transforms = _transform(planes * seen * channels) + _transform(planes * count * outputs)
    return direct - (products + transforms)


def _transform(elements: int) -> int:
    """Multiply-adds that transforming so many elements of planes costs as much as."""
    return elements * _TRANSFORM_COST * (2 if elements > _CACHED else 1)


def best_forms(layers: Iterable[Layer]) -> dict[Layer, Forms]:
    """The forms of each layer that, as often as it occurs, save more than its kernels cost."""
    counts = Counter(layers)
    best = {layer: max(layer.forms(), key=lambda forms: saved(layer, forms)) for layer in counts}
    return {
        layer: forms
        for layer, forms in best.items()
        if saved(layer, forms) * counts[layer] >= SAVED
    }


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and who makes what its pads may start from."""

    def run(self) -> Function:
        layers = {node.outputs: self.layer(node) for node in self.source.nodes}
        chosen = best_forms(layer for layer in layers.values() if layer is not None)
        for node in self.source.nodes:
            layer = layers[node.outputs]
            if layer in chosen:
                self.convolution(node, chosen[layer])
            else:
                self.nodes.append(node)
        return self.written()

    def layer(self, node: Node) -> Layer | None:
        """The sizes of a dense two-dimensional convolution of a static map, else `None`."""
        if (node.domain, node.op) != ("webmlc", "Conv") or node.attributes["groups"] != 1:
            return None
        windows: Windows = node.attributes["windows"]
        sizes = [as_int(size) for size in (*windows.sizes, *self.types[node.inputs[0]].shape[1:3])]
        weights = self.constants.get(node.inputs[1])
        if weights is None or weights.dtype != np.float32 or windows.dilations != (1, 1):
            return None
        channels, outputs = weights.shape[-2], int(node.attributes["channels"])
        if None in sizes or channels % _LANES or outputs % PACK or 1 in windows.kernel:
            return None
        height, width, *_ = (size or 0 for size in sizes)
        (kh, kw), (sh, sw) = windows.kernel, windows.strides
        return Layer(channels, outputs, (height, width), (kh, kw), (sh, sw))

    def convolution(self, node: Node, forms: Forms) -> None:
        data, weights = node.inputs
        (result,) = node.outputs
        sizes = node.attributes["windows"].sizes
        source = self.padded(data, node.attributes["windows"], forms)
        planes = self.make("WinogradInput", (source,), f"{result}.planes", node, forms, sizes=sizes)
        name = f"{weights}.planes{'x'.join(str(form.tile) for form in forms)}"
        matrices = self.make("WinogradWeights", (self.whole(weights, forms),), name, node, forms)
        channels = node.attributes["channels"]
        operands, product = (planes, matrices), f"{result}.products"
        self.emit("WinogradProduct", operands, product, node.origin, "webmlc", channels=channels)
        self.make("WinogradOutput", (product,), result, node, forms, sizes=sizes)

    def make(
        self,
        op: str,
        inputs: tuple[str, ...],
        output: str,
        node: Node,
        forms: Forms,
        **attributes: Any,
    ) -> str:
        """Emit one of the transforms, once: convolutions may share a map or weights."""
        if self.is_new(output):
            self.emit(op, inputs, output, node.origin, "webmlc", forms=forms, **attributes)
        return output

    def is_new(self, value: str) -> bool:
        """True for what is yet to be written, the source's own values included."""
        return value not in self.types or value in self.source.types

    def whole(self, weights: str, forms: Forms) -> str:
        """The weights, with zeros for what is missing of their last blocks."""
        missing = [form.blocks * form.taps - form.kernel for form in forms]
        if not any(missing):
            return weights
        pads = [(0, 0), *((0, count) for count in missing), (0, 0), (0, 0)]
        name = f"{weights}.{'x'.join(map(str, missing))}"
        return self.constant(name, np.pad(self.constants[weights], pads))

    def padded(self, data: str, windows: Windows, forms: Forms) -> str:
        """The map, large enough for whole tiles: what already pads it, pads more."""
        wanted = [form.inputs(n) for form, n in zip(forms, windows.sizes, strict=True)]
        pairs = zip(wanted, self.types[data].shape[1:3], strict=True)
        missing = [max(0, (as_int(n) or 0) - (as_int(size) or 0)) for n, size in pairs]
        if not any(missing):
            return data
        pads = np.array([0, 0, 0, 0, 0, *missing, 0], np.int64)
        maker = self.makers.get(data)
        value = f"{data}.zero"
        source = data
        if maker is not None and maker.op == "Pad" and len(maker.inputs) == 3:
            source, amounts, value = maker.inputs
            pads = pads + self.constants[amounts]
        else:
            self.constant(value, np.zeros((), np.float32))
        name = f"{data}.{'x'.join(map(str, missing))}"
        if name in self.types:
            return name
        amounts = self.constant(f"{name}.amounts", pads)
        return self.emit("Pad", (source, amounts, value), name, (), mode="constant")
