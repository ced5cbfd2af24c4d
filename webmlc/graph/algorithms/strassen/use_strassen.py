"""Compute matrix products by Strassen's algorithm where this algorithm is faster.

In: a function after layouts. Out: the same meaning. Each chosen `webmlc.MatMul` by constant
weights, or `webmlc.Conv` of one tap, becomes seven products of half matrices (`operators.py`).

    %y = webmlc.MatMul(%x, %w)  ->  %p = StrassenInput(%x); %y = StrassenProduct(%p, %w)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.core.machine import Cpu
from webmlc.graph.algorithms.cost import DIRECT, ELEMENT_BYTES, Cost, gain, product_cost
from webmlc.graph.algorithms.strassen.operators import PRODUCTS
from webmlc.graph.builder import Value
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.operator import Context, Scope
from webmlc.graph.ops.windows import Windows
from webmlc.graph.rewrite.patterns import P, Rule, constant, value
from webmlc.graph.rewrite.rewriting import Rewriting, rewritten

PLANE_COST = 7
"""Multiply-adds that take as long as computing and writing one element of the left matrix's planes.
Chosen by hand, like `PANEL_COST` and `CODE`. Checked in Chromium with one thread on a product of
1024 x 1024 x 1024, on DeiT-tiny and on Whisper-tiny's encoder.
"""
PANEL_COST = 3
"""Multiply-adds that take as long as computing one element of the right matrix's panels, which stay
in the cache.
"""
STRASSEN = "strassen"
"""The name of the algorithm in a search."""
CODE = 8_000_000
"""Multiply-adds that all products of one shape together must save in a run. They pay for the two
thousand bytes of code of the kernels that these products share.
"""


def use_strassen(module: Module, machine: Cpu) -> Module:
    """Rewrite the products of every function that are faster by Strassen's algorithm on the
    machine.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """

    def with_products(function: Function) -> Function:
        layers = _layers(function, machine)
        chosen = worthwhile(layers.values(), machine, module.algorithms)
        results = {node.outputs[0] for node, layer in layers.items() if layer in chosen}
        product = P(_PRODUCTS, value("data"), constant("weights"), domain="webmlc")
        return rewritten(function, [Rule(product, partial(_use_strassen, results))])

    return module.map_functions(with_products)


def strassen_alternatives(module: Module, machine: Cpu) -> dict[str, tuple[str, ...]]:
    """The names of both algorithms of each product that Strassen's algorithm can compute, the
    default algorithm first.
    """
    names: dict[str, tuple[str, ...]] = {}
    for function in module.functions.values():
        layers = list(_layers(function, machine).values())
        chosen = worthwhile(layers, machine)
        for layer in layers:
            if strassen_cost(layer, machine) is not None:
                both = (STRASSEN, DIRECT) if layer in chosen else (DIRECT, STRASSEN)
                names[layer.name] = both
    return names


@dataclass(frozen=True, slots=True)
class Layer:
    """The product of a `rows` x `depth` matrix with a `depth` x `columns` matrix. The rows of a
    convolution are the pixels of an image. `readers` products read the left matrix. Equal layers
    share kernels.
    """

    rows: int
    depth: int
    columns: int
    readers: int = 1

    @property
    def name(self) -> str:
        """The name of the layer in a search: its sizes."""
        readers = f", {self.readers} readers" if self.readers > 1 else ""
        return f"product {self.rows}x{self.depth}x{self.columns}{readers}"


def direct_cost(layer: Layer, machine: Cpu) -> int:
    """The cost of the product by the direct algorithm."""
    return product_cost(machine, layer.rows, layer.depth, layer.columns)


def strassen_cost(layer: Layer, machine: Cpu) -> Cost | None:
    """The cost of seven products of half matrices, and of their planes and panels; None if the
    planes outgrow the caches.
    """
    pairs, depth, columns = -(-layer.rows // 2), layer.depth // 2, layer.columns // 2
    planes, panels = PRODUCTS * pairs * depth, PRODUCTS * depth * columns
    if planes * ELEMENT_BYTES > machine.l3_resident_bytes:
        return None
    return Cost(
        products=PRODUCTS * product_cost(machine, pairs, depth, columns),
        transforms=panels * PANEL_COST + planes * PLANE_COST // layer.readers,
    )


def worthwhile(
    layers: Iterable[Layer], machine: Cpu, algorithms: Mapping[str, str] | None = None
) -> set[Layer]:
    """The layers that save more than their kernels' code is worth. A layer counts as often as it
    occurs.

    `algorithms` names the algorithm of some layers.
    """
    chosen: set[Layer] = set()
    for layer, count in Counter(layers).items():
        cost = strassen_cost(layer, machine)
        if cost is None:
            continue
        is_faster = gain(direct_cost(layer, machine), cost, count, CODE) > 0
        default = STRASSEN if is_faster else DIRECT
        if (algorithms or {}).get(layer.name, default) == STRASSEN:
            chosen.add(layer)
    return chosen


def _layers(function: Function, machine: Cpu) -> dict[Node, Layer]:
    """The sizes of every product that Strassen's algorithm can compute."""
    scope = Scope.of(function)
    sizes = {n: size for n in function.nodes if (size := _sizes(scope.context(n), machine))}
    readers = Counter(node.inputs[0] for node in sizes)
    return {node: Layer(*size, readers[node.inputs[0]]) for node, size in sizes.items()}


def _sizes(context: Context, machine: Cpu) -> tuple[int, int, int] | None:
    """Rows, depth and columns of a product by constant weights; `None` for other nodes. The rows
    must be static, and the quarters whole vectors and panels.
    """
    node = context.node
    if not _is_product(node):
        return None
    data, weights = context.type(0), context.constant(1)
    if weights is None or weights.dtype != np.float32 or data.dtype is not DType.float32:
        return None
    lines = [as_int(d) for d in (data.shape[1:-1] if node.op == "Conv" else data.shape[-2:-1])]
    rows = math.prod(n or 0 for n in lines)
    depth, columns = weights.shape[-2], as_int(context.outputs[0].shape[-1])
    if not rows or columns is None or depth % (2 * machine.lanes) or columns % (2 * PACK):
        return None
    paired = len(lines) == 1 or (lines[-1] or 0) % 2 == 0  # no pair is of two lines
    return (rows, depth, columns) if paired else None


def _use_strassen(
    results: Set[str], data: Value, weights: Value, y: Value, rewriting: Rewriting
) -> Value | None:
    """A chosen product  ->  seven products of half matrices"""
    if y not in results:
        return None
    build, planes = y.build, f"{data}.halves"
    if rewriting.producer(planes) is None:  # products may share the planes
        build("StrassenInput", data, output=planes, domain="webmlc")
    if build.source.op == "Conv":
        matrix = weights.array.reshape(weights.array.shape[0], *weights.array.shape[-2:])
        weights = build.constant(matrix, name=f"{weights}.matrix")
    rows, columns = map(as_int, y.shape[-2:])
    return build(
        "StrassenProduct", planes, weights, output=y, domain="webmlc", rows=rows, columns=columns
    )


_PRODUCTS = ("MatMul", "Conv")
"""Operators of packed products."""


def _is_product(node: Node) -> bool:
    """True for a matrix product, and for its equal: a convolution of one tap at every pixel."""
    if node.domain != "webmlc" or node.op not in _PRODUCTS:
        return False
    if node.op == "MatMul":
        return True
    windows: Windows = node.attributes["windows"]
    return windows.are_elements and node.attributes["groups"] == 1
