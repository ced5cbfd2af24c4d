"""PyTorch: a `torch.nn.Module`, an `ExportedProgram` or a `.pt2` file, through torch.onnx.

A node of the exported model is named by the module that it comes from, as in
`layers.0.self_attn/linear_1`. A symbol that `torch.export` has numbered (`s40`) is named by the
caller's `dynamic_shapes`, or by its input and axis.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto

from webmlc.core.errors import UserError
from webmlc.frontend.doors.door import Example, is_instance, quiet, require
from webmlc.frontend.doors.names import name_dimensions, name_model, name_nodes, rename_outputs
from webmlc.frontend.file_kinds import is_kind

SCOPES = "pkg.torch.onnx.name_scopes"
"""The key of a node's metadata that lists the paths of the modules around it."""
LOGGERS = ("torch.onnx", "torch.onnx._internal.exporter._registration")


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
    with quiet(*LOGGERS):
        if is_instance(source, "torch.export", "ExportedProgram"):
            program = torch.onnx.export(source, dynamo=True, verbose=False)
            dynamic_shapes = example.dynamic_shapes
        else:
            program = _export_module(source, example)
            dynamic_shapes = None  # the exporter has named the dimensions
    assert program is not None
    model: ModelProto = program.model_proto
    name_model(model, name or _root(program.exported_program) or type(source).__name__)
    name_nodes(model, _node_name)
    if outputs := _output_names(program.exported_program):
        rename_outputs(model, outputs)
    name_dimensions(model, dynamic_shapes, lambda text: bool(re.fullmatch(r"[su]\d+", text)))
    return model


def _export_module(module: Any, example: Example) -> Any:
    import torch

    if example.inputs is None:
        raise UserError(
            f"The module {type(module).__name__} does not say what its inputs are. Pass "
            "example_inputs: a tuple of tensors, or a dictionary of tensors by argument name."
        )
    is_named = isinstance(example.inputs, Mapping)
    inputs = (example.inputs,) if isinstance(example.inputs, torch.Tensor) else example.inputs
    inputs = _distinct(inputs)
    with _evaluation_mode(module):
        return torch.onnx.export(
            module,
            () if is_named else tuple(inputs),
            kwargs=dict(inputs) if is_named else None,
            dynamic_shapes=example.dynamic_shapes,
            dynamo=True,
            verbose=False,
        )


def _distinct(inputs: Any) -> Any:
    """Copy every tensor: torch.export takes two inputs for one if the example passes one tensor
    twice, and then ignores the other.
    """
    import torch
    from torch.utils import _pytree as pytree

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


def _output_names(program: Any) -> list[str]:
    """The keys of the outputs, if the model returns a dictionary or a like record of tensors."""
    from torch.utils import _pytree as pytree

    spec = program.call_spec.out_spec if program is not None else None
    if spec is None or spec.context is None:
        return []
    tree = pytree.tree_unflatten(range(spec.num_leaves), spec)
    keys = getattr(tree, "keys", None)
    if keys is None or spec.num_leaves != len(tree):
        return []
    return [str(key) for key, _ in sorted(tree.items(), key=lambda item: item[1])]


def _root(program: Any) -> str:
    """The class that a program was exported from, by the metadata of its nodes."""
    for node in program.graph.nodes:
        for path, owner in (node.meta.get("nn_module_stack") or {}).values():
            if path == "":
                return str(owner).rpartition(".")[2]
    return ""
