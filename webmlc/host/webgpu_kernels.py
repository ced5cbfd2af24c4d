"""Compile the kernels of a program through wgpu-py, as far as runs need them.

In: the shaders of a package, a step, and the values of symbols. Out: the pipeline of the step. The
twin is `runtime_js/gpu_program.js`:

    kernels = Kernels(device, loaded)                 # compiles the kernels that every run needs
    kernels.pipeline(step, {"rows": 8})               # compiles the sections for 8 rows, once
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from webmlc.host.executor import Loaded
from webmlc.host.webgpu_adapter import bind_group_layout, for_naga
from webmlc.package.manifest import Step
from webmlc.package.sizes import evaluate

_KERNEL = re.compile(r"^(?=// )", re.MULTILINE)
"""The place before the comment at which the text of a kernel begins."""
_NAME = re.compile(r"^fn (\w+)\(", re.MULTILINE)
_SECTION = re.compile(r"^override (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled pipeline, and for each optional section of its kernel, if it is contained."""

    pipeline: Any
    sections: tuple[bool, ...]


class Kernels:
    """The kernels of a program. Kernels that differ in numbers only share an entry point.

    A pipeline contains the optional sections that runs have needed so far: compiling a section
    takes a software adapter longer than running it.
    """

    def __init__(self, device: Any, loaded: Loaded) -> None:
        self.device = device
        self.texts = split_shaders(loaded.shaders)
        self.path = next(iter(loaded.program.shaders.values()), "")
        self.constants = {b.name for b in loaded.program.buffers if b.kind == "constant"}
        self.layouts: dict[str, Any] = {}
        self.pipelines: dict[str, Pipeline] = {}
        for step in certain_steps(loaded.program.steps):
            self.pipeline(step, {})

    def layout(self, step: Step) -> Any:
        """The layout that binds the arguments of a step, constants read-only, and then the uniform
        of its symbols and integers.
        """
        entry = entry_of(step)
        if entry not in self.layouts:
            are_read_only = [name in self.constants for name in step.arguments]
            has_uniform = bool(step.symbols or step.launch.integers)
            self.layouts[entry] = bind_group_layout(self.device, are_read_only, has_uniform)
        return self.layouts[entry]

    def pipeline(self, step: Step, values: Mapping[str, int]) -> Any:
        """A pipeline with the sections that a step needs for these values of symbols."""
        entry, sections = entry_of(step), step.launch.sections
        compiled = self.pipelines.get(entry)
        if compiled is not None and not sections:
            return compiled.pipeline
        needed = tuple(evaluate(size, values) > 0 for size in sections)
        present = compiled.sections if compiled is not None else (False,) * len(needed)
        union = tuple(n or p for n, p in zip(needed, present, strict=True))
        if compiled is None or union != present:
            compiled = Pipeline(self._compile(step, union), union)
            self.pipelines[entry] = compiled
        return compiled.pipeline

    def _compile(self, step: Step, sections: tuple[bool, ...]) -> Any:
        """Compile a pipeline that contains some of the optional sections. Each has a module of its
        own, because wgpu translates the whole module again for every pipeline.
        """
        entry = entry_of(step)
        code = for_naga(with_sections(self.texts[entry], sections))
        module = self.device.create_shader_module(label=f"{self.path}: {entry}", code=code)
        return self.device.create_compute_pipeline(
            label=entry,
            layout=self.device.create_pipeline_layout(bind_group_layouts=[self.layout(step)]),
            compute={"module": module, "entry_point": entry},
        )


def entry_of(step: Step) -> str:
    """The entry point that a step launches."""
    return step.launch.entry or step.kernel


def certain_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Iterate over the steps of the GPU whose kernels every run needs as a whole. Runs decide about
    the branches of an `if`, and about sections.
    """
    end = 0  # of the branches of the latest `if`
    for index, step in enumerate(steps):
        is_certain = index >= end
        if is_certain and step.control is not None and step.control.kind == "if":
            branch = steps[step.control.target - 1].control
            assert branch is not None
            end = branch.target  # of the `else`
        is_kernel = step.device == "webgpu" and step.control is None
        if is_certain and is_kernel and not step.launch.sections:
            yield step


def split_shaders(code: str) -> dict[str, str]:
    """Divide shaders into one module for each entry point. Each kernel begins with a comment at the
    start of a line. The text before the first kernel belongs to all modules.
    """
    common, *parts = _KERNEL.split(code)
    texts = {}
    for part in parts:
        name = _NAME.search(part)
        assert name is not None, "a kernel without an entry point"
        texts[name[1]] = common + part
    return texts


def with_sections(text: str, sections: tuple[bool, ...]) -> str:
    """The text of a kernel without the optional sections that a pipeline does not contain. The
    workgroup memory of code that never runs would stay, if only an override left the code out.
    """
    for name, is_contained in zip(_SECTION.findall(text), sections, strict=False):
        if not is_contained:
            section = re.compile(rf"^ if \({name}\) {{\n.*?^ }}\n", re.MULTILINE | re.DOTALL)
            text = section.sub("", text, count=1)
    return text
