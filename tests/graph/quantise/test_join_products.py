"""Products of one left operand that become one product, against the module without the pass."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.graph.ops.test_block_quantised import weights
from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Var
from webmlc.graph.builder import Builder, Expansion
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.graph.ops.block_quantised import BlockQuantised, block_product
from webmlc.graph.quantise.join_products import join_products
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph

DEPTH = 64
ROWS = Var("rows")


def products(
    records: list[BlockQuantised], heads: int = 0, biases: tuple[int, ...] = (), shared: bool = True
) -> Module:
    """A module that multiplies `x` by each of the matrices. The products numbered in `biases` have
    a sum with a vector. With `heads`, the columns are viewed as heads of that size.
    """
    expansion = Expansion()
    build = Builder(Node("", (), ("product",)), expansion)
    outputs = []
    for number, record in enumerate(records):
        data = "x" if shared else build("Mul", "x", build.constant(np.float32(number + 1)))
        value = block_product(build, data, record)
        if number in biases:
            bias = np.arange(len(record.values), dtype=np.float32)
            value = build("Add", value, build.constant(bias))
        if heads:
            value = build("Reshape", value, build.constant([0, -1, heads]))
        outputs.append(build("Softmax", value))
    types = {"x": TensorType(DType.float32, (ROWS, Const(DEPTH)))}
    nodes, constants = tuple(expansion.nodes), expansion.constants
    main = Function("main", ("x",), tuple(outputs), nodes, types, constants)
    module = infer_shapes(normalise(Module("m", {"main": main}, opsets={"": 22, "webmlc": 1})))
    return simplify_graph(fold_constants(module))


def joined(module: Module) -> Counter[str]:
    """Join, compare with the module before, and return how many nodes of each operator result."""
    after = join_products(module)
    data = np.random.default_rng(0).normal(size=(3, DEPTH)).astype(np.float32)
    for name, expected in evaluate_module(module, {"x": data}).items():
        np.testing.assert_allclose(evaluate_module(after, {"x": data})[name], expected, rtol=1e-6)
    return Counter(node.op for node in after.main.nodes)


def records(*columns: int, bits: int = 4, minimums: str = "any") -> list[BlockQuantised]:
    return [weights(bits, 32, n, DEPTH, minimums)[0] for n in columns]


def test_views_become_slices_of_heads() -> None:
    counts = joined(products(records(48, 16, 32), heads=8))
    assert (counts["PackedBlockProduct"], counts["Reshape"], counts["Slice"]) == (1, 1, 3)


def test_sums_with_vectors_are_joined() -> None:
    counts = joined(products(records(48, 16), heads=8, biases=(0, 1)))
    assert (counts["PackedBlockProduct"], counts["Add"], counts["Reshape"]) == (1, 1, 1)


def test_a_product_without_a_sum_leaves_the_other_sums() -> None:
    counts = joined(products(records(48, 16), heads=8, biases=(1,)))
    assert (counts["PackedBlockProduct"], counts["Add"], counts["Reshape"]) == (1, 1, 2)


def test_only_the_last_matrix_may_end_within_a_panel() -> None:
    counts = joined(products(records(12, 16, 20)))
    assert (counts["PackedBlockProduct"], counts["Slice"]) == (2, 2)


def test_other_forms_stay_apart() -> None:
    mixed = [*records(16, 8), *records(16, 8, bits=8), *records(24, 32, minimums="middle")]
    assert joined(products(mixed))["PackedBlockProduct"] == 3


def test_other_operands_stay_apart() -> None:
    assert joined(products(records(16, 8), shared=False))["PackedBlockProduct"] == 2
