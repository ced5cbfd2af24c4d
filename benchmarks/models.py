"""Prepare the models that are measured: each becomes a folder that every engine can read.

In: a name of `named()` or of MediaPipe's models, or the path of an ONNX or a TensorFlow Lite file.
Out: `build/benchmarks/<model>/`. It holds `model.onnx`; `model.tflite`, if the model is of
TensorFlow Lite; `package/`, built by webmlc; random inputs, and the outputs of native onnxruntime
for them, as raw files that `data.json` names; and `ready.json`, the compiler's figures of the
package: a `Ready`. The `model.onnx` of a TensorFlow Lite file is what webmlc converts the file to.

    prepare("squeezenet", Path("build/benchmarks"), "both", {})
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.direct_flops import direct_flops
from benchmarks.mediapipe import NAMES, mediapipe_files
from benchmarks.small_models import SEQUENCE, quantised_encoder, recurrent
from benchmarks.tfjs_graph import tfjs_graph
from webmlc.build_options import AdapterName, BuildOptions, TargetName
from webmlc.core.machine import Device
from webmlc.frontend.doors.door import Example
from webmlc.frontend.tflite.export_tflite import export_tflite
from webmlc.frontend.tflite.file import open_tflite
from webmlc.frontend.tflite.operators import mediapipe
from webmlc.package.step_work import step_work
from webmlc.package.write import write_package
from webmlc.pipeline import compile_model

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "models"
"""The folder of further models, beside the project's folder."""
DIGITS = ROOT / "demos" / "digits" / "digits.onnx"
"""The model of the demo, a network of three convolutions."""
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""The light models of the onnx package, which have no weights."""
SIZE = 1024
"""The rows and columns of the matrices of `matmul`."""
QUIET = 3
"""The severity from which onnxruntime logs: errors only."""
TFJS = "tfjs.json"
"""The name of the file that holds the calls of TF.js."""
READY = "ready.json"
"""The name of the file that holds a `Ready`."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A model's folder, and the figures that are known before it runs.

    `build_seconds` is processor time. `peers` are the engines that can run it on the CPU. `steps`
    maps each device to the flops, bytes moved and least bytes of every step of the package's
    program, in order. `convolutions` holds the flops of the ONNX nodes that convolve, counted
    directly.
    """

    name: str
    build_seconds: float
    peers: Sequence[str]
    steps: Mapping[Device, list[tuple[int, int, int]]]
    convolutions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Source:
    """How to get a model, and how to run it.

    `dims` are the sizes of symbolic dimensions, by name or, where they have none, as
    `<input>_<axis>`. `integers` are the ranges of integer inputs. `gpu` tells whether software GPUs
    are fast enough for the model, and `judged` whether it counts where many models are judged
    together. `tflite` is the model's file, if it is of TensorFlow Lite.
    """

    make: Callable[[], onnx.ModelProto]
    dims: Mapping[str, int] = field(default_factory=dict)
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    gpu: bool = True
    judged: bool = False
    tflite: Path | None = None


def matmul(constant: bool) -> onnx.ModelProto:
    """y = a·b of 1024³, where b is a constant of the model (as weights are) or a second input."""
    shape = [SIZE, SIZE]
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, shape)]
    weights = []
    if constant:
        b = np.random.default_rng(1).normal(0, 1 / math.sqrt(SIZE), shape).astype(np.float32)
        weights.append(numpy_helper.from_array(b, "b"))
    else:
        inputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, shape))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    node = helper.make_node("MatMul", ["a", "b"], ["y"], "matmul")
    return _model([node], inputs, output, weights)


def dilated(channels: int, length: int, taps: int, dilations: Sequence[int]) -> onnx.ModelProto:
    """Residual causal convolutions over time, each of another dilation, as in WaveNet and in
    temporal convolutional networks.
    """
    rng, nodes, weights, data = np.random.default_rng(1), [], [], "x"
    for number, dilation in enumerate(dilations):
        names = {key: f"{key}{number}" for key in ("w", "b", "conv", "relu", "sum")}
        shape = (channels, channels, taps)
        kernel = rng.normal(0, 1 / math.sqrt(channels * taps), shape).astype(np.float32)
        bias = rng.normal(0, 0.1, channels).astype(np.float32)
        weights += [
            numpy_helper.from_array(kernel, names["w"]),
            numpy_helper.from_array(bias, names["b"]),
        ]
        pads = [dilation * (taps - 1), 0]
        inputs = [data, names["w"], names["b"]]
        nodes += [
            helper.make_node("Conv", inputs, [names["conv"]], dilations=[dilation], pads=pads),
            helper.make_node("Relu", [names["conv"]], [names["relu"]]),
            helper.make_node("Add", [data, names["relu"]], [names["sum"]]),
        ]
        data = names["sum"]
    sounds = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, length])
        for name in ("x", data)
    ]
    return _model(nodes, sounds[:1], sounds[1], weights)


def spectrogram(samples: int, frame: int, hop: int) -> onnx.ModelProto:
    """The one-sided STFT of a real signal, with a Hann window."""
    window = np.hanning(frame + 1)[:-1].astype(np.float32)
    numbers = {"hop": np.int64(hop), "window": window, "frame": np.int64(frame)}
    weights = [numpy_helper.from_array(np.asarray(value), n) for n, value in numbers.items()]
    node = helper.make_node("STFT", ["x", "hop", "window", "frame"], ["y"], "stft")
    shapes = {"x": [1, samples, 1], "y": [1, (samples - frame) // hop + 1, frame // 2 + 1, 2]}
    sound, spectra = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    return _model([node], [sound], spectra, weights)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    weights: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    """A model of these nodes, which has one output."""
    graph = helper.make_graph(nodes, "model", inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def materialised(path: Path) -> onnx.ModelProto:
    """A real architecture that comes without weights, with seeded random weights."""
    script = SHARED / "materialise.py"
    if not script.is_file():
        raise FileNotFoundError(
            f"{path.name} comes without weights; the script that makes them is not there: "
            "shared/models/materialise.py beside the project's folder"
        )
    spec = importlib.util.spec_from_file_location("materialise", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: onnx.ModelProto = module.materialise(onnx.load(path))
    return model


INPUTS: Mapping[str, dict[str, Any]] = {
    "minilm_l6": {
        "dims": {"sequence": 128},
        "integers": {"input_ids": (0, 30522), "attention_mask": (1, 2)},
    },
    "llama_15m": {  # one token after 64
        "dims": {"past": 64, "total": 65},
        "integers": {
            "input_ids": (0, 32000),
            "attention_mask": (1, 2),
            "position_ids": (64, 65),
        },
    },
    "ppocrv3_det": {"dims": {"p2o.DynamicDimension.1": 640, "p2o.DynamicDimension.2": 640}},
    "silero_vad_v6": {"dims": {"input_1": 576}, "integers": {"sr": (16000, 16001)}},
    "magika_standard_v3_3": {"integers": {"bytes": (0, 256)}},
}
"""The sizes and integer ranges of a model's inputs, where they are not 1, and 0 or 1."""

SMALL = frozenset({"squeezenet", "shufflenet"})
"""The light models that a software GPU runs in seconds."""


def named() -> dict[str, Source]:
    """Every model that has a name: the digits, the matrix products, dilated convolutions, a
    spectrogram, the models of `small_models`, the light models of the onnx package, and, where
    `shared/models` exists, the models that its index marks for benchmarks.
    """
    sources = {
        "digits": Source(partial(onnx.load, DIGITS)),
        "matmul": Source(lambda: matmul(constant=True)),
        "matmul_dynamic": Source(lambda: matmul(constant=False)),
        "tcn": Source(partial(dilated, 64, 8000, 3, [1 << n for n in range(10)]), gpu=False),
        "hifigan": Source(partial(dilated, 128, 4000, 11, [1, 3, 5]), gpu=False),
        "stft": Source(partial(spectrogram, 160_000, 1024, 256)),
        "gru": Source(partial(recurrent, "GRU", quantised=False)),
        "lstm_dynamic": Source(partial(recurrent, "LSTM", quantised=True)),
        "encoder_qdq": Source(quantised_encoder, {"sequence": SEQUENCE}, gpu=False),
    }
    for path in sorted(LIGHT.glob("light_*.onnx")):
        name = path.stem.removeprefix("light_")
        sources[name] = Source(partial(materialised, path), gpu=name in SMALL, judged=True)
    for path in indexed():
        make = materialised if path.parent.name == "light" else onnx.load
        settings = INPUTS.get(path.stem, {})
        judged = path.stem not in TWINS
        sources[path.stem] = Source(partial(make, path), gpu=False, judged=judged, **settings)
    return sources


def indexed() -> list[Path]:
    """The files that `shared/models/INDEX.md` marks with **bench**, and the two files of one
    network, in floats and quantised.
    """
    index = SHARED / "INDEX.md"
    if not index.is_file():
        return []
    rows = re.findall(r"^\| (\S+\.onnx) \|([^|]*)\|", index.read_text("utf-8"), re.MULTILINE)
    files = [file for file, sets in rows if "**bench**" in sets]
    return [SHARED / file for file in (*files, *(f"real/{name}.onnx" for name in TWINS))]


TWINS = ("micro_kws_fp32", "micro_kws_qdq")
"""One network twice: in floats, and quantised (QDQ)."""


def source_of(model: str) -> Source:
    """The source of a named model, or a source that reads the file."""
    if (source := named().get(model)) is not None:
        return source
    path = mediapipe_files()[model] if model in NAMES else Path(model)
    if path.suffix == ".tflite" and path.is_file():
        return Source(partial(export_tflite, path, Example()), gpu=False, tflite=path)
    if not Path(model).is_file():
        raise FileNotFoundError(f"no file {model}, and no model of that name: {', '.join(named())}")
    return Source(lambda: onnx.load(model), **INPUTS.get(Path(model).stem, {}))


def random_inputs(session: onnxruntime.InferenceSession, source: Source) -> Arrays:
    """Seeded inputs: normal floats, and integers of 0 and 1 or in the ranges of the source."""
    rng = np.random.default_rng(0)
    arrays = {}
    for value in session.get_inputs():
        names = (d or f"{value.name}_{axis}" for axis, d in enumerate(value.shape))
        shape = [d if isinstance(d, int) else source.dims.get(d, 1) for d in names]
        dtype = np.dtype(value.type.removeprefix("tensor(").rstrip(")").replace("float", "float32"))
        low, high = source.integers.get(value.name, (0, 2))
        values = rng.normal(size=shape) if dtype.kind == "f" else rng.integers(low, high, shape)
        arrays[value.name] = np.asarray(values, dtype)
    return arrays


def write_arrays(folder: Path, side: str, arrays: Arrays) -> list[dict[str, Any]]:
    """Write the arrays of one side ("inputs", "outputs") as files, and return their entries
    for `data.json`.
    """
    listed = []
    for i, (name, array) in enumerate(arrays.items()):
        file = f"{side}-{i}.bin"
        (folder / file).write_bytes(np.ascontiguousarray(array).tobytes())
        entry = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "file": file}
        listed.append(entry)
    return listed


def read_arrays(folder: Path, side: str) -> Arrays:
    """The arrays that `write_arrays` wrote for this side."""
    listed = json.loads((folder / "data.json").read_text())[side]
    return {
        e["name"]: np.frombuffer((folder / e["file"]).read_bytes(), e["dtype"]).reshape(e["shape"])
        for e in listed
    }


def prepare(
    model: str,
    out: Path,
    target: TargetName,
    dims: Mapping[str, int],
    adapter: AdapterName = "software",
) -> Ready:
    """Prepare the model's folder. Raises FileNotFoundError where the model is not available.

    `adapter` is what shaders are made for. The GPU of the browser that measures is SwiftShader.
    """
    source = source_of(model)
    folder = out / name_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    proto = source.make()
    onnx.save(proto, folder / "model.onnx")
    session = open_session(folder, threads=0)
    sizes = {**source.dims, **dims}
    inputs = random_inputs(session, Source(source.make, sizes, source.integers))
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    data = {
        "inputs": write_arrays(folder, "inputs", inputs),
        "outputs": write_arrays(folder, "outputs", outputs),
    }
    graph = tfjs_graph(proto, {name: array.shape for name, array in inputs.items()})
    if graph is not None:
        data["constants"] = write_arrays(folder, "constants", graph.constants)
        calls = {"steps": graph.steps, "outputs": graph.outputs, "images": graph.images}
        (folder / TFJS).write_text(json.dumps(calls))
    (folder / "data.json").write_text(json.dumps(data))
    if source.tflite is not None:
        shutil.copyfile(source.tflite, folder / "model.tflite")
    begin = time.process_time()
    # Peers take and return the pasts of a decoder, so our package does, too.
    parts = compile_model(folder / "model.onnx", BuildOptions(target, state="off", adapter=adapter))
    write_package(folder / "package", parts)
    seconds = time.process_time() - begin
    symbols = {s.name: inputs[s.input].shape[s.axis] for s in parts.manifest.symbols}
    steps = {
        device: [(w.flops, w.moved, w.least) for w in (s.work for s in works)]
        for device in parts.programs
        for works in (step_work(parts, device, symbols),)
    }
    shapes = {name: array.shape for name, array in inputs.items()}
    peers = peers_of(source, graph is not None)
    ready = Ready(name_of(model), seconds, peers, steps, direct_flops(proto, shapes))
    (folder / READY).write_text(json.dumps(asdict(ready)))
    return ready


def reuse(model: str, out: Path) -> Ready:
    """The `Ready` of an earlier `prepare`. Raises FileNotFoundError where there is none."""
    path = out / name_of(model) / READY
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: it was never built")
    return Ready(**json.loads(path.read_text()))


def name_of(model: str) -> str:
    """The name of a model's folder."""
    return Path(model).stem if model.endswith((".onnx", ".tflite")) else model


def peers_of(source: Source, has_calls: bool) -> list[str]:
    """The engines that can run a model. TF.js runs models that are written as its calls. LiteRT.js
    has none of MediaPipe's operators.
    """
    peers = ["onnxruntime", *(["tfjs"] if has_calls else [])]
    if source.tflite is not None:
        operators = {operator.name for operator in open_tflite(source.tflite).subgraph.operators}
        if operators.isdisjoint(row.name for row in mediapipe.ROWS):
            peers.append("litert")
    return peers


def open_session(folder: Path, threads: int) -> onnxruntime.InferenceSession:
    """Open the folder's model in native onnxruntime. With 0 threads, onnxruntime chooses
    their number.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    return onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )


def native_latencies(folder: Path, runs: int, warmup: int) -> list[float]:
    """The milliseconds of each run of native onnxruntime with one thread."""
    session = open_session(folder, threads=1)
    inputs = dict(read_arrays(folder, "inputs"))
    times = []
    for _ in range(warmup + runs):
        begin = time.perf_counter()
        session.run(None, inputs)
        times.append(1e3 * (time.perf_counter() - begin))
    return times[warmup:]
