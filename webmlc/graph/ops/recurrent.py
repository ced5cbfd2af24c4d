"""Recurrent layers: RNN, GRU and LSTM, each a loop over the steps of a sequence.

The product of the inputs and weights is one matrix product for all steps, outside the loop. A step
is a small product with the state, and elementwise nodes that fuse. Sequences may have any length,
including a symbolic one. The row of `Loop` unrolls the shortest.

    y, h = RNN(x, w, r)  ->  s = MatMul(x, w); h, y = Loop(steps, 0) { h = Tanh(s[t] + h · r) }

DynamicQuantizeLSTM of onnxruntime has weights of bytes. Each product quantises its left operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Attribute, Function
from webmlc.graph.ops.index import require_within
from webmlc.graph.ops.microsoft.rows import DOMAIN
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import canonical, check_shapes

QUANTISED = "DynamicQuantizeLSTM"
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4, QUANTISED: 4}
"""The number of gates of each layer."""
DEFAULTS = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    QUANTISED: ("Sigmoid", "Tanh", "Tanh"),
}
"""The default activations of a direction."""
GATE_FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 2, QUANTISED: 2}
"""The number of activations of a direction whose inputs `clip` limits. onnxruntime does not clip
the input of an LSTM's last activation, which is the cell.
"""

ACTIVATIONS = frozenset(
    {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus",
     "Softsign", "Tanh", "ThresholdedRelu"}
)  # fmt: skip
"""The activations. All but Affine and ScaledTanh are ONNX operators. Models write the names in
upper or lower case.
"""
WITH_ALPHA = ("Elu", "LeakyRelu", "ThresholdedRelu")
WITH_BETA = ("Affine", "HardSigmoid", "ScaledTanh")
"""The activations that take an alpha, and the activations that take an alpha and a beta. Other
activations take none of the numbers that a node lists.
"""
Activation = Callable[[Value], Value]
Multiply = Callable[[Value], Value]


@dataclass(slots=True)
class _Direction:
    """One direction of a layer. It writes the values of its weights, [features][gates · hidden]."""

    build: Builder
    node: Context
    number: int
    gates: int
    hidden: int
    activations: tuple[Activation, ...]

    def part(self, index: int) -> Value:
        """This direction's slice of an input whose first axis is the directions."""
        return self.build.inputs[index].element(self.number, 0)

    def columns(self, value: Value, first: int, count: int) -> Value:
        """Slice `count` gates of a value, from gate `first` on."""
        return value.slice(first * self.hidden, (first + count) * self.hidden, -1)

    def weights(self, index: int) -> Value:
        """The transposed weights of an input, for this direction."""
        return self.part(index).transpose(1, 0)

    def product(self, index: int) -> Multiply:
        """The product with the weights of an input, for this direction."""
        if self.node.node.op != QUANTISED:
            weights = self.weights(index)
            return lambda x: x @ weights
        scale = 6 + 2 * index  # the input of the scales; the zero points are the next input
        operands = [self.part(i) for i in (index, scale, scale + 1)]
        return lambda x: x.op("DynamicQuantizeMatMul", *operands, domain=DOMAIN)

    def bias(self, first: int, count: int, side: int) -> Value | None:
        """`count` gates of the bias, if there is one. Side 0 belongs to the product of the inputs,
        side 1 to the product of the state.
        """
        if not self.node.has(3):
            return None
        return self.columns(self.part(3), side * self.gates + first, count)


def _add(value: Value, term: Value | None) -> Value:
    return value if term is None else value + term


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    """The activation of this name. It takes its parameters from the lists of the node."""
    op = next((candidate for candidate in ACTIVATIONS if candidate.lower() == name.lower()), None)
    if op is None:
        raise NotSupportedError(f"the activation {name!r}")
    alpha = next(alphas, None) if op in (*WITH_ALPHA, *WITH_BETA) else None
    beta = next(betas, None) if op in WITH_BETA else None
    if op in ("Affine", "ScaledTanh") and None in (alpha, beta):
        raise NotSupportedError(
            f"the activation {op} without an activation_alpha and an activation_beta of its own: "
            "ONNX has no defaults for them"
        )
    if op == "Affine":
        return lambda x: x * alpha + beta
    if op == "ScaledTanh":
        return lambda x: (x * beta).op("Tanh") * alpha
    attributes: dict[str, Attribute] = {}
    if alpha is not None:
        attributes["alpha"] = alpha
    if beta is not None:
        attributes["beta"] = beta
    return lambda x: x.op(op, **attributes)


def _clipped(function: Activation, limit: float) -> Activation:
    return lambda x: function(x.op("Clip", -limit, limit))


def _activations(context: Context, direction: int) -> tuple[Activation, ...]:
    defaults = DEFAULTS[context.node.op]
    count = len(defaults)
    names = context.attribute("activations") or defaults * 2
    if len(names) < (direction + 1) * count:
        raise NotSupportedError(f"{len(names)} activations; {count} a direction are expected")
    alphas, betas = (iter(context.attribute(f"activation_{n}", ())) for n in ("alpha", "beta"))
    functions = [_activation(name, alphas, betas) for name in names]
    direction_functions = functions[direction * count : (direction + 1) * count]
    clip = context.attribute("clip")
    if clip is None:
        return tuple(direction_functions)
    gate_functions = direction_functions[: GATE_FUNCTIONS[context.node.op]]
    return (
        *(_clipped(f, clip) for f in gate_functions),
        *direction_functions[len(gate_functions) :],
    )


def expand_layer(context: Context, build: Builder) -> tuple[Value, ...]:
    """Run all directions, then join their outputs Y and Y_h, and Y_c of an LSTM."""
    op, batchwise = context.node.op, bool(context.attribute("layout", 0))
    hidden_axis, weights = -1, ("gates*hidden features", "gates*hidden hidden")
    if op == QUANTISED:
        if context.has(4):
            raise NotSupportedError(
                "sequence_lens: onnxruntime's scale of a step depends on when the sequences end"
            )
        hidden_axis, weights = 1, ("features gates*hidden", "hidden gates*hidden")
    mode = context.attribute("direction", "forward")
    hidden = int(context.attribute("hidden_size") or as_int(context.shape(2)[hidden_axis]) or 0)
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if mode not in directions:
        raise NotSupportedError(f"the direction {mode!r}")
    backwards = directions[mode]
    initial = "batch directions hidden" if batchwise else "directions batch hidden"
    check_shapes(
        context,
        "batch steps features" if batchwise else "steps batch features",
        *(f"directions {sizes}" for sizes in weights),
        "directions 2*gates*hidden",
        "batch",
        *(initial, initial),
        "directions 3*hidden",
        directions=len(backwards),
        gates=GATES[op],
        hidden=hidden,
    )
    x = build.inputs[0]
    x = x.transpose(1, 0, 2) if batchwise else x
    sequences: list[Value] = []
    states: list[tuple[Value, ...]] = []
    for number, backward in enumerate(backwards):
        activations = _activations(context, number)
        direction = _Direction(build, context, number, GATES[op], hidden, activations)
        *state, outputs = _run(direction, x, backward, batchwise)
        sequences.append(outputs.unsqueeze(1))
        states.append(tuple(state))
    y = build("Concat", *sequences, axis=1)
    finals = [
        build("Concat", *(s[k].unsqueeze(0) for s in states), axis=0) for k in range(len(states[0]))
    ]
    if batchwise:
        y = y.transpose(2, 0, 1, 3)
        finals = [f.transpose(1, 0, 2) for f in finals]
    return (y, *finals)


def _run(direction: _Direction, x: Value, backward: bool, batchwise: bool) -> tuple[Value, ...]:
    """Run one direction. Return its last state, then its outputs by position."""
    build, context = direction.build, direction.node
    input_product = direction.product(1)(x)
    input_product = _add(input_product, direction.bias(0, direction.gates, 0))
    step = {"RNN": _rnn, "GRU": _gru}.get(context.node.op, _lstm)(direction)
    indices = (5, 6) if context.node.op in ("LSTM", QUANTISED) else (5,)
    initial = tuple(_initial(direction, x, index, batchwise) for index in indices)
    steps = build("Shape", x, start=0, end=1)
    last = steps - [1]
    inner, expansion = build.inner("step")
    position, condition, *state = (
        inner.fresh(name) for name in ("place", "going", *map(str, indices))
    )
    inputs = (position, condition, *state)
    if backward:
        position = inner("Sub", last, position).op("Squeeze", axes=(0,))
    new_state = step(inner("Gather", input_product, position, axis=0), tuple(state))
    output = new_state[0]
    if context.has(4):  # after its end, a sequence keeps its state, and outputs are zero
        longest = canonical(context.shape(0)[1 if batchwise else 0] + 1)
        lengths = require_within(build, build.inputs[4], longest)
        number = position.cast(DType.int32)
        is_inside = inner("Less", number, lengths).unsqueeze(1)
        output = is_inside.where(output, 0)
        new_state = tuple(map(is_inside.where, new_state, state))
    results = (condition, *new_state, output)
    body = Function("step", inputs, results, tuple(expansion.nodes), {}, expansion.constants)
    directions = (int(backward),)
    return build.many(
        "Loop",
        steps,
        "",
        *initial,
        outputs=len(initial) + 1,
        body=body,
        scan_output_directions=directions,
    )


def _initial(direction: _Direction, x: Value, index: int, batchwise: bool) -> Value:
    """The state before the first step, [batch][hidden]."""
    build, context = direction.build, direction.node
    batch = build("Shape", x, start=1, end=2)
    shape = build("Concat", batch, [direction.hidden], axis=0)
    if not context.has(index):
        return build("ConstantOfShape", shape, value=np.zeros(1, context.dtype(0).numpy))
    state = build.inputs[index].element(direction.number, 1 if batchwise else 0)
    return state.op("Reshape", shape)  # so that the batch has the symbol of the sequence


Step = Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]


def _rnn(d: _Direction) -> Step:
    multiply, bias, f = d.product(2), d.bias(0, 1, 1), d.activations[0]

    def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
        product = _add(multiply(state[0]), bias)
        return (f(x + product),)

    return step


def _gru(d: _Direction) -> Step:
    """A step of a GRU, with gates z, r, h. If `linear_before_reset`, r is applied after the product
    with the state.
    """
    weights = d.weights(2)
    gates, candidate = d.columns(weights, 0, 2), d.columns(weights, 2, 1)
    gate_bias, bias = d.bias(0, 2, 1), d.bias(2, 1, 1)
    f, g = d.activations
    linear = bool(d.node.attribute("linear_before_reset", 0))

    def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
        (h,) = state
        product = _add(h @ gates, gate_bias)
        both = f(d.columns(x, 0, 2) + product)
        z, r = d.columns(both, 0, 1), d.columns(both, 1, 1)
        inner = r * _add(h @ candidate, bias) if linear else _add(r * h @ candidate, bias)
        new_part = g(d.columns(x, 2, 1) + inner)
        old_part = z * h
        return ((1 - z) * new_part + old_part,)

    return step


def _lstm(d: _Direction) -> Step:
    """A step of an LSTM, with gates i, o, f, c. With peepholes (input 7), the gates read the
    cell.
    """
    multiply, bias = d.product(2), d.bias(0, 4, 1)
    f, g, h = d.activations
    peepholes = d.part(7) if d.node.has(7) else None
    coupled = bool(d.node.attribute("input_forget", 0))

    def step(x: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
        def peek(gate: Value, cell: Value, number: int) -> Value:
            if peepholes is None:
                return gate
            return gate + d.columns(cell.build.value(peepholes), number, 1) * cell

        hidden, cell = state
        gates = x + _add(multiply(hidden), bias)
        i = f(peek(d.columns(gates, 0, 1), cell, 0))
        forget = 1 - i if coupled else f(peek(d.columns(gates, 2, 1), cell, 2))
        old_part = forget * cell
        new_cell = old_part + i * g(d.columns(gates, 3, 1))
        o = f(peek(d.columns(gates, 1, 1), new_cell, 1))
        return o * h(new_cell), new_cell

    return step


X, W, R, B = "float32[3, 2, 4]", "float32[1, {}, 4]", "float32[1, {}, 5]", "float32[1, {}]"


def _cases(gates: int) -> tuple[str, str, str]:
    return W.format(5 * gates), R.format(5 * gates), B.format(10 * gates)


OPS: tuple[Operator, ...] = (
    Operator("RNN", expand=expand_layer, cases=(
        case(X, *_cases(1), outputs=2, hidden_size=5, activations=("ScaledTanh",),
             activation_alpha=(1.7,), activation_beta=(0.6,)),
        case(X, *_cases(1), outputs=2, hidden_size=5),
        case(X, "float32[2, 5, 4]", "float32[2, 5, 5]", outputs=2, hidden_size=5,
             direction="bidirectional"),
        case(X, "float32[2, 5, 4]", "float32[2, 5, 5]", outputs=2, hidden_size=5,
             direction="bidirectional", activations=("Tanh", "LeakyRelu"),
             activation_alpha=(0.3,)),
        case(X, *_cases(1), np.array([3, 1], np.int32), "float32[1, 2, 5]", outputs=2,
             hidden_size=5))),
    Operator("GRU", expand=expand_layer, cases=(
        case(X, *_cases(3), outputs=2, hidden_size=5),
        case(X, *_cases(3), None, "float32[1, 2, 5]", outputs=2, hidden_size=5,
             linear_before_reset=1),
        case(X, *_cases(3), np.array([3, 1], np.int32), outputs=2, hidden_size=5),
        case(X, *_cases(3), outputs=2, hidden_size=5, clip=0.4,
             activations=("HardSigmoid", "ScaledTanh"), activation_alpha=(0.3, 0.7),
             activation_beta=(0.4, 0.6)),
        case(X, *_cases(3), outputs=2, hidden_size=5, activations=("Sigmoid", "LeakyRelu"),
             activation_alpha=(0.3,)))),
    Operator("LSTM", expand=expand_layer, cases=(
        case(X, *_cases(4), outputs=3, hidden_size=5),
        case(X, *_cases(4), outputs=3, hidden_size=5, direction="reverse"),
        case(X, *_cases(4), None, "float32[1, 2, 5]", "float32[1, 2, 5]", "float32[1, 15]",
             outputs=3, hidden_size=5),
        case("float32[3, 2, 4] in -4..4", *_cases(4), None, None, None, "float32[1, 15]",
             outputs=3, hidden_size=5, clip=0.4),
        case(X, *_cases(4), np.array([3, 1], np.int32), outputs=3, hidden_size=5),
        case(X, *_cases(4), outputs=3, hidden_size=5,
             activations=("HardSigmoid", "Affine", "LeakyRelu"), activation_alpha=(0.3, 0.6, 0.1),
             activation_beta=(0.4, 0.2)))),
)  # fmt: skip
