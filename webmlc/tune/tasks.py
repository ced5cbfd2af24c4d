"""A task: one kernel whose schedule is searched, and how often the model calls it.

In: a model, a device, and the sizes of symbolic dimensions. Out: its tasks, without duplicates.

    for task in read_graph("model.onnx", "wasm", {"batch": 1}).tasks():
        print(task.name, task.calls, len(task.match.space().names))

Kernels of several models are the same task if they differ only in the names of things: `key` is a
hash of the kernel's text with all names replaced. Sizes known only at run time are not part of the
key. A task is measured with the sizes of `--dim`, rounded up to powers of two (`bucket`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from webmlc.build_options import BuildOptions
from webmlc.core.expr import Expr, Var
from webmlc.core.machine import DEFAULT_MACHINES, MACHINES, Device, Machine
from webmlc.core.rewrite import variables
from webmlc.core.sizes import evaluate_size
from webmlc.core.stages import watcher
from webmlc.frontend.bind_constants import Constants
from webmlc.frontend.read_model import Source
from webmlc.graph.checks.example_sizes import example_sizes
from webmlc.graph.ir import Module, Node
from webmlc.loops.ir import LoopFunction, blocks
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.loops.text import print_function
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.schedule.rules import find_match, match_kernel
from webmlc.schedule.rules.rule import Match
from webmlc.target.bind_dimensions import bind_dimensions
from webmlc.target.targets import lower, machine_of, target_of

Identity = tuple[str, str]
"""The identity of a kernel: the key of a task, and its bucket of sizes."""

_IDENTIFIER = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel to search a schedule for.

    - `match`: the kernel with named dimensions, its rule and its machine.
    - `dimensions`: the values of the named dimensions (see `name_dimensions`).
    - `constants`: the parameters that hold constants.
    - `sizes`: the value of each symbol of the kernel that the caller passes.
    - `calls`: the number of steps of the model that call the kernel.
    - `constant_bytes`: bytes of all constants of the model, which compete for the caches.
    - `origin`: ONNX nodes that the kernel computes.
    """

    key: str
    name: str
    match: Match
    dimensions: tuple[tuple[Var, Expr], ...]
    constants: frozenset[str]
    sizes: Mapping[str, int]
    calls: int
    constant_bytes: int
    origin: tuple[str, ...] = ()

    @property
    def device(self) -> Device:
        """The device that runs the kernel."""
        return self.match.machine.device

    @property
    def machine(self) -> str:
        """The name of the machine that the kernel is scheduled for (`core.machine.MACHINES`)."""
        return self.match.machine.name

    @property
    def all_sizes(self) -> dict[str, int]:
        """The values of all symbols of the kernel, named dimensions included."""
        values = dict(self.sizes)
        for var, value in self.dimensions:
            values[var.name] = evaluate_size(value, values)
        return values

    @property
    def size_bucket(self) -> str:
        """The sizes that a record of this task holds for, in the order of the kernel's symbols."""
        return ",".join(str(bucket(self.sizes[s.name])) for s in self.symbols)

    @property
    def identity(self) -> Identity:
        """The identity of the kernel: calls with the same identity are one task."""
        return self.key, self.size_bucket

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbols that the caller passes."""
        symbols = self.match.function.symbols
        named = {var for var, _ in self.dimensions}
        return tuple(s for s in symbols if s not in named) if named else symbols

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process without the rule, whose functions cannot travel: the rule is
        matched again.
        """
        kernel = (self.key, self.name, self.match.function, self.match.machine, self.dimensions)
        calls = (self.constants, dict(self.sizes), self.calls, self.constant_bytes, self.origin)
        return _task_again, (*kernel, *calls)

    def lower(self, parameters: Any) -> LoopFunction:
        """The lowered kernel with these parameters of its rule."""
        schedule = self.match.build(parameters)
        return bind_dimensions(lower(schedule.function, self.match.machine), self.dimensions)


def _task_again(
    key: str, name: str, function: LoopFunction, machine: Machine, *fields: Any
) -> Task:
    return Task(key, name, find_match(function, machine), *fields)


def bucket(size: int) -> int:
    """The power of two at or above a size: sizes of one bucket share their records."""
    return 1 << max(0, (size - 1).bit_length())


def kernel_key(function: LoopFunction, machine: Machine) -> str:
    """The hash of a kernel with named dimensions, and of its machine: a time relative to the
    default schedule says nothing of a machine with another default. The hash does not depend on the
    names of buffers, loops, symbols and of the function.
    """
    names = function.used_names() | {block.name for block in blocks(function.body)}
    numbers: dict[str, str] = {}

    def replaced(identifier: re.Match[str]) -> str:
        name = identifier.group()
        stem, dot, field = name.partition(".")
        if name in names:
            return numbers.setdefault(name, f"n{len(numbers)}")
        if stem in names:
            return numbers.setdefault(stem, f"n{len(numbers)}") + dot + field
        return name

    text = print_function(replace(function, name="kernel", origin=()))
    text = _IDENTIFIER.sub(replaced, text)
    return hashlib.sha256(f"{machine.device} {machine.name}\n{text}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Graph:
    """A model before its algorithms and kernels are chosen, the machine that its kernels are for,
    and the sizes of its symbols.
    """

    module: Module
    machine: Machine
    sizes: Mapping[str, int]

    @property
    def device(self) -> Device:
        """The device that runs the kernels."""
        return self.machine.device

    def tasks(
        self, algorithms: Mapping[str, str] | None = None, machines: Sequence[Machine] = ()
    ) -> list[Task]:
        """The tasks, in the order of the model's kernels, if some layers have these algorithms. The
        kernels are scheduled for the graph's machine, or for each of several machines of its
        device.

        Kernels whose sizes depend on data, kernels with nothing to choose, and kernels that run
        once, at load, are left out.
        """
        module = replace(self.module, algorithms=algorithms or {})
        lowered = kernel_module(module, target_of(self.machine), watcher(None))
        every = machines or (self.machine,)
        return list(_merged(t for m in every for t in _tasks(lowered, m, self.sizes)))

    def alternatives(self) -> Mapping[str, tuple[str, ...]]:
        """The algorithms of each layer that has a choice, the default algorithm first."""
        return target_of(self.machine).alternatives(self.module)


def read_graph(
    model: Source,
    device: Device,
    sizes: Mapping[str, int],
    *,
    constants: Constants | None = None,
    machine: str = "",
) -> Graph:
    """Read a model whose kernels are to be searched. Symbolic dimensions that `sizes` does not name
    have the sizes of an example. `machine` is the name of the kernels' machine; by default, the
    device's default machine.

    Raises `InputError` if `sizes` names no dimension of an input.
    """
    module = shared_graph(model, BuildOptions(constants=constants), watcher(None))
    main = module.main
    shapes = [main.type(name).shape for name in main.inputs]
    inputs = {v.name for shape in shapes for d in shape for v in variables(d)}
    inputs |= {module.length} - {""}
    results = [main.type(name).shape for name in main.outputs]
    values = example_sizes(main.requirements, results, inputs, sizes)
    return Graph(module, MACHINES[machine or DEFAULT_MACHINES[device]], values)


def _tasks(module: Module, machine: Machine, values: Mapping[str, int]) -> Iterator[Task]:
    """A task for each call of a kernel on the machine's device."""
    constants = {n: a for f in module.functions.values() for n, a in f.constants.items()}
    constant_bytes = sum(a.nbytes for a in constants.values())
    resident = set(constants)  # values that no input changes: they are computed once, at load
    for node in _calls(module, machine.device):
        if resident.issuperset(filter(None, node.inputs)):
            resident.update(node.outputs)
            continue
        kernel = module.kernels[str(node.attributes["kernel"])]
        if kernel.is_scheduled or not {s.name for s in kernel.symbols} <= values.keys():
            continue
        named = name_dimensions(kernel)
        plain = machine_of(kernel, machine)
        match = match_kernel(named.function, plain)
        if match is None or not any(match.rule.space(match.facts, plain).leaves()):
            continue
        yield Task(
            kernel_key(named.function, plain),
            kernel.name,
            match,
            named.values,
            frozenset(node.attributes["constants"]),
            {s.name: values[s.name] for s in kernel.symbols},
            1,
            constant_bytes,
            node.origin,
        )


def _calls(module: Module, device: Device) -> Iterator[Node]:
    """The calls of kernels on the device, including calls in branches and loop bodies."""
    for function in module.functions.values():
        for node in function.nodes:
            if node.op == "call_kernel" and node.attributes["device"] == device:
                yield node


def _merged(tasks: Iterator[Task]) -> Iterator[Task]:
    """One task for all calls of a kernel with the same sizes."""
    merged: dict[Identity, Task] = {}
    for task in tasks:
        earlier = merged.get(task.identity)
        merged[task.identity] = (
            task if earlier is None else replace(earlier, calls=earlier.calls + 1)
        )
    yield from merged.values()
