"""Compile programs to WebAssembly or WGSL, run them, time them, and save them as packages.

In: a program, a schedule or a module of kernels, and a target. Out: a `CompiledKernel`, which holds
the contents of a package and opens it at its first call.

    kernel = compile_program(schedule, target="wasm")
    kernel.text                      # the WAT, or the WGSL
    kernel(a, b, c)                  # writes c, an array of the caller
    kernel.time(a, b, c).gflops
    kernel.save("build/mm_relu")     # a package like any other
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from webmlc.build_options import BuildOptions
from webmlc.core.errors import UserError
from webmlc.core.machine import DEVICES, Device
from webmlc.core.stages import ignore
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.loops.count_work import count_work
from webmlc.loops.ir import For, LoopFunction, walk_statements
from webmlc.loops.kernel_form import gpu_obstacle
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.manifest import Manifest
from webmlc.package.write import Parts, write_package
from webmlc.pipeline import package_of, run
from webmlc.programs.arrays import bind_arrays
from webmlc.programs.script import Program
from webmlc.schedule.rules import default_schedule
from webmlc.schedule.schedule import Schedule
from webmlc.target.target import AnyTarget
from webmlc.target.targets import targets_of

if TYPE_CHECKING:
    from webmlc.host.load import Model

RUNS = 20
"""The runs that `CompiledKernel.time` measures unless its caller says otherwise. A median of 20
runs varies by about 2 % on a quiet machine.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """The median `seconds` of one run, its operations on data (a multiply-add is two), and the
    `bytes` of its parameters.
    """

    seconds: float
    flops: int
    bytes: int

    @property
    def gflops(self) -> float:
        """Billions of operations in a second."""
        return self.flops / self.seconds / 1e9

    @property
    def gigabytes(self) -> float:
        """Billions of bytes of parameters in a second."""
        return self.bytes / self.seconds / 1e9

    def __str__(self) -> str:
        return f"{1e3 * self.seconds:.3f} ms, {self.gflops:.2f} GFLOPS"


class CompiledKernel:
    """A kernel of a target. `texts` are its WAT or WGSL by variant, `text` is the first of them."""

    def __init__(self, function: LoopFunction, target: Device, parts: Parts) -> None:
        self.function = function
        self.target = target
        self.parts = parts
        self._folder: TemporaryDirectory[str] | None = None

    @property
    def texts(self) -> Mapping[str, str]:
        """The code by file name: one file for each variant of the target."""
        return self.parts.texts

    @property
    def text(self) -> str:
        """The code of the first variant."""
        return next(iter(self.parts.texts.values()))

    def save(self, folder: str | Path, force: bool = False) -> Manifest:
        """Write the package that a page, or `webmlc.load`, loads; returns its manifest."""
        return write_package(Path(folder), self.parts, force=force)

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> None:
        """Run the kernel on an array for each parameter; the outputs are written into theirs.

        Raises `InputError` if an array has another shape or dtype than its parameter.
        """
        bound = bind_arrays(self.function, arrays)
        inputs = len(self.function.params) - self.function.outputs
        names = [buffer.name for buffer in self.function.params]
        results = self._model.run({name: bound.arrays[name] for name in names[:inputs]})
        for name in names[inputs:]:
            bound.arrays[name][...] = results[name]

    def time(self, *arrays: np.ndarray[Any, Any], runs: int = RUNS) -> Timing:
        """Time the kernel alone, without the copies of its inputs and outputs."""
        bound = bind_arrays(self.function, arrays)
        inputs = len(self.function.params) - self.function.outputs
        feeds = {b.name: bound.arrays[b.name] for b in self.function.params[:inputs]}
        model = self._model
        model.profile(feeds)
        seconds = [sum(step.seconds for step in model.profile(feeds)) for _ in range(runs)]
        work = count_work(self.function, bound.sizes)
        return Timing(median(seconds), work.flops, sum(a.nbytes for a in arrays))

    @cached_property
    def _model(self) -> Model:
        from webmlc.host.load import load

        self._folder = TemporaryDirectory(prefix="webmlc-kernel-")
        self.save(self._folder.name)
        return load(self._folder.name, device=self.target)


def compile_program(
    program: Program | Schedule | LoopFunction, target: Device = "wasm"
) -> CompiledKernel:
    """Compile a program with its schedule, or with the schedule that our rules choose for it.

    Raises `UserError` if the target cannot run the program.
    """
    targets = targets_of("all")
    if target not in targets:
        raise UserError(f"unknown target {target!r}: choose {' or '.join(targets)}")
    schedule = program if isinstance(program, Schedule) and program.trace else None
    if isinstance(program, Schedule | Program):
        program = program.function
    if not DEVICES[target].runs_steps:
        _check_gpu(program, schedule)
    graph = graph_of(program)
    module = kernels_of(graph, program, targets[target], None if schedule is None else program)
    options = BuildOptions(target, emit_text=True)
    schedules = {} if schedule is None else {program.name: Schedule(program)}
    with KernelCompiler(default_schedule, ignore, schedules=schedules) as compiler:
        parts = package_of(graph, [(target, module)], targets, compiler, options)
    return CompiledKernel(program, target, parts)


def graph_of(function: LoopFunction) -> Module:
    """The module whose `main` calls the kernel once, on its inputs."""
    names = [buffer.name for buffer in function.params]
    count = len(names) - function.outputs
    types = {b.name: TensorType(b.dtype, b.shape) for b in function.params}
    call = Node("call_kernel", tuple(names[:count]), tuple(names[count:]), {}, "webmlc")
    main = Function("main", call.inputs, call.outputs, (call,), types, {})
    return Module(function.name, {"main": main})


def kernels_of(
    graph: Module, function: LoopFunction, target: AnyTarget, scheduled: LoopFunction | None
) -> Module:
    """The program of a target. A kernel with a schedule stays whole; other kernels are split until
    our rules can schedule each.
    """
    (call,) = graph.main.nodes
    attributes = {"kernel": function.name, "device": target.device, "constants": ()}
    main = replace(graph.main, nodes=(replace(call, attributes=attributes),))
    module = replace(graph, functions={"main": main}, kernels={function.name: function})
    return module if scheduled is not None else run(target.kernel_passes, module, ignore)


def _check_gpu(function: LoopFunction, schedule: Schedule | None) -> None:
    """Raise `UserError` if a GPU cannot run a program, and say why."""
    obstacle = gpu_obstacle(function)
    if obstacle is not None:
        raise UserError(f"{function.name} cannot run on a GPU: {obstacle}")
    loops = [s for s in walk_statements(function.body) if isinstance(s, For)]
    if schedule is not None and not any(loop.thread for loop in loops):
        raise UserError(
            f"the schedule of {function.name} binds no loop to a GPU. Bind one to blockIdx.x and "
            "one to threadIdx.x, or compile the program without a schedule"
        )
