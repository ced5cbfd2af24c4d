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
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Attribute, Function, TensorType
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
"""The activations that take an alpha, and those that take an alpha and a beta. The others take none
of the numbers that a node lists.
"""
Activation = Callable[[Builder, str], str]
Multiply = Callable[[Builder, str], str]


@dataclass(slots=True)
class _Direction:
    """One direction of a layer. It writes the values of its weights, [features][gates · hidden]."""

    build: Builder
    node: Context
    number: int
    gates: int
    hidden: int
    activations: tuple[Activation, ...]

    def part(self, index: int) -> str:
        """This direction's slice of an input whose first axis is the directions."""
        at = self.build.constant(np.int64(self.number))
        return self.build("Gather", self.node.node.inputs[index], at, axis=0)

    def columns(self, build: Builder, value: str, first: int, count: int) -> str:
        """Slice `count` gates of a value, from gate `first` on."""
        starts, ends = (build.constant(np.array([k * self.hidden])) for k in (first, first + count))
        return build("Slice", value, starts, ends, build.constant(np.array([-1])))

    def weights(self, index: int) -> str:
        """The transposed weights of an input, for this direction."""
        return self.build("Transpose", self.part(index), perm=(1, 0))

    def product(self, index: int) -> Multiply:
        """The product with the weights of an input, for this direction."""
        if self.node.node.op != QUANTISED:
            weights = self.weights(index)
            return lambda build, x: build("MatMul", x, weights)
        scale = 6 + 2 * index  # the input of the scales; that of the zero points is the next one
        operands = [self.part(i) for i in (index, scale, scale + 1)]
        return lambda build, x: build("DynamicQuantizeMatMul", x, *operands, domain=DOMAIN)

    def bias(self, first: int, count: int, side: int) -> str | None:
        """`count` gates of the bias, if there is one. Side 0 belongs to the inputs' product, side 1
        to the state's.
        """
        if not self.node.has(3):
            return None
        return self.columns(self.build, self.part(3), side * self.gates + first, count)


def _add(build: Builder, value: str, term: str | None) -> str:
    return value if term is None else build("Add", value, term)


def _activation(
    name: str, alphas: Iterator[float], betas: Iterator[float], dtype: DType
) -> Activation:
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
        return lambda build, x: build(
            "Add",
            build("Mul", x, build.constant(alpha, dtype)),
            build.constant(beta, dtype),
        )
    if op == "ScaledTanh":
        return lambda build, x: build(
            "Mul",
            build("Tanh", build("Mul", x, build.constant(beta, dtype))),
            build.constant(alpha, dtype),
        )
    attributes: dict[str, Attribute] = {}
    if alpha is not None:
        attributes["alpha"] = alpha
    if beta is not None:
        attributes["beta"] = beta
    return lambda build, x: build(op, x, **attributes)


def _clipped(function: Activation, limit: float, dtype: DType) -> Activation:
    def activation(build: Builder, x: str) -> str:
        low, high = (build.constant(v, dtype) for v in (-limit, limit))
        return function(build, build("Clip", x, low, high))

    return activation


def _activations(context: Context, direction: int) -> tuple[Activation, ...]:
    defaults = DEFAULTS[context.node.op]
    count = len(defaults)
    names = context.attribute("activations") or defaults * 2
    if len(names) < (direction + 1) * count:
        raise NotSupportedError(f"{len(names)} activations; {count} a direction are expected")
    alphas, betas = (iter(context.attribute(f"activation_{n}", ())) for n in ("alpha", "beta"))
    functions = [_activation(name, alphas, betas, context.dtype(0)) for name in names]
    direction_functions = functions[direction * count : (direction + 1) * count]
    clip = context.attribute("clip")
    if clip is None:
        return tuple(direction_functions)
    gate_functions = direction_functions[: GATE_FUNCTIONS[context.node.op]]
    return (
        *(_clipped(f, clip, context.dtype(0)) for f in gate_functions),
        *direction_functions[len(gate_functions) :],
    )


def expand_layer(context: Context, build: Builder) -> tuple[str, ...]:
    """Run all directions, then join their outputs Y and Y_h, and Y_c of an LSTM. Only outputs that
    the node has are returned.
    """
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
    x = context.node.inputs[0]
    x = build("Transpose", x, perm=(1, 0, 2)) if batchwise else x
    sequences: list[str] = []
    states: list[tuple[str, ...]] = []
    for number, backward in enumerate(backwards):
        activations = _activations(context, number)
        direction = _Direction(build, context, number, GATES[op], hidden, activations)
        *state, outputs = _run(direction, x, backward, batchwise)
        sequences.append(build("Unsqueeze", outputs, axes=(1,)))
        states.append(tuple(state))
    y = build("Concat", *sequences, axis=1)
    finals = [
        build("Concat", *(build("Unsqueeze", s[k], axes=(0,)) for s in states), axis=0)
        for k in range(len(states[0]))
    ]
    if batchwise:
        y = build("Transpose", y, perm=(2, 0, 1, 3))
        finals = [build("Transpose", f, perm=(1, 0, 2)) for f in finals]
    return (y, *finals)[: len(context.node.outputs)]


def _run(direction: _Direction, x: str, backward: bool, batchwise: bool) -> tuple[str, ...]:
    """Run one direction. Return its last state, then its outputs by position."""
    build, context = direction.build, direction.node
    input_product = direction.product(1)(build, x)
    input_product = _add(build, input_product, direction.bias(0, direction.gates, 0))
    step = {"RNN": _rnn, "GRU": _gru}.get(context.node.op, _lstm)(direction)
    indices = (5, 6) if context.node.op in ("LSTM", QUANTISED) else (5,)
    initial = tuple(_initial(direction, x, index, batchwise) for index in indices)
    steps = build("Shape", x, start=0, end=1)
    last = build("Sub", steps, build.constant(np.array([1])))
    inner, expansion = build.inner("step")
    position, condition, *state = (
        inner.fresh(name) for name in ("place", "going", *map(str, indices))
    )
    inputs = (position, condition, *state)
    if backward:
        position = inner("Squeeze", inner("Sub", last, position), axes=(0,))
    new_state = step(inner, inner("Gather", input_product, position, axis=0), tuple(state))
    output = new_state[0]
    if context.has(4):  # after its end, a sequence keeps its state, and outputs are zero
        longest = canonical(context.shape(0)[1 if batchwise else 0] + 1)
        lengths = require_within(build, context.node.inputs[4], longest)
        number = inner("Cast", position, to=6)
        is_inside = inner("Unsqueeze", inner("Less", number, lengths), axes=(1,))
        output = inner("Where", is_inside, output, inner.constant(0, context.dtype(0)))
        pairs = zip(new_state, state, strict=True)
        new_state = tuple(inner("Where", is_inside, new, old) for new, old in pairs)
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


def _initial(direction: _Direction, x: str, index: int, batchwise: bool) -> str:
    """The state before the first step, [batch][hidden]."""
    build, context = direction.build, direction.node
    batch = build("Shape", x, start=1, end=2)
    shape = build("Concat", batch, build.constant(np.array([direction.hidden])), axis=0)
    if not context.has(index):
        return build("ConstantOfShape", shape, value=np.zeros(1, context.dtype(0).numpy))
    at = build.constant(np.int64(direction.number))
    state = build("Gather", context.node.inputs[index], at, axis=1 if batchwise else 0)
    return build("Reshape", state, shape)  # so that the batch has the symbol of the sequence


Step = Callable[[Builder, str, tuple[str, ...]], tuple[str, ...]]


def _rnn(d: _Direction) -> Step:
    multiply, bias, f = d.product(2), d.bias(0, 1, 1), d.activations[0]

    def step(build: Builder, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        product = _add(build, multiply(build, state[0]), bias)
        return (f(build, build("Add", x, product)),)

    return step


def _gru(d: _Direction) -> Step:
    """A step of a GRU, with gates z, r, h. If `linear_before_reset`, r is applied after the product
    with the state.
    """
    weights = d.weights(2)
    gates, candidate = d.columns(d.build, weights, 0, 2), d.columns(d.build, weights, 2, 1)
    gate_bias, bias = d.bias(0, 2, 1), d.bias(2, 1, 1)
    f, g = d.activations
    linear = bool(d.node.attribute("linear_before_reset", 0))

    def step(build: Builder, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        h = state[0]
        one = build.constant(1, d.node.dtype(0))
        product = _add(build, build("MatMul", h, gates), gate_bias)
        both = f(build, build("Add", d.columns(build, x, 0, 2), product))
        z, r = d.columns(build, both, 0, 1), d.columns(build, both, 1, 1)
        if linear:
            inner = build("Mul", r, _add(build, build("MatMul", h, candidate), bias))
        else:
            inner = _add(build, build("MatMul", build("Mul", r, h), candidate), bias)
        new_part = g(build, build("Add", d.columns(build, x, 2, 1), inner))
        old_part = build("Mul", z, h)
        return (build("Add", build("Mul", build("Sub", one, z), new_part), old_part),)

    return step


def _lstm(d: _Direction) -> Step:
    """A step of an LSTM, with gates i, o, f, c. With peepholes (input 7), the gates read the
    cell.
    """
    multiply, bias = d.product(2), d.bias(0, 4, 1)
    f, g, h = d.activations
    peepholes = d.part(7) if d.node.has(7) else None
    coupled = bool(d.node.attribute("input_forget", 0))

    def step(build: Builder, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
        def peek(gate: str, cell: str, number: int) -> str:
            if peepholes is None:
                return gate
            return build("Add", gate, build("Mul", d.columns(build, peepholes, number, 1), cell))

        hidden, cell = state
        gates = build("Add", x, _add(build, multiply(build, hidden), bias))
        i = f(build, peek(d.columns(build, gates, 0, 1), cell, 0))
        if coupled:
            forget = build("Sub", build.constant(1, d.node.dtype(0)), i)
        else:
            forget = f(build, peek(d.columns(build, gates, 2, 1), cell, 2))
        old_part = build("Mul", forget, cell)
        new_cell = build("Add", old_part, build("Mul", i, g(build, d.columns(build, gates, 3, 1))))
        o = f(build, peek(d.columns(build, gates, 1, 1), new_cell, 1))
        return build("Mul", o, h(build, new_cell)), new_cell

    return step


def _never(context: Context) -> tuple[TensorType, ...]:
    raise NotSupportedError("this layer is always a loop")


X, W, R, B = "float32[3, 2, 4]", "float32[1, {}, 4]", "float32[1, {}, 5]", "float32[1, {}]"


def _cases(gates: int) -> tuple[str, str, str]:
    return W.format(5 * gates), R.format(5 * gates), B.format(10 * gates)


OPS: tuple[Operator, ...] = (
    Operator("RNN", _never, expand=expand_layer, cases=(
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
    Operator("GRU", _never, expand=expand_layer, cases=(
        case(X, *_cases(3), outputs=2, hidden_size=5),
        case(X, *_cases(3), None, "float32[1, 2, 5]", outputs=2, hidden_size=5,
             linear_before_reset=1),
        case(X, *_cases(3), np.array([3, 1], np.int32), outputs=2, hidden_size=5),
        case(X, *_cases(3), outputs=2, hidden_size=5, clip=0.4,
             activations=("HardSigmoid", "ScaledTanh"), activation_alpha=(0.3, 0.7),
             activation_beta=(0.4, 0.6)),
        case(X, *_cases(3), outputs=2, hidden_size=5, activations=("Sigmoid", "LeakyRelu"),
             activation_alpha=(0.3,)))),
    Operator("LSTM", _never, expand=expand_layer, cases=(
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
