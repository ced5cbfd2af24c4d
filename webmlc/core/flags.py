"""The environment variables webmlc reads: two, both for people who debug it.

`WEBMLC_DUMP=dir` writes every stage as numbered text. `WEBMLC_VERIFY`: 0 verifies nothing, 1
(default) every kernel between stages, 2 also interprets before and after each schedule step on
small inputs.
"""

from __future__ import annotations

import os
from pathlib import Path


def dump_folder() -> Path | None:
    """Where stages are written, or `None`."""
    value = os.environ.get("WEBMLC_DUMP", "")
    return Path(value) if value else None


def verify_level() -> int:
    """0, 1 or 2."""
    value = os.environ.get("WEBMLC_VERIFY", "1")
    return int(value) if value in ("0", "1", "2") else 1
