"""Compile the kernels of a variant, and note which schedules differ from the default schedules.

In: naive kernels. Out: their code, which `Target.join` joins to the code of a variant.

    with KernelCompiler(choose, watch, cache=user_cache(), jobs=2) as compiler:
        compiler.start(kernels, WASM.variants.values())    # other processes compile from here on
        tasks = compiler.tasks(kernels, WASM.variants["relaxed"])
        compiled = compiler.compile(tasks, "relaxed")
    WASM.join(compiled.codes, steps, compiled.alternatives, "relaxed")
    compiler.tuned, compiler.machines              # for the manifest
    compiler.explanations["relaxed", "conv_relu"]  # for a report, if the compiler has sizes

Equal kernels are compiled once, whatever their names. With a cache, this holds for all builds: see
`kernel_code`. If a caller chooses the schedules, this process compiles all kernels and does not use
the cache.

If two classes of machines need different schedules of a kernel, both are compiled. The kernel for
a class is a separate kernel, `matmul_on_machine_1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from webmlc.core.disk_cache import DiskCache
from webmlc.core.flags import verify_level
from webmlc.core.machine_class import MachineClass
from webmlc.core.rewrite import walk
from webmlc.core.stages import Stage, Watcher, ignore
from webmlc.loops import text as loop_text
from webmlc.loops.ir import LoopFunction, expressions, walk_statements
from webmlc.loops.name_dimensions import NamedDimensions, name_dimensions
from webmlc.loops.verify import verify
from webmlc.package.kernel_code import (
    Code,
    ExplainedCode,
    Explanation,
    KernelLines,
    explain,
    from_bytes,
    print_code,
    to_bytes,
)
from webmlc.package.kernel_pool import KernelPool
from webmlc.package.manifest import TunedKernel
from webmlc.schedule.rules import (
    Alternative,
    Chooser,
    Selection,
    choose_rule,
    default_schedule,
    find_match,
)
from webmlc.schedule.schedule import Schedule
from webmlc.schedule.tuning import Tuning
from webmlc.target.bind_dimensions import bind_dimensions
from webmlc.target.target import Alternatives, Task, Variant
from webmlc.target.targets import lower

ALTERNATIVE_SHARE = 0.25
"""The schedules for classes of machines add at most this share to the size of a variant's code.

Chosen by hand: code is a small part of a package, and every machine downloads all of it.
"""
ALTERNATIVE_ROOM = 10_000
"""Alternative schedules may always have this many scalar operations in total.

Chosen by hand: this is some tens of kilobytes of code.
"""
BY_HAND = "by hand"
"""The name that a report shows in place of a rule for a kernel that people scheduled."""


@dataclass(frozen=True, slots=True)
class CompiledKernels:
    """The code of the kernels of a variant.

    `alternatives`, by kernel and by the number of a class of machines, names the kernel that
    replaces it on machines of that class. `lowered` returns the lowered form of a kernel, and may
    compile the kernel again to do so.
    """

    codes: Mapping[str, Code]
    alternatives: Alternatives
    lowered: Mapping[str, Callable[[], LoopFunction]]


@dataclass(frozen=True, slots=True)
class _Other:
    """A kernel for a class of machines, before it is known if there is room for it."""

    kernel: str
    source: str
    alternative: Alternative
    function: LoopFunction


@dataclass(slots=True)
class KernelCompiler:
    """A compiler of kernels. `tuned` lists the kernels whose schedules are not the default.
    `machines` lists the classes of machines with separate schedules, in the order of their numbers.

    With `sizes` of symbolic dimensions, `explanations` holds an explanation of each kernel that a
    report shows, by variant and name (`Variant.is_explained`). A symbol without a size is 1.

    The watcher receives the stages of each kernel. With a cache or several `jobs`, the watcher
    receives only the code of each kernel.
    """

    choose: Chooser
    watch: Watcher
    cache: DiskCache | None = None
    jobs: int = 1
    sizes: Mapping[str, int] | None = None
    tuned: list[TunedKernel] = field(default_factory=list)
    machines: list[MachineClass] = field(default_factory=list)
    explanations: dict[tuple[str, str], Explanation] = field(default_factory=dict)
    codes: dict[str, ExplainedCode] = field(default_factory=dict)
    pool: KernelPool = field(init=False)

    def __post_init__(self) -> None:
        self.pool = KernelPool(self.jobs, _code_bytes)

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.__exit__(*error)

    @property
    def chooses(self) -> bool:
        """True if the caller chooses schedules. The cache has no code of such schedules."""
        return self.choose is not default_schedule

    @property
    def shows_stages(self) -> bool:
        """True where the watcher receives the stages of each kernel."""
        return self.cache is None and self.jobs == 1 and self.watch is not ignore

    def start(
        self,
        kernels: Mapping[str, LoopFunction],
        variants: Iterable[Variant[Any]],
        constants: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """Let other processes compile kernels for the machines of some variants."""
        if self.chooses or self.jobs == 1:
            return
        tasks: dict[str, Task] = {}
        for variant in variants:
            for task in self.tasks(kernels, variant, constants).values():
                if task.key not in tasks and not self._is_cached(task.key):
                    tasks[task.key] = task
        self.pool.start(tasks)

    def compile(self, tasks: Mapping[str, Task], title: str) -> CompiledKernels:
        """Compile every kernel of the variant named `title`."""
        if self.chooses:
            return self._compile_chosen(tasks, title)
        codes: dict[str, Code] = {}
        for name, task in tasks.items():
            codes[name] = self._code(task, title)
            self._note(title, name, task, self.codes[task.key].explanation)
        lowered = {name: partial(self._lowered, task, title) for name, task in tasks.items()}
        return CompiledKernels(codes, {}, lowered)

    def forget(self, title: str) -> None:
        """Drop all records of the kernels of a variant that the package does not have."""
        self.tuned = [kernel for kernel in self.tuned if kernel.variant != title]
        for key in [key for key in self.explanations if key[0] == title]:
            del self.explanations[key]

    def tasks(
        self,
        kernels: Mapping[str, LoopFunction],
        variant: Variant[Any],
        constants: Mapping[str, frozenset[str]] | None = None,
    ) -> dict[str, Task]:
        """The compile task of each kernel for a variant. `constants` are the parameters of each
        kernel that hold constants. Only shaders depend on them. The needs of variants tell which
        rule schedules a kernel, so they say nothing of a kernel with a schedule by hand.
        """
        read_only = constants or {}
        sizes = self.sizes if variant.is_explained else None
        return {
            name: Task(
                kernel,
                variant.machine if kernel.is_scheduled else variant.machine_of(kernel),
                variant.form,
                read_only.get(name, frozenset()),
                None if sizes is None else tuple(sizes.get(s.name, 1) for s in kernel.symbols),
            )
            for name, kernel in kernels.items()
        }

    def _code(self, task: Task, title: str) -> Code:
        """The code of a kernel with its default schedule."""
        key = task.key
        if self.shows_stages:
            lowered = self._lowered(task, title, self.watch)
            self._show_code(lowered, task, title)
            self.codes[key] = _compiled(task, lowered)
        elif not self._is_cached(key):
            data = self.pool.take(key)
            compiled = from_bytes(data) if data else _compiled(task, self._lowered(task, title))
            self.codes[key] = compiled
            if self.cache is not None:
                self.cache.put(key, data or to_bytes(compiled))
                if task.sizes is not None:
                    plain = to_bytes(ExplainedCode(compiled.code))  # for a later build
                    self.cache.put(replace(task, sizes=None).key, plain)
        code = replace(self.codes[key].code, origin=task.kernel.origin)
        if not self.shows_stages:
            self.watch(Stage(f"{title}: code", partial(str, code.text), task.kernel.name))
        return code

    def _note(
        self,
        title: str,
        name: str,
        task: Task,
        explanation: Explanation | None,
        tuning: Tuning | None = None,
    ) -> None:
        """Note the explanation of a kernel, with the named loops and the tuning that chose it."""
        if explanation is not None:
            loops = partial(loop_text.print_function, name_dimensions(task.kernel).function)
            self.explanations[title, name] = replace(explanation, loops=loops, tuning=tuning)

    def _is_cached(self, key: str) -> bool:
        """True if the code of a kernel is here, or in the cache."""
        if key not in self.codes and self.cache is not None:
            data = self.cache.get(key)
            if data is not None:
                self.codes[key] = from_bytes(data)
        return key in self.codes

    def _lowered(self, task: Task, title: str, watch: Watcher = ignore) -> LoopFunction:
        """Lower a kernel with its default schedule."""
        named = name_dimensions(task.kernel)
        selection = self._select(named, task, title, watch)
        return _lower(task, named, selection.schedule, title, watch)

    def _show_code(self, lowered: LoopFunction, task: Task, title: str) -> None:
        """Show the watcher the code of a kernel, with the nodes that each line computes."""
        lines = KernelLines(lowered, task)
        self.watch(Stage(f"{title}: code", lines.text, task.kernel.name, lines))

    def _compile_chosen(self, tasks: Mapping[str, Task], title: str) -> CompiledKernels:
        """Compile kernels with the schedules that `choose` selects."""
        functions: dict[str, LoopFunction] = {}
        candidates: list[_Other] = []
        for name, task in tasks.items():
            named = name_dimensions(task.kernel)
            selection = self._select(named, task, title, self.watch)
            schedule = selection.schedule
            functions[name] = _lower(task, named, schedule, title, self.watch)
            if task.sizes is not None:
                rule = _rule_name(task)
                explained = _explained(task, rule, schedule, functions[name])
                self._note(title, name, task, explained.explanation, selection.tuning)
            if selection.tuning is not None:
                self.tuned.append(TunedKernel(named.function.name, title, selection.tuning))
            for alternative in selection.alternatives:
                function = _lower(task, named, alternative.schedule, title, self.watch)
                candidates.append(_Other(name, named.function.name, alternative, function))
        alternatives: dict[str, dict[int, str]] = {}
        sources = {name: name for name in tasks}
        for other in _with_room(candidates, functions):
            number = self._number(other.alternative.machine)
            name = f"{other.kernel}_on_machine_{number}"
            functions[name] = replace(other.function, name=name)
            sources[name] = other.kernel
            alternatives.setdefault(other.kernel, {})[number] = name
            tuning = other.alternative.tuning
            self.tuned.append(TunedKernel(other.source, title, tuning, number))
        for name, function in functions.items():
            self._show_code(function, tasks[sources[name]], title)
        codes = {n: print_code(f, tasks[sources[n]]) for n, f in functions.items()}
        lowered = {name: partial(functions.__getitem__, name) for name in tasks}
        return CompiledKernels(codes, alternatives, lowered)

    def _select(self, named: NamedDimensions, task: Task, title: str, watch: Watcher) -> Selection:
        """Choose the schedules of a kernel with named dimensions."""
        shown = replace(named.function, origin=task.kernel.origin)  # not that of an equal kernel
        show = partial(loop_text.print_function, shown)
        watch(Stage(f"{title}: loops", show, task.kernel.name))
        if verify_level():
            verify(named.function)
        if task.kernel.is_scheduled:
            return Selection(Schedule(task.kernel))
        return self.choose(find_match(named.function, task.machine))

    def _number(self, machine: MachineClass) -> int:
        """The number of a class of machines, from 1 on."""
        if machine not in self.machines:
            self.machines.append(machine)
        return 1 + self.machines.index(machine)


def _code_bytes(task: Task) -> bytes:
    """Compile a kernel with its default schedule, in another process."""
    lowered = KernelCompiler(default_schedule, ignore)._lowered(task, task.form)
    return to_bytes(_compiled(task, lowered))


def _compiled(task: Task, lowered: LoopFunction) -> ExplainedCode:
    """The code of a kernel with its default schedule, explained if its task has sizes."""
    if task.sizes is None:
        return ExplainedCode(print_code(lowered, task))
    if task.kernel.is_scheduled:
        return _explained(task, BY_HAND, Schedule(task.kernel), lowered)
    rule, schedule = choose_rule(name_dimensions(task.kernel).function, task.machine)
    return _explained(task, rule, schedule, lowered)


def _rule_name(task: Task) -> str:
    """The name of the rule for a kernel."""
    if task.kernel.is_scheduled:
        return BY_HAND
    return find_match(name_dimensions(task.kernel).function, task.machine).rule.name


def _explained(task: Task, rule: str, schedule: Schedule, lowered: LoopFunction) -> ExplainedCode:
    """The code of a scheduled kernel, explained."""
    marked = print_code(lowered, task, shows_stages=True)
    return explain(task, rule, list(schedule.trace), lowered, marked)


def _lower(
    task: Task, named: NamedDimensions, schedule: Schedule, title: str, watch: Watcher
) -> LoopFunction:
    """Lower a scheduled kernel."""
    name, scheduled = task.kernel.name, schedule.function
    watch(Stage(f"{title}: schedule", partial(loop_text.print_function, scheduled), name))
    lowered = bind_dimensions(lower(scheduled, task.machine), named.values)
    lowered = replace(lowered, origin=task.kernel.origin)
    watch(Stage(f"{title}: lowered", partial(loop_text.print_function, lowered), name))
    return lowered


def _with_room(candidates: list[_Other], functions: Mapping[str, LoopFunction]) -> Iterator[_Other]:
    """Yield the kernels for classes of machines that fit into the room, largest gain first."""
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
