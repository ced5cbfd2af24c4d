"""Operators of people's own in `onnx.reference`, which compute what their definitions mean.

In: a model. Out: a class for each operator of the model that people define, as `onnx.reference`
takes it. An expression is evaluated by numpy, and a kernel runs in the interpreter of loops. Both
say what a package must compute, and share no code with the targets.

    classes = custom_classes(onnx.load("model.onnx"))
    ReferenceEvaluator("model.onnx", new_ops=list(classes.values()))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from webmlc.core.dtypes import DType
from webmlc.core.expr import const
from webmlc.core.sizes import evaluate_size
from webmlc.frontend.protos import all_nodes, plain_domain
from webmlc.graph.infer.evaluate import evaluate_node
from webmlc.graph.ir import Attribute, Node, TensorType
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.table import find_row
from webmlc.loops.interp import run

Array = NDArray[Any]


def custom_classes(model: onnx.ModelProto) -> dict[str, type[OpRun]]:
    """The class of each operator of a model that people define, by its full name."""
    nodes = (*model.graph.node, *(node for f in model.functions for node in f.node))
    rows = (find_row(plain_domain(node.domain), node.op_type) for node in all_nodes(nodes))
    custom = dict.fromkeys(row for row in rows if row is not None and row.custom is not None)
    return {f"{row.domain}.{row.name}": _class(row) for row in custom}


def _class(row: Operator) -> type[OpRun]:
    def compute(self: OpRun, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
        return _results(row, inputs, attributes, len(self.onnx_node.output))

    # Without a schema: `onnx.reference` would take ONNX's schema of an operator of the same name.
    members = {"op_domain": row.domain, "op_schema": None, "_run": compute}
    return type(row.name, (OpRun,), members)


def _results(
    row: Operator, inputs: tuple[Array | None, ...], attributes: Mapping[str, Any], count: int
) -> tuple[Array, ...]:
    """The results of a node, by the definition of its operator."""
    assert row.custom is not None, row.name
    names = tuple("" if array is None else f"x{i}" for i, array in enumerate(inputs))
    outputs = tuple(f"y{i}" for i in range(count))
    node = Node(row.name, names, outputs, _attributes(attributes), row.domain)
    context = Context(node, tuple(None if a is None else _type(a) for a in inputs))
    if row.compute is not None:
        return tuple(evaluate_node(row, context, list(inputs), {}))
    function = row.custom.program(context)
    present = [array for array in inputs if array is not None]
    arrays = dict(zip((b.name for b in function.input_params()), present, strict=True))
    results = {
        buffer.name: np.empty(tuple(evaluate_size(d, {}) for d in buffer.shape), buffer.dtype.numpy)
        for buffer in function.output_params()
    }
    run(function, {**arrays, **results}, {})
    return tuple(results.values())[:count]


def _type(array: Array) -> TensorType:
    return TensorType(DType.of(array.dtype), tuple(const(size) for size in array.shape))


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    """Attributes as the frontend reads them: lists are tuples."""
    return {n: tuple(v) if isinstance(v, list) else v for n, v in attributes.items()}
