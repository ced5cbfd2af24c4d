"""XGBoost and LightGBM: a native `Booster`, through onnxmltools.

Estimators of both libraries with the interface of scikit-learn go through `sklearn.py`.
"""

from __future__ import annotations

from typing import Any

from onnx import ModelProto

from webmlc.frontend.doors.door import Example, is_instance, require
from webmlc.frontend.doors.names import name_dimensions, name_model

OPSET = 15
"""The newest opset that onnxmltools 1.16 writes."""


def is_xgboost(source: object) -> bool:
    """True for a native model of XGBoost."""
    return is_instance(source, "xgboost", "Booster")


def is_lightgbm(source: object) -> bool:
    """True for a native model of LightGBM."""
    return is_instance(source, "lightgbm", "Booster")


def export_xgboost(source: Any, example: Example) -> ModelProto:
    """Export a booster of XGBoost. The ONNX model takes one matrix, `features`."""
    require("XGBoost", "boosters", "xgboost", "onnxmltools", "skl2onnx")
    import onnxmltools

    model = onnxmltools.convert_xgboost(
        source, initial_types=_features(source.num_features()), target_opset=OPSET
    )
    return _named(model, "xgboost", example)


def export_lightgbm(source: Any, example: Example) -> ModelProto:
    """Export a booster of LightGBM. The ONNX model takes one matrix, `features`."""
    require("LightGBM", "boosters", "lightgbm", "onnxmltools", "skl2onnx")
    import onnxmltools

    model = onnxmltools.convert_lightgbm(
        source,
        initial_types=_features(source.num_feature()),
        target_opset=OPSET,
        zipmap=False,
    )
    return _named(model, "lightgbm", example)


def _features(count: int) -> list[tuple[str, Any]]:
    from onnxmltools.convert.common.data_types import FloatTensorType

    return [("features", FloatTensorType([None, count]))]


def _named(model: Any, name: str, example: Example) -> ModelProto:
    assert isinstance(model, ModelProto)
    name_model(model, name)
    name_dimensions(model, example.dynamic_shapes, lambda text: False, has_batch=True)
    return model
