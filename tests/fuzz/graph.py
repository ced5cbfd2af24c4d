"""A random graph as the fuzzer keeps it: nodes, what goes in, and the value of everything.

In: what `draw_graph` drew. Out: an ONNX model (`to_model`), its inputs (`feeds`), its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class FuzzGraph:
    """A valid model and inputs for it. `values` has every array by name, as the oracle computed it.

    `symbols` names the sizes that are symbolic in the model: each input dimension of that size.
    """

    opset: int
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Array]
    symbols: Mapping[int, str]

    @classmethod
    def from_text(cls, text: str, symbols: Mapping[int, str], seed: int = 0) -> FuzzGraph:
        """A graph from ONNX text, with random inputs: floats from -2..2, integers from 0..9."""
        from tests.fuzz.oracle import run_node

        model = onnx.parser.parse_model(text)
        rng = np.random.default_rng(seed)
        sizes = {name: size for size, name in symbols.items()}
        constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        values: dict[str, Array] = dict(constants)
        for info in model.graph.input:
            tensor = info.type.tensor_type
            shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            numbers = (
                rng.integers(0, 10, shape) if dtype.kind in "iu" else rng.uniform(-2, 2, shape)
            )
            values[info.name] = np.asarray(numbers > 0 if dtype.kind == "b" else numbers, dtype)
        opset = model.opset_import[0].version
        for node in model.graph.node:
            results = run_node(node, opset, values)
            values |= zip((o for o in node.output if o), results, strict=True)
        inputs = tuple(i.name for i in model.graph.input)
        outputs = tuple(o.name for o in model.graph.output)
        return cls(
            opset, tuple(model.graph.node), inputs, tuple(constants), outputs, values, symbols
        )

    def feeds(self) -> dict[str, Array]:
        """The inputs to run it on."""
        return {name: self.values[name] for name in self.inputs}

    def to_model(self) -> onnx.ModelProto:
        """The ONNX model; raises `onnx.checker.ValidationError` where the checker refuses it."""
        inputs = [
            helper.make_tensor_value_info(name, element_type(array), self._shape(array))
            for name, array in self.feeds().items()
        ]
        outputs = [
            helper.make_tensor_value_info(
                name,
                element_type(self.values[name]),
                [f"{name}_{axis}" for axis in range(self.values[name].ndim)],
            )
            for name in self.outputs
        ]
        constants = [numpy_helper.from_array(self.values[name], name) for name in self.constants]
        graph = helper.make_graph(self.nodes, "fuzz", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == "com.microsoft" for node in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        if any(node.domain == "ai.onnx.ml" for node in self.nodes):
            opsets.append(helper.make_opsetid("ai.onnx.ml", 5))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model)
        return model

    def text(self) -> str:
        """The model as ONNX text, and the inputs, long ones shortened."""
        return "\n".join(
            (onnx.printer.to_text(self.to_model()), *starmap(_text, self.feeds().items()))
        )

    def key(self) -> tuple[bytes, ...]:
        """Equal for graphs that are the same."""
        model = self.to_model().SerializeToString()
        return (model, *(array.tobytes() for array in self.feeds().values()))

    def _shape(self, array: Array) -> list[int | str]:
        return [self.symbols.get(size, size) for size in array.shape]


def _text(name: str, array: Array) -> str:
    with np.printoptions(threshold=48, edgeitems=12, floatmode="unique", linewidth=100):
        flat = array.reshape(-1) if array.ndim > 1 else array
        shaped = f".reshape{array.shape}" if array.ndim > 1 else ""
        return f"{name} = {flat!r}{shaped}"


def captured(node: onnx.NodeProto) -> tuple[str, ...]:
    """The values of the graph that the node's sub-graphs read."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            made = {i.name for i in attribute.g.input}
            for inner in attribute.g.node:
                found |= dict.fromkeys(i for i in inner.input if i not in made)
                made.update(inner.output)
    return tuple(found)


def element_type(array: Array) -> int:
    """ONNX's number of an array's element type."""
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))
