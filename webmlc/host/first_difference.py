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

from webmlc.build_options import BuildOptions
from webmlc.core.errors import WebmlcError
from webmlc.frontend.sort_nodes import sort_nodes
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
    in_order = sort_nodes(model)
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
