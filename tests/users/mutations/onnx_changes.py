"""The ways in which an ONNX model is damaged or written unusually.

A change edits a model in place. It raises an error if the model has nothing for it to change.

    title = draw_change(model, rng)    # "rename a dimension"
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from tests.frontend.mutate_model import mutate
from tests.users.mutations.names import NAMES
from tests.users.mutations.onnx_writings import WRITINGS
from webmlc.graph.table import OPS

Change = Callable[[ModelProto, random.Random], None]

SIZES = (0, 1, 2, 3, 5, 7, 64, 1000, 2**31 - 1, 2**31, 2**40, -1, -(2**63))
NUMBERS = (0, 1, -1, 2, 3, -2, 7, 17, 100, 2**31 - 1, 2**31, -(2**63), 2**63 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
TYPES = tuple(TensorProto.DataType.values())
DATA_FILE = "weights.bin"


# -- names ---------------------------------------------------------------------------------------


def rename_dimension(model: ModelProto, rng: random.Random) -> None:
    """A dimension becomes a symbol with such a name, or all dimensions of a name do."""
    dims = list(_dimensions(model.graph))
    dim, name = rng.choice(dims), rng.choice(NAMES)
    if dim.dim_param:
        old = dim.dim_param
        dims = [d for d in dims if d.dim_param == old]
    elif rng.random() < 0.5:
        dims = [d for d in dims if d.HasField("dim_value") and d.dim_value == dim.dim_value]
    else:
        dims = [dim]
    for d in dims:
        d.dim_param = name


def rename_value(model: ModelProto, rng: random.Random) -> None:
    """A value has another name, wherever it is used, or in one place only."""
    old, new = rng.choice(_value_names(model.graph)), rng.choice(NAMES)
    _rename(model.graph, old, new)


def rename_one_use(model: ModelProto, rng: random.Random) -> None:
    """A use of a value names another value, perhaps one of another scope."""
    node = rng.choice([n for n in _nodes(model) if n.input])
    names = (*_value_names(model.graph), *(o for n in _nodes(model) for o in n.output))
    node.input[rng.randrange(len(node.input))] = rng.choice(names)


def rename_output_of_node(model: ModelProto, rng: random.Random) -> None:
    """A node writes a value that another node writes, too."""
    node = rng.choice([n for n in _nodes(model) if n.output])
    names = (*_value_names(model.graph), *(o for n in _nodes(model) for o in n.output))
    node.output[rng.randrange(len(node.output))] = rng.choice(names)


def rename_node_or_graph(model: ModelProto, rng: random.Random) -> None:
    messages: list[Any] = [model.graph, *_nodes(model)]
    for message in messages:
        if rng.random() < 0.5:
            message.name = rng.choice((*NAMES, ""))


def rename_function(model: ModelProto, rng: random.Random) -> None:
    """A local function, its domain or its overload has such a name, also in calls."""
    function, new = rng.choice(list(model.functions)), rng.choice(NAMES)
    old = function.domain, function.name
    field = rng.choice(("domain", "name", "overload"))
    for node in _nodes(model):
        if (node.domain, node.op_type) == old:
            setattr(node, "op_type" if field == "name" else field, new)
    for imports in (model.opset_import, *(f.opset_import for f in model.functions)):
        if field == "domain":
            imports.append(helper.make_opsetid(new, 1))
    setattr(function, field, new)


# -- types and shapes ----------------------------------------------------------------------------


def change_size(model: ModelProto, rng: random.Random) -> None:
    rng.choice(list(_dimensions(model.graph))).dim_value = rng.choice(SIZES)


def change_rank(model: ModelProto, rng: random.Random) -> None:
    dims = rng.choice(_shapes(model.graph)).dim
    if dims and rng.random() < 0.5:
        del dims[rng.randrange(len(dims))]
        return
    for _ in range(rng.choice((1, 1, 2, 33))):
        dims.add().dim_value = rng.choice((1, 1, 2))


def forget_shape(model: ModelProto, rng: random.Random) -> None:
    info = rng.choice((*model.graph.input, *model.graph.output, *model.graph.value_info))
    field = rng.choice(("shape", "shape", "elem_type", "type"))
    (info if field == "type" else info.type.tensor_type).ClearField(field)


def make_sizes_symbolic(model: ModelProto, rng: random.Random) -> None:
    """All sizes of inputs become symbols: equal sizes one symbol, or each a symbol of its own."""
    by_size = rng.random() < 0.5
    for number, dim in enumerate(_dimensions(model.graph)):
        if dim.HasField("dim_value"):
            dim.dim_param = f"d{dim.dim_value if by_size else number}"


def share_symbol(model: ModelProto, rng: random.Random) -> None:
    """Two dimensions of inputs, perhaps of other sizes, are one symbol."""
    infos = [info.type.tensor_type.shape.dim for info in model.graph.input]
    first, second = rng.sample([dim for dims in infos for dim in dims], 2)
    second.dim_param = first.dim_param = first.dim_param or "n"


def change_type(model: ModelProto, rng: random.Random) -> None:
    """An input, an output or an initialiser has another element type."""
    infos = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if model.graph.initializer and rng.random() < 0.4:
        rng.choice(model.graph.initializer).data_type = rng.choice(TYPES)
    else:
        rng.choice(infos).type.tensor_type.elem_type = rng.choice(TYPES)


def change_types(model: ModelProto, rng: random.Random) -> None:
    """All float values, or all of another type, have one other type."""
    tensors = [i.type.tensor_type for i in (*model.graph.input, *model.graph.output)]
    old = rng.choice(tensors).elem_type
    new = rng.choice((1, 10, 11, 16, 6, 7, 2, 3, 9, 5, 4, 12, 13))
    for tensor in tensors:
        if tensor.elem_type == old:
            tensor.elem_type = new
    for initializer in model.graph.initializer:
        if initializer.data_type == old:
            array = onnx.numpy_helper.to_array(initializer)
            dtype = helper.tensor_dtype_to_np_dtype(new)
            initializer.CopyFrom(
                onnx.numpy_helper.from_array(array.astype(dtype), initializer.name)
            )


def add_value_info(model: ModelProto, rng: random.Random) -> None:
    """A declared type of an inner value, which may contradict what is computed."""
    name = rng.choice([o for n in model.graph.node for o in n.output if o])
    shape = rng.choice((None, [], [2], ["T"], [1, 2, 3], [2, 4], [-1]))
    info = helper.make_tensor_value_info(name, rng.choice((1, 1, 1, 7, 0)), shape)
    model.graph.value_info.append(info)


# -- nodes ---------------------------------------------------------------------------------------


def omit_input(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in _nodes(model) if n.input])
    if rng.random() < 0.5:
        node.input[rng.randrange(len(node.input))] = ""
    else:
        del node.input[rng.randrange(len(node.input)) :]


def omit_output(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in _nodes(model) if n.output])
    if rng.random() < 0.5:
        node.output[rng.randrange(len(node.output))] = ""
    else:
        del node.output[rng.randrange(len(node.output)) :]


def add_operand(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice(_nodes(model))
    if rng.random() < 0.5:
        node.input.append(rng.choice(("", *_value_names(model.graph))))
    else:
        node.output.append(rng.choice(("", "more", "x")))


def change_order(model: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    field = rng.choice(("node", "node", "input", "output", "initializer"))
    _shuffle(getattr(graph, field), rng)


def double_or_delete(model: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(_graphs(model))
    fields = [f for f in ("node", "input", "output", "initializer") if len(getattr(graph, f))]
    elements = getattr(graph, rng.choice(fields))
    if rng.random() < 0.5:
        del elements[rng.randrange(len(elements))]
    else:
        elements.add().CopyFrom(rng.choice(list(elements)[:-1] or [elements[0]]))


def change_operator(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice(_nodes(model))
    if rng.random() < 0.2:
        node.op_type = rng.choice((*NAMES, "Foo", ""))
    elif rng.random() < 0.2:
        node.domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "webmlc", "other"))
    else:
        node.domain, node.op_type = rng.choice(list(OPS))
        if node.domain not in {o.domain for o in model.opset_import}:
            model.opset_import.append(helper.make_opsetid(node.domain, 1))


def insert_node(model: ModelProto, rng: random.Random) -> None:
    """A node between a value and its uses, or between a graph and its output."""
    name = rng.choice(_value_names(model.graph))
    operator = rng.choice(("Identity", "Identity", "Neg", "Cast", "Relu", "Shape", "Dropout"))
    attributes: dict[str, Any] = {"to": rng.choice((1, 10, 11, 7))} if operator == "Cast" else {}
    _rename(model.graph, name, f"{name}_before", inputs=False)
    producers = [o for n in model.graph.node for o in n.output]
    if f"{name}_before" not in producers:
        raise LookupError(name)
    node = helper.make_node(operator, [f"{name}_before"], [name], **attributes)
    model.graph.node.append(node)


# -- attributes ----------------------------------------------------------------------------------


def change_attribute(model: ModelProto, rng: random.Random) -> None:
    attribute = rng.choice([a for n in _nodes(model) for a in n.attribute])
    kind = rng.choice(("number", "number", "number", "length", "name", "type", "reference"))
    if kind == "name":
        attribute.name = rng.choice((*NAMES, "axis", "axes", "to", "alpha", ""))
    elif kind == "type":
        attribute.type = rng.choice(AttributeProto.AttributeType.values())
    elif kind == "reference":
        attribute.ref_attr_name = rng.choice(("alpha", "factor", "missing"))
    elif attribute.ints:
        if kind == "length":
            del attribute.ints[rng.randrange(len(attribute.ints)) :]
        else:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
    elif attribute.floats:
        attribute.floats[rng.randrange(len(attribute.floats))] = rng.choice(FLOATS)
    elif attribute.strings:
        attribute.strings[rng.randrange(len(attribute.strings))] = b"\xff\xfex"
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = rng.choice(FLOATS)
    elif attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(NUMBERS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"\xff", b"linear", b"SAME_UPPER", b"max", b"NOTSET"))
    else:
        raise LookupError(attribute.name)


def remove_attribute(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in _nodes(model) if n.attribute])
    del node.attribute[rng.randrange(len(node.attribute))]


def add_attribute(model: ModelProto, rng: random.Random) -> None:
    """An attribute of the operator that the node does not have yet, or an unknown one."""
    node = rng.choice(_nodes(model))
    names = [*NAMES, "axis", "axes", "keepdims", "alpha", "mode", "to"]
    if onnx.defs.has(node.op_type, node.domain) and rng.random() < 0.7:
        names = sorted(onnx.defs.get_schema(node.op_type, node.domain).attributes) or names
    value = rng.choice((0, 1, -1, 5, 0.5, "x", [1, 1], [0.5], "SAME_LOWER", 2**40))
    node.attribute.append(helper.make_attribute(rng.choice(names), value))


# -- constants -----------------------------------------------------------------------------------


def change_numbers(model: ModelProto, rng: random.Random) -> None:
    """Numbers of a constant, such as axes or a shape."""
    tensor = rng.choice(model.graph.initializer)
    array = onnx.numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    values = FLOATS if array.dtype.kind == "f" else NUMBERS
    for _ in range(rng.choice((1, 1, flat.size))):
        value: Any = rng.choice(values)
        if array.dtype.kind in "iu":
            limits = 2 ** (8 * array.dtype.itemsize)
            value = value % limits if array.dtype.kind == "u" else value
            if not -limits // 2 <= value < limits:
                value = -1 if array.dtype.kind == "i" else 1
            value = min(value, limits // 2 - 1)
        flat[rng.randrange(flat.size)] = value
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def change_data(model: ModelProto, rng: random.Random) -> None:
    """The data of a constant do not fit its shape, or lie in another field."""
    tensor = rng.choice(model.graph.initializer)
    kind = rng.choice(("cut", "dims", "field", "both", "none"))
    if kind == "cut":
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) or 1)]
    elif kind == "dims":
        tensor.dims.append(rng.choice(SIZES))
    elif kind == "none":
        tensor.ClearField("raw_data")
    else:
        array = onnx.numpy_helper.to_array(tensor)
        field = helper.tensor_dtype_to_field(tensor.data_type)
        if array.dtype.kind in "biuf" and array.dtype.itemsize > 1:
            getattr(tensor, field).extend(array.reshape(-1).tolist())
        if kind == "field":
            tensor.ClearField("raw_data")


def feed_constant(model: ModelProto, rng: random.Random) -> None:
    """A constant becomes an input, or an input with a default value."""
    tensor = rng.choice(model.graph.initializer)
    shape: list[int | str] = list(tensor.dims)
    if shape and rng.random() < 0.3:
        shape[0] = rng.choice(NAMES)
    model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    if rng.random() < 0.7:
        model.graph.initializer.remove(tensor)


def constant_node(model: ModelProto, rng: random.Random) -> None:
    """A constant becomes the output of a node, at the end of the graph."""
    tensor = rng.choice(model.graph.initializer)
    node = helper.make_node("Constant", [], [tensor.name], value=tensor)
    model.graph.initializer.remove(tensor)
    model.graph.node.insert(rng.choice((0, len(model.graph.node))), node)


def keep_outside(model: ModelProto, rng: random.Random) -> None:
    """A constant lies in a file beside the model, perhaps at a place that is no number."""
    tensor = rng.choice([t for t in model.graph.initializer if t.raw_data])
    size = len(tensor.raw_data)
    entries = {"location": DATA_FILE, "offset": "0", "length": str(size)}
    key = rng.choice((*entries, "checksum", "none", "none"))
    texts = ("x", "", "-1", "1e3", "0x10", " 4", "4 ", "+0", "0.0", "9" * 30, "NaN", "\x00", "٣")
    if rng.random() < 0.4:
        entries.pop(key, None)
    elif key == "location":
        entries[key] = rng.choice(("", ".", "/etc/passwd", "../x", "a\x00b", "x" * 5000, "none"))
    elif key != "none":
        entries[key] = rng.choice(texts)
    for name, value in entries.items():
        tensor.external_data.add(key=name, value=value)
    tensor.data_location = TensorProto.EXTERNAL
    if rng.random() < 0.9:
        tensor.ClearField("raw_data")


# -- opsets and functions ------------------------------------------------------------------------


def change_opset(model: ModelProto, rng: random.Random) -> None:
    kind = rng.choice(("version", "version", "version", "double", "remove", "domain", "ir"))
    if kind == "version":
        opset = rng.choice(model.opset_import)
        opset.version = rng.choice((*range(6, 26), 0, -1, 1, 3, 99, 2**40))
    elif kind == "double":
        old = rng.choice(model.opset_import)
        model.opset_import.append(helper.make_opsetid(old.domain, rng.choice((old.version, 13))))
    elif kind == "remove":
        del model.opset_import[rng.randrange(len(model.opset_import))]
    elif kind == "domain":
        model.opset_import.append(helper.make_opsetid(rng.choice(NAMES), rng.choice((1, 0, 7))))
    else:
        model.ir_version = rng.choice((0, 1, 3, 4, 8, 13, 99, -1))


def call_function(model: ModelProto, rng: random.Random) -> None:
    """A node becomes a call of a local function whose body is the node. Some attributes become
    attributes of the function, with or without the values as defaults.
    """
    node = rng.choice(list(model.graph.node))
    body, call = NodeProto(), NodeProto()
    body.CopyFrom(node)
    call.CopyFrom(node)
    call.domain, call.op_type = "wrapped", f"{node.op_type}_{len(model.functions)}"
    del call.attribute[:]
    required, defaults = [], []
    for attribute in body.attribute:
        if attribute.HasField("g") or rng.random() < 0.3:
            continue
        value = AttributeProto()
        value.CopyFrom(attribute)
        place = rng.choice(("call", "default", "both"))
        if place != "default":
            call.attribute.add().CopyFrom(value)
        if place == "call":
            required.append(attribute.name)
        else:
            defaults.append(value)
        kind, name = attribute.type, attribute.name
        attribute.Clear()
        attribute.name, attribute.ref_attr_name, attribute.type = name, name, kind
    inputs = [f"p{i}" if n else "" for i, n in enumerate(node.input)]
    outputs = [f"q{i}" if n else "" for i, n in enumerate(node.output)]
    body.input[:], body.output[:] = inputs, outputs
    function = helper.make_function(
        *("wrapped", call.op_type, list(filter(None, inputs)), list(filter(None, outputs))),
        *([body], [o for o in model.opset_import if o.domain != "wrapped"], required, defaults),
    )
    call.input[:], call.output[:] = list(filter(None, node.input)), list(filter(None, node.output))
    model.functions.append(function)
    if "wrapped" not in {o.domain for o in model.opset_import}:
        model.opset_import.append(helper.make_opsetid("wrapped", 1))
    node.CopyFrom(call)


def change_function(model: ModelProto, rng: random.Random) -> None:
    function = rng.choice(list(model.functions))
    field = rng.choice(("input", "output", "attribute", "attribute_proto", "opset_import", "node"))
    elements = getattr(function, field)
    action = rng.choice(("delete", "shuffle", "double"))
    if action == "delete":
        del elements[rng.randrange(len(elements))]
    elif action == "shuffle":
        _shuffle(elements, rng)
    elif field in ("input", "output", "attribute"):
        elements.append(rng.choice(list(elements)))
    else:
        elements.add().CopyFrom(rng.choice(list(elements)[:-1]))


def wrap_in_branch(model: ModelProto, rng: random.Random) -> None:
    """The last node moves into both branches of an If, whose names are those of the outer scope."""
    node = model.graph.node[-1]
    if any(a.HasField("g") for a in node.attribute) or not all(node.output):
        raise LookupError("a node with sub-graphs")
    condition = helper.make_node("Constant", [], ["condition"])
    value = onnx.numpy_helper.from_array(_TRUE)
    condition.attribute.append(helper.make_attribute("value", value))
    outputs = {o.name: o for o in (*model.graph.output, *model.graph.value_info)}
    branches = []
    for name in ("then_branch", "else_branch"):
        inner = GraphProto(name=rng.choice((name, "", "g")))
        inner.node.add().CopyFrom(node)
        for output in node.output:
            inner.output.append(outputs.get(output) or onnx.ValueInfoProto(name=output))
        branches.append(helper.make_attribute(name, inner))
    if rng.random() < 0.5:
        model.graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    branch = helper.make_node("If", ["condition"], list(node.output))
    branch.attribute.extend(branches)
    del model.graph.node[-1]
    if "condition" not in {i.name for i in model.graph.input}:
        model.graph.node.append(condition)
    model.graph.node.append(branch)


# -- the protobuf --------------------------------------------------------------------------------


def change_field(model: ModelProto, rng: random.Random) -> None:
    """Any field of any message."""
    model.CopyFrom(mutate(model, rng))


def add_texts(model: ModelProto, rng: random.Random) -> None:
    """Texts that no one has to read."""
    model.doc_string, model.producer_name = rng.choice(NAMES), rng.choice(NAMES)
    model.graph.doc_string = rng.choice(NAMES)
    for _ in range(2):
        model.metadata_props.add(key=rng.choice(NAMES), value=rng.choice(NAMES))


def return_other_value(model: ModelProto, rng: random.Random) -> None:
    """An output is an input, a constant, an inner value or an output once more."""
    model.graph.output.add().name = rng.choice(_value_names(model.graph))


CHANGES: tuple[tuple[Change, int], ...] = (
    (rename_dimension, 4),
    (rename_value, 4),
    (rename_one_use, 2),
    (rename_output_of_node, 2),
    (rename_node_or_graph, 2),
    (rename_function, 2),
    (change_size, 3),
    (change_rank, 3),
    (forget_shape, 3),
    (make_sizes_symbolic, 3),
    (share_symbol, 2),
    (change_type, 3),
    (change_types, 3),
    (add_value_info, 2),
    (omit_input, 3),
    (omit_output, 3),
    (add_operand, 2),
    (change_order, 2),
    (double_or_delete, 3),
    (change_operator, 3),
    (insert_node, 2),
    (change_attribute, 5),
    (remove_attribute, 3),
    (add_attribute, 3),
    (change_numbers, 4),
    (change_data, 3),
    (feed_constant, 3),
    (constant_node, 2),
    (keep_outside, 3),
    (change_opset, 4),
    (call_function, 4),
    (change_function, 3),
    (wrap_in_branch, 3),
    (change_field, 5),
    (add_texts, 1),
    (return_other_value, 2),
)
"""The changes, and how often each is drawn."""


def draw_change(model: ModelProto, rng: random.Random) -> str:
    """Change a model in place, and return the name of the change."""
    changes, weights = zip(*CHANGES, *WRITINGS, strict=True)
    while True:
        change = rng.choices(changes, weights)[0]
        before = model.SerializeToString(deterministic=True)
        try:
            change(model, rng)
        except Exception:  # onnx cannot read a part that an earlier change has damaged
            model.ParseFromString(before)
        else:
            return change.__name__.replace("_", " ")


# -- parts of a model ----------------------------------------------------------------------------

_TRUE = np.array(True)


def _graphs(model: ModelProto) -> list[GraphProto]:
    """The graph and its sub-graphs."""
    return [model.graph, *_inner_graphs(model.graph.node)]


def _inner_graphs(nodes: Any) -> Iterator[GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield graph
                yield from _inner_graphs(graph.node)


def _nodes(model: ModelProto) -> list[NodeProto]:
    """The nodes of all graphs and functions."""
    bodies = [f.node for f in model.functions]
    graphs = [*_graphs(model), *(g for body in bodies for g in _inner_graphs(body))]
    return [n for graph in graphs for n in graph.node] + [n for body in bodies for n in body]


def _shapes(graph: GraphProto) -> list[Any]:
    infos = (*graph.input, *graph.output, *graph.value_info)
    return [i.type.tensor_type.shape for i in infos if i.type.HasField("tensor_type")]


def _dimensions(graph: GraphProto) -> Iterator[Any]:
    return (dim for shape in _shapes(graph) for dim in shape.dim)


def _value_names(graph: GraphProto) -> list[str]:
    names = [i.name for i in (*graph.input, *graph.output, *graph.initializer)]
    names += [o for node in graph.node for o in node.output if o]
    return list(dict.fromkeys(names))


def _rename(graph: GraphProto, old: str, new: str, inputs: bool = True) -> None:
    """Rename a value in a graph and its sub-graphs. Without `inputs`, only where it is written."""
    named: list[Any] = [*graph.initializer]
    if inputs:
        named += [*graph.input, *graph.output, *graph.value_info]
    for message in named:
        if message.name == old:
            message.name = new
    for node in graph.node:
        for names in (node.input, node.output) if inputs else (node.output,):
            names[:] = [new if name == old else name for name in names]
        for inner in _inner_graphs([node]):
            if inputs:
                _rename(inner, old, new)


def _shuffle(elements: Any, rng: random.Random) -> None:
    copies = list(elements)
    if copies and not isinstance(copies[0], str):
        copies = [type(e).FromString(e.SerializeToString()) for e in copies]
    rng.shuffle(copies)
    del elements[:]
    elements.extend(copies)
