"""The table of TensorFlow Lite's operators: a row for each operator that can be read, and a reason
for each operator that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping

from webmlc.frontend.tflite.operation import Row
from webmlc.frontend.tflite.operators import (
    detections,
    elementwise,
    mediapipe,
    moves,
    recurrent,
    reductions,
    spectra,
    windows,
)

ROWS: Mapping[str, Row] = {
    row.name: row
    for module in (
        elementwise,
        windows,
        moves,
        reductions,
        recurrent,
        detections,
        spectra,
        mediapipe,
    )
    for row in module.ROWS
}
"""The rows by the name in the schema, or by the custom code."""

_TEXT = "it works on texts; encode them as numbers before the model"
_RANDOM = "its results are random; make the random numbers an input"
REFUSED: Mapping[str, str] = {
    "HASHTABLE": _TEXT,
    "HASHTABLE_FIND": _TEXT,
    "HASHTABLE_IMPORT": _TEXT,
    "HASHTABLE_LOOKUP": _TEXT,
    "HASHTABLE_SIZE": _TEXT,
    "LSH_PROJECTION": _TEXT,
    "SKIP_GRAM": _TEXT,
    "MULTINOMIAL": _RANDOM,
    "RANDOM_STANDARD_NORMAL": _RANDOM,
    "RANDOM_UNIFORM": _RANDOM,
    "STABLEHLO_RNG_BIT_GENERATOR": _RANDOM,
}
"""The reasons why an operator has no row, by its name."""
