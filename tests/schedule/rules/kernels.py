"""Naive loop functions for the tests of rules, made from tensor expressions as fusion makes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from webmlc.core.expr import Expr, Var, as_expr
from webmlc.core.dtypes import DType
from webmlc.graph.compute import Tensor, placeholder
from webmlc.loops.from_graph import _Lowering, _stages, _symbols
from webmlc.loops.interp import run
from webmlc.loops.ir import Buffer, LoopFunction, seq


def tensor(name: str, *shape: int | Expr, dtype: DType = DType.float32) -> Tensor:
    return placeholder(name, tuple(as_expr(s) for s in shape), dtype)


def naive(inputs: list[Tensor], *results: Tensor) -> LoopFunction:
    """The function that computes `results` of `inputs`, one block a stage, as `from_graph` makes it."""
    from dataclasses import replace

    body: Any = SimpleNamespace(outputs=tuple(f"y{p}" for p in range(len(results))))
    lowering = _Lowering(body, "kernel", "wasm")
    for t in inputs:
        lowering.buffers[t] = Buffer(t.name, t.shape, t.dtype)
    for value, result in zip(body.outputs, results, strict=True):
        lowering.tensors[value] = result
    outputs = [Buffer(f"out{p}", t.shape, t.dtype) for p, t in enumerate(results)]
    statements = lowering.emit_stages(_stages(results), tuple(outputs), {})
    function = LoopFunction(
        "kernel",
        (*(lowering.buffers[t] for t in inputs), *outputs),
        len(outputs),
        (),
        tuple(lowering.allocations),
        seq(*statements),
    )
    return replace(function, symbols=_symbols(function))


def arrays(function: LoopFunction, symbols: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs and NaN outputs."""
    from webmlc.core.expr import evaluate

    generator = np.random.default_rng(seed)
    found = {}
    for position, buffer in enumerate(function.params):
        shape = tuple(int(evaluate(d, symbols)) for d in buffer.shape)
        is_output = position >= len(function.params) - function.outputs
        if buffer.dtype.is_float:
            data = generator.standard_normal(shape)
            found[buffer.name] = (
                np.full(shape, np.nan, buffer.dtype.numpy)
                if is_output
                else data.astype(buffer.dtype.numpy)
            )
        else:
            found[buffer.name] = generator.integers(0, 2, shape).astype(buffer.dtype.numpy)
    return found


def outputs_of(function: LoopFunction, symbols: dict[str, int]) -> list[np.ndarray]:
    """Run on random inputs; the outputs."""
    data = arrays(function, symbols)
    run(function, data, symbols)
    return [data[b.name] for b in function.params[len(function.params) - function.outputs :]]


def symbol(name: str) -> Var:
    return Var(name)
