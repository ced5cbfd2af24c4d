"""Solutions of the exercises of lesson 8, compared with numpy."""

from pathlib import Path

import numpy as np
import onnx.parser

import webmlc
from webmlc import te
from webmlc.host.load import Model

rng = np.random.default_rng(8)
HEAD = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.preview.training" : 1, "my.course" : 1]>'


def compiled(text: str, folder: Path, **options: object) -> Model:
    webmlc.build(onnx.parser.parse_model(text), folder, target="wasm", **options)
    return webmlc.load(folder, device="wasm")


def test_exercise_1() -> None:
    W = te.placeholder((6, 4), "float32", name="W")
    DY = te.placeholder((20, 4), "float32", name="DY")
    j = te.reduce_axis((0, 4), name="j")
    DX = te.compute((20, 6), lambda i, k: te.sum(DY[i, j] * W[k, j], axis=j), name="DX")
    kernel = webmlc.compile(te.create_prim_func([W, DY, DX], "backward"))

    x, w = rng.standard_normal((20, 6)), rng.standard_normal((6, 4))
    dx = np.empty((20, 6), np.float32)
    kernel(w.astype(np.float32), (2 * (x @ w)).astype(np.float32), dx)

    differences = np.zeros_like(x)
    for position in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[position] = 1e-5
        errors = [float((((x + s) @ w) ** 2).sum()) for s in (step, -step)]
        differences[position] = (errors[0] - errors[1]) / 2e-5
    np.testing.assert_allclose(dx, differences, rtol=1e-3, atol=1e-3)


def test_exercise_2(tmp_path: Path) -> None:
    alpha, rate = 0.9, 0.05
    model = compiled(
        f"""{HEAD}
    step (float[32, 3] x, float[32, 2] target, float[3, 2] w, float[3, 2] v, float rate, int64 t)
      => (float[3, 2] new_w, float[3, 2] new_v) {{
      y = MatMul(x, w)
      difference = Sub(y, target)
      square = Mul(difference, difference)
      loss = ReduceMean <keepdims = 0> (square)
      d_w = ai.onnx.preview.training.Gradient <xs = ["w"], y = "loss"> (w)
      new_w, new_v = ai.onnx.preview.training.Momentum
        <alpha = {alpha}, beta = 1.0, mode = "standard", norm_coefficient = 0.0>
        (rate, t, w, d_w, v)
    }}""",
        tmp_path / "momentum",
    )
    x = rng.standard_normal((32, 3)).astype(np.float32)
    rule = rng.standard_normal((3, 2)).astype(np.float32)
    target = x @ rule
    w = v = np.zeros((3, 2), np.float32)
    expected_w = expected_v = np.zeros((3, 2))
    for t in range(60):
        feeds = {"x": x, "target": target, "w": w, "v": v}
        result = model.run(feeds | {"rate": np.float32(rate), "t": np.int64(t)})
        w, v = result["new_w"], result["new_v"]
        d_w = 2 * x.T @ (x @ expected_w - target) / target.size
        expected_v = alpha * expected_v + d_w
        expected_w = expected_w - rate * expected_v
        np.testing.assert_allclose(w, expected_w, rtol=1e-3, atol=1e-4)
    assert np.abs(w - rule).max() < np.abs(rule).max() / 4  # it learns the rule


def test_exercise_3(tmp_path: Path) -> None:
    @webmlc.operator("my.course", "Softsign")
    def softsign(x: te.Tensor) -> te.Tensor:
        (n,) = x.shape
        return te.compute((n,), lambda i: x[i] / (1.0 + te.abs(x[i])), name="y")

    model = compiled(
        f"""{HEAD}
    derivative (float[n] x) => (float[n] y, float[n] d_x) {{
      y = my.course.Softsign(x)
      d_x = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
    }}""",
        tmp_path / "softsign",
        operators=[softsign],
    )
    x = rng.standard_normal(50).astype(np.float32)
    result = model.run({"x": x})
    np.testing.assert_allclose(result["y"], x / (1 + np.abs(x)), rtol=1e-5)
    np.testing.assert_allclose(result["d_x"], 1 / (1 + np.abs(x)) ** 2, rtol=1e-5)
