"""Find the nodes of a package, which does not hold the graph of its model.

In: a manifest, whose steps name the ONNX nodes that they compute. Out: a `ModelNode` for each name.
Its inputs are the nodes before it: within a step the one that the step names before it, and between
steps those that wrote what the step reads. Its operator is not known.
"""

from __future__ import annotations

from webmlc.package.manifest import Manifest, Step
from webmlc.report.nodes import ModelNode


def step_nodes(manifest: Manifest) -> list[ModelNode]:
    """The nodes in the order in which the runs of the first program name them, then the others."""
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
    """The pairs of nodes, of which the second follows the first."""
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
