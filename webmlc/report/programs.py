"""Describe the programs of a package for its report: steps, kernels, buffers and memory.

In: a manifest, and the records of a build, if there was a build. Out: JSON values. Steps refer to
nodes, kernels and buffers by number.

    sources = Sources(nodes, recorder, parts.explanations)
    programs(manifest, sources, {"batch": 1})["wasm"]["steps"][0]["kernel"]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from webmlc.core.machine import Device
from webmlc.package.kernel_code import Explanation
from webmlc.package.manifest import Manifest, Program, Step, symbols_bound_by
from webmlc.package.manifest_examples import manifest_examples
from webmlc.package.memory_plan import Layout, buffer_bytes, layout
from webmlc.package.plan_memory import lifetimes, load_lifetimes
from webmlc.package.sizes import shape_text
from webmlc.package.step_work import StepWork
from webmlc.report.nodes import ModelNode, Recorder
from webmlc.target.kernel_work import KernelWork
from webmlc.target.line_stages import Stages
from webmlc.target.webgpu.names import wgsl_name

VARIANT = "relaxed"
"""The WebAssembly module that a report shows: most browsers run this variant."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The data of a report besides the manifest.

    - `recorder`, `explanations`: from the build, for the sizes of the report. The report of a
      package has neither.
    - `lines`: in the report of a package, the lines of kernels by the name of their text.
    - `shaders`: the variants of the shaders with distinct texts. The page shows the first variant
      until its user chooses another.
    - `calls`: the lines of the module that run each step, by the step's number in the module.
    - `stages`: the stages of each step of the programs (`ProgramParts.stages`).
    """

    nodes: Sequence[ModelNode]
    recorder: Recorder | None = None
    explanations: Mapping[tuple[str, str], Explanation] = field(default_factory=dict)
    lines: Mapping[str, Mapping[str, range]] = field(default_factory=dict)
    shaders: Sequence[str] = ()
    calls: Mapping[int, range] = field(default_factory=dict)
    stages: Mapping[Device, Sequence[tuple[tuple[str, ...], ...]]] = field(default_factory=dict)


def all_symbols(manifest: Manifest, sizes: Mapping[str, int]) -> dict[str, int]:
    """A value for every symbol of every program. A symbol without a size gets an example size.

    Raises `InputError` if a size belongs to no symbol.
    """
    names = [symbol.name for symbol in manifest.symbols]
    names += [name for program in manifest.programs.values() for name in program.bound]
    names += [loop.symbol for program in manifest.programs.values() for loop in program.loops]
    return manifest_examples(manifest, names, sizes)


def programs(
    manifest: Manifest, sources: Sources, symbols: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """The programs by device. `symbols` has a value for every symbol (`all_symbols`)."""
    return {device: _program(manifest, device, sources, symbols) for device in manifest.programs}


def _program(
    manifest: Manifest, device: Device, sources: Sources, symbols: Mapping[str, int]
) -> dict[str, Any]:
    program = manifest.programs[device]
    kernels = {step.kernel: step for step in program.steps if step.control is None}
    numbers = {name: number for number, name in enumerate(kernels)}
    buffers = {buffer.name: number for number, buffer in enumerate(program.buffers)}
    sizes = buffer_bytes(program, symbols)
    resources = program.resources
    return {
        "steps": _steps(program, device, sources, numbers, buffers, sizes),
        "kernels": [_kernel(device, step, sources) for step in kernels.values()],
        "buffers": [
            [b.name, f"{b.dtype}{shape_text(program.shape(b))}", b.kind, sizes[b.name]]
            for b in program.buffers
        ],
        "memory": _memory(manifest, device, symbols, buffers),
        "binds": sum(bool(symbols_bound_by(segment)) for segment in program.segments),
        "weights": resources.weights,
        "total": resources.memory,
        "binding": resources.largest_binding,
        "arena": dict(resources.arena),
    }


def _steps(
    program: Program,
    device: Device,
    sources: Sources,
    numbers: Mapping[str, int],
    buffers: Mapping[str, int],
    sizes: Mapping[str, int],
) -> list[dict[str, Any]]:
    """The steps in order. `once` marks the steps that run at load."""
    owners: dict[str, list[int]] = defaultdict(list)
    for number, node in enumerate(sources.nodes):
        if node.fate != "constant":
            owners[node.name].append(number)
    once = {i for run in program.runs if run.once for i in range(run.first, run.last)}
    works = [_step_work(device, step, sources) for step in program.steps]
    stages = sources.stages.get(device, ())
    return [
        {
            "kernel": numbers.get(step.kernel, -1),
            "device": step.device,
            "nodes": [n for origin in step.origin for n in owners.get(origin, ())],
            "origin": [origin for origin in step.origin if origin not in owners],
            **_stages(stages[number] if stages else (), owners),
            "reads": [buffers[a] for a in step.arguments[: len(step.arguments) - step.outputs]],
            "writes": [buffers[a] for a in step.written],
            "least": _least(step, sizes) if work is None else work.work.least,
            **({} if work is None else _work(work)),
            **({"once": True} if number in once else {}),
            **({"reason": step.reason} if step.reason else {}),
            **({"control": step.control.kind} if step.control else {}),
            **_calls(program, number, sources.calls),
        }
        for number, (step, work) in enumerate(zip(program.steps, works, strict=True))
    ]


def _stages(
    stages: Sequence[tuple[str, ...]], owners: Mapping[str, Sequence[int]]
) -> dict[str, list[list[int]]]:
    """The nodes of each stage of a step's kernel, if stages compute different nodes."""
    if len(set(stages)) < 2:
        return {}
    return {"stages": [[n for o in stage for n in owners.get(o, ())] for stage in stages]}


def module_number(program: Program, step: int) -> int:
    """The number of a step of the CPU in the module."""
    run = next(run for run in program.runs if run.first <= step < run.last)
    return run.module_first + step - run.first


def _calls(program: Program, step: int, calls: Mapping[int, range]) -> dict[str, list[int]]:
    """The lines of the module that run a step of the CPU, if they are known."""
    if program.steps[step].device != "wasm" or not calls:
        return {}
    lines = calls.get(module_number(program, step))
    return {} if lines is None else {"calls": [lines.start, lines.stop]}


def _step_work(device: Device, step: Step, sources: Sources) -> StepWork | None:
    """The work of a step; for a dispatch, the work in the first variant of the shaders. The work is
    0 for a step that calls no kernel, and `None` in the report of a package.
    """
    if sources.recorder is None:
        return None
    if step.control is not None:
        return StepWork(step.kernel, step.origin, KernelWork())
    text = sources.shaders[0] if step.device == "webgpu" else VARIANT
    name, _ = _place(device, step, text, sources.recorder)
    explanation = sources.explanations[text, name]
    return StepWork(step.kernel, step.origin, explanation.work, explanation.dispatch)


def _work(step: StepWork) -> dict[str, Any]:
    """The work of a step, and the size of its dispatch with its bound on each adapter."""
    work, dispatch = step.work, step.dispatch
    result: dict[str, Any] = {"flops": work.flops, "moved": work.moved}
    if dispatch is not None:
        result["dispatch"] = {
            **asdict(dispatch),
            "bytes": {
                "registers": work.registers,
                "workgroup": work.workgroup,
                "storage": work.storage,
            },
            "bounds": {
                name: [estimate.bound, 1e6 * estimate.seconds]
                for name, estimate in step.estimates.items()
            },
        }
    return result


def _least(step: Step, sizes: Mapping[str, int]) -> int:
    """The bytes of the arguments, each counted once: the least that a step can move if it needs
    all of them.
    """
    return sum(sizes[name] for name in dict.fromkeys(step.arguments))


def _kernel(device: Device, step: Step, sources: Sources) -> dict[str, Any]:
    """A kernel. Its code in other variants of the shaders is `others`."""
    texts = sources.shaders if step.device == "webgpu" else [VARIANT]
    first, *others = (_code(device, step, text, sources) for text in texts)
    return {"name": step.kernel, **first, **({"others": others} if others else {})}


def _code(device: Device, step: Step, text: str, sources: Sources) -> dict[str, Any]:
    """The lines of a kernel in a text, and its schedule there, as far as they are known."""
    if sources.recorder is None:
        name, lines = step.kernel, sources.lines.get(text, {}).get(step.entry_in(text))
    else:
        name, lines = _place(device, step, text, sources.recorder)
    result: dict[str, Any] = {"text": text}
    explanation = sources.explanations.get((text, name))
    if lines is not None:
        result["lines"] = [lines.start, lines.stop]
        if explanation is not None:
            result["stages"] = _line_runs(explanation.lines, len(lines))
    return result if explanation is None else result | _schedule(explanation)


def _line_runs(stages: Sequence[Stages], count: int) -> list[list[int]]:
    """The runs of lines of a kernel that compute the same stages. A run is a list: its first line,
    counted from the kernel's first line, then the stages. The kernel has `count` lines. `stages`
    has an entry for each of its last lines; the lines before them are a comment.
    """
    runs = [[0]]
    for line, numbers in enumerate(stages, count - len(stages)):
        if tuple(runs[-1][1:]) != numbers:
            runs.append([line, *numbers])
    return runs


def _place(device: Device, step: Step, text: str, recorder: Recorder) -> tuple[str, range | None]:
    """The name of a step's kernel in a text, and its lines there."""
    if step.device == "webgpu":
        shaders = recorder.shaders[text]
        name = next(name for name in shaders.entries if wgsl_name(name) == step.kernel)
        return name, shaders.lines.get(name)
    name = step.kernel if device == "wasm" else f"{step.kernel}_cpu"
    module = recorder.modules.get(text)
    return name, None if module is None else module.lines.get(name)


def _schedule(explanation: Explanation) -> dict[str, Any]:
    result: dict[str, Any] = {
        "rule": explanation.rule,
        "trace": [_step_text(step) for step in explanation.trace],
        "loops": explanation.loops(),
    }
    tuning = explanation.tuning
    if tuning is not None:
        result["tuning"] = {
            "changes": dict(tuning.changes),
            "platform": tuning.platform,
            "ratio": tuning.ratio,
        }
    return result


def _step_text(step: Mapping[str, Any]) -> str:
    """A step of a trace as a call."""
    return f"{step['primitive']}({', '.join(map(_argument, step['arguments']))})"


def _argument(value: Any) -> str:
    match value:
        case None:
            return "_"
        case list():
            return f"[{', '.join(map(_argument, value))}]"
        case {"expr": inner}:
            return _argument(inner)
    return str(value)


def _memory(
    manifest: Manifest, device: Device, symbols: Mapping[str, int], buffers: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The plan of each device that the program uses: when each buffer lives, and where."""
    program = manifest.programs[device]
    plans = []
    for place in program.memory:
        plan = layout(manifest, device, place, symbols)
        spans = lifetimes(program, place, device)
        spans |= load_lifetimes(program, manifest.results, device, place)
        start = _arena_start(plan, spans)
        boxes = [
            [buffers[name], first, last, address - start, plan.sizes[name]]
            for name, (first, last) in spans.items()
            if (address := plan.offsets.get(name, plan.constants.get(name))) is not None
        ]
        plans.append(
            {
                "device": place,
                "boxes": boxes,
                "bytes": max((offset + size for *_, offset, size in boxes), default=0),
                "scratch": program.resources.scratch_per_thread if place == "wasm" else 0,
                "states": plan.state_bytes,
                "total": plan.total,
            }
        )
    return plans


def _arena_start(plan: Layout, spans: Mapping[str, object]) -> int:
    """The lowest address of the buffers that share memory."""
    places = [plan.offsets.get(name, plan.constants.get(name, 0)) for name in spans]
    return min(places, default=0)
