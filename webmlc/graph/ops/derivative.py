"""The derivative of an elementwise operator, which `derive_gradient` writes.

`webmlc.Derivative(dy, x0, x1, ...) {of, given, position}` is `dy` times the derivative of the
operator `of` with the attributes `given` by its input `position`. Its shape is the shape of `dy`.
The derivative is computed from the operator's expression. It is elementwise itself, so that it
fuses and can be differentiated again.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.differentiate import differentiate
from webmlc.core.expr import Cast, Const, Expr
from webmlc.core.rewrite import rewrite
from webmlc.graph.compute import Read, Tensor, compute, placeholder
from webmlc.graph.ir import Attribute, Node
from webmlc.graph.ops import elementwise
from webmlc.graph.ops.operator import Context, Inputs, Operator, same_type
from webmlc.graph.ops.shapes import accumulator, aligned

DERIVATIVE = ("webmlc", "Derivative")


def attributes_of(node: Node, position: int) -> dict[str, Attribute]:
    """The attributes of the derivative of `node` by its input `position`."""
    attributes = tuple(sorted(node.attributes.items()))
    return {"of": full_name(node.domain, node.op), "given": attributes, "position": position}


def full_name(domain: str, op: str) -> str:
    """The name of an operator in `DIFFERENTIABLE`: with its domain, if this is not ONNX's."""
    return op if domain in ("", DERIVATIVE[0]) else f"{domain}.{op}"


def _derivative(context: Context, dy: Tensor, *inputs: Tensor | None) -> Tensor:
    position = int(context.attribute("position"))
    placeholders = tuple(
        None if t is None else placeholder(t.name, t.shape, t.dtype) for t in inputs
    )
    y = _forward(context, placeholders)
    variable = placeholders[position]
    assert isinstance(y.body, Expr)
    body = y.body
    while isinstance(body, Cast) and body.value.dtype is accumulator(body.dtype):
        body = body.value  # round half-precision numbers once, after the product
    slope = differentiate(body, lambda leaf: isinstance(leaf, Read) and leaf.tensor is variable)
    if slope is None:
        slope = Const(0.0, body.dtype)
    places = dict(zip(placeholders, inputs, strict=True))

    def element(*index: Expr) -> Expr:
        axes = dict(zip(y.axes, index, strict=True))

        def rule(node: Expr) -> Expr | None:
            match node:
                case Read(tensor=tensor, indices=indices) if tensor in places:
                    source = places[tensor]
                    assert source is not None
                    return source[indices]
            return axes.get(node)  # type: ignore[call-overload, no-any-return]

        upstream = dy[aligned(index, dy.shape, y.shape)].astype(slope.dtype)
        return (upstream * rewrite(slope, rule)).astype(dy.dtype)

    return compute("derivative", y.shape, element)


def _forward(context: Context, tensors: Inputs) -> Tensor:
    """Compute the operator that is differentiated from these inputs."""
    of = context.attribute("of")
    node = Node(of, context.node.inputs[1:], ("y",), dict(context.attribute("given")))
    inner = replace(
        context,
        node=node,
        types=context.types[1:],
        constants=context.constants[1:],
        values=context.values[1:],
        outputs=(context.type(0),),
    )
    (y,) = DIFFERENTIABLE[of].tensors(inner, tensors)
    return y


_ROW = Operator(DERIVATIVE[1], same_type, _derivative, kind="broadcast", domain=DERIVATIVE[0])
DIFFERENTIABLE: dict[str, Operator] = {row.name: row for row in (*elementwise.OPS, _ROW)}
"""The operators whose expression can be differentiated, by name. Those of other domains are here
while the table has them (`table.with_rows`).
"""

OPS: tuple[Operator, ...] = (_ROW,)
