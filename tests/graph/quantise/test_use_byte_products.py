"""Products of bytes as dot products of words: when they are used, and that results are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.against_onnxruntime import parse
from webmlc.core.dtypes import DType
from webmlc.core.machine import DOT, PAIRS, RELAXED, SIMD128, Features, Machine
from webmlc.frontend.read_model import read_model
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.ops.layout import ByteOperator, ByteProduct
from webmlc.graph.quantise import use_byte_products as graph_pass
from webmlc.host.load import load
from webmlc.loops.kernel_form import CPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.pipeline import build
from webmlc.schedule.analysis import multiplies_bytes
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import print_function

MAPS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def product(
    op: str, dtype: str, shape: tuple[int, ...], weights: tuple[int, ...], **attributes: object
) -> Module:
    """A quantised product with a zero point, after layouts."""
    w = np.random.default_rng(0).integers(-128, 128, weights).astype(np.int8)
    inputs = [("x", MAPS[dtype], shape)]
    values = [helper.make_tensor_value_info(*value) for value in inputs]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "zero"], ["y"], **attributes)],
        "g",
        values,
        [
            helper.make_tensor_value_info(
                "y", TensorProto.INT32, [f"d{n}" for n in range(len(shape))]
            )
        ],
        [
            numpy_helper.from_array(w, "w"),
            numpy_helper.from_array(np.array(3, dtype), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return choose_layouts(infer_shapes(normalise(read_model(model))))


def use_byte_products(module: Module, operator: ByteOperator = "dot_u8_i8") -> Module:
    """The pass, for a CPU if not told otherwise."""
    return graph_pass.use_byte_products(module, operator)


def operators(module: Module) -> list[str]:
    return [node.op for node in module.main.nodes if node.domain == "webmlc"]


@pytest.mark.parametrize("operator", ["dot_u8_i8", "dot_i8"])
@pytest.mark.parametrize("dtype", MAPS)
@pytest.mark.parametrize(
    ("op", "shape", "weights", "attributes"),
    [
        ("ConvInteger", (1, 8, 5, 6), (16, 8, 3, 3), {"pads": (1,) * 4}),
        ("ConvInteger", (2, 3, 7, 6), (12, 3, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1)}),
        ("ConvInteger", (1, 6, 4, 4), (9, 6, 1, 1), {}),
        ("ConvInteger", (1, 16, 4, 4), (8, 8, 3, 3), {"group": 2}),
        ("ConvInteger", (2, 1, 9, 12), (16, 1, 3, 8), {"pads": (1, 2, 1, 5)}),
        ("ConvInteger", (1, 1, 7, 9), (9, 1, 3, 3), {"strides": (2, 2), "pads": (1,) * 4}),
        ("ConvInteger", (1, 2, 5, 8), (8, 2, 2, 5), {}),
        ("ConvInteger", (1, 2, 5, 8), (8, 2, 2, 2), {"dilations": (1, 2)}),
        ("ConvInteger", (2, 1, 20), (8, 1, 7), {"strides": (3,)}),
        ("ConvInteger", (2, 6, 7, 6), (6, 1, 3, 3), {"group": 6, "pads": (1,) * 4}),
        ("ConvInteger", (1, 5, 9, 9), (5, 1, 5, 3), {"group": 5, "strides": (2, 2)}),
        ("ConvInteger", (1, 4, 9, 9), (4, 1, 4, 4), {"group": 4, "dilations": (2, 1)}),
        ("ConvInteger", (2, 8, 12), (8, 1, 7), {"group": 8, "pads": (3, 3)}),
        ("ConvInteger", (1, 4, 3, 5, 6), (4, 1, 2, 3, 3), {"group": 4}),
        ("MatMulInteger", (3, 12), (12, 10), {}),
        ("MatMulInteger", (2, 3, 7), (7, 8), {}),
    ],
)
def test_products_of_words_equal_products_of_bytes(
    op, shape, weights, attributes, dtype, operator
) -> None:
    before = product(op, dtype, shape, weights, **attributes)
    after = use_byte_products(before, operator)
    if operator == "dot_i8" and "DepthwiseConv" in operators(before):
        assert operators(after) == operators(before)
        return
    assert ("PackBytes" in operators(after)) == ("DepthwiseConv" in operators(after))
    of_words = ByteProduct(DType(dtype), operator)
    assert any(node.attributes.get("bytes") == of_words for node in after.main.nodes)
    limits = np.iinfo(dtype)
    x = np.random.default_rng(1).integers(limits.min, limits.max + 1, shape).astype(dtype)
    (want,) = evaluate_module(before, {"x": x}).values()
    (got,) = evaluate_module(after, {"x": x}).values()
    np.testing.assert_array_equal(got, want)


def test_existing_padding_fills_the_words_of_a_feature_map() -> None:
    graph = use_byte_products(
        product("ConvInteger", "uint8", (1, 3, 7, 6), (8, 3, 3, 3), pads=[1] * 4)
    )
    (pad,) = [node for node in graph.main.nodes if node.op == "Pad"]
    assert graph.main.constants[pad.inputs[1]].tolist() == [0, 1, 1, 0, 0, 1, 1, 1]


def test_taps_of_a_line_become_channels() -> None:
    """A window of 8 x 3 taps over one channel becomes one of 2 x 3 over a word. Its taps are four
    pixels apart.
    """
    graph = use_byte_products(
        product("ConvInteger", "uint8", (1, 1, 7, 12), (8, 1, 3, 8), pads=[1, 3, 1, 4])
    )
    (convolution,) = [node for node in graph.main.nodes if node.op == "Conv"]
    windows = convolution.attributes["windows"]
    assert (windows.kernel, windows.dilations) == ((3, 2), (1, 4))
    assert graph.main.types[convolution.inputs[0]].static_shape == (1, 9, 16, 1)


def test_groups_that_split_words_and_few_outputs_are_not_replaced() -> None:
    grouped = product("ConvInteger", "uint8", (1, 12, 4, 4), (8, 6, 3, 3), group=2)
    few = product("ConvInteger", "uint8", (1, 6, 4, 4), (4, 6, 1, 1))
    for graph in (grouped, few):
        nodes = use_byte_products(graph).main.nodes
        assert not any("bytes" in node.attributes for node in nodes)


CONVOLUTION = product("ConvInteger", "uint8", (1, 64, 6, 4), (16, 64, 1, 1))


def inner_loop(machine: Machine, features: Features, module: Module = CONVOLUTION) -> str:
    """The innermost loop of the WAT of a product, by default of a pointwise convolution."""
    graph = use_byte_products(module)
    kernels = lower_module(fuse(graph, FusionLimits()), CPU_FORM).kernels
    (kernel,) = [k for k in kernels.values() if multiplies_bytes(k)]
    scheduled = schedule_kernel(name_dimensions(kernel).function, machine).function
    text = print_function(lower(scheduled, machine), features).text
    end = text.index("(br_if")
    return text[text.rindex("(loop", 0, end) : end]


def test_an_exact_dot_product_takes_one_instruction_per_accumulator() -> None:
    loop = inner_loop(DOT, "dot")
    assert loop.count("i32x4.relaxed_dot_i8x16_i7x16_add_s") == 12
    assert loop.count("v128.load32_splat") == 6
    assert loop.count("v128.load ") == 2
    assert "i32.mul" not in loop and "i32x4.add" not in loop


@pytest.mark.parametrize(
    ("machine", "features", "rows", "vectors"),
    [(RELAXED, "relaxed", 6, 2), (SIMD128, "simd128", 2, 4)],
)
def test_an_inexact_dot_product_takes_two_instructions_on_halves(
    machine, features, rows, vectors
) -> None:
    """Each word is unpacked once: those of the feature map for all vectors, those of the weights
    for all rows.
    """
    loop = inner_loop(machine, features)
    assert loop.count("i32x4.dot_i16x8_s") == rows * vectors * 2
    assert loop.count("v128.load32_splat") == rows
    assert loop.count("i16x8.shr_u") == rows
    assert loop.count("i16x8.shl") == vectors
    assert "relaxed" not in loop and "i32x4.mul" not in loop


def test_a_single_row_is_summed_in_pairs_without_an_exact_dot_product() -> None:
    """Eight words of 16 columns: two parts of four bits for each of the 32 vectors of weights."""
    loop = inner_loop(PAIRS, "pairs", product("MatMulInteger", "uint8", (1, 256), (256, 32)))
    assert loop.count("i16x8.relaxed_dot_i8x16_i7x16_s") == 2 * 32
    assert loop.count("(v128.load ") == 32
    assert loop.count("i32x4.dot_i16x8_s") == 2 * 4
    assert "i16x8.shl" not in loop


@pytest.mark.parametrize("rows", ["1", "n"])
@pytest.mark.parametrize("depth", [12, 256, 260])
def test_sums_in_pairs_are_exact(rows: str, depth: int, tmp_path: Path) -> None:
    """At the ends of both ranges, where sums of 16 bits are largest, and on random bytes."""
    generator = np.random.default_rng(depth)
    w = generator.integers(-128, 128, (depth, 40)).astype(np.int8)
    w[:, :8], w[:, 8:16] = -128, 127
    text = f"g (uint8[{rows}, {depth}] x) => (int32[{rows}, 40] y) {{ y = MatMulInteger (x, w) }}"
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    build(model, tmp_path, "wasm")
    counts = (1,) if rows == "1" else (1, 4, 7)
    for features in ("pairs", "relaxed", "simd128"):
        loaded = load(tmp_path, "wasm", features=features)
        for count in counts:
            for x in (np.full((count, depth), 255), generator.integers(0, 256, (count, depth))):
                (got,) = loaded.run({"x": x.astype(np.uint8)}).values()
                np.testing.assert_array_equal(got, x @ w.astype(np.int64))
