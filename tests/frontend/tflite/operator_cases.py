"""One case or more for each operator of TensorFlow Lite, and the files that hold them.

`python -m tests.frontend.tflite.record` runs all cases in LiteRT and writes its results beside this
file (`recorded.npz`). A case is one operator with inputs that are given at run time, and with
constants.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from tests.frontend.tflite.tflite_file import (
    ELEMENTS,
    FileGraph,
    FileOperator,
    FileTensor,
    FloatList,
    constant,
    tflite_file,
)

RANDOM = np.random.default_rng(5)


def floats(*shape: int, low: float = -2, high: float = 2) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


def integers(*values: Any, dtype: Any = np.int32) -> np.ndarray:
    return np.array(values, dtype)


@dataclass(frozen=True)
class Given:
    """An input that is given at run time."""

    array: np.ndarray


@dataclass(frozen=True)
class State:
    """An input that keeps its value from run to run, and begins with zeros."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class OperatorCase:
    """An operator with its inputs: `Given` arrays, constants, states, or None for a left-out
    input. `custom` are the options of a custom operator.
    """

    operator: str
    inputs: tuple[Given | State | np.ndarray | None, ...]
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("FLOAT32",)
    version: int = 1
    custom: bytes | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs of a run by name."""
        return {f"x{i}": x.array for i, x in enumerate(self.inputs) if isinstance(x, Given)}

    def content(self, shapes: tuple[tuple[int, ...], ...]) -> bytes:
        """The file, whose outputs have these shapes."""
        tensors: list[FileTensor] = []
        places: list[int] = []
        for number, x in enumerate(self.inputs):
            if x is None:
                places.append(-1)
                continue
            places.append(len(tensors))
            name = f"x{number}"
            if isinstance(x, State):
                tensors.append(FileTensor(name, x.shape, is_variable=True))
            elif isinstance(x, Given):
                tensors.append(FileTensor(name, x.array.shape, ELEMENTS[x.array.dtype]))
            else:
                tensors.append(constant(name, x))
        given = [p for p, x in zip(places, self.inputs, strict=True) if isinstance(x, Given)]
        results = range(len(tensors), len(tensors) + len(self.outputs))
        for number, (element, shape) in enumerate(zip(self.outputs, shapes, strict=True)):
            tensors.append(FileTensor(f"y{number}", shape, element))
        operator = FileOperator(
            self.operator, places, results, self.kind, self.options, self.custom, self.version
        )
        return tflite_file([FileGraph(tensors, [operator], given, results)])


def case(
    operator: str,
    *inputs: Any,
    kind: str = "",
    outputs: Any = None,
    version: int = 1,
    custom: Any = None,
    **options: Any,
) -> OperatorCase:
    """Make a case. Arrays are given at run time; `fixed` arrays are constants."""
    wrapped = tuple(
        x.array
        if isinstance(x, Fixed)
        else x
        if x is None or isinstance(x, State)
        else Given(np.asarray(x))
        for x in inputs
    )
    return OperatorCase(operator, wrapped, kind, options, outputs or ("FLOAT32",), version, custom)


@dataclass(frozen=True)
class Fixed:
    """A constant input."""

    array: np.ndarray


def fixed(*values: Any, dtype: Any = np.int32) -> Fixed:
    return Fixed(np.array(values, dtype))


X, POSITIVE, MAP = floats(2, 3, 4), floats(2, 3, 4, low=0.1), floats(1, 5, 6, 4)
INTEGERS = RANDOM.integers(-9, 9, (2, 3, 4)).astype(np.int32)
DIVISORS = np.where(INTEGERS.T.reshape(2, 3, 4) == 0, 3, INTEGERS.T.reshape(2, 3, 4))
BOOLS = RANDOM.random((2, 3, 4)) < 0.5
FILTERS, DEPTH = Fixed(floats(8, 3, 3, 4)), Fixed(floats(1, 3, 3, 8))
BIAS = Fixed(floats(8))
WINDOW = {"StrideW": 2, "StrideH": 1}
DILATED = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 2, "DilationHFactor": 2}
CONV, DEPTHWISE, POOL = "Conv2DOptions", "DepthwiseConv2DOptions", "Pool2DOptions"
SLICE = "StridedSliceOptions"
INT, LONG, BOOL = ("INT32",), ("INT64",), ("BOOL",)


def _weights(count: int, *shape: int) -> tuple[Fixed, ...]:
    """Constant weights of this shape."""
    return tuple(Fixed(floats(*shape, low=-1, high=1)) for _ in range(count))


SEQUENCE = floats(2, 3, 5)
_GATES = (*_weights(4, 4, 5), *_weights(4, 4, 4), None, None, None, *_weights(4, 4), None, None)
_FULL_GATES = (
    *_weights(4, 4, 5), *_weights(4, 4, 3), *_weights(3, 4), *_weights(4, 4), *_weights(1, 3, 4),
    None,
)  # fmt: skip
_COUPLED = (
    None, *_weights(3, 4, 5), None, *_weights(3, 4, 4), None, None, None, None, *_weights(3, 4),
    None, None,
)  # fmt: skip
_CELL = (State((2, 4)), State((2, 4)))
LSTM: dict[str, Any] = {"kind": "UnidirectionalSequenceLSTMOptions", "FusedActivationFunction": 4}
BOXES = (
    floats(6, 2, low=0, high=1) * 0.3 + np.array([[0, 0], [0, 0], [2, 2], [2, 2], [5, 5], [5, 5]])
).astype(np.float32)
BOXES = np.concatenate([BOXES, BOXES + 1], 1)
SCORES = np.array([0.9, 0.8, 0.3, 0.7, 0.05, 0.6], np.float32)
LIMITS = (Fixed(np.array(4, np.int32)), Fixed(np.float32(0.4)), Fixed(np.float32(0.1)))
DETECTIONS = {
    "max_detections": 4, "max_classes_per_detection": 2, "num_classes": 3,
    "nms_score_threshold": 0.2, "nms_iou_threshold": 0.5, "y_scale": 10.0, "x_scale": 10.0,
    "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip
ANCHORS = Fixed(np.concatenate([(BOXES[:, :2] + BOXES[:, 2:]) / 2, np.ones((6, 2))], 1, dtype="f"))

_UNARY = {
    "ABS": X, "CEIL": X, "COS": X, "ELU": X, "EXP": X, "FLOOR": X, "LOG": POSITIVE, "LOGISTIC": X,
    "NEG": X, "RELU": X, "RELU6": X * 5, "RELU_0_TO_1": X, "RELU_N1_TO_1": X, "ROUND": X * 2,
    "RSQRT": POSITIVE, "SIGN": X, "SIN": X, "SQRT": POSITIVE, "SQUARE": X, "TANH": X,
    "HARD_SWISH": X * 3, "ZEROS_LIKE": X, "LOG_SOFTMAX": X,
}  # fmt: skip
_BINARY = {
    "ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions",
    "MAXIMUM": "MaximumMinimumOptions", "MINIMUM": "MaximumMinimumOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions", "FLOOR_MOD": "FloorModOptions",
    "FLOOR_DIV": "FloorDivOptions",
}  # fmt: skip
_COMPARISONS = {
    "EQUAL": "EqualOptions", "NOT_EQUAL": "NotEqualOptions", "LESS": "LessOptions",
    "LESS_EQUAL": "LessEqualOptions", "GREATER": "GreaterOptions",
    "GREATER_EQUAL": "GreaterEqualOptions",
}  # fmt: skip
_REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
REDUCER = "ReducerOptions"

CASES: dict[str, OperatorCase] = {
    **{name: case(name, x) for name, x in _UNARY.items()},
    **{name: case(name, X, floats(3, 1), kind=kind) for name, kind in _BINARY.items()},
    **{
        f"{name} of integers": case(name, INTEGERS, DIVISORS, kind=_BINARY[name], outputs=INT)
        for name in ("ADD", "SUB", "MUL", "DIV", "FLOOR_MOD", "FLOOR_DIV", "MAXIMUM")
    },
    **{
        name: case(name, INTEGERS, INTEGERS[::-1].copy(), kind=kind, outputs=BOOL)
        for name, kind in _COMPARISONS.items()
    },
    **{name: case(name, X, fixed(0, 2), kind=REDUCER) for name in _REDUCTIONS},
    "SUM that keeps dimensions": case("SUM", X, fixed(-1), kind=REDUCER, KeepDims=True),
    "REDUCE_ANY": case("REDUCE_ANY", BOOLS, fixed(2), kind=REDUCER, outputs=BOOL),
    "REDUCE_ALL": case("REDUCE_ALL", BOOLS, fixed(0), kind=REDUCER, outputs=BOOL, KeepDims=True),
    "ADD and RELU6": case("ADD", X * 4, X, kind="AddOptions", FusedActivationFunction=3),
    "SUB and RELU_N1_TO_1": case("SUB", X, -X, kind="SubOptions", FusedActivationFunction=2),
    "GELU": case("GELU", X, kind="GeluOptions"),
    "GELU by tanh": case("GELU", X, kind="GeluOptions", Approximate=True),
    "LEAKY_RELU": case("LEAKY_RELU", X, kind="LeakyReluOptions", Alpha=0.3),
    "PRELU": case("PRELU", MAP, Fixed(floats(1, 1, 4))),
    "ATAN2": case("ATAN2", X, X[::-1].copy(), kind="ATan2Options"),
    "POW": case("POW", POSITIVE, X, kind="PowOptions"),
    "ADD_N": case("ADD_N", X, X * 2, X * X, kind="AddNOptions"),
    "LOGICAL_NOT": case("LOGICAL_NOT", BOOLS, outputs=BOOL),
    "LOGICAL_AND": case("LOGICAL_AND", BOOLS, ~BOOLS[:, ::-1], outputs=BOOL),
    "LOGICAL_OR": case("LOGICAL_OR", BOOLS, BOOLS[:, ::-1].copy(), outputs=BOOL),
    "BITWISE_XOR": case(
        "BITWISE_XOR", INTEGERS, DIVISORS, kind="BitwiseXorOptions", outputs=INT
    ),
    "RIGHT_SHIFT": case(
        "RIGHT_SHIFT", INTEGERS * 9, np.abs(DIVISORS) % 5, kind="RightShiftOptions", outputs=INT
    ),
    "CAST": case("CAST", X * 3, kind="CastOptions", outputs=INT),
    "CAST to bool": case("CAST", INTEGERS, kind="CastOptions", outputs=BOOL),
    "SELECT": case("SELECT", BOOLS[0, :2, 0].copy(), X, X * 2, kind="SelectOptions"),
    "SELECT_V2": case("SELECT_V2", BOOLS[0], X, floats(4), kind="SelectV2Options"),
    "SOFTMAX": case("SOFTMAX", X, kind="SoftmaxOptions", Beta=2.0),
    "L2_NORMALIZATION": case("L2_NORMALIZATION", X, kind="L2NormOptions"),
    "LOCAL_RESPONSE_NORMALIZATION": case(
        "LOCAL_RESPONSE_NORMALIZATION", MAP, kind="LocalResponseNormalizationOptions",
        Radius=1, Bias=1.0, Alpha=0.7, Beta=0.6,
    ),
    "CONV_2D": case("CONV_2D", MAP, FILTERS, BIAS, kind=CONV, **WINDOW),
    "CONV_2D without padding": case("CONV_2D", MAP, FILTERS, BIAS, kind=CONV, Padding=1, **WINDOW),
    "CONV_2D dilated": case("CONV_2D", MAP, FILTERS, BIAS, kind=CONV, **DILATED),
    "CONV_2D in groups": case(
        "CONV_2D", MAP, Fixed(floats(8, 3, 3, 2)), BIAS, kind=CONV, **WINDOW
    ),
    "DEPTHWISE_CONV_2D": case(
        "DEPTHWISE_CONV_2D", MAP, DEPTH, BIAS, kind=DEPTHWISE, DepthMultiplier=2,
        StrideW=2, StrideH=2, FusedActivationFunction=1,
    ),
    "CONV_3D": case(
        "CONV_3D", floats(1, 4, 5, 4, 2), Fixed(floats(2, 3, 3, 2, 3)), Fixed(floats(3)),
        kind="Conv3DOptions", StrideD=1, StrideH=2, StrideW=1,
    ),
    "TRANSPOSE_CONV": case(
        "TRANSPOSE_CONV", fixed(1, 10, 12, 3), Fixed(floats(3, 3, 3, 4)), MAP,
        kind="TransposeConvOptions", StrideH=2, StrideW=2,
    ),
    "TRANSPOSE_CONV with bias": case(
        "TRANSPOSE_CONV", fixed(1, 11, 13, 3), Fixed(floats(3, 3, 3, 4)), MAP, Fixed(floats(3)),
        kind="TransposeConvOptions", StrideH=2, StrideW=2, Padding=1, version=3,
    ),
    "CONV_3D_TRANSPOSE": case(
        "CONV_3D_TRANSPOSE", fixed(1, 6, 8, 4, 3), Fixed(floats(3, 3, 2, 3, 2)),
        floats(1, 3, 4, 4, 2), kind="Conv3DOptions", StrideD=2, StrideH=2, StrideW=1,
    ),
    **{
        name: case(
            name, MAP, kind=POOL, FilterHeight=3, FilterWidth=2, StrideH=2, StrideW=1
        )
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
    },
    **{
        f"RESIZE_{mode}{name}": case(
            f"RESIZE_{mode}", MAP, fixed(7, 9), kind=f"Resize{kind}Options", **options
        )
        for mode, kind in (("BILINEAR", "Bilinear"), ("NEAREST_NEIGHBOR", "NearestNeighbor"))
        for name, options in {
            "": {}, " by corners": {"AlignCorners": True}, " by halves": {"HalfPixelCenters": True}
        }.items()
    },
    "DEPTH_TO_SPACE": case("DEPTH_TO_SPACE", MAP, kind="DepthToSpaceOptions", BlockSize=2),
    "SPACE_TO_DEPTH": case(
        "SPACE_TO_DEPTH", floats(1, 4, 6, 3), kind="SpaceToDepthOptions", BlockSize=2
    ),
    "SPACE_TO_BATCH_ND": case(
        "SPACE_TO_BATCH_ND", MAP, fixed(2, 3), fixed([1, 0], [2, 1]), kind="SpaceToBatchNDOptions"
    ),
    "BATCH_TO_SPACE_ND": case(
        "BATCH_TO_SPACE_ND", floats(6, 3, 2, 2), fixed(2, 3), fixed([1, 0], [0, 2]),
        kind="BatchToSpaceNDOptions",
    ),
    "FULLY_CONNECTED": case(
        "FULLY_CONNECTED", floats(3, 5), Fixed(floats(4, 5)), Fixed(floats(4)),
        kind="FullyConnectedOptions", FusedActivationFunction=1,
    ),
    "FULLY_CONNECTED of a vector": case(
        "FULLY_CONNECTED", POSITIVE[0, 0], Fixed(X[0].copy()), None, kind="FullyConnectedOptions",
        KeepNumDims=True, version=6,
    ),
    "FULLY_CONNECTED of rank 3": case(
        "FULLY_CONNECTED", floats(2, 3, 5), Fixed(floats(4, 5)), None,
        kind="FullyConnectedOptions", KeepNumDims=True, version=6,
    ),
    "BATCH_MATMUL": case(
        "BATCH_MATMUL", floats(2, 3, 5), floats(2, 4, 5), kind="BatchMatMulOptions", AdjY=True
    ),
    "RESHAPE": case("RESHAPE", X, fixed(4, -1), kind="ReshapeOptions", NewShape=(4, -1)),
    "SQUEEZE": case("SQUEEZE", X[:1].copy(), kind="SqueezeOptions", SqueezeDims=(0,)),
    "EXPAND_DIMS": case("EXPAND_DIMS", X, fixed(-2), kind="ExpandDimsOptions"),
    "TRANSPOSE": case("TRANSPOSE", X, fixed(2, 0, 1), kind="TransposeOptions"),
    "CONCATENATION": case("CONCATENATION", X, X * 2, kind="ConcatenationOptions", Axis=-2),
    "PACK": case("PACK", X, X * 2, kind="PackOptions", Axis=1, ValuesCount=2),
    "UNPACK": case("UNPACK", X, kind="UnpackOptions", Axis=1, Num=3, outputs=("FLOAT32",) * 3),
    "SPLIT": case(
        "SPLIT", Fixed(np.array(2, np.int32)), X, kind="SplitOptions", NumSplits=2,
        outputs=("FLOAT32",) * 2,
    ),
    "SPLIT_V": case(
        "SPLIT_V", X, fixed(1, -1), Fixed(np.array(2, np.int32)), kind="SplitVOptions",
        NumSplits=2, outputs=("FLOAT32",) * 2,
    ),
    "SLICE": case("SLICE", X, fixed(0, 1, 2), fixed(-1, 2, 1), kind="SliceOptions"),
    "SLICE at positions of a run": case(
        "SLICE", X, integers(1, 0, 1), fixed(1, 2, 2), kind="SliceOptions"
    ),
    "STRIDED_SLICE": case(
        "STRIDED_SLICE", X, fixed(0, 2, 3), fixed(2, 0, 0), fixed(1, -1, -2), kind=SLICE,
        EndMask=4,
    ),
    "STRIDED_SLICE with an ellipsis": case(
        "STRIDED_SLICE", X, fixed(0, 0, -1), fixed(0, 0, 0), fixed(1, 1, 1), kind=SLICE,
        EllipsisMask=1, NewAxisMask=2, ShrinkAxisMask=4,
    ),
    "PAD": case("PAD", X, fixed([0, 1], [2, 0], [1, 1]), kind="PadOptions"),
    "PADV2": case("PADV2", X, fixed([0, 1], [2, 0], [1, 1]), Fixed(np.float32(3)),
                  kind="PadV2Options"),
    "MIRROR_PAD": case("MIRROR_PAD", X, fixed([1, 0], [1, 2], [0, 3]), kind="MirrorPadOptions"),
    "MIRROR_PAD with edges": case(
        "MIRROR_PAD", X, fixed([1, 0], [1, 2], [0, 3]), kind="MirrorPadOptions", Mode=1
    ),
    "REVERSE_V2": case("REVERSE_V2", X, fixed(2), kind="ReverseV2Options"),
    "REVERSE_SEQUENCE": case(
        "REVERSE_SEQUENCE", X, integers(2, 4, 1), kind="ReverseSequenceOptions", SeqDim=2,
        BatchDim=1,
    ),
    "TILE": case("TILE", X, fixed(1, 2, 3), kind="TileOptions"),
    "BROADCAST_TO": case("BROADCAST_TO", X[:1].copy(), fixed(2, 2, 3, 4), version=2),
    "BROADCAST_ARGS": case("BROADCAST_ARGS", integers(3, 1), integers(2, 1, 4), outputs=INT),
    "GATHER": case("GATHER", X, integers(2, 0), kind="GatherOptions", Axis=1),
    "GATHER of batches": case(
        "GATHER", X, integers([2, 0], [1, 1]), kind="GatherOptions", Axis=1, BatchDims=1
    ),
    "GATHER_ND": case("GATHER_ND", X, integers([0, 2], [1, 0]), kind="GatherNdOptions"),
    "SCATTER_ND": case(
        "SCATTER_ND", integers([1], [3], [1]), floats(3, 2), fixed(5, 2), kind="ScatterNdOptions"
    ),
    "EMBEDDING_LOOKUP": case("EMBEDDING_LOOKUP", integers(2, 0, 2), Fixed(floats(3, 4))),
    "STRIDED_SLICE by offsets to the end": case(
        "STRIDED_SLICE", X, fixed(1, -2, -3), fixed(1, 2, 1), fixed(1, 1, 1), kind=SLICE,
        Offset=True, BeginMask=1,
    ),
    "STRIDED_SLICE of a masked index": case(
        "STRIDED_SLICE", X, fixed(1, 1, 2), fixed(2, 2, 3), fixed(1, 1, 1), kind=SLICE,
        BeginMask=5, ShrinkAxisMask=5,
    ),
    "SHAPE": case("SHAPE", X, kind="ShapeOptions", OutType=2, outputs=INT),
    "RANK": case("RANK", X, kind="RankOptions", outputs=INT),
    "FILL": case("FILL", integers(2, 3), Fixed(np.float32(1.5)), kind="FillOptions"),
    "RANGE": case(
        "RANGE", *(Fixed(np.array(v, np.int32)) for v in (3, 12, 4)), kind="RangeOptions",
        outputs=INT,
    ),
    "ONE_HOT": case(
        "ONE_HOT", integers(2, -1, 0, 5), Fixed(np.array(3, np.int32)), Fixed(np.float32(2)),
        Fixed(np.float32(-1)), kind="OneHotOptions", Axis=-1,
    ),
    "ARG_MAX": case("ARG_MAX", X, fixed(1), kind="ArgMaxOptions", OutputType=2, outputs=INT),
    "ARG_MIN": case("ARG_MIN", X, fixed(-1), kind="ArgMinOptions", OutputType=4, outputs=LONG),
    "TOPK_V2": case(
        "TOPK_V2", X, Fixed(np.array(2, np.int32)), kind="TopKV2Options",
        outputs=("FLOAT32", "INT32"),
    ),
    "CUMSUM": case(
        "CUMSUM", X, Fixed(np.array(1, np.int32)), kind="CumsumOptions", Exclusive=True,
        Reverse=True,
    ),
    "WHERE": case("WHERE", BOOLS, kind="WhereOptions", outputs=LONG),
    "SEGMENT_SUM": case(
        "SEGMENT_SUM", floats(4, 3), integers(0, 0, 1, 2), kind="SegmentSumOptions"
    ),
    **{
        f"UNSORTED_SEGMENT_{name}": case(
            f"UNSORTED_SEGMENT_{name}", floats(4, 3), integers(2, 0, 2, 0),
            Fixed(np.array(3, np.int32)), kind=f"UnsortedSegment{name.title()}Options",
        )
        for name in ("SUM", "PROD", "MAX", "MIN")
    },
    **{
        f"UNSORTED_SEGMENT_{name} with a dropped row": case(
            f"UNSORTED_SEGMENT_{name}", X[0].copy(), integers(1, -1, 1),
            Fixed(np.array(2, np.int32)), kind=f"UnsortedSegment{name.title()}Options",
        )
        for name in ("SUM", "PROD", "MAX", "MIN")
    },
    "DYNAMIC_UPDATE_SLICE": case(
        "DYNAMIC_UPDATE_SLICE", X, floats(1, 2, 2), integers(1, 2, 0),
        kind="DynamicUpdateSliceOptions",
    ),
    "SPARSE_TO_DENSE": case(
        "SPARSE_TO_DENSE", integers([0, 1], [2, 0]), fixed(3, 2), floats(2),
        Fixed(np.float32(-1)), kind="SparseToDenseOptions",
    ),
    "MATRIX_DIAG": case("MATRIX_DIAG", floats(2, 3), kind="MatrixDiagOptions"),
    "MATRIX_SET_DIAG": case(
        "MATRIX_SET_DIAG", floats(2, 3, 4), floats(2, 3), kind="MatrixSetDiagOptions"
    ),
    "FAKE_QUANT": case(
        "FAKE_QUANT", X * 3, kind="FakeQuantOptions", Min=-3.0, Max=5.0, NumBits=8
    ),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": case(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", SEQUENCE, *_GATES, *_CELL, **LSTM
    ),
    "UNIDIRECTIONAL_SEQUENCE_LSTM with limits": case(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", SEQUENCE.transpose(1, 0, 2).copy(), *_FULL_GATES,
        State((2, 3)), State((2, 4)), CellClip=0.4, ProjClip=0.5, TimeMajor=True, **LSTM,
    ),
    "UNIDIRECTIONAL_SEQUENCE_LSTM of coupled gates": case(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", SEQUENCE, *_COUPLED, *_CELL, **LSTM
    ),
    "UNIDIRECTIONAL_SEQUENCE_LSTM with norms": case(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", SEQUENCE, *_GATES, *_CELL, *_weights(4, 4), **LSTM
    ),
    "LSTM": case(
        "LSTM", SEQUENCE[:, 0].copy(), *_GATES, *_CELL, kind="LSTMOptions",
        FusedActivationFunction=4,
    ),
    "BIDIRECTIONAL_SEQUENCE_LSTM": case(
        "BIDIRECTIONAL_SEQUENCE_LSTM", SEQUENCE, *_GATES, *_GATES, *_CELL, *_CELL, *(None,) * 9,
        kind="BidirectionalSequenceLSTMOptions", FusedActivationFunction=4, MergeOutputs=True,
        TimeMajor=False,
    ),
    "UNIDIRECTIONAL_SEQUENCE_RNN": case(
        "UNIDIRECTIONAL_SEQUENCE_RNN", SEQUENCE, *_weights(1, 4, 5), *_weights(1, 4, 4),
        *_weights(1, 4), State((2, 4)), kind="SequenceRNNOptions", FusedActivationFunction=1,
    ),
    "BIDIRECTIONAL_SEQUENCE_RNN": case(
        "BIDIRECTIONAL_SEQUENCE_RNN", SEQUENCE,
        *(*_weights(1, 4, 5), *_weights(1, 4, 4), *_weights(1, 4), State((2, 4))),
        *(*_weights(1, 4, 5), *_weights(1, 4, 4), *_weights(1, 4), State((2, 4))),
        None, None, None, kind="BidirectionalSequenceRNNOptions", FusedActivationFunction=4,
        outputs=("FLOAT32",) * 2,
    ),
    "RNN": case(
        "RNN", SEQUENCE[:, 0].copy(), *_weights(1, 4, 5), *_weights(1, 4, 4), *_weights(1, 4),
        State((2, 4)), kind="RNNOptions", FusedActivationFunction=4,
    ),
    "SVDF": case(
        "SVDF", SEQUENCE[:, 0].copy(), *_weights(1, 6, 5), *_weights(1, 6, 4), *_weights(1, 3),
        State((2, 24)), kind="SVDFOptions", Rank=2, FusedActivationFunction=1,
    ),
    "UNIQUE": case(
        "UNIQUE", np.array([3, 1, 3, 2, 1], np.float32), kind="UniqueOptions", IdxOutType=2,
        outputs=("FLOAT32", "INT32"),
    ),
    "BITCAST": case("BITCAST", X, kind="BitcastOptions", outputs=INT),
    "DILATE": case("DILATE", X, fixed(1, 2, 3), Fixed(np.float32(7)),
                   kind="DilateOptions"),
    "REDUCE_WINDOW": case(
        "REDUCE_WINDOW", floats(5, 7), Fixed(np.float32(0.5)), Fixed(np.array([2, 3])),
        Fixed(np.array([1, 2])), Fixed(np.array([2, 1])), kind="ReduceWindowOptions",
        ReduceFunction=1,
    ),
    "NON_MAX_SUPPRESSION_V4": case(
        "NON_MAX_SUPPRESSION_V4", BOXES, SCORES, *LIMITS, kind="NonMaxSuppressionV4Options",
        outputs=INT * 2,
    ),
    "NON_MAX_SUPPRESSION_V5": case(
        "NON_MAX_SUPPRESSION_V5", BOXES, SCORES, *LIMITS, Fixed(np.float32(0)),
        kind="NonMaxSuppressionV5Options", outputs=("INT32", "FLOAT32", "INT32"),
    ),
    **{
        f"TFLite_Detection_PostProcess{name}": case(
            "TFLite_Detection_PostProcess", floats(1, 6, 4), floats(1, 6, 4, low=0, high=1),
            ANCHORS, custom=bytes(flexbuffers.Dumps({**DETECTIONS, **options})),
            outputs=("FLOAT32",) * 4,
        )
        for name, options in {
            "": {}, " by class": {"use_regular_nms": True, "detections_per_class": 2},
        }.items()
    },
    "BUCKETIZE": case(
        "BUCKETIZE", np.array([-5, 0, 1, 1.5, 9], np.float32), kind="BucketizeOptions",
        Boundaries=FloatList([0, 1, 5]), outputs=INT,
    ),
    "DEQUANTIZE of halves": case(
        "DEQUANTIZE", Fixed(floats(2, 3).astype(np.float16)), kind="DequantizeOptions"
    ),
}  # fmt: skip
"""The cases by name."""


def _quantised(
    operator: str,
    scales: list[float],
    scale: float,
    zero: int,
    kind: str = "",
    shape: Any = (1, 8, 8, 16),
    constants: Any = (),
    element: Any = "INT8",
    **options: Any,
) -> FileGraph:
    """A graph of one operator on quantised tensors. The inputs have these scales, and zero points
    that differ; int16 has none.
    """
    first = {"INT8": 3, "UINT8": 120, "INT16": 0}[element]
    zeros = [first - 5 * i if first else 0 for i in range(len(scales))]
    ports = [(f"x{i}", s, z) for i, (s, z) in enumerate(zip(scales, zeros, strict=True))]
    size = (1, 8, 8, 16)
    tensors = [FileTensor(name, size, element, scale=s, zero=z) for name, s, z in ports]
    tensors += [*constants, FileTensor("y", tuple(shape), element, scale=scale, zero=zero)]
    last = len(tensors) - 1
    nodes = [FileOperator(operator, range(last), [last], kind, options)]
    return FileGraph(tensors, nodes, range(len(scales)), [last])


_SCALES = np.linspace(0.001, 0.01, 24).astype(np.float32)
_FILTERS = (
    constant("w", RANDOM.integers(-128, 128, (24, 3, 3, 16)).astype(np.int8), scale=_SCALES,
             zero=[0] * 24),
    constant("b", RANDOM.integers(-2000, 2000, 24).astype(np.int32), scale=_SCALES * 0.03,
             zero=[0] * 24),
)  # fmt: skip


def _wide_weights(*shape: int, axis: int = 0, scales: Any = 0.004) -> tuple[FileTensor, ...]:
    """Weights of bytes, and a bias of 64 bits, for inputs of 16 bits with the scale 0.0003."""
    zeros = np.zeros_like(scales)
    weights = RANDOM.integers(-128, 128, shape).astype(np.int8)
    bias = RANDOM.integers(-9 * 10**6, 9 * 10**6, shape[axis])
    return (
        constant("w", weights, scale=scales, zero=zeros, axis=axis),
        constant("b", bias, scale=np.multiply(scales, 0.0003), zero=zeros),
    )


_WIDE = _wide_weights(24, 3, 3, 16, scales=_SCALES)
_WIDE_DEPTH = _wide_weights(1, 3, 3, 16, axis=3, scales=_SCALES[:16])
_WIDE_ROWS = _wide_weights(24, 16)
_AXES = (constant("axes", integers(1, 2)),)
_WINDOW = {"FilterHeight": 3, "FilterWidth": 3, "StrideW": 1, "StrideH": 1}

_SUMS = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}

QUANTISED: dict[str, FileGraph] = {
    **{name: _quantised(name, [0.03, 0.05], 0.06, 2, kind) for name, kind in _SUMS.items()},
    **{
        f"{name} of uint8 and RELU6": _quantised(
            name, [0.03, 0.05], 0.06, 100, kind, element="UINT8", FusedActivationFunction=3
        )
        for name, kind in _SUMS.items()
    },
    **{
        f"{name} of int16": _quantised(
            name, [0.0003, 0.0005], 0.0006, 0, kind, element="INT16",
            **({} if name == "MUL" else {"PotScaleInt16": False}),
        )
        for name, kind in _SUMS.items()
    },
    "ADD of far scales": _quantised("ADD", [0.00003, 0.05], 0.06, 2, "AddOptions"),
    "MUL of far scales": _quantised("MUL", [0.00001, 0.001], 0.06, 2, "MulOptions"),
    "HARD_SWISH": _quantised("HARD_SWISH", [0.03], 0.03, 0),
    "HARD_SWISH of large numbers": _quantised("HARD_SWISH", [0.9], 1.1, -4),
    "HARD_SWISH of uint8": _quantised("HARD_SWISH", [0.05], 0.04, 10, element="UINT8"),
    **{
        f"AVERAGE_POOL_2D of {element}": _quantised(
            "AVERAGE_POOL_2D", [0.03], 0.03, zero, "Pool2DOptions", element=element, **_WINDOW
        )
        for element, zero in (("INT8", 3), ("UINT8", 120), ("INT16", 0))
    },
    "AVERAGE_POOL_2D of 2 x 3": _quantised(
        "AVERAGE_POOL_2D", [0.03], 0.03, 3, "Pool2DOptions", FilterHeight=2, FilterWidth=3,
        StrideW=1, StrideH=1, FusedActivationFunction=1,
    ),
    "LOGISTIC": _quantised("LOGISTIC", [0.03], 1 / 256, -128),
    "TANH": _quantised("TANH", [0.03], 1 / 128, 0),
    "SOFTMAX": _quantised("SOFTMAX", [0.03], 1 / 256, -128, "SoftmaxOptions", Beta=1.0),
    "MEAN": _quantised(
        "MEAN", [0.03], 0.03, 3, "ReducerOptions", (1, 1, 1, 16), _AXES, KeepDims=True
    ),
    "QUANTIZE": _quantised("QUANTIZE", [0.03], 0.047, -7, "QuantizeOptions"),
    "QUANTIZE of uint8": _quantised(
        "QUANTIZE", [0.03], 0.011, 7, "QuantizeOptions", element="UINT8"
    ),
    "QUANTIZE of int16": _quantised("QUANTIZE", [0.0003], 0.00047, 0, "QuantizeOptions",
                                    element="INT16"),
    "CONV_2D of int16": _quantised(
        "CONV_2D", [0.0003], 0.005, 0, "Conv2DOptions", (1, 8, 8, 24), _WIDE, element="INT16",
        StrideW=1, StrideH=1, DilationWFactor=1, DilationHFactor=1,
    ),
    "DEPTHWISE_CONV_2D of int16": _quantised(
        "DEPTHWISE_CONV_2D", [0.0003], 0.0005, 0, "DepthwiseConv2DOptions", (1, 4, 4, 16),
        _WIDE_DEPTH, element="INT16", StrideW=2, StrideH=2, DepthMultiplier=1,
        DilationWFactor=1, DilationHFactor=1, FusedActivationFunction=3,
    ),
    "FULLY_CONNECTED of int16": _quantised(
        "FULLY_CONNECTED", [0.0003], 0.004, 0, "FullyConnectedOptions", (1, 8, 8, 24), _WIDE_ROWS,
        element="INT16", KeepNumDims=True,
    ),
    "CONV_2D": _quantised(
        "CONV_2D", [0.03], 0.5, -4, "Conv2DOptions", (1, 8, 8, 24), _FILTERS,
        StrideW=1, StrideH=1, FusedActivationFunction=1,
    ),
}  # fmt: skip
"""Graphs of one operator on integers. LiteRT runs XNNPACK's kernels, where it has one."""


def _hybrid(
    operator: str, kind: str, shape: Any, filters: Any, result: Any, **options: Any
) -> FileGraph:
    """A graph of a product of floats and weights of bytes, which have a scale for each row."""
    weights = RANDOM.integers(-127, 128, filters).astype(np.int8)
    scales = np.linspace(0.001, 0.01, filters[0]).astype(np.float32)
    tensors = [
        FileTensor("x0", shape),
        constant("w", weights, scale=scales, zero=np.zeros_like(scales)),
        constant("b", floats(filters[0])),
        FileTensor("y", result),
    ]
    return FileGraph(tensors, [FileOperator(operator, [0, 1, 2], [3], kind, options)], [0], [3])


HYBRID: dict[str, FileGraph] = {
    "FULLY_CONNECTED": _hybrid(
        "FULLY_CONNECTED", "FullyConnectedOptions", (3, 40), (8, 40), (3, 8)
    ),
    "CONV_2D": _hybrid(
        "CONV_2D", "Conv2DOptions", (2, 6, 6, 8), (16, 3, 3, 8), (2, 6, 6, 16), StrideH=1,
        StrideW=1, DilationHFactor=1, DilationWFactor=1, FusedActivationFunction=1,
    ),
}  # fmt: skip
"""Graphs of one operator whose weights are quantised, and nothing else. LiteRT runs XNNPACK."""


def hybrid_inputs(graph: FileGraph) -> dict[str, np.ndarray]:
    """The input of such a graph by name. Each row and each image has another range."""
    shape = graph.tensors[0].shape
    x = np.random.default_rng(8).uniform(-1, 2, shape).astype(np.float32)
    return {"x0": x * np.arange(1, shape[0] + 1, dtype=np.float32).reshape(-1, *[1] * (x.ndim - 1))}


def quantised_inputs(graph: FileGraph) -> dict[str, np.ndarray]:
    """The inputs of such graphs by name: bytes, or bytes spread over int16."""
    arrays = {}
    for tensor in (graph.tensors[index] for index in graph.inputs):
        random = np.random.default_rng(int(tensor.name[-1]))
        values = random.integers(-128, 128, tensor.shape)
        numpy_type = np.dtype(tensor.element.lower())
        is_wide = numpy_type == np.int16
        values = (
            values * 256 + 77 if is_wide else values % 256 if numpy_type == np.uint8 else values
        )
        arrays[tensor.name] = values.astype(numpy_type)
    return arrays


def joined(graphs: Mapping[str, FileGraph]) -> FileGraph:
    """One graph of all graphs. The names of its tensors begin with the names of the graphs."""
    whole = FileGraph([], [], [], [])
    for name, graph in graphs.items():
        first = len(whole.tensors)
        whole = FileGraph(
            [*whole.tensors, *(replace(t, name=f"{name}/{t.name}") for t in graph.tensors)],
            [*whole.operators, *(_moved(operator, first) for operator in graph.operators)],
            [*whole.inputs, *(index + first for index in graph.inputs)],
            [*whole.outputs, *(index + first for index in graph.outputs)],
        )
    return whole


def _moved(operator: FileOperator, first: int) -> FileOperator:
    """The operator with tensors behind the `first` tensors."""
    inputs, outputs = ([i + first for i in ii] for ii in (operator.inputs, operator.outputs))
    return replace(operator, inputs=inputs, outputs=outputs)
