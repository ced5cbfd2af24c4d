"""Solutions of the exercises of the course's lesson 5, compared with PyTorch."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import webmlc
from webmlc import te


def linear(name, x, weight, bias):
    k = te.reduce_axis((0, weight.shape[1]), "k")
    shape = (x.shape[0], weight.shape[0])
    product = te.compute(
        shape, lambda i, j: te.sum(x[i, k] * weight[j, k], axis=k), name=f"{name}_product"
    )
    return te.compute(shape, lambda i, j: product[i, j] + bias[j], name=name)


def sigmoid(name, x):
    return te.compute(x.shape, lambda i, j: te.sigmoid(x[i, j]), name=name)


def multiply(name, a, b):
    return te.compute(a.shape, lambda i, j: a[i, j] * b[i, j], name=name)


TABLE = {
    "aten.linear.default": linear,
    "aten.sigmoid.default": sigmoid,
    "aten.mul.Tensor": multiply,
}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.last = nn.Linear(12, 4)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden * torch.sigmoid(hidden))


def test_exercise_1() -> None:
    model = Gated().eval()
    x = torch.randn(5, 8)
    exported = torch.export.export(model, (x,))
    names = exported.graph_signature.inputs_to_parameters
    state = {name: value.detach().numpy() for name, value in model.named_parameters()}
    tensors, arrays, results = {}, [], []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            shape = tuple(node.meta["val"].shape)
            tensors[node] = te.placeholder(shape, "float32", name=node.name)
            arrays.append(state[names[node.name]] if node.name in names else x.numpy())
        elif node.op == "call_function":
            operands = [tensors[argument] for argument in node.args]
            tensors[node] = TABLE[str(node.target)](node.name, *operands)
        else:
            results = [tensors[result] for result in node.args[0]]
    inputs = list(tensors.values())[: len(arrays)]
    kernel = webmlc.compile(te.create_prim_func([*inputs, *results], "gated"))

    y = np.empty((5, 4), np.float32)
    kernel(*arrays, y)
    np.testing.assert_allclose(y, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_exercise_2(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)).eval()
    rows = {"input": {0: torch.export.Dim("rows")}}
    exported = torch.export.export(model, (torch.randn(2, 16),), dynamic_shapes=rows)
    operators = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    expected = ["aten.linear.default", "aten.gelu.default", "aten.layer_norm.default"]
    assert [
        name for name in operators if name.startswith("aten.") and "sym" not in name
    ] == expected

    webmlc.build(
        model,
        tmp_path / "package",
        target="wasm",
        example_inputs=(torch.randn(2, 16),),
        dynamic_shapes={"input": {0: "rows"}},
    )
    loaded = webmlc.load(tmp_path / "package", device="wasm")
    for count in (1, 7):
        x = torch.randn(count, 16)
        (y,) = loaded.run({"input": x.numpy()}).values()
        np.testing.assert_allclose(y, model(x).detach().numpy(), rtol=1e-3, atol=1e-4)


class Choice(nn.Module):
    """`if` asks for a number while the model is traced, and there are no numbers yet. `torch.where`
    computes both, and chooses when the model runs.
    """

    def forward(self, x):
        return torch.where(x.sum() > 0, x * 2, -x)


def test_exercise_3(tmp_path: Path) -> None:
    model, x = Choice().eval(), torch.randn(3, 4).abs()
    webmlc.build(model, tmp_path / "package", target="wasm", example_inputs=(x,))
    loaded = webmlc.load(tmp_path / "package", device="wasm")
    for value in (x, -x):
        (y,) = loaded.run({"x": value.numpy()}).values()
        np.testing.assert_array_equal(y, model(value).numpy())
