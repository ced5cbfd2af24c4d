"""The rules for whole kernels: each nest by the rule of its class, or nothing at all.

In: a naive function, one nest a stage. Out: a schedule.
"""

from __future__ import annotations

from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import operations
from webmlc.schedule.rules.wasm.contraction import schedule_contraction
from webmlc.schedule.schedule import Schedule


def kernel(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Schedule every nest by the rule of its class."""
    schedule = Schedule(function)
    threads = operations(function) >= machine.parallel_operations
    name = schedule.blocks()[0]
    if schedule_contraction(schedule, name, machine, threads):
        return schedule
    return None


def scalar(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Leave the function as it is: serial and scalar, right for everything."""
    return Schedule(function)
