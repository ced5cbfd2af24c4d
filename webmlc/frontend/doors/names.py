"""Carry names over to an exported model: of dimensions, values, nodes and the model itself.

If a framework has no name, its exporter invents a name (`unk__20`, `s40`, `Identity:0`). Each
function here changes the model in place. before → after:

    input image: float32[unk__20, 4]   →   input image: float32[batch, 4]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from webmlc.core.errors import InputError

BATCH = "batch"
"""The name of the first dimension of an input, in frameworks that leave it unknown."""


def name_model(model: ModelProto, name: str) -> None:
    """Name the model. The name becomes the package's."""
    model.graph.name = re.sub(r"\W+", "_", name).strip("_") or "model"


def name_dimensions(
    model: ModelProto,
    dynamic_shapes: Any,
    is_anonymous: Callable[[str], bool],
    has_batch: bool = False,
) -> None:
    """Name the dimensions of inputs that have no size, and no name except an invented name.

    A name comes from `dynamic_shapes`. Otherwise the name of a dimension is `<input>_<axis>`, or
    `batch` for the first dimension of an input if `has_batch`. Raises `InputError` if
    `dynamic_shapes` names an input that the model does not have.
    """
    requested = dimension_names(dynamic_shapes, [i.name for i in model.graph.input])
    names: dict[str, str] = {}
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            text = dim.dim_param
            if dim.HasField("dim_value") or (text and not is_anonymous(text)):
                continue
            default = BATCH if has_batch and axis == 0 else f"{info.name}_{axis}"
            name = requested.get((info.name, axis), default)
            dim.dim_param = names.setdefault(text, name) if text else name
    for info in (*model.graph.output, *model.graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), dim.dim_param)


def dimension_names(dynamic_shapes: Any, inputs: Sequence[str]) -> dict[tuple[str, int], str]:
    """The names of dimensions by input and axis.

    `dynamic_shapes` maps inputs to axes, or lists the axes of the inputs in their order. The axes
    of an input are a mapping from axis to name, or a sequence. A name is a text, or an object with
    a `__name__`.
    """
    if dynamic_shapes is None:
        return {}
    if not isinstance(dynamic_shapes, Mapping):
        dynamic_shapes = dict(zip(inputs, dynamic_shapes, strict=False))
    if unknown := [name for name in dynamic_shapes if name not in inputs]:
        raise InputError(
            f"dynamic_shapes: no input is named {unknown[0]!r}. "
            f"The model's are: {', '.join(inputs)}"
        )
    names = {}
    for name, axes in dynamic_shapes.items():
        for axis, text in _pairs(axes):
            text = getattr(text, "__name__", text)
            if isinstance(text, str):
                names[name, axis] = text
    return names


def _pairs(axes: Any) -> Iterable[tuple[int, Any]]:
    if axes is None:
        return ()
    return axes.items() if isinstance(axes, Mapping) else enumerate(axes)


def rename_values(model: ModelProto, names: Mapping[str, str]) -> None:
    """Rename values of the main graph, wherever they are used. A name in use stays as it is."""
    used = {name for graph in graphs(model.graph) for name in _values(graph)}
    new_names: dict[str, str] = {}
    for old, new in names.items():
        if old in used and new not in used:
            new_names[old] = new
            used.add(new)
    _replace_names(model, new_names)


def rename_outputs(model: ModelProto, names: Sequence[str]) -> None:
    """Name the outputs in their order, if each output has a different name and no input has any of
    the names. An output that is an input, a constant or an earlier output becomes a copy of it.
    """
    graph = model.graph
    sources = {named.name for named in (*graph.input, *graph.initializer)}
    if len(names) != len(graph.output) or len(set(names)) < len(names) or sources & set(names):
        return
    used = {name for inner in graphs(graph) for name in _values(inner)}
    new_names: dict[str, str] = {}
    for output, name in zip(graph.output, names, strict=True):
        if output.name in sources or output.name in new_names:
            copy = _unused(output.name, used)
            graph.node.append(helper.make_node("Identity", [output.name], [copy], name=copy))
            output.name = copy
        new_names[output.name] = name
    for name in sorted(used & set(names) - set(new_names)):
        new_names[name] = _unused(name, used)
    _replace_names(model, new_names)


def _unused(name: str, used: set[str]) -> str:
    """A name that begins with `name` and that no value has. The name is added to `used`."""
    new = next(f"{name}.{number}" for number in count(1) if f"{name}.{number}" not in used)
    used.add(new)
    return new


def _replace_names(model: ModelProto, names: Mapping[str, str]) -> None:
    """Replace names of values by other names, all at once."""
    for graph in graphs(model.graph):
        infos: list[ValueInfoProto] = [*graph.input, *graph.output, *graph.value_info]
        for named in (*infos, *graph.initializer):
            named.name = names.get(named.name, named.name)
        for node in graph.node:
            node.input[:] = [names.get(v, v) for v in node.input]
            node.output[:] = [names.get(v, v) for v in node.output]


class Place(int):
    """A leaf of nested records: its place in the flat list of leaves."""


def leaf_names(tree: Any) -> dict[int, str]:
    """The name of each `Place` in nested dictionaries, sequences and records: the path to it, as in
    `hidden_states.0`. A key or value of a transformers cache has the same name as in the ONNX
    models of transformers: `past_key_values.layers.1.keys` becomes `past_key_values.1.key`.
    """
    return {place: _short(".".join(path)) for place, path in _leaves(tree, ())}


def output_name(path: str) -> str:
    """The name of an output, from the path to it. A path that is only a place in a sequence gets
    the prefix `output`, and the only result of a function is named `output`.
    """
    return f"output_{path}" if path.isdecimal() else path or "output"


def _leaves(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[Place, tuple[str, ...]]]:
    match tree:
        case Place():
            yield tree, path
            return
        case Mapping():
            items = [(str(key), value) for key, value in tree.items()]
        case tuple() | list():
            keys = getattr(tree, "_fields", range(len(tree)))
            items = [(str(key), value) for key, value in zip(keys, tree, strict=True)]
        case _:
            items = list(getattr(tree, "__dict__", {}).items())
    for key, value in items:
        yield from _leaves(value, (*path, key))


def _short(name: str) -> str:
    """Shorten the path of a key or value of a cache; other paths stay as they are."""
    parts = re.fullmatch(
        r"(.*?)(\.self_attention_cache|\.cross_attention_cache|)\.layers\.(\d+)\.(key|value)s", name
    )
    if parts is None:
        return name
    head, cache, layer, part = parts.groups()
    role = {"": "", ".self_attention_cache": "decoder.", ".cross_attention_cache": "encoder."}
    return f"{head}.{layer}.{role[cache]}{part}"


def distinct(outputs: Sequence[str], inputs: Collection[str]) -> list[str]:
    """The names of outputs, with new names for outputs that share a name with an input. The output
    `past_key_values.0.key` becomes `present.0.key`, and `image` becomes `image_output`.
    """

    def other(name: str) -> str:
        _, _, place = name.partition(".")
        return f"present.{place}" if place else f"{name}_output"

    return [other(name) if name in inputs else name for name in outputs]


def without_suffix(model: ModelProto) -> None:
    """Drop TensorFlow's `:0` from the names of inputs and outputs."""
    ports = [p.name for p in (*model.graph.input, *model.graph.output)]
    rename_values(model, {name: name.removesuffix(":0") for name in ports if name.endswith(":0")})


def name_nodes(model: ModelProto, name: Callable[[NodeProto], str]) -> None:
    """Name every node of the model and of its sub-graphs. Equal names get a number."""
    counts: dict[str, int] = {}
    for graph in graphs(model.graph):
        for node in graph.node:
            text = name(node)
            counts[text] = counts.get(text, 0) + 1
            node.name = text if counts[text] == 1 else f"{text}_{counts[text]}"


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, and the sub-graphs of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.output:
                    yield from graphs(inner)


def _values(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.output
    for named in (*graph.input, *graph.initializer):
        yield named.name
