"""Ways in which exporters and their tools write a valid model. Its meaning stays nearly the same.

A writing edits a model in place, as the changes of `onnx_changes.py` do. It raises an error if the
model has nothing for it to write in another way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

SMALL_TYPES = tuple(
    t
    for name in ("INT4", "UINT4", "INT8", "UINT8", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT16", "INT2")
    if (t := getattr(TensorProto, name, None)) is not None
)
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
OUTSIDE_FILE = "weights/part 1.bin"
"""The file beside a model, into which `move_outside` moves its constants."""
ALIGNMENTS = (1, 64, 4096)
OLDEST_IR = 3
"""Below IR version 4, each initialiser is an input, too."""


def write_sparse(model: ModelProto, rng: random.Random) -> None:
    """A constant is a sparse tensor, with flat indices or with one index for each axis."""
    tensor = rng.choice([t for t in model.graph.initializer if t.dims])
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize < 2:
        raise LookupError(tensor.name)
    places = np.argwhere(array)
    indices = places if rng.random() < 0.5 else np.flatnonzero(array)
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(array[tuple(places.T)], tensor.name))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.asarray(indices, np.int64)))
    sparse.dims.extend(tensor.dims)
    model.graph.initializer.remove(tensor)


def move_outside(model: ModelProto, rng: random.Random) -> bytes:
    """Move constants into `OUTSIDE_FILE`, and return its bytes. A length may be left out."""
    data, alignment = bytearray(), rng.choice(ALIGNMENTS)
    for tensor in model.graph.initializer:
        if tensor.raw_data and not tensor.external_data and rng.random() < 0.8:
            data.extend(bytes(-len(data) % alignment))
            entries = {"location": OUTSIDE_FILE, "offset": str(len(data))}
            if rng.random() < 0.8:
                entries["length"] = str(len(tensor.raw_data))
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
            data.extend(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    return bytes(data)


def write_typed_field(model: ModelProto, rng: random.Random) -> None:
    """The numbers of constants lie in the fields of their types, not in raw bytes."""
    for tensor in model.graph.initializer:
        if rng.random() < 0.7 and tensor.data_type < TensorProto.FLOAT8E4M3FN:
            array, name = numpy_helper.to_array(tensor), tensor.name
            values = array.reshape(-1)
            tensor.CopyFrom(helper.make_tensor(name, tensor.data_type, array.shape, values))


def store_in_halves(model: ModelProto, rng: random.Random) -> None:
    """A constant is stored in 16 bits, and cast before it is read."""
    tensor = _float_constant(model, rng)
    half = rng.choice(HALVES)
    array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(half))
    _replace(model, tensor, array, ("Cast", [], {"to": TensorProto.FLOAT}))


def store_quantised(model: ModelProto, rng: random.Random) -> None:
    """A constant is stored in a few bits, and dequantised: with one scale, or one for each row."""
    tensor = _float_constant(model, rng)
    kind = rng.choice(SMALL_TYPES)
    array = numpy_helper.to_array(tensor)
    rows = array.ndim == 2 and rng.random() < 0.5
    scale = np.asarray(np.abs(array).max(1) if rows else np.abs(array).max(), np.float32) / 7 + 1e-3
    small = (array / (scale[:, None] if rows else scale)).clip(-7, 7).round()
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if dtype.kind == "u" or "uint" in dtype.name:
        small = np.abs(small)
    name = f"{tensor.name}.scale"
    model.graph.initializer.append(numpy_helper.from_array(scale, name))
    attributes = {"axis": 0} if rows else {}
    _replace(model, tensor, small.astype(dtype), ("DequantizeLinear", [name], attributes))


def list_constants_as_inputs(model: ModelProto, rng: random.Random) -> None:
    """Every constant is an input with a default value, as IR version 3 wants it."""
    names = {i.name for i in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in names:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(info)
    model.ir_version = rng.choice((OLDEST_IR, OLDEST_IR, 8))


def describe_parts(model: ModelProto, rng: random.Random) -> None:
    """Descriptions: of quantised values, of training, of nodes and of the devices of a cluster."""
    graph = model.graph
    kind = rng.choice(("quantised", "training", "metadata", "devices"))
    if kind == "quantised":
        note = graph.quantization_annotation.add()
        note.tensor_name = rng.choice([o for n in graph.node for o in n.output])
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=rng.choice(("x", "none")))
    elif kind == "training":
        training = model.training_info.add()
        training.algorithm.node.add().CopyFrom(rng.choice(graph.node))
        training.update_binding.add(key="w", value="w_new")
    elif kind == "metadata":
        for part in (*graph.node, graph, *graph.input, *graph.initializer, *model.functions):
            part.metadata_props.add(key="namespace", value=": torch.nn.Linear")
    else:
        model.configuration.add(name="two", num_devices=2)
        for node in graph.node:
            node.device_configurations.add(configuration_id="two", pipeline_stage=1)


def pass_through_optional(model: ModelProto, rng: random.Random) -> None:
    """A value is put into an optional, and taken out again."""
    optional = ("Optional", [], {})
    _insert(model, rng, optional, ("OptionalGetElement", [], {}))


def pass_through_sequence(model: ModelProto, rng: random.Random) -> None:
    """A value is put into a sequence of one, and taken out again."""
    index = helper.make_tensor("index of one", TensorProto.INT64, [], [0])
    model.graph.initializer.append(index)
    _insert(model, rng, ("SequenceConstruct", [], {}), ("SequenceAt", [index.name], {}))


def infer_types(model: ModelProto, rng: random.Random) -> None:
    """The types of inner values are declared, as ONNX infers them."""
    model.CopyFrom(onnx.shape_inference.infer_shapes(model, data_prop=rng.random() < 0.5))


def name_domain(model: ModelProto, rng: random.Random) -> None:
    """The domain of ONNX has its long name in the imports, in nodes, or in both."""
    places: list[Any] = [o for o in model.opset_import if not o.domain]
    nodes: list[Any] = [n for n in model.graph.node if not n.domain]
    chosen = rng.choice((places, nodes, places + nodes))
    for message in chosen:
        message.domain = "ai.onnx"
    if not chosen:
        raise LookupError("ai.onnx")


def run_in_loop(model: ModelProto, rng: random.Random) -> None:
    """The last node moves into a loop, or into a loop in a branch, and reads the outer scope."""
    node = model.graph.node[-1]
    if len(node.output) != 1 or any(a.HasField("g") for a in node.attribute):
        raise LookupError("a node of one output")
    element = next(
        o.type.tensor_type.elem_type for o in model.graph.output if o.name in node.output
    )
    if not element:
        raise LookupError("a type")
    body = GraphProto(name="body")
    inner = helper.make_node("Identity", ["last on"], ["last still on"])
    body.node.extend([inner])
    body.node.add().CopyFrom(node)
    body.node[-1].output[0] = "last value"
    body.node.append(helper.make_node("Identity", ["last value"], ["last scanned"]))
    body.input.extend(
        [
            helper.make_tensor_value_info("last number", TensorProto.INT64, []),
            helper.make_tensor_value_info("last on", TensorProto.BOOL, []),
        ]
    )
    body.output.extend(
        [
            helper.make_tensor_value_info("last still on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("last scanned", element, None),
        ]
    )
    count = helper.make_tensor("last count", TensorProto.INT64, [], [rng.choice((1, 1, 2, 3))])
    zero = helper.make_tensor("last zero", TensorProto.INT64, [], [0])
    model.graph.initializer.extend([count, zero])
    loop = helper.make_node("Loop", ["last count", ""], ["last all"], body=body)
    taken = helper.make_node("Gather", ["last all", "last zero"], [node.output[0]], axis=0)
    del model.graph.node[-1]
    model.graph.node.extend([loop, taken])


def constant_forms(model: ModelProto, rng: random.Random) -> None:
    """A constant is a node with a list of numbers, a number, or a sparse tensor."""
    tensor = rng.choice([t for t in model.graph.initializer if len(t.dims) < 2])
    array = numpy_helper.to_array(tensor)
    kinds = {"f": "value_float", "i": "value_int"}
    if array.dtype not in (np.float32, np.int64):
        raise LookupError(tensor.name)
    name = kinds[array.dtype.kind] + ("s" if array.ndim else "")
    attribute = AttributeProto()
    attribute.CopyFrom(helper.make_attribute(name, array.tolist(), attr_type=_TYPES[name]))
    node = helper.make_node("Constant", [], [tensor.name])
    node.attribute.append(attribute)
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(0, node)


_TYPES = {
    "value_float": AttributeProto.FLOAT,
    "value_floats": AttributeProto.FLOATS,
    "value_int": AttributeProto.INT,
    "value_ints": AttributeProto.INTS,
}

WRITINGS: tuple[tuple[Callable[[ModelProto, random.Random], None], int], ...] = (
    (write_sparse, 2),
    (write_typed_field, 2),
    (store_in_halves, 2),
    (store_quantised, 3),
    (list_constants_as_inputs, 2),
    (describe_parts, 3),
    (pass_through_optional, 2),
    (pass_through_sequence, 2),
    (infer_types, 2),
    (name_domain, 2),
    (run_in_loop, 3),
    (constant_forms, 2),
)
"""The writings, and how often each is drawn."""

_Step = tuple[str, list[str], dict[str, Any]]
"""An operator, its other inputs, and its attributes."""


def _float_constant(model: ModelProto, rng: random.Random) -> TensorProto:
    return rng.choice([t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT])


def _replace(model: ModelProto, tensor: TensorProto, array: np.ndarray, step: _Step) -> None:
    """Store a constant as another array, and compute its value from it."""
    operator, others, attributes = step
    name, stored = tensor.name, f"{tensor.name}.stored"
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), stored))
    model.graph.node.insert(0, helper.make_node(operator, [stored, *others], [name], **attributes))


def _insert(model: ModelProto, rng: random.Random, *steps: _Step) -> None:
    """Insert nodes between a value and one node that reads it."""
    reader = rng.choice([n for n in model.graph.node if any(n.input)])
    position = rng.choice([i for i, name in enumerate(reader.input) if name])
    place = list(model.graph.node).index(reader)
    value = reader.input[position]
    nodes = []
    for number, (operator, others, attributes) in enumerate(steps):
        output = f"{value} after {number}"
        nodes.append(helper.make_node(operator, [value, *others], [output], **attributes))
        value = output
    reader.input[position] = value
    for node in reversed(nodes):
        model.graph.node.insert(place, node)
