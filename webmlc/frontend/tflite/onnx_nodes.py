"""Collect nodes that a `Builder` writes, and make an ONNX graph of them.

%y = Conv(%x, %w)   ->   NodeProto(op_type="Conv", input=["x", "w"], output=["y"])

The destination knows the element type of every value, so that a number in `x * 0.5` gets the type
of `x`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Expansion
from webmlc.graph.element_types import ELEMENT_TYPES
from webmlc.graph.ir import Array, Attribute, Node, TensorType

COMPARISONS = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "IsNaN"}
)
"""Operators whose results are bool."""
INDICES = frozenset({"ArgMax", "ArgMin", "NonZero", "NonMaxSuppression", "Shape", "Size"})
"""Operators whose results are int64."""
ELEMENT_INPUTS: Mapping[str, int] = {"Where": 1, "OneHot": 2, "QuantizeLinear": 2}
"""The input that has the element type of the result, where that is not the first input."""


@dataclass(slots=True)
class OnnxNodes(Expansion):
    """The nodes and constants of a graph. `dtypes` maps values to their element types; the values
    of a graph around this graph are among them.
    """

    dtypes: dict[str, DType] = field(default_factory=dict)

    def inner(self) -> OnnxNodes:
        """The nodes of a graph inside this graph, which may read all its values."""
        return OnnxNodes(self.taken_names, dtypes=self.dtypes)

    def append(self, node: Node, types: Sequence[TensorType] = ()) -> tuple[str, ...]:
        for index, output in enumerate(node.outputs):
            if output not in self.dtypes:
                self.dtypes[output] = self.result_type(node, index)
        self.nodes.append(node)
        return node.outputs

    def result_type(self, node: Node, index: int) -> DType:
        """The element type of an output."""
        match node.op:
            case "Cast" | "CastLike" | "BitCast":
                return ELEMENT_TYPES[node.attributes["to"]]
            case "DequantizeLinear":
                return self.dtypes[node.inputs[1]]
            case "TopK" | "Unique" if index > 0:
                return DType.int64
            case "MatMulInteger" | "ConvInteger":
                return DType.int32
            case "DynamicQuantizeLinear" if index != 1:
                return DType.uint8
            case op if op in COMPARISONS:
                return DType.bool
            case op if op in INDICES:
                return DType.int64
        return self.dtypes[node.inputs[ELEMENT_INPUTS.get(node.op, 0)]]

    def store(self, array: Array, source: Node, name: str) -> str:
        name = Expansion.store(self, array, source, name)
        self.dtypes[name] = DType.of(array.dtype)
        return name

    def type_of(self, name: str) -> TensorType | None:
        """The element type of a value. The shape is not known here, and stays empty."""
        dtype = self.dtypes.get(name)
        return None if dtype is None else TensorType(dtype, ())

    def graph(
        self,
        name: str,
        inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
    ) -> GraphProto:
        """The ONNX graph of the nodes."""
        initialisers = [
            numpy_helper.from_array(np.asarray(array, order="C"), constant)
            for constant, array in self.constants.items()
        ]
        return helper.make_graph(
            [_node_proto(node) for node in self.nodes], name, inputs, outputs, initialisers
        )


def _node_proto(node: Node) -> NodeProto:
    """The node in ONNX's form. The name of its first output, which no other node has, names it."""
    name = next(filter(None, node.outputs))
    proto = helper.make_node(
        node.op, node.inputs, node.outputs, name=name, domain=node.domain or None
    )
    for key, value in node.attributes.items():
        proto.attribute.append(_attribute(key, value))
    return proto


def _attribute(name: str, value: Attribute) -> AttributeProto:
    if isinstance(value, np.ndarray):
        value = numpy_helper.from_array(value)
    return helper.make_attribute(name, value)
