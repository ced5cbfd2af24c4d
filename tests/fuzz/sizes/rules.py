"""Where our answer and onnxruntime's may differ, and why: by operator.

A row allows nothing else: a difference of an operator that no row names fails the fuzzer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from tests.fuzz.graph import Array
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.references import FAR

Condition = Callable[[onnx.NodeProto, Feeds], bool]
"""Whether something holds of a node in a run with some inputs."""

STRICTER = {
    "Compress": "a true condition beyond the axis selects nothing that there is",
    "NhwcMaxPool": "a window longer than what it moves over",
    "Squeeze": "without axes, a size of 1 would give the result another rank",
    "SkipLayerNormalization": "a skip of another number of batches, which is not one for each",
    "SkipSimplifiedLayerNormalization": "a skip of another number of batches",
    "GroupNormalization": "one scale or bias for all channels, where ONNX has one for each",
    **dict.fromkeys(
        ("Concat", "QLinearConcat"),
        "an input without elements whose other sizes are not those of the rest",
    ),
    "MaxUnpool": "a position in another map than that of its element, which no MaxPool writes",
    "MelWeightMatrix": "a transform of negative length",
    "PRelu": "a slope that stretches the input, to which ONNX broadcasts it",
    "GatherND": "indices of another number of batches than the data",
    "GatherBlockQuantized": "an index out of range, for which onnxruntime returns zeros",
    "GlobalAveragePool": "nothing has no mean",
    "GlobalLpPool": "onnxruntime refuses a pool of nothing, but where there is no image",
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
         "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        "an axis that is named twice",
    ),
}  # fmt: skip
"""Models that ONNX forbids and onnxruntime computes. Results without elements are allowed of every
operator: onnxruntime does not look at indices and sizes where there is nothing to compute.
"""


def _shape(node: onnx.NodeProto, feeds: Feeds, place: int) -> tuple[int, ...] | None:
    """The shape of an input of a node; None if it is missing or computed."""
    names = [*node.input, *[""] * (place + 1)]
    return feeds[names[place]].shape if names[place] in feeds else None


def _has_empty_input(node: onnx.NodeProto, feeds: Feeds) -> bool:
    """True if an input of the node is empty, constant or computed."""
    return any(name not in feeds or feeds[name].size == 0 for name in node.input)


def _has_other_skip(node: onnx.NodeProto, feeds: Feeds) -> bool:
    x, skip = _shape(node, feeds, 0), _shape(node, feeds, 1)
    return x is None or skip is None or skip[0] not in (1, x[0])


def _has_axes_of_1(node: onnx.NodeProto, feeds: Feeds) -> bool:
    x = _shape(node, feeds, 0)
    return len(node.input) == 1 and (x is None or 1 in x)


def _repeats_axis(node: onnx.NodeProto, feeds: Feeds) -> bool:
    if len(node.input) < 2 or node.input[1] not in feeds:
        return False
    x, axes = _shape(node, feeds, 0), feeds[node.input[1]].tolist()
    return not x or len({axis % len(x) for axis in axes}) < len(axes)


def _stretches_input(node: onnx.NodeProto, feeds: Feeds) -> bool:
    x, slope = _shape(node, feeds, 0), _shape(node, feeds, 1)
    return x is None or slope is None or np.broadcast_shapes(x, slope) != x


def _has_other_batches(node: onnx.NodeProto, feeds: Feeds) -> bool:
    count = next((a.i for a in node.attribute if a.name == "batch_dims"), 0)
    x, indices = _shape(node, feeds, 0), _shape(node, feeds, 1)
    return count > 0 and (x is None or indices is None or x[:count] != indices[:count])


def _has_negative_length(node: onnx.NodeProto, feeds: Feeds) -> bool:
    return node.input[1] in feeds and bool((feeds[node.input[1]] < 0).any())


def _has_foreign_positions(node: onnx.NodeProto, feeds: Feeds) -> bool:
    x, positions = _shape(node, feeds, 0), feeds.get(node.input[1])
    if x is None or positions is None or positions.ndim < 3:
        return True
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    kernel, rank = attributes["kernel_shape"], len(x) - 2
    strides = attributes.get("strides", [1] * rank)
    pads = np.reshape(attributes.get("pads", [0] * (2 * rank)), (2, rank)).sum(axis=0)
    size = np.prod([(x[2 + d] - 1) * strides[d] + kernel[d] - pads[d] for d in range(rank)])
    first = np.arange(x[0] * x[1]).reshape(*x[:2], *[1] * rank) * size
    return bool(((positions < first) | (positions >= first + size)).any())


STRICTER_IF: dict[str, Condition] = {
    "Concat": _has_empty_input,
    "GatherND": _has_other_batches,
    "QLinearConcat": _has_empty_input,
    "GlobalAveragePool": _has_empty_input,
    "GlobalLpPool": _has_empty_input,
    "MaxUnpool": _has_foreign_positions,
    "MelWeightMatrix": _has_negative_length,
    "PRelu": _stretches_input,
    "SkipLayerNormalization": _has_other_skip,
    "SkipSimplifiedLayerNormalization": _has_other_skip,
    "Squeeze": _has_axes_of_1,
    **{name: _repeats_axis for name in STRICTER if name.startswith("Reduce")},
}
"""The runs in which a row of STRICTER counts, by a node and the inputs; all runs without an entry.
What a node computes from is not known.
"""

LOOSER = {
    "RoiAlign": "a region that ends before it starts, or at infinity: onnxruntime's count of its "
    "samples overflows",
    "QLinearSoftmax": "a scale of zero or less, which onnxruntime refuses and we divide by",
    "QLinearGlobalAveragePool": "a scale far from 1, which onnxruntime refuses and we divide by",
    "Div": "the quotient of an integer and zero is undefined",
    "Mod": "the remainder of an integer and zero is undefined",
    "CDist": "points without coordinates, between which the distance is 0",
    "Dropout": "a ratio outside of 0 to 1: inference does not read it",
    "MatMul": "a product that sums nothing: onnxruntime has no zeros of all integer types",
    "Resize": "a size of 0, which gives a result without elements; samples between elements along "
    "axes for which onnxruntime has no kernel",
    "Scan": "a scan over nothing, which gives the initial state and no elements",
    **dict.fromkeys(
        ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"),
        "a pool of no channels, whose result has no elements",
    ),
    "Pad": "a reflection of more elements than the axis has: it goes back and forth, as in numpy",
}
"""Models that we compute and onnxruntime refuses. Results without elements are allowed of every
operator: there is nothing that could be wrong.
"""


def _has_no_columns(node: onnx.NodeProto, feeds: Feeds) -> bool:
    x = _shape(node, feeds, 0)
    return x is None or x[-1:] == (0,)


def _has_no_channels(node: onnx.NodeProto, feeds: Feeds) -> bool:
    x = _shape(node, feeds, 0)
    return x is None or 0 in x[:2]


def _has_size_of_0(node: onnx.NodeProto, feeds: Feeds) -> bool:
    sizes = feeds.get(node.input[3]) if len(node.input) > 3 else None
    return sizes is not None and 0 in sizes


def _reflects(node: onnx.NodeProto, feeds: Feeds) -> bool:
    return any(a.name == "mode" and a.s == b"reflect" for a in node.attribute)


def _interpolates_or_is_empty(node: onnx.NodeProto, feeds: Feeds) -> bool:
    modes = {a.s for a in node.attribute if a.name == "mode"}
    return bool(modes & {b"linear", b"cubic"}) or _has_size_of_0(node, feeds)


LOOSER_IF: dict[str, Condition] = {
    **{name: _has_no_channels for name in LOOSER if name.endswith("Pool") and name[0] != "Q"},
    "CDist": _has_no_columns,
    "MatMul": _has_no_columns,
    "Pad": _reflects,
    "Resize": _interpolates_or_is_empty,
    "Scan": _has_empty_input,
}
"""The runs in which a row of LOOSER counts; all runs without an entry."""

REFERENCE_DECIDES = ("Pad", "Resize")
"""The rows of LOOSER that hold only if onnx.reference gives our answer, where it gives one and all
inputs are finite and at most HUGE.
"""

DIFFERS = {
    "ReduceMean": "ONNX leaves the mean of nothing undefined; ours is a NaN",
    "QGemm": "onnxruntime leaves zeros where nothing is summed; the sum is the bias",
    "MatMulIntegerToFloat": "onnxruntime leaves what its memory held where nothing is summed",
    "NhwcMaxPool": "onnxruntime has a row at least where the window is longer than the map",
}
"""Results of onnxruntime that differ from the definition, or that it leaves open."""


def _has_no_place(node: onnx.NodeProto, feeds: Feeds) -> bool:
    """True if a grid holds a position that no element is at, and whose sample is no padding."""
    texts = {a.name: a.s for a in node.attribute}
    grid = feeds.get(node.input[1])
    if texts.get("padding_mode") == b"reflection":
        return grid is None or not bool((np.abs(grid) <= FAR).all())
    return grid is None or bool(np.isnan(grid).any())


def _reads_lowest(node: onnx.NodeProto, feeds: Feeds) -> bool:
    """True if the input of a pool holds -inf, or is computed."""
    x = feeds.get(node.input[0])
    return x is None or bool(np.isneginf(x.astype(np.float64)).any())


def _has_sequence_of_0(node: onnx.NodeProto, feeds: Feeds) -> bool:
    lengths = feeds.get(node.input[4]) if len(node.input) > 4 else None
    return lengths is not None and bool((lengths == 0).any())


def _has_infinite_scale(node: onnx.NodeProto, feeds: Feeds) -> bool:
    scale = feeds.get(node.input[1])
    return scale is None or bool(np.isinf(scale.astype(np.float64)).any())


def _never_runs(node: onnx.NodeProto, feeds: Feeds) -> bool:
    """True if a Loop has no steps, or only a run knows whether it has some."""
    arrays = [feeds.get(name) for name in node.input[:2] if name]
    return any(array is None or bool((array <= 0).all()) for array in arrays)


def _has_shorter_row(node: onnx.NodeProto, feeds: Feeds) -> bool:
    """True if a row of GroupQueryAttention has fewer tokens than its cache."""
    last, total = (feeds.get(name) for name in node.input[5:7])
    past = feeds.get(node.input[3]) if node.input[3] else None
    if last is None or total is None:
        return True
    size = max(int(total.reshape(-1)[0]), 0 if past is None else past.shape[2])
    return bool((last.astype(np.int64) + 1 < size).any())


def _is_between_steps(node: onnx.NodeProto, feeds: Feeds) -> bool:
    """True if a product is so near the middle of two steps that its rounding decides."""
    arrays = [feeds.get(name) for name in node.input]
    if any(array is None for array in arrays):
        return True
    a, sa, za, b, sb, zb, sy, *_ = (np.asarray(x, np.float64) for x in arrays)
    with np.errstate(all="ignore"):
        steps = (a - za) * (b - zb) * (sa * sb / sy)
        distance = np.abs(np.abs(steps - np.trunc(steps)) - 0.5)
        return bool((distance <= HALF_STEP * np.maximum(np.abs(steps), 1)).any())


def _has_infinite_first_pixel(node: onnx.NodeProto, feeds: Feeds) -> bool:
    x = feeds.get(node.input[0])
    return x is None or bool(np.isinf(x[..., :1, :1].astype(np.float64)).any())


def factor_of(scales: Sequence[Array]) -> Array:
    """The factor from sums of integers to steps of the result, of the scales of a product."""
    a, b, y = (np.asarray(scale, np.float32) for scale in scales)
    with np.errstate(all="ignore"):
        return np.asarray(a * b / y)


def _has_no_factor(node: onnx.NodeProto, feeds: Feeds) -> bool:
    """True if the factor of a product is infinite or a NaN, or computed."""
    scales = [feeds[node.input[i]] for i in (1, 4, 6) if node.input[i] in feeds]
    return len(scales) < 3 or not bool(np.isfinite(factor_of(scales)).all())


HALF_STEP = 1e-6
"""The relative error of a product of scales in float32: a few roundings of 6e-8."""

_NO_FACTOR = "0 times an infinite scale is a NaN, which is no integer"
_LOWEST = "onnxruntime's maximum begins at the least finite number: that of -inf is not -inf"
_NO_STEPS = "ONNX does not name the last state of an empty sequence: ours is the first one"

DIFFERS_IF: dict[str, tuple[str, Condition]] = {
    "GridSample": (
        "float32 does not tell which element a position far outside is reflected to, and ONNX not "
        "which one is at or nearest to a NaN: onnxruntime may take the first",
        _has_no_place,
    ),
    **dict.fromkeys(("GlobalMaxPool", "MaxPool"), (_LOWEST, _reads_lowest)),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (_NO_STEPS, _has_sequence_of_0)),
    "InstanceNormalization": (
        "onnxruntime subtracts the mean times the scale: of an infinite scale, a NaN",
        _has_infinite_scale,
    ),
    "Loop": (
        "onnxruntime has no sizes for what a loop without steps stacks: zeros stand for them",
        _never_runs,
    ),
    "GroupQueryAttention": (
        "onnxruntime leaves zeros in a cache behind the tokens of a row, and what padding attends "
        "to is open",
        _has_shorter_row,
    ),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul"), (_NO_FACTOR, _has_no_factor)),
    "RoiAlign": (
        "a sample outside is 0: onnxruntime multiplies the first pixel by 0, and an infinite one "
        "gives a NaN",
        _has_infinite_first_pixel,
    ),
    "QLinearMul": (
        "onnxruntime adds the zero point before it rounds: where a product lies between two steps, "
        "the rounding of its scale decides",
        _is_between_steps,
    ),
}
"""The same in some runs only, by a node and the inputs."""

_ORDER = (
    "0 · infinity and infinity - infinity are NaN: where they arise depends on the order of sums"
)

SUMS = {
    **dict.fromkeys(
        ("Attention", "AveragePool", "CDist", "Conv", "ConvTranspose", "DeformConv",
         "FusedConv", "GRU", "Gemm", "GlobalAveragePool", "GroupNormalization",
         "GroupQueryAttention", "LSTM", "MatMul", "MatMulNBits", "MultiHeadAttention", "RNN",
         "ReduceMean", "ReduceSum", "Resize", "STFT"),
        _ORDER,
    ),
    **dict.fromkeys(
        ("ReduceLogSumExp", "ReduceMax", "ReduceMin"),
        "ONNX does not say whether a maximum passes over a NaN",
    ),
    "GridSample": "0 · infinity is a NaN: whether a weight is 0 depends on the rounding of its "
    "position",
    "RotaryEmbedding": "a product beyond the largest number is infinite, but not where a fused "
    "multiply-add rounds only the sum",
    "LRN": "a square beyond the largest number is infinite, and stays in onnxruntime's sliding sum",
}  # fmt: skip
"""Operators whose elements may differ where one of the two is not finite, in runs whose inputs hold
NaN, infinity or numbers beyond HUGE, or in which onnxruntime reaches the largest number. Two finite
elements have to agree.
"""

FINITE_ON_GPU = dict.fromkeys(
    ("Add", "If", "Loop", "Scan", "Sub"),
    "WGSL lets a GPU assume that no float is infinite: a + b - b may become a, and infinity minus "
    "itself is not a NaN then",
)
"""The same on the GPU alone. Control flow stands for the nodes of its bodies."""

NAN = {
    **dict.fromkeys(
        ("QuantizeLinear", "QLinearSoftmax"),
        "ONNX names no integer for a NaN; numbers beyond the range saturate",
    ),
    **dict.fromkeys(
        ("MaxRoiPool", "RoiAlign", "MaxPool", "GlobalMaxPool"),
        "ONNX does not say whether the maximum passes over a NaN; onnxruntime does by its place",
    ),
    **dict.fromkeys(
        ("ArgMax", "ArgMin", "Hardmax"),
        "ONNX does not say whether a NaN is the largest element",
    ),
    **dict.fromkeys(
        ("ScatterElements", "ScatterND"),
        "ONNX does not say whether a reduction passes over a NaN; onnxruntime does by its place",
    ),
}  # fmt: skip
"""Operators that may differ in runs whose inputs hold a NaN."""

_QUANTISED = (
    "QLinearAdd",
    "QLinearMul",
    "QLinearSigmoid",
    "QLinearLeakyRelu",
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    "QLinearConcat",
    "QLinearWhere",
)

ZERO = dict.fromkeys(
    _QUANTISED, "x / 0 is infinite or a NaN, and onnxruntime rounds neither as it saturates numbers"
)
"""Operators that may differ in runs whose inputs hold a zero, or a number below TINY."""
TINY = 1.2e-38

WILD = {
    **dict.fromkeys(_QUANTISED, "0 times an infinite scale is a NaN, which is no integer"),
    **dict.fromkeys(
        ("DynamicQuantizeLinear", "DynamicQuantizeMatMul"),
        "an infinite range makes the scale infinite and x / scale a NaN, which is no integer",
    ),
    **dict.fromkeys(
        ("Cast", "CastLike"),
        "ONNX leaves undefined which integer stands for a NaN or for a number beyond its range",
    ),
    "MatMulNBits": "the zero points are multiplied apart: a huge element hides the others",
    **dict.fromkeys(
        ("Cos", "Sin", "Tan"),
        "neighbouring huge numbers are turns apart: their reduced angles have no correct digits",
    ),
    "ReduceProd": "a product beyond the largest number is infinite, one below the least is 0: "
    "which is reached first depends on the order",
}
"""Operators that may differ in runs whose inputs hold NaN, infinity or numbers beyond HUGE."""
HUGE = 1e9
