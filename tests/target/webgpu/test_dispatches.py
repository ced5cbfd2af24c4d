"""How many dispatches the light models of the onnx package take on a GPU: none of them copies."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from webmlc.core.machine import ADAPTERS, AdapterKind
from webmlc.core.stages import ignore
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.target.targets import target_of

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Real architectures, whose weights are computed by nodes."""
DISPATCHES = {
    ("resnet50", "gpu"): 58,
    ("squeezenet", "gpu"): 32,
    ("squeezenet", "software"): 48,  # eight convolutions have two transforms
}
"""The dispatches of models in packages for one kind of adapter."""


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


@pytest.mark.parametrize(("model", "adapter"), DISPATCHES)
def test_no_dispatch_only_pads_or_joins(model: str, adapter: AdapterKind) -> None:
    source = _with_weights(onnx.load(LIGHT / f"light_{model}.onnx"))
    target = target_of(ADAPTERS[adapter])
    module = kernel_module(shared_graph(source, watch=ignore), target, ignore)
    constants = set(module.main.constants)
    kernels: Counter[str] = Counter()
    for node in module.main.nodes:
        if node.inputs and constants.issuperset(node.inputs):
            constants.update(node.outputs)
        elif node.op == "call_kernel":
            kernels[re.sub(r"_\d+$", "", node.attributes["kernel"])] += 1
    assert kernels.total() == DISPATCHES[model, adapter]
    assert kernels["pad"] == kernels["concat"] == 0
