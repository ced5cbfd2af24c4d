"""Names that are not UTF-8 are refused, and descriptions may be any bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from webmlc.core.errors import ModelError
from webmlc.frontend.read_model import read_model

FIELDS = {
    "graph": "GraphProto", "operator": "NodeProto", "node": "NodeProto", "local": "NodeProto",
    "symbol": "Dimension", "weight": "TensorProto", "alphas": None,
    "imports": "OperatorSetIdProto", "overload": "NodeProto",
}  # fmt: skip
"""A text of the model, and the message that has it as a name."""
DESCRIPTIONS = ("a description", "producer", "key of metadata", "value of metadata")


def model() -> bytes:
    node = helper.make_node(
        "operator", ["inputs", "weight"], ["y"], name="node", domain="local", alphas=1.0
    )
    node.overload, node.doc_string = "overload", "a description"
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, ["symbol"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(1, np.float32), "weight")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("imports", 1)]
    result = helper.make_model(graph, opset_imports=opsets, producer_name="producer")
    result.metadata_props.add(key="key of metadata", value="value of metadata")
    return result.SerializeToString()


@pytest.mark.parametrize("text", FIELDS)
def test_a_name_that_is_no_text_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = model()
    assert text.encode() in data
    path.write_bytes(data.replace(text.encode(), b"\xff" * len(text)))
    message = FIELDS[text] or "AttributeProto"
    with pytest.raises(ModelError, match=rf"b'(\\xff)+' of a {message} is not UTF-8"):
        read_model(path)


@pytest.mark.parametrize("text", DESCRIPTIONS)
def test_a_description_may_be_any_bytes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    relu = onnx.ModelProto.FromString(model())
    node = relu.graph.node[0]
    node.op_type, node.domain, node.overload = "Relu", "", ""
    del node.input[1:], node.attribute[:]
    data = relu.SerializeToString()
    assert text.encode() in data
    path.write_bytes(data.replace(text.encode(), b"\xff" * len(text)))
    assert read_model(path).main.outputs == ("y",)


def test_a_sparse_tensor_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    broken = onnx.ModelProto.FromString(model())
    broken.graph.sparse_initializer.add().values.name = "sparse"
    broken.graph.node[0].op_type, broken.graph.node[0].domain = "Add", ""
    del broken.graph.node[0].attribute[:]
    broken.graph.node[0].overload = ""
    path.write_bytes(broken.SerializeToString())
    with pytest.raises(ModelError, match="sparse tensor 'sparse' has an unknown element type 0"):
        read_model(path)


@pytest.mark.parametrize("kind", ["initializer", "sparse_initializer"])
def test_a_constant_of_a_branch_without_a_name_is_refused(kind: str) -> None:
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node("Neg", ["x"], ["y"])
    branch = helper.make_graph([node], "branch", [], [value])
    getattr(branch, kind).add()
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]))
    graph = helper.make_graph([choice], "graph", inputs, [value])
    opsets = [helper.make_opsetid("", 21)]
    with pytest.raises(ModelError, match="a constant of graph 'branch' has no name"):
        read_model(helper.make_model(graph, opset_imports=opsets))
