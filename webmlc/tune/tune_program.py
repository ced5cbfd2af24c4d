"""Search the space of a schedule function: `webmlc.tune(schedule_function, space)`.

In: a function that returns the schedule of some parameters, their candidate values, and the options
of a search. Out: a `ProgramResult`. Search, engines and database are those of `webmlc tune`; the
only task is the function's program (`schedule_function`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from webmlc.core.errors import UserError
from webmlc.core.machine import MACHINES, Device
from webmlc.programs.compiled import CompiledKernel, compile_program
from webmlc.programs.tir import Schedule
from webmlc.tune.json_lines import open_to_change
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.options import TuneOptions
from webmlc.tune.report.write_report import write_report
from webmlc.tune.run import Measurer, check_request, machine_name
from webmlc.tune.schedule_function import ScheduleFunction, task_of
from webmlc.tune.search.outcomes import outcomes_of
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import Options, TaskSearch
from webmlc.tune.user_space import Values, arguments_of, read_space


@dataclass(frozen=True, slots=True)
class MeasuredParameters:
    """A row of a search: parameters, the milliseconds of a call of their kernel, and the shortest
    time up to this row. Parameters whose kernel fails have the milliseconds None, and a `reason`.
    """

    parameters: Mapping[str, Any]
    milliseconds: float | None
    best_milliseconds: float
    reason: str = ""


@dataclass(frozen=True)
class ProgramResult:
    """The result of a search of schedules, on the platform (an engine on a piece of hardware) that
    began first.

    - `parameters`, `schedule`, `milliseconds`: of the fastest kernel, as the last trial measured
      it. `gain` is the time of the default parameters over its time.
    - `default_milliseconds`: of the default, which every row is measured beside. The milliseconds
      of a row are its ratio to the default, times these.
    - `measurements`: a row for each measured kernel, in order, with those of earlier searches that
      this search resumed. The default, which every other kernel is measured beside, has no row.
    - `refusals`: the parameters without a kernel, each with the reason.
    - `report`: a page to look at. `other_results`: of other platforms.
    """

    parameters: Mapping[str, Any]
    schedule: Schedule
    milliseconds: float
    gain: float
    default_milliseconds: float
    measurements: tuple[MeasuredParameters, ...]
    refusals: tuple[tuple[Mapping[str, Any], str], ...]
    target: Device
    platform: str
    database: Path
    report: Path
    was_interrupted: bool = False
    other_results: tuple[ProgramResult, ...] = ()

    @cached_property
    def kernel(self) -> CompiledKernel:
        """The fastest kernel, compiled for the target."""
        return compile_program(self.schedule, self.target)


def tune_program(
    function: ScheduleFunction,
    space: Values,
    request: TuneOptions,
    measurements: int,
    default: Mapping[str, Any] | None = None,
) -> ProgramResult:
    """Search as requested (see `webmlc.tune.tune`)."""
    check_request(request)
    if measurements < 1:
        raise UserError(f"measurements={measurements}: a search needs one or more")
    machine = MACHINES[machine_name(request)]
    task = task_of(function, read_space(space), machine, request.sizes or {}, default)
    options = Options(
        request.strategy,
        request.seconds,
        measurements=measurements,
        seed=request.seed,
        model=task.name,
        resume=request.resume,
        is_guided=default is not None,
    )
    builder = CandidateBuilder(request.threads)
    with open_to_change(request.database) as records, ExitStack() as stack:
        search = Search([task], options, records, builder, request.on_change, compare=_nothing)
        was_interrupted = Measurer(request, stack).measure_until_interrupted(search)
    report = write_report(request.database.with_suffix(".html"), search.all_searches(), options)
    if not search.searches:
        raise UserError(f"{task.name}: the search ended before an engine was ready")
    results = [_result(s, request, report) for s in search.all_searches() if _has_time(s)]
    return replace(results[0], was_interrupted=was_interrupted, other_results=tuple(results[1:]))


def _nothing(searches: Sequence[TaskSearch]) -> tuple[()]:
    """The comparisons after a search of one kernel: its last trial has compared it."""
    return ()


def _has_time(search: TaskSearch) -> bool:
    """True for a search that measured its default. Raises `UserError` if the engine refuses it."""
    name = search.task.name
    if search.failure:
        raise UserError(
            f"{name}: the default parameters {arguments_of(search.control.member)} do not run in "
            f"{search.platform.engine}: {search.failure}"
        )
    if not search.is_measured:
        seconds = search.options.seconds
        raise UserError(f"{name}: nothing was measured in {seconds:g} s. Allow more seconds")
    return True


def _result(search: TaskSearch, request: TuneOptions, report: Path) -> ProgramResult:
    """The result of one platform."""
    (outcome,) = outcomes_of([search])
    kernel = search.task.match.facts
    return ProgramResult(
        arguments_of(outcome.member),
        kernel.schedule(outcome.member),
        outcome.tuned_ms,
        outcome.gain,
        search.control_ms,
        tuple(_rows(search)),
        tuple((arguments_of(member), reason) for member, reason in search.refusals.items()),
        search.task.device,
        search.platform.key,
        request.database,
        report,
    )


def _rows(search: TaskSearch) -> list[MeasuredParameters]:
    """The measurements of a search, in order."""
    measured = [key for key in search.ratios if key != search.control.text]
    return [
        MeasuredParameters(
            arguments_of(search.members[key]),
            None if (ratio := search.ratios[key]) is None else ratio * search.control_ms,
            best * search.control_ms,
            search.reasons.get(key, ""),
        )
        for key, best in zip(measured, search.curve, strict=True)
    ]
