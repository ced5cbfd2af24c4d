"""Helpers for rows of the `com.microsoft` domain, which always expand.

row("QuickGelu", lambda c, build: (...,), case("float32[2, 3]"))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_expr, as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import (
    Case,
    Context,
    Missing,
    NotSupportedError,
    Operator,
    Result,
)
from webmlc.graph.ops.shapes import check_shape, check_stretches

DOMAIN = "com.microsoft"
Expansion = Callable[[Context, Builder], tuple[Result, ...] | None]


def _never(context: Context) -> tuple[TensorType, ...]:
    raise NotSupportedError("this form of the operator is not supported")


def row(name: str, expand: Expansion, *cases: Case, domain: str = DOMAIN) -> Operator:
    """Make the row of an operator that expands to other operators."""
    return Operator(name, _never, expand=expand, domain=domain, cases=cases)


def twin(name: str, *cases: Case, of: str | None = None, **attributes: Any) -> Operator:
    """Make the row of an operator that equals the operator `of` of ai.onnx with these further
    attributes. By default, `of` has the same name.
    """

    def expand(context: Context, build: Builder) -> tuple[str, ...]:
        node = context.node
        merged = {**node.attributes, **attributes}
        return build.many(of or name, *node.inputs, outputs=len(node.outputs), **merged)

    return row(name, expand, *cases)


def select_outputs(context: Context, *results: str | Missing) -> tuple[Result, ...]:
    """The results whose outputs the node has. `results` is in the order of the schema."""
    return results[: len(context.node.outputs)]


def optional(context: Context, index: int) -> str | None:
    """The name of an input, or None if it is omitted."""
    return context.node.inputs[index] if context.has(index) else None


def check_score_bias(context: Context, index: int, *scores: Expr | int) -> None:
    """Check that a bias of scores [B, N, S, T] has their last two sizes, and one or all of their
    batches and heads.
    """
    if context.has(index):
        batch, heads, *last = map(as_expr, scores)
        check_stretches(context, index, (batch, heads, *last))
        check_shape(context, index, (*context.shape(index)[:2], *last))


def number(build: Builder, value: float, dtype: DType) -> str:
    """A scalar constant."""
    return build.constant(value, dtype)


def known_size(size: Expr, description: str) -> int:
    """A dimension that must be a number."""
    value = as_int(size)
    if value is None:
        raise NotSupportedError(f"{description} is symbolic")
    return value


def reshape(build: Builder, x: str, shape: Sequence[int]) -> str:
    """Reshape `x`. A 0 keeps a dimension, and -1 stands for the remaining elements."""
    return build("Reshape", x, build.constant(np.array(shape, np.int64)))


def piece(build: Builder, x: str, axis: int, start: int, stop: int) -> str:
    """Slice the elements from `start` to `stop` along an axis."""
    bounds = (build.constant(np.array([v], np.int64)) for v in (start, stop, axis))
    return build("Slice", x, *bounds)


def size_of(build: Builder, x: str, axis: int) -> str:
    """The scalar int64 size of a dimension."""
    shape = build("Shape", x)
    return build("Gather", shape, build.constant(np.int64(axis)), axis=0)
