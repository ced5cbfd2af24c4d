"""Replace subnormal numbers by zeros in constants that are multiplied or added.

needs: packed weights. guarantees: packed weights and constant summands have no subnormal numbers
of float32.

Channels that training switched off have subnormal weights. Some processors take many times as long
for a multiply-add that reads a subnormal number. The products of such weights are subnormal, too,
and reach the next layer. A product changes by less than 1.2e-38 of its other factor, a sum by less
than 1.2e-38.

    const %b = [1.5, 3e-41]; %y = Add(%x, %b)   ->   const %b = [1.5, 0.0]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from webmlc.graph.ir import Array, Function, Module

_LEAST_NORMAL = np.finfo(np.float32).tiny
_SUMS = frozenset(
    [
        ("webmlc", "Conv"),
        ("webmlc", "DepthwiseConv"),
        ("webmlc", "MatMul"),
        ("", "Add"),
        ("", "Sub"),
    ]
)
"""Operators, by domain and name, whose constant operands may be flushed."""


def flush_subnormals(module: Module) -> Module:
    """Flush the constants of every function that only operators of `_SUMS` read."""
    functions = {name: _flushed(function) for name, function in module.functions.items()}
    return replace(module, functions=functions)


def _flushed(function: Function) -> Function:
    preserved_names = set(function.outputs)
    for node in function.nodes:
        if (node.domain, node.op) not in _SUMS:
            preserved_names.update(node.inputs)
    constants = {
        name: array if name in preserved_names or array.dtype != np.float32 else _without(array)
        for name, array in function.constants.items()
    }
    return replace(function, constants=constants)


def _without(array: Array) -> Array:
    subnormal = (np.abs(array) < _LEAST_NORMAL) & (array != 0)
    return np.where(subnormal, np.float32(0), array) if subnormal.any() else array
