"""Write a convolutional ONNX model as calls of TF.js, so that TF.js computes the same function.

In: a model, and the shapes of its inputs. Out: a `TfjsGraph`, or None where the model has an
operator that is not written here. The calls are those that TF.js's own converter writes: feature
maps are NHWC, batch normalisations are folded into the convolutions before them, and biases and
ReLUs are part of the fused kernels.

    Conv(x, w, b), Relu  →  {"op": "conv2d", "inputs": ["x", "w", "b"], "activation": "relu", ...}

No single tool converts ONNX to TF.js: onnx2tf and then tensorflowjs would, with a TensorFlow of
their own. `page/engines/tfjs.js` makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

Step = dict[str, Any]
"""A call: `op`, the names of its `inputs`, its `output`, and arguments of TF.js's function."""
Array = NDArray[Any]

IMAGE = 4
"""The rank of a feature map, whose channels TF.js keeps last."""


@dataclass(slots=True)
class TfjsGraph:
    """The calls in order, the constants that they read, and the inputs and outputs that are feature
    maps: NCHW outside of the graph, NHWC in it.
    """

    steps: list[Step] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)


def tfjs_graph(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], most_constants: int = 1 << 30
) -> TfjsGraph | None:
    """The calls of a model, or None. `most_constants` bounds the bytes of its constants."""
    if model.ByteSize() > most_constants:
        return None
    writer = _Writer(model, shapes)
    try:
        writer.write()
    except _CannotWrite:
        return None
    return writer.graph


class _CannotWrite(Exception):
    """A node that is not written as a call of TF.js."""


class _Writer:
    """Writes the nodes of a model one by one."""

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
        fixed = onnx.ModelProto()
        fixed.CopyFrom(model)
        for value in fixed.graph.input:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, shapes.get(value.name, ()), strict=False):
                dim.dim_value = size
        self.opsets = model.opset_import
        self.weights = {t.name: numpy_helper.to_array(t) for t in fixed.graph.initializer}
        for node in fixed.graph.node:
            for name, array in self.folded(node).items():
                self.weights[name] = array
                fixed.graph.initializer.append(numpy_helper.from_array(array, name))
        self.proto = shape_inference.infer_shapes(fixed, data_prop=True).graph
        self.shapes = {
            v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in (*self.proto.value_info, *self.proto.output, *self.proto.input)
        }
        reads = [name for node in self.proto.node for name in node.input]
        reads += [output.name for output in self.proto.output]
        self.consumers = {name: reads.count(name) for name in reads}
        self.names: dict[str, str] = {}
        self.graph = TfjsGraph()

    def write(self) -> None:
        """Write every node, then the outputs. Raises `_CannotWrite` at the first unknown one."""
        for value in self.proto.input:
            if value.name not in self.weights and len(self.shapes[value.name]) == IMAGE:
                self.graph.images.append(value.name)
        for node in self.proto.node:
            if node.output[0] in self.weights:
                continue
            used = [name for name in node.output if self.consumers.get(name)]
            write = _NODES.get(node.op_type)
            if write is None or used != [node.output[0]]:
                raise _CannotWrite(node.op_type)
            write(self, node, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute})
        for output in self.proto.output:
            self.graph.outputs[output.name] = self.name_of(output.name)
            if len(self.shapes[output.name]) == IMAGE:
                self.graph.images.append(output.name)

    def folded(self, node: onnx.NodeProto) -> dict[str, Array]:
        """The outputs of a node of constants. Empty for other nodes, and where `onnx.reference`
        does not have the operator.
        """
        operands = [name for name in node.input if name]
        if not all(name in self.weights for name in operands):
            return {}
        feeds = {name: self.weights[name] for name in operands}
        inputs = [onnx.helper.make_tensor_value_info(n, 1, None) for n in operands]
        results = [onnx.helper.make_tensor_value_info(n, 1, None) for n in node.output]
        graph = onnx.helper.make_graph([node], "constant", inputs, results)
        model = onnx.helper.make_model(graph, opset_imports=self.opsets)
        try:
            values = ReferenceEvaluator(model).run(None, feeds)
        except RuntimeError:
            return {}
        return dict(zip(node.output, values, strict=True))

    def name_of(self, value: str) -> str:
        """The name of the call's output that has this value."""
        return self.names.get(value, value)

    def constant(self, name: str, array: Array) -> str:
        """Add a constant of the graph."""
        self.graph.constants[name] = np.ascontiguousarray(array, np.float32)
        return name

    def weight(self, name: str) -> Array:
        """A float constant of the model."""
        if name not in self.weights or self.weights[name].dtype != np.float32:
            raise _CannotWrite(name)
        return self.weights[name]

    def operand(self, value: str, rank: int) -> str:
        """An operand of an elementwise operator: a value, or a constant that is broadcast."""
        if value not in self.weights:
            return self.name_of(value)
        array = self.weight(value)
        if rank == IMAGE and array.ndim > 1:
            array = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(0, 2, 3, 1)
        return self.constant(value, array)

    def call(self, op: str, node: onnx.NodeProto, inputs: Sequence[str], **arguments: Any) -> None:
        """Add a call."""
        step = {"op": op, "inputs": list(inputs), "output": node.output[0], **arguments}
        self.graph.steps.append(step)

    def last_convolution(self, value: str) -> Step | None:
        """The call before the current one if it is a product or a convolution that only this node
        reads and that has no activation.
        """
        step = self.graph.steps[-1] if self.graph.steps else None
        fusable = step is not None and step["op"] in ("conv2d", "depthwiseConv2d", "matMul")
        if step is None or not fusable or step["output"] != self.name_of(value):
            return None
        return step if self.consumers[value] == 1 and "activation" not in step else None


def _window(writer: _Writer, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> Step:
    """The strides and explicit paddings of a window. A padding that rounding up implies is added
    behind the input.
    """
    size, result = (writer.shapes[name][2:] for name in (node.input[0], node.output[0]))
    kernel = attributes.get("kernel_shape") or writer.weight(node.input[1]).shape[2:]
    strides = attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    if not all((*size, *result)) or len(size) != 2:
        raise _CannotWrite(node.op_type)
    pads = list(attributes.get("pads", [0, 0, 0, 0]))
    automatic = attributes.get("auto_pad", b"NOTSET")
    for axis in range(2):
        reach = (result[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        missing = max(0, reach - size[axis])
        if automatic == b"SAME_UPPER":
            pads[axis], pads[axis + 2] = missing // 2, missing - missing // 2
        elif automatic in (b"NOTSET", b"VALID"):
            pads[axis + 2] = max(pads[axis + 2], missing - pads[axis])
        else:
            raise _CannotWrite(automatic.decode())
    explicit = [[0, 0], [pads[0], pads[2]], [pads[1], pads[3]], [0, 0]]
    return {
        "strides": list(strides),
        "pad": explicit if any(pads) else "valid",
        "dilations": list(dilations),
    }


def _convolution(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
    weights, window = writer.weight(node.input[1]), _window(writer, node, attributes)
    groups, channels = attributes.get("group", 1), writer.shapes[node.input[0]][1]
    name = node.input[1]
    bias = writer.weight(node.input[2]) if len(node.input) > 2 else np.zeros(len(weights))
    inputs = [writer.name_of(node.input[0]), name, f"{node.output[0]} bias"]
    writer.constant(inputs[2], bias)
    if groups == 1:
        writer.constant(name, weights.transpose(2, 3, 1, 0))
        writer.call("conv2d", node, inputs, **window)
    elif groups == channels:
        multiplier = len(weights) // groups
        filters = weights.reshape(groups, multiplier, *weights.shape[2:]).transpose(2, 3, 0, 1)
        writer.constant(name, filters)
        writer.call("depthwiseConv2d", node, inputs, **window)
    else:
        raise _CannotWrite("a convolution in groups")


def _batch_normalisation(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
    scale, shift, mean, variance = (writer.weight(name) for name in node.input[1:5])
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    step = writer.last_convolution(node.input[0])
    if step is None:
        scaled, result = f"{node.output[0]} scaled", node.output[0]
        operands = [
            (scaled, "mul", writer.name_of(node.input[0]), factor),
            (result, "add", scaled, shift - mean * factor),
        ]
        for output, op, operand, array in operands:
            inputs = [operand, writer.constant(f"{output} by", array)]
            writer.graph.steps.append({"op": op, "inputs": inputs, "output": output})
        return
    weights, bias = (writer.graph.constants[name] for name in step["inputs"][1:])
    last = weights.shape[2:] if step["op"] == "depthwiseConv2d" else weights.shape[3:]
    writer.constant(step["inputs"][1], weights * factor.reshape(last))
    writer.constant(step["inputs"][2], (bias - mean) * factor + shift)
    writer.names[node.output[0]] = step["output"]


def _activation(name: str) -> _Write:
    def write(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        kind = name
        if kind == "clip":
            bounds = [float(writer.weight(name)) for name in node.input[1:] if name]
            if bounds != [0, 6] and (attributes.get("min"), attributes.get("max")) != (0, 6):
                raise _CannotWrite("Clip")
            kind = "relu6"
        step = writer.last_convolution(node.input[0])
        if step is None:
            writer.call(kind, node, [writer.name_of(node.input[0])])
        else:
            step["activation"] = kind
            writer.names[node.output[0]] = step["output"]

    return write


def _pool(op: str) -> _Write:
    def write(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        window = _window(writer, node, attributes)
        if op == "avgPool" and window["pad"] != "valid" and attributes.get("count_include_pad"):
            raise _CannotWrite("an average that counts its padding")
        if window.pop("dilations") != [1, 1]:
            raise _CannotWrite("a dilated pool")
        inputs = [writer.name_of(node.input[0])]
        writer.call(op, node, inputs, size=list(attributes["kernel_shape"]), **window)

    return write


def _mean(writer: _Writer, node: onnx.NodeProto, _: dict[str, Any]) -> None:
    writer.call("mean", node, [writer.name_of(node.input[0])])


def _elementwise(op: str) -> _Write:
    def write(writer: _Writer, node: onnx.NodeProto, _: dict[str, Any]) -> None:
        writer.call(op, node, [writer.name_of(node.input[0])])

    return write


def _binary(op: str) -> _Write:
    def write(writer: _Writer, node: onnx.NodeProto, _: dict[str, Any]) -> None:
        ranks = {len(writer.shapes[name]) for name in node.input if name not in writer.weights}
        if len(node.input) != 2 or len(ranks) != 1:
            raise _CannotWrite(node.op_type)
        (rank,) = ranks
        writer.call(op, node, [writer.operand(name, rank) for name in node.input])

    return write


def _pad(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
    widths = attributes["pads"] if "pads" in attributes else writer.weights.get(node.input[1])
    value = writer.weight(node.input[2]) if len(node.input) > 2 else attributes.get("value", 0)
    if (
        widths is None
        or len(widths) != 2 * IMAGE
        or attributes.get("mode", b"constant") != b"constant"
    ):
        raise _CannotWrite("Pad")
    pairs = [[int(widths[axis]), int(widths[axis + IMAGE])] for axis in (0, 2, 3, 1)]
    writer.call("pad", node, [writer.name_of(node.input[0])], pad=pairs, value=float(value))


def _concat(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
    rank, axis = len(writer.shapes[node.output[0]]), attributes["axis"]
    if rank != IMAGE or any(name in writer.weights for name in node.input):
        raise _CannotWrite("Concat")
    place = {0: 0, 1: 3, 2: 1, 3: 2}[axis % rank]
    writer.call("concat", node, [writer.name_of(name) for name in node.input], axis=place)


def _reshape(writer: _Writer, node: onnx.NodeProto, _: dict[str, Any]) -> None:
    shape, result = writer.shapes[node.input[0]], writer.shapes[node.output[0]]
    if not all(result) or len(result) == IMAGE or len(shape) != IMAGE:
        raise _CannotWrite("Reshape")
    inputs = [writer.name_of(node.input[0])]
    writer.call("reshape", node, inputs, shape=result, isSpatial=shape[2:] != [1, 1])


def _product(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
    if attributes.get("transA") or attributes.get("alpha", 1.0) != 1.0:
        raise _CannotWrite("Gemm")
    if len(writer.shapes[node.input[0]]) != 2:
        raise _CannotWrite("a batch of products")
    inputs = [writer.name_of(node.input[0])]
    if node.input[1] in writer.weights:
        weights = writer.weight(node.input[1])
        array = weights.T if attributes.get("transB") else weights
        inputs.append(writer.constant(node.input[1], array))
    elif attributes.get("transB"):
        raise _CannotWrite("Gemm")
    else:
        inputs.append(writer.name_of(node.input[1]))
    if len(node.input) > 2:
        if attributes.get("beta", 1.0) != 1.0:
            raise _CannotWrite("Gemm")
        inputs.append(writer.constant(node.input[2], writer.weight(node.input[2]).reshape(-1)))
    writer.call("matMul", node, inputs)


def _softmax(writer: _Writer, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
    shape = writer.shapes[node.input[0]]
    axis = attributes.get("axis", 1 if writer.opsets[0].version < 13 else -1) % len(shape)
    is_row, is_pixel = len(shape) == 2, len(shape) == IMAGE and shape[2:] == [1, 1]
    if axis != 1 or not (is_row or is_pixel):
        raise _CannotWrite("Softmax")
    writer.call("softmax", node, [writer.name_of(node.input[0])])


def _alias(writer: _Writer, node: onnx.NodeProto, _: dict[str, Any]) -> None:
    writer.names[node.output[0]] = writer.name_of(node.input[0])
    writer.consumers[node.input[0]] += writer.consumers.get(node.output[0], 0) - 1


_Write = Callable[[_Writer, onnx.NodeProto, dict[str, Any]], None]

_NODES: Mapping[str, _Write] = {
    "Conv": _convolution,
    "BatchNormalization": _batch_normalisation,
    "Relu": _activation("relu"),
    "Clip": _activation("clip"),
    "MaxPool": _pool("maxPool"),
    "AveragePool": _pool("avgPool"),
    "GlobalAveragePool": _mean,
    "Add": _binary("add"),
    "Sum": _binary("add"),
    "Mul": _binary("mul"),
    "Sigmoid": _elementwise("sigmoid"),
    "Pad": _pad,
    "Concat": _concat,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Gemm": _product,
    "MatMul": _product,
    "Softmax": _softmax,
    "Dropout": _alias,
    "Identity": _alias,
}
"""How the nodes of an operator are written."""
