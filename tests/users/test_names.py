"""A model may give any name to its dimensions, values and nodes: also a name that means something
in a language that the compiler writes or reads, and a name that the compiler itself generates.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.users.mutations.family import Mutant
from tests.users.mutations.names import NAMES
from tests.users.mutations.onnx_family import OnnxFamily
from webmlc.build_options import BuildOptions
from webmlc.core.machine import Device
from webmlc.pipeline import compile_model

GROUP = 6
"""The names that one model has."""
SIZES = (2, 3, 5)
GENERATED = 36
"""The number of generated names that a test draws."""


def named_model(names: list[str]) -> onnx.ModelProto:
    """A model that has these names as dimensions, and again as values and nodes."""
    x, relu, softmax, weight, product, total = names
    dims = [*names[:3], 4]
    nodes = [
        helper.make_node("Relu", [x], [relu], name=total),
        helper.make_node("Softmax", [relu], [softmax], name=product, axis=1),
        helper.make_node("MatMul", [softmax, weight], [product], name=relu),
        helper.make_node("ReduceMean", [product], [total], name=x, axes=[2]),
    ]
    weights = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    graph = helper.make_graph(
        nodes,
        names[0],
        [helper.make_tensor_value_info(x, 1, dims)],
        [
            helper.make_tensor_value_info(product, 1, [*dims[:3], names[3]]),
            helper.make_tensor_value_info(total, 1, [*dims[:2], names[4], names[5]]),
        ],
        [numpy_helper.from_array(weights, weight)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(names: list[str], folder: Path, *devices: Device) -> None:
    """Build and run a model with these names."""
    x = np.random.default_rng(0).standard_normal((*SIZES, 4)).astype(np.float32)
    data = named_model(names).SerializeToString()
    mutant = Mutant(repr(names), "model.onnx", {"model.onnx": data}, {names[0]: x})
    for device in devices:
        folder.joinpath(device).mkdir()
        outcome = OnnxFamily().judge(mutant, folder / device, device, lambda _: None)
        assert outcome.kind == "right", (names, outcome)


def groups(names: list[str]) -> list[list[str]]:
    """The names in groups; the last group is filled up with the first names."""
    names = names + names[: -len(names) % GROUP]
    return [names[i : i + GROUP] for i in range(0, len(names), GROUP)]


@pytest.mark.parametrize("number", range(len(groups(list(NAMES)))))
def test_reserved_names(number: int, tmp_path: Path) -> None:
    """Each device has the names of every other group: all of them take longer than they find."""
    check(groups(list(NAMES))[number], tmp_path, "webgpu" if number % 2 else "wasm")


def generated_names() -> list[str]:
    """The names that the compiler writes into the kernels of a model, at any stage."""
    stages: list[str] = []
    model = named_model(["x", "batch", "rows", "w", "y", "z"])
    parts = compile_model(
        model, BuildOptions(emit_text=True, on_stage=lambda s: stages.append(s.text()))
    )
    text = "\n".join([*parts.texts.values(), *stages])
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", text)))
    random.Random(0).shuffle(names)
    return names


def test_generated_names(tmp_path: Path) -> None:
    names = generated_names()
    assert {"softmax", "in0", "out0"} <= set(names)
    for number, group in enumerate(groups(names[:GENERATED])):
        tmp_path.joinpath(str(number)).mkdir()
        check(group, tmp_path / str(number), "wasm", "webgpu")
