"""NaN and infinity go through every operator that computes floats as IEEE 754 and ONNX say, on both
devices and in Node.

One model holds the first case of every elementwise, broadcasting and reducing row; its float inputs
hold NaNs and infinities. `onnx.reference` (numpy) says what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import webmlc
from tests.fuzz.sizes.devices import Node
from tests.graph.ops.test_rows import REFERENCE_DIFFERS, make_model
from webmlc.frontend.read_model import NEWEST_OPSET
from webmlc.graph.table import OPS

pytestmark = pytest.mark.xdist_group("not_finite")  # one worker builds what the tests share

Arrays = Mapping[str, np.ndarray]

SECONDS = 60.0
"""The longest time that Node may take for a run. Chosen by hand."""

KINDS = frozenset({"elementwise", "broadcast", "reduction"})

UNDEFINED = {
    "AveragePool": "onnx.reference leaves out NaNs, as it does padding",
    "BatchNormalization": "a variance of infinity or NaN is no variance",
    "Bernoulli": "draws random numbers",
    "DeformConv": "an offset of infinity has no place",
    "DFT": "numpy's transform keeps 0 · infinity out of what it adds up",
    "STFT": "numpy's transform keeps 0 · infinity out of what it adds up",
    "Resize": "onnx.reference multiplies what it does not take by 0",
    "Dropout": "draws random numbers",
    "LpPool": "onnx.reference leaves out NaNs, as it does padding",
    "QuantizeLinear": "the integer that stands for a NaN is undefined",
    "DynamicQuantizeLinear": "the integer that stands for a NaN is undefined",
    "CastLike": "the integer that stands for a NaN is undefined",
    "Cast": "the integer that stands for a NaN is undefined",
    "TopK": "the place of a NaN in an order is undefined",
    "Unique": "the place of a NaN in an order is undefined",
}
"""Rows whose result is not said, or not known to the reference, and why."""


def rows() -> Iterator[str]:
    for (domain, name), row in OPS.items():
        if domain or name in UNDEFINED or name in REFERENCE_DIFFERS or not row.cases:
            continue
        case = row.cases[0]
        floats = any(isinstance(i, str) and i.startswith("float32") for i in case.inputs)
        if floats and case.opset is None and (row.kind in KINDS or row.expand is not None):
            yield name


NAMES = tuple(rows())


def unsettled(array: np.ndarray, seed: int) -> np.ndarray:
    """The array with a third of its elements NaN, infinity or minus infinity."""
    rng = np.random.default_rng(seed)
    special = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), array.shape)
    return np.where(rng.random(array.shape) < 1 / 3, special, array).astype(array.dtype)


def one_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Every row's first case in one graph, names prefixed by the row's."""
    nodes, inputs, outputs, initializers, feeds = [], [], [], [], {}
    for seed, name in enumerate(NAMES):
        model, arrays = make_model("", name, OPS["", name].cases[0])
        graph = onnx.compose.add_prefix_graph(model.graph, f"{name}_")
        nodes += graph.node
        inputs += graph.input
        outputs += graph.output
        initializers += graph.initializer
        for key, array in arrays.items():
            is_float = array.dtype == np.float32
            feeds[f"{name}_{key}"] = unsettled(array, seed) if is_float else array
    whole = helper.make_graph(nodes, "rows", inputs, outputs, initializers)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", NEWEST_OPSET)]), feeds


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arrays]:
    """The outputs by device, and those of `reference`."""
    model, feeds = one_model()
    folder: Path = tmp_path_factory.mktemp("not_finite")
    names = [output.name for output in model.graph.output]
    evaluator = ReferenceEvaluator(model)
    with np.errstate(all="ignore"):
        reference = list(map(np.asarray, evaluator.run(names, feeds)))
    for info, array in zip(model.graph.output, reference, strict=True):
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, element, array.shape))
    webmlc.build(model, folder)
    outputs: dict[str, Arrays] = {"reference": dict(zip(names, reference, strict=True))}
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(folder, device=device)
        outputs[device] = loaded.run(feeds)
        loaded.dispose()
    node = Node(SECONDS)
    runs = node.run(str(folder), 2, [feeds])
    node.close()
    assert isinstance(runs, list) and isinstance(runs[0], dict), runs
    outputs["node"] = runs[0]
    return outputs


@pytest.mark.parametrize("device", ["wasm", "webgpu", "node"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_stays_so(results: dict[str, Arrays], name: str, device: str) -> None:
    outputs = [key for key in results["reference"] if key.startswith(f"{name}_y")]
    assert outputs
    for key in outputs:
        want, got = np.asarray(results["reference"][key]), results[device][key]
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-5, equal_nan=True)


def test_the_inputs_hold_what_is_tested() -> None:
    _, feeds = one_model()
    floats = [a for a in feeds.values() if a.dtype == np.float32]
    assert sum(np.isnan(a).any() for a in floats) > len(floats) / 2
    assert sum(np.isinf(a).any() for a in floats) > len(floats) / 2
    assert len(NAMES) > 60
