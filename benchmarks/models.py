"""The models that are measured, each made ready as a folder that every engine can read.

In: a name of `NAMED`, or the path of an ONNX file.
Out: `build/benchmarks/<model>/`: `model.onnx`; `package/`, built by webmlc; random inputs and the
outputs that native onnxruntime gives for them, raw, with `data.json` that names them.

    prepare("squeezenet", Path("build/benchmarks"), "both", {})
"""

import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import webmlc

ROOT = Path(__file__).parents[1]
MATERIALISE = ROOT.parent / "shared" / "models" / "materialise.py"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
SIZE = 1024
QUIET = 3  # onnxruntime: errors only

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A model's folder, and what its table row says beside the times."""

    name: str
    folder: Path
    build_seconds: float
    tfjs: bool


@dataclass(frozen=True, slots=True)
class Source:
    """How to get a named model, and whether software GPUs are fast enough to measure it."""

    make: Callable[[], onnx.ModelProto]
    gpu: bool = True
    tfjs: bool = False


def matmul(constant: bool) -> onnx.ModelProto:
    """y = a·b, 1024³; b is part of the model (as weights are) or a second input."""
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
    graph = helper.make_graph([node], "matmul", inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def light(name: str) -> onnx.ModelProto:
    """A real architecture of the onnx package, given seeded random weights."""
    if not MATERIALISE.is_file():
        raise FileNotFoundError(
            f"light_{name} comes without weights; the script that makes them is not there: "
            "shared/models/materialise.py beside the project's folder"
        )
    spec = importlib.util.spec_from_file_location("materialise", MATERIALISE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: onnx.ModelProto = module.materialise(onnx.load(LIGHT / f"light_{name}.onnx"))
    return model


NAMED: Mapping[str, Source] = {
    "matmul": Source(lambda: matmul(constant=True), tfjs=True),
    "matmul_dynamic": Source(lambda: matmul(constant=False), tfjs=True),
    "resnet50": Source(lambda: light("resnet50"), gpu=False),
    "squeezenet": Source(lambda: light("squeezenet")),
    "densenet121": Source(lambda: light("densenet121"), gpu=False),
    "shufflenet": Source(lambda: light("shufflenet")),
}


def source_of(model: str) -> Source:
    """The row of a named model, or one that reads the file."""
    if model in NAMED:
        return NAMED[model]
    if not Path(model).is_file():
        raise FileNotFoundError(f"no file {model}, and no model of that name: {', '.join(NAMED)}")
    return Source(lambda: onnx.load(model))


def random_inputs(session: onnxruntime.InferenceSession, dims: Mapping[str, int]) -> Arrays:
    """Seeded: normal floats, integers 0 and 1; symbolic dimensions from `dims`, else 1."""
    rng = np.random.default_rng(0)
    arrays = {}
    for given in session.get_inputs():
        shape = [d if isinstance(d, int) else dims.get(d, 1) for d in given.shape]
        dtype = np.dtype(given.type.removeprefix("tensor(").rstrip(")").replace("float", "float32"))
        values = rng.normal(size=shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays[given.name] = np.asarray(values, dtype)
    return arrays


def write_arrays(folder: Path, side: str, arrays: Arrays) -> list[dict[str, Any]]:
    listed = []
    for i, (name, array) in enumerate(arrays.items()):
        file = f"{side}-{i}.bin"
        (folder / file).write_bytes(np.ascontiguousarray(array).tobytes())
        entry = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "file": file}
        listed.append(entry)
    return listed


def prepare(model: str, out: Path, target: str, dims: Mapping[str, int]) -> Ready:
    """Make the model's folder. Raises FileNotFoundError when the model is not to be had."""
    source = source_of(model)
    name = model if model in NAMED else Path(model).stem
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    proto = source.make()
    onnx.save(proto, folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    inputs = random_inputs(session, dims)
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    data = {
        "inputs": write_arrays(folder, "inputs", inputs),
        "outputs": write_arrays(folder, "outputs", outputs),
    }
    if source.tfjs:
        constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        data["constants"] = write_arrays(folder, "constants", constants)
    (folder / "data.json").write_text(json.dumps(data))
    begin = time.perf_counter()
    webmlc.build(folder / "model.onnx", folder / "package", target=target)
    return Ready(name, folder, time.perf_counter() - begin, source.tfjs)
