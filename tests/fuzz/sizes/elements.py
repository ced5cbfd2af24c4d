"""Which elements of a result may differ where a rule allows an operator to: a rule gives the reason
for a whole node, but only some elements have it.

In: the only node that a result is computed by, and the inputs of the run. An element that may not
differ has to agree. Nothing is known of a node whose inputs other nodes compute.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from tests.fuzz.graph import Array
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.references import FAR
from tests.fuzz.sizes.rules import HUGE, factor_of

Elements = Callable[[onnx.NodeProto, list[Array]], Array]
"""True for the elements that may differ; broadcasts to the shape of the result."""

LINEAR = frozenset(
    ("AveragePool", "Conv", "ConvTranspose", "FusedConv", "Gemm", "GlobalAveragePool", "MatMul",
     "ReduceMean", "ReduceSum")
)  # fmt: skip
"""Operators whose elements are sums of products of inputs. Of the magnitudes of the inputs, they
compute the sums of the magnitudes of the terms: if such a sum is finite, no order of the terms
reaches an infinity.
"""


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _has_nan_along_axis(node: onnx.NodeProto, inputs: list[Array]) -> Array:
    is_hardmax = node.op_type == "Hardmax"
    axis = _attribute(node, "axis", -1 if is_hardmax else 0)
    kept = is_hardmax or bool(_attribute(node, "keepdims", 1))
    return np.isnan(inputs[0].astype(np.float64)).any(axis=axis, keepdims=kept)


def _is_huge(node: onnx.NodeProto, inputs: list[Array]) -> Array:
    return ~(np.abs(inputs[0].astype(np.float64)) < HUGE)


def _are_both_infinite(node: onnx.NodeProto, inputs: list[Array]) -> Array:
    a, b = (np.isinf(x.astype(np.float64)) for x in inputs)
    return a & b


def _have_no_place_or_sample_infinity(_: onnx.NodeProto, inputs: list[Array]) -> Array:
    """The samples at positions that are far outside or NaN, and those of infinite channels."""
    x, grid = (array.astype(np.float64) for array in inputs)
    have_no_place = ~(np.abs(grid) <= FAR).all(axis=-1)[:, None]
    channels = x.reshape(*x.shape[:2], -1)
    is_infinite = ~np.isfinite(channels).all(axis=-1)
    return have_no_place | is_infinite.reshape(*x.shape[:2], *[1] * (grid.ndim - 2))


def _samples_outside(_: onnx.NodeProto, inputs: list[Array]) -> Array:
    """The regions of a channel that holds a NaN, or whose first pixel is infinite."""
    x, _rois, images = inputs
    pixels = x.astype(np.float64).reshape(*x.shape[:2], -1)
    is_wild = np.isnan(pixels).any(axis=-1) | np.isinf(pixels[..., :1]).any(axis=-1)
    return is_wild[images][:, :, None, None]


def _has_no_steps(_: onnx.NodeProto, inputs: list[Array]) -> Array:
    """The sums that a factor makes a NaN. Zero points of rows or columns are not looked at."""
    a, _sa, zero_a, b, _sb, zero_b = inputs[:6]
    factor = factor_of([inputs[i] for i in (1, 4, 6)])
    if max(factor.size, zero_a.size, zero_b.size) > 1:
        return ~np.isfinite(factor).all(keepdims=True)
    sums = (a.astype(np.int64) - zero_a) @ (b.astype(np.int64) - zero_b)
    return np.isnan(factor) | (np.isinf(factor) & (sums == 0))


ELEMENTS: dict[str, Elements] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "Hardmax"), _has_nan_along_axis),
    **dict.fromkeys(("Cos", "Sin", "Tan"), _is_huge),
    **dict.fromkeys(("Add", "Sub"), _are_both_infinite),
    "GridSample": _have_no_place_or_sample_infinity,
    "QLinearMatMul": _has_no_steps,
    "RoiAlign": _samples_outside,
}
"""The elements that have the reason of the operator's rule; all of them without an entry."""


STATISTICS_ERROR = 1e-5
"""The relative error of a normalised element that the rounding of long sums explains: of a variance
of 1,872 elements, added in order, 5e-6 was measured.
"""

CANCELLING = frozenset(("BiasGelu", "FastGelu", "Gelu"))
"""Operators that compute x · (1 + f) / 2 of a sum x of their inputs, where f comes near to -1. An
error of f of two units in its last place then is one of x · eps in a result of any size.
"""


def rounding(model: onnx.ModelProto, known: Feeds, name: str) -> Array | None:
    """The absolute errors that cancellation explains; None where nothing is known to cancel."""
    node = only_node(model, name)
    if node is None or any(i not in known for i in node.input):
        return None
    if node.op_type == "GroupNormalization":
        return _rounding_of_bias(node, known)
    if node.op_type not in CANCELLING:
        return None
    with np.errstate(all="ignore"):
        total = sum(known[i].astype(np.float64) for i in node.input)
    return np.abs(total) * float(ml_dtypes.finfo(known[node.input[0]].dtype).eps)


def _rounding_of_bias(node: onnx.NodeProto, known: Feeds) -> Array | None:
    """The errors of elements that were normalised, scaled and shifted: the bias may cancel them."""
    x, scale, _ = (known[i].astype(np.float64) for i in node.input)
    if scale.shape != x.shape[1:2]:
        return None  # an opset whose scales are those of groups
    groups = x.reshape(len(x), _attribute(node, "num_groups", 1), -1)
    with np.errstate(all="ignore"):
        units = (groups - groups.mean(axis=-1, keepdims=True)) / groups.std(axis=-1, keepdims=True)
        scaled = units.reshape(x.shape) * scale.reshape(-1, *[1] * (x.ndim - 2))
    return np.abs(scaled) * STATISTICS_ERROR


def may_differ(model: onnx.ModelProto, known: Feeds, name: str) -> Array | None:
    """The elements of an output that may differ by the rule of its operator; None for all."""
    node = only_node(model, name)
    if node is None or node.op_type not in ELEMENTS:
        return None
    inputs = [known[i] for i in node.input if i in known]
    if len(inputs) < len(node.input):
        return None
    return ELEMENTS[node.op_type](node, inputs)


def only_node(model: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    """The node that computes an output from inputs and constants alone; None if there are more."""
    made = {output: node for node in model.graph.node for output in node.output}
    node = made.get(name)
    return None if node is None or any(i in made for i in node.input) else node


def is_linear(model: onnx.ModelProto, name: str) -> bool:
    """True if an output is a linear function of inputs and constants."""
    node = only_node(model, name)
    activations = {a.s for a in node.attribute if a.name == "activation"} if node else {b""}
    return node is not None and node.op_type in LINEAR and activations <= {b"Relu"}


def with_magnitudes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the magnitudes of its constants and factors."""
    result = onnx.ModelProto.FromString(model.SerializeToString())
    for constant in result.graph.initializer:
        array = numpy_helper.to_array(constant)
        constant.CopyFrom(numpy_helper.from_array(magnitudes(array), constant.name))
    for node in result.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("alpha", "beta"):
                attribute.f = abs(attribute.f)
    return result


def magnitudes(array: Array) -> Array:
    """The magnitudes of floats; integers as they are."""
    return np.abs(array) if array.dtype.kind in "fV" else array


def may_overflow(sums: Array) -> Array:
    """True where terms with these sums of magnitudes may reach an infinity, or are NaN."""
    most = float(ml_dtypes.finfo(sums.dtype).max)
    return ~(sums.astype(np.float64) < most / 2)
