"""3x3 convolutions of stride 1 in Winograd's form, where it is faster.

In: a function after layouts. Out: the same meaning; a chosen `webmlc.Conv` is three transforms
around 36 matrix products (`ops/winograd.py`). The weights' transform depends on constants only: it
runs once, at load, so that the package ships the small form.

    %y = webmlc.Conv(%p, %w)  ->  %v = WinogradInput(%p); %u = WinogradWeights(%w)
                                  %m = webmlc.MatMul(%v, %u); %y = WinogradOutput(%m)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const
from webmlc.core.simplify import simplify
from webmlc.graph.ir import Array, Function, Module, Node, TensorType, producers
from webmlc.graph.meaning import infer_node
from webmlc.graph.ops.operator import array_type
from webmlc.graph.ops.windows import Windows
from webmlc.graph.ops.winograd import PLANES, TILE, tiles
from webmlc.graph.simplify_graph import remove_dead_code

_AREA = PLANES * PLANES
_TRANSFORM_COST = 7
"""Multiply-adds that transforming one element costs as much as."""
_STREAM_COST = 12
"""Multiply-adds in the time that one transformed weight takes to arrive from memory: with fewer
tiles, the products wait for their weights.
"""
_START_COST = 4
"""Steps of a product's inner loop that beginning and ending one take."""
_LANES = 4
"""Channels that the transforms take at once."""
SAVED = 30_000_000
"""Multiply-adds that Winograd's form must save at least: its kernels are about 15 KB of code."""


def use_winograd(module: Module) -> Module:
    """Rewrite the convolutions of `main`.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    main = remove_dead_code(_Rewrite(module.main).run())
    return replace(module, functions={**module.functions, "main": main})


def is_worthwhile(channels: int, outputs: int, height: int, width: int) -> bool:
    """True where the transforms and 36 products are faster than nine taps, by a model of both."""
    count = (as_int(tiles(const(height))) or 1) * (as_int(tiles(const(width))) or 1)
    direct = 9 * height * width * channels * outputs
    products = _AREA * (channels + _START_COST) * outputs * max(count, _STREAM_COST)
    transforms = _AREA * count * (channels + outputs) * _TRANSFORM_COST
    return direct - (products + transforms) >= SAVED


@dataclass(slots=True)
class _Rewrite:
    """The function being written."""

    source: Function
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    makers: dict[str, Node] = field(default_factory=dict)

    def run(self) -> Function:
        self.types.update(self.source.types)
        self.constants.update(self.source.constants)
        self.makers = producers(self.source)
        for node in self.source.nodes:
            if self.is_chosen(node):
                self.convolution(node)
            else:
                self.nodes.append(node)
        return replace(
            self.source, nodes=tuple(self.nodes), types=self.types, constants=self.constants
        )

    def is_chosen(self, node: Node) -> bool:
        """True for a dense 3x3 convolution of stride 1 over enough channels of a static map."""
        if (node.domain, node.op) != ("webmlc", "Conv") or node.attributes["groups"] != 1:
            return False
        windows: Windows = node.attributes["windows"]
        height, width = (as_int(size) for size in windows.sizes)
        if (windows.kernel, windows.strides, windows.dilations) != ((3, 3), (1, 1), (1, 1)):
            return False
        weights = self.constants.get(node.inputs[1])
        if weights is None or weights.dtype != np.float32 or height is None or width is None:
            return False
        channels, outputs = weights.shape[-2], int(node.attributes["channels"])
        whole = channels % _LANES == 0 and outputs % weights.shape[-1] == 0
        return whole and is_worthwhile(channels, outputs, height, width)

    def convolution(self, node: Node) -> None:
        data, weights = node.inputs
        (result,) = node.outputs
        windows: Windows = node.attributes["windows"]
        planes = self.emit("WinogradInput", (self.padded(data, windows),), f"{result}.planes", node)
        matrices = self.emit("WinogradWeights", (weights,), f"{weights}.planes", node)
        rows = self.flat(planes, 2, 5, node)
        panels = self.flat(matrices, 2, 2, node)
        columns = const(node.attributes["channels"])
        product = self.emit(
            "MatMul", (rows, panels), f"{result}.products", node, {"columns": columns}
        )
        tiled = (*self.types[planes].shape[:-1], columns)
        self.view(product, tiled, f"{product}.tiles", node)
        self.emit("WinogradOutput", (f"{product}.tiles",), result, node, {"sizes": windows.sizes})

    def padded(self, data: str, windows: Windows) -> str:
        """The map, large enough for whole tiles: what already pads it, pads more."""
        sizes = [as_int(size) or 0 for size in windows.sizes]
        missing = [-size % TILE for size in sizes]
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
        self.constant(f"{name}.amounts", pads)
        node = Node("Pad", (source, f"{name}.amounts", value), (name,), {"mode": "constant"})
        return self.append(node)

    def constant(self, name: str, array: Array) -> None:
        self.constants[name] = array
        self.types[name] = array_type(array)

    def flat(self, value: str, first: int, last: int, node: Node) -> str:
        """A view with the two dimensions of planes as one, and dimensions `first` to `last - 1`
        as one, if there are any.
        """
        shape = self.types[value].shape
        merged: Expr = const(1)
        for dimension in shape[first:last]:
            merged = simplify(merged * dimension)
        rows = (merged,) if last > first else ()
        return self.view(value, (const(_AREA), *rows, *shape[last:]), f"{value}.flat", node)

    def view(self, value: str, shape: tuple[Expr, ...], output: str, node: Node) -> str:
        self.types[output] = TensorType(DType.float32, shape)
        self.nodes.append(
            Node("View", (value,), (output,), {"shape": shape}, "webmlc", node.origin)
        )
        return output

    def emit(
        self,
        op: str,
        inputs: tuple[str, ...],
        output: str,
        node: Node,
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        return self.append(Node(op, inputs, (output,), attributes or {}, "webmlc", node.origin))

    def append(self, node: Node) -> str:
        """Add a node whose output type is inferred, once."""
        (output,) = node.outputs
        if output not in self.types or output in self.source.types:
            (self.types[output],) = infer_node(node, self.types, self.constants)
            self.nodes.append(node)
        return output
