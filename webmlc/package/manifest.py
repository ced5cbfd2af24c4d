"""The manifest: the only contract between the compiler and the runtimes.

The records describe a model: its signature, symbols and programs. `to_json` converts them to
`manifest.json`, and `from_json` converts that file to records. `runtime_js/manifest.js` reads the
same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, Var, as_int, const
from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass
from webmlc.core.package_files import FORMAT as FORMAT
from webmlc.core.package_files import MANIFEST as MANIFEST
from webmlc.core.rewrite import variables
from webmlc.graph.ir import Check, Requirement
from webmlc.package.resources import Resources
from webmlc.schedule.tuning import Tuning

VERSION = 8
"""The version of the package format. It increases with every incompatible change."""

BufferKind = Literal["input", "constant", "derived", "state", "scratch"]
Size = int | str | list[Any]
"""A dimension in JSON: an integer, a symbol's name, or `[operator, Size, ...]`."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic dimension, which a run binds from one axis of one input.

    Without an input it is the length of a session, the rows of its states before the run (`axis`
    0), or its capacity (`axis` 1).
    """

    name: str
    input: str
    axis: int


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model: its public name, its type, and the buffer that holds it."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    buffer: str


@dataclass(frozen=True, slots=True)
class StatePort:
    """The input and the output that the model had in place of a state, which is `past.buffer`.

    A run without a session takes and returns them. A past may grow along the axis whose size is the
    symbol of the length, which is the first axis of the state. Otherwise each run replaces it.

    A past that is a buffer has an axis whose size is the symbol of the capacity. A run writes at
    most `rows` rows to it, and the present has `size` rows.
    """

    past: Port
    present: str
    rows: Expr | None = None
    size: Expr | None = None

    def axis(self, length: str) -> int | None:
        """The axis along which the past grows. `None` if it is replaced."""
        sizes = self.past.shape
        return sizes.index(Var(length)) if length and Var(length) in sizes else None

    def buffer_axis(self, capacity: str) -> int | None:
        """The axis of a buffer that has the capacity of the session. `None` for other states."""
        return self.axis(capacity)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of a program.

    `tensor` is the name of a constant in the weights, and `bytes` the exact size. A buffer of kind
    `derived` holds values that are computed from constants once, at load. One of kind `state`
    belongs to a session. If its size depends on the symbol of the length, it grows, and has room
    for as many rows as the session's capacity. Otherwise each run replaces it.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    kind: BufferKind = "scratch"
    tensor: str | None = None

    @property
    def is_resident(self) -> bool:
        """True if the buffer holds the same bytes in every run."""
        return self.kind in ("constant", "derived")

    @property
    def is_activation(self) -> bool:
        """True if the buffer is in the arena, for the time of a run at most."""
        return self.kind in ("input", "scratch")

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols on which the size depends."""
        return frozenset(v.name for d in self.shape for v in variables(d))

    @property
    def bytes(self) -> Expr:
        """The size in bytes, which may be symbolic."""
        size: Expr = const(self.dtype.bytes)
        for dimension in self.shape:
            size = dimension * size
        return size


@dataclass(frozen=True, slots=True)
class Control:
    """The action of a control step, which calls no kernel. Its optional argument is a boolean.

    - `if`: jump to step `target` unless the argument is true.
    - `else`: jump to `target`.
    - `loop`: set `symbol` to 0. Jump to `target`, past the `next`, unless an iteration follows.
    - `next`: increment `symbol`. Jump back to `target`, past the `loop`, if an iteration follows.

    An iteration follows if `symbol` is below `trips` and the argument, if there is one, is true.
    """

    kind: Literal["if", "else", "loop", "next"]
    target: int
    symbol: str = ""
    trips: Expr | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on the GPU, and how many workgroups to dispatch."""

    kernel: str
    workgroups: tuple[Expr, Expr, Expr]


@dataclass(frozen=True, slots=True)
class StepVariant:
    """What a webgpu step launches in one variant of the shaders (see `Step`)."""

    workgroups: tuple[Expr, Expr, Expr]
    alternatives: Mapping[int, Launch] = field(default_factory=dict)
    entry: str = ""
    integers: tuple[int, ...] = ()
    sections: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call, or with `control` a step that decides which step is next.

    - `arguments`: buffers in the order of the kernel's parameters. The last `outputs` are written.
    - `symbols`: the symbols of a webgpu step. A wasm module contains those of its steps.
    - `workgroups`: the dispatch of a webgpu step.
    - `entry`: the entry point of a webgpu step, or "" if it has the kernel's name.
    - `integers`: what follows the symbols in the uniform of a webgpu step; of floats, the bits.
    - `sections`: the workgroups of the sections that a pipeline may leave out, by override.
    - `origin`: the ONNX nodes that the step computes.
    - `stages`: those of each stage of its kernel. They are not in the manifest.
    - `reason`: why a step of a webgpu program runs on the CPU.
    - `displacements`: the bytes from a buffer's start to each argument of a wasm step, or () if
      all are 0. They are in the module, not in the manifest.
    - `alternatives`: what a webgpu step launches instead on a class of machines, by its number. A
      wasm module contains those of its steps.
    - `variants`: what variants of the shaders launch that differ from the first, the step's.
    """

    device: Device
    kernel: str
    arguments: tuple[str, ...]
    outputs: int = 1
    symbols: tuple[str, ...] = ()
    workgroups: tuple[Expr, Expr, Expr] | None = None
    origin: tuple[str, ...] = ()
    stages: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    reason: str = ""
    control: Control | None = None
    displacements: tuple[int, ...] = ()
    alternatives: Mapping[int, Launch] = field(default_factory=dict)
    variants: Mapping[str, StepVariant] = field(default_factory=dict)
    entry: str = ""
    integers: tuple[int, ...] = ()
    sections: tuple[Expr, ...] = ()

    def entry_in(self, variant: str) -> str:
        """The entry point of the step in a variant of the shaders."""
        return self.variants.get(variant, self).entry or self.kernel

    @property
    def written(self) -> tuple[str, ...]:
        """The buffers that this step writes."""
        return self.arguments[len(self.arguments) - self.outputs :]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps `first..last-1` on one device.

    The wasm module numbers them `module_first..module_last-1`. A run with `once` is executed at
    load, where it computes derived buffers.
    """

    device: Device
    first: int
    last: int
    module_first: int = 0
    module_last: int = 0
    once: bool = False


@dataclass(frozen=True, slots=True)
class Bind:
    """Symbols known only at run time: `symbols[i]` is element `elements[i]` of `buffer`.

    Earlier steps, or the caller, wrote the integers in `buffer`. The host reads them, then plans
    memory for the buffers whose sizes are now known. `origin` names the ONNX nodes that need the
    symbols.
    """

    buffer: str
    symbols: tuple[str, ...]
    elements: tuple[int, ...]
    origin: tuple[str, ...] = ()


Segment = Run | Bind
"""The unit of a host's execution. In JSON, the key `device` marks a `Run`, and `bind` a `Bind`."""


@dataclass(frozen=True, slots=True)
class Halves:
    """The float32 buffers that variants of the shaders with `shader-f16` store as float16, and the
    arena of such a variant in bytes, or `None` if it depends on symbols.
    """

    buffers: tuple[str, ...]
    arena: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """The program that runs the model on one target: buffers, steps and code files.

    The segments cover the steps in order. `modules` and `shaders` are files by variant. A host uses
    one of each. `shader_features` are the features of WebGPU that a variant of the shaders needs,
    of variants that need some. `halves` are there if some of them need `shader-f16`.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    resources: Resources
    modules: Mapping[str, str] = field(default_factory=dict)
    shaders: Mapping[str, str] = field(default_factory=dict)
    shader_features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    halves: Halves | None = None

    @property
    def loops(self) -> tuple[Control, ...]:
        """The loops, in order. The symbol of each counts its iterations."""
        controls = [step.control for step in self.steps if step.control is not None]
        return tuple(control for control in controls if control.kind == "loop")

    def with_halves(self) -> Program:
        """The program whose buffers are as variants with `shader-f16` store them."""
        if self.halves is None:
            return self
        names = frozenset(self.halves.buffers)
        buffers = (replace(b, dtype=DType.float16) if b.name in names else b for b in self.buffers)
        arena = {**self.resources.arena, "webgpu": self.halves.arena}
        resources = replace(self.resources, arena=arena)
        return replace(self, buffers=tuple(buffers), resources=resources, halves=None)

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name. There must be one."""
        return next(b for b in self.buffers if b.name == name)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The segments that run steps, in order."""
        return tuple(s for s in self.segments if isinstance(s, Run))

    @property
    def bound(self) -> tuple[str, ...]:
        """The symbols that segments bind, in order. Their slots follow those of the inputs."""
        return tuple(name for s in self.segments if isinstance(s, Bind) for name in s.symbols)


@dataclass(frozen=True, slots=True)
class File:
    """The size and hash of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One safetensors file.

    `tensors` gives the bytes `[begin, end)` of each tensor, from the start of the file.
    `chunks_sha256` is the hash of a list of hashes, those of consecutive chunks. A host that
    streams the file hashes each chunk as it arrives, and verifies the list at the end.
    """

    path: str
    bytes: int
    sha256: str
    chunk_bytes: int
    chunks_sha256: str
    tensors: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel whose schedule was found by measuring. It serves people: no host reads it.

    `variant` is that of the module (`relaxed`) or of the shaders (`gpu`). `machine` is the number
    of the class of machines that use it, or 0 for all others.
    """

    kernel: str
    variant: str
    tuning: Tuning
    machine: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """All information about a package that a host needs.

    `sequences` maps each output of the model that is a sequence to the outputs that are its
    elements. `None` stands for an empty optional. `requirements` are conditions on the symbols of a
    run. `checks` are buffers that count indices out of range. `state_ports` are inputs and outputs
    that states replace. `tuned` are the kernels whose schedules are not the default ones.
    `machines` are the classes of machines for which some kernels have other schedules, numbered
    from 1. `typed` says which inputs and outputs are values of the page (`graph/typed`): pixels, or
    classes with labels.
    """

    name: str
    compiler: str
    symbols: tuple[Symbol, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[WeightFile, ...]
    files: Mapping[str, File]
    programs: Mapping[Device, Program]
    sequences: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
    checks: tuple[Check, ...] = ()
    tuned: tuple[TunedKernel, ...] = ()
    machines: tuple[MachineClass, ...] = ()
    state_ports: tuple[StatePort, ...] = ()
    typed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def length(self) -> str:
        """The symbol of the length of sessions; "" for a model without states that grow."""
        return next((s.name for s in self.symbols if not s.input and s.axis == 0), "")

    @property
    def capacity(self) -> str:
        """The symbol of the capacity of sessions; "" for a model without states of this size."""
        return next((s.name for s in self.symbols if not s.input and s.axis == 1), "")

    @property
    def has_states(self) -> bool:
        """True if sessions keep states, which grow or are replaced."""
        return bool(self.length or self.state_ports)

    @property
    def results(self) -> tuple[str, ...]:
        """The buffers that hosts read after a run: those of the outputs and of the checks."""
        return (*(o.buffer for o in self.outputs), *(check.value for check in self.checks))


def is_static(program: Program) -> bool:
    """True if no buffer's size depends on a symbol."""
    return all(as_int(d) is not None for b in program.buffers for d in b.shape)
