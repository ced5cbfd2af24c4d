"""The layout of a program: each buffer in its place, on the devices that use it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from tests.packages import BUFFERS, mixed, parts, scaled
from webmlc.package.memory_plan import LARGE, layout
from webmlc.package.placement import align
from webmlc.package.plan_memory import lifetimes
from webmlc.package.write import write_package


def test_the_layout_of_a_program(tmp_path: Path) -> None:
    manifest = scaled(tmp_path)
    plan = layout(manifest, "wasm", "wasm", {"n": 100}, threads=2)
    assert plan.constants == {"w": 1280}  # after the control area and the slot table
    assert plan.offsets["x"] == 1536
    # y may lie where x was: x is not needed any more when y is written.
    assert plan.offsets["y"] == plan.offsets["x"]
    assert plan.arena == 2 * align(1600, 64)
    assert plan.total == 1536 + plan.arena


def test_large_weights_start_at_a_page(tmp_path: Path) -> None:
    count = LARGE // 4
    small = parts()
    buffers = tuple(structs.replace(b, shape=(count,)) if b.name == "w" else b for b in BUFFERS)
    programs = {d: replace(p, buffers=buffers) for d, p in small.programs.items()}
    weight = np.zeros(count, np.float32)
    large = replace(small, programs=programs, constants={"weight": weight})
    manifest = write_package(tmp_path, large)
    plan = layout(manifest, "wasm", "wasm", {"n": 1})
    assert plan.constants == {"w": 4096}
    assert plan.offsets["x"] == 4096 + LARGE


def test_crossing_buffers_move_once_and_live_on_both_sides(tmp_path: Path) -> None:
    manifest = mixed(tmp_path)
    program = manifest.programs["webgpu"]
    first, second = program.runs
    assert (first.uploads, first.downloads) == (("x",), ("t",))
    assert (second.uploads, second.downloads) == (("t",), ("y",))
    assert (second.module_first, second.module_last) == (2, 3)
    assert lifetimes(program, "webgpu", "webgpu") == {"x": (0, 0), "t": (0, 0)}
    assert lifetimes(program, "wasm", "webgpu") == {"t": (1, 1), "y": (1, 1)}
    assert layout(manifest, "webgpu", "wasm", {"n": 1}).constants == {}
