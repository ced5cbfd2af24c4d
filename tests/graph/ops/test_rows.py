"""Compare each row of the operator table, interpreted in numpy, with `onnx.reference`."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.graph.ops.definitions import DEFINITIONS, by_definition
from webmlc.core.dtypes import DType
from webmlc.frontend.read_model import NEWEST_OPSET, read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array
from webmlc.graph.ops import sequence, text
from webmlc.graph.ops.microsoft import arithmetic
from webmlc.graph.ops.operator import Case
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph
from webmlc.graph.table import MODULES, OPS

WITHOUT_CASES = {
    "If",  # tests/graph/test_passes.py
    *("Loop", "Scan"),  # tests/graph/ops/test_control.py
    *(row.name for row in sequence.OPS if not row.domain),  # tests/graph/ops/test_control.py
    *(row.name for row in text.OPS if not row.domain),  # tests/host/test_texts.py
    "NonMaxSuppression",  # tests/graph/infer/test_run_time_shapes.py
    "GlobalLpPool",  # onnx.reference does not have it
    "Multinomial",  # tests/graph/ops/test_random.py, as the four below
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Scatter",  # the old name of ScatterElements
    "Upsample",  # the old form of Resize
}

REFERENCE_DIFFERS = {
    "ConvTranspose": "has no groups",
    "GRU": "knows one direction and no lengths",
    "GatherElements": "wants indices as large as the data",
    "Hardmax": "has no form before opset 13",
    "LSTM": "knows one direction",
    "LRN": "takes the first channels only",
    "LogSoftmax": "has no form before opset 13",
    "LpNormalization": "takes no absolute value for p = 1",
    "MaxPool": "pads integers with NaN",
    "MaxRoiPool": "is missing",
    "Mean": "does not broadcast",
    "OneHot": "compares floating-point indices before it casts them",
    "OptionalGetElement": "leaves a list around the value",
    "Pad": "does not cut",
    "QLinearMatMul": "rounds the product of half scales, and their quotient",
    "RNN": "knows one direction",
    "SimplifiedLayerNormalization": "is onnxruntime's own",
    "Softmax": "has no form before opset 13",
    "TfIdfVectorizer": "weighs outputs, not n-grams",
}
"""The operators for which `onnx.reference` is wrong or incomplete. onnxruntime is their oracle."""

FIRST_OPERATORS = {row.name for row in arithmetic.OPS if not row.domain}
"""The operators of ONNX's first versions, which only onnxruntime still has."""

NEWEST = {"com.microsoft": 1, "ai.onnx.contrib": 1, "ai.onnx.ml": 3, "ai.onnx.preview.training": 1}
"""The default opset of cases, for each of the other domains."""


def by_onnxruntime(domain: str, name: str) -> bool:
    """True if `onnx.reference` cannot be the oracle of an operator."""
    return domain == "com.microsoft" or name in REFERENCE_DIFFERS or name in FIRST_OPERATORS


def cases() -> Iterator[object]:
    for (domain, name), row in OPS.items():
        for number, case in enumerate(row.cases):
            yield pytest.param(domain, name, case, id=f"{name}-{number}")


def make_input(spec: str | Array, rng: np.random.Generator) -> Array:
    """`"float32[2, 3] in 0.1..4"` -> random numbers of that type, shape and range."""
    if not isinstance(spec, str):
        return np.asarray(spec)
    match = re.fullmatch(r"(\w+)\[([\d, ]*)\](?: in (\S+)\.\.(\S+))?", spec)
    assert match, spec
    dtype = DType(match[1])
    shape = tuple(int(n) for n in match[2].split(",") if n.strip())
    if match[3] is None:
        if dtype is DType.bool:
            return rng.integers(0, 2, shape).astype(bool)
        return rng.standard_normal(shape).astype(dtype.numpy)
    low, high = float(match[3]), float(match[4])
    if dtype.is_float:
        return rng.uniform(low, high, shape).astype(dtype.numpy)
    return rng.integers(int(low), int(high) + 1, shape).astype(dtype.numpy)


def make_model(domain: str, name: str, case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model of one node. Arrays given in the case are initialisers; the rest are inputs."""
    rng = np.random.default_rng(zlib.crc32(repr((name, case)).encode()))
    names: list[str] = []
    inputs, initializers, feeds = [], [], {}
    for i, spec in enumerate(case.inputs):
        if spec is None:
            names.append("")
            continue
        names.append(f"x{i}")
        array = make_input(spec, rng)
        if isinstance(spec, str):
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"x{i}", element, array.shape))
            feeds[f"x{i}"] = array
        else:
            initializers.append(numpy_helper.from_array(array, f"x{i}"))
    attributes = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in case.attributes.items()
    }
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(name, names, outputs, domain=domain, **attributes)
    values = [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs]
    graph = helper.make_graph([node], name, inputs, values, initializers)
    newest = 21 if by_onnxruntime(domain, name) else NEWEST_OPSET
    opsets = [helper.make_opsetid("", newest if domain else case.opset or newest)]
    if domain:
        opsets.append(helper.make_opsetid(domain, case.opset or NEWEST[domain]))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, feeds


def defined_results(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The outputs of a model of one node, by its definition in numpy."""
    node = model.graph.node[0]
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | feeds
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    inputs = tuple(values.get(i) for i in node.input)
    return by_definition(node.op_type, inputs, attributes, len(node.output))


def expected_results(
    domain: str, name: str, model: onnx.ModelProto, feeds: dict[str, Array]
) -> list[Array]:
    """The outputs of a model of one node, by `onnx.reference` or onnxruntime. A form that its CPU
    cannot run is computed by a definition in numpy.
    """
    if domain == "ai.onnx.contrib":  # onnxruntime needs a library for them
        return defined_results(model, feeds)
    if not by_onnxruntime(domain, name):
        return list(ReferenceEvaluator(model).run(None, feeds))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for info in inferred.graph.output:
        if not info.type.tensor_type.elem_type:
            info.ClearField("type")  # of an operator that onnx does not know
    try:
        session = onnxruntime.InferenceSession(inferred.SerializeToString(), QUIET)
        return list(session.run(None, feeds))
    except Exception:
        if name not in DEFINITIONS:
            raise
        return defined_results(model, feeds)


QUIET = onnxruntime.SessionOptions()
QUIET.log_severity_level = 4


@pytest.mark.parametrize(("domain", "name", "case"), list(cases()))
def test_row_equals_reference(domain: str, name: str, case: Case) -> None:
    model, feeds = make_model(domain, name, case)
    expected = expected_results(domain, name, model, feeds)
    for info, array in zip(model.graph.output, map(np.asarray, expected), strict=True):
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, element, array.shape))
    module = infer_shapes(normalise(read_model(model)))
    for stage in (module, simplify_graph(fold_constants(module))):
        actual = evaluate_module(stage, feeds)
        for output, want in zip(stage.main.outputs, expected, strict=True):
            got, want = actual[output], np.asarray(want)
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            loose = 10 if domain == "com.microsoft" else 1  # whole layers, summed in another order
            np.testing.assert_allclose(got, want, rtol=2e-5 * loose, atol=2e-6 * loose)


def test_every_row_has_cases() -> None:
    missing = {name for (domain, name), row in OPS.items() if not domain and not row.cases}
    assert missing == WITHOUT_CASES


def test_rows_have_one_meaning() -> None:
    """Each row has `compute` or `expand`, with these exceptions: control flow runs functions of
    the module, a gradient is derived from the graph, a pass writes into a state, and hosts compute
    the steps of texts.
    """
    exceptions = {("webmlc", "If"), ("webmlc", "Loop")}
    exceptions |= {("ai.onnx.preview.training", "Gradient"), ("webmlc", "Append")}
    exceptions |= {("webmlc", "TextStep")}
    keys = {key for key, row in OPS.items() if row.compute is None and row.expand is None}
    assert keys == exceptions


def test_each_operator_has_one_row() -> None:
    counts = Counter((row.domain, row.name) for module in MODULES for row in module.OPS)
    assert [key for key, count in counts.items() if count > 1] == []
