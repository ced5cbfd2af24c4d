"""Define the record that holds everything that differs between the devices a model is compiled for.

`targets.TARGETS` lists the records. The compiler iterates over them and compares no device's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from webmlc.core.machine import Device, Machine
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Module
from webmlc.loops.content import kernel_key
from webmlc.loops.ir import LoopFunction, Store, walk_statements
from webmlc.loops.write_out_instructions import instructions_of

M = TypeVar("M", bound=Machine)
Pass = Callable[[LoopFunction], LoopFunction]
Lowering = Callable[[M], tuple[Pass, ...]]
"""The passes of a machine, in order. Machines that need the same passes return the same tuple."""


@lru_cache(maxsize=1024)
def run_passes(function: LoopFunction, passes: tuple[Pass, ...]) -> LoopFunction:
    """Run passes in order. Cached: `split_kernels` has usually lowered this kernel already, and
    both WASM variants have one schedule for most kernels.

    Functions that differ only in their `origin` are equal, so the result may have another's origin.
    """
    for step in passes:
        function = step(function)
    return function


Need = Callable[[LoopFunction], bool]
"""True for a kernel that needs the feature which distinguishes a variant from another variant."""
ModulePass = tuple[str, Callable[[Module], Module]]
"""A title for people to read, and the function that rewrites a module."""
Alternatives = Mapping[str, Mapping[int, str]]
"""For some kernels, their replacements on the machines of a class, by the number of the class."""


@dataclass(frozen=True, slots=True)
class Variant(Generic[M]):
    """A form of a target's code: a module or a text of shaders for machines with some features.

    - `form`: how its kernels are printed and joined; the target's functions know its forms.
    - `otherwise`: a kernel without a need has the code of the variant beside the need, so that
      equal code is compiled once.
    - `is_optional`: a package leaves it out if it would equal another variant.
    - `is_explained`: a report explains its kernels.
    """

    machine: M
    form: str
    otherwise: tuple[tuple[Need, Variant[M]], ...] = ()
    is_optional: bool = False
    is_explained: bool = True

    def machine_of(self, kernel: LoopFunction) -> M:
        """The machine to compile a kernel of this variant for. A kernel that calls instructions is
        compiled for each machine: it may use what others lack.
        """
        if next(instructions_of(kernel), None) is not None:
            return self.machine
        for need, other in self.otherwise:
            if not need(kernel):
                return other.machine_of(kernel)
        return self.machine


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel to compile for a machine.

    `form` is the form of its variant. `constants` are the parameters that hold constants, which
    shaders declare in another way. `sizes`, if given, are the sizes of the kernel's symbols, for an
    explanation of the code (`package.explanation`).
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


class JoinedCode(Protocol):
    """The code of all kernels of a variant: its text, and the lines of each kernel in the text."""

    @property
    def text(self) -> str: ...
    @property
    def lines(self) -> Mapping[str, range]: ...


@dataclass(frozen=True, slots=True)
class Target(Generic[M]):
    """A device, the passes from a model to its kernels, and the functions from kernels to code.

    - `variants`: the variants by their names in the package.
    - `to_kernels`: the passes from the graph that all targets share to a module of kernels.
      `limits` bound its fusion.
    - `kernel_passes`: the passes that split kernels until each can be scheduled.
    - `alternatives`: names the alternatives to these passes' choice for each layer
      (`Module.algorithms`), the default first.
    - `lowering`: the passes from a scheduled kernel to the form that `print_kernel` prints.
      `print_kernel` ends the lines with marks of their stages (`target.line_stages`) if its last
      argument says so.
    - `join`: joins the codes of kernels to the code of a variant. It takes the codes by name, the
      steps that call them (of every program, if the device runs steps), the alternatives, and the
      form of the variant.
    - `declares_constants`: whether a kernel's code depends on which parameters hold constants.
    - `stem`, `language`, `comment`: the name of the text's files, their ending, and the start of a
      comment.
    """

    device: Device
    variants: Mapping[str, Variant[M]]
    limits: FusionLimits
    to_kernels: tuple[ModulePass, ...]
    kernel_passes: tuple[ModulePass, ...]
    alternatives: Callable[[Module], Mapping[str, tuple[str, ...]]]
    lowering: Lowering[M]
    print_kernel: Callable[[LoopFunction, Task, bool], Any]
    join: Callable[[Mapping[str, Any], Sequence[Any], Alternatives, str], JoinedCode]
    declares_constants: bool
    stem: str
    language: str
    comment: str

    @property
    def passes(self) -> tuple[ModulePass, ...]:
        """The passes from the graph that all targets share to kernels that can be scheduled."""
        return self.to_kernels + self.kernel_passes


AnyTarget = Target[Any]
