"""The forms that the kernels of a device may have before they are scheduled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from webmlc.core.machine import Device
from webmlc.loops.gpu_form import gpu_obstacle
from webmlc.loops.ir import LoopFunction


def _no_obstacle(function: LoopFunction) -> str | None:
    """The answer of a device that runs every kernel."""
    return None


@dataclass(frozen=True, slots=True)
class KernelForm:
    """The form of a device's kernels.

    - `runs_blocks_in_order`: a block starts when all threads have finished the block before it, and
      the updates of a scatter run in order.
    - `binds_constants_apart`: a kernel that reads a constant differs from a kernel that reads an
      activation.
    - `displaces_buffers`: an argument may begin anywhere in a buffer. Otherwise it begins where the
      buffer does, because a binding must begin at a multiple of 256 bytes.
    - `obstacle`: the reason why a kernel cannot run on the device, or `None`.
    - `fallback`: the form of the kernels that have an obstacle.
    """

    device: Device
    runs_blocks_in_order: bool
    binds_constants_apart: bool = False
    displaces_buffers: bool = False
    obstacle: Callable[[LoopFunction], str | None] = _no_obstacle
    fallback: KernelForm | None = None


CPU_FORM = KernelForm("wasm", runs_blocks_in_order=True, displaces_buffers=True)
"""The form of kernels for WebAssembly, which runs every kernel."""
GPU_FORM = KernelForm(
    "webgpu",
    runs_blocks_in_order=False,
    binds_constants_apart=True,
    obstacle=gpu_obstacle,
    fallback=CPU_FORM,
)
"""The form of kernels for WebGPU."""
