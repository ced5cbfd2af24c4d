"""The code of kernels: what to compile, the code as JSON, and its key in the cache of builds.

In: a kernel, a machine, and the form of its code. Out: its code, which `join_functions` or
`join_shaders` joins to a module.

    task = Task(kernel, RELAXED, "relaxed")
    data = to_data(print_code(lowered, task))
    code_of(data)                              # the same code, without its origin

The code of a kernel depends on nothing but its loops, its machine, its form, the parameters that
hold constants, and the compiler. It holds no names and no places: a model that was changed in one
layer has the same code for all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from webmlc.core.machine import Gpu, Machine
from webmlc.loops.content import kernel_key
from webmlc.loops.ir import LoopFunction, Store, walk_statements
from webmlc.package.size_json import from_size, to_size
from webmlc.target.line_stages import Stages, split_marks
from webmlc.target.wasm.emit_module import print_function
from webmlc.target.wasm.printer import Printed
from webmlc.target.webgpu.emit_shaders import emit_shader
from webmlc.target.webgpu.printer import Shader

Code = Printed | Shader
"""The code of a kernel for a variant."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel to compile for a machine.

    `form` says how its code is printed (`form_of`). `constants` are the parameters that hold
    constants, which shaders declare in another way. `sizes` asks for an explanation of the code
    (`explanation`): they are those of the kernel's symbols.
    """

    kernel: LoopFunction
    machine: Machine
    form: str
    constants: frozenset[str] = frozenset()
    sizes: tuple[int, ...] | None = None

    @property
    def key(self) -> str:
        """The key of the code in the cache of builds, or of the code with its explanation."""
        decisive = [self.form, *sorted(self.constants)]
        if self.sizes is None:
            return kernel_key("code", self.kernel, self.machine, *decisive)
        stores = (s for s in walk_statements(self.kernel.body) if isinstance(s, Store))
        decisive.append(repr((self.sizes, [store.stage for store in stores])))
        return kernel_key("explained code", self.kernel, self.machine, *decisive)


def form_of(variant: str) -> str:
    """The form of a variant's code: `relaxed` also for the extensions of relaxed SIMD."""
    return "relaxed" if variant in ("dot", "pairs") else variant


def print_code(lowered: LoopFunction, task: Task, *, shows_stages: bool = False) -> Code:
    """The code of a task's kernel, which was lowered. If the text shows its stages, its lines end
    with their marks (`target.line_stages`).
    """
    if isinstance(task.machine, Gpu):
        return emit_shader(
            lowered,
            task.constants,
            task.machine.features,
            is_software=task.machine.compiles_slowly,
            shows_stages=shows_stages,
        )
    return print_function(lowered, task.form, shows_stages=shows_stages)


@dataclass(frozen=True, slots=True)
class KernelLines:
    """The lines of the code of a lowered kernel, with what each computes. It prints on demand."""

    lowered: LoopFunction
    task: Task

    def split(self) -> tuple[str, list[Stages]]:
        """The text of `print_code`, and the stages of each line."""
        return split_marks(print_code(self.lowered, self.task, shows_stages=True).text)

    def text(self) -> str:
        """The code, with the ONNX nodes of a line behind it where those of the line before differ.
        The names are those of the first call of the kernel.
        """
        comment = "//" if self.task.machine.device == "webgpu" else ";;"
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
            flags = code.needs_infinity, code.features
            return [text, workgroups, symbols, helpers, *flags, sections]


def code_of(data: list[Any]) -> Code:
    """The code of a kernel that `to_data` converted."""
    match data:
        case [text, int(loops), parameters, scratch]:
            return Printed(text, loops, parameters, scratch)
        case [text, [x, y, z], symbols, helpers, needs_infinity, features, sections]:
            return Shader(
                text,
                (from_size(x), from_size(y), from_size(z)),
                tuple(symbols),
                tuple(helpers),
                needs_infinity,
                features=tuple(features),
                sections=tuple(from_size(size) for size in sections),
            )
    raise ValueError("not the code of a kernel")
