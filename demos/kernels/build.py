"""Build the page that measures the steps of lessons 2 and 6 of the course, one by one.

In: the lessons, which run, and whose `steps` are the schedules. Out: `build/demos/kernels/`: a
package for each step, the kernels that measure the limits, and `steps.json`, which has the text of
each step and the bytes that it moves.

    python demos/kernels/build.py && webmlc serve build/demos
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import webmlc
from demos.kernels.traffic import cache_traffic
from demos.website import SITE, write_page, write_shared
from docs.course.show import code_of
from docs.site.lessons import FOLDER, run_lesson
from webmlc.core.machine import RELAXED, Device
from webmlc.loops.count_work import count_work
from webmlc.loops.ir import For, walk_statements
from webmlc.programs.compiled import CompiledKernel
from webmlc.programs.limit import multiply_adds
from webmlc.programs.tir import Schedule
from webmlc.target.kernel_work import kernel_work

LESSONS: Mapping[Path, Device] = {
    FOLDER / "02_transformations.py": "wasm",
    FOLDER / "06_gpu.py": "webgpu",
}
"""The lessons whose steps the page shows, and the device of each. A lesson's name `steps` holds its
schedules by name.
"""
CACHES = {"First-level cache": RELAXED.l1_bytes, "Second-level cache": RELAXED.l2_bytes}
"""The caches of a CPU whose traffic the page shows, and their bytes."""
RUNTIME = "limit_wasm"
"""The package whose runtime loads all packages of the page."""
Step = Callable[[], Schedule]


def build(site: Path = SITE) -> None:
    """Write the page and its packages."""
    folder = write_page(Path(__file__).parent, site)
    limits = {
        "wasm": webmlc.compile(multiply_adds("wasm"), "wasm"),
        "threads": webmlc.compile(multiply_adds("wasm", parallel=True), "wasm"),
        "webgpu": webmlc.compile(multiply_adds("webgpu"), "webgpu"),
    }
    entries = {
        "limits": {n: _package(folder, f"limit_{n}", kernel) for n, kernel in limits.items()},
        "steps": [
            _step(folder, name, step, device)
            for lesson, device in LESSONS.items()
            for name, step in run_lesson(lesson)["steps"].items()
        ],
    }
    (folder / "steps.json").write_text(json.dumps(entries), "utf-8")


def _step(folder: Path, name: str, step: Step, device: Device) -> dict[str, Any]:
    """Write the package of a step, and describe the step."""
    schedule = step()
    kernel = webmlc.compile(schedule, device)
    package = f"{'cpu' if device == 'wasm' else 'gpu'}_{name.replace(' ', '_')}"
    return {
        "name": name,
        "about": inspect.getdoc(step),
        **_package(folder, package, kernel),
        "parallel": any(
            isinstance(s, For) and s.kind == "parallel"
            for s in walk_statements(schedule.function.body)
        ),
        "schedule": _source(step),
        "program": schedule.script(),
        "code": code_of(kernel, schedule.function.name),
        "traffic": _traffic(kernel, schedule, device),
    }


def _package(folder: Path, package: str, kernel: CompiledKernel) -> dict[str, Any]:
    """Write the package of a kernel; returns its folder, its device, its operations, and the files
    that the page loads: data, and the runtime, which all packages share.
    """
    kernel.save(folder / package, force=True)
    suffixes = (".deflate", ".js") if package == RUNTIME else (".deflate",)
    files = [p.name for p in (folder / package).iterdir() if p.suffix in suffixes]
    return {
        "package": package,
        "device": kernel.target,
        "flops": count_work(kernel.function, {}).flops,
        "files": sorted(files),
    }


def _traffic(kernel: CompiledKernel, schedule: Schedule, device: Device) -> dict[str, int]:
    """The bytes of a run, by the level of memory that they come from or go to."""
    code = kernel.parts.kernels[device][schedule.function.name]
    work = kernel_work(code, {})
    if device == "webgpu":
        return {"Workgroup memory": work.workgroup, "Storage buffers": work.storage}
    caches = {name: cache_traffic(schedule.function, size) for name, size in CACHES.items()}
    return {"Loads and stores": work.storage, **caches}


def _source(step: Step) -> str:
    """The source of a step, and then the functions and constants of the lesson that it uses."""
    assert isinstance(step, FunctionType)
    names = step.__globals__
    parts: dict[str, str] = {}

    def visit(function: FunctionType) -> None:
        parts[function.__name__] = inspect.getsource(function)
        for name in function.__code__.co_names:
            value = names.get(name)
            if isinstance(value, int) and name.isupper():
                parts.setdefault(name, f"{name} = {value}")
            elif isinstance(value, FunctionType) and name not in parts and value in local:
                visit(value)

    local = [v for v in names.values() if getattr(v, "__module__", "") == step.__module__]
    visit(step)
    return "\n\n".join(part.rstrip() for part in parts.values()) + "\n"


if __name__ == "__main__":
    write_shared(SITE)
    build()
