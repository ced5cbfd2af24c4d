"""Inputs with shapes that do not fit the operator are refused. The message names the actual shape
and the expected one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.graph.ops.test_rows import make_model
from webmlc.build_options import BuildOptions
from webmlc.core.errors import UnsupportedError
from webmlc.graph.ops.operator import case
from webmlc.pipeline import compile_model

X, C = "float32[2, 4, 6, 5]", "float32[4]"
KERNEL = "float32[8, 2, 3, 3]"
STEPS, STATE = "float32[7, 2, 4]", "float32[1, 2, 5]"
LSTM = (STEPS, "float32[1, 20, 4]", "float32[1, 20, 5]")


def reason(operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
    """The reason for which the node cannot be compiled."""
    model, _ = make_model(domain, operator, case(*inputs, **attributes))
    for info in model.graph.output:
        info.CopyFrom(helper.make_tensor_value_info(info.name, 1, []))
    with pytest.raises(UnsupportedError) as caught:
        compile_model(model, BuildOptions("wasm"))
    (node,) = caught.value.nodes
    return node.reason


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X, "float32[3]", C, C, C), "input 1 is of shape [3], not [channels], where channels = 4"),
        ((X, C, C, C, "float32[1]"),
         "input 4 is of shape [1], not [channels], where channels = 4"),
        ((C, C, "float32[1]", "float32[1]", "float32[1]"),
         "input 1 is of shape [4], not [channels], where channels = 1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalisation(inputs: Any, message: str, training: int) -> None:
    assert reason("BatchNormalization", *inputs, training_mode=training) == message


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X, "float32[5]", C), "input 1 is of shape [5], not [channels], where channels = 4"),
        ((X, C, "float32[1, 4]"),
         "input 2 is of shape [1, 4], not [channels], where channels = 4"),
        ((C, C, C), "input 0 is of shape [4], not [batch, channels, ...]"),
    ],
)  # fmt: skip
def test_instance_normalisation(inputs: Any, message: str) -> None:
    assert reason("InstanceNormalization", *inputs) == message


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X, "float32[2]", C), "input 1 is of shape [2], not [channels], where channels = 4"),
        (("float32[2, 5, 3]", C, C),
         "input 0 is of shape [2, 5, 3], not [batch, groups*size, ...], "
         "where batch = 2, groups = 2"),
    ],
)  # fmt: skip
def test_group_normalisation(inputs: Any, message: str) -> None:
    assert reason("GroupNormalization", *inputs, num_groups=2) == message


@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization"])
def test_layer_normalisation(operator: str) -> None:
    message = "an operand of shape [4] does not broadcast to [2, 4, 6, 5]"
    assert reason(operator, X, C) == message


def test_axes_outside() -> None:
    message = "[0, 2, 3] are no axes of a tensor of rank 3"
    assert reason("MeanVarianceNormalization", "float32[2, 3, 4]") == message
    assert reason("LRN", C, size=3) == "input 0 is of shape [4], not [batch, channels, ...]"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X, KERNEL, "float32[1]"), "input 2 is of shape [1], not [outputs], where outputs = 8"),
        ((X, "float32[7, 2, 3, 3]"),
         "input 1 is of shape [7, 2, 3, 3], not [groups*outputs, inputs, ...], "
         "where groups = 2, inputs = 2"),
        ((X, "float32[8, 3, 3, 3]"),
         "input 1 is of shape [8, 3, 3, 3], not [groups*outputs, inputs, ...], "
         "where groups = 2, outputs = 4, inputs = 2"),
        ((X, "float32[8, 2, 3]"),
         "input 1 is of shape [8, 2, 3], not [groups*outputs, inputs, ...], "
         "where groups = 2, inputs = 2"),
        ((X, "float32[8, 2, 3, 2]"), "a kernel of shape [3, 2], not [3, 3] as is said"),
    ],
)  # fmt: skip
def test_convolution(inputs: Any, message: str) -> None:
    assert reason("Conv", *inputs, group=2, kernel_shape=(3, 3)) == message


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((X, "float32[4, 3, 3, 3]", "float32[3]"),
         "input 2 is of shape [3], not [groups*outputs], where groups = 2, outputs = 3"),
        ((X, "float32[6, 3, 3, 3]"),
         "input 1 is of shape [6, 3, 3, 3], not [groups*inputs, outputs, ...], "
         "where groups = 2, inputs = 2"),
        ((X, "float32[4, 3, 3]"),
         "input 1 is of shape [4, 3, 3], not [groups*inputs, outputs, ...], "
         "where groups = 2, inputs = 2"),
    ],
)  # fmt: skip
def test_transposed_convolution(inputs: Any, message: str) -> None:
    assert reason("ConvTranspose", *inputs, group=2) == message


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((STEPS, "float32[1, 20, 3]", LSTM[2]),
         "input 1 is of shape [1, 20, 3], not [directions, gates*hidden, features], "
         "where directions = 1, gates = 4, hidden = 5, features = 4"),
        ((*LSTM[:2], "float32[2, 20, 5]"),
         "input 2 is of shape [2, 20, 5], not [directions, gates*hidden, hidden], "
         "where directions = 1, gates = 4, hidden = 5"),
        ((*LSTM, "float32[1, 20]"),
         "input 3 is of shape [1, 20], not [directions, 2*gates*hidden], "
         "where directions = 1, gates = 4, hidden = 5"),
        ((*LSTM, None, "int32[3] in 1..7"),
         "input 4 is of shape [3], not [batch], where batch = 2"),
        ((*LSTM, None, None, STATE, "float32[2, 5]"),
         "input 6 is of shape [2, 5], not [directions, batch, hidden], "
         "where directions = 1, batch = 2, hidden = 5"),
        ((*LSTM, None, None, None, None, "float32[1, 20]"),
         "input 7 is of shape [1, 20], not [directions, 3*hidden], "
         "where directions = 1, hidden = 5"),
    ],
)  # fmt: skip
def test_recurrent_layer(inputs: Any, message: str) -> None:
    assert reason("LSTM", *inputs, hidden_size=5) == message


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"direction": "up"}, "the direction 'up'"),
        ({"activations": ("Sigmoid", "Tanh")}, "2 activations; 3 a direction are expected"),
        ({"activations": ("Sigmoid", "Tanh", "Sinh")}, "the activation 'Sinh'"),
    ],
)
def test_forms_of_recurrent_layers(attributes: Any, message: str) -> None:
    assert reason("LSTM", *LSTM, hidden_size=5, **attributes) == message


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("Reshape", (X, [3, 70]), {}, "240 elements cannot take the shape ['3', '70']"),
        ("Reshape", (X, [2, 4, 6, 5, 0]), {}, "[4] are no axes of a tensor of rank 4"),
        ("Flatten", (C,), {"axis": 2}, "axis 2 is outside a tensor of rank 1"),
        ("Squeeze", (X, [1]), {}, "axes [1] of float32[2, 4, 6, 5] are not all of size 1"),
        ("Squeeze", (X, [4]), {}, "[4] are no axes of a tensor of rank 4"),
        ("Unsqueeze", (C, [0, -3]), {}, "axes [0, -3] name one twice"),
        ("Transpose", (X,), {"perm": (0, 2, 1)},
         "[0, 2, 1] does not permute the axes of rank 4"),
        ("Tile", (C, [2, 2]), {}, "input 1 is of shape [2], not [rank], where rank = 1"),
        ("Concat", (X, "float32[2, 4, 7, 5]"), {"axis": 1},
         "input 1 is of size 7 along axis 2, others of 6"),
        ("Split", (C, [1, 2, 3]), {"outputs": 3},
         "4 elements cannot be 3 parts of sizes [1, 2, 3]"),
        ("Split", (C,), {"outputs": 3, "opset": 13},
         "4 elements cannot be 3 parts of sizes [1, 1, 1]"),
        ("DepthToSpace", (X,), {"blocksize": 3},
         "input 0 is of shape [2, 4, 6, 5], not [batch, block*block*channels, height, width], "
         "where batch = 2, block = 3"),
        ("SpaceToDepth", (X,), {"blocksize": 2},
         "input 0 is of shape [2, 4, 6, 5], not [batch, channels, block*height, block*width], "
         "where batch = 2, channels = 4, block = 2, height = 3"),
        ("Slice", (X, [0], [1], [4]), {}, "[4] are no axes of a tensor of rank 4"),
        ("Slice", (X, [0, 1], [1]), {}, "input 2 is of shape [1], not [2]"),
        ("Slice", (X, [0], [1], [0], [0]), {},
         "1 starts, axes [0] and steps [0] do not fit together"),
        ("Pad", (X, [0, 1, 1]), {}, "3 pads for 4 axes: 2 for each are expected"),
        ("Pad", (X, [1, 1], None, [5]), {}, "[5] are no axes of a tensor of rank 4"),
    ],
)  # fmt: skip
def test_views(operator: str, inputs: Any, attributes: Any, message: str) -> None:
    assert reason(operator, *inputs, **attributes) == message


GRID = "float32[2, 3, 3, 2]"


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("GatherElements", (C, [[1]]), {}, "input 1 is of shape [1, 1], not [...]"),
        ("GatherElements", ("float32[2, 2]", [[0], [0], [0]]), {"axis": 1},
         "3 indices along axis 0, which has 2 elements"),
        ("GatherND", (C, [[1, 0]]), {}, "indices of length 2 into the last 1 axes"),
        ("GatherND", (X, [[0], [0], [0]]), {"batch_dims": 1},
         "input 1 is of shape [3, 1], not [2, 1]"),
        ("ScatterElements", (C, [1, 0], "float32[3]"), {},
         "input 2 is of shape [3], not [2]"),
        ("ScatterND", (X, [[1], [0]], "float32[2, 4, 6]"), {},
         "input 2 is of shape [2, 4, 6], not [2, 4, 6, 5]"),
        ("OneHot", ([1, 2], [4, 5], [0.0, 1.0]), {}, "input 1 is of shape [2], not one element"),
        ("OneHot", ([1, 2], [4], [0.0, 1.0, 2.0]), {}, "input 2 is of shape [3], not [2]"),
        ("Trilu", (C,), {}, "input 0 is of shape [4], not [..., rows, columns]"),
        ("ReverseSequence", ("float32[4, 3]", [1, 2]), {"time_axis": 0, "batch_axis": 1},
         "input 1 is of shape [2], not [batch], where batch = 3"),
        ("TensorScatter", ("float32[2, 5, 3]", "float32[2, 2, 4]"), {},
         "input 1 is of shape [2, 2, 4], not [2, 2, 3]"),
        ("TopK", (C, [5]), {"outputs": 2}, "the first 5 of 4 elements"),
        ("TopK", (C, [2, 3]), {"outputs": 2}, "input 1 is of shape [2], not one element"),
        ("Compress", (C, "bool[1, 4]"), {}, "input 1 is of shape [1, 4], not [elements]"),
        ("Range", (np.int64([0, 1]), np.int64(4), np.int64(1)), {},
         "input 0 is of shape [2], not one element"),
        ("EyeLike", (C,), {}, "input 0 is of shape [4], not [rows, columns]"),
        ("CumSum", (C, [0, 0]), {}, "input 1 is of shape [2], not one element"),
        ("CumSum", (C, 1), {}, "[1] are no axes of a tensor of rank 1"),
        ("CumSum", (C, "int64[70000]"), {}, "input 1 is of shape [70000], not one element"),
        ("CumProd", (C, "int64[0]"), {}, "input 1 is of shape [0], not one element"),
        ("ReduceSum", (X, "int64[70000]"), {}, "70000 axes of a tensor of rank 4"),
        ("Squeeze", (X, "int64[5]"), {}, "5 axes of a tensor of rank 4"),
        ("Slice", (C, "int64[2]", "int64[2]", "int64[2]"), {}, "2 axes of a tensor of rank 1"),
        ("Pad", (C, "int64[4]", None, "int64[2]"), {}, "2 axes of a tensor of rank 1"),
        ("GridSample", ("float32[1, 2, 4, 5]", GRID), {},
         "input 1 is of shape [2, 3, 3, 2], not [batch, ..., axes], where batch = 1, axes = 2"),
        ("GridSample", ("float32[2, 2, 4, 5]", "float32[2, 3, 3, 3]"), {},
         "input 1 is of shape [2, 3, 3, 3], not [batch, ..., axes], where batch = 2, axes = 2"),
        ("MaxUnpool", ("float32[1, 1, 2, 2]", np.zeros((1, 1, 2, 3), np.int64)),
         {"kernel_shape": (2, 2)}, "input 1 is of shape [1, 1, 2, 3], not [1, 1, 2, 2]"),
        ("Resize", (X, None, np.float32([1, 1, 2])), {}, "3 scales for 4 axes"),
        ("Col2Im", ("float32[1, 8, 5]", [3, 4], [2, 2]), {},
         "input 0 is of shape [1, 8, 5], not [batch, taps*channels, positions], "
         "where batch = 1, taps = 4, channels = 2, positions = 6"),
        ("DeformConv", ("float32[1, 4, 5, 6]", "float32[2, 4, 2, 2]", "float32[1, 8, 4, 4]"), {},
         "input 2 is of shape [1, 8, 4, 4], not [1, 8, 4, 5]"),
        ("RoiAlign", (X, np.zeros((3, 4), np.float32), [0, 0]), {},
         "input 2 is of shape [2], not [regions], where regions = 3"),
        ("MaxRoiPool", (X, np.zeros((3, 4), np.float32)), {"pooled_shape": (2, 2)},
         "input 1 is of shape [3, 4], not [regions, 5], where regions = 3"),
        ("Det", ("float32[3, 4]",), {}, "input 0 is of shape [3, 4], not [..., rows, rows], "
         "where rows = 3"),
        ("DFT", ("float32[2, 8, 3]",), {},
         "a Fourier transform of axis 1 of float32[2, 8, 3]"),
        ("STFT", ("float32[2, 32, 1]", np.int64(8), "float32[15]", np.int64(16)), {},
         "input 2 is of shape [15], not [16]"),
        ("Einsum", (X, C), {"equation": "ij,j->i"}, "'ij,j->i' of tensors of ranks [4, 1]"),
        ("Einsum", ("float32[1, 3]",), {"equation": "ii->i"},
         "'i' is of sizes 1 and 3 in input 0"),
        ("NonMaxSuppression", ("float32[1, 6, 4]", "float32[1, 2, 5]", [3]), {},
         "input 1 is of shape [1, 2, 5], not [batch, classes, boxes], "
         "where batch = 1, classes = 2, boxes = 6"),
        ("Gather", (C, [1, 4]), {}, "indices 1 to 4 into an axis of 4 elements"),
        ("LRN", (X,), {"size": 0}, "size is 0: it is 1 at least, and 2147483647 at most"),
        ("Conv", (X, KERNEL), {"group": 0}, "group is 0: it is 1 at least, and 2147483647 at most"),
        ("ConvTranspose", (X, "float32[4, 2, 3, 3]"), {"group": -1},
         "group is -1: it is 1 at least, and 2147483647 at most"),
        ("DepthToSpace", (X,), {"blocksize": 0},
         "blocksize is 0: it is 1 at least, and 2147483647 at most"),
        ("SpaceToDepth", (X,), {"blocksize": -2},
         "blocksize is -2: it is 1 at least, and 2147483647 at most"),
        ("GroupNormalization", (X, C, C), {"num_groups": 0},
         "num_groups is 0: it is 1 at least, and 2147483647 at most"),
        ("RoiAlign", (X, np.zeros((3, 4), np.float32), [0, 0, 1]), {"output_height": 0},
         "output_height is 0: it is 1 at least, and 2147483647 at most"),
        ("MaxPool", (X,), {"kernel_shape": (2, 2), "strides": (0, 1)},
         "kernel [2, 2], strides [0, 1] and dilations [1, 1]: all are 1 at least"),
        ("MatMul", (X, C), {}, "the contracted dimensions 5 and 4 differ"),
        ("Gemm", ("float32[3, 4]", "float32[4, 5]", C), {},
         "an operand of shape [4] does not broadcast to [3, 5]"),
        ("PRelu", (X, C), {}, "an operand of shape [4] does not broadcast to [2, 4, 6, 5]"),
    ],
)  # fmt: skip
def test_other_operators(operator: str, inputs: Any, attributes: Any, message: str) -> None:
    assert reason(operator, *inputs, **attributes) == message


TOKENS, ROW, TABLE = "float32[2, 3, 8]", "float32[8]", "float32[6, 8]"
WEIGHTS = np.zeros((5, 2, 16), np.uint8)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("SkipLayerNormalization", (TOKENS, TOKENS, "float32[1]"), {},
         "input 2 is of shape [1], not [hidden], where hidden = 8"),
        ("EmbedLayerNormalization", ([[1, 2]], None, TABLE, "float32[6, 1]", None, ROW, ROW), {},
         "input 3 is of shape [6, 1], not [positions, hidden], where positions = 6, hidden = 8"),
        ("GatedRMSNorm", (TOKENS, ROW, "float32[1, 3, 8]"), {},
         "input 2 is of shape [1, 3, 8], not [2, 3, 8]"),
        ("Attention", (TOKENS, "float32[8, 24]", "float32[1]"), {"num_heads": 2},
         "input 2 is of shape [1], not [columns], where columns = 24"),
        ("MultiHeadAttention", (ROW, ROW, ROW), {"num_heads": 2},
         "input 0 is of shape [8], not [batch, length, heads*size], where heads = 2"),
        ("GroupQueryAttention", (TOKENS, TOKENS, TOKENS, None, None, [2, 2], [3]),
         {"num_heads": 4, "kv_num_heads": 2},
         "input 1 is of shape [2, 3, 8], not [batch, length, groups*size], "
         "where batch = 2, length = 3, groups = 2, size = 2"),
        ("RotaryEmbedding", (TOKENS, [[0, 1, 2]] * 2, "float32[9, 4]", "float32[9, 3]"), {},
         "input 3 is of shape [9, 3], not [positions, half], where positions = 9, half = 4"),
        ("MatMulNBits", ("float32[3, 64]", WEIGHTS, "float32[8]"),
         {"N": 4, "bits": 4, "block_size": 32}, "K is missing"),
        ("MatMulNBits", ("float32[3, 64]", WEIGHTS, "float32[8]"),
         {"K": 64, "N": 4, "bits": 4, "block_size": 32},
         "160 bytes of weights, not 4 rows of 2 blocks of 32 elements of 4 bits"),
    ],
)  # fmt: skip
def test_microsoft(operator: str, inputs: Any, attributes: Any, message: str) -> None:
    assert reason(operator, *inputs, domain="com.microsoft", **attributes) == message


def test_features_of_trees() -> None:
    attributes = {
        "nodes_treeids": (0, 0, 0), "nodes_nodeids": (0, 1, 2), "nodes_featureids": (4, 0, 0),
        "nodes_modes": ("BRANCH_LEQ", "LEAF", "LEAF"), "nodes_values": (0.5, 0.0, 0.0),
        "nodes_truenodeids": (1, 0, 0), "nodes_falsenodeids": (2, 0, 0),
        "target_treeids": (0, 0), "target_nodeids": (1, 2), "target_ids": (0, 0),
        "target_weights": (1.0, 2.0), "n_targets": 1,
    }  # fmt: skip
    message = "trees of features 4 to 4 for an input of 4 features"
    text = reason("TreeEnsembleRegressor", "float32[3, 4]", domain="ai.onnx.ml", **attributes)
    assert text == message
