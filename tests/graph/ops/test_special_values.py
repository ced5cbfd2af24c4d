"""Operators of single elements on a grid of special values, on both devices, against
`onnx.reference`.

One model holds the first case of every elementwise and every broadcasting row of float32, and
powers by constants. A row of one operand gets `VALUES`, a row of two gets all pairs of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import webmlc
from webmlc.frontend.read_model import NEWEST_OPSET
from webmlc.graph.table import OPS

pytestmark = pytest.mark.xdist_group("special_values")  # one worker builds what the tests share

Device = Literal["wasm", "webgpu"]
Arrays = Mapping[str, np.ndarray]

_LIMITS = np.finfo(np.float32)
_SIZES = [np.inf, _LIMITS.max, 1e20, 3, 2.5, 2, 1.5, 1 + _LIMITS.eps, 1, 0.5, 1e-20, _LIMITS.tiny]
VALUES = np.array([np.nan, *_SIZES, 1e-40, 0], np.float32)
VALUES = np.concatenate([VALUES, -VALUES[1:]])
"""NaN, and with both signs: infinity, the largest number, numbers around 1, tiny ones, a subnormal
one and zero."""
PAIRS = np.stack(np.meshgrid(VALUES, VALUES, indexing="ij"), -1).reshape(-1, 2)
EXPONENTS = (-np.inf, -3, -2, -1, -0.5, 0, 1 / 3, 0.5, 1.5, 2, 3, 4, np.inf, np.nan)
NOT_COMPARED = {
    "Bernoulli": "draws random numbers",
    "Dropout": "draws random numbers",
    "Cast": "the integer that stands for a NaN is undefined",
    "CastLike": "the integer that stands for a NaN is undefined",
}
"""Rows whose results are not said, and why."""
CANCELS = {"Elu": 2e-7, "Celu": 2e-7, "Selu": 4e-7, "Gelu": 1e-6, "Mish": 2e-7}
"""The absolute error of rows that subtract 1, as onnxruntime does. It shows near zero."""
ANY_ZERO = {
    "Sign": "onnx.reference gives the sign of -0 as 0",
    "PRelu": "0 is not negative; onnx.reference multiplies it by the slope",
    "Max": "numpy takes the second of two zeros",
    "Min": "numpy takes the second of two zeros",
    "Sum": "onnx.reference adds the only operand to 0",
    "Mean": "onnx.reference adds the only operand to 0",
    "Celu": "-0 is not negative",
    "Selu": "-0 is not negative",
}
"""Rows whose zeros may have another sign than the reference's, and why."""


def rows() -> Iterator[tuple[str, int]]:
    """The names of the rows, and the numbers of their operands."""
    for (domain, name), row in OPS.items():
        if domain or row.kind not in ("elementwise", "broadcast") or not row.cases:
            continue
        specs = row.cases[0].inputs
        if name not in NOT_COMPARED and all(str(spec).startswith("float32") for spec in specs):
            yield name, len(specs)


ROWS = {name: count for name, count in rows() if count <= 2}
ROWS |= {"Mod": 2, "IsNaN": 1, "IsInf": 1}
"""The rows, and the numbers of their operands. The first case of the last three has no float32."""


def model() -> onnx.ModelProto:
    nodes, outputs, initializers = [], [], []

    def output(name: str, op: str, inputs: list[str], **attributes: object) -> None:
        nodes.append(helper.make_node(op, inputs, [name], **attributes))
        outputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None))

    for name, count in ROWS.items():
        attributes = {"fmod": 1} if name == "Mod" else OPS["", name].cases[0].attributes
        output(name, name, ["x"] if count == 1 else ["a", "b"], **attributes)
    for number, exponent in enumerate(EXPONENTS):
        initializers.append(helper.make_tensor(f"c{number}", 1, [], [exponent]))
        output(f"to the power {exponent}", "Pow", ["x", f"c{number}"])
        output(f"base {exponent}", "Pow", [f"c{number}", "x"])
    nodes.append(helper.make_node("Equal", ["a", "b"], ["equal"]))
    output("not equal", "Not", ["equal"])
    nodes.append(helper.make_node("Equal", ["x", "x"], ["itself"]))
    output("not equal to itself", "Not", ["itself"])
    output("as a boolean", "Cast", ["x"], to=9)
    nodes.append(helper.make_node("Less", ["a", "b"], ["less"]))
    output("the smaller", "Where", ["less", "a", "b"])
    inputs = [helper.make_tensor_value_info(n, 1, [f"{n}_size"]) for n in ("x", "a")]
    inputs.append(helper.make_tensor_value_info("b", 1, ["a_size"]))
    graph = helper.make_graph(nodes, "grid", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", NEWEST_OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


FEEDS = {"x": VALUES, "a": PAIRS[:, 0].copy(), "b": PAIRS[:, 1].copy()}
MODEL = model()
NAMES = tuple(info.name for info in MODEL.graph.output)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arrays]:
    """The outputs by device, and those of `reference`."""
    with np.errstate(all="ignore"):
        reference = list(map(np.asarray, ReferenceEvaluator(MODEL).run(None, FEEDS)))
    for info, array in zip(MODEL.graph.output, reference, strict=True):
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, element, [None]))
    folder: Path = tmp_path_factory.mktemp("special_values")
    webmlc.build(MODEL, folder)
    outputs: dict[str, Arrays] = {"reference": dict(zip(NAMES, reference, strict=True))}
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(folder, device=device)
        outputs[device] = loaded.run(FEEDS)
        loaded.dispose()
    return outputs


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", NAMES)
def test_special_values_give_what_the_reference_gives(
    results: dict[str, Arrays], name: str, device: Device
) -> None:
    want, got = results["reference"][name], results[device][name]
    operands = VALUES[:, None] if len(want) == len(VALUES) else PAIRS
    compared = np.ones(len(want), bool)
    if device == "webgpu":  # WGSL lets a shader take subnormal numbers for 0
        subnormal = (np.abs(operands) < _LIMITS.tiny) & (operands != 0)
        compared &= ~subnormal.any(1) & ~((np.abs(want) < _LIMITS.tiny) & (want != 0))
    if name == "PRelu":  # the reference multiplies 0 by a slope that is not finite
        compared &= operands[:, 0] != 0
    got, want = got[compared], want[compared]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=CANCELS.get(name, 0), equal_nan=True)
    if name not in ANY_ZERO and want.dtype == np.float32:
        zero = (want == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


def test_the_grid_covers_the_table() -> None:
    assert len(ROWS) > 45
    assert {"Pow", "Equal", "Greater", "Sin", "IsNaN", "Sign", "Max", "Mod"} <= ROWS.keys()


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("mode", ["BRANCH_NEQ", "BRANCH_EQ", "BRANCH_LT", "BRANCH_GTE"])
def test_a_tree_compares_nan_as_onnxruntime_does(tmp_path: Path, mode: str, device: Device) -> None:
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_modes=[mode, "LEAF", "LEAF"], nodes_values=[2.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[3.0, 5.0],
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", 1, ["n", 1])]
    outputs = [helper.make_tensor_value_info("y", 1, ["n", 1])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "tree", inputs, outputs)
    tree = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": VALUES[:, None]}
    want = onnxruntime.InferenceSession(tree.SerializeToString()).run(None, feeds)[0]
    webmlc.build(tree, tmp_path, target=device)
    loaded = webmlc.load(tmp_path, device=device)
    np.testing.assert_array_equal(loaded.run(feeds)["y"], want)
    loaded.dispose()
