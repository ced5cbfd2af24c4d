"""The right results of a graph, and their tolerance: the reference, run with several nudges.

In: a `FuzzGraph`. Out: for each output the expected array and, per element, the error that is
allowed (`Expected`). Between the exact answer and any correct implementation stand rounding errors;
how they grow through a graph is measured, not guessed (Monte Carlo arithmetic: Parker, 1997): the
reference runs `RUNS` more times with the operands and results of every operator that rounds nudged
at random by a few units in the last place. What spreads is ill-conditioned, and gets the tolerance
it spreads by; an integer or boolean that changes (the index of a maximum of near-equals, a rounding
at the tie) is undetermined, and not compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz.graph import Array, FuzzGraph, captured, element_type

RUNS = 4
MORE_RUNS = 40
"""Runs before a difference is believed: a rare flip needs many to be seen."""

ULPS = 4.0
SPREAD = 4.0
FLUSHED = {"float16": 6.2e-5, "float32": 1.2e-38, "float64": 3e-308, "bfloat16": 1.2e-38}
"""The smallest normal numbers: what is smaller may be flushed to zero."""

RUNTIME_IS_RIGHT = frozenset(
    {"ConvTranspose", "GRU", "GatherElements", "LSTM", "LRN", "LogSoftmax", "LpNormalization",
     "MaxPool", "Mean", "Pad", "RNN", "Softmax", "GlobalLpPool", "AveragePool", "LpPool", "Resize",
     "Upsample", "MaxUnpool", "Conv", "GridSample", "ConvInteger", "QLinearConv",
     "GlobalMaxPool", "MaxRoiPool", "Loop", "OneHot", "TfIdfVectorizer"}
)  # fmt: skip
"""Where `onnx.reference` is wrong or incomplete (tests/graph/ops/test_rows.py): onnxruntime."""
RUNTIME_OPSET = 25

EXACT = frozenset(
    {"Abs", "And", "ArgMax", "ArgMin", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot",
     "BitwiseOr", "BitwiseXor", "Ceil", "Clip", "Compress", "Concat", "ConstantOfShape",
     "DepthToSpace", "Equal", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
     "GatherND", "Greater", "GreaterOrEqual", "Hardmax", "Identity", "IsInf", "IsNaN", "Less",
     "LessOrEqual", "Max", "MaxPool", "GlobalMaxPool", "Min", "Neg", "NonZero", "Not", "OneHot",
     "Or", "Pad", "Range", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round",
     "Shape", "Sign", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "TensorScatter", "Tile",
     "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Xor"}
)  # fmt: skip
"""Operators whose result is exact: nothing is nudged. All others round."""

CANCELLING = frozenset(
    {"BiasGelu", "FastGelu", "QuickGelu", "SkipLayerNormalization", "Celu", "Elu",
     "Erf", "Gelu", "GroupNormalization", "InstanceNormalization",
     "LayerNormalization", "LogSoftmax", "MeanVarianceNormalization", "Mish", "Selu", "Shrink",
     "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh", "Asinh", "Acosh", "Atanh", "Sinh", "Log",
     "Asin", "Acos", "If", "Loop", "Scan", "Sin", "Cos", "Tan", "Atan", "LSTM", "GRU", "RNN",
     "DFT", "STFT", "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"}
)  # fmt: skip
"""Operators whose usual formula subtracts near-equals: their error is absolute, not relative."""

SAMPLING = frozenset({"Resize", "Upsample"})
"""Operators that compute where they read: the error of a coordinate grows with the extents."""


@dataclass(frozen=True, slots=True)
class Expected:
    """An output: its value, how far each element may be off, and which elements are determined."""

    value: Array
    tolerance: Array
    determined: Array


def expect(graph: FuzzGraph, runs: int, device: str) -> dict[str, Expected]:
    """The right value of each output."""
    rng = np.random.default_rng(runs)
    nudged = [_nudged_run(graph, rng) for _ in range(runs)]
    return {
        name: _expected(graph.values[name], [r[name] for r in nudged if name in r], device)
        for name in graph.outputs
    }


def differs(got: Array, expected: Expected) -> str | None:
    """The fault of a result; None where it is right."""
    want = expected.value
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"is {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    wide_got, wide_want = _wide(got), _wide(want)
    with np.errstate(all="ignore"):
        off = np.abs(wide_got - wide_want) if _is_float(want) else wide_got != wide_want
        wrong = (~(off <= expected.tolerance) if _is_float(want) else off) & expected.determined
        same = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
        wrong &= ~same if _is_float(want) else True
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements differ, first at {list(at)}: "
        f"{got[at]}, expected {want[at]} within {expected.tolerance[at]:.3g}"
    )


def run_node(node: onnx.NodeProto, opset: int, values: Mapping[str, Array]) -> list[Array]:
    """One node's results. Half-precision arithmetic is done in float32 and rounded once."""
    inputs = {name: values[name] for name in (*node.input, *captured(node)) if name}
    narrow = next((a.dtype for a in inputs.values() if _is_half(a)), None)
    if narrow is None or node.op_type in EXACT or node.op_type in HALF_AS_IT_IS:
        return _evaluate(node, opset, inputs)
    wide = {n: a.astype(np.float32) if _is_half(a) else a for n, a in inputs.items()}
    results = _evaluate(node, opset, wide)
    with np.errstate(over="ignore"):
        return [r.astype(narrow) if r.dtype == np.float32 else r for r in results]


HALF_AS_IT_IS = frozenset(
    {"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
)
"""Operators whose meaning depends on the element type of their operands."""


def _evaluate(node: onnx.NodeProto, opset: int, inputs: Mapping[str, Array]) -> list[Array]:
    types = tuple((name, element_type(a), a.shape) for name, a in inputs.items())
    evaluate = _evaluator(node.SerializeToString(), opset, types)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = evaluate.run(None, dict(inputs))
    return [np.asarray(r) for r in results]


@lru_cache(maxsize=512)
def _evaluator(
    serialized: bytes, opset: int, types: tuple[tuple[str, int, tuple[int, ...]], ...]
) -> ReferenceEvaluator | onnxruntime.InferenceSession:
    """Evaluates one node on inputs of these types."""
    node = onnx.NodeProto.FromString(serialized)
    infos = [helper.make_tensor_value_info(*type_) for type_ in types]
    outputs = [helper.make_value_info(o, onnx.TypeProto()) for o in node.output if o]
    graph = helper.make_graph([node], "node", infos, outputs)
    by_runtime = _by_runtime(node)
    version = min(opset, RUNTIME_OPSET) if by_runtime else opset
    opsets = [helper.make_opsetid("", version)]
    if node.domain:
        opsets.append(helper.make_opsetid(node.domain, 5 if node.domain == "ai.onnx.ml" else 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    if not by_runtime:
        return ReferenceEvaluator(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _by_runtime(node: onnx.NodeProto) -> bool:
    """Whether onnxruntime evaluates a node, not `onnx.reference`.

    onnxruntime reads the indices of a MaxUnpool as positions in the given output; ONNX means
    positions in the output that the windows imply.
    """
    if node.op_type == "MaxUnpool" and len(node.input) == 3:
        return False
    return node.op_type in RUNTIME_IS_RIGHT or node.domain not in ("", "ai.onnx.ml")


def _nudged_run(graph: FuzzGraph, rng: np.random.Generator) -> Mapping[str, Array]:
    """Every value, with the operands and results of rounding operators nudged.

    A value that cannot be computed any more (a nudged number became an index that is outside) is
    missing, and so is what follows from it.
    """
    values = {name: graph.values[name] for name in (*graph.inputs, *graph.constants)}
    for node in graph.nodes:
        names = [name for name in (*node.input, *captured(node)) if name]
        if any(name not in values for name in names):
            continue
        inputs = {name: values[name] for name in names}
        rounds = node.op_type not in EXACT
        if rounds and node.op_type not in ("Cast", "CastLike"):
            inputs = {name: _nudge(array, rng) for name, array in inputs.items()}
        try:
            results = run_node(node, graph.opset, inputs)
        except Exception:  # the oracles raise whatever they meet
            continue
        if rounds:
            floor = _floor(node.op_type, inputs.values())
            results = [_nudge(r, rng, floor) for r in results]
        values |= zip((o for o in node.output if o), results, strict=True)
    return values


def _floor(operator: str, operands: Iterable[Array]) -> float:
    """The least magnitude whose units in the last place a result is off by."""
    if operator in SAMPLING:
        return float(max(extent for operand in operands for extent in (1, *operand.shape)))
    return 1.0 if operator in CANCELLING else 0.0


def _nudge(array: Array, rng: np.random.Generator, floor: float = 0.0) -> Array:
    """Units in the last place of each element, or of `floor` where that is larger."""
    if not _is_float(array) or array.size == 0:
        return array
    step = ULPS * _epsilon(array.dtype) * rng.uniform(-1, 1, array.shape)
    with np.errstate(all="ignore"):
        wide = _wide(array)
        return (wide + step * np.maximum(np.abs(wide), floor)).astype(array.dtype)


def _expected(value: Array, runs: Sequence[Array], device: str) -> Expected:
    """The spread of the runs becomes the tolerance; what has none is undetermined."""
    determined = np.full(value.shape, len(runs) > 0)
    tolerance = np.zeros(value.shape)
    wide = _wide(value)
    for run in runs:
        if run.shape != value.shape:
            return Expected(value, tolerance, np.zeros(value.shape, bool))
        with np.errstate(all="ignore"):
            if _is_float(value):
                away = np.abs(_wide(run) - wide)
                tolerance = np.fmax(tolerance, away)
                determined &= (np.isfinite(_wide(run)) == np.isfinite(wide)) | (run == value)
            else:
                determined &= np.asarray(run == value)
    if _is_float(value):
        epsilon = _epsilon(value.dtype)
        flushed = FLUSHED[value.dtype.name]
        with np.errstate(all="ignore"):
            tolerance = SPREAD * tolerance + 2 * ULPS * epsilon * np.abs(wide) + flushed
        tolerance = np.nan_to_num(tolerance, posinf=0.0)
    return Expected(value, tolerance, determined)


def _epsilon(dtype: np.dtype[np.generic]) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def _is_half(array: Array) -> bool:
    return array.dtype.name in ("float16", "bfloat16")


def _is_float(array: Array) -> bool:
    return array.dtype.name in FLUSHED


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if _is_float(array) else array
