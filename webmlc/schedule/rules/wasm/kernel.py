"""The rules for whole kernels: each nest by the rule of its class, or nothing at all.

In: a naive function, one nest a stage. Out: a schedule.
"""

from __future__ import annotations

from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.analysis import fold_of, is_update, operations
from webmlc.schedule.rules.wasm.attention import schedule_attention
from webmlc.schedule.rules.wasm.bands import schedule_bands
from webmlc.schedule.rules.wasm.contraction import schedule_contraction
from webmlc.schedule.rules.wasm.nests import epilogue_of
from webmlc.schedule.rules.wasm.rows import (
    schedule_dear_epilogue,
    schedule_rows,
    schedule_stages,
)
from webmlc.schedule.rules.wasm.strassen import schedule_strassen
from webmlc.schedule.rules.wasm.threads import share_work
from webmlc.schedule.rules.wasm.transform import schedule_transform
from webmlc.schedule.rules.wasm.updates import schedule_updates
from webmlc.schedule.rules.wasm.window import schedule_window
from webmlc.schedule.schedule import Schedule


def updates(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Updates of elements in order. Beside other blocks they stay as they are."""
    schedule = Schedule(function)
    names = schedule.blocks()
    if not any(is_update(schedule.block(name)) for name in names):
        return None
    if len(names) > 1:
        return schedule
    schedule_updates(schedule, names[0], machine)
    return _shared(schedule, machine)


def contraction(function: LoopFunction, machine: Machine) -> Schedule | None:
    """A product of tensors with its epilogue."""
    schedule = Schedule(function)
    if not _is_one_fold(schedule):
        return None
    if not schedule_contraction(schedule, schedule.blocks()[0], machine):
        return None
    return _shared(schedule, machine)


def window(function: LoopFunction, machine: Machine) -> Schedule | None:
    """A fold whose lanes are contiguous, with its epilogue."""
    schedule = Schedule(function)
    if not _is_one_fold(schedule):
        return None
    if not schedule_window(schedule, schedule.blocks()[0], machine):
        return None
    return _shared(schedule, machine)


def transform(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Small linear transforms of tiles."""
    schedule = Schedule(function)
    return _shared(schedule, machine) if schedule_transform(schedule, machine) else None


def bands(function: LoopFunction, machine: Machine) -> Schedule | None:
    """A product between transforms of tiles."""
    schedule = Schedule(function)
    return _shared(schedule, machine) if schedule_bands(schedule, machine) else None


def strassen(function: LoopFunction, machine: Machine) -> Schedule | None:
    """A product between sums of quarters."""
    schedule = Schedule(function)
    return _shared(schedule, machine) if schedule_strassen(schedule, machine) else None


def attention(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Two products with a softmax between them."""
    schedule = Schedule(function)
    return _shared(schedule, machine) if schedule_attention(schedule, machine) else None


def rows(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Stages, with a reduction among them, that meet in rows."""
    schedule = Schedule(function)
    if all(fold_of(schedule.block(name)) is None for name in schedule.blocks()):
        return None
    apart = schedule.copy()
    if schedule_dear_epilogue(apart, machine):
        return _shared(apart, machine)
    gathered = schedule_rows(schedule, machine)
    return None if gathered is None else _shared(gathered, machine)


def stages(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Every stage by itself. Threads share the work only where no stage reads another's results."""
    schedule = schedule_stages(Schedule(function), machine)
    return schedule if function.allocations else _shared(schedule, machine)


def scalar(function: LoopFunction, machine: Machine) -> Schedule | None:
    """Leave the function as it is: serial and scalar, right for everything."""
    return Schedule(function)


def _is_one_fold(schedule: Schedule) -> bool:
    """True for a fold alone, or with the epilogue that reads it."""
    first, *rest = (schedule.block(name) for name in schedule.blocks())
    if fold_of(first) is None or len(rest) > 1:
        return False
    return not rest or epilogue_of(schedule.function, first) == rest[0]


def _shared(schedule: Schedule, machine: Machine) -> Schedule:
    """The schedule, its work shared out to threads if there is enough of it."""
    if operations(schedule.function) >= machine.parallel_operations:
        share_work(schedule)
    return schedule
