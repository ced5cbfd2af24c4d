"""Errors name the files that frameworks save besides models, whatever their suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow
import torch
from keras import layers

from webmlc.core.errors import ModelError
from webmlc.frontend.file_kinds import check_path

MODULE = torch.nn.Linear(4, 2)


def network() -> keras.Model:
    features = keras.Input((8,), name="features")
    return keras.Model(features, layers.Dense(3)(features))


def legacy(path: Path) -> None:
    torch.save(MODULE.state_dict(), path, _use_new_zipfile_serialization=False)


def script(path: Path) -> None:
    torch.jit.save(torch.jit.trace(MODULE, torch.zeros(1, 4)), path)


def frozen(path: Path) -> None:
    @tensorflow.function(input_signature=[tensorflow.TensorSpec([None, 4], name="x")])
    def double(x: Any) -> Any:
        return 2.0 * x

    graph = double.get_concrete_function().graph.as_graph_def()
    path.write_bytes(graph.SerializeToString())


def inner_file(path: Path) -> None:
    network().export(path.parent / "saved", verbose=False)
    (path.parent / "saved" / "saved_model.pb").rename(path)


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "weights.pth": (lambda path: torch.save(MODULE.state_dict(), path), "a PyTorch checkpoint"),
    "module.onnx": (lambda path: torch.save(MODULE, path), "a PyTorch checkpoint"),
    "weights.pt": (legacy, "a PyTorch checkpoint"),
    "script.pt": (script, "a TorchScript archive"),
    "model.h5": (lambda path: network().save(path), "an HDF5 file"),
    "model.weights.h5": (lambda path: network().save_weights(path), "an HDF5 file"),
    "frozen.pb": (frozen, "a frozen graph of TensorFlow"),
    "saved_model.pb": (inner_file, "a part of a TensorFlow SavedModel"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_model_is_named(name: str, tmp_path: Path) -> None:
    write, message = FILES[name]
    write(tmp_path / name)
    with pytest.raises(ModelError, match=f"this is {message}"):
        check_path(tmp_path / name)
