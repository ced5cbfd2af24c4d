"""Models with operators of people's own, on both devices, fused as our own rows are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from webmlc import operator, te
from webmlc.core.errors import UnsupportedError, UserError
from webmlc.core.machine import Device
from webmlc.graph.compute import Tensor
from webmlc.graph.table import OPS, Installed, with_rows

TARGETS: tuple[Device, ...] = ("wasm", "webgpu")
DOMAIN = "com.example"
Array = np.ndarray[Any, Any]


@operator(DOMAIN, "Smear")
def smear(x: Tensor, *, width: int = 3) -> Tensor:
    n, m = x.shape
    k = te.reduce_axis((0, width), name="k")
    return te.compute((n, m), lambda i, j: te.sum(x[i, te.min(j + k, m - 1)], axis=k), name="smear")


@operator(DOMAIN, "Bend")
def bend(x: Tensor, *, slope: float = 0.5) -> Tensor:
    return te.compute(x.shape, lambda *i: te.if_then_else(x[i] > 1.0, x[i], slope * x[i]), "bend")


@operator(DOMAIN, "Extremes")
def extremes(x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    n, m = x.shape
    k, r = te.reduce_axis((0, m), name="k"), te.reduce_axis((0, m), name="k")
    shift = 0.0 if bias is None else bias[0]
    low = te.compute((n,), lambda i: te.min(x[i, k], axis=k), name="low")
    high = te.compute((n,), lambda i: te.max(x[i, r] + shift, axis=r), name="high")
    return low, high


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: list[str],
    constants: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "custom", infos, results, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def custom(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain=DOMAIN, **attributes)


def run(
    model: onnx.ModelProto, folder: Path, target: Device, feeds: dict[str, Array], *operators: Any
) -> Any:
    webmlc.build(model, folder, target, operators=operators, progress=False)
    loaded = webmlc.load(folder, device=target)
    try:
        return loaded.run(feeds), loaded
    finally:
        loaded.dispose()


def smeared(x: Array, width: int) -> Array:
    columns = np.minimum(np.arange(x.shape[1])[:, None] + np.arange(width), x.shape[1] - 1)
    return x[:, columns].sum(-1)


@pytest.mark.parametrize("target", TARGETS)
def test_an_operator_with_an_attribute_and_symbolic_rows(target: Device, tmp_path: Path) -> None:
    nodes = [custom("Smear", ["x"], ["s"], width=4), helper.make_node("Relu", ["s"], ["y"])]
    model = model_of(nodes, {"x": ["n", 7]}, ["y"])
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    outputs, _ = run(model, tmp_path, target, {"x": x}, smear)
    np.testing.assert_allclose(outputs["y"], np.maximum(smeared(x, 4), 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_several_outputs_and_an_omitted_input(target: Device, tmp_path: Path) -> None:
    nodes = [
        custom("Extremes", ["x"], ["low", "high"]),
        custom("Extremes", ["x", "b"], ["", "higher"]),
    ]
    model = model_of(nodes, {"x": [3, 6], "b": [1]}, ["low", "high", "higher"])
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    outputs, _ = run(model, tmp_path, target, {"x": x, "b": np.float32([2])}, extremes)
    np.testing.assert_allclose(outputs["low"], x.min(1))
    np.testing.assert_allclose(outputs["high"], x.max(1))
    np.testing.assert_allclose(outputs["higher"], x.max(1) + 2, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_an_operator_between_convolutions_is_fused_as_our_own(
    target: Device, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    constants = {
        "v": 0.2 * rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "w": 0.2 * rng.standard_normal((4, 8, 3, 3)).astype(np.float32),
    }
    x = rng.standard_normal((1, 3, 12, 12)).astype(np.float32)

    def model(middle: onnx.NodeProto) -> onnx.ModelProto:
        first = helper.make_node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1])
        last = helper.make_node("Conv", ["b", "w"], ["y"], pads=[1, 1, 1, 1])
        return model_of([first, middle, last], {"x": [1, 3, 12, 12]}, ["y"], constants)

    own = model(custom("Bend", ["a"], ["b"], slope=0.25))
    theirs = model(helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.25))
    outputs, loaded = run(own, tmp_path / "own", target, {"x": x}, bend)
    _, other = run(theirs, tmp_path / "theirs", target, {"x": x})
    assert len(loaded.program.steps) == len(other.program.steps)
    from onnx.reference import ReferenceEvaluator

    (a,) = ReferenceEvaluator(model_of([own.graph.node[0]], {"x": [1, 3, 12, 12]}, ["a"], {
        "v": constants["v"]})).run(None, {"x": x})  # fmt: skip
    b = np.where(a > 1, a, 0.25 * a)
    (y,) = ReferenceEvaluator(model_of([own.graph.node[2]], {"b": [1, 8, 12, 12]}, ["y"], {
        "w": constants["w"]})).run(None, {"b": b})  # fmt: skip
    np.testing.assert_allclose(outputs["y"], y, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_an_elementwise_operator_has_a_gradient(target: Device, tmp_path: Path) -> None:
    gradient = helper.make_node(
        "Gradient", ["x"], ["dx"], domain="ai.onnx.preview.training", xs=["x"], y="y"
    )
    nodes = [helper.make_node("Mul", ["x", "x"], ["s"]), custom("Bend", ["s"], ["y"]), gradient]
    model = model_of(nodes, {"x": [5]}, ["y", "dx"])
    model.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    x = np.float32([-2, -0.5, 0.25, 0.9, 3])
    outputs, _ = run(model, tmp_path, target, {"x": x}, bend)
    np.testing.assert_allclose(outputs["dx"], np.where(x * x > 1, 2 * x, x), rtol=1e-5)


def test_builds_at_once_share_the_row_of_an_operator() -> None:
    key = DOMAIN, "Smear"
    with with_rows([smear.row]):
        with with_rows([smear.row]):
            assert OPS[key] is smear.row
        assert OPS[key] is smear.row
        with (
            pytest.raises(UserError, match="is defined twice"),
            with_rows([operator(DOMAIN, "Smear")(lambda x: x).row]),
        ):
            pass
        assert OPS[key] is smear.row
    assert key not in OPS


def test_a_build_may_replace_an_installed_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed operator that is elementwise has a gradient, too."""
    rows = {(DOMAIN, "Bend"): Installed(bend.row, {})}
    monkeypatch.setattr("webmlc.graph.table.installed_rows", lambda: rows)

    @operator(DOMAIN, "Bend")
    def steep(x: Tensor, *, slope: float = 3.0) -> Tensor:
        return te.compute(x.shape, lambda i: x[i] * slope, "steep")

    domain = "ai.onnx.preview.training"
    gradient = helper.make_node("Gradient", ["x"], ["dx"], domain=domain, xs=["x"], y="y")
    model = model_of([custom("Bend", ["x"], ["y"]), gradient], {"x": [1]}, ["y", "dx"])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    x = {"x": np.float32([0.5])}
    try:
        for operators, slope in (((), 0.5), ((steep,), 3), ((), 0.5)):
            outputs, _ = run(model, tmp_path, "wasm", x, *operators)
            assert (outputs["y"][0], outputs["dx"][0]) == (slope / 2, slope)
    finally:
        with with_rows([bend.row]):  # takes the installed row out of the table
            pass


def test_an_operator_returns_tensors(tmp_path: Path) -> None:
    wrong = operator(DOMAIN, "Smear")(lambda x: 3)
    model = model_of([custom("Smear", ["x"], ["y"])], {"x": [4, 4]}, ["y"])
    with pytest.raises(UnsupportedError, match="returns 3, no tensor"):
        webmlc.build(model, tmp_path, operators=[wrong], progress=False)


def test_kinds_follow_from_the_functions() -> None:
    kinds = {o.row.name: o.row.kind for o in (smear, bend, extremes)}
    assert kinds == {"Smear": "reduction", "Bend": "elementwise", "Extremes": "opaque"}


def test_a_model_without_its_operator_says_what_to_do(tmp_path: Path) -> None:
    model = model_of([custom("Smear", ["x"], ["y"])], {"x": [4, 4]}, ["y"])
    with pytest.raises(UnsupportedError, match=r"com\.example\.Smear.*webmlc\.operator"):
        webmlc.build(model, tmp_path, progress=False)
    assert (DOMAIN, "Smear") not in OPS


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (custom("Smear", ["x", "x"], ["y"]), "input 1, 'x', is not supported"),
        (custom("Needs", ["x"], ["y"]), "the attribute size is missing"),
        (custom("Fails", ["x"], ["y"]), "its function raises ZeroDivisionError"),
    ],
)
def test_a_node_that_its_function_refuses(
    node: onnx.NodeProto, message: str, tmp_path: Path
) -> None:
    @operator(DOMAIN, "Needs")
    def needs(x: Tensor, *, size: int) -> Tensor:
        return te.compute((size,), lambda i: x[i, 0], name="needs")

    @operator(DOMAIN, "Fails")
    def fails(x: Tensor) -> Tensor:
        return te.compute((1 // 0,), lambda i: x[i, 0], name="fails")

    model = model_of([node], {"x": [4, 4]}, ["y"])
    with pytest.raises(UnsupportedError, match=message):
        webmlc.build(model, tmp_path, operators=[smear, needs, fails], progress=False)


def test_what_cannot_be_an_operator() -> None:
    with pytest.raises(UserError, match="choose one of your own"):
        operator("com.microsoft", "Gelu")
    with pytest.raises(UserError, match="is neither an input nor an attribute"):
        operator(DOMAIN, "All")(lambda *xs: xs[0])
    with pytest.raises(UserError, match="has no input"):
        operator(DOMAIN, "None")(lambda: None)
