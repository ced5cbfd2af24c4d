"""Linear models and support vector machines of ai.onnx.ml, as matrix products.

The kernel function of rows and support vectors is a matrix K [rows][vectors]. Decisions are
products of K with the coefficients.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int, const
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array
from webmlc.graph.ops.ml.scores import DOMAIN, float_rows, number_labels, pick_label, transform
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.shapes import require


def _floats(context: Context, name: str) -> Array:
    return np.asarray(context.attribute(name, ()), np.float32).reshape(-1)


def _rows_for(context: Context, build: Builder, weights: Array) -> Value:
    """The input as float32 [rows][features]. Its features are the columns of `weights`; if only a
    run knows the number of features, the run checks it.
    """
    x, _ = float_rows(context, build, has_double=False)
    features = context.shape(0)[-1]
    if not require(context, "equal", const(weights.shape[1]), features):
        raise NotSupportedError(
            f"weights of {weights.shape[1]} features for an input of {features} features"
        )
    return x


def _matrix(context: Context, name: str, rows: int) -> Array:
    """The numbers of an attribute as a matrix of `rows` rows."""
    numbers = _floats(context, name)
    if rows < 1 or numbers.size % rows:
        raise NotSupportedError(f"{name!r} has {numbers.size} numbers for {rows} rows")
    return numbers.reshape(rows, -1)


def _affine(build: Builder, x: Value, weights: Array, bias: Array) -> Value:
    """Compute x · weightsᵀ + bias."""
    if bias.size not in (0, len(weights)):
        raise NotSupportedError(f"{bias.size} intercepts of {len(weights)} scores")
    y = x @ np.ascontiguousarray(weights.T)
    return y + build.constant(bias) if bias.any() else y


def _regressor(context: Context, build: Builder) -> Value:
    weights = _matrix(context, "coefficients", context.count("targets", 1))
    x = _rows_for(context, build, weights)
    scores = _affine(build, x, weights, _floats(context, "intercepts"))
    return transform(build, scores, context.attribute("post_transform", "NONE"))


def _label_of_sign(context: Context, build: Builder, score: Value, labels: list[int]) -> Value:
    """Choose the second label if the score is positive, else the first."""
    sign = build("Greater", score, 0)
    return pick_label(build, sign.cast(DType.int64), labels)


def _score_count(context: Context, classes: int) -> int:
    """The number of scores of a classifier without intercepts: two classes may have one score."""
    features = as_int(context.shape(0)[-1]) if context.rank(0) else None
    is_single = classes == 2 and _floats(context, "coefficients").size == features
    return 1 if is_single else classes


def _classifier(context: Context, build: Builder) -> tuple[Value, ...]:
    """Classify by one score for each class. A single score belongs to the second of two classes."""
    labels, kind = number_labels(context), context.attribute("post_transform", "NONE")
    bias = _floats(context, "intercepts")
    weights = _matrix(context, "coefficients", bias.size or _score_count(context, len(labels)))
    if len(labels) != max(len(weights), 2):
        raise NotSupportedError(f"{len(labels)} labels of classes for {len(weights)} scores")
    scores = _affine(build, _rows_for(context, build, weights), weights, bias)
    if len(weights) > 1:
        index = build("ArgMax", scores, axis=1, keepdims=0)
        return pick_label(build, index, labels), transform(build, scores, kind)
    score = build("Squeeze", scores, [1])
    label = _label_of_sign(context, build, score, labels)
    first_score = -scores if kind == "LOGISTIC" else 1 - scores
    both = build("Concat", first_score, scores, axis=1)
    return label, build("Sigmoid", both) if kind == "LOGISTIC" else both


def _kernel(context: Context, build: Builder, x: Value, vectors: Array) -> Value:
    """The matrix K [rows][vectors] of the kernel function."""
    gamma, offset, degree = (*_floats(context, "kernel_params").tolist(), 0.0, 0.0, 0.0)[:3]
    kind = context.attribute("kernel_type", "LINEAR")
    products = x @ np.ascontiguousarray(vectors.T)
    if kind == "LINEAR":
        return products

    def number(value: float) -> Value:
        return build.constant(value, DType.float32)

    if kind == "RBF":  # |x - v|² = |x|² - 2 x·v + |v|²
        row_squares = build("ReduceSumSquare", x, [-1])
        squares = row_squares + build.constant((vectors**2).sum(axis=1)[None, :])
        distance = squares - products * number(2.0)
        return build("Exp", distance * number(-gamma))
    inner = products * number(gamma) + number(offset)
    if kind == "SIGMOID":
        return build("Tanh", inner)
    if kind == "POLY":
        return build("Pow", inner, number(degree))
    raise NotSupportedError(f"kernel_type {kind!r}")


def _svm_regressor(context: Context, build: Builder) -> Value:
    weights, rho = _matrix(context, "coefficients", 1), _floats(context, "rho")
    if count := int(context.attribute("n_supports", 0)):
        vectors = _matrix(context, "support_vectors", count)
        x = _kernel(context, build, _rows_for(context, build, vectors), vectors)
    else:
        x = _rows_for(context, build, weights)
    scores = _affine(build, x, weights, rho[:1])
    if int(context.attribute("one_class", 0)):
        inside = build("Greater", scores, 0)
        return inside.where(np.float32(1), np.float32(-1))
    return transform(build, scores, context.attribute("post_transform", "NONE"))


def _svm_classifier(context: Context, build: Builder) -> tuple[Value, ...]:
    """Classify with one machine for each pair of classes. The class with the most votes wins; among
    equals, the first one.
    """
    labels, kind = number_labels(context), context.attribute("post_transform", "NONE")
    counts = [int(n) for n in context.attribute("vectors_per_class", ())]
    if len(counts) != len(labels):
        raise NotSupportedError("an SVM classifier without support vectors of every class")
    if kind != "NONE":
        raise NotSupportedError(f"post_transform {kind!r} of votes")
    vectors = _matrix(context, "support_vectors", sum(counts))
    x = _rows_for(context, build, vectors)
    coefficients = _floats(context, "coefficients").reshape(len(labels) - 1, -1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    pairs = list(combinations(range(len(labels)), 2))
    weights = np.zeros((len(pairs), len(vectors)), np.float32)
    votes = np.zeros((len(pairs), 2, len(labels)), np.float32)
    for row, (i, j) in enumerate(pairs):
        of_i, of_j = (slice(starts[c], starts[c + 1]) for c in (i, j))
        weights[row, of_i], weights[row, of_j] = coefficients[j - 1, of_i], coefficients[i, of_j]
        votes[row, 0, i] = votes[row, 1, j] = 1
    scores = _affine(build, _kernel(context, build, x, vectors), weights, _floats(context, "rho"))
    first_wins = build("Greater", scores, 0)
    wins = first_wins.cast(DType.float32)
    total = _affine(build, wins, (votes[:, 0] - votes[:, 1]).T, votes[:, 1].sum(axis=0))
    probability_a, probability_b = _floats(context, "prob_a"), _floats(context, "prob_b")
    index = build("ArgMax", total, axis=1, keepdims=0)
    if not probability_a.size:
        if len(labels) == 2:
            scores = build("Concat", -scores, scores, axis=1)
        return pick_label(build, index, labels), scores
    if len(labels) > 2:
        raise NotSupportedError("probabilities of an SVM of more than two classes")
    exponent = _affine(build, scores, probability_a[:1, None], probability_b[:1])
    probabilities = build("Concat", build("Sigmoid", build("Neg", exponent)),
                    build("Sigmoid", exponent), axis=1)  # fmt: skip
    return pick_label(build, index, labels), probabilities


OPS: tuple[Operator, ...] = (
    Operator("LinearRegressor", expand=_regressor, domain=DOMAIN),
    Operator("LinearClassifier", expand=_classifier, domain=DOMAIN),
    Operator("SVMRegressor", expand=_svm_regressor, domain=DOMAIN),
    Operator("SVMClassifier", expand=_svm_classifier, domain=DOMAIN),
)  # fmt: skip
