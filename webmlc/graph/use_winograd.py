"""3x3 convolutions of stride 1 in Winograd's form, where it is faster.

In: a function after layouts. Out: the same meaning; a chosen `webmlc.Conv` is three transforms
around 36 matrix products, or 16 (`ops/winograd.py`). The weights' transform depends on constants
only: it runs once, at load, so that the package ships the small form.

    %y = webmlc.Conv(%p, %w)  ->  %v = WinogradInput(%p); %u = WinogradWeights(%w)
                                  %m = webmlc.MatMul(%v, %u); %y = WinogradOutput(%m)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const
from webmlc.core.simplify import simplify
from webmlc.graph.function_writer import FunctionRewriter
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.windows import Windows
from webmlc.graph.ops.winograd import FORMS, planes_of, tiles
from webmlc.graph.simplify_graph import remove_dead_code

_TRANSFORM_COST = 7
"""Multiply-adds that transforming one element costs as much as."""
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
    """The sizes of a convolution of one image. Layers of equal sizes share their kernels."""

    channels: int
    outputs: int
    height: int
    width: int


def saved(layer: Layer, tile: int) -> int:
    """Multiply-adds that the transforms and products of a tile's planes save of nine taps, by a
    model of both.
    """
    channels, outputs = layer.channels, layer.outputs
    down, across = (as_int(tiles(const(n), tile)) or 1 for n in (layer.height, layer.width))
    count, area = down * across, planes_of(tile) ** 2
    direct = 9 * layer.height * layer.width * channels * outputs
    products = area * (channels + _START_COST) * outputs * (count + _STREAM_COST)
    transforms = area * count * (channels + outputs) * _TRANSFORM_COST
    return direct - (products + transforms)


def best_tiles(layers: Iterable[Layer]) -> dict[Layer, int]:
    """The tile of each layer that, as often as it occurs, saves more than its kernels cost."""
    counts = Counter(layers)
    best = {layer: max(FORMS, key=lambda tile: saved(layer, tile)) for layer in counts}
    return {
        layer: tile for layer, tile in best.items() if saved(layer, tile) * counts[layer] >= SAVED
    }


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and who makes what its pads may start from."""

    def run(self) -> Function:
        layers = {node.outputs: self.layer(node) for node in self.source.nodes}
        chosen = best_tiles(layer for layer in layers.values() if layer is not None)
        for node in self.source.nodes:
            layer = layers[node.outputs]
            if layer in chosen:
                self.convolution(node, chosen[layer])
            else:
                self.nodes.append(node)
        return self.written()

    def layer(self, node: Node) -> Layer | None:
        """The sizes of a dense 3x3 convolution of stride 1 of a static map, else `None`."""
        if (node.domain, node.op) != ("webmlc", "Conv") or node.attributes["groups"] != 1:
            return None
        windows: Windows = node.attributes["windows"]
        if (windows.kernel, windows.strides, windows.dilations) != ((3, 3), (1, 1), (1, 1)):
            return None
        height, width = (as_int(size) for size in windows.sizes)
        weights = self.constants.get(node.inputs[1])
        if weights is None or weights.dtype != np.float32 or height is None or width is None:
            return None
        channels, outputs = weights.shape[-2], int(node.attributes["channels"])
        whole = channels % _LANES == 0 and outputs % PACK == 0
        return Layer(channels, outputs, height, width) if whole else None

    def convolution(self, node: Node, tile: int) -> None:
        data, weights = node.inputs
        (result,) = node.outputs
        windows: Windows = node.attributes["windows"]
        source = self.padded(data, windows, tile)
        planes = self.make("WinogradInput", (source,), f"{result}.planes", node, tile=tile)
        name = f"{weights}.planes{tile}"
        matrices = self.make("WinogradWeights", (weights,), name, node, tile=tile)
        operands = (self.flat(planes, 3, 5, node), self.flat(matrices, 2, 2, node))
        columns = const(node.attributes["channels"])
        product = self.make("MatMul", operands, f"{result}.products", node, columns=columns)
        tiled = TensorType(DType.float32, (*self.types[planes].shape[:-1], columns))
        tiles_ = self.view(product, tiled, f"{product}.tiles", node.origin)
        self.make("WinogradOutput", (tiles_,), result, node, sizes=windows.sizes, tile=tile)

    def make(
        self, op: str, inputs: tuple[str, ...], output: str, node: Node, **attributes: Any
    ) -> str:
        """Emit one of our operators, once: convolutions may share a map or weights."""
        if self.is_new(output):
            self.emit(op, inputs, output, node.origin, "webmlc", **attributes)
        return output

    def is_new(self, value: str) -> bool:
        """True for what is yet to be written, the source's own values included."""
        return value not in self.types or value in self.source.types

    def padded(self, data: str, windows: Windows, tile: int) -> str:
        """The map, large enough for whole tiles: what already pads it, pads more."""
        sizes = [as_int(size) or 0 for size in windows.sizes]
        missing = [-size % tile for size in sizes]
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

    def flat(self, value: str, first: int, last: int, node: Node) -> str:
        """A view with the two dimensions of planes as one, and dimensions `first` to `last - 1`
        as one, if there are any.
        """
        shape = self.types[value].shape
        merged: Expr = const(1)
        for dimension in shape[first:last]:
            merged = simplify(merged * dimension)
        rows = (merged,) if last > first else ()
        first_two = simplify(shape[0] * shape[1])
        known = TensorType(DType.float32, (first_two, *shape[2:first], *rows, *shape[last:]))
        output = f"{value}.flat"
        return self.view(value, known, output, node.origin) if self.is_new(output) else output
