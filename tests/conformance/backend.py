"""webmlc as an ONNX backend: `onnx.backend.base.Backend` over build and run.

    rep = WebmlcBackend.prepare(model, device="CPU")     # CPU: the emitted WASM, CUDA: the WGSL
    outputs = rep.run([x])

`device="NUMPY"` runs the numpy meaning of the graph instead of emitted code: it tells a wrong row
of the operator table from a wrong schedule.

Shapes are decided when a model is built, so inputs whose values decide an output's shape (`shape`
of a Reshape that is not a constant) are built in: the model is specialised on them when it runs. So
is the length of a sequence, and whether an optional is empty.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep

from webmlc.core.errors import UnsupportedError
from webmlc.frontend.read_model import read_model
from webmlc.graph.evaluate_module import evaluate_module
from webmlc.graph.fold_constants import fold_constants
from webmlc.graph.infer_shapes import UnknownShapeError, infer_shapes
from webmlc.graph.ir import Array, Function, Module, producers
from webmlc.graph.normalise import normalise
from webmlc.graph.simplify_graph import simplify_graph

Engine = Literal["numpy", "wasm", "webgpu"]
ENGINES: dict[str, Engine] = {"CPU": "wasm", "CUDA": "webgpu", "NUMPY": "numpy"}


class WebmlcBackend(Backend):
    """Builds a package in a temporary folder and runs it."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] in ENGINES

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> WebmlcRep:
        """Raises `UnsupportedError` where the model can never be built."""
        super().prepare(model, device, **kwargs)
        return WebmlcRep(model, ENGINES[device.partition(":")[0]])

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)


class WebmlcRep(BackendRep):
    """A model that is built at once, or at its first run where its shapes depend on inputs.

    `on_cpu` says, after a run on webgpu, which kernels ran on the CPU.
    """

    def __init__(self, model: ModelProto, engine: Engine) -> None:
        self.model, self.engine = model, engine
        self.on_cpu: tuple[str, ...] = ()
        if all(i.type.HasField("tensor_type") for i in model.graph.input):
            find_shape_inputs(model)  # what can never be built is said now

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        constants = {tensor.name for tensor in self.model.graph.initializer}
        names = [i.name for i in self.model.graph.input if i.name not in constants]
        given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        known, arrays = unpack(self.model, given)
        model = known
        fixed: dict[str, Array] = {}
        while more := find_shape_inputs(model):  # one may come to light after another
            fixed |= {name: arrays[name] for name in more}
            model = specialise(known, fixed)
        feeds = {name: array for name, array in arrays.items() if name not in fixed}
        return self._run(model, feeds)

    def _run(self, model: ModelProto, feeds: Mapping[str, Array]) -> tuple[Any, ...]:
        """The model's outputs in order; a sequence is a list, an empty optional None."""
        names = [o.name for o in model.graph.output]
        if self.engine == "numpy":
            module = optimised(model)
            return collect(names, evaluate_module(module, feeds), module.main.sequences)
        from webmlc.compile import build
        from webmlc.host.load import load

        with tempfile.TemporaryDirectory() as folder:
            build(model, Path(folder), target=self.engine)
            loaded = load(folder, device=self.engine)
            try:
                results = collect(names, loaded.run(dict(feeds)), loaded.sequences)
            finally:
                loaded.dispose()
        if self.engine == "webgpu":
            steps = loaded.program.steps
            self.on_cpu = tuple(dict.fromkeys(s.kernel for s in steps if s.device == "wasm"))
        return results


def to_array(value: Any) -> Any:
    """An input as an array: ONNX's tests give some as `TensorProto`; sequences are lists."""
    if value is None or isinstance(value, list):
        return value if value is None else [to_array(v) for v in value]
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def unpack(model: ModelProto, given: Mapping[str, Any]) -> tuple[ModelProto, dict[str, Array]]:
    """The model with an input for each tensor in its sequences and optionals, and the arrays."""
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.input[:], result.graph.node[:]
    arrays: dict[str, Array] = {}
    for info in model.graph.input:
        if info.name not in given:  # old models list their constants here, too
            result.graph.input.append(info)
            continue
        value = to_array(given[info.name])
        if info.type.HasField("tensor_type"):
            result.graph.input.append(info)
            arrays[info.name] = value
            continue
        parts = value if isinstance(value, list) else [] if value is None else [value]
        names = [f"{info.name}/{i}" for i in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            element = helper.np_dtype_to_tensor_dtype(part.dtype)
            result.graph.input.append(helper.make_tensor_value_info(name, element, part.shape))
            arrays[name] = part
        op = "Optional"
        if isinstance(value, list):
            op = "SequenceConstruct" if value else "SequenceEmpty"
        result.graph.node.append(helper.make_node(op, names, [info.name]))
    result.graph.node.extend(model.graph.node)
    return result, arrays


def find_shape_inputs(model: ModelProto) -> tuple[str, ...]:
    """The inputs whose values decide shapes; raises `UnsupportedError` for what else is missing."""
    module = normalise(read_model(model))
    try:
        infer_shapes(module)
    except UnknownShapeError as error:
        return _inputs_behind(module.main, error.values)
    return ()


def _inputs_behind(function: Function, values: Sequence[str]) -> tuple[str, ...]:
    """The function inputs that these values are computed from."""
    makers = producers(function)
    found: dict[str, None] = {}
    pending, seen = list(values), set(values)
    while pending:
        value = pending.pop()
        if value in function.inputs:
            found[value] = None
        elif value in makers:
            fresh = [i for i in makers[value].inputs if i and i not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return tuple(found)


def specialise(model: ModelProto, fixed: Mapping[str, Array]) -> ModelProto:
    """The model with these inputs as constants."""
    if not fixed:
        return model
    result = ModelProto()
    result.CopyFrom(model)
    for info in [i for i in result.graph.input if i.name in fixed]:
        result.graph.input.remove(info)
        result.graph.initializer.append(numpy_helper.from_array(fixed[info.name], info.name))
    return result


def collect(
    names: Sequence[str],
    results: Mapping[str, Array],
    sequences: Mapping[str, tuple[str, ...] | None],
) -> tuple[Any, ...]:
    """The outputs of these names, sequences joined."""
    joined = {n: v if v is None else [results[part] for part in v] for n, v in sequences.items()}
    return tuple(joined[name] if name in joined else results[name] for name in names)


def optimised(model: ModelProto) -> Module:
    """The model after the graph passes that come before layouts."""
    module = infer_shapes(normalise(read_model(model)))
    return simplify_graph(fold_constants(module))


__all__ = ["UnsupportedError", "WebmlcBackend", "WebmlcRep"]
