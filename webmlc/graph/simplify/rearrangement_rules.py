"""The rules of `simplify_graph` about nodes that only move elements: views, transposes, channel
shuffles.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Node, TensorType, joined_origin
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import ONE, canonical, same
from webmlc.graph.ops.view import permutation
from webmlc.graph.rewrite.meaning import MAPS, kind_of
from webmlc.graph.rewrite.patterns import P, Rule, value
from webmlc.graph.rewrite.rewriting import Rewriting
from webmlc.graph.table import OPS

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_REARRANGING = frozenset(
    {("", "Reshape"), ("", "Transpose"), ("webmlc", "View"), ("webmlc", "ChannelShuffle")}
)
"""Operators, by domain and name, that commute with an elementwise node."""
_ELEMENTWISE = [name for (domain, name), row in OPS.items() if row.kind in MAPS and not domain]


def same_type(a: TensorType | None, b: TensorType | None) -> bool:
    """True for two known types that are equal."""
    if a is None or b is None or a.dtype != b.dtype or a.rank != b.rank:
        return False
    return all(same(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def _reshape(value: Value, type_: TensorType) -> Value:
    """A view of a value, with its shape as an attribute."""
    return value.build("Reshape", value, type_=type_, shape=type_.shape)


def _canonical_view(rewriting: Rewriting, node: Node, build: Builder, y: Value) -> Value | None:
    """Write every view as a Reshape with its shape as an attribute; merge a view of a view."""
    x = build.inputs[0]
    before = rewriting.producer(x)
    if before is not None and _is_view(before):
        return _reshape(build.value(before.inputs[0]), y.type)
    return None if _is_view(node) else _reshape(x, y.type)


def _is_view(node: Node) -> bool:
    return node.op == "Reshape" and not node.domain and len(node.inputs) == 1


def _merge_transposes(x: Value, inner: Node, context: Context, rewriting: Rewriting) -> Value:
    """Transpose(Transpose(x))  ->  Transpose(x)"""
    axes = permutation(rewriting.scope.context(inner))
    return x.transpose(*(axes[axis] for axis in permutation(context)))


def _view_transpose(x: Value, context: Context, y: Value) -> Value | None:
    """Transpose(x), which moves only axes of size 1  ->  Reshape(x)"""
    moved = [axis for axis in permutation(context) if x.shape[axis] != ONE]
    return _reshape(x, y.type) if moved == sorted(moved) else None


def _use_channel_shuffle(
    x: Value, apart: Node, moved: Node, node: Node, rewriting: Rewriting, y: Value
) -> Node | None:
    """Reshape(Transpose(Reshape(x))), which splits an axis in two that change places
    ->  ChannelShuffle(x), which names its axis, and so can follow any layout
    """
    shape, axes = (
        rewriting.types[apart.outputs[0]].shape,
        permutation(rewriting.scope.context(moved)),
    )
    swapped = [d for d, axis in enumerate(axes) if d != axis]
    if len(swapped) != 2 or swapped[1] != swapped[0] + 1 or len(shape) != len(x.shape) + 1:
        return None
    axis, groups, size = swapped[0], *(shape[d] for d in swapped)
    joined = (*shape[:axis], canonical(groups * size), *shape[axis + 2 :])
    if (
        as_int(groups) is None
        or not same_type(x.type, y.type)
        or not all(map(same, joined, x.shape))
    ):
        return None
    origin = joined_origin(apart, moved, node)
    attributes = {"axis": axis, "groups": as_int(groups)}
    return Node("ChannelShuffle", (x,), node.outputs, attributes, "webmlc", origin)


def _hoist_elementwise(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Move an elementwise node before the views and transposes of a product, where it can join the
    product's kernel.
    """
    if len(context.outputs) != 1:
        return None
    read = [i for i in node.inputs if i and not _is_scalar(rewriting, i)]
    if len(read) != 1 or not same_type(rewriting.scope.type_of(read[0]), context.outputs[0]):
        return None
    source, moves = read[0], list[Node]()
    while rewriting.is_single_use(source) and (maker := rewriting.producer(source)) is not None:
        if maker.operator not in _REARRANGING:
            break
        moves.insert(0, maker)
        source = maker.inputs[0]
    maker = rewriting.producer(source)
    if not moves or maker is None or not rewriting.is_single_use(source):
        return None
    if kind_of(maker) not in (*MAPS, "contraction"):
        return None
    first = replace(node, inputs=tuple(source if i == read[0] else i for i in node.inputs))
    for before, step in zip((maker, *moves[:-1]), (first, *moves[:-1]), strict=True):
        inputs = step.inputs if step is first else (source,)
        build = Builder(replace(node, origin=step.origin), rewriting)
        source = build(
            step.op,
            *inputs,
            output=build.fresh("hoisted"),
            domain=step.domain,
            type_=rewriting.types[before.outputs[0]],
            **step.attributes,
        )
    return replace(moves[-1], inputs=(source,), outputs=node.outputs)


def _is_scalar(rewriting: Rewriting, value: str) -> bool:
    array = rewriting.constants.get(value)
    return array is not None and array.ndim == 0


canonical_view = Rule(P(VIEWS), _canonical_view)
merge_transposes = Rule(P("Transpose", P("Transpose", value("x"), name="inner")), _merge_transposes)
view_transpose = Rule(P("Transpose", value("x")), _view_transpose)
use_channel_shuffle = Rule(
    P("Reshape", P("Transpose", P("Reshape", value("x"), name="apart"), name="moved")),
    _use_channel_shuffle,
)
hoist_elementwise = Rule(P(_ELEMENTWISE), _hoist_elementwise)
