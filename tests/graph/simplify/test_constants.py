"""Constants of half precision are Casts at load, or float32 for passes that read the numbers.
Constants that only sums read have no subnormal numbers; other constants keep them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.graph.graphs import module
from tests.language_models.small_models import LLAMA, write_model
from webmlc.build_options import BuildOptions
from webmlc.core.dtypes import DType
from webmlc.core.stages import ignore
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.simplify.constants import flush_subnormals, widen_constants
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.target.targets import TARGETS

HALVES = (DType.float16, DType.bfloat16)


def product(weights: np.ndarray) -> Module:
    """A product with widened weights, which a Gather reads as halves, too."""
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
        helper.make_node("Gather", ["w", "i"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["z"], to=TensorProto.FLOAT),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 5]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(weights, "w")])
    opset = helper.make_opsetid("", 20)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    return infer_shapes(normalise(read_model(model)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_casts_of_constants_are_folded(dtype: type) -> None:
    rng = np.random.default_rng(0)
    module = product(rng.standard_normal((8, 5)).astype(dtype))
    after = widen_constants(module)
    assert [node.op for node in after.main.nodes] == ["MatMul", "Gather", "Cast"]
    assert sorted(str(array.dtype) for array in after.main.constants.values()) == sorted(
        ["float32", np.dtype(dtype).name]
    )
    feeds = {"x": rng.standard_normal((3, 8)).astype(np.float32), "i": np.array([7, 1])}
    expected, results = evaluate_module(module, feeds), evaluate_module(after, feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array)
    assert widen_constants(after) is after


@pytest.mark.parametrize("type_", [Type.F16, Type.BF16])
def test_a_decoder_stores_halves(type_: Type, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    model = replace(LLAMA, types=(type_,), layers=1, width=56, hidden=1000)
    write_model(path, model)
    module = shared_graph(path, watch=ignore)

    def stored(device: str) -> list[bool]:
        """For each large matrix, if it is stored in half precision. Small ones are folded."""
        constants = kernel_module(module, TARGETS[device], ignore).main.constants.values()
        return [DType.of(a.dtype) in HALVES for a in constants if a.size >= 56 * 1000]

    assert stored("wasm") == stored("webgpu") == [True] * 3
    operators = {n.op for n in shared_graph(path, BuildOptions(quantise="int8"), ignore).main.nodes}
    assert "PackedBlockProduct" in operators
    assert "MatMul" not in operators


TINY = float(np.finfo(np.float32).tiny)  # the least normal number
BELOW = TINY / 2


def constants(text: str) -> dict[str, NDArray[np.float32]]:
    return dict(flush_subnormals(choose_layouts(module(text))).main.constants)


def test_weights_and_the_addends_of_their_products_are_flushed() -> None:
    values = constants(f"""g (float[1,1,2,2] x) => (float[1,2,2,2] y)
        <float[2,1,1,1] w = {{{BELOW}, {TINY}}}, float[2] b = {{-{BELOW}, -{TINY}}}> {{
            y = Conv(x, w, b)
        }}""")
    assert values["b"].tolist() == [0, -TINY]
    assert values["y.packed"].reshape(-1)[:2].tolist() == [0, TINY]


def test_factors_and_outputs_keep_subnormals() -> None:
    """The product of a subnormal and a large number may be large."""
    values = constants(f"""g (float[2] x) => (float[2] y, float[2] z, float[2] c)
        <float[2] a = {{{BELOW}, 1}}, float[2] b = {{{BELOW}, 2}}, float[2] c = {{{BELOW}, 3}}> {{
            y = Mul(x, a)
            s = Add(x, b)
            d = Add(s, c)
            z = Mul(d, b)
        }}""")
    assert [values[name][0] for name in "abc"] == [BELOW] * 3


WEIGHTS = f"{{{TINY}, {BELOW}, -{BELOW}, -{TINY}}}"
FLUSHED = [TINY, 0, 0, -TINY]


def test_weights_of_matrices_and_of_single_channels_are_flushed() -> None:
    matrix = constants(f"""g (float[3,2] x) => (float[3,2] y) <float[2,2] w = {WEIGHTS}> {{
            y = MatMul(x, w)
        }}""")
    assert matrix["y.packed"][0, :, :2].reshape(-1).tolist() == FLUSHED
    depthwise = constants(f"""g (float[1,2,1,4] x) => (float[1,2,1,3] y)
        <float[2,1,1,2] w = {WEIGHTS}> {{
            y = Conv <group = 2> (x, w)
        }}""")
    assert depthwise["y.packed"].transpose(2, 0, 1).reshape(-1).tolist() == FLUSHED


def test_halves_keep_their_subnormals() -> None:
    """Subnormal halves are normal numbers in float32. The text holds the bits of 2^-20 and of 1."""
    values = constants("""g (float16[3,2] x) => (float16[3,2] y) {
            b = Constant <value = float16[2] {16, 15360}> ()
            y = Add(x, b)
        }""")
    assert values["b"].tolist() == [2**-20, 1]
