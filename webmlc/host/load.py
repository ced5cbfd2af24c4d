"""Load a package and run it from Python.

In: a folder written by `webmlc build`. Out: a `Model`, the twin of `Model` in `runtime_js/`.

    model = load("build/digits", device="wasm", threads=2)
    outputs = model.run({"x": images})
    model.dispose()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from webmlc.core.errors import (
    AdapterError,
    DeviceLostError,
    InputError,
    InternalError,
    PackageError,
    UserError,
    WebmlcError,
)
from webmlc.core.machine import ADAPTERS, AdapterKind, Device, Features
from webmlc.core.package_files import CHAT_TEMPLATE, LANGUAGE_FILES
from webmlc.core.turns import Turns
from webmlc.generate.generate import Generation, TextGenerator
from webmlc.generate.options import GenerateOptions
from webmlc.generate.prompt import Prompt
from webmlc.host.bind import (
    bind,
    check_counts,
    check_requirements,
    chosen_outputs,
    outputs_of,
    read_inputs,
    with_shapes,
)
from webmlc.host.carried_session import UNLIMITED, CarriedSession
from webmlc.host.choose_schedules import choose_schedules
from webmlc.host.executor import Executor, Loaded, Names, States
from webmlc.host.host_values import HostValues
from webmlc.host.model_port import ANY_SHAPE, ModelPort, inputs_without_session, signature_text
from webmlc.host.session import Session, run_alone, session_of
from webmlc.host.texts import Texts
from webmlc.host.wasm import WasmExecutor
from webmlc.host.webgpu import WebGpuExecutor
from webmlc.host.webgpu_adapter import find_adapter, is_software
from webmlc.package.compression import inflate
from webmlc.package.manifest import (
    BeginList,
    Bind,
    Collect,
    Jump,
    JumpUnless,
    Manifest,
    Measure,
    Move,
    Port,
    Run,
    Segment,
    Stack,
)
from webmlc.package.manifest_json import read_manifest
from webmlc.package.sizes import evaluate
from webmlc.package.transfers import select_segments
from webmlc.package.weights import read_file, read_weights

Array = NDArray[Any]
Inputs = Mapping[str, Array]
Segments = Sequence[Segment]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step."""

    kernel: str
    device: Device
    origin: tuple[str, ...]
    seconds: float


class Model:
    """A loaded package. Run it any number of times, then `dispose` of it.

    Any number of threads may use a model, its sessions and its generations: their runs take turns
    (`core.turns`), in any order. A run uses `threads` threads. After any exception, the next run is
    right, even if a signal handler raised the exception in the middle of a run. In a forked
    process, a model on the CPU runs with new sessions; a model on the GPU raises `UserError`.
    """

    def __init__(
        self, folder: Path, loaded: Loaded, threads: int, device_reason: str = "requested"
    ) -> None:
        self._folder = folder
        self._generator: TextGenerator | None = None
        self._generator_turns = Turns()
        self.manifest = loaded.manifest
        self.program = loaded.program
        self.device: Device = loaded.program_device
        self.device_reason = device_reason
        self.threads = threads
        self.shaders = next(iter(loaded.program.shaders), None)
        self._loaded = loaded
        record = self.manifest.texts
        self._texts = None if record is None else Texts(self.manifest, record, self.file)
        self._selections: dict[tuple[str, ...], Segments] = {}
        self._turns = Turns()
        self._process = os.getpid()
        self._executors = self._open()
        self._disposed = False
        self._is_lost = False  # the device is; `restore` opens it again
        self._is_torn = False  # a run ended in the middle; the next run opens the devices again

    def _open(self) -> dict[Device, Executor]:
        """Create executors for the devices that the program uses."""
        devices = {run.device for run in self.program.runs}
        executors: dict[Device, Executor] = {}
        if "wasm" in devices:
            executors["wasm"] = WasmExecutor(self._loaded, self.threads)
        if "webgpu" in devices:
            executors["webgpu"] = WebGpuExecutor(self._loaded)
        return executors

    def __repr__(self) -> str:
        ports = signature_text(self.inputs, self.outputs)
        return f"<webmlc.Model {self.manifest.name!r} on {self.device}\n{ports}>"

    @property
    def inputs(self) -> tuple[ModelPort, ...]:
        """The name, dtype and shape of each input."""
        return tuple(map(ModelPort.of, self.manifest.model_inputs))

    @property
    def all_inputs(self) -> tuple[ModelPort, ...]:
        """The inputs, including the inputs that states replace in a session."""
        return tuple(map(ModelPort.of, inputs_without_session(self.manifest)))

    @property
    def outputs(self) -> tuple[ModelPort, ...]:
        """The name, dtype and shape of each output."""
        ports = map(ModelPort.of, self.manifest.model_outputs)
        shapes = self.manifest.shapes
        return tuple(replace(p, shape=ANY_SHAPE) if p.name in shapes else p for p in ports)

    @property
    def words(self) -> tuple[str, ...]:
        """The texts that the model knows. There are none if it takes and returns numbers only."""
        return () if self._texts is None else self._texts.words

    @property
    def sequences(self) -> Mapping[str, tuple[str, ...] | None]:
        """The outputs of the model that are sequences, with the names of their elements."""
        return self.manifest.sequences

    @property
    def is_language_model(self) -> bool:
        """True if the package holds the files that `generate` needs."""
        return all(path in self.manifest.files for path in LANGUAGE_FILES)

    @property
    def has_chat_template(self) -> bool:
        """True if messages make a prompt. A model without a template only completes texts."""
        return CHAT_TEMPLATE in self.manifest.files

    def file(self, path: str) -> bytes:
        """Read a file of the package, check it against its hash, and decompress it.

        Raises `PackageError`.
        """
        return _verified(self._folder, self.manifest, path)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Answer a prompt: messages, a text or tokens. Iterate over the result for the pieces.
        Several generations may go on beside each other, in any threads.

        `webmlc/generate/options.py` documents the options. Raises `InputError` if the model is no
        language model, if an option is wrong, or if the prompt does not fit the context.
        """
        self._check_not_disposed()
        if not self.is_language_model:
            raise InputError(f"{self.manifest.name} is no language model: it has no tokenizer")
        generator = self._generator_turns.take(self._text_generator)
        return generator.generate(prompt, options)

    def _text_generator(self) -> TextGenerator:
        if self._generator is None:
            self._generator = TextGenerator(self, self.file, self.has_chat_template)
        return self._generator

    def run(
        self, inputs: Inputs, outputs: Names | None = None, states: States | None = None
    ) -> dict[str, Array]:
        """Run the model, and return the outputs by name. A model with states starts with new
        states, unless a session passes its `states`.

        If `outputs` names some outputs, the others are not downloaded, and not computed if they
        come last. Raises `InputError` if an input does not match the model, if its values lead to
        indices out of range, or if no output has a name of `outputs`. Texts are arrays of `str`.
        """
        if self._texts is not None:
            return self._texts.run(inputs, outputs, partial(self._run, states=states))
        return self._run(inputs, outputs, states)

    def _run(
        self, inputs: Inputs, outputs: Names | None, states: States | None
    ) -> dict[str, Array]:
        if self.manifest.has_states and states is None:
            return run_alone(self, inputs, outputs)
        ports = chosen_outputs(self.manifest, outputs)
        arrays = read_inputs(self.manifest, inputs)
        run = partial(self._run_segments, arrays, self._segments_of(ports), False, states)
        symbols, values, _ = self.exclusively(run, states)
        results = outputs_of(ports, values, symbols, arrays.values())
        return with_shapes(self.manifest, results)

    def _segments_of(self, ports: Sequence[Port]) -> Segments:
        """The segments of a run that returns only these outputs."""
        if len(ports) == len(self.manifest.outputs):
            return self.program.segments
        names = tuple(port.name for port in ports)
        if names not in self._selections:
            results = structs.replace(self.manifest, outputs=tuple(ports)).results
            self._selections[names] = select_segments(self.program, results)
        return self._selections[names]

    def session(self, capacity: int | None = None) -> Session | CarriedSession:
        """Open a session. States that grow have room for `capacity` rows, which must be given then.
        Values that a model carries on the host need no capacity.

        Raises `UserError` if the model has no states.
        """
        self._check_not_disposed()
        if self.manifest.carried:
            return CarriedSession(self, UNLIMITED if capacity is None else capacity)
        return Session(self, capacity)

    def exclusively(self, function: Callable[[], T], states: States | None = None) -> T:
        """Call a function that uses the devices, or the states of a session, while no other thread
        does.

        Raises `UserError` if the model or the session has ended, or if this thread is in such a
        function already.
        """
        return self._turns.take(partial(self._call, function, states))

    def read_states(self, states: States) -> tuple[dict[str, Array], States]:
        """The bytes of the valid rows of each state of a session, and a copy of its record."""
        return self.exclusively(lambda: (self._read_states(states), replace(states)), states)

    def _read_states(self, states: States) -> dict[str, Array]:
        executors = self._executors.values()
        return {name: rows for e in executors for name, rows in e.read_states(states).items()}

    def write_states(
        self,
        states: States,
        rows: Mapping[str, Array],
        length: int,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        """Replace the states of a session by `length` rows of each. `symbols` are the sizes with
        which the session begins, by default 1.

        Raises `InputError` if `rows` are not of this model's states.
        """
        write = partial(self._write_states, states, rows, length, symbols)
        self.exclusively(write, states)

    def _write_states(
        self,
        states: States,
        rows: Mapping[str, Array],
        length: int,
        symbols: Mapping[str, int] | None,
    ) -> None:
        sizes = {s.name: 1 for s in self.manifest.symbols} | dict(symbols or {})
        planned = dict(sizes)
        if self.manifest.length:
            planned[self.manifest.length] = states.capacity - self.rows(sizes)
        if self.manifest.capacity:
            planned[self.manifest.capacity] = states.capacity
        for executor in self._executors.values():
            executor.bind(planned, states)
        previous, was_torn, states.is_torn = states.length, states.is_torn, True
        states.length = length
        expected = {name: array.nbytes for name, array in self._read_states(states).items()}
        if expected != {name: array.nbytes for name, array in rows.items()}:
            states.length, states.is_torn = previous, was_torn
            raise InputError("the rows of the states are not those of this model")
        contents = {name: array.reshape(-1).view(np.uint8) for name, array in rows.items()}
        for executor in self._executors.values():
            executor.write_states(states, contents)
        states.symbols, states.is_torn = sizes, False

    def reset(self, states: States) -> None:
        """Begin a session again, without states."""
        self.exclusively(partial(self._reset, states), states)

    def _reset(self, states: States) -> None:
        self._free_states(states)
        states.length, states.symbols, states.is_torn = 0, None, False

    def release(self, states: States) -> None:
        """End a session and free its states, at the end of a run that another thread is in."""
        states.is_disposed = True
        self._turns.later(partial(self._free_states, states))

    def _free_states(self, states: States) -> None:
        for executor in self._executors.values():
            executor.release(states)

    def profile(self, inputs: Inputs) -> list[StepTime]:
        """Measure the seconds of every step, one by one, after its segment ran.

        The time of a step that runs at load is 0.
        """
        if self._texts is not None:
            inputs = self._texts.feeds(inputs)
        if self.manifest.has_states:
            with session_of(self, inputs) as (session, feeds, _):
                times = self._profile(feeds, session.states)
        else:
            times = self._profile(inputs, None)
        return [
            StepTime(step.kernel, step.device, step.origin, seconds)
            for step, seconds in zip(self.program.steps, times, strict=True)
        ]

    def _profile(self, inputs: Inputs, states: States | None) -> list[float]:
        arrays = read_inputs(self.manifest, inputs)
        run = partial(self._run_segments, arrays, self.program.segments, True, states)
        return self.exclusively(run, states)[2]

    def restore(self) -> None:
        """Open the devices again, after a run that raised `DeviceLostError` or `InternalError`.
        After an `InternalError`, the next run opens them by itself. Sessions lose their states.

        Does nothing if the model is intact. Raises `AdapterError` if there is no GPU; in that case
        it may be called again later.
        """
        self._turns.take(self._restore)

    def _restore(self) -> None:
        self._check_not_disposed()
        if not (self._is_lost or self._is_torn):
            return
        broken, self._executors = self._executors, self._open()
        self._is_lost = self._is_torn = False
        for executor in broken.values():
            executor.dispose()

    def dispose(self) -> None:
        """Free memory, threads and GPU buffers. A run in another thread ends first, and that thread
        then frees them; this one does not wait.
        """
        self._disposed = True
        self._turns.later(self._free)

    def _free(self) -> None:
        executors, self._executors, self._generator = self._executors, {}, None
        if self._process == os.getpid():
            for executor in executors.values():
                executor.dispose()

    def _call(self, function: Callable[[], T], states: States | None) -> T:
        """Call a function in the turn of this thread, and record the effects of an exception.

        After an error of the user, the devices are intact. A kernel that trapped may have written
        anywhere, so the next run opens the devices again. So does the run after any other exception
        in the middle of a call, if a device is not interruptible.
        """
        self._check_not_disposed()
        if states is not None:
            states.check_not_disposed()
        if self._process != os.getpid():
            for executor in self._executors.values():
                executor.adopt()
            self._process = os.getpid()
        if self._is_torn:
            self._restore()
        self._is_torn = not all(e.is_interruptible for e in self._executors.values())
        try:
            result = function()
        except DeviceLostError:
            self._is_lost, self._is_torn = True, False
            raise
        except UserError:
            self._is_torn = False
            raise
        except InternalError:
            self._is_torn = True
            raise
        self._is_torn = False
        return result

    def _run_segments(
        self, arrays: Mapping[str, Array], segments: Segments, measure: bool, states: States | None
    ) -> tuple[dict[str, int], dict[str, Array], list[float]]:
        """Run the segments in order, or as jumps order them, and update the states.

        Returns all symbols, the bytes of input buffers and downloaded buffers, and the seconds of
        every step if `measure` is true.
        """
        length, capacity = (states.length, states.capacity) if states else (0, None)
        symbols = bind(self.manifest, arrays, length, capacity)
        longest = {}
        if states is not None:
            states.check_not_torn()
            if self.manifest.length:
                longest[self.manifest.length] = self._longest(states, symbols)
        ports = self.manifest.inputs
        values = HostValues(
            self.program,
            symbols,
            {port.buffer: arrays[port.name].reshape(-1).view(np.uint8) for port in ports},
        )
        times = [0.0] * len(self.program.steps)
        position = 0
        while position < len(segments):
            segment = segments[position]
            position += 1
            match segment:
                case Run(once=True):  # executed when memory was allocated
                    pass
                case Run(device=device) as run:
                    self._executors[device].bind({**values.symbols, **longest}, states)
                    uploads = {name: values.read(name) for name in run.uploads}
                    if states is not None:
                        states.is_torn = self._replaces_states
                    values.bytes |= self._executors[device].execute(run, uploads)
                    if measure:
                        seconds = self._executors[device].profile(run, uploads)
                        for step, time in enumerate(seconds, run.first):
                            times[step] += time
                case Bind() | Measure():
                    new_symbols = values.bind(segment)
                    check_requirements(self.manifest, values.symbols, new_symbols)
                case Move() | BeginList() | Collect() | Stack():
                    values.execute(segment)
                case Jump() | JumpUnless():
                    position = values.next(segment, position)
        symbols = values.symbols
        if states is not None:
            states.is_torn = False
        if not measure:
            check_counts(self.manifest, values.bytes, symbols)
            if states is not None:
                length = states.length + self.rows(symbols)
                states.length, states.symbols = length, symbols
        return symbols, values.bytes, times

    @property
    def _replaces_states(self) -> bool:
        """True if a run replaces some states. Rows that it appends to others count at its end."""
        length = self.manifest.length
        return any(port.axis(length) is None for port in self.manifest.states)

    def state_sizes(self, symbols: Mapping[str, int]) -> dict[str, int]:
        """The sizes of the symbols in the shapes of states, without the length."""
        states = (buffer for buffer in self.program.buffers if buffer.kind == "state")
        names = {name for buffer in states for name in self.program.symbols_of(buffer)}
        names.discard(self.manifest.length)
        return {name: symbols[name] for name in sorted(names) if name in symbols}

    def rows(self, symbols: Mapping[str, int]) -> int:
        """The number of rows that a run appends to the states that grow."""
        length, program = self.manifest.length, self.program
        states = (b for b in program.buffers if b.kind == "state")
        state = next((b for b in states if length in program.symbols_of(b)), None)
        if state is None:
            return 0
        return evaluate(state.shape[0], program.values({**symbols, length: 0}))

    def _longest(self, states: States, symbols: Mapping[str, int]) -> int:
        """The largest length of a session to which a run can still append its rows. Memory is
        planned for it.

        Raises `InputError` if the session is longer.
        """
        rows = self.rows(symbols)
        if states.length + rows > states.capacity:
            raise InputError(
                f"the session holds {states.length} of {states.capacity} rows, so {rows} more do "
                "not fit; open a session with a larger capacity, or truncate it"
            )
        return states.capacity - rows

    def _check_not_disposed(self) -> None:
        if self._disposed:
            raise UserError("this model was disposed of; load it again")


def load(
    package: str | Path,
    device: Literal["auto", "wasm", "webgpu"] = "auto",
    threads: int = 1,
    features: Features = "relaxed",
    red_zones: bool = False,
    shaders: AdapterKind | None = None,
) -> Model:
    """Load the package in folder `package`, and check every file in use against its hash.

    `auto` takes the GPU where there is a hardware adapter and the model loads on it, else the CPU:
    `Model.device_reason` says why. `features` chooses the WebAssembly variant. `shaders` chooses
    the variant of the shaders. By default, the kind of the adapter and its features decide;
    `Model.shaders` names the variant. `red_zones` is for debugging: a run that writes outside its
    buffers raises `InternalError`, which names the buffer (`host.red_zones`). It takes more memory.
    Raises `PackageError` (a bad package) or `AdapterError` (no usable GPU).
    """
    if shaders is not None and shaders not in ADAPTERS:
        names = " or ".join(map(repr, ADAPTERS))
        raise InputError(f"shaders is {shaders!r}, expected {names}")
    folder = Path(package)
    manifest = read_manifest(folder)
    program_device, reason = _choose_device(manifest, device)
    may_fall_back = device == "auto" and program_device == "webgpu" and "wasm" in manifest.programs
    try:
        chosen = choose_schedules(manifest, program_device, threads, shaders)
        loaded = _read(folder, chosen, program_device, features, red_zones)
        return Model(folder, loaded, threads, reason)
    except WebmlcError as error:
        if not may_fall_back:
            raise
        chosen = choose_schedules(manifest, "wasm", threads)
        loaded = _read(folder, chosen, "wasm", features, red_zones)
        return Model(folder, loaded, threads, str(error))


def _read(
    folder: Path,
    chosen: tuple[Manifest, int],
    device: Device,
    features: Features,
    red_zones: bool,
) -> Loaded:
    """The verified files that the program of a device needs, with the schedules that were chosen
    for this machine.
    """
    manifest, machine = chosen
    program = manifest.programs[device]
    tensors = {b.tensor for b in program.buffers if b.tensor is not None}
    files = tuple(f for f in manifest.weights if tensors & f.tensors.keys())
    module, text = b"", ""
    if any(step.device == "wasm" for step in program.steps):
        module = _verified(folder, manifest, _variant(program.modules, features))
    for path in program.shaders.values():
        text = _verified(folder, manifest, path).decode()
    weights = read_weights(folder, files)
    return Loaded(manifest, device, weights, module, text, red_zones, machine)


def _choose_device(manifest: Manifest, device: str) -> tuple[Device, str]:
    """Choose the program to run, and return it with the reason."""
    if device not in ("auto", "wasm", "webgpu"):
        raise InputError(f"device is {device!r}, expected 'auto', 'wasm' or 'webgpu'")
    available = tuple(manifest.programs)
    if not available:
        raise PackageError("manifest.json: the package holds no program")
    for candidate in available:
        if device == candidate:
            return candidate, "requested"
    if device != "auto":
        raise PackageError(
            f"the package was built for {', '.join(available)} only; "
            f"build it with --target {device} or --target both"
        )
    if len(available) == 1:
        missing = "wasm" if "webgpu" in available else "webgpu"
        return available[0], f"the package has no {missing} program"
    try:
        if not is_software(find_adapter()):
            return "webgpu", "the GPU adapter is hardware"
    except AdapterError as error:
        return "wasm", str(error)
    return "wasm", "the only GPU adapter is software"


def _variant(modules: Mapping[str, str], features: str) -> str:
    if features not in modules:
        names = ", ".join(modules) or "none"
        raise PackageError(f"the package has no {features!r} WebAssembly module (it has {names})")
    return modules[features]


def _verified(folder: Path, manifest: Manifest, path: str) -> bytes:
    if path not in manifest.files:
        raise PackageError(f"manifest.json: {path} has no hash")
    file = manifest.files[path]
    return inflate(path, read_file(folder, path, file.bytes, file.sha256))
