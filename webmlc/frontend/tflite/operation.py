"""Define a row of the table of TensorFlow Lite's operators, and the operator that a row rewrites.

A row writes one operator with ONNX's operators. It sees the operator as an `Operation`, whose
methods read its inputs:

    Row("TANH", lambda op: op.input(0).op("Tanh"))

The writer of a subgraph (`write_subgraph.py`) does the work that all operators share. It applies
the fused activation, quantises the results, and names them:

    CONV_2D {activation: RELU6}, int8   ->   DequantizeLinear · Conv · Clip · QuantizeLinear
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import WebmlcError
from webmlc.frontend.tflite.file import Operator, Options, Subgraph, Tensor
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Array

Results = Value | Array | Sequence[Value | Array]
"""The results of an operator: one value, a constant, or a value for each output."""


class States(Protocol):
    """The states of a model, which stay from run to run, by number and tensor."""

    def begin(self, number: int, tensor: Tensor, build: Builder) -> Value:
        """The state at the beginning of a run."""

    def end(self, number: int, tensor: Tensor, value: Value) -> None:
        """Set the state at the end of a run."""


class NotReadableError(WebmlcError):
    """An operator cannot be written. `export_tflite` collects all of them into one error."""


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of TensorFlow Lite.

    - `name`: its name in the schema, or its custom code.
    - `write`: writes it with ONNX's operators.
    - `states`: the inputs that are tensors of a state. Such a row applies the fused activation.
    - `is_complex`: an input or a result may have complex numbers.
    - `moves`: the results' elements are elements of the inputs. If all quantised operands have the
      same parameters, `write` sees the integers instead of the real numbers.
    """

    name: str
    write: Callable[[Operation], Results]
    moves: bool = False
    states: Sequence[int] = ()
    is_complex: bool = False


@dataclass(slots=True)
class Operation:
    """An operator of a subgraph while it is written. `values` has the value or the constant of
    every tensor so far, by index; integers stand for a quantised tensor. If `is_stored`, the
    operator works on these integers. `build` writes the nodes.
    """

    operator: Operator
    graph: Subgraph
    values: Mapping[int, Value | Array]
    build: Builder
    is_stored: bool = False
    states: States | None = None

    def state(self, index: int) -> Value:
        """The state of an input at the beginning of a run."""
        if self.states is None:
            self.refuse("it keeps a state, and is in a branch or a loop; use it outside of them")
        return self.states.begin(self.operator.inputs[index], self.tensor(index), self.build)

    def assign(self, index: int, value: Value) -> None:
        """Set the state of an input at the end of a run."""
        assert self.states is not None
        self.states.end(self.operator.inputs[index], self.tensor(index), value)

    @property
    def options(self) -> Options:
        """The options of the operator."""
        return self.operator.options

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that this operator cannot be written, for this reason."""
        raise NotReadableError(reason)

    def has(self, index: int) -> bool:
        """True if the input is present."""
        inputs = self.operator.inputs
        return index < len(inputs) and inputs[index] >= 0

    @property
    def count(self) -> int:
        """The number of inputs."""
        return len(self.operator.inputs)

    def tensor(self, index: int) -> Tensor:
        """The tensor of an input."""
        if not self.has(index):
            self.refuse(f"input {index} is missing")
        return self.graph.tensors[self.operator.inputs[index]]

    def output(self, index: int = 0) -> Tensor:
        """The tensor of an output."""
        return self.graph.tensors[self.operator.outputs[index]]

    def rank(self, index: int) -> int:
        """The number of dimensions of an input."""
        tensor = self.tensor(index)
        if not tensor.has_rank:
            self.refuse(f"the rank of input {index}, {tensor.name!r}, is not known")
        return tensor.rank

    def shape(self, index: int) -> tuple[int, ...]:
        """The sizes of an input; -1 for a size that only a run knows."""
        return self.tensor(index).shape

    def size(self, index: int, axis: int, description: str) -> int:
        """A size of an input that must be known. `description` says what it is."""
        self.rank(index)
        size = self.shape(index)[axis]
        if size < 0:
            self.refuse(f"{description} is known at run time only; convert with a fixed size")
        return size

    def axis(self, axis: int, index: int = 0, extra: int = 0) -> int:
        """An axis counted from the front, of an input with `extra` further dimensions."""
        rank = self.rank(index) + extra
        if not -rank <= axis < max(rank, 1):
            self.refuse(f"axis {axis} is outside a tensor of rank {rank}")
        return axis + rank if axis < 0 else axis

    def constant(self, index: int) -> Array | None:
        """The array of a constant input, as it is stored; None for another input."""
        if not self.has(index):
            return None
        value = self.values[self.operator.inputs[index]]
        return value if isinstance(value, np.ndarray) else None

    def integers(self, index: int, description: str) -> tuple[int, ...]:
        """The integers of a constant input. `description` says what they are."""
        array = self.constant(index)
        if array is None:
            self.refuse(f"{description} is computed at run time; it must be a constant")
        return tuple(int(v) for v in array.reshape(-1))

    def indices(self, index: int) -> Value | tuple[int, ...]:
        """The integers of an input as int64: a tuple if the input is a constant vector."""
        array = self.constant(index)
        if array is not None and array.ndim == 1:
            return tuple(int(v) for v in array)
        return self.input(index).cast(DType.int64)

    def input(self, index: int) -> Value:
        """An input as a value. A quantised tensor is dequantised, unless the operator works on the
        integers.
        """
        return self.read(index)

    def stored(self, index: int) -> Value:
        """An input as its tensor stores it: the integers of a quantised tensor."""
        stored = self.values[self.operator.inputs[index]]
        if isinstance(stored, np.ndarray):
            return self.build.constant(stored)
        return Value(stored, self.build)

    def optional(self, index: int) -> Value | None:
        """An input as a value; None if it is left out."""
        return self.read(index) if self.has(index) else None

    @property
    def activation(self) -> int:
        """The number of the fused activation in the schema (`ActivationFunctionType`). An operator
        without one has 0.
        """
        try:
            number: int = self.options.FusedActivationFunction
        except AttributeError:
            number = 0
        return number

    @property
    def is_wide(self) -> bool:
        """True if the result has elements of 16 bits."""
        return self.output().element in ("INT16", "UINT16")

    def unit(self, tensor: Tensor) -> tuple[np.float32, int]:
        """The scale and the zero point of a quantised tensor that has one scale."""
        quantisation = tensor.quantisation
        assert quantisation is not None
        return np.float32(quantisation.scales[0]), int(quantisation.zeros[0])

    def bias(self, index: int, data: int, weights: int) -> Value | None:
        """The bias of a product of two inputs; None if it is left out. The unit of an integer bias
        is the product of their scales. The file may leave out the scale of an int32 bias, and ONNX
        does not dequantise int64.
        """
        array = self.constant(index)
        scales = [self.tensor(i).quantisation for i in (data, weights)]
        if array is None or None in scales or array.dtype not in (np.int32, np.int64):
            return self.optional(index)
        if array.dtype == np.int32 and self.tensor(index).quantisation is not None:
            return self.input(index)
        unit = np.prod(np.broadcast_arrays(*(s.scales for s in scales if s is not None)), axis=0)
        return self.build.constant((array * unit).astype(np.float32))

    def inputs(self) -> list[Value]:
        """All inputs as values."""
        return [self.input(index) for index in range(self.count)]

    def read(
        self, index: int, order: Sequence[int] | None = None, shape: Sequence[int] | None = None
    ) -> Value:
        """An input whose dimensions are permuted, and which then has another shape. A constant is
        rearranged now. A tensor with a scale for each channel cannot have another shape.
        """
        tensor = self.tensor(index)
        stored = self.values[self.operator.inputs[index]]
        quantisation = None if self.is_stored else tensor.quantisation
        axis = quantisation.axis if quantisation is not None else 0
        if isinstance(stored, np.ndarray):
            if order is not None:
                stored, axis = stored.transpose(order), list(order).index(axis)
            stored = stored if shape is None else stored.reshape(shape)
            value = self.build.constant(stored)
            if tensor.dtype == DType.float32 and stored.dtype != np.float32:
                return value.cast(DType.float32)
        else:
            value = Value(stored, self.build)
            if order is not None:
                value, axis = value.transpose(*order), list(order).index(axis)
            value = value if shape is None else value.reshape(*shape)
        if quantisation is None or tensor.dtype is None or tensor.dtype.is_float:
            return value
        return self.build("DequantizeLinear", value, *self.parameters(tensor), axis=axis)

    def parameters(self, tensor: Tensor) -> tuple[Value, Value]:
        """The scale and the zero point of a quantised tensor, as constants."""
        quantisation, dtype = tensor.quantisation, tensor.dtype
        assert quantisation is not None and dtype is not None
        scales, zeros = quantisation.scales, quantisation.zeros.astype(dtype.numpy)
        if scales.size == 1:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        return self.build.constant(scales), self.build.constant(zeros)
