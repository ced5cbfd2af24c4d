"""Compute the work of every step of a program, for `webmlc inspect` and for benchmarks.

In: a compiled model (`Parts`), a device, and the sizes of symbolic dimensions. Out: one `StepWork`
per step, in the order of the program's steps and of a profile.

    for step in step_work(compile_model("model.onnx"), "wasm", {"batch": 1}): ...

A step on the GPU also has the size of its dispatch, from which its time on several classes of GPUs
can be estimated (`core/adapters.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webmlc.core.adapters import ADAPTERS
from webmlc.core.machine import DEVICES, Device
from webmlc.package.manifest import Manifest, RowWork
from webmlc.target.kernel_work import KernelWork, kernel_work, least_bytes
from webmlc.target.webgpu.dispatch_work import (
    DispatchWork,
    Estimate,
    dispatch_work,
    estimate_time,
)

if TYPE_CHECKING:
    from webmlc.package.write import Parts

LENGTHS = (512, 1024)
"""Two lengths of a session. The work is linear in the length, so these give its two coefficients:
the work of a run, and the work of each row.
"""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The kernel of a step, the ONNX nodes that it computes, its work, and its GPU dispatch."""

    kernel: str
    origin: tuple[str, ...]
    work: KernelWork
    dispatch: DispatchWork | None = None

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The time of a dispatch on each class of adapters, by name; empty for a step on the
        CPU.
        """
        if self.dispatch is None:
            return {}
        return {a.name: estimate_time(self.work, self.dispatch, a) for a in ADAPTERS}


def step_work(parts: Parts, device: Device, sizes: Mapping[str, int]) -> tuple[StepWork, ...]:
    """The work of each step. The work is 0 for a step that calls no kernel."""
    kernels = parts.kernels[device]
    steps = parts.programs[device].steps
    works = {name: kernel_work(kernel, sizes) for name, kernel in kernels.items()}
    on_gpu = {step.kernel for step in steps if not DEVICES[step.device].runs_steps} & kernels.keys()
    dispatches = {name: dispatch_work(kernels[name].lowered(), sizes) for name in on_gpu}
    return tuple(
        StepWork(
            step.kernel,
            step.origin,
            works.get(step.kernel, KernelWork()),
            dispatches.get(step.kernel),
        )
        for step in steps
    )


def row_work(parts: Parts, manifest: Manifest, device: Device) -> RowWork | None:
    """The work of a run that appends one row. The result is `None` for models without growing
    states, and for models whose kernels are not known.
    """
    if not manifest.length or device not in parts.kernels:
        return None
    is_run: list[bool] = []
    for run in manifest.programs[device].runs:
        is_run += [not run.once] * (run.last - run.first)
    kernels = parts.kernels[device]
    steps = zip(parts.programs[device].steps, is_run, strict=True)
    names = [step.kernel for step, runs in steps if runs and step.kernel in kernels]
    totals = []
    for length in LENGTHS:
        sizes = {manifest.length: length}
        least = {name: least_bytes(kernels[name].meaning, sizes) for name in {*names}}
        totals.append(sum(least[name] for name in names))
    each = (totals[1] - totals[0]) // (LENGTHS[1] - LENGTHS[0])
    return RowWork(sum(is_run), totals[0] - each * LENGTHS[0], each)


def print_work(
    parts: Parts, device: Device, sizes: Mapping[str, int], kernel: str | None = None
) -> str:
    """Print one line per step, or per step of `kernel`.

    A line shows the operations, the bytes moved, the least possible bytes, and the ratio of the
    bytes moved to the least possible bytes.
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


def print_dispatches(parts: Parts, sizes: Mapping[str, int], kernel: str | None = None) -> str:
    """Print one line per dispatch, or per dispatch of `kernel`.

    A line shows the size of the dispatch and the bytes by the level of memory. For each class of
    adapters, it shows the least possible microseconds, and the resource that bounds them. The last
    line has the sums.
    """
    names = [adapter.name for adapter in ADAPTERS]
    columns = ("workgroups", "invocations", "shared", "registers", "register B", "workgroup B",
               "storage B", "flops/B")  # fmt: skip
    lines = ["".join(f"{c:>13}" for c in columns) + "".join(f"{n:>18} us" for n in names)]
    totals = dict.fromkeys(names, 0.0)
    for step in step_work(parts, "webgpu", sizes):
        if step.dispatch is None or kernel not in (None, step.kernel):
            continue
        work, dispatch = step.work, step.dispatch
        numbers = (dispatch.workgroups, dispatch.invocations, dispatch.shared_bytes,
                   dispatch.registers, work.registers, work.workgroup, work.storage)  # fmt: skip
        intensity = f"{work.flops / max(work.least, 1):.1f}"
        line = "".join(f"{number:13,}" for number in numbers) + f"{intensity:>13}"
        for name, estimate in step.estimates.items():
            totals[name] += estimate.seconds
            line += f"{estimate.bound:>12} {1e6 * estimate.seconds:8,.1f}"
        lines.append(f"{line}  {step.kernel}: {', '.join(step.origin)}")
    sums = "".join(f"{1e6 * total:21,.1f}" for total in totals.values())
    return "\n".join([*lines, f"{'sum':>{13 * len(columns)}}{sums}"])
