"""Write a subgraph of TensorFlow Lite with ONNX's operators.

In: a `Subgraph`. Out: its nodes, and the values of its outputs. Operators without a row, and
operators that a row refuses, are collected: one error lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import Unsupported
from webmlc.frontend.tflite.control import CONTROL, Called, Place, Program
from webmlc.frontend.tflite.file import DEFECTS, Operator, Subgraph, Tensor
from webmlc.frontend.tflite.onnx_nodes import OnnxNodes
from webmlc.frontend.tflite.operation import NotReadableError, Operation, Results, Row
from webmlc.frontend.tflite.operators.elementwise import ACTIVATIONS
from webmlc.frontend.tflite.operators.quantised import integer_form
from webmlc.frontend.tflite.table import REFUSED, ROWS
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array, Node

STORED_TYPES = (DType.int8, DType.uint8, DType.int16, DType.uint16)
"""The types of quantised feature maps. A quantised int32 is a bias, and constant."""


@dataclass(slots=True)
class SubgraphWriter:
    """A writer of one subgraph. `ports` names its inputs and outputs by index of tensor. Refused
    operators are in `unsupported`. `handles` has the names of variables by index of their tensor. A
    subgraph that another subgraph calls has a `prefix` of its names, and `values` of its inputs.
    """

    graph: Subgraph
    ports: Mapping[int, str]
    program: Program
    nodes: OnnxNodes = field(default_factory=OnnxNodes)
    values: dict[int, Value | Array] = field(default_factory=dict)
    unsupported: list[Unsupported] = field(default_factory=list)
    handles: dict[int, str] = field(default_factory=dict)
    prefix: str = ""
    place: Place = "run"

    def write(self) -> None:
        """Write all operators, in the order of the file."""
        self.program.count(self.graph, self.place)
        names = unique_names(self.prefix + t.name.partition(";")[0] for t in self.graph.tensors)
        names |= self.ports
        for index, tensor in enumerate(self.graph.tensors):
            if tensor.data is not None:
                self.values[index] = tensor.data
        for index in self.graph.inputs:
            dtype = self.graph.tensors[index].dtype
            if dtype is not None and index not in self.values:
                self.nodes.dtypes[names[index]] = dtype
                self.nodes.taken_names.add(names[index])
                self.values[index] = self.builder(names[index]).value(names[index])
        for operator in self.graph.operators:
            outputs = [index for index in operator.outputs if index >= 0]
            name = names[outputs[0]] if outputs else operator.name
            try:
                self.values |= self.results(operator, self.builder(name))
            except NotReadableError as error:
                self.unsupported.append(Unsupported(name, operator.name, str(error)))
                # Later operators are checked, too, as if this operator were readable.
                for index in outputs:
                    self.nodes.dtypes[names[index]] = self.tensor(index).dtype or DType.float32
                    self.values[index] = self.builder(names[index]).value(names[index])

    def tensor(self, index: int) -> Tensor:
        return self.graph.tensors[index]

    def builder(self, name: str) -> Builder:
        """The builder of the nodes that stand for the operator with this name."""
        return Builder(Node("", (), (name,), origin=(name,)), self.nodes)

    def results(self, operator: Operator, build: Builder) -> dict[int, Value | Array]:
        """Write an operator and return its results by index of tensor, in the form in which tensors
        store them. The file may leave out any result.
        """
        if operator.name in CONTROL:
            with _malformed():
                return CONTROL[operator.name](self, operator, build)
        row = ROWS.get(operator.name)
        if row is None:
            default = FLEX if operator.name.startswith("Flex") else UNKNOWN
            raise NotReadableError(REFUSED.get(operator.name, default))
        states = [operator.inputs[i] for i in row.states if i < len(operator.inputs)]
        for index in operator.inputs:
            if index >= 0 and index not in states:
                self.argument(index)
        for tensor in chain(*self.operands(operator)):
            if tensor.element.startswith("COMPLEX") and not row.is_complex:
                raise NotReadableError(f"{tensor.name!r} has complex numbers")
        is_stored = self.is_stored(row, operator)
        program = None if self.place == "region" else self.program
        operation = Operation(operator, self.graph, self.values, build, is_stored, program)
        with _malformed():
            form = integer_form(operation)
            results = (form or row.write)(operation)
            if not (form or row.states):
                results = _activated(operation, results)
        if isinstance(results, Value | np.ndarray):
            results = [results]
        outputs = operator.outputs
        if len(results) < len(outputs):
            raise NotReadableError(f"it has {len(outputs)} outputs, not {len(results)}")
        return {
            index: self.stored(operation, self.tensor(index), result)
            for index, result in zip(outputs, results, strict=False)
            if index >= 0
        }

    def argument(self, index: int) -> Value | Array:
        """The value of an input of an operator."""
        if index not in self.values:
            tensor = self.tensor(index)
            is_unwritten = tensor.dtype is not None
            reason = "has no value yet" if is_unwritten else f"is of type {tensor.element}"
            raise NotReadableError(f"input {tensor.name!r} {reason}")
        return self.values[index]

    def called(
        self, number: int, arguments: Sequence[Value | Array], nodes: OnnxNodes, place: Place
    ) -> Called:
        """Write a subgraph of the file with these inputs into `nodes`."""
        graph = self.program.read(number)
        if len(graph.inputs) != len(arguments):
            raise NotReadableError(f"subgraph {number} has {len(graph.inputs)} inputs")
        values = dict(zip(graph.inputs, arguments, strict=True))
        prefix = f"{self.prefix}{number}/"
        writer = SubgraphWriter(graph, {}, self.program, nodes, values, prefix=prefix, place=place)
        with self.program.inside(number):
            writer.write()
        self.unsupported += writer.unsupported
        return [(graph.tensors[index], writer.argument(index)) for index in graph.outputs]

    def operands(self, operator: Operator) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors of the inputs and of the results."""
        inputs, results = (
            [self.tensor(i) for i in indices if i >= 0]
            for indices in (operator.inputs, operator.outputs)
        )
        return inputs, results

    def is_stored(self, row: Row, operator: Operator) -> bool:
        """True if the operator works on the integers of quantised tensors: all have the same
        parameters, and all results the same type.
        """
        inputs, results = self.operands(operator)
        quantised = [t for t in (*inputs, *results) if t.quantisation is not None]
        keys = {t.quantisation.key for t in quantised if t.quantisation is not None}
        elements = {t.element for t in (*quantised, *results)}
        return row.moves and len(keys) == len(elements) == 1

    def stored(self, operation: Operation, tensor: Tensor, result: Value | Array) -> Value | Array:
        """A result in the form in which its tensor stores it: quantised, and of its type."""
        if isinstance(result, np.ndarray):
            return result
        dtype = tensor.dtype
        is_real = dtype is not None and self.nodes.dtypes[result].is_float and not dtype.is_float
        if is_real and tensor.quantisation is not None:
            if dtype not in STORED_TYPES:
                operation.refuse(
                    f"its result {tensor.name!r} is quantised as {tensor.element}; convert with "
                    "results of 8 or 16 bits, or with floats"
                )
            axis, parameters = tensor.quantisation.axis, operation.parameters(tensor)
            return operation.build("QuantizeLinear", result, *parameters, axis=axis)
        if dtype is not None and self.nodes.dtypes[result] != dtype:
            return result.cast(dtype)
        return result


@contextmanager
def _malformed() -> Iterator[None]:
    """Turn errors in the tables of an operator into a refusal of the operator."""
    try:
        yield
    except DEFECTS as error:
        raise NotReadableError(f"its inputs or options are malformed ({error})") from error


UNKNOWN = "webmlc has no row for this operator"
FLEX = "it is an operator of TensorFlow; convert with TensorFlow Lite's builtin operators only"


def _activated(operation: Operation, results: Results) -> Results:
    """Apply the fused activation to a result, if the operator has one. The number 0 is none."""
    number = operation.activation
    if number == 0:
        return results
    if number not in ACTIVATIONS:
        operation.refuse(f"the fused activation {number} is not supported")
    assert isinstance(results, Value)
    return ACTIVATIONS[number](results)


def unique_names(names: Iterable[str]) -> dict[int, str]:
    """The names by their position. Equal names get a number."""
    assigned: set[str] = set()
    unique: dict[int, str] = {}
    counts: dict[str, Iterator[int]] = {}
    for position, name in enumerate(names):
        numbers = counts.setdefault(name, count(1))
        numbered = (name if n == 1 else f"{name}_{n}" for n in numbers)
        unique[position] = next(n for n in numbered if n not in assigned)
        assigned.add(unique[position])
    return unique
