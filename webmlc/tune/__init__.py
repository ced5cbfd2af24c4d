"""Find faster schedules by measuring the members of a rule's space.

    webmlc.tune("model.onnx", device="wasm", engine="chromium", seconds=600)
    webmlc.build("model.onnx", "build/model", tuned="tuned.db")

- `tasks`: the kernels of a model. `candidates`: members of their spaces as code.
- `trial`: candidates that are measured together. `engines`, `page`: what measures them.
- `strategies`, `cost_model`, `model_search`: which members to measure next.
- `search`: the search of all tasks. `workers`, `listen`, `cluster`: who measures for it.
- `database`, `choose`: what was measured, and how a build uses it.
- `outcomes`: what a search achieved. `progress` shows it in the terminal, `report` on a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from webmlc.core.machine import Device, Features
    from webmlc.frontend.bind_constants import Constants
    from webmlc.frontend.read_model import Source
    from webmlc.tune.run import Result
    from webmlc.tune.search import Search


def tune(
    model: Source,
    *,
    device: Device = "wasm",
    engine: str | None = None,
    variant: Features = "relaxed",
    threads: int = 1,
    sizes: Mapping[str, int] | None = None,
    constants: Constants | None = None,
    seconds: float = 600.0,
    strategy: str = "auto",
    database: str | Path = "tuned.db",
    resume: bool = False,
    seed: int = 0,
    listen_at: tuple[str, int] | None = None,
    on_change: Callable[[Search], None] | None = None,
) -> Result:
    """Search the schedules of a model's kernels for `seconds`, and store them in `database`.

    - `engine` measures: "wasmtime", "node", "chromium" or "firefox" for `wasm`; "wgpu" or
      "chromium" for `webgpu`. Without it, Chromium if it is installed.
    - `variant` is the module whose kernels are searched: "relaxed", "simd128" or "dot".
    - `sizes` are those of symbolic dimensions, 1 where they are missing.
    - `strategy` is "auto", "race", "evolve", "tpe", "model" or "random".
    - `resume` goes on with what an earlier search measured.
    - `listen_at` is an address and a port at which other devices join by opening a page.
    - `on_change` is called after every trial.

    Raises `UserError` for anything that the caller can mend, before anything is measured.
    """
    from webmlc.tune.run import run

    return run(
        model,
        device=device,
        engine=engine,
        variant=variant,
        threads=threads,
        sizes=sizes or {},
        constants=constants,
        seconds=seconds,
        strategy=strategy,
        database=Path(database),
        resume=resume,
        seed=seed,
        listen_at=listen_at,
        on_change=on_change,
    )
