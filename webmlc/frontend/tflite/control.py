"""Write control flow and variables of TensorFlow Lite with ONNX's operators.

Control flow names subgraphs of the file, which read nothing but their inputs. In ONNX, a branch
reads the values around it, and a loop tests its condition after each iteration:

    %r = IF(%c, %x) {then: 1, else: 2}    ->   %r = If(%c) {then: subgraph 1 of %x, else: ...}
    %r = WHILE(%x) {cond: 1, body: 2}     ->   %r = Loop(, subgraph 1 of %x, %x) {body: %a ->
                                                   subgraph 2 of %a, and subgraph 1 of its result}

A variable keeps its value from run to run. It becomes an input and an output of the model whose
names say that they are a state, so that sessions keep it (`simplify/use_recurrent_states.py`):

    %v = READ_VARIABLE(%count)            ->   main(%state_count) ->
    ASSIGN_VARIABLE(%count, %w)                    (..., %state_count_out = %w)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from onnx import GraphProto, TensorProto, ValueInfoProto, helper

from webmlc.core.dtypes import DType
from webmlc.frontend.tflite.file import Operator, Subgraph, Tensor
from webmlc.frontend.tflite.onnx_nodes import OnnxNodes
from webmlc.frontend.tflite.operation import NotReadableError
from webmlc.graph.builder import Builder, Value
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Array

if TYPE_CHECKING:
    from webmlc.frontend.tflite.write_subgraph import SubgraphWriter

Place = Literal["run", "region", "start"]
"""Where a subgraph runs: in each run, in a branch or a loop, or once before all runs."""
Called = Sequence[tuple[Tensor, Value | Array]]
"""The results of a subgraph."""
Results = dict[int, Value | Array]
"""The results of an operator by index of tensor."""
MOST_OPERATORS = 1 << 16
"""The most operators that are written, since subgraphs may call each other many times. Chosen by
hand: ten times as many as in large published models.
"""
MOST_LEVELS = 32
"""The most subgraphs that call each other. Chosen by hand: published models have a few."""


@dataclass(slots=True)
class Variable:
    """A variable: its value before all runs, its value so far in a run, and its state. A variable
    that no operator reads before it is assigned has no state.
    """

    tensor: Tensor
    initial: Array | None = None
    value: Value | Array | None = None
    state: str = ""


@dataclass(slots=True)
class Program:
    """The subgraphs that are being written, from the outermost, and the variables of all subgraphs
    by their names. A program without assignments has constants in place of states.
    """

    read: Callable[[int], Subgraph]
    active: list[int]
    has_assignments: bool = False
    variables: dict[str, Variable] = field(default_factory=dict)
    is_set: Value | None = None
    """The state that is 0 before the first run, if a variable does not begin with zeros."""
    operators: int = 0

    def count(self, graph: Subgraph, place: Place) -> None:
        """Count the operators of a subgraph that is written. The subgraphs that it calls may assign
        variables, too.
        """
        self.operators += len(graph.operators)
        if place != "start":
            names = {operator.name for operator in graph.operators}
            self.has_assignments |= not names.isdisjoint(("ASSIGN_VARIABLE", "CALL"))

    @contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """While a subgraph is written, the subgraphs that it calls may not call it."""
        if number in self.active or len(self.active) == MOST_LEVELS:
            raise NotReadableError(f"subgraph {number} calls itself, or is in {MOST_LEVELS} others")
        if self.operators > MOST_OPERATORS:
            raise NotReadableError(f"the subgraphs stand for more than {MOST_OPERATORS} operators")
        self.active.append(number)
        try:
            yield
        finally:
            self.active.pop()

    def begin(self, number: int, tensor: Tensor, build: Builder) -> Value:
        """The state of a tensor at the beginning of a run: zeros before the first."""
        variable = self.variables.setdefault(f"{number} {tensor.name}", Variable(tensor))
        if variable.value is None:
            variable.state = _state_name(tensor.name, build, tensor.dtype or DType.float32)
            variable.value = Value(variable.state, build)
        return _value(build, tensor, variable.value)

    def end(self, number: int, tensor: Tensor, value: Value) -> None:
        """Set the state of a tensor at the end of a run."""
        self.variables[f"{number} {tensor.name}"].value = value

    def states(self) -> Iterator[tuple[Tensor, str, Value | Array]]:
        """The states of a model that is written: a tensor, the name of the input, and the value of
        the output.
        """
        for variable in self.variables.values():
            if variable.state and variable.value is not None:
                yield variable.tensor, variable.state, variable.value
        if self.is_set is not None:
            tensor = Tensor(self.is_set, "FLOAT32", (1,))
            yield tensor, self.is_set, self.is_set.op("Max", 1.0)


def value_info(tensor: Tensor, name: str, has_shape: bool = True) -> ValueInfoProto:
    """The description of a value of a graph. In regions, inference finds the shapes."""
    assert tensor.dtype is not None
    shape = [None if size < 0 else size for size in tensor.shape]
    is_shaped = has_shape and tensor.has_rank
    return helper.make_tensor_value_info(
        name, TYPE_NUMBERS[tensor.dtype], shape if is_shaped else None
    )


def _call(writer: SubgraphWriter, operator: Operator, build: Builder) -> Results:
    """Write the subgraph in place of its call."""
    arguments = [writer.argument(index) for index in operator.inputs]
    called = writer.called(operator.options.Subgraph, arguments, writer.nodes, writer.place)
    return _by_index(operator, [result for _, result in called])


def _call_once(writer: SubgraphWriter, operator: Operator, build: Builder) -> Results:
    """Read the values of variables before all runs."""
    writer.called(operator.options.InitSubgraphIndex, [], writer.nodes, "start")
    return {}


def _if(writer: SubgraphWriter, operator: Operator, build: Builder) -> Results:
    """Write the subgraphs as branches. A constant condition chooses one of them."""
    condition, *arguments = (writer.argument(index) for index in operator.inputs)
    options = operator.options
    numbers = {"then_branch": options.ThenSubgraphIndex, "else_branch": options.ElseSubgraphIndex}
    if isinstance(condition, np.ndarray):
        number = numbers["then_branch" if condition.all() else "else_branch"]
        called = writer.called(number, arguments, writer.nodes, writer.place)
        return _by_index(operator, [result for _, result in called])
    branches = {}
    for name, number in numbers.items():
        nodes = writer.nodes.inner()
        called = writer.called(number, arguments, nodes, "region")
        branches[name] = nodes.graph(name, [], _returned(Builder(build.source, nodes), called))
    scalar = Value(condition, build).reshape()
    return _with_results(writer, operator, build, "If", [scalar], **branches)


def _while(writer: SubgraphWriter, operator: Operator, build: Builder) -> Results:
    """Write the body as a loop. The condition is written before the loop and in its body."""
    options = operator.options
    arguments = [writer.argument(index) for index in operator.inputs]
    tests = writer.called(options.CondSubgraphIndex, arguments, writer.nodes, writer.place)
    values = [_value(build, writer.tensor(i), writer.argument(i)) for i in operator.inputs]
    nodes = writer.nodes.inner()
    inner = Builder(build.source, nodes)
    carried = [inner.fresh("carried") for _ in values]
    nodes.dtypes |= {name: nodes.dtypes[value] for name, value in zip(carried, values, strict=True)}
    called = writer.called(options.BodySubgraphIndex, carried, nodes, "region")
    results = [result for _, result in called]
    again = writer.called(options.CondSubgraphIndex, results, nodes, "region")
    ports = [
        helper.make_tensor_value_info(inner.fresh("iteration"), TensorProto.INT64, []),
        helper.make_tensor_value_info(inner.fresh("condition"), TensorProto.BOOL, []),
        *(
            value_info(writer.tensor(index), name, has_shape=False)
            for index, name in zip(operator.inputs, carried, strict=True)
        ),
    ]
    body = nodes.graph(
        "body",
        ports,
        _returned(inner, [*((t, _scalar(inner, t, v)) for t, v in again), *called]),
    )
    ((tensor, test),) = tests
    inputs = [None, _scalar(build, tensor, test), *values]
    return _with_results(writer, operator, build, "Loop", inputs, body=body)


def _value(build: Builder, tensor: Tensor, value: Value | Array) -> Value:
    """A value of the element type of its tensor. Constants may have another one."""
    if isinstance(value, np.ndarray):
        return build.constant(value, tensor.dtype)
    return Value(value, build)


def _scalar(build: Builder, tensor: Tensor, value: Value | Array) -> Value:
    """The only element of a tensor."""
    return _value(build, tensor, value).reshape()


def _returned(build: Builder, results: Called) -> list[ValueInfoProto]:
    """The outputs of a region. Each is the result of a node of the region."""
    return [
        value_info(tensor, build("Identity", _value(build, tensor, value)), has_shape=False)
        for tensor, value in results
    ]


def _with_results(
    writer: SubgraphWriter,
    operator: Operator,
    build: Builder,
    op: str,
    inputs: Sequence[Value | None],
    **regions: GraphProto,
) -> Results:
    """Write a node with regions, and return its results."""
    names = [build.fresh(op) for _ in operator.outputs]
    for name, index in zip(names, operator.outputs, strict=True):
        writer.nodes.dtypes[name] = writer.tensor(index).dtype or DType.float32
    return _by_index(operator, build.many(op, *inputs, outputs=names, **regions))


def _by_index(operator: Operator, results: Sequence[Value | Array]) -> Results:
    """The results by index of tensor."""
    if len(results) != len(operator.outputs):
        raise NotReadableError(f"it has {len(operator.outputs)} outputs, not {len(results)}")
    return {i: r for i, r in zip(operator.outputs, results, strict=True) if i >= 0}


def _handle(writer: SubgraphWriter, operator: Operator, build: Builder) -> Results:
    """Remember the name of a variable."""
    writer.handles[operator.outputs[0]] = _shared_name(operator)
    return {}


def _shared_name(operator: Operator) -> str:
    """The name of the variable of a VAR_HANDLE."""
    return bytes(operator.options.SharedName or b"variable").decode("utf-8", "replace")


def _named(writer: SubgraphWriter, operator: Operator) -> str:
    """The name of the variable that an operator reads or assigns."""
    if operator.inputs[0] not in writer.handles or writer.place == "region":
        raise NotReadableError("it is in a branch or a loop; use variables outside of control flow")
    return writer.handles[operator.inputs[0]]


def _read(writer: SubgraphWriter, operator: Operator, build: Builder) -> Results:
    """Read a variable: the value in this run, or the state that the run begins with."""
    program, (index,) = writer.program, operator.outputs
    name = _named(writer, operator)
    variable = program.variables.setdefault(name, Variable(writer.tensor(index)))
    if variable.value is None:
        variable.tensor = writer.tensor(index)
        variable.value = _state(writer, variable, name, build)
    return {index: variable.value}


def _state(writer: SubgraphWriter, variable: Variable, name: str, build: Builder) -> Value | Array:
    """The value of a variable before it is assigned in a run."""
    program, dtype, initial = writer.program, variable.tensor.dtype, variable.initial
    if initial is not None and not program.has_assignments:
        return initial
    if dtype is None:
        raise NotReadableError(f"the variable is of type {variable.tensor.element}")
    variable.state = _state_name(name, build, dtype)
    state = Value(variable.state, build)
    if initial is None or not initial.any():
        return state
    if program.is_set is None:
        program.is_set = Value(_state_name("is_set", build, DType.float32), build)
    return program.is_set.op("Greater", 0.0).where(state, build.constant(initial, dtype))


def _state_name(name: str, build: Builder, dtype: DType) -> str:
    """The name of the input of a state. Sessions keep inputs whose names say that they are one."""
    nodes = cast(OnnxNodes, build.destination)
    state = f"state_{name}"
    while state in nodes.taken_names:
        state += "_2"
    nodes.taken_names.add(state)
    nodes.dtypes[state] = dtype
    return state


def _assign(writer: SubgraphWriter, operator: Operator, build: Builder) -> Results:
    """Assign a variable."""
    name, index = _named(writer, operator), operator.inputs[1]
    variable = writer.program.variables.setdefault(name, Variable(writer.tensor(index)))
    value = writer.argument(index)
    if writer.place == "run":
        variable.value = value
    elif isinstance(value, np.ndarray):
        variable.initial = value
    else:
        raise NotReadableError("the first value of a variable is computed; it must be a constant")
    return {}


CONTROL: Mapping[str, Callable[[SubgraphWriter, Operator, Builder], Results]] = {
    "CALL": _call,
    "CALL_ONCE": _call_once,
    "IF": _if,
    "WHILE": _while,
    "VAR_HANDLE": _handle,
    "READ_VARIABLE": _read,
    "ASSIGN_VARIABLE": _assign,
}
"""The operators of control flow and of variables."""
