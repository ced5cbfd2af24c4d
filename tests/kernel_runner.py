"""Run one scheduled loop function on a real engine: wasmtime for WASM, wgpu-py for WebGPU.

    outputs = run_on_wasm(schedule.function, {"A": a, "B": b})
    outputs = run_on_webgpu(schedule.function, {"A": a, "B": b})

In: a function of blocks (it is lowered here), its inputs by name, its symbols. Out: its outputs, by
name; they start as NaN, so an element that nothing wrote shows. `run_on_interp` takes the lowered
form too: its result tells a wrong lowering from a wrong printer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.target.conftest import run_module
from tests.target.webgpu.gpu import run_on_gpu
from webmlc.core.machine import WASM_MACHINES, WEBGPU, Features
from webmlc.core.rewrite import evaluate
from webmlc.loops.interp import run as interpret
from webmlc.loops.ir import LoopFunction
from webmlc.target.targets import lower
from webmlc.target.wasm.emit_module import Step, emit_module

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Symbols = Mapping[str, int]


def random_inputs(
    function: LoopFunction, symbols: Symbols | None = None, seed: int = 0
) -> dict[str, Array]:
    """Random arrays for the inputs of `function`: standard normal, or integers of 0 to 9."""
    generator = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for buffer in function.input_params():
        shape = tuple(int(evaluate(extent, dict(symbols or {}))) for extent in buffer.shape)
        if buffer.dtype.is_float:
            values: Array = generator.standard_normal(shape)
        else:
            values = generator.integers(0, 10, shape)
        arrays[buffer.name] = values.astype(buffer.dtype.numpy)
    return arrays


def run_on_interp(
    function: LoopFunction, inputs: Arrays, symbols: Symbols | None = None
) -> dict[str, Array]:
    """The outputs of a function in any form through the interpreter."""
    arrays = {**{k: v.copy() for k, v in inputs.items()}, **_outputs(function, symbols)}
    interpret(function, arrays, symbols)
    return _select(function, arrays)


def run_on_wasm(
    function: LoopFunction,
    inputs: Arrays,
    symbols: Symbols | None = None,
    threads: int = 1,
    features: Features = "relaxed",
) -> dict[str, Array]:
    """The outputs of a scheduled function through wasmtime."""
    lowered = lower(function, WASM_MACHINES[features])
    count = len(lowered.params) + len(lowered.symbols)
    module = emit_module({"kernel": lowered}, [Step("kernel", tuple(range(count)))], features)
    arrays = {**{k: v.copy() for k, v in inputs.items()}, **_outputs(function, symbols)}
    values = [(symbols or {})[symbol.name] for symbol in lowered.symbols]
    run_module(module, [arrays[b.name] for b in lowered.params], values, 1, threads)
    return _select(function, arrays)


def run_on_webgpu(
    function: LoopFunction, inputs: Arrays, symbols: Symbols | None = None
) -> dict[str, Array]:
    """The outputs of a scheduled function through wgpu-py."""
    lowered = lower(function, WEBGPU)
    arrays = {**inputs, **_outputs(function, symbols)}
    return run_on_gpu(lowered, arrays, symbols or {})


def _outputs(function: LoopFunction, symbols: Symbols | None) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for buffer in function.output_params():
        shape = tuple(int(evaluate(extent, dict(symbols or {}))) for extent in buffer.shape)
        poison = np.nan if buffer.dtype.is_float else 0x4D
        arrays[buffer.name] = np.full(shape, poison).astype(buffer.dtype.numpy)
    return arrays


def _select(function: LoopFunction, arrays: Arrays) -> dict[str, Array]:
    outputs = function.output_params()
    return {buffer.name: arrays[buffer.name] for buffer in outputs}
