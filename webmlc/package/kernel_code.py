"""The code of kernels: what to compile, the code as bytes, and its key in the cache of builds.

In: a kernel, a machine, and the form of its code. Out: its code, which `join_functions` or
`join_shaders` joins to a module.

    task = Task(kernel, RELAXED, "relaxed")
    data = to_bytes(print_code(lowered, task))
    from_bytes(data)                           # the same code, without its origin

The code of a kernel depends on nothing but its loops, its machine, its form, the parameters that
hold constants, and the compiler. It holds no names and no places: a model that was changed in one
layer has the same code for all others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from webmlc.core.machine import Machine
from webmlc.loops.content import kernel_key
from webmlc.loops.ir import LoopFunction
from webmlc.package.size_json import from_size, to_size
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
    constants, which shaders declare in another way.
    """

    kernel: LoopFunction
    machine: Machine
    form: str
    constants: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The key of the code in the cache of builds."""
        return kernel_key("code", self.kernel, self.machine, self.form, *sorted(self.constants))


def form_of(variant: str) -> str:
    """The form of a variant's code: `relaxed` also for the extensions of relaxed SIMD."""
    return "relaxed" if variant in ("dot", "pairs") else variant


def print_code(lowered: LoopFunction, task: Task) -> Code:
    """The code of a task's kernel, which was lowered."""
    if task.machine.device == "webgpu":
        return emit_shader(lowered, task.constants, task.machine.features)
    return print_function(lowered, task.form)


def to_bytes(code: Code) -> bytes:
    """Convert the code of a kernel to bytes, without its origin."""
    match code:
        case Printed(text=text, loops=loops, parameters=parameters, scratch_bytes=scratch):
            return json.dumps([text, loops, parameters, scratch]).encode()
        case Shader(text=text, workgroups=sizes, symbols=symbols, helpers=helpers):
            workgroups = [to_size(size) for size in sizes]
            record = [text, workgroups, symbols, helpers, code.needs_infinity, code.features]
            return json.dumps(record).encode()


def from_bytes(data: bytes | memoryview) -> Code:
    """The code of a kernel that `to_bytes` converted."""
    match json.loads(bytes(data)):
        case [text, int(loops), parameters, scratch]:
            return Printed(text, loops, parameters, scratch)
        case [text, [x, y, z], symbols, helpers, needs_infinity, features]:
            return Shader(
                text,
                (from_size(x), from_size(y), from_size(z)),
                tuple(symbols),
                tuple(helpers),
                needs_infinity,
                features=tuple(features),
            )
    raise ValueError("not the code of a kernel")
