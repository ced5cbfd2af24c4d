"""TensorFlow: a SavedModel folder or a `.tflite` file, through tf2onnx."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from onnx import ModelProto

from webmlc.core.errors import ModelError
from webmlc.frontend.doors.door import Example, is_path, require
from webmlc.frontend.doors.names import (
    name_dimensions,
    name_model,
    rename_values,
    without_suffix,
)
from webmlc.frontend.doors.sparse_tensors import with_dense_constants
from webmlc.frontend.file_kinds import is_kind

OPSET = 18
"""The newest opset that tf2onnx 1.17 writes."""
SIGNATURE = "serving_default"
"""The signature that TensorFlow's own tools use by default."""


def is_saved_model(source: object) -> bool:
    """True for the folder of a SavedModel."""
    return is_path(source) and (Path(str(source)) / "saved_model.pb").is_file()


def is_tflite(source: object) -> bool:
    """True for the path of a TensorFlow Lite (LiteRT) file."""
    return is_kind(source, ".tflite")


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

    model, _ = tf2onnx.convert.from_function(
        tensorflow.function(call), list(inputs.values()), opset=OPSET
    )
    return _named(model, Path(source), example)


def export_tflite(source: Any, example: Example) -> ModelProto:
    """Export a TensorFlow Lite file. Its inputs keep the layout NHWC."""
    require("TensorFlow Lite", "tensorflow", "tensorflow", "tf2onnx")
    import tf2onnx

    path = Path(source)
    with tempfile.TemporaryDirectory(prefix="webmlc-") as folder:
        dense = Path(folder) / path.name
        dense.write_bytes(with_dense_constants(path.read_bytes()))
        model, _ = tf2onnx.convert.from_tflite(str(dense), opset=OPSET)
    rename_values(model, _signature_names(path))
    return _named(model, path, example)


def _named(model: ModelProto, path: Path, example: Example) -> ModelProto:
    name_model(model, path.stem)
    without_suffix(model)
    name_dimensions(model, example.dynamic_shapes, is_anonymous, has_batch=True)
    return model


def _signature_names(path: Path) -> dict[str, str]:
    """The names of tensors in the file's first signature, by the tensors' own names."""
    from tensorflow.lite.python import schema_py_generated as schema

    file = schema.Model.GetRootAs(path.read_bytes(), 0)
    if not file.SignatureDefsLength():
        return {}
    signature = file.SignatureDefs(0)
    graph = file.Subgraphs(signature.SubgraphIndex())
    ports = [signature.Inputs(i) for i in range(signature.InputsLength())]
    ports += [signature.Outputs(i) for i in range(signature.OutputsLength())]
    return {
        graph.Tensors(port.TensorIndex()).Name().decode(): port.Name().decode() for port in ports
    }
