"""Turn any source of a model into a source that `read_model` reads.

In: a path, a model in memory, or an object of a framework. Out: a path of an ONNX or GGUF file, an
`onnx.ModelProto`, or a `Module`. `DOORS` lists the frameworks.

    >>> export_source("model.keras").graph.name           # doctest: +SKIP
    'model'
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from onnx import ModelProto

from webmlc.core.errors import InputError, ModelError, UserError, WebmlcError
from webmlc.frontend.doors.door import Door, Example, Refusal, is_path, quiet
from webmlc.frontend.doors.jax import export_jax, is_jax
from webmlc.frontend.doors.keras import export_keras, is_keras
from webmlc.frontend.doors.names import rename_outputs
from webmlc.frontend.doors.pytorch import export_torch, is_torch
from webmlc.frontend.doors.sklearn import (
    export_estimator,
    export_lightgbm,
    export_xgboost,
    is_estimator,
    is_lightgbm,
    is_xgboost,
)
from webmlc.frontend.doors.tensorflow import export_saved_model, is_saved_model
from webmlc.frontend.file_kinds import check_path
from webmlc.frontend.tflite.export_tflite import export_tflite, is_tflite
from webmlc.graph.ir import Module

DOORS = (
    Door("Keras", "keras.Model.export", is_keras, export_keras),
    Door("PyTorch", "torch.onnx", is_torch, export_torch),
    Door("TensorFlow", "tf2onnx", is_saved_model, export_saved_model),
    Door("TensorFlow Lite", "webmlc", is_tflite, export_tflite),
    Door("scikit-learn", "skl2onnx", is_estimator, export_estimator),
    Door("XGBoost", "onnxmltools", is_xgboost, export_xgboost),
    Door("LightGBM", "onnxmltools", is_lightgbm, export_lightgbm),
    Door("JAX", "jax2onnx", is_jax, export_jax),
)
"""The doors. The first door that accepts a source exports it.

A Keras model may be a PyTorch module, too, so Keras comes first. JAX comes last, because its door
accepts any function.
"""

MAX_REASON = 600
"""The most characters of an exporter's error that a message repeats. Chosen by hand: ten lines."""


def export_source(
    source: Any,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    output_names: Sequence[str] | None = None,
    signature: str | None = None,
) -> str | Path | ModelProto | Module:
    """Export a source of another framework. Other sources pass through.

    Raises `UserError` if a package is missing, if the source is of no known kind, if the source
    needs an example, or if `output_names` do not fit its outputs. Raises `ModelError` if a file is
    no model, or if the exporter fails.
    """
    if is_path(source):
        check_path(Path(source))
    if signature is not None and not is_tflite(source):
        raise UserError("A signature names a part of a TensorFlow Lite file. Leave it out.")
    if not isinstance(source, ModelProto | Module):
        for door in DOORS:
            if door.accepts(source):
                model = _export(door, source, Example(example_inputs, dynamic_shapes, signature))
                return model if output_names is None else _with_outputs(model, output_names)
    if example_inputs is not None or dynamic_shapes is not None or output_names is not None:
        raise UserError(
            "example_inputs, dynamic_shapes and output_names are for models of other frameworks. "
            "An ONNX or GGUF model has its own shapes and names."
        )
    if isinstance(source, ModelProto | Module | str | Path):
        return source
    if isinstance(source, Mapping):
        raise UserError(
            "A dictionary of weights (a state dict) has no graph. Load it into its module, and pass"
            " the module."
        )
    if isinstance(source, bytes | bytearray | memoryview):
        raise UserError("For the bytes of an ONNX file, pass onnx.load_model_from_string(bytes).")
    frameworks = ", ".join(door.framework for door in DOORS)
    raise UserError(
        f"webmlc cannot read an object of class {type(source).__name__}. It reads paths of ONNX "
        f"and GGUF files, onnx.ModelProto, and models of {frameworks}."
    )


def _export(door: Door, source: Any, example: Example) -> ModelProto:
    label = str(source) if is_path(source) else _label(door, source)
    try:
        # Some exporters print to standard output, where commands print their results.
        with quiet(), redirect_stdout(sys.stderr):
            return door.export(source, example)
    except WebmlcError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, Refusal) else _reason(error)
        # With a cause, pages of the exporter's errors would follow the message.
        message = f"{label}: {door.exporter} cannot export this model. {reason}"
        raise ModelError(message) from None


def _with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """The model with these names of its outputs. Raises `InputError` if they do not fit."""
    present = ", ".join(port.name for port in model.graph.output)
    if isinstance(names, str) or len(names) != len(model.graph.output):
        raise InputError(
            f"output_names: the model has {len(model.graph.output)} outputs, {present}. "
            "Pass a list with a name for each."
        )
    inputs = [port.name for port in model.graph.input]
    if clashes := [name for name in names if list(names).count(name) > 1 or name in inputs]:
        raise InputError(
            f"output_names: {clashes[0]!r} names another output or an input, too. "
            "Choose another name."
        )
    rename_outputs(model, names)
    return model


def _label(door: Door, source: object) -> str:
    name = getattr(source, "__name__", type(source).__name__)
    return f"{door.framework} model {name}"


def _reason(error: BaseException) -> str:
    """The text of the error that caused an exporter's error, or else of the exporter's error."""
    cause = error.__cause__
    texts = [f"{type(e).__name__}: {str(e).strip()}" for e in (cause, error) if e is not None]
    return texts[0][:MAX_REASON]
