"""The two environment variables for debugging the compiler. (`disk_cache` reads a third one.)

`WEBMLC_DUMP=dir` writes every stage as numbered text. `WEBMLC_VERIFY=0` verifies nothing. `1`, the
default, verifies every kernel between stages. `2` also runs the interpreter before and after each
schedule step on small inputs.
"""

from __future__ import annotations

import os
from pathlib import Path


def dump_folder() -> Path | None:
    """The folder to write stages to, or `None`."""
    value = os.environ.get("WEBMLC_DUMP", "")
    return Path(value) if value else None


def verify_level() -> int:
    """The level that `WEBMLC_VERIFY` asks for: 0, 1 or 2."""
    value = os.environ.get("WEBMLC_VERIFY", "1")
    return int(value) if value in ("0", "1", "2") else 1
