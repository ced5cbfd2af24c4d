"""No input and no attribute is ignored. A change of one changes our results like the reference's,
or the node is refused.

Each case of each row runs again with each input changed. It also runs with each attribute of the
operator's schema set to another value. If no reference accepts the new value, or if its results do
not change, there is no check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import AttributeProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from tests.graph.ops.definitions import DEFINITIONS
from tests.graph.ops.test_rows import NEWEST, by_onnxruntime, defined_results, make_model
from webmlc.core.errors import WebmlcError
from webmlc.frontend.read_model import NEWEST_OPSET, read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array
from webmlc.graph.ops.operator import Case, Operator
from webmlc.graph.table import OPS

MICROSOFT = "com.microsoft"
Feeds = dict[str, Array]
Results = Sequence[Array]

WORDS: tuple[tuple[str, ...], ...] = (
    ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    ("none", "tanh"),
    ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric",
     "tf_half_pixel_for_nn", "tf_crop_and_resize"),
    ("half_pixel", "output_half_pixel"),
    ("forward", "reverse"),
    ("LEFT", "RIGHT"),
    ("stretch", "not_larger", "not_smaller"),
    ("avg", "max"),
    ("nearest", "linear", "cubic"),
    ("bilinear", "nearest", "bicubic"),
    ("constant", "reflect", "edge", "wrap"),
    ("DCR", "CRD"),
    ("TF", "IDF", "TFIDF"),
    ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("zeros", "border", "reflection"),
    ("none", "add", "mul", "min", "max"),
    ("none", "mean", "sum"),
)  # fmt: skip
"""Groups of words. An attribute whose value is in a group may take the other values of the
group.
"""

UNDECIDED: dict[tuple[str, str], str] = {
    (op, f"attribute {name}"): "dilated windows are padded as if they were not dilated"
    for op in ("AveragePool", "MaxPool")
    for name in ("auto_pad", "dilations")
}
UNDECIDED |= {
    ("Dropout", "input x2"): "training draws random numbers",
    ("RNN", "input x4"): "the state after a sequence of no steps is zero, not the initial one",
    (
        "Unique",
        "attribute axis",
    ): "onnx.reference lists slices that are not sorted in another order",
    ("Unique", "attribute sorted"): "as above",
}
"""Changes for which no reference is authoritative."""

RUNTIME_OPSET = 25
"""The newest opset that onnxruntime supports."""

LARGEST = 260
"""The most elements of the inputs of a case that runs with each change. Chosen by hand."""


def changed_arrays(array: Array) -> Iterator[Array]:
    """The array with all elements changed, and with one element changed."""
    if array.dtype == bool:
        yield ~array
    elif array.dtype.kind in "iu":
        yield array + np.ones((), array.dtype)
        yield array - np.ones((), array.dtype)
    elif array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        yield (array * 1.25 + 0.125).astype(array.dtype)


def changed_values(name: str, kind: int, value: Any) -> Iterator[Any]:
    """Other values of an attribute whose value is `value`. If that is None, it has no value."""
    match kind:
        case AttributeProto.INT:
            number = int(value or 0)
            is_flag = number in (0, 1) and "axis" not in name
            yield from (1 - number,) if is_flag else (number + 1, number - 1)
        case AttributeProto.FLOAT:
            yield float(value or 0) * 1.5 + 0.25
        case AttributeProto.STRING:
            yield from {w for group in WORDS if value in group for w in group if w != value}
        case AttributeProto.INTS:
            numbers = list(value or ())
            if numbers:
                yield [numbers[0] + 1, *numbers[1:]]
                yield [*numbers[:-1], numbers[-1] + 1]
                yield numbers[::-1]
            else:
                yield from ([1], [1, 1], [2, 1], [1, 0, 1, 1])
        case AttributeProto.FLOATS:
            yield [float(v) * 1.5 + 0.25 for v in value or (0.5,)]


def attributes_of(row: Operator) -> dict[str, tuple[int, Any]]:
    """The kind and the default of each attribute in the operator's schema."""
    schema = SCHEMAS.get((row.domain, row.name))
    if schema is None:
        return {}
    result: dict[str, tuple[int, Any]] = {}
    for name, attribute in schema.attributes.items():
        default = AttributeProto.FromString(attribute._default_value)
        value = helper.get_attribute_value(default) if default.name else None
        result[name] = (getattr(AttributeProto, attribute.type.name), value)
    return result


def schemas() -> dict[tuple[str, str], Any]:
    """The schemas of onnx, and those of onnxruntime for its own operators."""
    result = {(s.domain, s.name): s for s in get_all_operator_schema() if s.domain == MICROSOFT}
    for (domain, name), row in OPS.items():
        if row.cases and defs.has(name, domain):
            version = NEWEST[domain] if domain else NEWEST_OPSET
            result[domain, name] = defs.get_schema(name, version, domain)
    return result


SCHEMAS = schemas()


def by_reference(model: onnx.ModelProto, feeds: Feeds) -> Results:
    return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feeds)]


def by_runtime(model: onnx.ModelProto, feeds: Feeds) -> Results:
    model = deepcopy(model)
    for opset in model.opset_import:
        opset.version = min(opset.version, RUNTIME_OPSET)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for info in inferred.graph.output:
        if not info.type.tensor_type.elem_type:
            info.ClearField("type")
    session = onnxruntime.InferenceSession(inferred.SerializeToString(), OPTIONS)
    return [np.asarray(a) for a in session.run(None, feeds)]


OPTIONS = onnxruntime.SessionOptions()
OPTIONS.log_severity_level = 4
OPTIONS.intra_op_num_threads = 1


def results(oracle: Callable[..., Results], model: onnx.ModelProto, feeds: Feeds) -> Results | None:
    """The results of a reference, or None if it refuses the model."""
    try:
        with np.errstate(all="ignore"):
            return oracle(model, feeds)
    except Exception:
        return None


def alike(left: Results, right: Results, steps: int = 0) -> bool:
    """True if results are equal except for rounding. Small integers may differ by `steps`."""
    return all(
        (a.dtype, a.shape) == (b.dtype, b.shape)
        and np.allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=4e-4,
            atol=steps if a.dtype.name in ("int8", "uint8") else 4e-5,
            equal_nan=True,
        )
        for a, b in zip(left, right, strict=True)
    )  # fmt: skip


def ours(model: onnx.ModelProto, feeds: Feeds, like: Results) -> Results | None:
    model = deepcopy(model)
    for info, array in zip(model.graph.output, like, strict=True):
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, element, array.shape))
    try:
        module = infer_shapes(normalise(read_model(model)))
        values = evaluate_module(module, feeds)
    except WebmlcError:
        return None
    return [values[name] for name in module.main.outputs][: len(like)]


def variants(row: Operator, case: Case) -> Iterator[tuple[str, onnx.ModelProto, Feeds]]:
    """Yield the description of a change, and the model and inputs after it."""
    model, feeds = make_model(row.domain, row.name, case)
    for name, array in feeds.items():
        for changed in changed_arrays(array):
            yield f"input {name}", model, {**feeds, name: changed}
    for place, tensor in enumerate(model.graph.initializer):
        for changed in changed_arrays(numpy_helper.to_array(tensor)):
            copy = deepcopy(model)
            copy.graph.initializer[place].CopyFrom(numpy_helper.from_array(changed, tensor.name))
            yield f"input {tensor.name} = {changed.tolist()}", copy, feeds
    for name, (kind, default) in attributes_of(row).items():
        value = case.attributes.get(name, default)
        value = value.decode() if isinstance(value, bytes) else value
        for changed_value in changed_values(name, kind, value):
            copy = deepcopy(model)
            node = copy.graph.node[0]
            other_attributes = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend(
                [*other_attributes, helper.make_attribute(name, changed_value, attr_type=kind)]
            )
            yield f"attribute {name} = {changed_value}", copy, feeds


def ignored(row: Operator, case: Case) -> Iterator[str]:
    """Yield the changes that affect the results of a reference, but not ours."""
    model, feeds = make_model(row.domain, row.name, case)
    first: Callable[..., Results] = by_reference
    second: Callable[..., Results] = by_runtime
    if by_onnxruntime(row.domain, row.name):
        first, second = second, first
    if row.name in DEFINITIONS and results(first, model, feeds) is None:
        first = defined_results
    before = results(first, model, feeds)
    assert before is not None
    for description, changed, changed_feeds in variants(row, case):
        expected = results(first, changed, changed_feeds)
        if expected is None or alike(expected, before):
            continue
        got = ours(changed, changed_feeds, expected)
        if got is None or alike(got, expected, 1):
            continue
        second_result = results(second, changed, changed_feeds)
        if second_result is None and results(second, model, feeds) is not None:
            continue  # no legal value
        if second_result is None or not alike(got, second_result, 1):
            yield description


def small_cases(row: Operator) -> list[Case]:
    """The cases that are fast enough to run many times: at least one."""
    sizes = [
        sum(a.size for a in make_model(row.domain, row.name, c)[1].values()) for c in row.cases
    ]
    limit = max(LARGEST, min(sizes))
    return [c for c, size in zip(row.cases, sizes, strict=True) if size <= limit]


@pytest.mark.parametrize("key", [k for k, r in OPS.items() if r.cases and k[0] != "webmlc"],
                         ids=lambda key: key[1])  # fmt: skip
def test_inputs_and_attributes_matter(key: tuple[str, str]) -> None:
    row = OPS[key]
    descriptions = {description for case in small_cases(row) for description in ignored(row, case)}
    assert {w for w in descriptions if (row.name, w.split(" = ")[0]) not in UNDECIDED} == set()


REFUSED_INPUTS: dict[tuple[str, str], str] = {
    ("MatMulNBits", "g_idx"): "weights that an index groups",
    ("DynamicQuantizeLSTM", "sequence_lens"): "a scale of all rows, some of which have ended",
    ("GatedAdd", "gate_weight"): "a gate that weights project",
    ("Attention", "past_sequence_length"): "the length of a buffer, which only CUDA has",
    ("MoEGroupRouter", "projection_weight"): "only for other outputs than the first",
    **{
        ("QMoE", name): "small floats, or a third layer, which only CUDA has"
        for name in (
            "fc1_act_block_scale",
            "fc1_act_scale",
            "fc1_global_scale",
            "fc2_act_block_scale",
            "fc2_act_scale",
            "fc2_global_scale",
            "fc3_experts_bias",
            "fc3_experts_weights",
            "fc3_scales",
            "fc3_zero_points",
        )
    },
    ("GroupQueryAttention", "k_scale"): "a quantised cache",
    ("GroupQueryAttention", "v_scale"): "a quantised cache",
    ("GroupQueryAttention", "q_norm_weight"): "norms",
    ("GroupQueryAttention", "k_norm_weight"): "norms",
    ("GroupQueryAttention", "query_seqlens"): "packed queries",
}
"""Optional inputs that no case can have. Nodes with them are refused, or compute the same without
them.
"""


def test_every_optional_input_is_in_a_case() -> None:
    absent = {
        (row.name, formal.name)
        for key, row in OPS.items()
        if row.cases and key in SCHEMAS
        for place, formal in enumerate(SCHEMAS[key].inputs)
        if formal.option.name == "Optional"
        and not any(place < len(c.inputs) and c.inputs[place] is not None for c in row.cases)
    }
    assert absent == set(REFUSED_INPUTS)
