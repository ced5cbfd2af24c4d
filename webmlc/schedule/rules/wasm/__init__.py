"""Schedule rules for WebAssembly: one file a kernel class.

In: a naive function and a machine. Out: a schedule, or `None` where a rule does not apply.
"""

from __future__ import annotations

from collections.abc import Callable

from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules.wasm.kernel import (
    attention,
    bands,
    contraction,
    rows,
    scalar,
    stages,
    strassen,
    transform,
    updates,
    window,
)
from webmlc.schedule.rules.wasm.slabs import slabs
from webmlc.schedule.schedule import Schedule

Rule = Callable[[LoopFunction, Machine], Schedule | None]

RULES: tuple[Rule, ...] = (
    slabs,
    updates,
    contraction,
    window,
    transform,
    strassen,
    bands,
    attention,
    rows,
    stages,
    scalar,
)
"""In order of preference; `scalar` always answers."""
