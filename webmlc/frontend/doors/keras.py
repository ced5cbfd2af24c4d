"""Keras 3: a `keras.Model` or a `.keras` file, through Keras's own ONNX export.

Keras's export uses tf2onnx, jax2onnx or torch.onnx, depending on the backend of Keras.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto

from webmlc.core.errors import UserError
from webmlc.frontend.doors.door import (
    Example,
    as_sequence,
    is_instance,
    require,
)
from webmlc.frontend.doors.names import (
    name_dimensions,
    name_model,
    rename_outputs,
    without_suffix,
)
from webmlc.frontend.doors.tensorflow import OPSET, is_anonymous
from webmlc.frontend.file_kinds import is_kind

BACKENDS = {
    "tensorflow": ("tensorflow", "tf2onnx"),
    "jax": ("jax", "jax2onnx"),
    "torch": ("torch", "onnxscript"),
}
"""The packages that Keras's export imports, by backend."""


def is_keras(source: object) -> bool:
    """True for a Keras model, and for the path of a `.keras` file."""
    return is_kind(source, ".keras") or is_instance(source, "keras", "Model")


def export_keras(source: Any, example: Example) -> ModelProto:
    """Export a model of Keras."""
    require("Keras", "keras", "keras")
    import keras

    require("Keras", "keras", *BACKENDS.get(keras.backend.backend(), ()))
    if isinstance(source, str | Path):
        path = Path(source)
        source, name = _load(path), path.stem
    else:
        name = source.name
    _call_once(source, example)
    with tempfile.TemporaryDirectory(prefix="webmlc-") as folder:
        path = Path(folder) / "model.onnx"
        source.export(str(path), format="onnx", verbose=False, opset_version=OPSET)
        model = onnx.load(str(path))
    name_model(model, name)
    rename_outputs(model, _output_names(source))
    without_suffix(model)
    name_dimensions(model, example.dynamic_shapes, is_anonymous, has_batch=True)
    return model


def _load(path: Path) -> Any:
    """Load a file. Keras knows the format by the suffix alone, which a user may have changed."""
    import keras

    if path.suffix == ".keras":
        return keras.saving.load_model(path, compile=False)
    with tempfile.TemporaryDirectory(prefix="webmlc-") as folder:
        copy = shutil.copyfile(path, Path(folder) / "model.keras")
        return keras.saving.load_model(copy, compile=False)


def _call_once(model: Any, example: Example) -> None:
    """Call a model that was only defined or loaded, because Keras exports only called models."""
    if example.inputs is not None:
        model(*as_sequence(example.inputs))
    elif hasattr(model, "inputs") and model.inputs:
        model(model.input)
    elif not model.built:
        raise UserError(
            f"The Keras model {model.name!r} does not say what its inputs are. Call it once, or "
            "pass example_inputs."
        )


def _output_names(model: Any) -> list[str]:
    """The names of a functional model's outputs. A dictionary of outputs has names already."""
    names = getattr(model, "output_names", None)
    return [] if names is None or isinstance(model.output, dict) else list(names)
