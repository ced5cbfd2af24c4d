"""Bind numpy arrays to the parameters of a kernel, and learn the sizes of its symbols from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webmlc.core.errors import InputError
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import variables
from webmlc.core.sizes import evaluate_size
from webmlc.loops.ir import LoopFunction


@dataclass(frozen=True, slots=True)
class Bound:
    """The array of each parameter, and the size of each symbol, by name."""

    arrays: Mapping[str, np.ndarray[Any, Any]]
    sizes: Mapping[str, int]


def sizes_of(
    shapes: Iterable[tuple[Sequence[Expr], Sequence[int]]],
) -> dict[str, int]:
    """The sizes of symbols, from pairs of a declared shape and the shape of an array. The first
    dimension that is a symbol decides its size.
    """
    sizes: dict[str, int] = {}
    for declared, shape in shapes:
        for extent, size in zip(declared, shape, strict=True):
            if isinstance(extent, Var):
                sizes.setdefault(extent.name, size)
    return sizes


def bind_arrays(function: LoopFunction, arrays: Sequence[np.ndarray[Any, Any]]) -> Bound:
    """Bind an array to each parameter. Raises `InputError` if their number, a dtype or a shape does
    not fit, or if no shape tells the size of a symbol.
    """
    params = function.params
    if len(arrays) != len(params):
        names = ", ".join(buffer.name for buffer in params)
        raise InputError(f"{function.name} takes {len(params)} arrays ({names}), not {len(arrays)}")
    for buffer, array in zip(params, arrays, strict=True):
        if not isinstance(array, np.ndarray):
            raise InputError(f"{buffer.name} is a {type(array).__name__}, not a numpy array")
        if array.dtype != buffer.dtype.numpy:
            raise InputError(f"{buffer.name} is {array.dtype}, and the kernel takes {buffer.dtype}")
        if array.ndim != len(buffer.shape):
            rank = len(buffer.shape)
            raise InputError(
                f"{buffer.name} has {array.ndim} dimensions, and the kernel takes {rank}"
            )
    sizes = sizes_of((b.shape, a.shape) for b, a in zip(params, arrays, strict=True))
    for symbol in function.symbols:
        if symbol.name not in sizes:
            raise InputError(
                f"no dimension of a parameter is {symbol.name}, so its size is unknown"
            )
    for buffer, array in zip(params, arrays, strict=True):
        shape = tuple(evaluate_size(extent, sizes) for extent in buffer.shape)
        if shape != array.shape:
            text = ", ".join(map(str, buffer.shape))
            named = {v.name for extent in buffer.shape for v in variables(extent)}
            size_texts = "".join(f", and {name} is {sizes[name]}" for name in sorted(named))
            raise InputError(
                f"{buffer.name} has the shape {list(array.shape)}, and the kernel takes "
                f"[{text}]{size_texts}"
            )
    return Bound({b.name: a for b, a in zip(params, arrays, strict=True)}, sizes)
