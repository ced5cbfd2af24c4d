"""Explain the code of a kernel: its schedule, the stages that each line computes, and its work.

In: a task with sizes (`target.target.Task`), the schedule of its kernel, and the lowered function.
Out: an `Explanation`, for the report of a model. The cache of builds keeps it beside the code:

    marked = print_code(lowered, task, shows_stages=True)
    explained = explain(task, rule, schedule.trace, lowered, marked)
    from_bytes(to_bytes(explained))            # the same, without what depends on the kernel's name
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from webmlc.core.machine import Gpu
from webmlc.loops.ir import LoopFunction
from webmlc.package.kernel_code import Code, code_of, to_data
from webmlc.schedule.trace import Trace
from webmlc.schedule.tuning import Tuning
from webmlc.target.kernel_work import Kernel, KernelWork, kernel_work
from webmlc.target.line_stages import Stages, split_marks
from webmlc.target.target import Task
from webmlc.target.webgpu.dispatch_work import DispatchWork, dispatch_work


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a kernel: how it became its code, and the work of the code.

    - `rule`, `trace`: the rule and the trace of the kernel's schedule.
    - `lines`: the stages that each line of the code computes.
    - `work`: the work of one run with the sizes of the task.
    - `dispatch`: the dispatch of a kernel for the GPU.
    - `loops`: prints the kernel, with its name, before the first step of its schedule.
    - `tuning`: why the schedule is not the default one.
    """

    rule: str
    trace: Trace
    lines: Sequence[Stages]
    work: KernelWork
    dispatch: DispatchWork | None
    loops: Callable[[], str] = str
    tuning: Tuning | None = None


@dataclass(frozen=True, slots=True)
class ExplainedCode:
    """The code of a kernel, with its explanation if its task asks for one."""

    code: Code
    explanation: Explanation | None = None


def explain(
    task: Task, rule: str, trace: Trace, lowered: LoopFunction, marked: Code
) -> ExplainedCode:
    """Explain the code of a task that has sizes. `marked` is the code with its stages marked."""
    assert task.sizes is not None
    names = [symbol.name for symbol in task.kernel.symbols]
    sizes = dict(zip(names, task.sizes, strict=True))
    text, lines = split_marks(marked.text)
    work = kernel_work(Kernel(task.kernel, lambda: lowered), sizes)
    dispatch = dispatch_work(lowered, sizes) if isinstance(task.machine, Gpu) else None
    return ExplainedCode(
        replace(marked, text=text), Explanation(rule, trace, lines, work, dispatch)
    )


def to_bytes(explained: ExplainedCode) -> bytes:
    """Convert a kernel's code (without its origin) and its explanation to bytes."""
    explanation = explained.explanation
    data: Any = None
    if explanation is not None:
        work, dispatch = asdict(explanation.work), explanation.dispatch
        dispatch_data = None if dispatch is None else asdict(dispatch)
        data = [explanation.rule, explanation.trace, explanation.lines, work, dispatch_data]
    return json.dumps([to_data(explained.code), data]).encode()


def from_bytes(data: bytes | memoryview) -> ExplainedCode:
    """The code and the explanation that `to_bytes` converted."""
    code, explanation = json.loads(bytes(data))
    if explanation is None:
        return ExplainedCode(code_of(code))
    rule, trace, lines, work, dispatch = explanation
    return ExplainedCode(
        code_of(code),
        Explanation(
            rule,
            trace,
            list(map(tuple, lines)),
            KernelWork(**work),
            None if dispatch is None else DispatchWork(**dispatch),
        ),
    )
