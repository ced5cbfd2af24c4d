"""Helpers for rows of the `com.microsoft` domain, which always expand.

row("QuickGelu", lambda c, build: (...,), case("float32[2, 3]"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from webmlc.core.expr import Expr, as_expr, as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.signatures import SIGNATURES
from webmlc.graph.ops.operator import Case, Context, NotSupportedError, Operator, Result
from webmlc.graph.ops.shapes import check_shape, check_stretches

DOMAIN = "com.microsoft"
Expansion = Callable[[Context, Builder], Result | tuple[Result, ...]]


def row(
    name: str,
    expand: Expansion,
    *cases: Case,
    domain: str = DOMAIN,
    choices: Mapping[str, tuple[str, ...]] | None = None,
) -> Operator:
    """Make the row of an operator that expands to other operators."""
    return Operator(
        name,
        expand=expand,
        domain=domain,
        cases=cases,
        choices=choices or {},
        signature=SIGNATURES[name],
    )


def twin(name: str, *cases: Case, of: Value | None = None, **attributes: Any) -> Operator:
    """Make the row of an operator that equals the operator `of` of ai.onnx with these further
    attributes. By default, `of` has the same name.
    """

    def expand(context: Context, build: Builder) -> tuple[Value, ...]:
        node = context.node
        merged = {**node.attributes, **attributes}
        return build.many(of or name, *node.inputs, outputs=len(node.outputs), **merged)

    return row(name, expand, *cases)


def check_score_bias(context: Context, index: int, *scores: Expr | int) -> None:
    """Check that a bias of scores [B, N, S, T] has their last two sizes, and one or all of their
    batches and heads.
    """
    if context.has(index):
        batch, heads, *last = map(as_expr, scores)
        check_stretches(context, index, (batch, heads, *last))
        check_shape(context, index, (*context.shape(index)[:2], *last))


def known_size(size: Expr, description: str) -> int:
    """A dimension that must be a number."""
    value = as_int(size)
    if value is None:
        raise NotSupportedError(f"{description} is symbolic")
    return value
