"""JAX: a function, or a module of Flax or Equinox, through jax2onnx.

Inputs are named by the function's arguments. If the function returns a dictionary, its keys name
the outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from webmlc.core.errors import UserError
from webmlc.frontend.doors.door import Example, as_sequence, require
from webmlc.frontend.doors.names import (
    Place,
    dimension_names,
    distinct,
    leaf_names,
    name_model,
    output_name,
    rename_outputs,
)

OPSET = 21
"""The opset to export. Chosen by hand: onnxruntime and webmlc have run this opset for long."""


def is_jax(source: object) -> bool:
    """True for a function. The other doors were asked before."""
    return callable(source) and not isinstance(source, type)


def export_jax(source: Any, example: Example) -> ModelProto:
    """Export a function. `example.inputs` are arrays, or shapes such as `("batch", 4)`."""
    require("JAX", "jax", "jax", "jax2onnx")
    import jax2onnx

    name = getattr(source, "__name__", type(source).__name__)
    if example.inputs is None:
        raise UserError(
            f"The function {name} does not say what its inputs are. Pass example_inputs: a list of "
            'arrays, or of shapes such as ("batch", 4).'
        )
    names = _argument_names(source)
    inputs = _in_order(example.inputs, names)
    names = names[: len(inputs)]
    if len(names) < len(inputs):
        names = [f"input_{i}" for i in range(len(inputs))]
    specs = _specs(inputs, dimension_names(example.dynamic_shapes, names), names)
    model = jax2onnx.to_onnx(source, specs, opset=OPSET, input_names=names)
    outputs = _output_names(source, specs)
    assert isinstance(model, ModelProto)
    name_model(model, name)
    rename_outputs(model, distinct(outputs, names))
    return model


def _argument_names(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional]


def _in_order(inputs: Any, names: list[str]) -> list[Any]:
    """The inputs in the order of the function's arguments."""
    if not isinstance(inputs, Mapping):
        is_shape = isinstance(inputs, tuple) and all(isinstance(d, int | str) for d in inputs)
        return [inputs] if is_shape else list(as_sequence(inputs))
    if unknown := [name for name in inputs if name not in names]:
        raise UserError(
            f"example_inputs: the function has no argument {unknown[0]!r}. "
            f"Its arguments are: {', '.join(names)}"
        )
    return [inputs[name] for name in names if name in inputs]


def _specs(
    inputs: list[Any], dimensions: Mapping[tuple[str, int], str], names: list[str]
) -> list[Any]:
    """The shape and type of each input, with names for the dimensions that are symbolic."""
    import jax
    import jax.numpy

    specs = []
    for name, value in zip(names, inputs, strict=True):
        is_shape = isinstance(value, tuple | list)
        shape = tuple(value if is_shape else value.shape)
        dtype = jax.numpy.float32 if is_shape else value.dtype
        shape = tuple(dimensions.get((name, axis), size) for axis, size in enumerate(shape))
        specs.append(jax.ShapeDtypeStruct(shape, dtype))
    return specs


def _output_names(function: Any, specs: list[Any]) -> list[str]:
    """The names of a function's results, in the order of JAX's trees."""
    import jax

    scope = jax.export.SymbolicScope()
    symbolic = [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(f"({', '.join(map(str, s.shape))},)", scope=scope), s.dtype
        )
        for s in specs
    ]
    outputs = jax.eval_shape(function, *symbolic)
    places = [Place(place) for place in range(len(jax.tree.leaves(outputs)))]
    names = leaf_names(jax.tree.unflatten(jax.tree.structure(outputs), places))
    return [output_name(names.get(place, f"{place}")) for place in places]
