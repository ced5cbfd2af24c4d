"""Helpers for rows of the `com.microsoft` domain, which always expand.

row("QuickGelu", 1, "alpha", lambda c, build: (...,), case("float32[2, 3]"))
"""

from __future__ import annotations

from collections.abc import Callable

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_expr, as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.operator import Case, Context, NotSupportedError, Operator, Result, Signature
from webmlc.graph.ops.shapes import check_shape, check_stretches

DOMAIN = "com.microsoft"
Expansion = Callable[[Context, Builder], Result | tuple[Result, ...]]
WINDOWS = "auto_pad kernel_shape pads strides"
"""The attributes of operators that run windows over feature maps."""


def row(
    name: str,
    inputs: int | None,
    attributes: str,
    expand: Expansion,
    *cases: Case,
    domain: str = DOMAIN,
    **choices: tuple[str, ...],
) -> Operator:
    """Make the row of an operator that expands to other operators.

    `inputs` is the number of inputs that the row reads, or None if it reads any number of them, and
    `attributes` lists the attributes. onnx has no schemas of these operators, so it refuses no
    input or attribute that does not exist. A row must not ignore an unknown input or attribute in
    silence: a newer onnxruntime may have added it, and compute another result with it.
    """
    signature = Signature(inputs, frozenset(attributes.split()))
    return Operator(
        name, expand=expand, domain=domain, cases=cases, choices=choices, signature=signature
    )


def twin(name: str, inputs: int, attributes: str, *cases: Case) -> Operator:
    """Make the row of an operator that equals the operator of this name of ai.onnx."""

    def expand(context: Context, build: Builder) -> tuple[Value, ...]:
        node = context.node
        return build.many(name, *node.inputs, outputs=len(node.outputs), **node.attributes)

    return row(name, inputs, attributes, expand, *cases)


def check_score_bias(context: Context, index: int, *scores: Expr | int | None) -> None:
    """Check that a bias of scores [B, N, S, T] has their last two sizes, and one or all of their
    batches and heads. Nothing is checked if only a run knows a size.
    """
    sizes = [as_expr(size) for size in scores if size is not None]
    if context.has(index) and len(sizes) == len(scores):
        batch, heads, *last = sizes
        check_stretches(context, index, (batch, heads, *last))
        check_shape(context, index, (*context.shape(index)[:2], *last))


def known_size(size: Expr, description: str) -> int:
    """A dimension that must be a number."""
    value = as_int(size)
    if value is None:
        raise NotSupportedError(f"{description} is symbolic")
    return value


def int64_scalar(value: Value) -> Value:
    """The number in a tensor of one element, as an int64 scalar."""
    return value.cast(DType.int64).reshape(1).op("Squeeze")


def channels_second(value: Value, rank: int) -> Value:
    """Move the last axis of a feature map behind the batch."""
    return value.transpose(0, rank - 1, *range(1, rank - 1))


def channels_last(value: Value, rank: int) -> Value:
    """Move the channels of a feature map from behind the batch to the end."""
    return value.transpose(0, *range(2, rank), 1)
