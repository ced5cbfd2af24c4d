"""The rules of `simplify_graph` about nodes that only move elements: views, transposes, channel
shuffles.

A rule is a function `(rewriting, node, context) -> an equal value | a better node | None`.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Expr, as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array, Node, TensorType
from webmlc.graph.ops.operator import Context
from webmlc.graph.ops.shapes import ONE, canonical, same
from webmlc.graph.ops.view import permutation
from webmlc.graph.rewrite.meaning import MAPS, kind_of
from webmlc.graph.rewrite.rewriting import Rewriting

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def same_type(a: TensorType | None, b: TensorType | None) -> bool:
    """True for two known types that are equal."""
    if a is None or b is None or a.dtype != b.dtype or a.rank != b.rank:
        return False
    return all(same(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def canonical_view(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write every view as a Reshape with its shape as an attribute; merge a view of a view."""
    if node.domain or node.op not in VIEWS or not context.outputs:
        return None
    source = node.inputs[0]
    before = rewriting.producer(source)
    if before is not None and _is_view(before):
        source = before.inputs[0]
    if source == node.inputs[0] and _is_view(node):
        return None
    return replace(
        node, op="Reshape", inputs=(source,), attributes={"shape": context.outputs[0].shape}
    )


def _is_view(node: Node) -> bool:
    return node.op == "Reshape" and not node.domain and len(node.inputs) == 1


def simplify_transpose(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Merge a transpose of a transpose; write one that moves only axes of size 1 as a view."""
    if node.domain or node.op != "Transpose":
        return None
    axes = permutation(context)
    before = rewriting.producer(node.inputs[0])
    if before is not None and before.op == "Transpose" and not before.domain:
        inner = permutation(rewriting.scope.context(before))
        composed = tuple(inner[a] for a in axes)
        return replace(node, inputs=before.inputs, attributes={"perm": composed})
    moved = [a for a in axes if context.shape(0)[a] != ONE]
    if moved == sorted(moved):
        return replace(node, op="Reshape", attributes={"shape": context.outputs[0].shape})
    return None


def use_channel_shuffle(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Write an axis that is split in two, which change places, as a ChannelShuffle: that names its
    axis, and so it can follow any layout.
    """
    if not _is_view(node):
        return None
    transpose = rewriting.producer(node.inputs[0])
    if transpose is None or (transpose.domain, transpose.op) != ("", "Transpose"):
        return None
    view = rewriting.producer(transpose.inputs[0])
    if view is None or not _is_view(view):
        return None
    whole, apart = (rewriting.scope.type_of(v) for v in (view.inputs[0], view.outputs[0]))
    if whole is None or apart is None or not same_type(whole, context.outputs[0]):
        return None
    axes = permutation(rewriting.scope.context(transpose))
    moved = [d for d, a in enumerate(axes) if d != a]
    if apart.rank != whole.rank + 1 or len(moved) != 2 or moved[1] != moved[0] + 1:
        return None
    axis, groups = moved[0], as_int(apart.shape[moved[0]])
    joined: tuple[Expr, ...] = (
        *apart.shape[:axis],
        canonical(apart.shape[axis] * apart.shape[axis + 1]),
        *apart.shape[axis + 2 :],
    )
    if groups is None or not all(map(same, joined, whole.shape)):
        return None
    return Node(
        "ChannelShuffle",
        view.inputs,
        node.outputs,
        {"axis": axis, "groups": groups},
        "webmlc",
        tuple(dict.fromkeys((*view.origin, *transpose.origin, *node.origin))),
    )


def hoist_elementwise(rewriting: Rewriting, node: Node, context: Context) -> Node | None:
    """Move an elementwise node before the views and transposes of a product: there it can join the
    product's kernel.
    """
    if node.domain or kind_of(node) not in MAPS or len(context.outputs) != 1:
        return None
    read = [i for i in node.inputs if i and not _is_number(rewriting.constants.get(i))]
    if len(read) != 1 or not same_type(rewriting.scope.type_of(read[0]), context.outputs[0]):
        return None
    value, moves = read[0], list[Node]()
    while rewriting.is_single_use(value) and (maker := rewriting.producer(value)) is not None:
        if not _rearranges(maker):
            break
        moves.insert(0, maker)
        value = maker.inputs[0]
    maker = rewriting.producer(value)
    if not moves or maker is None or not rewriting.is_single_use(value):
        return None
    if kind_of(maker) not in (*MAPS, "contraction"):
        return None
    steps = [replace(node, inputs=tuple(value if i == read[0] else i for i in node.inputs)), *moves]
    for before, step in zip((maker, *moves[:-1]), steps[:-1], strict=True):
        inputs = step.inputs if step is steps[0] else (value,)
        build = Builder(replace(node, origin=step.origin), rewriting)
        value = build(
            step.op,
            *inputs,
            output=build.fresh("hoisted"),
            domain=step.domain,
            type_=rewriting.types[before.outputs[0]],
            **step.attributes,
        )
    return replace(moves[-1], inputs=(value,), outputs=node.outputs)


def _rearranges(node: Node) -> bool:
    return (node.domain, node.op) in _REARRANGING


_REARRANGING = frozenset(
    {("", "Reshape"), ("", "Transpose"), ("webmlc", "View"), ("webmlc", "ChannelShuffle")}
)


def _is_number(array: Array | None) -> bool:
    return array is not None and array.ndim == 0
