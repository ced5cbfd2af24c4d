"""Preprocessing of numbers: scaling, normalising, imputing, encoding of categories, and
TfIdfVectorizer.

Texts are numbers here (`frontend.number_texts`). ONNX's ZipMap makes a dictionary of each row. Here
it returns the probabilities unchanged: one column for each class, in the order of the class labels.

TfIdfVectorizer counts the occurrences of each n-gram of a pool in rows of integers. The n-grams of
each length are counted by one `webmlc.CountGrams`. It compares them with a row at every start, with
items 1 to `max_skip_count` + 1 apart (single items: once). A product with a constant matrix then
weights the counts and moves them to their columns of the output, and the results for all lengths
are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, call, const, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import Array
from webmlc.graph.ops.ml.scores import DOMAIN, number_labels
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import ONE, ZERO, check_shapes, product, require


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
        raise NotSupportedError("cats_int64s and cats_strings are missing")
    whole = build.inputs[0].cast(DType.int64)
    column = whole.unsqueeze(-1)
    is_category = build("Equal", column, np.asarray(categories, np.int64))
    return is_category.cast(DType.float32)


def _mapping(context: Context, name: str) -> Array | None:
    """The attribute `keys_*` or `values_*` as an array of numbers. None if it is missing."""
    tensor = context.attribute(f"{name}_tensor")
    if tensor is not None:
        array = np.asarray(tensor).reshape(-1)
        if array.dtype.kind not in "fiub":
            raise NotSupportedError(f"{name}_tensor holds {array.dtype}")
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
        raise NotSupportedError(f"its {'keys' if keys is None else 'values'} are missing")
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


MODES = ("TF", "IDF", "TFIDF")


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of one length in the pool. `items` has the shape [grams][length]; `columns` and
    `weights` hold the output column and the weight of each n-gram.
    """

    items: Array
    columns: Array
    weights: Array


def _pool(context: Context) -> list[Grams]:
    """The pool, split by the lengths of its n-grams: only lengths that the node counts and that
    exist.
    """
    if context.attribute("pool_strings"):
        raise NotSupportedError("its n-grams hold texts, and its input holds numbers")
    pool = np.array(context.attribute("pool_int64s", ()), np.int64)
    offsets = [int(n) for n in context.attribute("ngram_counts")]
    columns = np.array(context.attribute("ngram_indexes"), np.int64)
    weights = _weights(context, len(columns))
    shortest, longest = (int(context.attribute(f"{name}_gram_length")) for name in ("min", "max"))
    if not 1 <= shortest <= longest <= len(offsets):
        raise NotSupportedError(
            f"n-grams of {shortest} to {longest} items; the pool has those of 1 to {len(offsets)}"
        )
    if sorted(offsets) != offsets or not 0 <= offsets[0] <= offsets[-1] <= len(pool):
        raise NotSupportedError(f"ngram_counts {offsets} for a pool of {len(pool)} items")
    lengths = range(shortest, longest + 1)
    grams, first_gram = [], 0
    ends = [*offsets[1:], len(pool)]
    for length, (offset, end) in enumerate(zip(offsets, ends, strict=True), 1):
        if (end - offset) % length:
            raise NotSupportedError(f"{end - offset} items of the pool for n-grams of {length}")
        items = pool[offset:end].reshape(-1, length)
        span = slice(first_gram, first_gram + len(items))
        if length in lengths and len(items):
            grams.append(Grams(items, columns[span], weights[span]))
        first_gram = span.stop
    if first_gram != len(columns):
        raise NotSupportedError(f"{len(columns)} ngram_indexes for {first_gram} n-grams")
    return grams


def _weights(context: Context, count: int) -> Array:
    """The weight of each n-gram of the pool: 1 if the mode is TF, or if no weights are given."""
    weights, mode = context.attribute("weights"), context.attribute("mode")
    if mode not in MODES:
        raise NotSupportedError(f"mode {mode!r}: it must be one of {', '.join(MODES)}")
    if mode == "TF" or not weights:
        return np.ones(count, np.float32)
    if len(weights) != count:
        raise NotSupportedError(f"{len(weights)} weights for {count} n-grams")
    return np.array(weights, np.float32)


def _vectorise(context: Context, build: Builder) -> Value:
    x, rank = build.inputs[0], context.rank(0)
    check_shapes(context, "elements" if rank < 2 else "rows elements")
    indexes = [int(i) for i in context.attribute("ngram_indexes")]
    if not indexes or min(indexes) < 0:
        raise NotSupportedError(f"ngram_indexes {indexes}")
    width = max(indexes) + 1
    clips_to_one = context.attribute("mode") == "IDF"  # it only matters whether an n-gram occurs
    if clips_to_one and len(set(indexes)) < len(indexes):
        raise NotSupportedError("n-grams that share an output, of mode IDF")
    if rank < 2:
        x = x.reshape(1, -1)
    total: Value | None = None
    max_skip = int(context.attribute("max_skip_count"))
    if max_skip < 0:
        raise NotSupportedError(f"max_skip_count {max_skip}")
    for grams in _pool(context):
        length = grams.items.shape[1]
        skips = max_skip if length > 1 else 0
        count = build("CountGrams", x, build.constant(grams.items, context.dtype(0)),
                      domain="webmlc", skips=skips)  # fmt: skip
        spread = np.zeros((len(grams.items), width), np.float32)
        spread[np.arange(len(grams.items)), grams.columns] = grams.weights
        if clips_to_one:
            count = build("Min", count, 1)
        placed = count @ build.constant(spread)
        total = placed if total is None else total + placed
    if total is None:
        raise NotSupportedError("a pool without n-grams of the wanted lengths")
    return total if rank == 2 else total.reshape(width)


def _count(context: Context, x: Tensor, grams: Tensor) -> Tensor:
    """The counts [row][gram] of the pairs of a start and a distance that match all items."""
    length, row_length = as_int(grams.shape[1]), x.shape[1]
    assert length is not None, "the n-grams are a constant"

    def matches(row: Expr, gram: Expr, start: Expr, skip: Expr) -> Expr:
        is_match = start + (skip + 1) * (length - 1) < row_length
        for k in range(length):
            position = minimum(start + (skip + 1) * k, row_length - 1)  # a read inside the row
            is_match = is_match & call("eq", x[row, position], grams[gram, const(k)])
        return select(is_match, ONE, ZERO)

    extents = (row_length, const(int(context.attribute("skips")) + 1))
    shape = (x.shape[0], grams.shape[0])
    total = reduce("grams", shape, extents, "add", matches)
    return compute("count", shape, lambda *i: total[i].astype(DType.float32))


POOL: dict[str, Any] = {
    "ngram_counts": (0, 4),
    "pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7),
    "weights": (0.5, 1, 2, 3, 4, 5, 6),
}
X = "int64[2, 12] in 2..8"


OPS: tuple[Operator, ...] = (
    *(Operator(name, expand=meaning, domain=DOMAIN) for name, meaning in (
        ("ArrayFeatureExtractor", _array_feature_extractor),
        ("Binarizer", _binarizer),
        ("FeatureVectorizer", _feature_vectorizer),
        ("Imputer", _imputer),
        ("LabelEncoder", _label_encoder),
        ("Normalizer", _normalizer),
        ("OneHotEncoder", _one_hot),
        ("Scaler", _scaler),
        ("ZipMap", _zip_map),
    )),
    Operator("CountGrams", compute=_count, kind="reduction", domain="webmlc"),
    Operator("TfIdfVectorizer", expand=_vectorise, cases=tuple(
        case(x, mode=mode, min_gram_length=1, max_gram_length=2, max_skip_count=skips,
             ngram_indexes=tuple(places), **POOL)
        for x, mode, skips, places in (
            (X, "TF", 0, range(7)), (X, "IDF", 2, range(7)),
            ("int32[20] in 2..8", "TFIDF", 1, range(7)),
            (X, "IDF", 1, (6, 4, 5, 2, 3, 9, 0)), (X, "TFIDF", 1, (6, 4, 5, 2, 3, 9, 0))))),
)  # fmt: skip
