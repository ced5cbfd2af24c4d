"""Record what a report needs while a model is compiled.

A `Recorder` watches the stages (`core.stages`), and chooses the schedules as another chooser does:

    recorder = Recorder()
    parts = compile_model("model.onnx", choose=recorder.choose, on_stage=recorder)
    recorder.graphs[0].title           # "frontend"
    recorder.schedules["relaxed", "conv_relu"].trace
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from webmlc.core.stages import Stage
from webmlc.graph.ir import Function, Module, Node
from webmlc.package.kernel_code import KernelLines
from webmlc.schedule.rules import Chooser, Selection, default_schedule
from webmlc.schedule.rules.rule import Match
from webmlc.schedule.trace import Trace
from webmlc.schedule.tuning import Tuning
from webmlc.target.line_stages import Stages
from webmlc.target.wasm.emit_module import Module as WasmModule
from webmlc.target.webgpu.emit_shaders import Shaders


@dataclass(frozen=True, slots=True)
class GraphStage:
    """A pass over the graph, and the module that it returned."""

    title: str
    module: Module

    @property
    def origins(self) -> frozenset[str]:
        """The ONNX nodes that some node of the module comes from."""
        return frozenset(origin for node in all_nodes(self.module) for origin in node.origin)


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """How a kernel was scheduled: the rule, the steps, and its loops before the first step."""

    rule: str
    trace: Trace
    loops: str
    tuning: Tuning | None


@dataclass(slots=True)
class Recorder:
    """A watcher and a chooser that keeps what passes by. Stages also go to `also`.

    `modules` and `shaders` are the emitted code by variant. A schedule is of a variant and of a
    kernel in it, and so are `lines`: the stages of the kernel that each line of its code computes.
    """

    chooser: Chooser = default_schedule
    also: Callable[[Stage], None] = lambda stage: None
    graphs: list[GraphStage] = field(default_factory=list)
    modules: dict[str, WasmModule] = field(default_factory=dict)
    shaders: dict[str, Shaders] = field(default_factory=dict)
    schedules: dict[tuple[str, str], KernelSchedule] = field(default_factory=dict)
    lines: dict[tuple[str, str], list[Stages]] = field(default_factory=dict)
    loops: Stage | None = None

    def __call__(self, stage: Stage) -> None:
        """Keep the result of a stage."""
        self.also(stage)
        match stage.result:
            case Module() as module:
                self.graphs.append(GraphStage(stage.title, module))
            case WasmModule() as module:
                self.modules[_variant(stage)] = module
            case Shaders() as shaders if shaders.entries:
                self.shaders[_variant(stage)] = shaders
            case KernelLines() as lines if stage.kernel is not None:
                self.lines[_variant(stage), stage.kernel] = lines.split()[1]
        if stage.title.endswith(": loops"):
            self.loops = stage

    def choose(self, match: Match) -> Selection:
        """Choose the schedules as `chooser` does, and keep the steps of the one for most machines.

        The stage of the kernel's loops precedes this call and names the kernel and its variant.
        """
        selection = self.chooser(match)
        if self.loops is not None and self.loops.kernel is not None:
            self.schedules[_variant(self.loops), self.loops.kernel] = KernelSchedule(
                match.rule.name,
                list(selection.schedule.trace),
                self.loops.text(),
                selection.tuning,
            )
        return selection


def _variant(stage: Stage) -> str:
    """The variant of the code that a stage is about."""
    return stage.title.partition(":")[0]


def all_nodes(module: Module) -> Iterator[Node]:
    """The nodes of all graph functions of a module, also those in attributes."""
    for function in module.functions.values():
        yield from nested_nodes(function)


def nested_nodes(function: Function) -> Iterator[Node]:
    """The nodes of a function, each followed by those of the functions in its attributes."""
    for node in function.nodes:
        yield node
        for inner in inner_functions(node):
            yield from nested_nodes(inner)


def used_origins(module: Module) -> frozenset[str]:
    """The ONNX nodes whose results the outputs of some function depend on."""
    origins: set[str] = set()
    for function in module.functions.values():
        _add_used(function, origins)
    return frozenset(origins)


def _add_used(function: Function, origins: set[str]) -> set[str]:
    """Add the nodes that the outputs of a function depend on; returns the values that they read."""
    needed = set(function.outputs) | {region.whole for region in function.regions.values()}
    for node in reversed(function.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        origins.update(node.origin)
        needed.update(node.inputs)
        for inner in inner_functions(node):
            needed |= _add_used(inner, origins)
    return needed


def inner_functions(node: Node) -> Iterator[Function]:
    """The sub-graphs of a node, such as the branches of an `If`."""
    values: list[Any] = list(node.attributes.values())
    for value in values:
        match value:
            case Function():
                yield value
            case tuple():
                yield from (item for item in value if isinstance(item, Function))
