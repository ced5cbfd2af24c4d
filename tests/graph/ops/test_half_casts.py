"""Casts to halves round exactly, and operators with steps see the rounded halves: one model of
float32 inputs on both devices, against `onnx.reference`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import webmlc

pytestmark = pytest.mark.xdist_group("half_casts")  # one worker builds what the tests share

Device = Literal["wasm", "webgpu"]

TO_FLOAT16 = {
    "there and back": "r = Cast <to = 1> (h)",
    "overflow of a product": "p = Mul (h, h) r = Cast <to = 1> (p)",
    "floor": "f = Floor (h) r = Cast <to = 1> (f)",
    "floor of a sum": "s = Add (h, h) t = Add (s, h) f = Floor (t) r = Cast <to = 1> (f)",
    "round": "f = Round (h) r = Cast <to = 1> (f)",
    "comparison": "c = CastLike (y, h) r = Greater (h, c)",
    "equality": "c = CastLike (y, h) r = Equal (h, c)",
    "comparison of sums": "c = CastLike (y, h) s = Add (h, h) t = Add (c, c) r = Less (s, t)",
    "infinity": "d = Add (h, h) r = IsInf (d)",
    "largest of a row": "r = ArgMax <axis = 1> (h)",
    "largest sum of a row": "c = CastLike (y, h) s = Add (h, c) r = ArgMax <axis = 1> (s)",
    "integer": "b = IsNaN (h) k = Where (b, low, h) l = Clip (k, low, high) r = Cast <to=6> (l)",
    "moved": "m = Transpose (h) n = Reshape (m, flat) r = Cast <to = 1> (n)",
    "part of a concatenation": "c = CastLike (y, h) m = Concat <axis=0> (h, c) r = Cast <to=1> (m)",
    "choice": "c = CastLike (y, h) b = Greater (x, y) m = Where (b, h, c) r = Cast <to = 1> (m)",
    "output": "r = Identity (h)",
    "bfloat16": "b = Cast <to = 16> (h) r = Cast <to = 1> (b)",
    "byte float": "b = Cast <to = 17> (h) r = Cast <to = 1> (b)",
    "constant": "c = Cast <to = 10> (third) d = Cast <to = 1> (c) r = Mul (x, d)",
    "outer value": "r = If (yes) <then_branch = g () => (float[n, m] t) { t = Cast <to = 1> (h) },"
    " else_branch = e () => (float[n, m] u) { u = Neg (x) }>",
    "cast in a branch": "r = If (yes) <then_branch = g () => (float[n, m] t) "
    "{ k = Cast <to = 10> (x) t = Cast <to = 1> (k) },"
    " else_branch = e () => (float[n, m] u) { u = Neg (x) }>",
    "double": "w = Cast <to = 11> (x) k = Cast <to = 10> (w) r = Cast <to = 1> (k)",
    "softmax": "f = Cast <to = 1> (h) l = Clip (f, tiny, big) r = Softmax <axis = 1> (l)",
}
"""Nodes that compute `r` from the float32 inputs `x` and `y`, and from `h`, the float16 of `x`."""


def model(nodes: str) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    agraph (float[n, m] x, float[n, m] y, bool yes) => (float[n, m] r) <float third = {{0.3333333}},
        float16 low = {{-9000}}, float16 high = {{9000}}, int64[1] flat = {{-1}},
        float tiny = {{-40}}, float big = {{40}}>
    {{ h = Cast <to = 10> (x) {nodes} }}"""
    return onnx.parser.parse_model(text)


def joined() -> onnx.ModelProto:
    """Every entry of the table in one model, with names of its own."""
    whole = None
    for number, nodes in enumerate(TO_FLOAT16.values()):
        part = model(nodes)
        graph = onnx.compose.add_prefix_graph(part.graph, f"n{number}_")
        if whole is None:
            whole = onnx.ModelProto()
            whole.CopyFrom(part)
            whole.graph.CopyFrom(graph)
        else:
            for field in ("node", "output", "initializer"):
                getattr(whole.graph, field).extend(getattr(graph, field))
        for name in ("x", "y", "yes"):
            whole.graph.node.append(
                onnx.helper.make_node("Identity", [name], [f"n{number}_{name}"])
            )
    assert whole is not None
    nodes = sorted(
        whole.graph.node, key=lambda node: node.op_type != "Identity" or "_" in node.input[0]
    )
    del whole.graph.node[:]
    whole.graph.node.extend(nodes)
    del whole.graph.input[:]
    whole.graph.input.extend(model("r = Identity (x)").graph.input)
    return whole


def numbers() -> np.ndarray:
    """Float32 numbers of all magnitudes that halves have, halfway cases, and those next to them."""
    rng = np.random.default_rng(0)
    halves = rng.integers(0, 0x7C00, 400).astype(np.uint16).view(np.float16).astype(np.float64)
    steps = np.spacing(halves.astype(np.float16)).astype(np.float64)
    exact = [halves + steps * part for part in (0.25, 0.5, 0.5 + 2.0**-12, 0.75)]
    special = [0.0, 2.0**-25, 65504, 65519.99, 65520, 1e-12, 1e9, 3e38, np.inf, np.nan, 2049, 2051]
    x = np.concatenate([*exact, special]).astype(np.float32)
    x = np.concatenate([x, -x])
    return x[rng.permutation(x.size)].reshape(2, -1)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The results of every entry, by device, and those of `reference`."""
    whole = joined()
    x = numbers()
    rng = np.random.default_rng(1)
    factors = rng.choice(np.array([1, 1 + 2.0**-12, 1 - 2.0**-12, 0.5], np.float32), x.shape)
    feeds = {"x": x, "y": x * factors, "yes": np.array(True)}
    with np.errstate(all="ignore"):
        reference = [np.asarray(v) for v in ReferenceEvaluator(whole).run(None, feeds)]
    for info, array in zip(whole.graph.output, reference, strict=True):
        element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, element, [None] * array.ndim))
    folder = tmp_path_factory.mktemp("half_casts")
    webmlc.build(whole, folder)
    outputs: dict[str, list[Any]] = {"reference": reference}
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(folder, device=device)
        outputs[device] = list(loaded.run(feeds).values())
        loaded.dispose()
    return outputs


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", TO_FLOAT16)
def test_results_are_those_of_exact_casts(
    results: dict[str, list[Any]], name: str, device: Device
) -> None:
    position = list(TO_FLOAT16).index(name)
    want, got = results["reference"][position], results[device][position]
    assert got.dtype == want.dtype
    if name == "softmax":
        np.testing.assert_allclose(got, want, rtol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("small", [np.float16, ml_dtypes.bfloat16])
def test_every_half_survives_and_every_tie_is_even(
    tmp_path: Path, device: Device, small: Any
) -> None:
    """All halves, and the numbers halfway between each and the next."""
    name = np.dtype(small).name
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    agraph (float[n] x) => (float[n] r, {name}[n] h) <float one = {{1}}> {{
        a = Mul (x, one) h = Cast <to = {10 if small is np.float16 else 16}> (a)
        r = Cast <to = 1> (h)
    }}"""
    webmlc.build(onnx.parser.parse_model(text), tmp_path, target=device)
    halves = np.arange(1 << 16, dtype=np.uint16).view(small).astype(np.float32)
    with np.errstate(all="ignore"):
        following = (np.arange(1 << 16) + 1).astype(np.uint16).view(small).astype(np.float32)
        x = np.concatenate([halves, (halves.astype(np.float64) + following) / 2]).astype(np.float32)
        if device == "webgpu":  # a GPU may take subnormal float32 for 0
            x = np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)
        want = x.astype(small)
    loaded = webmlc.load(tmp_path, device=device)
    got = loaded.run({"x": x})
    loaded.dispose()
    np.testing.assert_array_equal(got["r"], want.astype(np.float32))
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(got["r"])[zero], np.signbit(want)[zero])
    np.testing.assert_array_equal(got["h"].astype(np.float32), want.astype(np.float32))
