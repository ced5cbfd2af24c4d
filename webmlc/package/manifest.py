"""The manifest: the only contract between the compiler and the runtimes.

The records are the only declaration of the format. `manifest_json` writes and reads them as
`manifest.json`. `manifest_schema` derives a JSON Schema, the checks of the JavaScript runtime and
its types from them. To add a field, add it here, and run `python -m
webmlc.package.manifest_schema`.

A size is an integer, a name or an expression (`sizes`). A name belongs to a symbol, or to an entry
in the `sizes` of its program.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Annotated, Literal

from msgspec import Meta, field, structs

from webmlc.core.dtypes import DType
from webmlc.core.machine import Device
from webmlc.core.machine_class import MachineClass
from webmlc.core.package_files import FORMAT as FORMAT
from webmlc.core.package_files import MANIFEST as MANIFEST
from webmlc.core.record import Record
from webmlc.core.sizes import Rule
from webmlc.core.text_steps import TextStep
from webmlc.package.sizes import Size, symbols_of, values_of, without_names
from webmlc.schedule.tuning import Tuning

VERSION = 10
"""The version of the package format. It increases with every incompatible change."""

BufferKind = Literal["input", "constant", "derived", "state", "scratch"]
FileName = Annotated[str, Meta(pattern=r"^(?!\.\.?$)[^/\\:]+$")]
"""A file in the package's folder, and not in another one."""


class Symbol(Record):
    """A symbolic dimension, which a run binds from one axis of one input.

    A symbol without an input belongs to a session. If `axis` is 0, the symbol is the length: the
    number of rows of the session's states before the run. If `axis` is 1, it is the capacity.
    """

    name: str
    input: str
    axis: int


class Port(Record):
    """An input or output of the model: its public name, its type, and the buffer that holds it."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    buffer: str


class StatePort(Record):
    """The input and the output that the model had in place of a state, which is `past.buffer`.

    A run without a session takes the past as an input and returns the present. A past may grow
    along the axis whose size is the symbol of the length, which is the first axis of the state.
    Otherwise each run replaces the past.

    A past that is a buffer has an axis whose size is the symbol of the capacity. A run writes at
    most `rows` rows to this buffer, and the present has `size` rows.
    """

    past: Port
    present: str
    rows: Size | None = None
    size: Size | None = None

    def axis(self, symbol: str) -> int | None:
        """The axis of the past whose size is a symbol: the length, along which the past grows, or
        the capacity. `None` for other states.
        """
        sizes = self.past.shape
        return sizes.index(symbol) if symbol and symbol in sizes else None


class Buffer(Record):
    """A buffer of a program.

    `tensor` is the name of a constant in the weights. A buffer of kind `derived` holds values that
    are computed from constants once, at load. A buffer of kind `state` belongs to a session. If its
    size depends on the symbol of the length, the buffer grows, and has room for as many rows as the
    session's capacity. Otherwise each run replaces its contents.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: DType = DType.float32
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
    def static_bytes(self) -> int | None:
        """The bytes, or `None` if they depend on symbols."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        return self.dtype.bytes * prod(sizes) if len(sizes) == len(self.shape) else None


class Control(Record):
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
    trips: Size | None = None


class Launch(Record):
    """One dispatch of a shader.

    - `entry`: the entry point, or "" if it has the name of the kernel.
    - `integers`: the integers that follow the symbols in the uniform. A float is given by its bits.
    - `sections`: the workgroups of the sections whose text a pipeline may leave out.
    """

    workgroups: tuple[Size, Size, Size]
    entry: str = ""
    integers: tuple[int, ...] = ()
    sections: tuple[Size, ...] = ()


class Step(Record):
    """One kernel call, or with `control` a step that decides which step is next.

    - `arguments`: buffers in the order of the kernel's parameters. The last `outputs` are written.
    - `symbols`: the symbols of a webgpu step. A wasm module contains the symbols of its steps.
    - `launches`: the launches of a webgpu step, by variant of the shaders. A missing variant has
      the launch of the first variant. The key `VARIANT@NUMBER` is for a class of machines.
    - `origin`: the ONNX nodes that the step computes.
    - `reason`: why a step of a webgpu program runs on the CPU.
    """

    device: Device
    kernel: str
    arguments: tuple[str, ...]
    outputs: int = 1
    symbols: tuple[str, ...] = ()
    launches: Mapping[str, Launch] = field(default_factory=dict)
    control: Control | None = None
    reason: str = ""
    origin: tuple[str, ...] = ()

    def launch_in(self, variant: str, machine: int = 0) -> Launch:
        """The launch of a webgpu step in a variant of the shaders, on a class of machines."""
        launches = self.launches
        name = variant if variant in launches else next(iter(launches))
        return launches.get(f"{name}@{machine}", launches[name])

    def entry_in(self, variant: str) -> str:
        """The entry point of the step in a variant of the shaders."""
        return (self.launch_in(variant).entry if self.launches else "") or self.kernel

    @property
    def launch(self) -> Launch:
        """The launch of a webgpu step, once a variant was chosen."""
        return next(iter(self.launches.values()))

    @property
    def written(self) -> tuple[str, ...]:
        """The buffers that this step writes."""
        return self.arguments[len(self.arguments) - self.outputs :]


class Run(Record, tag_field="type", tag="run"):
    """Consecutive steps `first..last-1` on one device.

    The wasm module numbers them from `module_first`. A run with `once` is executed at load, where
    it computes derived buffers. The host writes `uploads` to the device before the run, and reads
    `downloads` after it: buffers whose newest values are on the other device, and results.
    """

    device: Device
    first: int
    last: int
    module_first: int = 0
    once: bool = False
    uploads: tuple[str, ...] = ()
    downloads: tuple[str, ...] = ()

    @property
    def module_last(self) -> int:
        """One more than the last step's number in the wasm module."""
        return self.module_first + self.last - self.first


class Bind(Record, tag_field="type", tag="bind"):
    """Symbols known only at run time: `symbols[i]` is element `elements[i]` of `buffer`.

    Earlier steps, or the caller, wrote the integers in `buffer`. The host reads them, then plans
    memory for the buffers whose sizes are now known. `origin` names the ONNX nodes that need the
    symbols.
    """

    buffer: str
    symbols: tuple[str, ...]
    elements: tuple[int, ...]
    origin: tuple[str, ...] = ()


class Measure(Record, tag_field="type", tag="measure"):
    """Symbols known only at run time: `symbols[i]` is the size of axis `axes[i]` of the value that
    a `Move` or a `Stack` left in `buffer`.
    """

    buffer: str
    symbols: tuple[str, ...]
    axes: tuple[int, ...]


class Move(Record, tag_field="type", tag="move"):
    """The host hands the values of `sources` on as `targets`, all at once. `shapes` has the shape
    of each value. A region of host control flow takes and gives its values in this way.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    shapes: tuple[tuple[Size, ...], ...]


class BeginList(Record, tag_field="type", tag="begin_list"):
    """The host makes the list `target` empty."""

    target: str


class Collect(Record, tag_field="type", tag="collect"):
    """The host appends the value of `source`, of shape `shape`, to the list `target`."""

    target: str
    source: str
    shape: tuple[Size, ...]


class Stack(Record, tag_field="type", tag="stack"):
    """The host joins the values in the list `target` along a new axis. If there are none, `shape`
    is the shape of a value.
    """

    target: str
    axis: int
    shape: tuple[Size, ...]


class Jump(Record, tag_field="type", tag="jump"):
    """The host continues at segment `target`."""

    target: int


class JumpUnless(Record, tag_field="type", tag="jump_unless"):
    """The host continues at segment `target`, or at the following segment if the boolean in
    `unless` is true.
    """

    target: int
    unless: str


Segment = Run | Bind | Measure | Move | BeginList | Collect | Stack | Jump | JumpUnless
"""The unit of a host's execution.

Jumps make branches and loops of the segments around them. Symbols are bound in the order of the
segments that bind them: a segment that binds symbols again forgets the symbols of later segments.
"""


class Place(Record, array_like=True):
    """The place of a buffer in an arena, as JSON `[buffer, below]`.

    `buffer` is the number of the buffer. `below` lists the numbers of earlier places in the arena's
    list. The place begins at the highest end of the places `below`.
    """

    buffer: int
    below: tuple[int, ...]


class Memory(Record):
    """The buffers, by number, that a program keeps in the memory of a device.

    The constants of every run lie one after another. Then follows the arena, whose buffers share
    bytes. On the CPU, the arena also holds the derived buffers and the constants that only loading
    reads. On the GPU, the derived buffers and the constants of loading (`temporary`) have separate
    memory, because one dispatch may not bind memory both for reading only and for writing.
    """

    constants: tuple[int, ...] = ()
    temporary: tuple[int, ...] = ()
    derived: tuple[int, ...] = ()
    states: tuple[int, ...] = ()
    arena: tuple[Place, ...] = ()

    @property
    def buffers(self) -> tuple[int, ...]:
        """All buffers that have a place on the device."""
        arena = (place.buffer for place in self.arena)
        return (*self.constants, *self.temporary, *self.derived, *self.states, *arena)


class RowWork(Record):
    """The work of a run that appends one row to the states of a session: a token of a language
    model.

    `steps` counts the kernels; on a GPU, each kernel is a dispatch. The kernels read and write at
    least `bytes` bytes, and `bytes_per_row` more for each row that the session holds.
    """

    steps: int
    bytes: int
    bytes_per_row: int


class Resources(Record):
    """The exact resources of a run, in bytes, which the hosts assert.

    A resource that depends on symbols is `None`. `arena` is the memory of the activations per
    device, `memory` the whole WebAssembly memory with one thread, and `largest_binding` the largest
    buffer that a GPU binds. Models with states have `row`.
    """

    weights: int = 0
    arena: Mapping[Device, int | None] = field(default_factory=dict)
    memory: int | None = None
    largest_binding: int | None = None
    scratch_per_thread: int = 0
    features: tuple[str, ...] = ()
    row: RowWork | None = None


class Halves(Record):
    """The numbers of the float32 buffers that variants of the shaders with `shader-f16` store as
    float16. `arena` is the arena of such a variant in bytes, or `None` if it depends on symbols.
    """

    buffers: tuple[int, ...]
    arena: int | None = None


class Program(Record, dict=True):
    """The program that runs the model on one target: buffers, steps and code files.

    - `segments`: the segments, which cover the steps in order.
    - `sizes`: sizes that other sizes name. A later size may name earlier sizes.
    - `memory`: the plan of each device that the program uses.
    - `modules`, `shaders`: files by variant. A host uses one module and one file of shaders.
    - `shader_features`: by variant, the features of WebGPU that it needs. Variants that need no
      feature are left out.
    - `halves`: present if some variants of the shaders need `shader-f16`.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    resources: Resources
    sizes: Mapping[str, Size] = field(default_factory=dict)
    memory: Mapping[Device, Memory] = field(default_factory=dict)
    modules: Mapping[str, FileName] = field(default_factory=dict)
    shaders: Mapping[str, FileName] = field(default_factory=dict)
    shader_features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    halves: Halves | None = None

    @property
    def loops(self) -> tuple[Control, ...]:
        """The loops, in order. The symbol of each counts its iterations."""
        controls = [step.control for step in self.steps if step.control is not None]
        return tuple(control for control in controls if control.kind == "loop")

    def with_halves(self) -> Program:
        """The program with its buffers as variants with `shader-f16` store them."""
        if self.halves is None:
            return self
        buffers = list(self.buffers)
        for number in self.halves.buffers:
            buffers[number] = structs.replace(buffers[number], dtype=DType.float16)
        arena: dict[Device, int | None] = {**self.resources.arena, "webgpu": self.halves.arena}
        resources = structs.replace(self.resources, arena=arena)
        return structs.replace(self, buffers=tuple(buffers), resources=resources, halves=None)

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name, which must exist."""
        return next(b for b in self.buffers if b.name == name)

    @cached_property
    def item_bytes(self) -> Mapping[str, int]:
        """The bytes of an element of each buffer. Cached: the host reads them in each iteration."""
        return {buffer.name: buffer.dtype.bytes for buffer in self.buffers}

    def values(self, symbols: Mapping[str, int]) -> dict[str, int]:
        """The symbols, and the named sizes that these symbols determine."""
        return values_of(self.sizes, symbols)

    def shape(self, buffer: Buffer) -> tuple[Size, ...]:
        """The shape of a buffer, as sizes of symbols."""
        return tuple(without_names(size, self.sizes) for size in buffer.shape)

    def symbols_of(self, buffer: Buffer) -> set[str]:
        """The symbols on which the size of a buffer depends."""
        return symbols_of(self.shape(buffer))

    @property
    def runs(self) -> tuple[Run, ...]:
        """The segments that run steps, in order."""
        return tuple(s for s in self.segments if isinstance(s, Run))

    @cached_property
    def bound(self) -> tuple[str, ...]:
        """The symbols that segments bind, in order. Their slots follow the inputs' symbols.

        Cached: each iteration of a loop of the host reads them.
        """
        return tuple(name for s in self.segments for name in symbols_bound_by(s))

    @property
    def has_jumps(self) -> bool:
        """True if the host decides which segments a run executes."""
        return any(isinstance(segment, Jump | JumpUnless) for segment in self.segments)


def symbols_bound_by(segment: object) -> tuple[str, ...]:
    """The symbols that a segment binds."""
    return segment.symbols if isinstance(segment, Bind | Measure) else ()


def read_by_host(segment: object) -> tuple[str, ...]:
    """The buffers whose values a segment reads on the host."""
    match segment:
        case Bind(buffer=buffer) | Measure(buffer=buffer):
            return (buffer,)
        case Move(sources=sources):
            return sources
        case Collect(target=target, source=source):
            return (target, source)
        case Stack(target=target):
            return (target,)
        case JumpUnless(unless=condition):
            return (condition,)
    return ()


def written_by_host(segment: object) -> tuple[str, ...]:
    """The buffers whose values a segment writes on the host."""
    match segment:
        case Move(targets=targets):
            return targets
        case BeginList(target=target) | Collect(target=target) | Stack(target=target):
            return (target,)
    return ()


class TypedValue(Record):
    """An input or output that is a value of the page (`graph/typed`), such as a picture.

    - `kind`: the kind of the value, such as `pixels` or `classes`.
    - `rate`: the samples per second of a sound.
    - `values`: the outputs from which a typed output is made. An input has none.
    - `labels`: the file with the names of the classes.
    """

    kind: str
    rate: int | None = None
    values: tuple[str, ...] | None = None
    labels: FileName | None = None


class TextPort(Record):
    """An input or output of the model that holds texts. `position` is its place among all inputs or
    outputs of the model.
    """

    name: str
    shape: tuple[Size, ...]
    position: int


class TextTensor(Record):
    """Texts that a step reads, and that are the same in every run."""

    shape: tuple[int, ...]
    texts: tuple[str, ...]


class Texts(Record):
    """The texts of a model, and the steps on them that hosts compute (`core/text_steps.py`).

    - `words`: the file with the list of texts that the program knows by their numbers. A run gives
      further numbers to other texts.
    - `inputs`, `outputs`: the inputs and outputs of the model that are texts.
    - `before`, `after`: the steps before the program, and after it, with their `constants`.
    - `feeds`: the inputs of the program that are texts or results of steps, by their numbers.
    - `reads`: the outputs of the program that no caller sees.
    """

    words: FileName
    inputs: tuple[TextPort, ...] = ()
    outputs: tuple[TextPort, ...] = ()
    before: tuple[TextStep, ...] = ()
    after: tuple[TextStep, ...] = ()
    constants: Mapping[str, TextTensor] = field(default_factory=dict)
    feeds: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


class Carried(Record):
    """An output that a session passes to its next run as an input. An output without elements
    leaves the value as it was.
    """

    input: str
    output: str


class Requirement(Record, array_like=True):
    """A condition on two sizes that a run checks, as JSON `[rule, left, right, node]`. `node` is
    the ONNX node that needs it.
    """

    rule: Rule
    left: Size
    right: Size
    node: str


class Check(Record, array_like=True):
    """A buffer that hosts read after a run, as JSON `[buffer, nodes]`. For each of `nodes`, it
    holds the number of indices that are out of range, as an int32.
    """

    buffer: str
    nodes: tuple[str, ...]


class File(Record):
    """The size and hash of one file."""

    bytes: int
    sha256: str


class WeightFile(Record):
    """One safetensors file.

    `tensors` gives the bytes `[begin, end)` of each tensor, from the start of the file.
    `chunks_sha256` is the hash of a list: the hashes of consecutive chunks. A host that streams the
    file hashes each chunk as it arrives, and verifies the list at the end.
    """

    path: FileName
    bytes: int
    sha256: str
    chunk_bytes: int
    chunks_sha256: str
    tensors: Mapping[str, tuple[int, int]]


class TunedKernel(Record):
    """A kernel whose schedule was found by measuring. This record serves people: no host reads it.

    `variant` is the variant of the module (`relaxed`) or of the shaders (`gpu`). `machine` is the
    number of the class of machines that use the schedule, or 0 for all other machines.
    """

    kernel: str
    variant: str
    tuning: Tuning
    machine: int = 0


class CustomOperator(Record):
    """An operator that people defined, and the number of its nodes in the model. `origin` is an
    installed package and its version, or a module and the name of a function. This record serves
    people: no host reads it.
    """

    domain: str
    name: str
    nodes: int
    origin: str


class Manifest(Record):
    """All information about a package that a host needs.

    - `symbols`: the symbols that every run binds at its start.
    - `sequences`: for each output of the model that is a sequence, the outputs that are its
      elements. `None` stands for an empty optional.
    - `shapes`: for each output whose rank only a run knows, the output of the program that holds
      its shape. Such an output has all elements along one axis. If the shape has two axes, the
      output is a sequence of tensors, and each row is the shape of a tensor.
    - `typed`: which inputs and outputs are values of the page.
    - `texts`: present if inputs or outputs of the model are texts. `inputs` and `outputs` then
      describe the program, which computes with numbers.
    - `requirements`: conditions on the symbols of a run.
    - `checks`: buffers that count indices out of range.
    - `states`: the inputs and outputs that states replace.
    - `carried`: the outputs that sessions pass to their next run. Such a model has no states.
    - `operators`: the operators of the model that people defined.
    - `tuned`: the kernels whose schedules are not the default schedules.
    - `machines`: the classes of machines for which some kernels have other schedules, numbered
      from 1.
    - `weights`, `files`: the files with constants, and all files.
    """

    name: str
    compiler: str
    symbols: tuple[Symbol, ...] = ()
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    sequences: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)
    typed: Mapping[str, TypedValue] = field(default_factory=dict)
    texts: Texts | None = None
    requirements: tuple[Requirement, ...] = ()
    checks: tuple[Check, ...] = ()
    states: tuple[StatePort, ...] = ()
    carried: tuple[Carried, ...] = ()
    operators: tuple[CustomOperator, ...] = ()
    tuned: tuple[TunedKernel, ...] = ()
    machines: tuple[MachineClass, ...] = ()
    weights: tuple[WeightFile, ...] = ()
    files: Mapping[FileName, File] = field(default_factory=dict)
    programs: Mapping[Device, Program] = field(default_factory=dict)

    @property
    def model_inputs(self) -> tuple[AnyPort, ...]:
        """The inputs of the model: those of the program that callers give, and texts."""
        texts = self.texts
        return self.inputs if texts is None else _joined(self.inputs, texts.feeds, texts.inputs)

    @property
    def model_outputs(self) -> tuple[AnyPort, ...]:
        """The outputs of the model: those of the program that callers see, and texts."""
        texts, sizes = self.texts, tuple(self.shapes.values())
        outputs = tuple(port for port in self.outputs if port.name not in sizes)
        return outputs if texts is None else _joined(outputs, texts.reads, texts.outputs)

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
        return bool(self.length or self.states)

    @property
    def results(self) -> tuple[str, ...]:
        """The buffers that hosts read after a run: the outputs, and the buffers of the checks."""
        return (*(o.buffer for o in self.outputs), *(check.buffer for check in self.checks))


AnyPort = Port | TextPort
"""An input or output of a model."""


def _joined(
    ports: tuple[Port, ...], hidden: tuple[str, ...], texts: tuple[TextPort, ...]
) -> tuple[AnyPort, ...]:
    """The ports of a program, without hidden ports, and ports of texts at their positions."""
    joined: list[AnyPort] = [port for port in ports if port.name not in hidden]
    for port in sorted(texts, key=lambda port: port.position):
        joined.insert(port.position, port)
    return tuple(joined)
