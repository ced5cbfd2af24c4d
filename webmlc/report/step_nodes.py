"""Find the nodes of a package, which does not hold the graph of its model.

In: a manifest, whose steps name the ONNX nodes that they compute. Out: a `ModelNode` for each name.
Within a step, the input of a node is the node that the step names before it. The inputs of a step's
first node are the nodes that wrote the buffers that the step reads. Operators are not known.
"""

from __future__ import annotations

from webmlc.package.manifest import Manifest, Step
from webmlc.report.nodes import ModelNode


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
