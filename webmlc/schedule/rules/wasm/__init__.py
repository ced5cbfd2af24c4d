"""Schedule rules for WebAssembly: one file for each class of kernels.

The rules here map loops to threads and to the levels of memory; `rules.tiling` does the rest.
"""

from __future__ import annotations

from webmlc.schedule.rules.rule import AnyRule
from webmlc.schedule.rules.wasm.attention import ATTENTION
from webmlc.schedule.rules.wasm.bands import BANDS
from webmlc.schedule.rules.wasm.block_product import BLOCK_PRODUCT
from webmlc.schedule.rules.wasm.contraction import CONTRACTION
from webmlc.schedule.rules.wasm.fold import ROW_EPILOGUE
from webmlc.schedule.rules.wasm.rows import ROWS
from webmlc.schedule.rules.wasm.sections import SECTIONS
from webmlc.schedule.rules.wasm.stages import STAGES, Left, Stages
from webmlc.schedule.rules.wasm.strassen import STRASSEN
from webmlc.schedule.rules.wasm.threads import shared
from webmlc.schedule.rules.wasm.transform import TRANSFORM
from webmlc.schedule.rules.wasm.updates import UPDATES
from webmlc.schedule.rules.wasm.window import WINDOW

RULES: tuple[AnyRule, ...] = (
    shared(UPDATES, lambda facts: not isinstance(facts, Left)),
    shared(CONTRACTION),
    shared(BLOCK_PRODUCT),
    shared(WINDOW),
    shared(TRANSFORM),
    shared(STRASSEN),
    shared(BANDS),
    SECTIONS,
    shared(ATTENTION),
    shared(ROW_EPILOGUE),
    shared(ROWS),
    shared(STAGES, lambda facts: isinstance(facts, Stages) and facts.are_independent),
)
"""In order of preference; `STAGES` matches every kernel."""
