"""Malformed models: one clear error of the user's, never a traceback; exit code 2.

Valid models are damaged at random (`mutate_model`); what is still valid compiles.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frontend.mutate_model import mutate
from webmlc.build_options import BuildOptions
from webmlc.core.errors import UnsupportedError, UserError
from webmlc.pipeline import compile_model

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
MODELS = {
    "convolution": """g (float[1,3,8,8] x) => (float[a,b] y)
        <float[4,3,3,3] w, float[4] b, int64[2] s = {1, -1}> {
        c = Conv <pads: ints = [1,1,1,1], strides: ints = [2,2]> (x, w, b)
        r = Relu (c)
        p = MaxPool <kernel_shape: ints = [2,2]> (r)
        y = Reshape (p, s) }""",
    "dense layer": """g (float[n,4] x, int64[n] i) => (float[n,3] y, float[n,4] e)
        <float[4,3] w, float[5,4] t> {
        h = MatMul (x, w)
        y = Softmax <axis: int = 1> (h)
        e = Gather <axis: int = 0> (t, i) }""",
    "control flow": """g (float[2] x, int64 n, bool c) => (float[2] y, float[2] z) {
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool l, float[2] t) {
            l = Identity (k) t = Add (s, s) }>
        z = If (c) <then_branch = t () => (float[2] o) { o = Neg (x) },
                    else_branch = e () => (float[2] o) { o = Abs (x) }> }""",
    "shapes": """g (float[n,3,4] x) => (float[a,b] y, float[c,d,e] z)
        <int64[1] k = {2}, int64[1] one = {-1}> {
        s = Shape (x)
        t = Gather (s, k)
        u = Concat <axis: int = 0> (t, one)
        y = Reshape (x, u)
        z, w = TopK <axis: int = 1> (x, k) }""",
    "quantised": """g (float[2,6] x) => (float[2,3] y)
        <float s = {0.1}, uint8 z = {128}, int8[6,3] w, int8 v = {0}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        f = DequantizeLinear (w, s, v)
        m = MatMul (d, f)
        y = Clip (m, s) }""",
}


def small_model(name: str) -> onnx.ModelProto:
    """A valid model; the weights that its text only declares are zero."""
    model = onnx.parser.parse_model(HEADER + MODELS[name])
    for info in model.graph.value_info:
        tensor = info.type.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        zeros = onnx.numpy_helper.from_array(np.zeros(shape, dtype), info.name)
        model.graph.initializer.append(zeros)
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize("name", MODELS)
def test_valid_before(name: str) -> None:
    compile_model(small_model(name), BuildOptions("wasm"))


@pytest.mark.parametrize("name", MODELS)
def test_damage_is_a_clear_error(name: str, tmp_path: Path) -> None:
    valid, path = small_model(name), tmp_path / "model.onnx"

    @settings(
        max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        path.write_bytes(mutate(valid, random.Random(seed)).SerializeToString())
        try:
            compile_model(path, BuildOptions("wasm"))
        except UserError as error:
            assert str(error).strip()

    check()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("a = QuantizeLinear (v, blocks)", "axis 1 is outside a tensor of rank 1"),
        ("a = QuantizeLinear (t, blocks)", "parameters of rank 2 for a tensor of 3"),
        ("a = QuantizeLinear (m, two)", "scales of float32[2] for axis 1 of float32[2, 6]"),
        ("a = QuantizeLinear <axis: int = 0> (m, blocks)",
         "an operand of shape [2, 2] does not broadcast to [2, 6]"),
        ("a = QuantizeLinear <block_size: int = 2> (m, blocks)",
         "scales of float32[2, 2] for axis 1 of float32[2, 6]"),
        ("a = DequantizeLinear (q, two)", "scales of float32[2] for axis 1 of int8[2, 6]"),
        ("a = Clip (v, m)", "an operand of shape [2, 6] does not broadcast to [6]"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit(node: str, message: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[6] v, float[2,6] m, float[1,2,6] t, int8[2,6] q) => (float[b,c] y)
        <float[2] two = {{1, 1}}, float[2,2] blocks = {{1, 1, 1, 1}}> {{
        {node}
        y = Cast <to: int = 1> (a) }}""")
    with pytest.raises(UnsupportedError) as caught:
        compile_model(model, BuildOptions("wasm"))
    assert [n.reason for n in caught.value.nodes] == [message]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("y = MatMul (x, w)", "input 0 is float32, input 1 is float64"),
        ("y = Gemm (x, x, v)", "input 0 is float32, input 2 is float64"),
        ("y = Where (b, x, w)", "input 1 is float32, input 2 is float64"),
        ("y = Concat <axis: int = 0> (x, x, w)", "input 0 is float32, input 2 is float64"),
        ("y = LayerNormalization (x, v)", "input 0 is float32, input 1 is float64"),
        ("y = Max (w, w, x)", "input 0 is float64, input 2 is float32"),
    ],
)
def test_types_that_must_be_one(node: str, message: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[4,4] x, double[4,4] w, double[4] v, bool[4,4] b) => (float[n,m] y) {{ {node} }}""")
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.checker.check_model(model, full_check=True)
    with pytest.raises(UnsupportedError) as caught:
        compile_model(model, BuildOptions("wasm"))
    expected = f"{message}; they must be of one type: cast one of them"
    assert [n.reason for n in caught.value.nodes] == [expected]


def test_types_that_may_differ() -> None:
    """Where the schema has a variable for each: an exponent, scales of quantisation."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (double[4,4] x, float[4,4] w, float16 s, int8[4] q) => (double[n,m] y, float16[n] z) {
        y = Pow (x, w) z = DequantizeLinear (q, s) }""")
    onnx.checker.check_model(model, full_check=True)
    compile_model(model, BuildOptions("wasm"))
