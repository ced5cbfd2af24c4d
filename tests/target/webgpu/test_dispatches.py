"""How many dispatches the light models of the onnx package take on a GPU: none of them copies."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from webmlc.compile import kernel_module, shared_graph
from webmlc.core.stages import ignore
from webmlc.target.webgpu.target import WEBGPU

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Real architectures, whose weights are computed by nodes."""
DISPATCHES = {"resnet50": 58, "squeezenet": 32}


def _with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with initialisers in place of the nodes that compute its weights."""
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type != "ConstantOfShape"]
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            values = np.resize(np.linspace(0.1, 1, 97, dtype=np.float32), shapes[node.input[0]])
            model.graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.ir_version = 8  # initialisers are not inputs
    return model


@pytest.mark.parametrize("model", DISPATCHES)
def test_no_dispatch_only_pads_or_joins(model: str) -> None:
    source = _with_weights(onnx.load(LIGHT / f"light_{model}.onnx"))
    module = kernel_module(shared_graph(source, None, ignore), WEBGPU, ignore)
    constants = set(module.main.constants)
    kernels: Counter[str] = Counter()
    for node in module.main.nodes:
        if node.inputs and constants.issuperset(node.inputs):
            constants.update(node.outputs)
        elif node.op == "call_kernel":
            kernels[re.sub(r"_\d+$", "", node.attributes["kernel"])] += 1
    assert kernels.total() == DISPATCHES[model]
    assert kernels["pad"] == kernels["concat"] == 0
