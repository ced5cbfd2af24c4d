"""Record a build, and find the fate of every ONNX node: its kernels, or why it has no kernel.

In: the passes over the graph (`Recorder`), and the nodes that steps compute. Out: one `ModelNode`
per node of the model, in its order. A node ends in one of these ways:

- a step of a program computes the node, perhaps together with other nodes: its fate is "";
- `constant`: its value is in the file (a `Constant` node);
- `folded`: the compiler knows its value, perhaps in terms of symbols, so no run computes it;
- `alias`: it only changes the shape, so its output is at the address of its input;
- `control`: an `If`, `Loop` or `Scan` that the compiler resolved or unrolled;
- `unused`: nothing reads its result, or nothing reads it once the compiler knows some values;
- `removed`: it has no kernel, because it changes nothing, or because other nodes do its work.

For `folded`, `unused` and `removed`, the record also names the pass.

A package does not hold the graph of its model. Its nodes (`step_nodes`) are the names in its steps,
without operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from webmlc.core.stages import Stage, Watcher, ignore
from webmlc.graph.ir import Function, Module, Node
from webmlc.package.manifest import Manifest, Step
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


FATES = {
    "constant": "A constant of the model. It has no kernel.",
    "folded": "The compiler knows its value, perhaps in terms of symbolic sizes.",
    "alias": "It only changes the shape: its output is the memory of its input, under a new shape.",
    "control": "The compiler resolved or unrolled it: its sub-graphs have the kernels.",
    "unused": "Nothing reads its result, or the compiler knows what it would decide.",
    "removed": "This pass left no kernel of it: it changes nothing, or other nodes do its work.",
}
"""The meaning of each fate, as the page shows it."""
_SIZE = 8
"""The most elements of an attribute that the page shows."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """A node of the model.

    - `name`: its name in the file, else its first output. An `origin` holds these names.
    - `types`: the types of its outputs as text, "" for an unknown type.
    - `parent`: the node in whose sub-graph it is, by number.
    - `fate`: a key of `FATES`, or "" for a node that a step computes.
    - `stage`: the pass that removed or folded it.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: str = ""
    types: tuple[str, ...] = ()
    parent: int | None = None
    fate: str = ""
    stage: str = ""


def model_nodes(
    graphs: Sequence[GraphStage], computed: Collection[str], constants: Mapping[str, str]
) -> list[ModelNode]:
    """The nodes of the model, with their fates.

    `computed` are the nodes that steps compute. `constants` are the names of `Constant` nodes by
    output; reading a model removes these nodes.
    """
    listing: list[tuple[Node, int | None]] = []
    _list(graphs[0].module.main, None, listing)
    types = _types(graphs)
    fates = _Fates(graphs, frozenset(computed))
    nodes = [
        ModelNode(name, "Constant", (), (output,), "", types.get(output, ()), None, "constant")
        for output, name in constants.items()
    ]
    base = len(nodes)
    for node, parent in listing:
        fate, stage = fates.of(node)
        nodes.append(
            ModelNode(
                node.name,
                f"{node.domain}.{node.op}" if node.domain else node.op,
                node.inputs,
                node.outputs,
                _attributes(node),
                tuple(text for output in node.outputs for text in types.get(output, ("",))),
                None if parent is None else base + parent,
                fate,
                stage,
            )
        )
    return nodes


def _list(function: Function, parent: int | None, listing: list[tuple[Node, int | None]]) -> None:
    """Append the nodes of a function with the number of the node around them."""
    for node in function.nodes:
        number = len(listing)
        listing.append((node, parent))
        for inner in inner_functions(node):
            _list(inner, number, listing)


def _types(graphs: Iterable[GraphStage]) -> dict[str, tuple[str]]:
    """The types of values. The first type that a pass inferred counts."""
    types: dict[str, tuple[str]] = {}
    for stage in graphs:
        for function in stage.module.functions.values():
            for value, type_ in function.types.items():
                if value not in types:  # printing each type once saves most of the time here
                    types[value] = (str(type_),)
            for value, array in function.constants.items():
                types.setdefault(value, (f"{array.dtype}[{', '.join(map(str, array.shape))}]",))
    return types


class _Fates:
    """The fates of nodes. A node is gone after the last pass whose result has it as an origin."""

    def __init__(self, graphs: Sequence[GraphStage], computed: frozenset[str]) -> None:
        self.graphs = graphs
        self.computed = computed
        self.used: dict[int, frozenset[str]] = {}
        self.constants: dict[str, str] = {}
        self.last: dict[str, int] = {}
        self.titles = [stage.title for stage in graphs]
        self.shared = max(i for i, title in enumerate(self.titles) if ": " not in title)
        self.views: set[str] = set()
        for number, stage in enumerate(graphs):
            self.last |= dict.fromkeys(stage.origins, number)
            for function in stage.module.functions.values():
                for value in function.constants:
                    self.constants.setdefault(value, stage.title)
                for node in function.nodes:
                    if node.op == "SymbolicConstant":
                        self.constants.setdefault(node.outputs[0], stage.title)
            if number > self.shared:
                self.views |= _views(stage.module)

    def of(self, node: Node) -> tuple[str, str]:
        """The fate of a node, and the pass that decided it."""
        if not self.computed.isdisjoint(node.origin):
            return "", ""
        outputs = [output for output in node.outputs if output]
        if outputs and all(output in self.constants for output in outputs):
            return "folded", self.constants[outputs[0]]
        if not self.views.isdisjoint(node.origin):
            return "alias", ""
        if any(True for _ in inner_functions(node)):
            return "control", ""
        last = max(self.last.get(origin, 0) for origin in node.origin)
        if last not in self.used:
            self.used[last] = used_origins(self.graphs[last].module)
        fate = "unused" if self.used[last].isdisjoint(node.origin) else "removed"
        return fate, self.titles[min(last + 1, len(self.titles) - 1)]


def _views(module: Module) -> set[str]:
    """The ONNX nodes that became views."""
    return {
        origin
        for function in module.functions.values()
        for node in function.nodes
        if node.op == "View"
        for origin in node.origin
    }


def _attributes(node: Node) -> str:
    """The attributes as text. Large arrays are given by their type."""
    return ", ".join(f"{name} = {_attribute(v)}" for name, v in sorted(node.attributes.items()))


def _attribute(value: Any) -> str:
    match value:
        case np.ndarray() if value.size > _SIZE:
            return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
        case np.ndarray():
            return str(value.tolist())
        case Function():
            return f"a graph of {len(value.nodes)} nodes"
        case tuple():
            return f"[{', '.join(map(_attribute, value[:_SIZE]))}{', …' * (len(value) > _SIZE)}]"
    return str(value)


def step_nodes(manifest: Manifest) -> list[ModelNode]:
    """The nodes. The nodes that runs of the first program name come first, in their order."""
    steps = [step for program in manifest.programs.values() for step in program.steps]
    (program, *_) = manifest.programs.values()
    runs = [run for run in program.runs if not run.once]
    run_steps = [step for run in runs for step in program.steps[run.first : run.last]]
    names = dict.fromkeys(origin for step in (*run_steps, *steps) for origin in step.origin)
    numbers = {name: number for number, name in enumerate(names)}
    inputs = {name: list[str]() for name in names}
    for source, target in _edges(run_steps):
        if numbers[source] < numbers[target]:
            inputs[target].append(source)
    return [ModelNode(name, "", tuple(dict.fromkeys(inputs[name])), (name,)) for name in names]


def _edges(steps: list[Step]) -> list[tuple[str, str]]:
    """The pairs of nodes in which the second node reads a result of the first node."""
    edges: list[tuple[str, str]] = []
    writers: dict[str, str] = {}
    for step in steps:
        if not step.origin:
            continue
        reads = step.arguments[: len(step.arguments) - step.outputs]
        edges += [(writers[buffer], step.origin[0]) for buffer in reads if buffer in writers]
        edges += zip(step.origin, step.origin[1:], strict=False)
        writers |= dict.fromkeys(step.written, step.origin[-1])
    return edges
