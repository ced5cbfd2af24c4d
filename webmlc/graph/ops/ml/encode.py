"""Preprocessing of ai.onnx.ml on numbers: scaling, normalising, imputing, encoding of categories.

Strings are refused, because tensors hold numbers. ONNX's ZipMap makes a dictionary of each row.
Here it returns the probabilities unchanged: one column for each class, in the order of the class
labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int, const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array
from webmlc.graph.ops.ml.scores import DOMAIN, STRINGS, number_labels
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.shapes import product, require


def _scaler(context: Context, build: Builder) -> Value:
    """Compute (x - offset) · scale."""
    x = build.inputs[0].cast(DType.float32)
    for op, name in (("Sub", "offset"), ("Mul", "scale")):
        numbers = context.attribute(name)
        if numbers:
            _check_features(context, len(numbers), name)
            x = build(op, x, build.constant(np.asarray(numbers, np.float32)))
    return x


def _check_features(context: Context, count: int, name: str) -> None:
    """Check that an attribute has one number for all features, or a number for each feature."""
    features = context.shape(0)[-1]
    if count != 1 and not require(context, "equal", const(count), features):
        raise NotSupportedError(f"{name!r} has {count} numbers for an input of {features} features")


def _normalizer(context: Context, build: Builder) -> Value:
    """Divide each row by its largest element, its sum of absolute values, or its length. Rows of
    zeros stay.
    """
    x = build.inputs[0].cast(DType.float32)
    kind = context.attribute("norm", "MAX")
    reduction = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[kind]
    norm = build(reduction, x, [-1])
    zero = build("Equal", norm, 0)
    return x / zero.where(1, norm)


def _imputer(context: Context, build: Builder) -> Value:
    x, dtype = build.inputs[0], context.dtype(0)
    kind = ("imputed_value_floats", "replaced_value_float")
    if dtype.is_integer:
        kind = ("imputed_value_int64s", "replaced_value_int64")
    replacement, missing_value = (
        np.asarray(context.attribute(kind[0])),
        context.attribute(kind[1], 0),
    )
    _check_features(context, replacement.size, kind[0])
    is_nan = dtype.is_float and np.isnan(missing_value)
    is_missing = build("IsNaN", x) if is_nan else build("Equal", x, missing_value)
    return is_missing.where(build.constant(replacement, dtype), x)


def _binarizer(context: Context, build: Builder) -> Value:
    above = build.inputs[0].op("Greater", context.attribute("threshold", 0.0))
    one, zero = (build.constant(v, context.dtype(0)) for v in (1, 0))
    return above.where(one, zero)


def _feature_vectorizer(context: Context, build: Builder) -> Value:
    """Join all inputs along their features. Each input is [rows][features]."""
    parts, sizes = [], context.attribute("inputdimensions", ())
    if sizes and len(sizes) != len(context.node.inputs):
        raise NotSupportedError(
            f"{len(sizes)} inputdimensions of {len(context.node.inputs)} inputs"
        )
    for k, value in enumerate(build.inputs):
        part = value.cast(DType.float32)
        rank = context.rank(k)
        if rank != 2:
            part = part.reshape(1, -1) if rank < 2 else part.op("Flatten", axis=1)
        parts.append(part)
        width = as_int(product(context.shape(k)[rank > 1 :]))
        if sizes and width is not None and width != sizes[k]:
            raise NotSupportedError(
                f"inputdimensions says that input {k} has {sizes[k]} features; it has {width}"
            )
    return build("Concat", *parts, axis=1)


def _array_feature_extractor(context: Context, build: Builder) -> Value:
    x, indices = build.inputs
    flat = indices.reshape(-1)
    if context.rank(0) == 1:
        x = x.unsqueeze(0)
    return build("Gather", x, flat, axis=-1)


def _zip_map(context: Context, build: Builder) -> Value:
    number_labels(context, "classlabels_int64s")
    return build("Identity", build.inputs[0])


def _one_hot(context: Context, build: Builder) -> Value:
    """Add a last axis of categories: 1 for the category that equals the element, else 0."""
    categories = context.attribute("cats_int64s")
    if not categories:
        raise NotSupportedError(STRINGS)
    whole = build.inputs[0].cast(DType.int64)
    column = whole.unsqueeze(-1)
    is_category = build("Equal", column, np.asarray(categories, np.int64))
    return is_category.cast(DType.float32)


def _mapping(context: Context, name: str) -> Array | None:
    """The attribute `keys_*` or `values_*` as an array of numbers. None if it holds strings."""
    tensor = context.attribute(f"{name}_tensor")
    if tensor is not None:
        array = np.asarray(tensor).reshape(-1)
        if array.dtype.kind not in "fiub":
            raise NotSupportedError(STRINGS)
        return array
    for kind, dtype in (("floats", np.float32), ("int64s", np.int64)):
        numbers: Any = context.attribute(f"{name}_{kind}")
        if numbers is not None:
            return np.asarray(numbers, dtype)
    return None


def _label_encoder(context: Context, build: Builder) -> Value:
    """Replace each element by the value of the last key that equals it, or else by the default."""
    keys, values = _mapping(context, "keys"), _mapping(context, "values")
    if keys is None or values is None:
        raise NotSupportedError(STRINGS)
    default = context.attribute("default_tensor")
    if default is None:
        name, default_number = ("float", -0.0) if values.dtype.kind == "f" else ("int64", -1)
        default = context.attribute(f"default_{name}", default_number)
    value_of_key = {(k if k == k else "nan"): v for k, v in zip(keys.tolist(), values, strict=True)}
    keys = np.array([np.nan if k == "nan" else k for k in value_of_key], keys.dtype)
    x = build.inputs[0]
    column = x.unsqueeze(-1)
    is_key = build("Equal", column, build.constant(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nan = build("IsNaN", column) & np.isnan(keys)
        is_key = is_key | nan
    key_index = build("ArgMax", is_key.cast(DType.int32), axis=-1, keepdims=0)
    table = build.constant(np.asarray(list(value_of_key.values()), values.dtype))
    match_count = build("ReduceMax", is_key.cast(DType.int32), [-1], keepdims=0)
    default = np.asarray(default, values.dtype).reshape(())
    is_match = match_count.cast(DType.bool)
    return is_match.where(build("Gather", table, key_index, axis=0), build.constant(default))


OPS: tuple[Operator, ...] = tuple(
    Operator(name, expand=meaning, domain=DOMAIN)
    for name, meaning in (
        ("ArrayFeatureExtractor", _array_feature_extractor),
        ("Binarizer", _binarizer),
        ("FeatureVectorizer", _feature_vectorizer),
        ("Imputer", _imputer),
        ("LabelEncoder", _label_encoder),
        ("Normalizer", _normalizer),
        ("OneHotEncoder", _one_hot),
        ("Scaler", _scaler),
        ("ZipMap", _zip_map),
    )
)
