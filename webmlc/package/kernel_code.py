"""The code of kernels: what to compile, the code as JSON, and its key in the cache of builds.

In: a kernel, a machine, and the form of its code. Out: its code, which `Target.join` joins to the
code of a variant.

    task = Task(kernel, RELAXED, "relaxed")
    data = to_data(print_code(lowered, task))
    code_of(data)                              # the same code, without its origin

A task with sizes asks for an explanation, for the report of a model: the schedule of the kernel,
the stages that each line computes, and the work. The cache of builds keeps it beside the code:

    explained = explain(task, rule, schedule.trace, lowered, marked)
    from_bytes(to_bytes(explained))            # the same, without what depends on the kernel's name

The code of a kernel depends on nothing but its loops, its machine, its form, the parameters that
hold constants, and the compiler. The code contains no names and no addresses. After a change in one
layer of a model, the code of all other layers is therefore the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from webmlc.core.machine import Gpu
from webmlc.loops.ir import LoopFunction
from webmlc.package.sizes import from_size, to_size
from webmlc.schedule.trace import Trace
from webmlc.schedule.tuning import Tuning
from webmlc.target.kernel_work import Kernel, KernelWork, kernel_work
from webmlc.target.line_stages import Stages, split_marks
from webmlc.target.target import Task
from webmlc.target.targets import TARGETS
from webmlc.target.wasm.printer import Printed
from webmlc.target.webgpu.dispatch_work import DispatchWork, dispatch_work
from webmlc.target.webgpu.printer import Shader

Code = Printed | Shader
"""The code of a kernel for a variant."""


def print_code(lowered: LoopFunction, task: Task, *, shows_stages: bool = False) -> Code:
    """The code of a task's lowered kernel. If `shows_stages`, each line of the text ends with the
    marks of its stages (`target.line_stages`).
    """
    code: Code = TARGETS[task.machine.device].print_kernel(lowered, task, shows_stages)
    return code


@dataclass(frozen=True, slots=True)
class KernelLines:
    """The lines of a lowered kernel's code, with the stages of each line, printed on demand."""

    lowered: LoopFunction
    task: Task

    def split(self) -> tuple[str, list[Stages]]:
        """The text of `print_code`, and the stages of each line."""
        return split_marks(print_code(self.lowered, self.task, shows_stages=True).text)

    def text(self) -> str:
        """The code with its ONNX nodes: a line ends with its nodes if they differ from the nodes
        of the previous line. The node names come from the first call of the kernel.
        """
        comment = TARGETS[self.task.machine.device].comment
        origins = self.task.kernel.stages
        text, line_stages = self.split()
        lines: list[str] = []
        before = ""
        for line, stages in zip(text.split("\n"), line_stages, strict=True):
            names = ", ".join(dict.fromkeys(name for stage in stages for name in origins[stage]))
            lines.append(line if names in ("", before) else f"{line}  {comment} {names}")
            before = names or before
        return "\n".join(lines)


def to_data(code: Code) -> list[Any]:
    """Convert the code of a kernel to JSON, without its origin."""
    match code:
        case Printed(text=text, loops=loops, parameters=parameters, scratch_bytes=scratch):
            return [text, loops, parameters, scratch]
        case Shader(text=text, workgroups=sizes, symbols=symbols, helpers=helpers):
            workgroups = [to_size(size) for size in sizes]
            sections = [to_size(size) for size in code.sections]
            return [text, workgroups, symbols, helpers, code.features, sections]


def code_of(data: list[Any]) -> Code:
    """The code of a kernel that `to_data` converted."""
    match data:
        case [text, int(loops), parameters, scratch]:
            return Printed(text, loops, parameters, scratch)
        case [text, [x, y, z], symbols, helpers, features, sections]:
            return Shader(
                text,
                (from_size(x), from_size(y), from_size(z)),
                tuple(symbols),
                tuple(helpers),
                features=tuple(features),
                sections=tuple(from_size(size) for size in sections),
            )
    raise ValueError("not the code of a kernel")


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
