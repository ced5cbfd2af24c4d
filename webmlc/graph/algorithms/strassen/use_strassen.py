"""Matrix products by Strassen's algorithm, where it is faster.

In: a function after layouts. Out: the same meaning; a chosen `webmlc.MatMul` by constant weights,
or `webmlc.Conv` of one tap, is seven products of half matrices (`ops/strassen.py`).

    %y = webmlc.MatMul(%x, %w)  ->  %p = StrassenInput(%x); %y = StrassenProduct(%p, %w)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.algorithms.strassen.operators import PRODUCTS
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.windows import Windows
from webmlc.graph.rewrite.function_writer import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code

_START_COST = 4
"""Steps of a product's inner loop that beginning and ending one take."""
_PLANE_COST = 7
"""Multiply-adds that making an element of the left matrix's planes takes as long as."""
_PANEL_COST = 3
"""The same of the right matrix's, which are read where they are made."""
_CACHED = 2_000_000
"""Elements of planes that the third-level cache keeps: every pair of panels reads all of them."""
_LANES = 4
"""Columns of the left matrix that the transform takes at once."""
CODE = 8_000_000
"""Multiply-adds that all products of one shape, which share their kernels, must save: it is some
two thousand bytes of code.
"""


def use_strassen(module: Module) -> Module:
    """Rewrite the products of every function.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    functions = {n: remove_dead_code(_Rewrite(f).run()) for n, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(frozen=True, slots=True)
class Layer:
    """A product of a matrix of `rows` (pixels of an image) by `depth`, which `readers` products
    read, with one of `columns`. Equal layers share their kernels.
    """

    rows: int
    depth: int
    columns: int
    readers: int = 1


def saved(layer: Layer) -> int:
    """Multiply-adds that seven products of half matrices save, by a model of what is around them:
    an element of a plane takes as long as some.
    """
    pairs, depth, columns = -(-layer.rows // 2), layer.depth // 2, layer.columns // 2
    planes = PRODUCTS * pairs * depth
    if planes > _CACHED:
        return 0
    direct = layer.rows * layer.columns * (layer.depth + _START_COST)
    products = PRODUCTS * pairs * columns * (depth + _START_COST)
    panels = PRODUCTS * depth * columns * _PANEL_COST
    return direct - products - panels - planes * _PLANE_COST // layer.readers


def worthwhile(layers: Iterable[Layer]) -> set[Layer]:
    """The layers that, as often as they occur, save more than their kernels' code is worth."""
    return {layer for layer, count in Counter(layers).items() if count * saved(layer) > CODE}


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written."""

    def run(self) -> Function:
        layers = self.layers()
        chosen = worthwhile(layers.values())
        for node in self.source.nodes:
            if layers.get(node) in chosen:
                self.product(node)
            else:
                self.keep(node)
        return self.written()

    def layers(self) -> dict[Node, Layer]:
        """The sizes of every product that fits."""
        sizes = {node: size for node in self.source.nodes if (size := self.sizes(node))}
        readers = Counter(node.inputs[0] for node in sizes)
        return {node: Layer(*size, readers[node.inputs[0]]) for node, size in sizes.items()}

    def sizes(self, node: Node) -> tuple[int, int, int] | None:
        """Rows, depth and columns of a product by constant weights, of static rows, whose quarters
        are whole vectors and panels; `None` for others.
        """
        if not _is_product(node):
            return None
        data, weights = self.types[node.inputs[0]], self.constants.get(node.inputs[1])
        if weights is None or weights.dtype != np.float32 or data.dtype is not DType.float32:
            return None
        lines = [as_int(d) for d in (data.shape[1:-1] if node.op == "Conv" else data.shape[-2:-1])]
        rows = math.prod(n or 0 for n in lines)
        depth, columns = weights.shape[-2], as_int(self.types[node.outputs[0]].shape[-1])
        if not rows or columns is None or depth % (2 * _LANES) or columns % (2 * PACK):
            return None
        paired = len(lines) == 1 or (lines[-1] or 0) % 2 == 0  # no pair is of two lines
        return (rows, depth, columns) if paired else None

    def product(self, node: Node) -> None:
        data, weights = node.inputs
        build = Builder(node, self)
        planes = f"{data}.halves"
        if self.is_new(planes):  # products may share it
            build("StrassenInput", data, output=planes, domain="webmlc")
        if node.op == "Conv":
            array = self.constants[weights]
            matrix = array.reshape(array.shape[0], *array.shape[-2:])
            weights = build.constant(matrix, name=f"{weights}.matrix")
        rows, columns = map(as_int, self.types[node.outputs[0]].shape[-2:])
        shape = {"rows": rows, "columns": columns}
        output = node.outputs[0]
        build("StrassenProduct", planes, weights, output=output, domain="webmlc", **shape)


def _is_product(node: Node) -> bool:
    """True of a matrix product, and of a convolution that is one: of one tap at every pixel."""
    if node.domain != "webmlc" or node.op not in ("MatMul", "Conv"):
        return False
    if node.op == "MatMul":
        return True
    windows: Windows = node.attributes["windows"]
    return windows.are_elements and node.attributes["groups"] == 1
