"""TensorFlow: the folder of a SavedModel, through tf2onnx."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from onnx import ModelProto

from webmlc.core.errors import ModelError
from webmlc.frontend.doors.door import Example, is_path, require
from webmlc.frontend.doors.names import name_dimensions, name_model, without_suffix

OPSET = 18
"""The newest opset that tf2onnx 1.17 writes."""
SIGNATURE = "serving_default"
"""The signature that TensorFlow's own tools use by default."""


def is_saved_model(source: object) -> bool:
    """True for the folder of a SavedModel."""
    return is_path(source) and (Path(str(source)) / "saved_model.pb").is_file()


def is_anonymous(text: str) -> bool:
    """True for a name that tf2onnx invents for a dimension."""
    return bool(re.fullmatch(r"unk__\d+", text))


def export_saved_model(source: Any, example: Example) -> ModelProto:
    """Export the signature `serving_default` of a SavedModel."""
    require("TensorFlow", "tensorflow", "tensorflow", "tf2onnx")
    import tensorflow
    import tf2onnx

    loaded = tensorflow.saved_model.load(str(source))
    if SIGNATURE not in loaded.signatures:
        names = ", ".join(loaded.signatures) or "none"
        raise ModelError(f"{source}: no signature {SIGNATURE!r}. Its signatures are: {names}")
    signature = loaded.signatures[SIGNATURE]
    inputs = signature.structured_input_signature[1]

    def call(*tensors: Any) -> Any:
        return signature(**dict(zip(inputs, tensors, strict=True)))

    model: ModelProto
    model, _ = tf2onnx.convert.from_function(
        tensorflow.function(call), list(inputs.values()), opset=OPSET
    )
    name_model(model, Path(source).stem)
    without_suffix(model)
    name_dimensions(model, example.dynamic_shapes, is_anonymous, has_batch=True)
    return model
