"""Every kernel of ResNet-50, naive and scheduled: sound, its text parses, its trace replays."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import onnx
import pytest

from webmlc.core.machine import RELAXED, SIMD128, WEBGPU, Device, Machine
from webmlc.frontend.read_model import read_model
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import CPU_FORM, GPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.loops.text import parse_function, print_function
from webmlc.loops.verify import verify
from webmlc.schedule.rules import schedule_kernel
from webmlc.schedule.schedule import replay
from webmlc.target.targets import TARGETS, lower

MODEL = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
LOWERED_EVERY = 8  # lowering takes most of the time, and its text has few constructs


@cache
def graph() -> Module:
    module = infer_shapes(normalise(read_model(MODEL)))
    return simplify_graph(choose_layouts(simplify_graph(fold_constants(module))))


def kernels(device: Device) -> dict[str, LoopFunction]:
    form = GPU_FORM if device == "webgpu" else CPU_FORM
    return dict(lower_module(fuse(graph(), TARGETS[device].limits), form).kernels)


@pytest.mark.parametrize(
    ("device", "machine"),
    [("wasm", RELAXED), ("wasm", SIMD128), ("webgpu", WEBGPU)],
    ids=["relaxed", "simd128", "webgpu"],
)
def test_text_and_traces(device: Device, machine: Machine) -> None:
    found = kernels(device)
    assert len(found) > 20
    for position, kernel in enumerate(found.values()):
        schedule = schedule_kernel(kernel, machine)
        assert replay(kernel, json.loads(json.dumps(schedule.trace))) == schedule.function
        forms = [kernel, schedule.function]
        if position % LOWERED_EVERY == 0:
            forms.append(lower(schedule.function, machine))
        for form in forms:
            verify(form)
            again = parse_function(print_function(form))
            assert again == form
            assert again.origin == form.origin
