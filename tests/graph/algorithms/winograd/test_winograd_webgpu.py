"""Winograd's form on a GPU: its error for any batch and size, its dispatches, and where it pays."""

from __future__ import annotations

from pathlib import Path

import pytest

import webmlc
from tests.graph.algorithms.winograd.test_winograd import (
    CHANNELS,
    Case,
    build,
    reference,
    relative_error,
)
from webmlc.core.machine import SOFTWARE, WEBGPU, Machine
from webmlc.graph.algorithms.winograd.cost_model import Layer, best_forms, can_bind_planes
from webmlc.package.manifest import MANIFEST
from webmlc.package.manifest_json import from_json
from webmlc.target.targets import TARGETS, target_of

CASES = [
    Case(4),
    Case(2, stride=2),
    Case(2, (3, 5)),
    Case(4, (5, 1)),
    Case(2, (3,), groups=2, outputs=16),
    Case(2, outputs=9),
    Case(2, (3,), dilation=2),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_error_is_small_for_any_batch(case: Case, tmp_path: Path) -> None:
    package = build(case, case.model(), tmp_path, "webgpu")
    model = webmlc.load(package, "webgpu")
    for batch in (1, 3, 1):
        x, wanted = reference(case, batch)
        assert relative_error(model.run({"x": x})["y"], wanted) < case.bound
    model.dispose()


def test_error_is_small_for_a_map_of_any_size(tmp_path: Path) -> None:
    case = Case(4, bound=1e-5)
    package = build(case, case.model(("h", "w")), tmp_path, "webgpu")
    program = from_json((package / MANIFEST).read_text()).programs["webgpu"]
    assert all(step.device == "webgpu" for step in program.steps)
    model = webmlc.load(package, "webgpu")
    for sizes in ((9, 9), (1, 1), (31, 74), (12, 5)):
        x, wanted = reference(case, 2, sizes)
        assert relative_error(model.run({"x": x})["y"], wanted) < case.bound, sizes
    model.dispose()


def test_the_weights_are_transformed_once_and_no_dispatch_only_pads(tmp_path: Path) -> None:
    case = Case(2, outputs=16)
    package = build(case, case.model(), tmp_path, "webgpu")
    program = from_json((package / MANIFEST).read_text()).programs["webgpu"]
    assert [run.once for run in program.runs] == [True, False]
    assert program.resources.weights < 4 * 16 * (9 * CHANNELS + 2) + 256
    names = [step.kernel.rstrip("_0123456789") for step in program.steps]
    assert names == [
        "winogradweights",
        "transpose_pad",
        "winogradinput",
        "winogradproduct",
        "winogradoutput_add_relu",
        "transpose",
    ]


@pytest.mark.parametrize(
    ("layer", "software", "gpu"),
    [
        (Layer(64, 64, (56, 56)), (4, 4), None),  # a GPU takes longer for the planes' memory
        (Layer(512, 512, (28, 28)), (4, 4), (6, 6)),
        (Layer(64, 64, (224, 224)), (6, 6), None),
        (Layer(24, 24, (13, 13)), None, None),
    ],
)
def test_the_cost_model_counts_memory_and_dispatches(layer, software, gpu) -> None:
    for machine, tiles in ((SOFTWARE, software), (WEBGPU, gpu)):
        forms = best_forms([layer] * 2, machine).get(layer)
        assert (None if forms is None else tuple(form.tile for form in forms)) == tiles


@pytest.mark.parametrize(
    ("layer", "batch", "fits"),
    [
        (Layer(64, 64, (224, 224)), 1, True),
        (Layer(64, 64, (224, 224)), 8, False),  # planes of 177 MB
        (Layer(64, 64, (800, 800)), 1, False),
        (Layer(2048, 2048, (28, 28)), 1, False),  # weights of 604 MB
    ],
)
def test_planes_are_no_larger_than_a_binding(layer: Layer, batch: int, fits: bool) -> None:
    forms = best_forms([layer], SOFTWARE)[layer]
    assert can_bind_planes(layer, forms, batch, SOFTWARE) == fits


@pytest.mark.parametrize("machine", [SOFTWARE, WEBGPU])
def test_a_package_for_one_machine_has_its_algorithms(machine: Machine) -> None:
    target = target_of(machine)
    assert (target is TARGETS["webgpu"]) == (machine is WEBGPU)
