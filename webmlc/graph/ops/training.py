"""Operators of training: derivatives, and one step of an optimiser.

`webmlc.Derivative(dy, x0, x1, ...) {of, given, position}` is `dy` times the derivative of the
elementwise operator `of` with the attributes `given` by its input `position`. Its shape is the
shape of `dy`. The derivative is computed from the operator's expression. It is elementwise itself,
so that it fuses and can be differentiated again. `derive_gradient` writes it, and expands Gradient.

Adagrad, Adam and Momentum of ai.onnx.preview.training take the rate R, the step number T, then all
tensors X, all gradients G, and all states (Adagrad: H; Adam: V and H; Momentum: V). They return the
new X and states in the same order. Each tensor takes a few elementwise nodes, which fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from webmlc.core.differentiate import differentiate
from webmlc.core.dtypes import DType
from webmlc.core.expr import Cast, Const, Expr
from webmlc.core.rewrite import rewrite
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Read, Tensor, compute, placeholder
from webmlc.graph.ir import Attribute, Node
from webmlc.graph.ops import elementwise
from webmlc.graph.ops.operator import Context, Inputs, NotSupportedError, Operator, same_type
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


DOMAIN = "ai.onnx.preview.training"
Update = Callable[["_Step", Value, Value, tuple[Value, ...]], tuple[Value, ...]]


@dataclass(slots=True)
class _Step:
    """The inputs that the updates of all tensors of one node share: its attributes, rate and step
    number.
    """

    context: Context
    build: Builder
    dtype: DType

    @property
    def rate(self) -> Value:
        return self.build.inputs[0].cast(self.dtype)

    @property
    def number_of_step(self) -> Value:
        return self.build.inputs[1].cast(self.dtype)

    def later(self, value: Value, first: Value) -> Value:
        """Choose `first` in step 0, and `value` in later steps."""
        return self.build("Greater", self.build.inputs[1], 0).where(value, first)

    def regularised(self, x: Value, gradient: Value) -> Value:
        """The gradient of the loss plus the gradient of half the squared norm of `x`."""
        factor = self.context.attribute("norm_coefficient", 0.0)
        return factor * x + gradient if factor else gradient


def _blend(factor: float, old: Value, new: Value) -> Value:
    return factor * old + (1.0 - factor) * new


def _adagrad(step: _Step, x: Value, gradient: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
    attribute, gradient = step.context.attribute, step.regularised(x, gradient)
    slower = 1.0 + step.number_of_step * attribute("decay_factor", 0.0)
    rate = step.rate / slower
    squares = state[0] + gradient * gradient
    scale = squares.op("Sqrt") + attribute("epsilon", 1e-6)
    return x - rate * gradient / scale, squares


def _adam(step: _Step, x: Value, gradient: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
    attribute, gradient = step.context.attribute, step.regularised(x, gradient)
    alpha, beta = attribute("alpha", 0.9), attribute("beta", 0.999)
    mean = _blend(alpha, state[0], gradient)
    squares = _blend(beta, state[1], gradient * gradient)
    scale = squares.op("Sqrt") + attribute("epsilon", 1e-6)

    def unbiased(factor: float) -> Value:
        return 1.0 - step.build("Pow", factor, step.number_of_step)

    rate = step.rate
    corrected = rate * unbiased(beta).op("Sqrt") / unbiased(alpha)
    move = step.later(corrected, rate) * mean / scale
    after = attribute("norm_coefficient_post", 0.0)
    return (1.0 - after) * (x - move), mean, squares


def _momentum(
    step: _Step, x: Value, gradient: Value, state: tuple[Value, ...]
) -> tuple[Value, ...]:
    attribute, gradient = step.context.attribute, step.regularised(x, gradient)
    alpha = attribute("alpha")
    beta, one = (step.build.constant(v, step.dtype) for v in (attribute("beta"), 1))
    velocity = alpha * state[0] + step.later(beta, one) * gradient
    move = gradient + alpha * velocity if attribute("mode") == "nesterov" else velocity
    return x - step.rate * move, velocity


def _row(name: str, update: Update, states: int) -> Operator:
    def expand(context: Context, build: Builder) -> tuple[Value, ...]:
        values = build.inputs[2:]
        count = len(values) // (2 + states)
        results: list[tuple[Value, ...]] = []
        for k in range(count):
            step = _Step(context, build, context.dtype(2 + k))
            if step.dtype not in (DType.float32, DType.float64):
                raise NotSupportedError(f"tensors of {step.dtype}")
            x, gradient, *state = values[k::count]
            results.append(update(step, x, gradient, tuple(state)))
        return tuple(part[k] for k in range(1 + states) for part in results)

    return Operator(name, expand=expand, domain=DOMAIN)


OPS: tuple[Operator, ...] = (
    _ROW,
    _row("Adagrad", _adagrad, 1),
    _row("Adam", _adam, 2),
    _row("Momentum", _momentum, 1),
    Operator("Gradient", domain=DOMAIN),  # by graph/derive_gradient,
)  # fmt: skip
