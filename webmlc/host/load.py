"""Load a package and run it from Python.

In: a folder written by `webmlc build`. Out: a `Model`, the twin of the one in `runtime_js/`.

    model = load("build/digits", device="wasm", threads=2)
    outputs = model.run({"x": images})
    model.dispose()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import AdapterError, InputError, PackageError, UserError, WebmlcError
from webmlc.host.bind import (
    bind,
    bind_from_memory,
    check_counts,
    check_requirements,
    shape_of,
)
from webmlc.host.executor import Executor, Loaded
from webmlc.host.wasm import WasmExecutor
from webmlc.host.webgpu import WebGpuExecutor, find_adapter
from webmlc.package.manifest import MANIFEST, Bind, Device, Manifest, Port, Run
from webmlc.package.manifest_json import from_json
from webmlc.package.transfers import stages
from webmlc.package.weights import read_file, read_weights

Array = NDArray[Any]
Features = Literal["dot", "relaxed", "simd128"]


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one step took."""

    kernel: str
    device: Device
    origin: tuple[str, ...]
    seconds: float


class Model:
    """A loaded package: run it as often as you like, then `dispose` of it."""

    def __init__(self, loaded: Loaded, threads: int, device_reason: str = "requested") -> None:
        self.manifest = loaded.manifest
        self.program = loaded.program
        self.device: Device = loaded.own
        self.device_reason = device_reason
        self.threads = threads
        self._loaded = loaded
        self._stages = stages(self.program, self.manifest.results, self.device)
        self._executors = self._open()
        self._broken = self._disposed = False

    def _open(self) -> dict[Device, Executor]:
        """Executors for the devices that the program uses."""
        devices = {s.segment.device for s in self._stages if isinstance(s.segment, Run)}
        executors: dict[Device, Executor] = {}
        if "wasm" in devices:
            executors["wasm"] = WasmExecutor(self._loaded, self.threads)
        if "webgpu" in devices:
            executors["webgpu"] = WebGpuExecutor(self._loaded)
        return executors

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each input."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Name, dtype and shape of each output."""
        return self.manifest.outputs

    @property
    def sequences(self) -> Mapping[str, tuple[str, ...] | None]:
        """The model's outputs that are sequences: the names of their elements among `outputs`."""
        return self.manifest.sequences

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name. Raises `InputError` where an input is not what the model takes, or
        leads to indices that are out of range.
        """
        symbols, values, _ = self._execute(inputs)
        check_counts(self.manifest, values)
        return {
            port.name: values[port.buffer].view(port.dtype.numpy).reshape(shape_of(port, symbols))
            for port in self.outputs
        }

    def profile(self, inputs: Mapping[str, Array]) -> list[StepTime]:
        """Seconds of every step, measured one by one after its segment ran; 0 for those that belong
        to loading.
        """
        _, _, times = self._execute(inputs, measure=True)
        return [
            StepTime(step.kernel, step.device, step.origin, seconds)
            for step, seconds in zip(self.program.steps, times, strict=True)
        ]

    def restore(self) -> None:
        """Make the model ready to run again, after runs that raised `DeviceLostError` or
        `InternalError`: open its devices anew. Does nothing where nothing is wrong. Raises
        `AdapterError` where there is no GPU; it may be called again.
        """
        self._check_not_disposed()
        if not self._broken:
            return
        executors = self._open()
        for executor in self._executors.values():
            executor.dispose()
        self._executors, self._broken = executors, False

    def dispose(self) -> None:
        """Free memory, threads and GPU buffers."""
        for executor in self._executors.values():
            executor.dispose()
        self._executors, self._disposed = {}, True

    def _execute(
        self, inputs: Mapping[str, Array], measure: bool = False
    ) -> tuple[dict[str, int], dict[str, Array], list[float]]:
        """See `_run_segments`; a failure that the inputs do not explain is noted for `restore`."""
        self._check_not_disposed()
        try:
            return self._run_segments(inputs, measure)
        except InputError:
            raise
        except Exception:
            self._broken = True
            raise

    def _run_segments(
        self, inputs: Mapping[str, Array], measure: bool
    ) -> tuple[dict[str, int], dict[str, Array], list[float]]:
        """Run the segments in order: all symbols, the bytes of the inputs and of what was
        downloaded by buffer, and (if `measure`) seconds of every step.
        """
        symbols, arrays = bind(self.manifest, inputs)
        values = {port.buffer: arrays[port.name].reshape(-1).view(np.uint8) for port in self.inputs}
        times: list[float] = []
        for stage in self._stages:
            match stage.segment:
                case Run(once=True, first=first, last=last):  # done when the memory was made
                    times += [0.0] * (last - first)
                case Run(device=device) as run:
                    self._executors[device].bind(symbols)
                    uploads = {name: values[name] for name in stage.uploads}
                    values |= self._executors[device].execute(run, stage.downloads, uploads)
                    if measure:
                        times += self._executors[device].profile(run, uploads)
                case Bind(buffer=buffer) as segment:
                    bound = bind_from_memory(self.program, segment, values[buffer])
                    symbols |= bound
                    check_requirements(self.manifest, symbols, bound)
        return symbols, values, times

    def _check_not_disposed(self) -> None:
        if self._disposed:
            raise UserError("this model was disposed of; load it again")


def load(
    package: str | Path,
    device: Literal["auto", "wasm", "webgpu"] = "auto",
    threads: int = 1,
    features: Features = "relaxed",
    red_zones: bool = False,
) -> Model:
    """Load the package in folder `package`; every file that is used is checked against its hash.

    `auto` takes the GPU where there is a hardware adapter and the model loads on it, else the CPU:
    `Model.device_reason` says why. `features` chooses the WebAssembly variant. `red_zones` is for
    debugging: a run that writes outside its buffers raises `InternalError`, which names the buffer
    (`host.red_zones`); memory is larger then. Raises `PackageError` (a bad package) or
    `AdapterError` (no usable GPU).
    """
    folder = Path(package)
    manifest = read_manifest(folder)
    program_device, reason = _choose_device(manifest, device)
    may_fall_back = device == "auto" and program_device == "webgpu" and "wasm" in manifest.programs
    try:
        loaded = _read(folder, manifest, program_device, features, red_zones)
        return Model(loaded, threads, reason)
    except WebmlcError as error:
        if not may_fall_back:
            raise
        loaded = _read(folder, manifest, "wasm", features, red_zones)
        return Model(loaded, threads, str(error))


def _read(
    folder: Path, manifest: Manifest, own: Device, features: Features, red_zones: bool
) -> Loaded:
    """The verified files that the program `own` needs."""
    program = manifest.programs[own]
    tensors = {b.tensor for b in program.buffers if b.tensor is not None}
    files = tuple(f for f in manifest.weights if tensors & f.tensors.keys())
    module, shaders = b"", ""
    if any(step.device == "wasm" for step in program.steps):
        module = _verified(folder, manifest, _variant(program.modules, features))
    if program.shaders is not None:
        shaders = _verified(folder, manifest, program.shaders).decode()
    return Loaded(manifest, own, read_weights(folder, files), module, shaders, red_zones)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the package in `folder`. Raises `PackageError` where there is none."""
    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except OSError as error:
        raise PackageError(
            f"{folder}: no {MANIFEST} here; make a package with `webmlc build MODEL -o {folder}`"
        ) from error
    except UnicodeDecodeError as error:
        raise PackageError(f"{folder / MANIFEST}: not UTF-8 text") from error
    return from_json(text)


def _choose_device(manifest: Manifest, device: str) -> tuple[Device, str]:
    """The program to run, and why it is that one."""
    if device not in ("auto", "wasm", "webgpu"):
        raise InputError(f"device is {device!r}, expected 'auto', 'wasm' or 'webgpu'")
    available = tuple(manifest.programs)
    if not available:
        raise PackageError("manifest.json: the package holds no program")
    for known in available:
        if device == known:
            return known, "requested"
    if device != "auto":
        raise PackageError(
            f"the package was built for {', '.join(available)} only; "
            f"build it with --target {device} or --target both"
        )
    if len(available) == 1:
        return available[
            0
        ], f"the package has no {'wasm' if 'webgpu' in available else 'webgpu'} program"
    try:
        if str(find_adapter().info["adapter_type"]) != "CPU":
            return "webgpu", "the GPU adapter is hardware"
    except AdapterError as error:
        return "wasm", str(error)
    return "wasm", "the only GPU adapter is software"


def _variant(modules: Mapping[str, str], features: str) -> str:
    if features not in modules:
        have = ", ".join(modules) or "none"
        raise PackageError(f"the package has no {features!r} WebAssembly module (it has {have})")
    return modules[features]


def _verified(folder: Path, manifest: Manifest, path: str) -> bytes:
    if path not in manifest.files:
        raise PackageError(f"manifest.json: {path} has no hash")
    file = manifest.files[path]
    return read_file(folder, path, file.bytes, file.sha256)
