"""Schedule and lower the kernels of a variant, and note which schedules are not the default ones.

    compiler = KernelCompiler(choose, watch)
    compiled = compiler.compile(kernels, machine, "relaxed")
    emit_module(compiled.functions, steps, "relaxed", compiled.alternatives)
    compiler.tuned, compiler.machines              # for the manifest

Where two classes of machines want different schedules of a kernel, both are compiled. The one for
a class is a kernel of its own, `matmul_on_machine_1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from webmlc.core.flags import verify_level
from webmlc.core.machine import Machine
from webmlc.core.machine_class import MachineClass
from webmlc.core.rewrite import walk
from webmlc.core.stages import Stage, Watcher
from webmlc.loops import text as loop_text
from webmlc.loops.ir import LoopFunction, expressions, walk_statements
from webmlc.loops.name_dimensions import NamedDimensions, name_dimensions
from webmlc.loops.verify import verify
from webmlc.package.manifest import TunedKernel
from webmlc.schedule.rules import Alternative, Chooser, Selection, find_match, machine_of
from webmlc.schedule.schedule import Schedule
from webmlc.target.bind_dimensions import bind_dimensions
from webmlc.target.targets import lower

ALTERNATIVE_SHARE = 0.25
"""The schedules for classes of machines add at most this share to the size of a variant's code.

Chosen by hand: code is a small part of a package, and every machine downloads all of it.
"""
ALTERNATIVE_ROOM = 10_000
"""But they may always have this many scalar operations: some tens of kilobytes (chosen by hand)."""


@dataclass(frozen=True, slots=True)
class CompiledKernels:
    """The lowered kernels of a variant. `alternatives` names, for some of them, the kernel that
    replaces it on the machines of a class, by the number of the class.
    """

    functions: Mapping[str, LoopFunction]
    alternatives: Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class _Other:
    """A kernel for a class of machines, before it is known if there is room for it."""

    kernel: str
    source: str
    alternative: Alternative
    function: LoopFunction


@dataclass(slots=True)
class KernelCompiler:
    """Compiles kernels. `tuned` are those whose schedules are not the default ones, and `machines`
    the classes that have schedules of their own, in the order of their numbers.
    """

    choose: Chooser
    watch: Watcher
    tuned: list[TunedKernel] = field(default_factory=list)
    machines: list[MachineClass] = field(default_factory=list)

    def compile(
        self, kernels: Mapping[str, LoopFunction], variant: Machine, title: str
    ) -> CompiledKernels:
        """Schedule and lower every kernel for a variant's machine. `title` names the variant."""
        functions: dict[str, LoopFunction] = {}
        candidates: list[_Other] = []
        for name, kernel in kernels.items():
            machine = machine_of(kernel, variant)
            named = name_dimensions(kernel)
            selection = self._select(named, machine, title, name)
            functions[name] = self._lower(kernel, named, selection.schedule, machine, title, name)
            if selection.tuning is not None:
                self.tuned.append(TunedKernel(named.function.name, title, selection.tuning))
            for alternative in selection.alternatives:
                schedule = alternative.schedule
                function = self._lower(kernel, named, schedule, machine, title, name)
                candidates.append(_Other(name, named.function.name, alternative, function))
        alternatives: dict[str, dict[int, str]] = {}
        for other in _with_room(candidates, functions):
            number = self._number(other.alternative.machine)
            name = f"{other.kernel}_on_machine_{number}"
            functions[name] = replace(other.function, name=name)
            alternatives.setdefault(other.kernel, {})[number] = name
            tuning = other.alternative.tuning
            self.tuned.append(TunedKernel(other.source, title, tuning, number))
        return CompiledKernels(functions, alternatives)

    def _select(self, named: NamedDimensions, machine: Machine, title: str, name: str) -> Selection:
        """Choose the schedules of a kernel with named dimensions."""
        show = partial(loop_text.print_function, named.function)
        self.watch(Stage(f"{title}: loops", show, name))
        if verify_level():
            verify(named.function)
        return self.choose(find_match(named.function, machine))

    def _lower(
        self,
        kernel: LoopFunction,
        named: NamedDimensions,
        schedule: Schedule,
        machine: Machine,
        title: str,
        name: str,
    ) -> LoopFunction:
        """Lower a scheduled kernel."""
        scheduled = schedule.function
        self.watch(Stage(f"{title}: schedule", partial(loop_text.print_function, scheduled), name))
        lowered = bind_dimensions(lower(scheduled, machine), named.values)
        lowered = replace(lowered, origin=kernel.origin)
        self.watch(Stage(f"{title}: lowered", partial(loop_text.print_function, lowered), name))
        return lowered

    def _number(self, machine: MachineClass) -> int:
        """The number of a class of machines, from 1 on."""
        if machine not in self.machines:
            self.machines.append(machine)
        return 1 + self.machines.index(machine)


def _with_room(candidates: list[_Other], functions: Mapping[str, LoopFunction]) -> Iterator[_Other]:
    """The kernels for classes of machines for which there is room, those that gain most first."""
    if not candidates:
        return
    room = max(ALTERNATIVE_ROOM, ALTERNATIVE_SHARE * sum(map(_size, functions.values())))
    for other in sorted(candidates, key=lambda o: o.alternative.tuning.ratio):
        size = _size(other.function)
        if size <= room:
            room -= size
            yield other


def _size(function: LoopFunction) -> int:
    """The number of scalar operations in the text of a kernel: the size of its code."""
    roots = (root for stmt in walk_statements(function.body) for root in expressions(stmt))
    return sum(1 for root in roots for _ in walk(root))
