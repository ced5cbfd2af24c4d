"""webmlc as an ONNX backend: `onnx.backend.base.Backend` over build and run.

    rep = WebmlcBackend.prepare(model, device="CPU")     # CPU: the emitted WASM, CUDA: the WGSL
    outputs = rep.run([x])

`device="NUMPY"` runs the numpy meaning of the graph instead of emitted code: it tells a wrong row
of the operator table from a wrong schedule.

A model goes through `webmlc.build` and `webmlc.load` as it is, if they take it. Otherwise it is
specialised when it runs: inputs whose values have to be known at build time (the `scales` of a
Resize) become constants, and a sequence or an optional becomes one input for each of its tensors.
`rep.built_in` names these inputs. `prepare(model, device, as_is=True)` never specialises.
`prepare(model, device, target="both")` builds for both devices: if the next model is the same one
on the other device, it runs from the same package.

With `WEBMLC_TEST_SHADERS=richest` in the environment, the shaders with the most features run
instead of those for any GPU, where they differ.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep

from webmlc.core.errors import UnsupportedError
from webmlc.core.machine import ADAPTERS, PLAIN_ADAPTERS
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import UnknownShapeError, infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array, Module, producers
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph
from webmlc.package.manifest_json import read_manifest

if TYPE_CHECKING:
    from webmlc.build_options import TargetName

Engine = Literal["numpy", "wasm", "webgpu"]
ENGINES: dict[str, Engine] = {"CPU": "wasm", "CUDA": "webgpu", "NUMPY": "numpy"}
TESTS_RICHEST = os.environ.get("WEBMLC_TEST_SHADERS") == "richest"


class WebmlcBackend(Backend):
    """Builds a package in a temporary folder and runs it."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] in ENGINES

    @classmethod
    def prepare(
        cls,
        model: ModelProto,
        device: str = "CPU",
        *,
        as_is: bool = False,
        target: TargetName | None = None,
        **kwargs: Any,
    ) -> WebmlcRep:
        """Check the model. Its first run builds it, because that may need values of inputs."""
        super().prepare(model, device, **kwargs)
        return WebmlcRep(model, ENGINES[device.partition(":")[0]], as_is, target)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)


class WebmlcRep(BackendRep):
    """A model and what its last run was like.

    `built_in` names the inputs that the model was specialised on; `on_cpu`, on webgpu, the kernels
    that ran on the CPU.
    """

    def __init__(
        self, model: ModelProto, engine: Engine, as_is: bool, target: TargetName | None
    ) -> None:
        self.model, self.engine, self.as_is, self.target = model, engine, as_is, target
        self.built_in: tuple[str, ...] = ()
        self.on_cpu: tuple[str, ...] = ()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs. Raises `UnsupportedError` if the model cannot be built."""
        constants = {tensor.name for tensor in self.model.graph.initializer}
        names = [i.name for i in self.model.graph.input if i.name not in constants]
        feeds = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        feeds = {name: to_array(value) for name, value in feeds.items()}
        if self.as_is:
            return self._run(self.model, feeds)
        model, arrays = unpack(self.model, feeds)
        fixed: dict[str, Array] = {}
        while True:  # one input may come to light after another
            try:
                results = self._run(specialise(model, fixed), without(arrays, fixed))
            except UnknownShapeError as error:
                more = inputs_behind(specialise(model, fixed), error.values)
                fixed |= {name: arrays[name] for name in more}
                if not more:
                    raise
            else:
                self.built_in = (*without(feeds, arrays), *fixed)
                return results

    def _run(self, model: ModelProto, feeds: Mapping[str, Array]) -> tuple[Any, ...]:
        """The model's outputs in order; a sequence is a list, an empty optional None."""
        names = [o.name for o in model.graph.output]
        if self.engine == "numpy":
            module = optimised(model)
            return collect(names, evaluate_module(module, feeds), module.main.sequences)
        from webmlc.host.load import load

        folder = package(model.SerializeToString(), self.target or self.engine)
        shaders = richest(Path(folder.name)) if TESTS_RICHEST and self.engine == "webgpu" else None
        loaded = load(folder.name, device=self.engine, shaders=shaders)
        try:
            results = collect(names, loaded.run(dict(feeds)), loaded.sequences)
        finally:
            loaded.dispose()
        if self.engine == "webgpu":
            steps = loaded.program.steps
            self.on_cpu = tuple(dict.fromkeys(s.kernel for s in steps if s.device == "wasm"))
        return results


@lru_cache(maxsize=1)
def package(model: bytes, target: TargetName) -> tempfile.TemporaryDirectory[str]:
    """The package of a serialised model, in a folder that lasts until another model is built."""
    from webmlc.pipeline import build

    folder = tempfile.TemporaryDirectory()
    adapter = "all" if TESTS_RICHEST else "gpu"
    build(ModelProto.FromString(model), Path(folder.name), target=target, adapter=adapter)
    return folder


def richest(folder: Path) -> Any:
    """The variant of a package's shaders with the most features; that for any GPU if no other
    shaders need features. None where a package has no shaders.
    """
    shaders = read_manifest(folder).programs["webgpu"].shaders
    names = [n for n in ADAPTERS if n in shaders and (n == "gpu" or n not in PLAIN_ADAPTERS)]
    return names[-1] if names else None


def to_array(value: Any) -> Any:
    """An input as an array: ONNX's tests give some as `TensorProto`; sequences are lists."""
    if value is None or isinstance(value, list):
        return value if value is None else [to_array(v) for v in value]
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def unpack(model: ModelProto, feeds: Mapping[str, Any]) -> tuple[ModelProto, dict[str, Array]]:
    """The model with an input for each tensor in its sequences and optionals, and the arrays."""
    if all(info.type.HasField("tensor_type") for info in model.graph.input):
        return model, dict(feeds)
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.input[:], result.graph.node[:]
    arrays: dict[str, Array] = {}
    for info in model.graph.input:
        if info.name not in feeds:  # old models list their constants here, too
            result.graph.input.append(info)
            continue
        value = feeds[info.name]
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


def inputs_behind(model: ModelProto, values: Sequence[str]) -> tuple[str, ...]:
    """The inputs of the model that these values are computed from."""
    function = normalise(read_model(model)).main
    makers = producers(function)
    inputs: dict[str, None] = {}
    pending, seen = list(values), set(values)
    while pending:
        value = pending.pop()
        if value in function.inputs:
            inputs[value] = None
        elif value in makers:
            fresh = [i for i in makers[value].inputs if i and i not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return tuple(inputs)


def without(values: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """The values of other names."""
    return {name: value for name, value in values.items() if name not in names}


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
