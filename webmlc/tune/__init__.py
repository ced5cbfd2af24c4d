"""Find faster schedules by measuring the members of a rule's space.

    webmlc.tune("model.onnx", device="wasm", engine="chromium", seconds=600)
    with open_records(Path("tuned.db")) as database:
        choose = TunedChooser(database)
        webmlc.build("model.onnx", "build/model", choose=choose, algorithms=choose.algorithms())

`webmlc tune` and `webmlc build --tuned tuned.db` do the same from the command line.

- `tasks`: the kernels of a model.
- `search/`: the next trial. `search` runs the searches of all tasks, `task_search` is the search of
  one task. `strategies` choose its next members, and `priorities` the next task. `comparison`
  decides which schedules the model keeps.
- `measure/`: members of spaces as code (`candidates`), candidates that are measured together
  (`trial`), the engines that measure trials, and the workers that have engines.
- `cluster/`: workers on other machines.
- `database`, `choose`: the measurements, and how a build uses them.
- `report/`: the gains of a search, in the terminal and on a page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webmlc.frontend.read_model import Source
    from webmlc.tune.run import Result


def tune(model: Source, *, database: str | Path = "tuned.db", **options: Any) -> Result:
    """Search faster schedules for a model's kernels, and store them in the file `database`.

    Options are the fields of `webmlc.tune.options.TuneOptions`:

    - `device`: "wasm" or "webgpu".
    - `engine`: the engine that measures: "chromium", "node", "wasmtime" or "firefox" for `wasm`;
      "chromium" or "wgpu" for `webgpu`. By default, the first installed engine of these.
    - `variant`: the module whose kernels are searched: "relaxed", "simd128", "dot" or
      "pairs".
    - `adapter`: the adapter that shaders are made fast for, as in `webmlc.build`: "gpu" or
      "software".
    - `threads`: CPU threads that run a kernel.
    - `sizes`: the sizes of symbolic dimensions, by name; 1 if missing.
    - `constants`: inputs that become constants, as in `webmlc.build`.
    - `seconds`: the budget, from the first trial to the last confirmed winner. The engine starts
      before it, and the whole model is compared after it.
    - `strategy`: "auto", "race", "evolve", "tpe", "model" or "random".
    - `algorithms`: also search the algorithms of layers (Winograd's forms, Strassen's).
    - `resume`: go on from the measurements of an earlier search.
    - `listen_at`: an address and a port at which other devices join by opening a page.
    - `scheduler`: the address of a Dask scheduler, whose workers measure.
    - `on_change`: called with the search after every trial.

    It starts processes, which read the caller's script first: call it under
    `if __name__ == "__main__"`.

    Raises `UserError` for anything that the caller can mend, before anything is measured.
    """
    from webmlc.tune.options import TuneOptions
    from webmlc.tune.run import run

    return run(model, TuneOptions(database=Path(database), **options))
