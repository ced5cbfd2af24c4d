"""Matrix products by Strassen's algorithm, where it is faster.

In: a function after layouts. Out: the same meaning; a chosen `webmlc.MatMul` by constant weights is
seven products of half matrices (`ops/strassen.py`).

    %y = webmlc.MatMul(%x, %w)  ->  %p = StrassenInput(%x); %y = StrassenProduct(%p, %w)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.function_writer import FunctionRewriter
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.strassen import PRODUCTS
from webmlc.graph.simplify_graph import remove_dead_code

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
CODE = 3_500_000
"""Multiply-adds that all products of one shape, which share their kernels, must save: it is a
thousand bytes of code.
"""


def use_strassen(module: Module) -> Module:
    """Rewrite the products of every function.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    functions = {n: remove_dead_code(_Rewrite(f).run()) for n, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(frozen=True, slots=True)
class Layer:
    """A product of a matrix of `rows` by `depth`, which `readers` products read, with one of
    `columns`. Equal layers share their kernels.
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
                self.nodes.append(node)
        return self.written()

    def layers(self) -> dict[Node, Layer]:
        """The sizes of every product of static rows whose quarters are whole vectors and panels."""
        fitting = [node for node in self.source.nodes if self.fits(node)]
        readers = Counter(node.inputs[0] for node in fitting)
        return {node: Layer(*self.sizes(node), readers[node.inputs[0]]) for node in fitting}

    def fits(self, node: Node) -> bool:
        """True for such a product."""
        if (node.domain, node.op) != ("webmlc", "MatMul"):
            return False
        data, weights = self.types[node.inputs[0]], self.constants.get(node.inputs[1])
        if weights is None or weights.dtype != np.float32 or data.dtype is not DType.float32:
            return False
        if data.rank < 2 or as_int(data.shape[-2]) is None:
            return False
        _, depth, columns = self.sizes(node)
        return depth % (2 * _LANES) == 0 and columns % (2 * PACK) == 0

    def sizes(self, node: Node) -> tuple[int, int, int]:
        """Rows, depth and columns of a product by constant weights."""
        rows, columns = map(as_int, self.types[node.outputs[0]].shape[-2:])
        assert rows is not None and columns is not None
        return rows, self.constants[node.inputs[1]].shape[-2], columns

    def product(self, node: Node) -> None:
        data, weights = node.inputs
        planes = f"{data}.halves"
        if self.is_new(planes):  # products may share it
            self.emit("StrassenInput", (data,), planes, node.origin, "webmlc")
        rows, _, columns = self.sizes(node)
        shape = {"rows": rows, "columns": columns}
        operands = (planes, weights)
        self.emit("StrassenProduct", operands, node.outputs[0], node.origin, "webmlc", **shape)
