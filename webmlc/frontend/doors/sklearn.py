"""scikit-learn, XGBoost and LightGBM: a fitted estimator or pipeline, through skl2onnx.

A native `Booster` of XGBoost or LightGBM goes through onnxmltools.

The estimators of XGBoost and LightGBM follow scikit-learn's conventions. The converters of
onnxmltools are registered for them, so that they may also be steps of a pipeline.

Probabilities are one tensor, with a column per class.

The vectorisers of texts split a text by a regular expression of Python, in which letters of all
languages are letters. The exporter would write a pattern of ASCII in its place. `TOKENS` has the
patterns that mean the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from webmlc.core.errors import UserError
from webmlc.core.text_patterns import WORD
from webmlc.frontend.doors.door import Example, is_instance, require
from webmlc.frontend.doors.names import name_dimensions, name_model

OPSETS = {"": 21, "ai.onnx.ml": 3}
"""The newest opsets that skl2onnx writes for all estimators."""
BOOSTERS = {
    "xgboost": ("XGBClassifier", "XGBRegressor", "XGBRFClassifier", "XGBRFRegressor"),
    "lightgbm": ("LGBMClassifier", "LGBMRegressor"),
}
"""The estimators of other packages, by package."""
TOKENS = {
    r"(?u)\b\w\w+\b": f"{WORD}{{2,}}",
    r"(?u)\b\w+\b": f"{WORD}+",
    r"\b\w\w+\b": f"{WORD}{{2,}}",
    r"\b\w+\b": f"{WORD}+",
    r"\w+": f"{WORD}+",
    "char": "(?s).",
}
"""The patterns of tokens in Python, and in RE2. `char` stands for n-grams of characters."""


def is_estimator(source: object) -> bool:
    """True for an estimator, a transformer or a pipeline."""
    return is_instance(source, "sklearn.base", "BaseEstimator")


def export_estimator(source: Any, example: Example) -> ModelProto:
    """Export a fitted estimator. Its inputs are float32, unless an example says otherwise."""
    require("scikit-learn", "sklearn", "sklearn", "skl2onnx")
    import skl2onnx

    _register_boosters()
    vectorisers = list(_vectorisers(source))
    if any(getattr(v, "sublinear_tf", False) for v in vectorisers):
        raise UserError(
            "The exporter computes sublinear_tf as log(1 + tf), and scikit-learn as 1 + log(tf). "
            "Fit the vectoriser with sublinear_tf=False."
        )
    inputs = _initial_types(source, example)
    options: dict[int, dict[str, Any]] = {
        id(v): {"tokenexp": TOKENS[key]}
        for v in vectorisers
        if (key := _token_pattern(v)) in TOKENS
    }
    if _is_classifier(source):
        options[id(source)] = {"zipmap": False}
    model = skl2onnx.to_onnx(source, initial_types=inputs, target_opset=OPSETS, options=options)
    assert isinstance(model, ModelProto)
    name_model(model, type(source).__name__)
    _name_rows(model)
    name_dimensions(model, example.dynamic_shapes, lambda text: False, has_batch=True)
    return model


def _is_classifier(estimator: Any) -> bool:
    return hasattr(estimator, "classes_") and hasattr(estimator, "predict")


def _vectorisers(estimator: Any) -> Iterator[Any]:
    """The vectorisers of texts in an estimator."""
    if hasattr(estimator, "token_pattern"):
        yield estimator
    parts = [part[1] for part in getattr(estimator, "steps", ())]
    parts += [part[1] for part in getattr(estimator, "transformer_list", ())]
    parts += [part[1] for part in getattr(estimator, "transformers_", ())]
    for part in parts:
        yield from _vectorisers(part)


def _token_pattern(vectoriser: Any) -> str:
    """The key in `TOKENS` of a vectoriser."""
    return str(vectoriser.token_pattern if vectoriser.analyzer == "word" else vectoriser.analyzer)


def _initial_types(estimator: Any, example: Example) -> list[tuple[str, Any]]:
    """The name and type of each input: one input per column of a data frame, else one matrix. The
    input of a vectoriser is one column of texts.
    """
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    first = estimator
    while hasattr(first, "steps"):
        first = first.steps[0][1]
    if hasattr(first, "token_pattern"):
        return [("text", StringTensorType([None, 1]))]
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
    from skl2onnx.common.data_types import StringTensorType, guess_data_type

    if rows.dtype.kind in "OSUT":
        return StringTensorType([None, *rows.shape[1:]])
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
