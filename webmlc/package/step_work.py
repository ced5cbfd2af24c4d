"""Compute the work of every step of a program, for `webmlc inspect` and for benchmarks.

In: a compiled model (`Parts`), a device, and the sizes of symbolic dimensions. Out: one `StepWork`
per step, in the order of the program's steps and of a profile.

    for step in step_work(compile_model("model.onnx"), "wasm", {"batch": 1}): ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webmlc.core.machine import Device
from webmlc.package.manifest import Manifest, RowWork
from webmlc.target.kernel_work import KernelWork, kernel_work

if TYPE_CHECKING:
    from webmlc.package.write import Parts

LENGTHS = (512, 1024)
"""Two lengths of a session, to tell the work of a run from that of each row: both are linear."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The kernel of a step, the ONNX nodes that it computes, and its work."""

    kernel: str
    origin: tuple[str, ...]
    work: KernelWork


def step_work(parts: Parts, device: Device, sizes: Mapping[str, int]) -> tuple[StepWork, ...]:
    """The work of each step; it is 0 for a step that calls no kernel."""
    kernels = parts.kernels[device]
    works = {name: kernel_work(kernel, sizes) for name, kernel in kernels.items()}
    none = KernelWork(0, 0, 0)
    return tuple(
        StepWork(step.kernel, step.origin, works.get(step.kernel, none))
        for step in parts.programs[device].steps
    )


def row_work(parts: Parts, manifest: Manifest, device: Device) -> RowWork | None:
    """The work of a run that appends one row. It is `None` for models without states, and for
    those whose kernels are not known.
    """
    if not manifest.length or device not in parts.kernels:
        return None
    is_run: list[bool] = []
    for run in manifest.programs[device].runs:
        is_run += [not run.once] * (run.last - run.first)
    totals = []
    for length in LENGTHS:
        works = step_work(parts, device, {manifest.length: length})
        totals.append(sum(w.work.least for w, runs in zip(works, is_run, strict=True) if runs))
    each = (totals[1] - totals[0]) // (LENGTHS[1] - LENGTHS[0])
    return RowWork(sum(is_run), totals[0] - each * LENGTHS[0], each)


def print_work(
    parts: Parts, device: Device, sizes: Mapping[str, int], kernel: str | None = None
) -> str:
    """Print one line per step, or per step of `kernel`.

    It shows the operations, the bytes moved, the least possible bytes, and the ratio of the two.
    """
    lines = [f"{'flops':>15} {'bytes moved':>15} {'least':>13} {'times':>7}  kernel"]
    for step in step_work(parts, device, sizes):
        if kernel not in (None, step.kernel):
            continue
        work = step.work
        times = f"{work.moved / work.least:.1f}" if work.least else ""
        figures = f"{work.flops:15,} {work.moved:15,} {work.least:13,} {times:>7}"
        lines.append(f"{figures}  {step.kernel}: {', '.join(step.origin)}")
    return "\n".join(lines)
