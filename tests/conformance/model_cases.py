"""ONNX's tests that are models with data on disk: `simple`, `pytorch-operator`,
`pytorch-converted` and the `light` architectures.

In: a group's name. Out: its tests, with models and data sets read. The light models come without
inputs: those are what ONNX's own runner makes.

    load_group("simple")["test_expand_shape_model1"].data_sets
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TypeProto, ValueInfoProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import DATA_DIR, load_model_tests

GROUPS = ("simple", "pytorch-operator", "pytorch-converted", "light")


def load_group(group: str) -> dict[str, TestCase]:
    """The tests of a group by name."""
    cases = load_model_tests(kind="real" if group == "light" else group)
    return {case.name: _read(case) for case in sorted(cases, key=lambda c: c.name)}


def _read(case: TestCase) -> TestCase:
    if case.model_dir is None:
        light = Path(DATA_DIR) / "light" / Path(case.url).name
        model = onnx.load(light)
        data_sets = [_light_data(light, model)]
    else:
        model = onnx.load(Path(case.model_dir) / "model.onnx")
        folders = sorted(Path(case.model_dir).glob("test_data_set*"))
        data_sets = [_data(folder, model) for folder in folders]
    return replace(case, model=model, data_sets=data_sets)


def _data(folder: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    """The inputs and the expected outputs of one data set."""
    graph = model.graph
    return (
        [_value(folder / f"input_{i}.pb", p) for i, p in enumerate(graph.input) if _has(folder, i)],
        [_value(folder / f"output_{i}.pb", p) for i, p in enumerate(graph.output)],
    )


def _has(folder: Path, position: int) -> bool:
    return (folder / f"input_{position}.pb").exists()


def _value(path: Path, port: ValueInfoProto) -> Any:
    data = path.read_bytes()
    kind = port.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _light_data(path: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [_ramp(p.type) for p in model.graph.input if p.name not in constants]
    outputs = [
        _value(path.with_name(f"{path.stem}_output_{i}.pb"), p)
        for i, p in enumerate(model.graph.output)
    ]
    return inputs, outputs


def _ramp(kind: TypeProto) -> Any:
    """As `onnx.backend.test.runner` fills the inputs of the light models."""
    shape = [d.dim_value or 1 for d in kind.tensor_type.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)
