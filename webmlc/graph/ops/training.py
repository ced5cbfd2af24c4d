"""One step of an optimiser: Adagrad, Adam and Momentum of ai.onnx.preview.training. Also the row of
Gradient, which `graph/gradient/derive_gradient.py` expands.

In: the rate R, the step number T, then all tensors X, all gradients G, and all states (Adagrad: H;
Adam: V and H; Momentum: V). Out: the new X and states in the same order. Each tensor takes a few
elementwise nodes, which fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, always_expands

DOMAIN = "ai.onnx.preview.training"
Update = Callable[["_Step", str, str, tuple[str, ...]], tuple[str, ...]]


@dataclass(slots=True)
class _Step:
    """Arithmetic on value names. A number becomes a constant of the tensors' dtype."""

    context: Context
    build: Builder
    dtype: DType

    def number(self, value: str | float) -> str:
        return value if isinstance(value, str) else self.build.constant(value, self.dtype)

    def add(self, a: str | float, b: str | float) -> str:
        return self.build("Add", self.number(a), self.number(b))

    def sub(self, a: str | float, b: str | float) -> str:
        return self.build("Sub", self.number(a), self.number(b))

    def mul(self, a: str | float, b: str | float) -> str:
        return self.build("Mul", self.number(a), self.number(b))

    def div(self, a: str | float, b: str | float) -> str:
        return self.build("Div", self.number(a), self.number(b))

    @property
    def rate(self) -> str:
        return self.build("Cast", self.context.node.inputs[0], to=self.dtype_number)

    @property
    def number_of_step(self) -> str:
        return self.build("Cast", self.context.node.inputs[1], to=self.dtype_number)

    @property
    def dtype_number(self) -> int:
        return {DType.float32: 1, DType.float64: 11}[self.dtype]

    def later(self, value: str, first: str) -> str:
        """Choose `first` in step 0, and `value` in later steps."""
        zero = self.build.constant(np.int64(0))
        return self.build("Where", self.build("Greater", self.context.node.inputs[1], zero),
                          value, first)  # fmt: skip

    def regularised(self, x: str, gradient: str) -> str:
        """The gradient of the loss plus that of half the squared norm of `x`."""
        factor = self.context.attribute("norm_coefficient", 0.0)
        return self.add(self.mul(factor, x), gradient) if factor else gradient

    def blend(self, factor: float, old: str, new: str) -> str:
        """Compute factor · old + (1 - factor) · new."""
        return self.add(self.mul(factor, old), self.mul(1.0 - factor, new))


def _adagrad(step: _Step, x: str, gradient: str, state: tuple[str, ...]) -> tuple[str, ...]:
    attribute, gradient = step.context.attribute, step.regularised(x, gradient)
    slower = step.add(1.0, step.mul(step.number_of_step, attribute("decay_factor", 0.0)))
    rate = step.div(step.rate, slower)
    squares = step.add(state[0], step.mul(gradient, gradient))
    scale = step.add(step.build("Sqrt", squares), attribute("epsilon", 1e-6))
    return step.sub(x, step.div(step.mul(rate, gradient), scale)), squares


def _adam(step: _Step, x: str, gradient: str, state: tuple[str, ...]) -> tuple[str, ...]:
    attribute, gradient = step.context.attribute, step.regularised(x, gradient)
    alpha, beta = attribute("alpha", 0.9), attribute("beta", 0.999)
    mean = step.blend(alpha, state[0], gradient)
    squares = step.blend(beta, state[1], step.mul(gradient, gradient))
    scale = step.add(step.build("Sqrt", squares), attribute("epsilon", 1e-6))

    def unbiased(factor: float) -> str:
        power = step.build("Pow", step.number(factor), step.number_of_step)
        return step.sub(1.0, power)

    rate = step.rate
    corrected = step.div(step.mul(rate, step.build("Sqrt", unbiased(beta))), unbiased(alpha))
    move = step.div(step.mul(step.later(corrected, rate), mean), scale)
    after = attribute("norm_coefficient_post", 0.0)
    return step.mul(1.0 - after, step.sub(x, move)), mean, squares


def _momentum(step: _Step, x: str, gradient: str, state: tuple[str, ...]) -> tuple[str, ...]:
    attribute, gradient = step.context.attribute, step.regularised(x, gradient)
    alpha = attribute("alpha")
    share = step.later(step.number(attribute("beta")), step.number(1.0))
    velocity = step.add(step.mul(alpha, state[0]), step.mul(share, gradient))
    move = velocity
    if attribute("mode") == "nesterov":
        move = step.add(gradient, step.mul(alpha, velocity))
    return step.sub(x, step.mul(step.rate, move)), velocity


def _row(name: str, update: Update, states: int) -> Operator:
    def expand(context: Context, builder: Builder) -> tuple[str, ...]:
        values = context.node.inputs[2:]
        count = len(values) // (2 + states)
        results: list[tuple[str, ...]] = []
        for k in range(count):
            step = _Step(context, builder, context.dtype(2 + k))
            if step.dtype not in (DType.float32, DType.float64):
                raise NotSupportedError(f"tensors of {step.dtype}")
            x, gradient, *state = values[k::count]
            results.append(update(step, x, gradient, tuple(state)))
        return tuple(part[k] for k in range(1 + states) for part in results)

    return Operator(name, always_expands, expand=expand, domain=DOMAIN)


OPS: tuple[Operator, ...] = (
    _row("Adagrad", _adagrad, 1),
    _row("Adam", _adam, 2),
    _row("Momentum", _momentum, 1),
    Operator("Gradient", always_expands, domain=DOMAIN),  # by graph/derive_gradient
)
