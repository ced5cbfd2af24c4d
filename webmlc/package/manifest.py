"""The manifest: the only contract between the compiler and the runtimes.

In: what a model is made of (signature, symbols, programs) as records. Out: `manifest.json`
(`to_json`), and the records back from it (`from_json`). `runtime_js/manifest.js` reads the same
file.

    >>> from webmlc.core.expr import Var
    >>> to_size(Var("n") * 2 + 1)
    ['add', ['mul', 'n', 2], 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError, PackageError
from webmlc.core.expr import Call, Const, Expr, Var, as_int, call, const
from webmlc.core.machine import Device
from webmlc.core.rewrite import variables
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.sizes import SIZE_OPERATORS, is_size_operator
from webmlc.graph.ir import Check, Requirement

FORMAT = "webmlc"
VERSION = 5
MANIFEST = "manifest.json"

BufferKind = Literal["input", "constant", "derived", "scratch"]
Size = int | str | list[Any]
"""A dimension in JSON: an integer, a symbol's name, or `[operator, Size, ...]`."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic dimension, bound at run time from one axis of one input."""

    name: str
    input: str
    axis: int


@dataclass(frozen=True, slots=True)
class Port:
    """A graph input or output: its public name and type, and the buffer of each program that holds
    it.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    buffer: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of a program. `tensor` is a constant's name in the weights; `bytes` its exact size.
    `derived` buffers hold what is made of constants, once, at load.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    kind: BufferKind = "scratch"
    tensor: str | None = None

    @property
    def is_resident(self) -> bool:
        """True where it holds the same bytes in every run."""
        return self.kind in ("constant", "derived")

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that its size depends on."""
        return frozenset(v.name for d in self.shape for v in variables(d))

    @property
    def bytes(self) -> Expr:
        """Size in bytes, perhaps symbolic."""
        size: Expr = const(self.dtype.bytes)
        for dimension in self.shape:
            size = dimension * size
        return size


@dataclass(frozen=True, slots=True)
class Control:
    """What a step that calls no kernel does instead; its argument, where it has one, is a boolean.

    `if`: goes on at step `target` unless the argument is true. `else`: goes on at `target`.
    `loop`: `symbol` is 0. `next`: `symbol` is one more. A `loop` goes on at `target`, past its
    `next`, unless another iteration follows: `symbol` is below `trips`, and the argument is true;
    a `next` goes back to `target`, past its `loop`, if one follows.
    """

    kind: Literal["if", "else", "loop", "next"]
    target: int
    symbol: str = ""
    trips: Expr | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call: buffers in the kernel's parameter order (the last `outputs` are written),
    then symbols (of a webgpu step: a wasm module has its steps' own). With `control`, no kernel but
    what decides which step is next.

    `workgroups` is the dispatch of a webgpu step; `origin` the ONNX nodes it computes; `reason`
    why a step of a webgpu program runs on the CPU; `displacements` the bytes from a buffer's start
    to each argument of a wasm step, () where all are 0 (its module adds them: no file holds them).
    """

    device: Device
    kernel: str
    arguments: tuple[str, ...]
    outputs: int = 1
    symbols: tuple[str, ...] = ()
    workgroups: tuple[Expr, Expr, Expr] | None = None
    origin: tuple[str, ...] = ()
    reason: str = ""
    control: Control | None = None
    displacements: tuple[int, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """The buffers this step writes."""
        return self.arguments[len(self.arguments) - self.outputs :]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps `first..last-1` on one device. `module_first..module_last-1` are the wasm
    module's own numbers. A run that is done `once` belongs to loading: it makes derived buffers.
    """

    device: Device
    first: int
    last: int
    module_first: int = 0
    module_last: int = 0
    once: bool = False


@dataclass(frozen=True, slots=True)
class Bind:
    """Symbols that only a run knows: `symbols[i]` is element `elements[i]` of `buffer`, which holds
    integers that earlier steps (or the caller) wrote.

    The host reads it, and then plans memory for the buffers whose sizes it now knows. `origin` are
    the ONNX nodes that need the symbols.
    """

    buffer: str
    symbols: tuple[str, ...]
    elements: tuple[int, ...]
    origin: tuple[str, ...] = ()


Segment = Run | Bind
"""What a host does next. JSON tells the kinds apart by a key of their own: `device`, `bind`."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a run takes, exactly, in bytes; the hosts assert it. `None` where it depends on symbols.

    `arena` is the activations' memory per device; `memory` the whole WebAssembly memory with one
    thread; `largest_binding` the largest buffer a GPU binds.
    """

    weights: int
    arena: Mapping[str, int | None]
    memory: int | None
    largest_binding: int | None
    scratch_per_thread: int = 0
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """How one target runs the model: buffers, steps, and the files that hold their code.

    The segments cover the steps in order.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    resources: Resources
    modules: Mapping[str, str] = field(default_factory=dict)
    shaders: str | None = None

    @property
    def loops(self) -> tuple[Control, ...]:
        """The loops, in order: each has a symbol that its steps count up."""
        controls = [step.control for step in self.steps if step.control is not None]
        return tuple(control for control in controls if control.kind == "loop")

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name; raises `KeyError` where there is none."""
        return next(b for b in self.buffers if b.name == name)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The segments that run steps, in order."""
        return tuple(s for s in self.segments if isinstance(s, Run))

    @property
    def bound(self) -> tuple[str, ...]:
        """The symbols that segments bind, in order: their slots follow those of the inputs'."""
        return tuple(name for s in self.segments if isinstance(s, Bind) for name in s.symbols)


@dataclass(frozen=True, slots=True)
class File:
    """Size and hash of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One safetensors file: where each tensor's bytes are (`[begin, end)` from the file's start),
    and hashes of its consecutive chunks, so that a stream is verified while it arrives."""

    path: str
    bytes: int
    sha256: str
    chunk_bytes: int
    chunks: tuple[str, ...]
    tensors: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a host needs to know about a package.

    `sequences` says which outputs together are an output of the model that is a sequence; None
    where that is an optional, and empty. `requirements` are what a run's symbols must fulfil;
    `checks` are buffers that count indices out of range.
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

    @property
    def results(self) -> tuple[str, ...]:
        """The buffers that hosts read after a run: those of outputs and of checks."""
        return (*(o.buffer for o in self.outputs), *(check.value for check in self.checks))


def to_size(expr: Expr) -> Size:
    """A dimension as JSON. Raises `InternalError` on an operator that sizes may not use."""
    match expr:
        case Const(value=value):
            return int(value)
        case Var(name=name):
            return name
        case Call(op=op, args=args) if is_size_operator(op, args):
            return [op, *map(to_size, args)]
    raise InternalError(
        f"package: a size may use {', '.join(SIZE_OPERATORS)} of symbols, not {expr}"
    )


def from_size(size: Any, named: Mapping[str, Any] | None = None) -> Expr:
    """The expression of a JSON size, which may be the name of one. Raises `PackageError` where it
    is malformed.
    """
    if named and isinstance(size, str):
        size = named.get(size, size)
    match size:
        case bool():
            pass
        case int():
            return const(size)
        case str():
            return Var(size)
        case [str(op), *args] if op in SIZE_OPERATORS and len(args) == SCALAR_OPERATORS[op].arity:
            return call(op, *map(from_size, args))
    raise PackageError(f"manifest.json: {size!r} is no size")


def is_static(program: Program) -> bool:
    """True where no buffer's size depends on a symbol."""
    return all(as_int(d) is not None for b in program.buffers for d in b.shape)
