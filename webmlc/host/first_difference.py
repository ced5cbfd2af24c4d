"""Find the first node of a model whose result differs from the reference's, by bisection.

In: a model on which `host.check` found a difference, and the inputs. Out: the node, as a text. Each
step of the search builds the model up to some value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.utils
from numpy.typing import NDArray
from onnx import helper

from webmlc.build_options import BuildOptions
from webmlc.core.errors import WebmlcError
from webmlc.core.expr import as_int
from webmlc.frontend.read_model import read_model
from webmlc.frontend.sort_nodes import sort_nodes
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.host.custom_reference import custom_classes
from webmlc.host.load import load
from webmlc.host.output_error import compare, quantisation_steps
from webmlc.host.reference import run_reference
from webmlc.host.try_model import Build

Array = NDArray[Any]


def first_difference(
    path: Path,
    build: Build,
    inputs: Mapping[str, Array],
    tolerance: float,
    options: BuildOptions,
) -> str | None:
    """Describe the first node, in order, whose result differs if the model ends there."""
    model = onnx.load(path)
    in_order = _with_types(sort_nodes(model), path, options)
    nodes = [n for n in in_order.graph.node if n.op_type != "Constant" and n.output and n.output[0]]
    if not nodes:
        return None
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        if in_order is not model:  # onnx extracts parts only of models that its checker accepts
            path = Path(scratch) / "sorted.onnx"
            onnx.save(in_order, path)
        low, high = 0, len(nodes) - 1
        while low < high:
            middle = (low + high) // 2
            value = nodes[middle].output[0]
            if _differs_at(path, build, inputs, value, tolerance, options):
                high = middle
            else:
                low = middle + 1
    node = nodes[low]
    return f"{node.op_type} {node.name or node.output[0]!r} (value {node.output[0]!r})"


def _with_types(model: onnx.ModelProto, path: Path, options: BuildOptions) -> onnx.ModelProto:
    """The model with the type of each value, if it has operators that people define: onnx extracts
    parts only at values of known types, and infers no types behind such operators.
    """
    if not custom_classes(model):
        return model
    module = read_model(path, options.constants, None, options.dims)
    types = infer_shapes(normalise(module)).main.types
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    graph = typed.graph
    infos = {
        name: helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(types[name].dtype.numpy),
            [as_int(size) for size in types[name].shape],
        )
        for name in (output for node in graph.node for output in node.output if output in types)
    }
    for port in graph.output:
        if port.name in infos:
            port.CopyFrom(infos.pop(port.name))
    del graph.value_info[:]
    graph.value_info.extend(infos.values())
    return typed


def _differs_at(
    path: Path,
    build: Build,
    inputs: Mapping[str, Array],
    value: str,
    tolerance: float,
    options: BuildOptions,
) -> bool:
    """True if the model cut at `value` fails, or gives another result than the reference."""
    assert options.target != "both"
    with tempfile.TemporaryDirectory(prefix="webmlc-check-") as scratch:
        cut = Path(scratch) / "cut.onnx"
        try:
            onnx.utils.extract_model(str(path), str(cut), list(inputs), [value])
            expected, _ = run_reference(cut, inputs)
        except Exception:  # the part is not a valid model by itself
            return False
        try:
            build(cut, Path(scratch) / "package", options)
            model = load(Path(scratch) / "package", options.target)
            actual = model.run({p.name: inputs[p.name] for p in model.all_inputs})
            model.dispose()
        except WebmlcError:
            return True
        steps = quantisation_steps(onnx.load(cut, load_external_data=False))
    return not all(
        compare(n, expected[n], a, tolerance, steps.get(n)).passed for n, a in actual.items()
    )
