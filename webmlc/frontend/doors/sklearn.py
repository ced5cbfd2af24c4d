"""scikit-learn, XGBoost and LightGBM: a fitted estimator or pipeline, through skl2onnx.

A native `Booster` of XGBoost or LightGBM goes through onnxmltools.

The estimators of XGBoost and LightGBM follow scikit-learn's conventions. The converters of
onnxmltools are registered for them, so that they may also be steps of a pipeline.

Probabilities are one tensor, with a column per class. If a classifier's classes are texts, the
output label is the number of the class: its position in the attribute `classes_`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from webmlc.core.errors import ModelWarning, UserError
from webmlc.frontend.doors.door import Example, is_instance, require
from webmlc.frontend.doors.names import name_dimensions, name_model

OPSETS = {"": 21, "ai.onnx.ml": 3}
"""The newest opsets that skl2onnx writes for all estimators."""
BOOSTERS = {
    "xgboost": ("XGBClassifier", "XGBRegressor", "XGBRFClassifier", "XGBRFRegressor"),
    "lightgbm": ("LGBMClassifier", "LGBMRegressor"),
}
"""The estimators of other packages, by package."""


def is_estimator(source: object) -> bool:
    """True for an estimator, a transformer or a pipeline."""
    return is_instance(source, "sklearn.base", "BaseEstimator")


def export_estimator(source: Any, example: Example) -> ModelProto:
    """Export a fitted estimator. Its inputs are float32, unless an example says otherwise."""
    require("scikit-learn", "sklearn", "sklearn", "skl2onnx")
    import skl2onnx

    _register_boosters()
    inputs, options = _initial_types(source, example), _options(source)
    model = skl2onnx.to_onnx(source, initial_types=inputs, target_opset=OPSETS, options=options)
    assert isinstance(model, ModelProto)
    name_model(model, type(source).__name__)
    _name_rows(model)
    name_dimensions(model, example.dynamic_shapes, lambda text: False, has_batch=True)
    return model


def _options(estimator: Any) -> dict[int, dict[str, bool]] | None:
    """The options of the exporter: probabilities as a tensor, and numbers for classes."""
    if not hasattr(estimator, "classes_") or not hasattr(estimator, "predict"):
        return None
    options = {"zipmap": False}
    classes = estimator.classes_
    if isinstance(classes, np.ndarray) and classes.dtype.kind in "OUS":
        warnings.warn(
            "The classes are texts, and the package returns the number of a class instead: "
            + ", ".join(f"{i} is {name!r}" for i, name in enumerate(classes.tolist())),
            ModelWarning,
            stacklevel=2,
        )
        options["nocl"] = True
    return {id(estimator): options}


def _initial_types(estimator: Any, example: Example) -> list[tuple[str, Any]]:
    """The name and type of each input: one input per column of a data frame, else one matrix."""
    from skl2onnx.common.data_types import FloatTensorType

    if example.inputs is None:
        count = getattr(estimator, "n_features_in_", None)
        if count is None:
            raise UserError(
                f"The estimator {type(estimator).__name__} does not say how many features it takes."
                " Fit it first, or pass example_inputs: some rows of its input."
            )
        return [("features", FloatTensorType([None, int(count)]))]
    frame = example.inputs
    if not hasattr(frame, "columns"):
        return [("features", _type_of(np.asarray(frame)))]
    return [(str(name), _type_of(frame[name].to_numpy()[:, None])) for name in frame.columns]


def _type_of(rows: Any) -> Any:
    """The type of any number of such rows. float64 becomes float32, which pages compute faster."""
    from skl2onnx.common.data_types import guess_data_type

    if rows.dtype == np.float64:
        rows = rows.astype(np.float32)
    ((_, example_type),) = guess_data_type(rows)
    return type(example_type)([None, rows.shape[1]])


def _name_rows(model: ModelProto) -> None:
    """Forget the sizes of outputs: the exporters of boosters sometimes state a wrong size of 1."""
    for output in model.graph.output:
        dims = output.type.tensor_type.shape.dim
        if dims:
            dims[0].Clear()


def _register_boosters() -> None:
    """Tell skl2onnx how to convert the estimators of the packages that are in use."""
    used = [package for package in BOOSTERS if package in sys.modules]
    if not used:
        return
    require(" and ".join(used), "boosters", "onnxmltools")
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )

    converters = {"xgboost": convert_xgboost, "lightgbm": convert_lightgbm}
    for package in used:
        for name in BOOSTERS[package]:
            is_classifier = name.endswith("Classifier")
            update_registered_converter(
                getattr(sys.modules[package], name),
                name,
                calculate_linear_classifier_output_shapes
                if is_classifier
                else calculate_linear_regressor_output_shapes,
                converters[package],
                options=_CLASSIFIER_OPTIONS if is_classifier else None,
            )


_CLASSIFIER_OPTIONS: dict[str, Sequence[Any]] = {
    "zipmap": [True, False, "columns"],
    "nocl": [True, False],
}


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
