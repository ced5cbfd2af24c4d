"""Attention from end to end, against onnxruntime: long rows on the CPU, and every form that becomes
one dispatch on a GPU.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import webmlc
from tests.small_models import LAYERS, speech_encoder, text_encoder
from webmlc.core.machine import Device
from webmlc.core.stages import ignore
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.target.webgpu.target import WEBGPU

pytestmark = pytest.mark.xdist_group("attention")  # one worker builds what the tests share

QUERIES, KEYS, CHANNELS = 28, 43, 12


@pytest.fixture(scope="module")
def model() -> bytes:
    node = helper.make_node
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Constant", [], ["root"], value_float=3.5),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Add", ["scaled", "mask"], ["logits"]),
        node("Softmax", ["logits"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    shapes = {
        "q": [2, 3, QUERIES, CHANNELS],
        "k": [2, 3, KEYS, CHANNELS],
        "v": [2, 3, KEYS, CHANNELS],
        "mask": [2, 1, 1, KEYS],
        "y": [2, 3, QUERIES, CHANNELS],
    }
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    graph = helper.make_graph(
        nodes, "g", [values[n] for n in ("q", "k", "v", "mask")], [values["y"]]
    )
    opset = helper.make_opsetid("", 17)
    made = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return made.SerializeToString()


@pytest.fixture(scope="module")
def package(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "model.onnx").write_bytes(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webmlc.graph.algorithms.attention.use_attention.SMALLEST", 0)
        manifest = webmlc.build(folder / "model.onnx", folder / "package", target="wasm")
    assert "attention" in [step.kernel for step in manifest.programs["wasm"].steps]
    return folder / "package"


@pytest.mark.parametrize("features", ["relaxed", "simd128"])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_onnxruntime(
    model: bytes, package: Path, features: str, threads: int
) -> None:
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((2, 3, QUERIES, CHANNELS)).astype(np.float32) for n in "q"}
    inputs |= {n: rng.standard_normal((2, 3, KEYS, CHANNELS)).astype(np.float32) for n in "kv"}
    inputs["mask"] = np.where(np.arange(KEYS) < [[[[30]]], [[[KEYS]]]], 0, -np.inf)
    inputs["mask"] = inputs["mask"].astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, inputs)
    loaded = webmlc.load(package, "wasm", threads, features)
    np.testing.assert_allclose(loaded.run(inputs)["y"], wanted, rtol=1e-5, atol=1e-6)
    loaded.dispose()


@dataclass(frozen=True)
class Form:
    """A model with one attention: a node and the shapes of its inputs, or the text of nodes."""

    shapes: dict[str, Sequence[int | str]]
    op: str = ""
    domain: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    nodes: str = ""
    dispatches: int = 1
    """How many kernels the model has: one for attention, and some for what is around it."""

    def model(self) -> onnx.ModelProto:
        """The model. Its result has three dimensions of any sizes."""
        rank = 4 if len(self.shapes["q"]) == 4 else 3
        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in self.shapes.items()
        ]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, list("abcd")[:rank])
        names = list(self.shapes)
        if self.op:
            nodes = [helper.make_node(self.op, names, ["y"], domain=self.domain, **self.attributes)]
        else:
            text = f"g () => () {{ {self.nodes} }}"
            nodes = list(parser.parse_graph(text).node)
        graph = helper.make_graph(nodes, "attention", values, [result])
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


BATCH, ROWS, HEADS, SIZE = 2, 35, 4, 8
"""Rows: two whole tiles, and a few more."""
MERGED, APART = (BATCH, ROWS, HEADS * SIZE), (BATCH, HEADS, ROWS, SIZE)
HALF = (BATCH, ROWS, HEADS // 2 * SIZE)
EXPORTED = """
h = Constant <value_ints = [0, 0, 4, 8]> () merged = Constant <value_ints = [0, 0, 32]> ()
c = Constant <value_float = 0.6> ()
qh = Reshape(q, h) qt = Transpose <perm = [0, 2, 1, 3]> (qh) qs = Mul(qt, c)
kh = Reshape(k, h) kt = Transpose <perm = [0, 2, 3, 1]> (kh) ks = Mul(kt, c)
vh = Reshape(v, h) vt = Transpose <perm = [0, 2, 1, 3]> (vh)
s = MatMul(qs, ks) l = Add(s, mask) p = Softmax <axis = -1> (l) o = MatMul(p, vt)
ot = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(ot, merged)
"""
FORMS = {
    "exported": Form(
        {"q": MERGED, "k": MERGED, "v": MERGED, "mask": (BATCH, 1, 1, ROWS)}, nodes=EXPORTED
    ),
    "exported, symbolic": Form(
        {**dict.fromkeys("qkv", ("b", "n", 32)), "mask": ("b", 1, 1, "n")}, nodes=EXPORTED
    ),
    "four dimensions": Form(dict.fromkeys("qkv", APART), "Attention"),
    "causal": Form(
        dict.fromkeys("qkv", MERGED),
        "Attention",
        attributes={"q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": 1},
    ),
    "shared heads, soft cap, mask": Form(
        {"q": MERGED, "k": HALF, "v": HALF, "mask": (ROWS, ROWS)},
        "Attention",
        attributes={"q_num_heads": HEADS, "kv_num_heads": HEADS // 2, "softcap": 2.0},
        dispatches=2,  # one finds rows of which all keys are masked
    ),
    "many rows of one batch": Form(
        {**dict.fromkeys("qkv", (1, 8, 384, 32)), "mask": (384, 384)}, "Attention", dispatches=2
    ),
    "of onnxruntime": Form(
        dict.fromkeys("qkv", MERGED), "MultiHeadAttention", "com.microsoft", {"num_heads": HEADS}
    ),
    "of onnxruntime, causal": Form(
        dict.fromkeys("qkv", MERGED),
        "MultiHeadAttention",
        "com.microsoft",
        {"num_heads": HEADS, "unidirectional": 1},
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_gpu_computes_attention_in_one_dispatch(form: Form, tmp_path: Path) -> None:
    model = form.model()
    manifest = webmlc.build(model, tmp_path / "package")
    steps = manifest.programs["webgpu"].steps
    assert len(steps) == form.dispatches
    assert all(step.device == "webgpu" for step in steps)
    devices: tuple[Device, ...] = ("webgpu", "wasm")
    for device in devices:
        _equals_onnxruntime(form, model, tmp_path / "package", device)


OPTIONAL_SECTION = re.compile(r"^ if \(section_\w+\) \{\n.*?^ \}\n", re.MULTILINE | re.DOTALL)
"""A form of a kernel that runs leave out unless their sizes need it: long rows share threads."""


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_software_adapter_computes_attention_without_barriers(form: Form, tmp_path: Path) -> None:
    model = form.model()
    manifest = webmlc.build(model, tmp_path / "package", "webgpu", adapter="software")
    assert len(manifest.programs["webgpu"].steps) > form.dispatches
    for shaders in manifest.programs["webgpu"].shaders.values():
        text = zlib.decompress((tmp_path / "package" / shaders).read_bytes()).decode()
        assert "Barrier" not in OPTIONAL_SECTION.sub("", text)
    _equals_onnxruntime(form, model, tmp_path / "package", "webgpu")


def _equals_onnxruntime(form: Form, model: onnx.ModelProto, package: Path, device: Device) -> None:
    """Run a form with random inputs, of which a mask hides the last keys."""
    rng = np.random.default_rng(5)
    sizes = {"b": BATCH, "n": ROWS}
    inputs = {
        name: rng.standard_normal([sizes.get(s, s) for s in shape]).astype(np.float32)
        for name, shape in form.shapes.items()
    }
    if "mask" in inputs:
        inputs["mask"][..., -5:] = -np.inf
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    result = webmlc.load(package, device=device).run(inputs)["y"]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6, err_msg=device)


def test_packed_halves_are_no_plain_keys(tmp_path: Path) -> None:
    """Keys that are constant halves are packed, and widened at load."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float16[n,32] q, float16[64,32] v) => (float16[n,32] y) {
            h = MatMul(q, keys) s = Softmax <axis = -1> (h) y = MatMul(s, v)
        }"""
    )
    rng = np.random.default_rng(0)
    keys, v, q = (
        rng.standard_normal(shape).astype(np.float16) for shape in ((32, 64), (64, 32), (7, 32))
    )
    model.graph.initializer.append(numpy_helper.from_array(keys, "keys"))
    inputs = {"q": q, "v": v}
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    webmlc.build(model, tmp_path, "webgpu")
    loaded = webmlc.load(tmp_path, "webgpu")
    np.testing.assert_allclose(loaded.run(inputs)["y"], want, atol=4e-3, rtol=0)
    loaded.dispose()


@pytest.mark.parametrize("make", [text_encoder, speech_encoder], ids=lambda make: make.__name__)
def test_a_layer_of_an_encoder_takes_nine_dispatches(make: Callable[[], Any]) -> None:
    """Six products, which compute sums and activations, too; attention; two normalisations."""
    module = kernel_module(shared_graph(make()[0], watch=ignore), WEBGPU, ignore)
    calls = [node for node in module.main.nodes if node.op == "call_kernel"]
    places = [p for p, node in enumerate(calls) if node.attributes["kernel"] == "attention"]
    assert len(places) == LAYERS
    assert [b - a for a, b in pairwise(places)] == [9] * (LAYERS - 1)
