"""Operators of TensorFlow Lite where a number lies on a limit, and every fused activation of a
recurrent layer, in packages on both devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.frontend.tflite.tflite_file import (
    FileGraph,
    FileOperator,
    FileTensor,
    FloatList,
    constant,
    tflite_file,
)

RANDOM = np.random.default_rng(2)
DEVICES = pytest.mark.parametrize("device", ["wasm", "webgpu"])


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def run(
    graph: FileGraph, folder: Path, device: Any, *runs: Mapping[str, np.ndarray]
) -> list[list[np.ndarray]]:
    """The outputs of each run of a package of the graph."""
    path = folder / "model.tflite"
    path.write_bytes(tflite_file([graph]))
    webmlc.build(path, folder / "package", target=device)
    model = webmlc.load(folder / "package", device=device)
    try:
        return [list(model.run(inputs).values()) for inputs in runs]
    finally:
        model.dispose()


BOXES = np.array(
    [[0, 0, 1, 1], [0, 0.5, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 2.5], [7, 7, 8, 8],
     [7, 7, 8, 8.5]], np.float32,
)  # fmt: skip
SCORES = np.linspace(0.9, 0.3, 7, dtype=np.float32)
CHOSEN = {0.5: [0, 3, 5], 0.49999997: [0, 3, 5], 0.6: [0, 1, 3, 4, 5], 1.0: [0, 1, 3, 4, 5, 6],
          0.0: [0]}  # fmt: skip
"""The boxes that LiteRT chooses, by the limit of their overlap."""


@DEVICES
def test_boxes_that_overlap_by_the_limit_are_left_out(device: Any, tmp_path: Path) -> None:
    tensors = [
        FileTensor("boxes", (7, 4)),
        FileTensor("scores", (7,)),
        constant("most", np.array(6, np.int32)),
        FileTensor("limit", ()),
        constant("least", np.array(0.1, np.float32)),
        FileTensor("chosen", (6,), "INT32"),
        FileTensor("count", (), "INT32"),
    ]
    kind = "NonMaxSuppressionV4Options"
    operator = FileOperator("NON_MAX_SUPPRESSION_V4", range(5), [5, 6], kind)
    graph = FileGraph(tensors, [operator], [0, 1, 3], [5, 6])
    feeds = [{"boxes": BOXES, "scores": SCORES, "limit": np.float32(limit)} for limit in CHOSEN]
    results = run(graph, tmp_path, device, *map(dict, feeds))
    for (chosen, count), wanted in zip(results, CHOSEN.values(), strict=True):
        assert chosen.tolist() == wanted + [0] * (6 - len(wanted))
        assert count == len(wanted)


@DEVICES
def test_nan_is_above_all_boundaries(device: Any, tmp_path: Path) -> None:
    options = {"Boundaries": FloatList([0, 1, 5])}
    operator = FileOperator("BUCKETIZE", [0], [1], "BucketizeOptions", options)
    graph = FileGraph([FileTensor("x", (6,)), FileTensor("y", (6,), "INT32")], [operator], [0], [1])
    x = np.array([np.nan, np.inf, -np.inf, 0, 5, 4.99], np.float32)
    ((y,),) = run(graph, tmp_path, device, {"x": x})
    assert y.tolist() == [3, 3, 0, 1, 3, 2]


ACTIVATIONS = {0: lambda x: x, 1: lambda x: np.maximum(x, 0), 4: np.tanh}


def states(x: np.ndarray, weights: Sequence[np.ndarray], activation: int) -> np.ndarray:
    """The states of an RNN after each step of x [time, batch, features]."""
    of_input, of_state, bias = weights
    h, steps = np.zeros((x.shape[1], len(bias)), np.float32), []
    for step in x:
        h = ACTIVATIONS[activation](step @ of_input.T + h @ of_state.T + bias)
        steps.append(h)
    return np.stack(steps)


@DEVICES
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("is_time_first", [True, False])
def test_activations_of_a_recurrent_layer(
    activation: int, is_time_first: bool, device: Any, tmp_path: Path
) -> None:
    weights = floats(4, 5), floats(4, 4) * np.float32(0.3), floats(4)
    x = floats(3, 2, 5)
    state = FileTensor("h", (2 if is_time_first else 3, 4), is_variable=True)
    parameters = (constant(f"w{k}", array) for k, array in enumerate(weights))
    tensors = [FileTensor("x", x.shape), *parameters, state, FileTensor("y", (3, 2, 4))]
    options = {"FusedActivationFunction": activation, "TimeMajor": is_time_first}
    name = "UNIDIRECTIONAL_SEQUENCE_RNN"
    operator = FileOperator(name, range(5), [5], "SequenceRNNOptions", options)
    ((y,),) = run(FileGraph(tensors, [operator], [0], [5]), tmp_path, device, {"x": x})
    order = (0, 1, 2) if is_time_first else (1, 0, 2)
    wanted = states(x.transpose(order), weights, activation).transpose(order)
    np.testing.assert_allclose(y, wanted, 1e-4, 1e-5)
