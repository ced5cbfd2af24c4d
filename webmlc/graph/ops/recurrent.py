"""Recurrent layers, unrolled: RNN, GRU and LSTM over a sequence of known, moderate length.

The inputs' share of all steps is one matrix product, outside the steps; a step is one small product
with the state, and elementwise nodes that fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from webmlc.core.expr import as_int
from webmlc.graph.ir import Attribute, TensorType
from webmlc.graph.ops.operator import Builder, Context, NotSupportedError, Operator, case

LONGEST = 128
"""Steps that are unrolled; more would make too much code."""

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
}
Activation = Callable[[str], str]


@dataclass(slots=True)
class _Direction:
    """One direction of a layer: its weights as value names, [features][gates · hidden]."""

    build: Builder
    node: Context
    number: int
    gates: int
    hidden: int
    activations: tuple[Activation, ...]

    def part(self, index: int) -> str:
        """This direction's slice of an input that has one a direction, without that axis."""
        at = self.build.constant(np.int64(self.number))
        return self.build("Gather", self.node.node.inputs[index], at, axis=0)

    def columns(self, value: str, first: int, count: int, axis: int = -1) -> str:
        """`count` gates of a value, from gate `first` on."""
        starts, ends = (
            self.build.constant(np.array([k * self.hidden])) for k in (first, first + count)
        )
        return self.build("Slice", value, starts, ends, self.build.constant(np.array([axis])))

    def weights(self, index: int) -> str:
        return self.build("Transpose", self.part(index), perm=(1, 0))

    def bias(self, first: int, count: int, side: int) -> str | None:
        """Gates of the bias: side 0 is added to the inputs' share, 1 to the state's."""
        if not self.node.has(3):
            return None
        return self.columns(self.part(3), side * self.gates + first, count)

    def add(self, value: str, term: str | None) -> str:
        return value if term is None else self.build("Add", value, term)


def _activation(build: Builder, name: str, alpha: float | None, beta: float | None) -> Activation:
    names = {"softplus": "Softplus", "softsign": "Softsign", "relu": "Relu"}
    op = names.get(name.lower(), name)
    if op == "Affine":
        scale, shift = build.constant(np.float32(alpha or 1)), build.constant(np.float32(beta or 0))
        return lambda x: build("Add", build("Mul", x, scale), shift)
    attributes: dict[str, Attribute] = {}
    if op in ("LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu") and alpha is not None:
        attributes["alpha"] = alpha
    if op == "HardSigmoid" and beta is not None:
        attributes["beta"] = beta
    return lambda x: build(op, x, **attributes)


def _activations(context: Context, build: Builder, direction: int) -> tuple[Activation, ...]:
    defaults = DEFAULTS[context.node.op]
    count = len(defaults)
    names = context.attribute("activations") or defaults * 2
    alphas = list(context.attribute("activation_alpha", ()))
    betas = list(context.attribute("activation_beta", ()))
    made = []
    for k in range(direction * count, (direction + 1) * count):
        alpha = alphas[k] if k < len(alphas) else None
        made.append(_activation(build, names[k], alpha, betas[k] if k < len(betas) else None))
    clip = context.attribute("clip")
    if clip is None:
        return tuple(made)
    low, high = build.constant(np.float32(-clip)), build.constant(np.float32(clip))
    return tuple(lambda x, f=f: f(build("Clip", x, low, high)) for f in made)


def _expand(context: Context, build: Builder) -> tuple[str, ...]:
    """All directions, then outputs Y, Y_h (and Y_c of an LSTM) as far as they are wanted."""
    op, batchwise = context.node.op, bool(context.attribute("layout", 0))
    mode = context.attribute("direction", "forward")
    hidden = int(context.attribute("hidden_size") or as_int(context.shape(2)[-1]) or 0)
    steps = as_int(context.shape(0)[1 if batchwise else 0])
    if steps is None or steps > LONGEST:
        raise NotSupportedError(f"a sequence of {steps or 'unknown'} steps; up to {LONGEST} unroll")
    x = context.node.inputs[0]
    x = build("Transpose", x, perm=(1, 0, 2)) if batchwise else x
    sequences: list[list[str]] = []
    states: list[tuple[str, ...]] = []
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[mode]
    for number, backward in enumerate(backwards):
        direction = _Direction(
            build, context, number, GATES[op], hidden, _activations(context, build, number)
        )
        outputs, state = _run(direction, x, steps, backward, batchwise)
        sequences.append(outputs)
        states.append(state)
    rows = [
        build("Concat", *(build("Unsqueeze", s[t], axes=(0,)) for s in sequences), axis=0)
        for t in range(steps)
    ]
    y = build("Concat", *(build("Unsqueeze", row, axes=(0,)) for row in rows), axis=0)
    finals = [
        build("Concat", *(build("Unsqueeze", s[k], axes=(0,)) for s in states), axis=0)
        for k in range(len(states[0]))
    ]
    if batchwise:
        y = build("Transpose", y, perm=(2, 0, 1, 3))
        finals = [build("Transpose", f, perm=(1, 0, 2)) for f in finals]
    wanted = zip((y, *finals), context.node.outputs, strict=False)
    return tuple(value for value, name in wanted if name)


def _run(
    direction: _Direction, x: str, steps: int, backward: bool, batchwise: bool
) -> tuple[list[str], tuple[str, ...]]:
    """One direction's outputs by position, and its last state."""
    build, context = direction.build, direction.node
    share = build("MatMul", x, direction.weights(1))
    share = direction.add(share, direction.bias(0, direction.gates, 0))
    step = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}[context.node.op](direction)
    state = tuple(
        _initial(direction, x, index, batchwise)
        for index in ((5, 6) if context.node.op == "LSTM" else (5,))
    )
    outputs = [""] * steps
    for t in reversed(range(steps)) if backward else range(steps):
        here = build("Gather", share, build.constant(np.int64(t)), axis=0)
        fresh = step(here, state)
        outputs[t] = fresh[0]
        if context.has(4):  # shorter sequences keep their state and give zeros
            number = build.constant(t, context.dtype(4))
            inside = build("Unsqueeze", build("Less", number, context.node.inputs[4]), axes=(1,))
            zero = build.constant(0, context.dtype(0))
            outputs[t] = build("Where", inside, fresh[0], zero)
            pairs = zip(fresh, state, strict=True)
            fresh = tuple(build("Where", inside, new, old) for new, old in pairs)
        state = fresh
    return outputs, state


def _initial(direction: _Direction, x: str, index: int, batchwise: bool) -> str:
    build, context = direction.build, direction.node
    if context.has(index):
        if not batchwise:
            return direction.part(index)
        at = build.constant(np.int64(direction.number))
        return build("Gather", context.node.inputs[index], at, axis=1)
    batch = build("Shape", x, start=1, end=2)
    shape = build("Concat", batch, build.constant(np.array([direction.hidden])), axis=0)
    return build("ConstantOfShape", shape, value=np.zeros(1, context.dtype(0).numpy))


Step = Callable[[str, tuple[str, ...]], tuple[str, ...]]


def _rnn(d: _Direction) -> Step:
    weights, bias, f = d.weights(2), d.bias(0, 1, 1), d.activations[0]

    def step(x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        product = d.add(d.build("MatMul", state[0], weights), bias)
        return (f(d.build("Add", x, product)),)

    return step


def _gru(d: _Direction) -> Step:
    """Gates z, r, h; `linear_before_reset` applies r after the state's product."""
    weights, build = d.weights(2), d.build
    gates, candidate = d.columns(weights, 0, 2), d.columns(weights, 2, 1)
    gate_bias, bias = d.bias(0, 2, 1), d.bias(2, 1, 1)
    f, g = d.activations
    linear = bool(d.node.attribute("linear_before_reset", 0))
    one = build.constant(1, d.node.dtype(0))

    def step(x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        h = state[0]
        product = d.add(build("MatMul", h, gates), gate_bias)
        both = f(build("Add", d.columns(x, 0, 2), product))
        z, r = d.columns(both, 0, 1), d.columns(both, 1, 1)
        if linear:
            inner = build("Mul", r, d.add(build("MatMul", h, candidate), bias))
        else:
            inner = d.add(build("MatMul", build("Mul", r, h), candidate), bias)
        fresh = g(build("Add", d.columns(x, 2, 1), inner))
        kept = build("Mul", z, h)
        return (build("Add", build("Mul", build("Sub", one, z), fresh), kept),)

    return step


def _lstm(d: _Direction) -> Step:
    """Gates i, o, f, c; peepholes (input 7) let the gates see the cell."""
    weights, bias, build = d.weights(2), d.bias(0, 4, 1), d.build
    f, g, h = d.activations
    peepholes = d.part(7) if d.node.has(7) else None
    coupled = bool(d.node.attribute("input_forget", 0))
    one = build.constant(1, d.node.dtype(0))

    def peek(gate: str, cell: str, number: int) -> str:
        if peepholes is None:
            return gate
        return build("Add", gate, build("Mul", d.columns(peepholes, number, 1), cell))

    def step(x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        hidden, cell = state
        gates = build("Add", x, d.add(build("MatMul", hidden, weights), bias))
        i = f(peek(d.columns(gates, 0, 1), cell, 0))
        forget = f(peek(d.columns(gates, 2, 1), cell, 2))
        if coupled:
            forget = build("Sub", one, i)
        kept = build("Mul", forget, cell)
        fresh = build("Add", kept, build("Mul", i, g(d.columns(gates, 3, 1))))
        o = f(peek(d.columns(gates, 1, 1), fresh, 1))
        return build("Mul", o, h(fresh)), fresh

    return step


def _never(context: Context) -> tuple[TensorType, ...]:
    raise NotSupportedError("this layer is always unrolled")


X, W, R, B = "float32[3, 2, 4]", "float32[1, {}, 4]", "float32[1, {}, 5]", "float32[1, {}]"


def _cases(gates: int) -> tuple[str, str, str]:
    return W.format(5 * gates), R.format(5 * gates), B.format(10 * gates)


OPS: tuple[Operator, ...] = (
    Operator("RNN", _never, expand=_expand, cases=(
        case(X, *_cases(1), outputs=2, hidden_size=5),
        case(X, "float32[2, 5, 4]", "float32[2, 5, 5]", outputs=2, hidden_size=5,
             direction="bidirectional"))),
    Operator("GRU", _never, expand=_expand, cases=(
        case(X, *_cases(3), outputs=2, hidden_size=5),
        case(X, *_cases(3), None, "float32[1, 2, 5]", outputs=2, hidden_size=5,
             linear_before_reset=1),
        case(X, *_cases(3), np.array([3, 1], np.int32), outputs=2, hidden_size=5))),
    Operator("LSTM", _never, expand=_expand, cases=(
        case(X, *_cases(4), outputs=3, hidden_size=5),
        case(X, *_cases(4), outputs=3, hidden_size=5, direction="reverse"),
        case(X, *_cases(4), None, "float32[1, 2, 5]", "float32[1, 2, 5]", "float32[1, 15]",
             outputs=3, hidden_size=5))),
)  # fmt: skip
