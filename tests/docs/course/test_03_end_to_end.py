# mypy: disable-error-code="valid-type, name-defined, no-untyped-def, misc, type-arg, attr-defined"
# The annotations of kernels are calls, which types have no form for.
"""Solutions of the exercises of lesson 3, compared with numpy and onnxruntime."""

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime

import webmlc
from webmlc import R, T, tir

n = T.symbol("n")
rng = np.random.default_rng(3)
x = rng.standard_normal((5, 64)).astype(np.float32)
w1 = rng.standard_normal((64, 32)).astype(np.float32)
b1 = rng.standard_normal(32).astype(np.float32)
w2 = rng.standard_normal((32, 10)).astype(np.float32)
b2 = rng.standard_normal(10).astype(np.float32)
scores = np.maximum(x @ w1 + b1, 0) @ w2 + b2


@webmlc.module
class Fused:
    @T.prim_func
    def linear_relu(
        X: T.Buffer((n, 64), "float32"),
        W: T.Buffer((64, 32), "float32"),
        B: T.Buffer((32,), "float32"),
        Y: T.Buffer((n, 32), "float32"),
    ):
        sums = T.alloc_buffer((n, 32), "float32")
        for i, j, k in T.grid(n, 32, 64):
            with T.block("sums"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    sums[vi, vj] = B[vj]
                sums[vi, vj] = sums[vi, vj] + X[vi, vk] * W[vk, vj]
        for i, j in T.grid(n, 32):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(sums[vi, vj], T.float32(0))

    @T.prim_func
    def linear(
        X: T.Buffer((n, 32), "float32"),
        W: T.Buffer((32, 10), "float32"),
        B: T.Buffer((10,), "float32"),
        Y: T.Buffer((n, 10), "float32"),
    ):
        for i, j, k in T.grid(n, 10, 32):
            with T.block("Y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = B[vj]
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vk, vj]

    @R.function
    def main(
        x: R.Tensor((n, 64), "float32"),
        w1: R.Tensor((64, 32), "float32"),
        b1: R.Tensor((32,), "float32"),
        w2: R.Tensor((32, 10), "float32"),
        b2: R.Tensor((10,), "float32"),
    ):
        with R.dataflow():
            hidden = R.call_tir(Fused.linear_relu, (x, w1, b1), R.Tensor((n, 32), "float32"))
            scores = R.call_tir(Fused.linear, (hidden, w2, b2), R.Tensor((n, 10), "float32"))
            R.output(scores)
        return scores


def test_exercise_1() -> None:
    assert [node.attributes["kernel"] for node in Fused.main.nodes] == ["linear_relu", "linear"]
    (result,) = Fused.build("wasm")(x, w1, b1, w2, b2)
    np.testing.assert_allclose(result, scores, rtol=1e-4, atol=1e-4)


def test_exercise_2() -> None:
    schedule = tir.Schedule(Fused["linear_relu"])
    i, j, k = schedule.get_loops("sums")
    j0, j1 = schedule.split(j, factors=[None, 8])
    schedule.reorder(i, j0, k, j1)
    schedule.reverse_compute_at("Y", j0)
    schedule.decompose_reduction("sums", k)
    schedule.vectorize(j1)
    module = Fused.with_kernel("linear_relu", schedule.program)

    compiled = module.build("wasm")
    (result,) = compiled(x, w1, b1, w2, b2)
    np.testing.assert_allclose(result, scores, rtol=1e-4, atol=1e-4)
    code = compiled.text.partition("(func $linear_relu")[2].partition("(func $linear ")[0]
    assert "v128" in code


def test_exercise_3(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    digits (float[n, 64] x) => (float[n, 10] probabilities) {
      product = MatMul(x, w1)
      sums = Add(product, b1)
      hidden = Tanh(sums)
      product_2 = MatMul(hidden, w2)
      scores = Add(product_2, b2)
      probabilities = Softmax(scores)
    }""")
    weights = {"w1": w1, "b1": b1, "w2": w2, "b2": b2}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, name) for name, a in weights.items()
    )
    texts = {}
    webmlc.build(
        model,
        tmp_path / "package",
        target="wasm",
        on_stage=lambda stage: texts.setdefault(stage.title, stage.text()),
        cache=False,
    )
    assert texts["wasm: fuse"].count("webmlc.fused(") == 3  # Tanh joins the product before it

    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x})
    result = webmlc.load(tmp_path / "package", device="wasm").run({"x": x})["probabilities"]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
