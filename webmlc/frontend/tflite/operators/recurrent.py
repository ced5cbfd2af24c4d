"""Rows of recurrent operators.

An operator of a whole sequence begins with zeros in each run, as Keras does. An operator of one
step, such as SVDF, keeps its state from run to run: the state is an input and an output of the
model, which sessions keep.

    UNIDIRECTIONAL_SEQUENCE_LSTM(x)   ->   LSTM(x), or Scan(x) {one step}
    SVDF(x, state)                    ->   new = Concat(state without its oldest column, x · w)
                                           Σ new · weights of time

ONNX's LSTM has no limits of the cell, no norms and no projection: Scan computes these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from onnx import TensorProto, helper

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.onnx_nodes import OnnxNodes
from webmlc.frontend.tflite.operation import Operation, Row
from webmlc.frontend.tflite.operators.elementwise import ACTIVATIONS, clip
from webmlc.graph.builder import Builder, Value

TANH = 4
"""The number of the fused activation tanh."""
RNN_ACTIVATIONS: Mapping[int, str] = {0: "Affine", 1: "Relu", TANH: "Tanh"}
"""The activations of ONNX's RNN, by the number of the fused activation."""
ONNX_GATES = (0, 3, 1, 2)
"""The gates in the order of ONNX: input, output, forget, cell. TensorFlow Lite's order is input,
forget, cell, output.
"""
WEIGHTS, RECURRENT, PEEPHOLES, BIASES, PROJECTION = 1, 5, 9, 12, 16
"""The inputs of the first weights of each kind. Peepholes have no cell gate."""
STATES, NORMS = (18, 19), 20
"""The inputs of the output's state and of the cell, and the first weights of a norm."""
BACKWARD = 17
"""The inputs by which the backward direction of a bidirectional operator is behind the forward."""
MARGIN = np.float32(1e-8)
"""What TensorFlow Lite adds to the variance of a norm."""


def _is_floating(op: Operation) -> None:
    if op.tensor(0).dtype != DType.float32:
        op.refuse("its input is quantised; convert with float inputs of recurrent layers")


def activation_of(op: Operation) -> Callable[[Value], Value]:
    """The fused activation. The number 0 is none."""

    def unchanged(x: Value) -> Value:
        return x

    return ACTIVATIONS.get(op.activation, unchanged)


def _in_time(op: Operation, index: int = 0) -> Value:
    """An input as [time, batch, ...]."""
    _is_floating(op)
    return op.input(index) if op.options.TimeMajor else op.input(index).transpose(1, 0, 2)


def _from_time(op: Operation, y: Value) -> Value:
    """A result of [time, batch, ...] in the order of the operator."""
    return y if op.options.TimeMajor else y.transpose(1, 0, 2)


def _backwards(x: Value) -> Value:
    """The steps from the last to the first."""
    end = np.iinfo(np.int64).max
    return x.op("Slice", (-1,), (-end,), (0,), (-1,))


def _zeros(op: Operation, x: Value, width: int) -> Value:
    """The state [batch, width] before the first step of x [time, batch, ...]."""
    shape = op.build("Concat", x.size(1).reshape(1), (width,), axis=0)
    return op.build("Expand", op.build.constant(np.float32(0)), shape)


class Cell:
    """The weights of one direction of an LSTM. `first` is the number of inputs before its weights,
    less the input itself.
    """

    def __init__(self, op: Operation, first: int, norms: int | None) -> None:
        self.op, self.first, self.norms = op, first, norms
        self.units = op.size(first + WEIGHTS + 1, 0, "the number of units")
        self.gates = [gate for gate in range(4) if op.has(first + WEIGHTS + gate)]
        self.has_projection = op.has(first + PROJECTION)
        self.width = self.units
        if self.has_projection:
            self.width = op.size(first + PROJECTION, 0, "the width of the output")

    def weights(self, kind: int, gate: int) -> Value | None:
        """The weights of a gate; None if they are left out. Peepholes are in the order without the
        cell gate.
        """
        return self.op.optional(self.first + kind + gate)

    @property
    def is_plain(self) -> bool:
        """True if ONNX's LSTM computes the same. A cell grows by at most 1 in each step."""
        op, axis = self.op, 0 if self.op.options.TimeMajor else 1
        limit, steps = op.options.CellClip, op.shape(0)[axis]
        is_clipped = bool(limit) and not 0 <= steps <= limit
        has_norm = self.norms is not None and op.has(self.norms + 1)
        is_usual = len(self.gates) == 4 and op.activation == TANH
        return is_usual and not (self.has_projection or has_norm or is_clipped)

    def lstm(self, x: Value) -> Value:
        """All steps by ONNX's LSTM."""
        op, build = self.op, self.op.build

        def joined(kind: int, order: Sequence[int]) -> Value:
            parts = [cast(Value, self.weights(kind, gate)) for gate in order]
            return build("Concat", *parts, axis=0)

        has_peepholes = op.has(self.first + PEEPHOLES)
        bias = build(
            "Concat", joined(BIASES, ONNX_GATES), np.zeros(4 * self.units, np.float32), axis=0
        )
        y = build(
            "LSTM",
            x,
            joined(WEIGHTS, ONNX_GATES).unsqueeze(0),
            joined(RECURRENT, ONNX_GATES).unsqueeze(0),
            bias.unsqueeze(0),
            None,
            None,
            None,
            joined(PEEPHOLES, (0, 2, 1)).unsqueeze(0) if has_peepholes else None,
            hidden_size=self.units,
        )
        return build("Squeeze", y, (1,))

    def sums(self, x: Value) -> list[Value]:
        """The products of the input with the weights of each gate."""
        return [x @ self.op.read(self.first + WEIGHTS + gate, (1, 0)) for gate in self.gates]

    def gate(self, gate: int, total: Value, h: Value, cell: Value) -> Value:
        """A gate before its activation: sums, a peephole, a norm and a bias."""
        op = self.op
        total = total + h @ op.read(self.first + RECURRENT + gate, (1, 0))
        place = {0: 0, 1: 1, 3: 2}.get(gate)
        peephole = None if place is None else self.weights(PEEPHOLES, place)
        total = total if peephole is None else total + cell * peephole
        norm = None if self.norms is None else op.optional(self.norms + gate)
        if norm is not None:
            centred = total - total.op("ReduceMean", (-1,))
            variance = (centred * centred).op("ReduceMean", (-1,))
            total = centred / (variance + MARGIN).op("Sqrt") * norm
        bias = self.weights(BIASES, gate)
        return total if bias is None else total + bias

    def step(self, sums: Sequence[Value], h: Value, cell: Value) -> tuple[Value, Value]:
        """The output and the cell after a step."""
        op, options = self.op, self.op.options
        activate = activation_of(op)
        totals = dict(zip(self.gates, sums, strict=True))
        forget = self.gate(1, totals[1], h, cell).op("Sigmoid")
        enter = 1.0 - forget
        if 0 in totals:
            enter = self.gate(0, totals[0], h, cell).op("Sigmoid")
        cell = forget * cell + enter * activate(self.gate(2, totals[2], h, cell))
        if options.CellClip:
            cell = _within(cell, options.CellClip)
        output = self.gate(3, totals[3], h, cell).op("Sigmoid") * activate(cell)
        if self.has_projection:
            output = output @ op.read(self.first + PROJECTION, (1, 0))
            bias = op.optional(self.first + PROJECTION + 1)
            output = output if bias is None else output + bias
            output = _within(output, options.ProjClip) if options.ProjClip else output
        return output, cell

    def scan(self, x: Value) -> Value:
        """All steps by ONNX's Scan of one step."""
        build, sums = self.op.build, self.sums(x)
        nodes = cast(OnnxNodes, build.destination).inner()
        inner = Builder(build.source, nodes, depth=1)
        ports = [inner.fresh("step") for _ in range(2 + len(sums))]
        nodes.dtypes |= dict.fromkeys(ports, DType.float32)
        h, cell = self.step(ports[2:], *ports[:2])
        results = [inner("Identity", value) for value in (h, cell, h)]
        inputs, outputs = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
            for names in (ports, results)
        )
        body = nodes.graph("step", inputs, outputs)
        states = [_zeros(self.op, x, width) for width in (self.width, self.units)]
        _, _, y = build.many(
            "Scan", *states, *sums, outputs=3, body=body, num_scan_inputs=len(sums)
        )
        return y

    def sequence(self, x: Value) -> Value:
        """The outputs of all steps."""
        return self.lstm(x) if self.is_plain else self.scan(x)


def _within(x: Value, limit: float) -> Value:
    return clip(x, -limit, limit)


def _sequence_lstm(op: Operation) -> Value:
    return _from_time(op, Cell(op, 0, NORMS).sequence(_in_time(op)))


def _bidirectional_lstm(op: Operation) -> Sequence[Value]:
    """Two directions, whose outputs may be joined."""
    x = _in_time(op)
    if op.has(39):
        op.refuse("it has an auxiliary input; convert with stacked layers whose outputs are joined")
    forward = Cell(op, 0, None).sequence(x)
    backward = _backwards(Cell(op, BACKWARD, None).sequence(_backwards(x)))
    return _merged(op, forward, backward)


def _merged(op: Operation, forward: Value, backward: Value) -> Sequence[Value]:
    """The outputs of both directions, joined if the options say so."""
    forward, backward = (_from_time(op, y) for y in (forward, backward))
    if op.options.MergeOutputs:
        return [op.build("Concat", forward, backward, axis=2)]
    return [forward, backward]


def _lstm_step(op: Operation) -> Value:
    """One step of an LSTM, whose state stays from run to run."""
    _is_floating(op)
    if op.options.KernelType:
        op.refuse("it is a basic LSTM; convert with the full kernel of LSTM")
    cell = Cell(op, 0, NORMS)
    h, c = cell.step(cell.sums(op.input(0)), *(op.state(index) for index in STATES))
    op.assign(STATES[0], h)
    op.assign(STATES[1], c)
    return h


def _rnn(op: Operation, x: Value, first: int) -> Value:
    """The outputs of all steps of an RNN: the inputs from `first` are the weights of the input and
    of the state, and the bias.
    """
    units, build = op.size(first, 0, "the number of units"), op.build
    if op.activation not in RNN_ACTIVATIONS:
        op.refuse(f"the fused activation {op.activation} is not supported in a recurrent layer")
    name = RNN_ACTIVATIONS[op.activation]
    bias = build("Concat", op.input(first + 2), np.zeros(units, np.float32), axis=0).unsqueeze(0)
    weights = [op.input(first + i).unsqueeze(0) for i in (0, 1)]
    attributes: dict[str, Any] = {"activations": [name], "hidden_size": units}
    if name == "Affine":
        attributes |= {"activation_alpha": [1.0], "activation_beta": [0.0]}
    y = build("RNN", x, *weights, bias, **attributes)
    return build("Squeeze", y, (1,))


def _sequence_rnn(op: Operation) -> Value:
    return _from_time(op, _rnn(op, _in_time(op), 1))


def _bidirectional_rnn(op: Operation) -> Sequence[Value]:
    x = _in_time(op)
    if op.has(9):
        op.refuse("it has an auxiliary input; convert with stacked layers whose outputs are joined")
    return _merged(op, _rnn(op, x, 1), _backwards(_rnn(op, _backwards(x), 5)))


def _rnn_step(op: Operation) -> Value:
    """One step of an RNN, whose state stays from run to run."""
    _is_floating(op)
    total = op.input(0) @ op.read(1, (1, 0)) + op.state(4) @ op.read(2, (1, 0)) + op.input(3)
    h = activation_of(op)(total)
    op.assign(4, h)
    return h


def _svdf(op: Operation) -> Value:
    """A filter over features, then over time: the state [batch, filters, memory] has the features
    of the last steps.
    """
    _is_floating(op)
    filters = op.size(1, 0, "the number of filters")
    memory, rank = op.size(2, 1, "the size of the memory"), op.options.Rank
    columns = op.state(4).reshape(-1, filters, memory).slice(1, memory, 2)
    features = (op.input(0) @ op.read(1, (1, 0))).unsqueeze(2)
    state = op.build("Concat", columns, features, axis=2)
    op.assign(4, state.reshape(-1, filters * memory))
    products = (state * op.input(2)).op("ReduceSum", (2,), keepdims=0)
    total = products.reshape(-1, filters // rank, rank).op("ReduceSum", (2,), keepdims=0)
    bias = op.optional(3)
    total = total if bias is None else total + bias
    return activation_of(op)(total)


ROWS = (
    Row("UNIDIRECTIONAL_SEQUENCE_LSTM", _sequence_lstm, states=STATES),
    Row("BIDIRECTIONAL_SEQUENCE_LSTM", _bidirectional_lstm, states=(35, 36, 37, 38)),
    Row("LSTM", _lstm_step, states=STATES),
    Row("UNIDIRECTIONAL_SEQUENCE_RNN", _sequence_rnn, states=(4,)),
    Row("BIDIRECTIONAL_SEQUENCE_RNN", _bidirectional_rnn, states=(4, 8)),
    Row("RNN", _rnn_step, states=(4,)),
    Row("SVDF", _svdf, states=(4,)),
)
"""The rows."""
