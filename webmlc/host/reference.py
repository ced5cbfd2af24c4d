"""Compute the expected outputs of a model, with onnxruntime or `onnx.reference`.

Operators that people define compute what their definitions mean (`custom_reference`).

In: an ONNX file, and arrays by input name. Out: arrays by output name, and the reference's name.

    outputs, reference = run_reference(Path("model.onnx"), {"x": x})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from webmlc.core.errors import InputError
from webmlc.graph.table import has_custom_rows
from webmlc.host.custom_reference import custom_classes

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun

Array = NDArray[Any]
ONNXRUNTIME, ONNX_REFERENCE = "onnxruntime", "onnx.reference"


def run_reference(
    path: Path, inputs: Mapping[str, Array], optimised: bool = True
) -> tuple[dict[str, Array], str]:
    """Compute the expected outputs, and name the reference. Raises `InputError` if none can.

    onnxruntime has no operators of people's own, so `onnx.reference` computes models with such
    operators, by their definitions.
    """
    if custom := _custom_classes(path):
        try:
            outputs = _evaluated(path, inputs, custom)
        except Exception as error:
            raise InputError(
                f"onnx.reference cannot run {path} on these inputs; try other sizes (--dim) or "
                f"inputs of your own (--inputs)\n  {error}"
            ) from error
        return outputs, f"{ONNX_REFERENCE} and the definition of {', '.join(custom)}"
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]
        results = session.run(None, dict(inputs))
        return _tensors(names, results), ONNXRUNTIME
    except Exception as error:  # onnxruntime raises its own classes, one per status
        try:
            return run_onnx_reference(path, inputs), ONNX_REFERENCE
        except Exception as second:
            raise InputError(
                f"no reference can run {path} on these inputs; try other sizes (--dim) or "
                f"inputs of your own (--inputs)\n  onnxruntime: {error}\n  onnx.reference: {second}"
            ) from second


def run_onnx_reference(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Compute the expected outputs with `onnx.reference`; raises any error of its operators."""
    return _evaluated(path, inputs, _custom_classes(path))


def _custom_classes(path: Path) -> Mapping[str, type[OpRun]]:
    """The classes of the operators in a model that people define. Where nobody defines operators,
    no model is parsed for them.
    """
    if not has_custom_rows():
        return {}
    return custom_classes(onnx.load(path, load_external_data=False))


def _evaluated(
    path: Path, inputs: Mapping[str, Array], custom: Mapping[str, type[OpRun]]
) -> dict[str, Array]:
    """The outputs of a model by `onnx.reference` with these classes of operators."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path), new_ops=list(custom.values()))
    return _tensors(evaluator.output_names, list(evaluator.run(None, dict(inputs))))


def _tensors(names: Sequence[str], results: Any) -> dict[str, Array]:
    """Return the results by output name.

    An element of a sequence is named after the sequence and its position. The dictionaries of
    ZipMap, one dictionary per row, become a table with a column per key.
    """
    tensors: dict[str, Array] = {}
    for name, result in zip(names, results, strict=True):
        if isinstance(result, list) and result and isinstance(result[0], dict):
            tensors[name] = np.array([list(row.values()) for row in result], np.float32)
        elif isinstance(result, list):
            tensors |= {f"{name}/{i}": element for i, element in enumerate(result)}
        else:
            tensors[name] = result
    return tensors
