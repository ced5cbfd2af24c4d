"""The whole way: models built, run on both devices, and compared with onnxruntime."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import webmlc
from webmlc.build_options import BuildOptions
from webmlc.core.errors import UnsupportedError, UserError
from webmlc.host.load import Model
from webmlc.package.manifest_json import read_manifest
from webmlc.pipeline import compile_model

pytestmark = pytest.mark.xdist_group("compile")  # one worker builds what the tests share

DIGITS = Path(__file__).parents[1] / "demos" / "digits" / "digits.onnx"
SHAPE_NAMES = ["batch", 1, 8, 8]


@pytest.fixture(scope="module", autouse=True)
def runtime_folder() -> Iterator[None]:
    """Vulkan loaders want a runtime folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits classifier, built for both devices."""
    folder = tmp_path_factory.mktemp("digits") / "package"
    webmlc.build(DIGITS, folder, target="both")
    return folder


def expected(model: Path | onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:  # type: ignore[type-arg]
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def close(actual: np.ndarray, wanted: np.ndarray) -> bool:  # type: ignore[type-arg]
    scale = np.abs(wanted).max()
    return actual.shape == wanted.shape and bool(np.abs(actual - wanted).max() <= 1e-4 * scale)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_one_package_runs_any_batch(digits: Path, device: str) -> None:
    model: Model = webmlc.load(digits, device)  # type: ignore[arg-type]
    (port,) = model.inputs
    for batch in (1, 3, 8, 1):
        x = np.random.default_rng(batch).uniform(0, 1, (batch, 1, 8, 8)).astype(np.float32)
        (actual,) = model.run({port.name: x}).values()
        (wanted,) = expected(DIGITS, {port.name: x})
        assert close(actual, wanted)
    model.dispose()


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_variants_and_threads_agree(digits: Path, features: str, threads: int) -> None:
    model: Model = webmlc.load(digits, "wasm", threads, features)  # type: ignore[arg-type]
    (port,) = model.inputs
    x = np.random.default_rng(0).uniform(0, 1, (5, 1, 8, 8)).astype(np.float32)
    (actual,) = model.run({port.name: x}).values()
    assert close(actual, expected(DIGITS, {port.name: x})[0])
    model.dispose()


def test_same_model_same_bytes(digits: Path, tmp_path: Path) -> None:
    webmlc.build(DIGITS, tmp_path / "again", target="both")
    names = sorted(p.name for p in digits.iterdir())
    assert names == sorted(p.name for p in (tmp_path / "again").iterdir())
    for name in names:
        assert (digits / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def convolutions() -> onnx.ModelProto:
    """Convolutions of every kind (padded, strided, grouped, depthwise, dilated), a pool, a skip."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape)
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], group=12, pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c", "low", "high"], ["d"]),
        helper.make_node("Conv", ["d", "w2"], ["e"], group=3, dilations=[2, 2], pads=[2, 2, 2, 2]),
        helper.make_node("Add", ["e", "b"], ["f"]),
        helper.make_node("MaxPool", ["f"], ["g"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("AveragePool", ["f"], ["h"], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("GlobalAveragePool", ["g"], ["i"]),
        helper.make_node("Mul", ["g", "i"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 17, 19])],
        [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, ["n", "c", f"{name}_height", f"{name}_width"]
            )
            for name in ("y", "h")
        ],
        [
            weight("w0", 12, 3, 3, 3),
            weight("b0", 12),
            weight("w1", 12, 1, 3, 3),
            weight("w2", 12, 4, 3, 3),
            numpy_helper.from_array(np.float32(-1), "low"),
            numpy_helper.from_array(np.float32(1), "high"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_convolutions(device: str, tmp_path: Path) -> None:
    model = convolutions()
    manifest = webmlc.build(model, tmp_path, target=device)  # type: ignore[arg-type]
    loaded: Model = webmlc.load(tmp_path, device, 2)  # type: ignore[arg-type]
    for batch in (1, 2):
        x = np.random.default_rng(batch).normal(size=(batch, 3, 17, 19)).astype(np.float32)
        for actual, wanted in zip(
            loaded.run({"x": x}).values(), expected(model, {"x": x}), strict=True
        ):
            assert close(actual, wanted)
    loaded.dispose()
    assert all(step.device == device for step in manifest.programs[device].steps)  # type: ignore[index]


def test_a_maximum_over_a_window_is_one_instruction_a_tap() -> None:
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, size, size])
        for name, size in (("x", 6), ("y", 4))
    ]
    graph = helper.make_graph([pool], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    text = compile_model(model, BuildOptions("wasm", emit_text=True)).texts["model.relaxed.wat"]
    assert text.count("f32x4.pmax") == 4 * 2 * 9 and "f32x4.max" not in text


def test_every_unsupported_node_is_named_at_once(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Mystery", ["x"], ["a"], name="first", domain="org.example"),
            helper.make_node("Relu", ["a"], ["b"], name="fine"),
            helper.make_node("Riddle", ["b"], ["y"], name="second", domain="org.example"),
        ],
        "unknown",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(UnsupportedError) as raised:
        webmlc.build(model, tmp_path)
    assert [n.node for n in raised.value.nodes] == ["first", "second"]
    assert "CONTRIBUTING" in str(raised.value)


def test_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose wasm, webgpu or both"):
        webmlc.build(DIGITS, tmp_path, target="cuda")  # type: ignore[arg-type]


def test_manifest_states_exact_resources(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    manifest = webmlc.build(model, tmp_path, target="wasm")
    program = manifest.programs["wasm"]
    assert read_manifest(tmp_path) == manifest
    assert program.resources.memory is not None
    assert program.resources.arena["wasm"] is not None
    loaded = webmlc.load(tmp_path, "wasm")  # the host asserts the stated figures
    (port,) = loaded.inputs
    loaded.run({port.name: np.zeros((4, 1, 8, 8), np.float32)})
    loaded.dispose()
