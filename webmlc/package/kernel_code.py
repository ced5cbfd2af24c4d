"""The code of kernels: what to compile, the code as JSON, and its key in the cache of builds.

In: a kernel, a machine, and the form of its code. Out: its code, which `Target.join` joins to the
code of a variant.

    task = Task(kernel, RELAXED, "relaxed")
    data = to_data(print_code(lowered, task))
    code_of(data)                              # the same code, without its origin

The code of a kernel depends on nothing but its loops, its machine, its form, the parameters that
hold constants, and the compiler. The code contains no names and no addresses. After a change in one
layer of a model, the code of all other layers is therefore the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from webmlc.loops.ir import LoopFunction
from webmlc.package.sizes import from_size, to_size
from webmlc.target.line_stages import Stages, split_marks
from webmlc.target.target import Task
from webmlc.target.targets import TARGETS
from webmlc.target.wasm.printer import Printed
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
