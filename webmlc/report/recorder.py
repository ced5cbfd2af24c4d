"""Record the data of a report while a model is compiled.

A `Recorder` watches the stages (`core.stages`):

    recorder = Recorder()
    parts = compile_model("model.onnx", on_stage=recorder)
    recorder.graphs[0].title           # "frontend"
    recorder.modules["relaxed"].lines
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from webmlc.core.stages import Stage, Watcher, ignore
from webmlc.graph.ir import Function, Module, Node
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


@dataclass(slots=True)
class Recorder:
    """A watcher that keeps the data of a report: the graphs, and the emitted code by variant. All
    stages also go to `also`.
    """

    also: Watcher = ignore
    graphs: list[GraphStage] = field(default_factory=list)
    modules: dict[str, WasmModule] = field(default_factory=dict)
    shaders: dict[str, Shaders] = field(default_factory=dict)

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


def _variant(stage: Stage) -> str:
    """The variant of the code that a stage is about."""
    return stage.title.partition(":")[0]


def all_nodes(module: Module) -> Iterator[Node]:
    """The nodes of all graph functions of a module, including functions in attributes."""
    for function in module.functions.values():
        yield from nested_nodes(function)


def nested_nodes(function: Function) -> Iterator[Node]:
    """The nodes of a function. The nodes of the functions in its attributes follow each node."""
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
    """Add the nodes that the outputs of a function depend on. Return the values they read."""
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
