"""Write the package of the kernel that measures the limit of a CPU: multiply-adds on registers.

In: a folder. Out: the package of `webmlc.programs.limit`, which `page/limit.js` runs, and the
floating-point operations of a run.

    flops = write_limit(OUT / "limit")
"""

from __future__ import annotations

from pathlib import Path

import webmlc
from webmlc.loops.count_work import count_work
from webmlc.programs.limit import multiply_adds


def write_limit(folder: Path) -> int:
    """Write the package, and return the operations of a run. All threads of a run take part."""
    kernel = webmlc.compile(multiply_adds("wasm", parallel=True), "wasm")
    kernel.save(folder, force=True)
    return count_work(kernel.function, {}).flops
