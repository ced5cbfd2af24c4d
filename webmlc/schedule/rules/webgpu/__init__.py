"""Schedules for WebGPU: ordered rules, one file for each class of kernels.

The last rule matches every kernel that one dispatch can compute. A dispatch cannot wait for all its
workgroups. So a kernel whose threads would need each other's results is cut before the rules see it
(`schedule.split_kernels`).

    schedule = schedule_kernel(function, WEBGPU)
"""

from __future__ import annotations

from webmlc.schedule.rules.rule import AnyRule
from webmlc.schedule.rules.webgpu.attention.attention import ATTENTION
from webmlc.schedule.rules.webgpu.block_product import BLOCK_PRODUCT
from webmlc.schedule.rules.webgpu.columns import COLUMNS
from webmlc.schedule.rules.webgpu.contraction import CONTRACTION
from webmlc.schedule.rules.webgpu.pointwise import POINTWISE
from webmlc.schedule.rules.webgpu.reduction import REDUCTION
from webmlc.schedule.rules.webgpu.rows import ROWS, UPDATES
from webmlc.schedule.rules.webgpu.transform import TRANSFORM
from webmlc.schedule.rules.webgpu.transpose import TRANSPOSE
from webmlc.schedule.rules.webgpu.window import WINDOW

RULES: tuple[AnyRule, ...] = (
    UPDATES,
    TRANSPOSE,
    TRANSFORM,
    POINTWISE,
    BLOCK_PRODUCT,
    ATTENTION,
    CONTRACTION,
    REDUCTION,
    COLUMNS,
    WINDOW,
    ROWS,
)
"""In order of preference: the first that matches a kernel answers for it."""
