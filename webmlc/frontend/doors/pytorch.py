"""PyTorch: a `torch.nn.Module`, an `ExportedProgram` or a `.pt2` file, through torch.onnx.

Some models of Hugging Face's transformers contain parts that torch.export refuses: caches of keys
and values, loops over data, state that an earlier call left. The exporter of transformers replaces
these parts while a model is traced (`traceable`).

The name of a node in the exported model begins with its module, as in
`layers.0.self_attn/linear_1`. The name of an input or output is its path in the module's arguments
or results, as in `hidden_states.0`. A symbol that `torch.export` has numbered (`s40`) is named by
the caller's `dynamic_shapes`, or by its input and axis.
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
from webmlc.frontend.file_kinds import is_kind

SCOPES = "pkg.torch.onnx.name_scopes"
"""The key of a node's metadata that lists the paths of the modules around it."""


def is_torch(source: object) -> bool:
    """True for a PyTorch module, an exported program, and the path of a `.pt2` file."""
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
    """Raise `InputError` if `forward` does not take these inputs, or if the shapes do not fit."""
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

    The attention kernels of a CPU leave their result in another memory order than the operators
    that torch.onnx writes for attention. A later view would then fail, so `sdpa_kernel` makes the
    trace use the operators.
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
    """Let `forward` take these arguments only. If `forward` has `**keywords`, torch.export would
    put such arguments into a dictionary, which does not fit the `dynamic_shapes`.
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
    """Copy every tensor, and convert numpy arrays to tensors. If an example passed one tensor
    twice, torch.export would merge the two inputs into one, and ignore the other.
    """
    import torch
    from torch.utils import _pytree as pytree

    inputs = pytree.tree_map_only(np.ndarray, torch.from_numpy, inputs)
    return pytree.tree_map_only(torch.Tensor, torch.clone, inputs)


@contextmanager
def _evaluation_mode(module: Any) -> Iterator[None]:
    """Put a module in evaluation mode, and then restore the mode of each of its parts."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _node_name(node: NodeProto) -> str:
    """The path of the node's module, and the name that the exporter gave the node.

    torch.export invents the paths that begin with an underscore; they are left out.
    """
    label = node.name.removeprefix("node_") or node.op_type
    scopes = next((p.value for p in node.metadata_props if p.key == SCOPES), "[]")
    modules = [path for path in ast.literal_eval(scopes)[:-1] if not path.startswith("_")]
    return f"{modules[-1]}/{label}" if modules and modules[-1] else label


def _name_ports(model: ModelProto, program: Any) -> None:
    """Name inputs and outputs by their paths in the arguments and results of the module. The only
    result of a module is named `output`.
    """
    if program is None:
        return
    graph, spec = program.graph_signature, program.call_spec
    inputs = [
        # The first part of the path is 1 for an argument with a name, and 0 for a positional one.
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
    """The tensors that a program takes or returns, in their order, with the paths to them. The list
    is empty if the records that hold the tensors cannot be built.
    """
    from torch.export.graph_signature import ConstantArgument
    from torch.utils import _pytree as pytree

    leaves = [value for value in values if value.kind.name in ("USER_INPUT", "USER_OUTPUT")]
    try:
        names = leaf_names(pytree.tree_unflatten(map(Place, range(spec.num_leaves)), spec))
    except Exception:  # a record of a library may check its contents, and refuse the places
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


@contextmanager
def traceable(module: Any) -> Iterator[None]:
    """Prepare a module that is or contains a model of transformers for torch.export. Other modules
    stay as they are, and so do models if the version of transformers has no exporter.
    """
    models = [m for m in module.modules() if is_instance(m, "transformers", "PreTrainedModel")]
    if not models:
        yield
        return
    try:
        from transformers.exporters.exporter_dynamo import (
            register_cache_pytrees_for_model,
            reset_model_state,
        )
        from transformers.exporters.utils import apply_patches
    except ImportError:
        yield
        return
    with ExitStack() as stack:
        for model in models:
            register_cache_pytrees_for_model(model)
            stack.enter_context(_batched_experts(model))
        stack.enter_context(apply_patches("dynamo"))
        stack.enter_context(reset_model_state(models[0]))
        yield


@contextmanager
def _batched_experts(model: Any) -> Iterator[None]:
    """Let a model multiply each token by the weights of its experts. Other implementations group
    the tokens by operators that torch.onnx does not know, or loop over experts that data choose.
    """
    if not hasattr(model, "get_experts_implementation") or not _has_experts(model):
        yield
        return
    implementation = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(implementation)


def _has_experts(model: Any) -> bool:
    """True for a model whose experts have implementations to choose from."""
    can_choose = getattr(model, "_can_set_experts_implementation", None)
    return bool(can_choose and can_choose())
