"""PyTorch: a `torch.nn.Module`, an `ExportedProgram` or a `.pt2` file, through torch.onnx.

A node of the exported model is named by the module that it comes from, as in
`layers.0.self_attn/linear_1`. An input or output is named by the path to it in what the module
takes or returns, as in `hidden_states.0`. A symbol that `torch.export` has numbered (`s40`) is
named by the caller's `dynamic_shapes`, or by its input and axis.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from webmlc.core.errors import InputError, UserError
from webmlc.frontend.doors.door import Example, is_instance, require
from webmlc.frontend.doors.names import (
    Place,
    distinct,
    leaf_names,
    name_dimensions,
    name_model,
    name_nodes,
    output_name,
    rename_outputs,
    rename_values,
)
from webmlc.frontend.doors.pytorch_errors import refusals
from webmlc.frontend.doors.pytorch_operators import replaced_functions, translations
from webmlc.frontend.doors.transformers import traceable
from webmlc.frontend.file_kinds import is_kind

SCOPES = "pkg.torch.onnx.name_scopes"
"""The key of a node's metadata that lists the paths of the modules around it."""


def is_torch(source: object) -> bool:
    """True for what this door takes."""
    return (
        is_kind(source, ".pt2")
        or is_instance(source, "torch.nn", "Module")
        or is_instance(source, "torch.export", "ExportedProgram")
    )


def export_torch(source: Any, example: Example) -> ModelProto:
    """Export a model of PyTorch. A module is exported in evaluation mode."""
    require("PyTorch", "torch", "torch", "onnxscript")
    import torch

    name = ""
    if isinstance(source, str | Path):
        source, name = torch.export.load(str(source)), Path(source).stem
    with refusals():
        if is_instance(source, "torch.export", "ExportedProgram"):
            program = _to_onnx(source)
            dynamic_shapes = example.dynamic_shapes
        else:
            program = _export_module(source, example)
            dynamic_shapes = None  # the exporter has named the dimensions
    model: ModelProto = program.model_proto
    name_model(model, name or _root(program.exported_program) or type(source).__name__)
    name_nodes(model, _node_name)
    _name_ports(model, program.exported_program)
    name_dimensions(model, dynamic_shapes, lambda text: bool(re.fullmatch(r"[su]\d+", text)))
    return model


def _export_module(module: Any, example: Example) -> Any:
    import torch

    if example.inputs is None:
        raise UserError(
            f"The module {type(module).__name__} does not say what its inputs are. Pass "
            "example_inputs: a tuple of tensors, or a dictionary of tensors by argument name."
        )
    inputs, dynamic_shapes = _distinct_tensors(example.inputs), example.dynamic_shapes
    _check_arguments(module, inputs, dynamic_shapes)
    with ExitStack() as stack:
        stack.enter_context(_evaluation_mode(module))
        stack.enter_context(traceable(module))
        if isinstance(inputs, torch.Tensor):
            return _to_onnx(module, (inputs,), dynamic_shapes=dynamic_shapes)
        if not isinstance(inputs, Mapping):
            return _to_onnx(module, tuple(inputs), dynamic_shapes=dynamic_shapes)
        stack.enter_context(_arguments_by_name(module, inputs))
        if isinstance(dynamic_shapes, Mapping):
            dynamic_shapes = {**dict.fromkeys(inputs), **dynamic_shapes}
        return _to_onnx(module, (), kwargs=dict(inputs), dynamic_shapes=dynamic_shapes)


def _check_arguments(module: Any, inputs: Any, dynamic_shapes: Any) -> None:
    """Raise `InputError` if `forward` does not take these inputs, or the shapes are of others."""
    import torch

    is_named = isinstance(inputs, Mapping)
    are_named = is_named and isinstance(dynamic_shapes, Mapping)
    if unknown := [name for name in dynamic_shapes if name not in inputs] if are_named else []:
        raise InputError(
            f"dynamic_shapes: no input is named {unknown[0]!r}. The example's are: "
            f"{', '.join(inputs)}"
        )
    args = () if is_named else (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    try:
        inspect.signature(module.forward).bind(*args, **(inputs if is_named else {}))
    except TypeError as error:
        name = type(module).__name__
        raise InputError(f"example_inputs do not fit {name}.forward: {error}.") from None


def _to_onnx(source: Any, args: tuple[Any, ...] = (), **options: Any) -> Any:
    """The result of torch.onnx for a module or an exported program.

    The kernels that a CPU has for attention leave its result in another order in memory than the
    operators that torch.onnx writes for it. A view that follows then fails: `sdpa_kernel` traces
    with the operators.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH), replaced_functions():
        return torch.onnx.export(
            source,
            args,
            dynamo=True,
            verbose=False,
            custom_translation_table=translations(),
            **options,
        )


@contextmanager
def _arguments_by_name(module: Any, names: Mapping[str, Any]) -> Iterator[None]:
    """Let `forward` take these arguments only. torch.export puts an argument that `forward` takes
    as one of its `**keywords` into a dictionary, which no longer fits the `dynamic_shapes`.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        yield
        return
    forward = module.forward

    def forward_by_name(**arguments: Any) -> Any:
        return forward(**arguments)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    flat = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    forward_by_name.__signature__ = flat  # type: ignore[attr-defined]
    replaced = vars(module).get("forward")
    module.forward = forward_by_name
    try:
        yield
    finally:
        del module.forward
        if replaced is not None:
            module.forward = replaced


def _distinct_tensors(inputs: Any) -> Any:
    """Copy every tensor: torch.export takes two inputs for one if the example passes one tensor
    twice, and then ignores the other. An array of numpy becomes a tensor.
    """
    import torch
    from torch.utils import _pytree as pytree

    inputs = pytree.tree_map_only(np.ndarray, torch.from_numpy, inputs)
    return pytree.tree_map_only(torch.Tensor, torch.clone, inputs)


@contextmanager
def _evaluation_mode(module: Any) -> Iterator[None]:
    """Put a module in evaluation mode, and then back in the mode that each part was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _node_name(node: NodeProto) -> str:
    """The path of the node's module, and the name that the exporter gave it.

    A path that begins with an underscore is one that torch.export invents.
    """
    label = node.name.removeprefix("node_") or node.op_type
    scopes = next((p.value for p in node.metadata_props if p.key == SCOPES), "[]")
    modules = [path for path in ast.literal_eval(scopes)[:-1] if not path.startswith("_")]
    return f"{modules[-1]}/{label}" if modules and modules[-1] else label


def _name_ports(model: ModelProto, program: Any) -> None:
    """Name inputs and outputs by the paths to them in what the module takes and returns. An output
    that is all that the module returns is named `output`.
    """
    if program is None:
        return
    graph, spec = program.graph_signature, program.call_spec
    inputs = [
        # The first part of the path says whether an argument is positional. Then it has no name.
        path.removeprefix("1.") if path.startswith("1.") else value.arg.name
        for path, value in _tensors(spec.in_spec, graph.input_specs)
    ]
    outputs = [output_name(path) for path, _ in _tensors(spec.out_spec, graph.output_specs)]
    exported = [port.name for port in model.graph.input]
    is_known = len(inputs) == len(exported)
    rename_outputs(model, distinct(outputs, inputs if is_known else exported))
    if is_known:
        rename_values(model, dict(zip(exported, inputs, strict=True)))


def _tensors(spec: Any, values: Sequence[Any]) -> list[tuple[str, Any]]:
    """The tensors that a program takes or returns, in their order, with the paths to them; none if
    their records cannot be built.
    """
    from torch.export.graph_signature import ConstantArgument
    from torch.utils import _pytree as pytree

    leaves = [value for value in values if value.kind.name in ("USER_INPUT", "USER_OUTPUT")]
    try:
        names = leaf_names(pytree.tree_unflatten(map(Place, range(spec.num_leaves)), spec))
    except Exception:  # a record of a library that checks what it holds
        return []
    return [
        (names.get(place, ""), leaf)
        for place, leaf in enumerate(leaves)
        if not isinstance(leaf.arg, ConstantArgument)
    ]


def _root(program: Any) -> str:
    """The class that a program was exported from, by the metadata of its nodes."""
    for node in program.graph.nodes:
        for path, owner in (node.meta.get("nn_module_stack") or {}).values():
            if path == "":
                return str(owner).rpartition(".")[2]
    return ""
