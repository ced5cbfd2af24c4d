"""Products and rows of block-quantised weights, against float64 on both devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc.pipeline
from tests.schedule.rules import kernels
from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Var
from webmlc.core.machine import PAIRS, RELAXED, Features
from webmlc.core.stages import watcher
from webmlc.graph.builder import Builder, Expansion
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.graph.ops.block_quantised import BlockQuantised, block_gather, block_product
from webmlc.host.load import load
from webmlc.pipeline import build, shared_graph
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import print_function

Array = np.ndarray[Any, Any]
VARIANTS: tuple[Features, ...] = ("pairs", "relaxed", "simd128")
FORMS = [(2, 16), (4, 16), (4, 32), (4, 128), (8, 32), (8, 64)]
"""Bits and block sizes of weights."""


def weights(
    bits: int, block: int, columns: int, depth: int, minimums: str = "any"
) -> tuple[BlockQuantised, Array]:
    """Random weights, and their matrix in float64. `minimums` are "any", "none" or "middle", which
    makes the values symmetric.
    """
    generator = np.random.default_rng(bits * block + columns)
    low, high = (-127, 128) if bits == 8 else (0, 1 << bits)
    values = generator.integers(low, high, (columns, depth))
    scales = generator.uniform(0.01, 0.1, (columns, depth // block)).astype(np.float32)
    offsets = {
        "any": generator.uniform(-1, 1, scales.shape).astype(np.float32),
        "none": None,
        "middle": -np.float32(1 << (bits - 1)) * scales,
    }[minimums]
    matrix = np.repeat(scales.astype(np.float64), block, 1) * values
    if offsets is not None:
        matrix += np.repeat(offsets, block, 1)
    stored = values.astype(np.int8 if bits == 8 else np.uint8)
    return BlockQuantised(stored, bits, block, scales, offsets), matrix


def quantised(data: Array, block: int) -> Array:
    """The data after each block is rounded to int8, as float64."""
    blocks = data.astype(np.float64).reshape(*data.shape[:-1], -1, block)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    rounded: Array = np.rint(blocks / np.where(scale > 0, scale, 1)) * scale
    return rounded.reshape(data.shape)


def product(record: BlockQuantised, exact: int = 0, epilogue: bool = False) -> Module:
    """A module that multiplies `x` of any number of rows by the weights. With `epilogue`, the
    product is an operand of x · sigmoid(x).
    """
    expansion = Expansion()
    build = Builder(Node("", (), ("product",)), expansion)
    result = block_product(build, "x", record)
    if exact:
        (node,) = expansion.nodes
        expansion.nodes[0] = Node(
            node.op, node.inputs, node.outputs, {**node.attributes, "exact": 1}, node.domain
        )
    if epilogue:
        result = build("Mul", result, build("Sigmoid", result))
    type_ = TensorType(DType.float32, (Var("m"), Const(record.values.shape[1])))
    return module(expansion, "x", type_, result)


def module(expansion: Expansion, name: str, type_: TensorType, result: str) -> Module:
    """A module of one input and one output."""
    nodes, constants = tuple(expansion.nodes), expansion.constants
    main = Function("main", (name,), (result,), nodes, {name: type_}, constants)
    return Module("blocks", {"main": main}, opsets={"": 17, "webmlc": 1})


def evaluate(model: Module, name: str, array: Array) -> Array:
    """The output of a module, node by node."""
    (output,) = evaluate_module(infer_shapes(normalise(model)), {name: array}).values()
    return output


def assert_close(got: Array, wanted: Array) -> None:
    """Check results up to rounding in float32."""
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(("bits", "block"), FORMS)
@pytest.mark.parametrize("minimums", ["any", "none", "middle"])
def test_products_of_quantised_and_of_exact_data(bits: int, block: int, minimums: str) -> None:
    record, matrix = weights(bits, block, 13, 2 * block, minimums)
    x = np.random.default_rng(1).standard_normal((3, 2 * block)).astype(np.float32)
    x[1, :block] = 0
    assert_close(evaluate(product(record), "x", x), quantised(x, block) @ matrix.T)
    assert_close(evaluate(product(record, exact=1), "x", x), x.astype(np.float64) @ matrix.T)


@pytest.mark.parametrize(("bits", "block"), FORMS)
def test_gathered_rows_are_dequantised(bits: int, block: int) -> None:
    record, matrix = weights(bits, block, 13, 2 * block)
    expansion = Expansion()
    rows = block_gather(Builder(Node("", (), ("rows",)), expansion), "i", record)
    model = module(expansion, "i", TensorType(DType.int64, (Const(2), Const(2))), rows)
    indices = np.array([[12, 0], [7, 8]])
    assert_close(evaluate(model, "i", indices), matrix[indices])


def test_symmetric_values_need_no_minimums() -> None:
    record, _ = weights(4, 32, 8, 64, "middle")
    (node,) = product(record).main.nodes
    assert node.attributes["excess"] == 8
    assert len(node.inputs) == 3


def test_a_product_and_a_gather_share_their_weights() -> None:
    record, _ = weights(8, 32, 8, 64, "none")
    expansion = Expansion()
    build = Builder(Node("", (), ("y",)), expansion)
    result = block_product(build, block_gather(build, "i", record), record)
    model = module(expansion, "i", TensorType(DType.int64, (Const(2),)), result)
    assert sorted(stored_types(model)) == ["float32", "int32"]


def test_scales_are_stored_in_half_precision_where_that_is_exact() -> None:
    record, _ = weights(4, 32, 1024, 128)
    halves = record.scales.astype(np.float16).astype(np.float32)
    model = product(BlockQuantised(record.values, 4, 32, halves, record.minimums))
    assert sorted(stored_types(model)) == ["float16", "float32", "int32"]


def stored_types(model: Module) -> list[str]:
    """The element types of the constants of a package."""
    with no_frontend():
        graph = shared_graph(model, watch=watcher(None))  # type: ignore[arg-type]
    return [str(array.dtype) for array in graph.main.constants.values()]


@contextmanager
def no_frontend() -> Iterator[None]:
    """Let the compiler take modules for models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webmlc.pipeline, "read_model", lambda source, *_: source)
        yield


CASES = {
    "4 bits": (4, 32, 192, 576, "any", 0, True),
    "8 bits": (8, 32, 27, 64, "none", 0, False),
    "exact": (4, 16, 24, 32, "any", 1, False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_packages_multiply_any_number_of_rows(case: Any, tmp_path: Path) -> None:
    bits, block, columns, depth, minimums, exact, epilogue = case
    record, matrix = weights(bits, block, columns, depth, minimums)
    folder = tmp_path / "package"
    with no_frontend():
        build(product(record, exact, epilogue), folder)  # type: ignore[arg-type]
    models = {f: load(folder, "wasm", features=f) for f in VARIANTS if has_variant(folder, f)}
    models |= {"webgpu": load(folder, "webgpu")}
    for rows in (1, 2, 5, 64):
        x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)
        for name, loaded in models.items():
            is_float = exact or name == "webgpu"  # a GPU does not quantise activations
            wanted = (x.astype(np.float64) if is_float else quantised(x, block)) @ matrix.T
            if epilogue:
                wanted = wanted / (1 + np.exp(-wanted))
            (got,) = loaded.run({"x": x}).values()
            assert np.abs(got - wanted).max() <= 2e-6 * np.abs(wanted).max(), (name, rows)


def has_variant(folder: Path, features: str) -> bool:
    return (folder / f"model.{features}.wasm").is_file()


@pytest.mark.parametrize(("bits", "block"), [(2, 64), (4, 32), (4, 128)])
def test_pairs_of_the_largest_products_do_not_overflow(
    bits: int, block: int, tmp_path: Path
) -> None:
    columns, depth = 8, 2 * block
    values = np.full((columns, depth), (1 << bits) - 1, np.uint8)
    record = BlockQuantised(values, bits, block, np.ones((columns, 2), np.float32))
    with no_frontend():
        build(product(record), tmp_path, "wasm")  # type: ignore[arg-type]
    x = np.repeat(np.array([[1.0], [-1.0]], np.float32), depth, 1)
    for features in VARIANTS:
        (got,) = load(tmp_path, "wasm", features=features).run({"x": x}).values()
        wanted = x[:, :columns] * float(values[0].sum())
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def loop_around(text: str, instruction: str) -> str:
    """The text of the innermost loop of an instruction."""
    place = text.index(instruction)
    return text[text.rindex("(loop", 0, place) : text.index("(br_if", place)]


def test_pairs_are_widened_once_a_block() -> None:
    scheduled = schedule_kernel(kernels.block_product(4, 16, 18), PAIRS).function
    text = print_function(lower(scheduled, PAIRS), "pairs").text
    loop = loop_around(text, "i16x8.relaxed_dot_i8x16_i7x16_s")
    assert loop.count("i16x8.relaxed_dot_i8x16_i7x16_s") == 16 * 4
    assert loop.count("i32x4.dot_i16x8_s") == 2 * 4


@pytest.mark.parametrize(("rows", "height"), [(1, 1), (4, 4)])
def test_products_of_a_block_stay_in_registers(rows: int, height: int) -> None:
    """A panel of 4 bits has 8 vectors of weights in a block, and each is loaded once."""
    scheduled = schedule_kernel(kernels.block_product(rows, 16, 18), RELAXED).function
    text = print_function(lower(scheduled, RELAXED), "relaxed").text
    loop = loop_around(text, "i32x4.relaxed_dot_i8x16_i7x16_add_s")
    assert loop.count("i32x4.relaxed_dot_i8x16_i7x16_add_s") == 16 * height
    assert loop.count("(v128.load ") == 8 + 4  # the weights, and the scales and minimums
    assert loop.count("i32x4.shr_s") == 8
    assert "store" not in loop and "call" not in loop


def test_scales_of_a_panel_are_fetched_before_its_values() -> None:
    """18 blocks of a panel have 9 lines of scales and 9 of minimums, in float32."""
    scheduled = schedule_kernel(kernels.block_product(1, 16, 18), RELAXED)
    prefetches = [name for name in scheduled.blocks() if name.endswith("_prefetch")]
    assert len(prefetches) == 2
    text = print_function(lower(scheduled.function, RELAXED), "relaxed").text
    assert text.rindex("_line (f32.load") < text.index("i32x4.relaxed_dot_i8x16_i7x16")
    assert text.count("_line (f32.load") == 2 * 3  # in loops of three iterations
