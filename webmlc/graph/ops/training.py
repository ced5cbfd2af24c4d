"""One step of an optimiser: Adagrad, Adam and Momentum of ai.onnx.preview.training. Also the row of
Gradient, which `graph/gradient/derive_gradient.py` expands.

In: the rate R, the step number T, then all tensors X, all gradients G, and all states (Adagrad: H;
Adam: V and H; Momentum: V). Out: the new X and states in the same order. Each tensor takes a few
elementwise nodes, which fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator

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
    _row("Adagrad", _adagrad, 1),
    _row("Adam", _adam, 2),
    _row("Momentum", _momentum, 1),
    Operator("Gradient", domain=DOMAIN),  # by graph/derive_gradient
)
