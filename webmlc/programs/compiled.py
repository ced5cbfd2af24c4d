"""Compile programs to WebAssembly or WGSL, run them, time them, and save them as packages.

In: a program, a schedule or a module, and a target. Out: a `CompiledKernel` or a `CompiledModule`,
which holds the contents of a package and opens it at its first call.

    kernel = compile_program(schedule, target="wasm")
    kernel.text                      # the WAT, or the WGSL
    kernel(a, b, c)                  # writes c, an array of the caller
    kernel.time(a, b, c).gflops
    kernel.save("build/mm_relu")     # a package like any other
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from webmlc.build_options import BuildOptions
from webmlc.core.errors import InputError, UserError
from webmlc.core.machine import DEVICES, Device
from webmlc.core.sizes import evaluate_size
from webmlc.core.stages import ignore
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.loops.count_work import count_work
from webmlc.loops.ir import For, LoopFunction, walk_statements
from webmlc.loops.kernel_form import gpu_obstacle
from webmlc.loops.write_out_instructions import instructions_of
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.manifest import Manifest
from webmlc.package.write import Parts, write_package
from webmlc.pipeline import package_of, run
from webmlc.programs.arrays import Bound, bind_arrays
from webmlc.programs.ir_module import IRModule
from webmlc.programs.limit import multiply_adds
from webmlc.programs.script import Program
from webmlc.programs.tir import Schedule
from webmlc.schedule.rules import default_schedule
from webmlc.target.target import AnyTarget
from webmlc.target.targets import targets_of
from webmlc.target.wasm.printer import SymbolicScratchError

if TYPE_CHECKING:
    from webmlc.host.load import Model

Array = np.ndarray[Any, Any]
RUNS = 20
"""The runs that `CompiledKernel.time` measures unless its caller says otherwise. A median of 20
runs varies by about 2 % on a quiet machine.
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """The median `seconds` of one run, its operations on data (a multiply-add is two), and the
    `bytes` of its parameters. `limit`: the most GFLOPS of float32 multiply-adds, measured in the
    same process on the same device, with as many threads.
    """

    seconds: float
    flops: int
    bytes: int
    limit: float

    @property
    def gflops(self) -> float:
        """Billions of operations in a second."""
        return self.flops / self.seconds / 1e9

    @property
    def share(self) -> float:
        """The share of the limit that the run reaches: 1 is the limit."""
        return self.gflops / self.limit

    @property
    def gigabytes(self) -> float:
        """Billions of bytes of parameters in a second."""
        return self.bytes / self.seconds / 1e9

    def __str__(self) -> str:
        share = f"{self.share:.0%} of the limit"
        return f"{1e3 * self.seconds:.3f} ms, {self.gflops:.2f} GFLOPS, {share}"


class CompiledModule:
    """A program of a target, as a package: its code, its calls, and its folder."""

    def __init__(self, target: Device, parts: Parts) -> None:
        self.target = target
        self.parts = parts
        self._folder = TemporaryDirectory[str](prefix="webmlc-kernel-")
        self._models: dict[int, Model] = {}

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

    @property
    def model(self) -> Model:
        """The package, loaded from a temporary folder to run with one thread."""
        return self.open(1)

    def open(self, threads: int) -> Model:
        """The package, loaded from a temporary folder to run with some threads of the CPU."""
        from webmlc.host.load import load

        if not self._models:
            self.save(self._folder.name)
        if threads not in self._models:
            self._models[threads] = load(self._folder.name, device=self.target, threads=threads)
        return self._models[threads]

    def __call__(self, *inputs: Array) -> Any:
        """The outputs, for an array for each input of the graph function."""
        names = [port.name for port in self.parts.manifest.inputs]
        if len(inputs) != len(names):
            raise InputError(f"the module takes {', '.join(names)}")
        results = self.model.run(dict(zip(names, inputs, strict=True)))
        return tuple(results[port.name] for port in self.parts.manifest.outputs)


class CompiledKernel(CompiledModule):
    """One kernel of a target, which writes into arrays of the caller."""

    def __init__(self, function: LoopFunction, target: Device, parts: Parts) -> None:
        super().__init__(target, parts)
        self.function = function

    def __call__(self, *arrays: Array) -> None:
        """Run the kernel on an array for each parameter; the outputs are written into theirs.

        Raises `InputError` if an array has another shape or dtype than its parameter.
        """
        bound = bind_arrays(self.function, arrays)
        results = self.model.run(self._feeds(bound))
        for name, value in results.items():
            bound.arrays[name][...] = value

    def time(self, *arrays: Array, runs: int = RUNS, threads: int = 1) -> Timing:
        """Time the kernel alone, without the copies of its inputs and outputs, with some threads of
        the CPU.
        """
        bound = bind_arrays(self.function, arrays)
        seconds = median(self._seconds(bound, runs, threads))
        work = count_work(self.function, bound.sizes)
        limit = limit_gflops(self.target, threads)
        return Timing(seconds, work.flops, sum(a.nbytes for a in arrays), limit)

    def _seconds(self, bound: Bound, runs: int, threads: int) -> list[float]:
        """The seconds of some runs, after one that is not counted."""
        feeds, model = self._feeds(bound), self.open(threads)
        model.profile(feeds)
        return [sum(step.seconds for step in model.profile(feeds)) for _ in range(runs)]

    def _feeds(self, bound: Bound) -> dict[str, Array]:
        return {b.name: bound.arrays[b.name] for b in self.function.input_params()}


@lru_cache(maxsize=8)
def limit_gflops(target: Device, threads: int = 1) -> float:
    """The most GFLOPS of float32 multiply-adds on a device: the best of some runs, which are
    measured once in a process.
    """
    kernel = compile_program(multiply_adds(target, parallel=threads > 1), target)
    shapes = [tuple(evaluate_size(size, {}) for size in b.shape) for b in kernel.function.params]
    bound = bind_arrays(kernel.function, [np.ones(shape, np.float32) for shape in shapes])
    seconds = min(kernel._seconds(bound, RUNS, threads))
    return count_work(kernel.function, {}).flops / seconds / 1e9


def compile_program(
    program: Program | Schedule | LoopFunction | IRModule, target: Device = "wasm"
) -> CompiledKernel:
    """Compile a program with its schedule, or with the schedule that our rules choose for it.

    Raises `UserError` if the target cannot run the program.
    """
    if isinstance(program, IRModule):
        program = program.only_kernel()
    if isinstance(program, Schedule):
        program = program.program
    if isinstance(program, LoopFunction):
        program = Program(program)
    function = program.function
    inputs, outputs = (
        tuple(buffer.name for buffer in params)
        for params in (function.input_params(), function.output_params())
    )
    types = {b.name: TensorType(b.dtype, b.shape) for b in function.params}
    call = Node("call_kernel", inputs, outputs, {"kernel": function.name}, "webmlc")
    main = Function("main", call.inputs, call.outputs, (call,), types, {})
    parts = _compile(IRModule({function.name: program}, main), target)
    return CompiledKernel(function, target, parts)


def compile_module(module: IRModule, target: Device = "wasm") -> CompiledModule:
    """Compile the graph function of a module, and its kernels. Raises `UserError` if the target
    cannot run one of them.
    """
    return CompiledModule(target, _compile(module, target))


def _compile(module: IRModule, target: Device) -> Parts:
    targets = targets_of("all")
    if target not in targets:
        raise UserError(f"unknown target {target!r}: choose {' or '.join(targets)}")
    for program in module.functions.values():
        _check_instructions(program, targets[target])
        if not DEVICES[target].runs_steps:
            check_gpu(program)
    main = module.graph_function()
    graph = Module(next(iter(module.functions)), {"main": main})
    options = BuildOptions(target, emit_text=True)
    lowered = _lowered(graph, module, targets[target])
    with KernelCompiler(default_schedule, ignore) as compiler:
        try:
            return package_of(graph, [(target, lowered)], targets, compiler, options)
        except SymbolicScratchError as error:
            raise UserError(str(error)) from error


def _lowered(graph: Module, module: IRModule, target: AnyTarget) -> Module:
    """The program of a target. A kernel with a schedule stays whole. Other kernels are split until
    our rules can schedule each.
    """
    attributes = {"device": target.device, "constants": ()}
    nodes = tuple(replace(n, attributes={**n.attributes, **attributes}) for n in graph.main.nodes)
    kernels = {n: replace(p.function, name=n) for n, p in module.functions.items()}
    main = replace(graph.main, nodes=nodes)
    return run(
        target.kernel_passes, replace(graph, functions={"main": main}, kernels=kernels), ignore
    )


def _check_instructions(program: Program, target: AnyTarget) -> None:
    """Raise `UserError` if no machine of a target has an instruction that a program calls."""
    machines = [variant.machine for variant in target.variants.values()]
    for call in instructions_of(program.function):
        name, text = call.instruction.name, call.instruction.text(target.device)
        if text is None:
            raise UserError(
                f"{program.name} calls the intrinsic {name!r}, which has no text for "
                f"{target.device}. Register it with {target.device}=..."
            )
        if not any(text.runs_with(machine.features) for machine in machines):
            raise UserError(
                f"{program.name} calls the intrinsic {name!r}, which needs the feature "
                f"{text.feature!r}. No machine of {target.device} has it"
            )


def check_gpu(program: Program) -> None:
    """Raise `UserError` if a GPU cannot run a program, and say why."""
    obstacle = gpu_obstacle(program.function)
    if obstacle is not None:
        raise UserError(f"{program.name} cannot run on a GPU: {obstacle}")
    check_threads(program, "webgpu")


def check_threads(program: Program, target: Device) -> None:
    """Raise `UserError` if the schedule of a program for a GPU binds no loop to it."""
    loops = [s for s in walk_statements(program.function.body) if isinstance(s, For)]
    is_bound = DEVICES[target].runs_steps or any(loop.thread for loop in loops)
    if program.is_scheduled and not is_bound:
        raise UserError(
            f"the schedule of {program.name} binds no loop to a GPU. Bind one to blockIdx.x and "
            "one to threadIdx.x, or compile the program without a schedule"
        )
