"""Labels and score transforms, which the classifiers and regressors of ai.onnx.ml share."""

from __future__ import annotations

import math

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, call, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, same_type

DOMAIN = "ai.onnx.ml"
FLOAT, DOUBLE, INT32, INT64 = 1, 11, 6, 7
"""ONNX's numbers of element types, as in the attribute `Cast.to`."""
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""The values of `post_transform`. Their positions are the numbers of opset 5."""


def number_labels(context: Context, name: str = "classlabels_ints") -> list[int]:
    """The labels of the classes. Raises `NotSupportedError` if there are none."""
    labels = context.attribute(name)
    if not labels:
        raise NotSupportedError(f"{name} is missing: give each class a label")
    return [int(v) for v in labels]


def pick_label(build: Builder, index: Value, labels: list[int]) -> Value:
    """The labels at these (int64) indices."""
    if labels == list(range(len(labels))):
        return build("Identity", index)
    return build("Gather", np.array(labels, np.int64), index, axis=0)


def float_rows(context: Context, build: Builder, has_double: bool = True) -> tuple[Value, DType]:
    """Convert the first input to float32 [rows][features], or to float64 if it is float64 and the
    operator `has_double`. A vector is one row. Return the value and its type.
    """
    rank = context.rank(0)
    if rank not in (1, 2):
        raise NotSupportedError(f"an input of {rank} dimensions; rows of features have 2")
    is_double = has_double and context.dtype(0) is DType.float64
    value = build("Cast", build.inputs[0], to=DOUBLE if is_double else FLOAT)
    if rank == 1:
        value = value.unsqueeze(0)
    return value, DType.float64 if is_double else DType.float32


def transform(build: Builder, scores: Value, kind: str | int) -> Value:
    """Apply a `post_transform` to scores [rows][classes]."""
    is_number = isinstance(kind, int) and 0 <= kind < len(TRANSFORMS)
    match TRANSFORMS[int(kind)] if is_number else kind:
        case "NONE":
            return scores
        case "SOFTMAX":
            return build("Softmax", scores, axis=-1)
        case "LOGISTIC":
            return build("Sigmoid", scores)
        case "PROBIT":
            return build("Probit", scores, domain="webmlc")
        case "SOFTMAX_ZERO":
            return _softmax_zero(build, scores)
    raise NotSupportedError(f"post_transform {kind!r}")


def _softmax_zero(build: Builder, scores: Value) -> Value:
    """Softmax in which a score of 0 stays 0."""
    top = build("ReduceMax", scores, [-1])
    exponential = build("Exp", scores - top)
    zero = build("Less", build("Abs", scores), 1e-07)
    small = scores * build("Exp", -top)
    terms = zero.where(small, exponential)
    return terms / build("ReduceSum", terms, [-1])


def _probit(context: Context, p: Tensor) -> Tensor:
    """Compute the quantile of the normal distribution, by Winitzki's formula for the inverse error
    function.
    """

    def element(*i: Expr) -> Expr:
        x = p[i] * 2.0 - 1.0
        log = call("log", (1.0 - x) * (1.0 + x))
        half = 2.0 / (math.pi * 0.147) + log * 0.5
        root = call("sqrt", call("sqrt", half * half - log * (1.0 / 0.147)) - half)
        return select(x < 0.0, -root, root) * math.sqrt(2.0)

    return compute("probit", p.shape, element)


OPS: tuple[Operator, ...] = (
    Operator("Probit", same_type, _probit, kind="elementwise", domain="webmlc"),
)  # fmt: skip
