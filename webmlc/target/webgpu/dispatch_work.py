"""Describe the dispatch of a kernel, and the bound of its time on a class of adapters.

In: a lowered function for the GPU, the values of its symbols, and its work. Out: a `DispatchWork`,
and an estimate of its time. The estimate is a roofline (Williams, Waterman and Patterson,
"Roofline", 2009) with two levels of memory, for dispatches that may be too small for the adapter.

    dispatch = dispatch_work(kernel.lowered(), {"batch": 1})
    estimate_time(kernel_work(kernel, {"batch": 1}), dispatch, H100).bound       # "memory"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from webmlc.core.adapters import Adapter
from webmlc.core.expr import Expr
from webmlc.core.rewrite import evaluate
from webmlc.loops.ir import Buffer, For, Let, LoopFunction, Stmt, accessed_buffers, child_statements
from webmlc.target.kernel_work import KernelWork
from webmlc.target.registers import register_lanes
from webmlc.target.share_memory import shared_bytes
from webmlc.target.webgpu.threads import grid_of

BoundName = Literal["compute", "memory", "loads", "launch", "invocations"]
"""The resource that bounds the time of a dispatch:

- `compute`: operations.
- `memory`: bytes of the memory of the device, each read or written once.
- `loads`: bytes that registers load from caches and from workgroup memory.
- `launch`: the launch of a dispatch, which takes longer than the dispatch's own work.
- `invocations`: the dispatch has too few invocations, or too few workgroups, for half of the
  adapter.
"""
FEW = 0.5
"""Invocations bound a dispatch if a smaller share of the adapter works. With more invocations, the
dispatch could take less than half the time (derived)."""


@dataclass(frozen=True, slots=True)
class DispatchWork:
    """The size of a dispatch."""

    workgroups: int
    invocations: int
    shared_bytes: int
    """Bytes of workgroup memory of each workgroup."""
    registers: int
    """An estimate of the 32-bit registers of each invocation, as the sum for one section."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The time of a dispatch in seconds, and the resource that bounds it."""

    seconds: float
    bound: BoundName


def dispatch_work(code: LoopFunction, sizes: Mapping[str, int]) -> DispatchWork:
    """The dispatch of a lowered kernel with these values of the symbols. A symbol without a value
    is 1.
    """
    values = {symbol.name: sizes.get(symbol.name, 1) for symbol in code.symbols}
    grid = grid_of(code)
    workgroups = max(0, _value(grid.total, values))
    lanes = register_lanes(code)
    return DispatchWork(
        workgroups,
        workgroups * math.prod(grid.workgroup_size),
        shared_bytes(code),
        max((_registers(section.body, lanes) for section in grid.sections), default=0),
    )


def estimate_time(work: KernelWork, dispatch: DispatchWork, adapter: Adapter) -> Estimate:
    """The least time that a dispatch takes on an adapter of a class.

    Operations, memory and loads overlap, so the slowest counts. If there are fewer invocations than
    lanes, or fewer workgroups than cores, only a share of the adapter works.
    """
    times: dict[BoundName, float] = {
        "compute": work.executed / adapter.flops,
        "memory": work.least / adapter.memory_rate,
        "loads": (work.storage + work.workgroup) / adapter.load_rate,
    }
    slowest = max(times, key=lambda name: times[name])
    share = min(1, dispatch.invocations / adapter.lanes, dispatch.workgroups / adapter.cores)
    if share == 0:
        return Estimate(adapter.launch_seconds, "launch")
    seconds = times[slowest] / share
    if seconds <= adapter.launch_seconds:
        return Estimate(adapter.launch_seconds, "launch")
    return Estimate(seconds, slowest if share >= FEW else "invocations")


def _value(expr: Expr, symbols: Mapping[str, int]) -> int:
    return int(evaluate(expr, dict(symbols)))


def _registers(section: Stmt, lanes: Mapping[Buffer, int]) -> int:
    """The number of registers that a section accesses, plus the registers of its named values."""
    accessed = accessed_buffers(section)
    return sum(count for buffer, count in lanes.items() if buffer in accessed) + _named(section)


def _named(stmt: Stmt) -> int:
    """The most registers of loop variables and lets around any statement inside `stmt`."""
    lanes = 1 if isinstance(stmt, For) else stmt.value.lanes if isinstance(stmt, Let) else 0
    return lanes + max(map(_named, child_statements(stmt)), default=0)
