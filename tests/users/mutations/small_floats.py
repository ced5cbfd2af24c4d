"""Let `onnx.reference` round floats of fewer than 16 bits once for each operator, as webmlc does.

Its operators are written in numpy, and numpy rounds after every step: x / (1 + |x|) three times.
Two roundings of a float with two bits of mantissa may miss the nearest number by a quarter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import defs
from onnx.reference import ReferenceEvaluator

SMALL = ("float8", "float6", "float4")
"""The beginnings of the names of these types in `ml_dtypes`."""


def round_once(evaluator: ReferenceEvaluator) -> None:
    """Let the nodes of the main graph and of functions compute in float32, and round their results
    alone.
    """
    for function in evaluator.functions_.values():
        round_once(function)
    for node in evaluator.rt_nodes_:
        domain = node.onnx_node.domain
        if defs.has(node.onnx_node.op_type, domain):
            _round_once(node, defs.get_schema(node.onnx_node.op_type, domain))


def _round_once(node: Any, schema: Any) -> None:
    """Wrap the node's `run`. Nodes whose first input does not have the type of a result, such as
    Cast and QuantizeLinear, run as they are.
    """
    run = node.run
    variable = schema.inputs[0].type_str if schema.inputs else None
    if all(output.type_str != variable for output in schema.outputs):
        return

    def run_in_float32(*inputs: Any, **options: Any) -> tuple[Any, ...]:
        if not inputs or not _is_small(inputs[0]):
            return tuple(run(*inputs, **options))
        wide = [array.astype(np.float32) if _is_small(array) else array for array in inputs]
        results = run(*wide, **options)
        formals = [*schema.outputs, *schema.outputs[-1:] * len(results)]
        return tuple(
            result.astype(inputs[0].dtype) if formal.type_str == variable else result
            for result, formal in zip(results, formals, strict=False)
        )

    node.run = run_in_float32


def _is_small(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.name.startswith(SMALL)
