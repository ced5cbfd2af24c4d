"""Schedule rules for WebAssembly: one file a kernel class.

In: a naive function and a machine. Out: a schedule, or `None` where a rule does not apply.
"""

from __future__ import annotations

from webmlc.schedule.rules.rule import AnyRule, single_schedule
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

RULES: tuple[AnyRule, ...] = tuple(
    single_schedule(rule.__name__, rule)
    for rule in (
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
)
"""In order of preference; `scalar` always answers."""
