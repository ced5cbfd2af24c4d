"""The meaning of a node: its row of the operator table, applied to its types and constants.

The passes after inference, and the lowering to loops, ask these functions instead of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from webmlc.core.errors import Unsupported, UnsupportedError
from webmlc.graph.compute import Tensor
from webmlc.graph.ir import Array, Node, TensorType
from webmlc.graph.ops.operator import (
    BROADCAST,
    FusionKind,
    Layout,
    NotSupportedError,
    Operator,
    Scope,
)
from webmlc.graph.ops.shapes import check_numbers
from webmlc.graph.rewrite.parts import PARTS, Part
from webmlc.graph.table import OPS

Tensors = tuple[Tensor | None, ...]

MAPS: frozenset[FusionKind] = frozenset({"elementwise", "broadcast"})
"""Kinds of nodes whose elements each depend on one element of every input."""


def row_of(node: Node) -> Operator:
    """The operator's row; raises `KeyError` for an operator that inference would have reported."""
    return OPS[node.operator]


def kind_of(node: Node) -> FusionKind:
    """How the node's outputs depend on its inputs."""
    return row_of(node).fusion_kind


def layout_of(node: Node) -> Layout | None:
    """How the node is written over feature maps in NHWC; `None` if it reads and writes NCHW."""
    row = row_of(node)
    return row.layout or (BROADCAST if row.fusion_kind in MAPS else None)


def infer_node(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> tuple[TensorType, ...]:
    """The types of the node's outputs."""
    with reported(node):
        return row_of(node).types(Scope(types, constants, {}).context(node))


def compute_node(node: Node, scope: Scope, tensors: Tensors) -> tuple[Tensor, ...]:
    """The node's output tensors over its input tensors. `scope` is its function's scope."""
    with reported(node):
        results = row_of(node).tensors(scope.context(node), tensors)
        check_numbers(results, [t for t in tensors if t is not None])
        return results


@contextmanager
def reported(node: Node) -> Iterator[None]:
    """Report the error of a row as an error of the node."""
    try:
        yield
    except NotSupportedError as error:
        raise UnsupportedError((Unsupported(node.name, node.op, str(error)),)) from error


def parts_of_node(node: Node, scope: Scope, tensors: Tensors) -> tuple[Part, ...] | None:
    """The parts of the node's only output, which are written one after the other; `None` if the
    node has no such form. `scope` is its function's scope.
    """
    rule = PARTS.get(node.operator)
    return None if rule is None else rule(scope.context(node), tensors)
