"""Instructions: the last step of a rule, which tensorizes the blocks that a machine has them for.

In: the schedule of a rule. Out: the same schedule, in which blocks call instructions. Dot products
of packed words become calls of the machine's instruction for them. A machine without such an
instruction multiplies byte by byte. On machines that unpack words once for a whole tile, this is
faster (`Gpu.multiplies_words`). Folds of shared values become folds of subgroups.

    for j in T.vectorized(8):                            for j in T.vectorized(8):
        C[j] = C[j] + T.dot_u7_i8(A[k], B[k, j])   ->        C[j] = C[j] + T.call_intrin(
                                                                 "i32x4.relaxed_dot...", A[k], ...)
"""

from __future__ import annotations

from webmlc.core.expr import Call
from webmlc.core.machine import Gpu, Machine
from webmlc.core.rewrite import walk
from webmlc.loops.ir import Block, Store
from webmlc.schedule.intrinsics import INTRINSICS, Intrinsic, fold_name
from webmlc.schedule.schedule import Schedule

_ROWS = (
    "i32x4.relaxed_dot_i8x16_u8x16_add_s.words",
    "i32x4.relaxed_dot_i8x16_i7x16_add_s.words",
    "dot4I8Packed.words",
)
"""The rows for dot products of packed words."""


def tensorize_blocks(schedule: Schedule, machine: Machine) -> None:
    """Let the blocks of a schedule call the instructions of a machine."""
    _tensorize_byte_products(schedule, machine)
    _tensorize_folds(schedule, machine)


def _tensorize_byte_products(schedule: Schedule, machine: Machine) -> None:
    """Let each block of a schedule call the machine's instructions for dot products of words."""
    if isinstance(machine, Gpu) and not machine.multiplies_words:
        return
    for row in (INTRINSICS[name] for name in _ROWS):
        if _runs_on(row, machine):
            for name in schedule.blocks():
                if _uses(schedule.block(name), row) and schedule.allows(
                    "tensorize", name, row.name
                ):
                    schedule.tensorize(name, row.name)


def _tensorize_folds(schedule: Schedule, machine: Machine) -> None:
    """Let the threads of subgroups share the folds of shared values."""
    for name in schedule.blocks():
        store = schedule.block(name).body
        if not isinstance(store, Store) or not isinstance(store.value, Call):
            continue
        fold = INTRINSICS.get(fold_name(store.value.op, store.value.dtype))
        if fold is None or not _runs_on(fold, machine):
            continue
        if schedule.allows("tensorize", name, fold.name):
            schedule.tensorize(name, fold.name)


def _runs_on(row: Intrinsic, machine: Machine) -> bool:
    """True if a machine has the instruction of a row."""
    text = None if row.instruction is None else row.instruction.text(machine.device)
    return text is not None and text.runs_with(machine.features)


def _uses(block: Block, row: Intrinsic) -> bool:
    """True if the value of a block has the operator that a row's instruction computes."""
    if row.instruction is None or not isinstance(block.body, Store):
        return False
    meaning = row.instruction.meaning
    assert isinstance(meaning, Call)  # of packed words
    return any(isinstance(n, Call) and n.op == meaning.op for n in walk(block.body.value))
