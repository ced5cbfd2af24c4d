"""Schedules for WebGPU: ordered rules, each of which answers for the kernels it knows.

The last rule answers for every kernel that one dispatch can compute. A dispatch cannot wait for all
its workgroups, so a kernel whose threads would need each other's results is cut before it gets
here (`schedule.split_kernels`).

    schedule = schedule_kernel(function, WEBGPU)
"""

from __future__ import annotations

from collections.abc import Callable

from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules.webgpu.contraction import contraction
from webmlc.schedule.rules.webgpu.pointwise import pointwise
from webmlc.schedule.rules.webgpu.reduction import reduction
from webmlc.schedule.rules.webgpu.rows import rows
from webmlc.schedule.rules.webgpu.updates import updates
from webmlc.schedule.rules.webgpu.window import window
from webmlc.schedule.schedule import Schedule

Rule = Callable[[LoopFunction, Machine], Schedule | None]

RULES: tuple[Rule, ...] = (updates, pointwise, contraction, reduction, window, rows)
"""In order: the first that answers makes the schedule."""
