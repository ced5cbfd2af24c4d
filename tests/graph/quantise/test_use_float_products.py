"""Products of float32 data and block-quantised weights, against those of quantised data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.graph.quantise.test_join_products import DEPTH, products, records
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.ir import Module
from webmlc.graph.ops.block_quantised import BlockQuantised
from webmlc.graph.quantise.join_products import join_products
from webmlc.graph.quantise.use_float_products import use_float_products


def rewritten(module: Module, weights: list[BlockQuantised]) -> Counter[str]:
    """Rewrite, compare with the matrices of the weights, and count the nodes of each operator."""
    after = use_float_products(module)
    data = np.random.default_rng(0).normal(size=(3, DEPTH)).astype(np.float32)
    results = evaluate_module(after, {"x": data}).values()
    for result, record in zip(results, weights, strict=True):
        scores = data @ record.floats().T
        expected = np.exp(scores - scores.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(result, expected, rtol=2e-4, atol=1e-6)
    return Counter(node.op for node in after.main.nodes)


@pytest.mark.parametrize("minimums", ["any", "none", "middle"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_take_floats(bits: int, minimums: str) -> None:
    weights = records(12, bits=bits, minimums=minimums)
    counts = rewritten(products(weights), weights)
    assert (counts["FloatBlockProduct"], counts["QuantiseBlocks"]) == (1, 0)


def test_slices_that_reductions_read_stay_slices() -> None:
    weights = records(16, 8)
    counts = rewritten(join_products(products(weights)), weights)
    assert (counts["FloatBlockProduct"], counts["Slice"]) == (1, 2)


def test_slices_that_maps_read_become_products_of_one_kernel() -> None:
    weights = [records(16)[0], records(32)[0]]
    weights[1] = BlockQuantised(
        weights[1].values[:16], 4, 32, weights[1].scales[:16], weights[1].minimums[:16]
    )
    module = join_products(products(weights))
    gate, up = (next(n for n in module.main.nodes if o in n.outputs).inputs[0]
                for o in module.main.outputs)  # fmt: skip
    softmax = next(n for n in module.main.nodes if n.op == "Softmax")
    product = replace(softmax, op="Mul", inputs=(gate, up), attributes={}, outputs=("y",))
    nodes = (*(n for n in module.main.nodes if n.op != "Softmax"), product)
    types = {**module.main.types, "y": module.main.types[gate]}
    main = replace(module.main, nodes=nodes, outputs=("y",), types=types)
    before = replace(module, functions={"main": main})
    after = use_float_products(before)
    counts = Counter(node.op for node in after.main.nodes)
    assert (counts["FloatBlockProduct"], counts["Slice"]) == (2, 0)
    starts = [n.attributes["first"] for n in after.main.nodes if n.op == "FloatBlockProduct"]
    assert starts == [0, 16]
    data = np.random.default_rng(0).normal(size=(3, DEPTH)).astype(np.float32)
    (result,) = evaluate_module(after, {"x": data}).values()
    first, second = (data @ record.floats().T for record in weights)
    np.testing.assert_allclose(result, first * second, rtol=1e-4, atol=1e-3)
    assert len(fuse(after, FusionLimits(joins_operands=True)).main.nodes) == 1
    assert len(fuse(after, FusionLimits()).main.nodes) == 2
