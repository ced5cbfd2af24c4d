"""Find faster schedules by measuring the members of a rule's space.

    webmlc.tune("model.onnx", device="wasm", engine="chromium", seconds=600)
    with open_records(Path("tuned.db")) as database:
        choose = TunedChooser(database)
        webmlc.build("model.onnx", "build/model", choose=choose, algorithms=choose.algorithms())

`webmlc tune` and `webmlc build --tuned tuned.db` do the same from the command line. The space of a
schedule function is searched in the same way:

    result = webmlc.tune(schedule_function, {"rows": [1, 2, 4], "columns": [8, 16]})

- `tasks`: the kernels of a model.
- `tune_program`: the search of a schedule function; `schedule_function` and `user_space`: its task.
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

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from webmlc.core.machine import Device
    from webmlc.frontend.read_model import Source
    from webmlc.tune.run import Result
    from webmlc.tune.schedule_function import ScheduleFunction
    from webmlc.tune.tune_program import ProgramResult
    from webmlc.tune.user_space import Values

MEASUREMENTS = 64
"""The candidates of a schedule function that are measured unless its caller says otherwise. Chosen
by hand: a minute for a kernel of some milliseconds."""


@overload
def tune(model: Source, /, *, database: str | Path = ..., **options: Any) -> Result: ...


@overload
def tune(
    schedule_function: ScheduleFunction,
    space: Values,
    /,
    *,
    target: Device = ...,
    measurements: int = ...,
    default: Mapping[str, Any] | None = ...,
    database: str | Path = ...,
    **options: Any,
) -> ProgramResult: ...


def tune(
    subject: Any,
    space: Values | None = None,
    /,
    *,
    database: str | Path = "tuned.db",
    **options: Any,
) -> Result | ProgramResult:
    """Search faster schedules for the kernels of a model, or for the program of a schedule
    function, and store them in the file `database`.

    `webmlc.tune(model)` searches the spaces of the compiler's own rules. Options are the fields of
    `webmlc.tune.options.TuneOptions`:

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
    - `operators`: operators of your own that the model has, as in `webmlc.build`.
    - `seconds`: the budget, from the first trial to the last confirmed winner. The engine starts
      before it, and the whole model is compared after it.
    - `strategy`: "auto", "race", "evolve", "tpe", "model" or "random".
    - `seed`: of strategies that draw at random.
    - `algorithms`: also search the algorithms of layers (Winograd's forms, Strassen's).
    - `resume`: go on from the measurements of an earlier search.
    - `listen_at`: an address and a port at which other devices join by opening a page.
    - `scheduler`: the address of a Dask scheduler, whose workers measure.
    - `on_change`: called with the search after every trial.

    `webmlc.tune(schedule_function, space)` searches a space of the caller. The function gets
    parameters as keyword arguments, and returns their `tir.Schedule`, or None to refuse them. The
    space is a mapping of each parameter to its candidate values (`webmlc.tune.user_space`).
    Parameters that a primitive refuses are not measured. The result is a `ProgramResult`. The other
    options are those of a model, except `device`, `algorithms` and `constants`, and also

    - `target`: "wasm" or "webgpu", as in `webmlc.compile`.
    - `measurements`: the most candidates that are measured, 64 by default. The search also ends
      with its `seconds`.
    - `default`: the parameters to start from, which every candidate is measured beside and compared
      with. By default, the first parameters that build.
    - `sizes`: every symbol of the program needs its size.
    - `resume`: True by default. Records serve as long as the program, the space and the schedules
      stay the same.

    It starts processes, which read the caller's script first: call it under
    `if __name__ == "__main__"`.

    Raises `UserError` for anything that the caller can mend, before anything is measured.
    """
    from webmlc.core.errors import UserError
    from webmlc.tune.options import TuneOptions

    if space is None:
        from webmlc.tune.run import run

        if callable(subject):
            raise UserError("a schedule function needs a space: webmlc.tune(function, space)")
        return run(subject, TuneOptions(database=Path(database), **options))
    from webmlc.tune.tune_program import tune_program

    if not callable(subject):
        raise UserError("a space belongs to a schedule function: webmlc.tune(function, space)")
    target, default = options.pop("target", "wasm"), options.pop("default", None)
    measurements = options.pop("measurements", MEASUREMENTS)
    request = TuneOptions(target, database=Path(database), **{"resume": True, **options})
    return tune_program(subject, space, request, measurements, default)
