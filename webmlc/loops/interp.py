"""Interpret loop functions on numpy arrays: the executable definition of the loop IR.

In: a `LoopFunction` in any form (blocks, or lowered: flat buffers, vectors, thread loops and
barriers), an array for every parameter, and a value for every symbol. Out: nothing; the arrays of
the outputs are written. Every access is bounds-checked. Arithmetic follows the dtypes: float32
stays float32, and integers wrap. Memory that was never written holds NaN or a pattern, never zero.

    run(relu, {"A": a, "B": b}, {"n": 3})

A kernel with thread loops and barriers runs the threads of each workgroup in lock-step between
barriers. Each workgroup has its `shared` buffers, and each thread its `local` buffers. A barrier
that only some threads reach is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.rewrite import evaluate
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.ir import Buffer, LoopFunction
from webmlc.loops.to_python import is_lockstep, launch_extents, print_python
from webmlc.loops.write_out_combinations import write_out_combinations
from webmlc.loops.write_out_instructions import write_out_instructions

Array = np.ndarray[Any, Any]
Kernel = Callable[[Mapping[str, Array], tuple[int, ...]], Iterator[int] | None]


def run(
    function: LoopFunction, arrays: Mapping[str, Array], symbols: Mapping[str, int] | None = None
) -> None:
    """Run `function` on `arrays` (by parameter name) in place.

    An array may have another shape than its parameter if it is contiguous and has the same number
    of elements, because lowered kernels have flat buffers. Raises `InternalError` for a missing or
    mismatched array, an access out of bounds, an axis outside its domain, or a barrier in divergent
    control flow.
    """
    values = {name: int(value) for name, value in (symbols or {}).items()}
    if missing := [s.name for s in function.symbols if s.name not in values]:
        raise InternalError(
            f"interp: kernel {function.name}: no value for symbol {', '.join(missing)}"
        )
    arguments = {b.name: _argument(function, b, arrays, values) for b in function.params}
    kernel = _compile(function, tuple(sorted(values.items())))
    with np.errstate(all="ignore"):
        if is_lockstep(function):
            _launch(function, kernel, arguments, values)
        else:
            scratch = {b.name: _poisoned_array(b, values) for b in function.allocations}
            kernel(arguments | scratch, ())


@lru_cache(maxsize=256)
def _compile(function: LoopFunction, symbols: tuple[tuple[str, int], ...]) -> Kernel:
    written_out = write_out_instructions(write_out_combinations(function))
    source = print_python(written_out, dict(symbols))
    namespace = dict(_NAMESPACE)
    exec(compile(source, f"<interp {function.name}>", "exec"), namespace)
    kernel: Kernel = namespace["kernel"]
    return kernel


def _argument(
    function: LoopFunction, buffer: Buffer, arrays: Mapping[str, Array], symbols: Mapping[str, int]
) -> Array:
    where = f"interp: kernel {function.name}: buffer {buffer.name}"
    if buffer.name not in arrays:
        raise InternalError(f"{where} has no array")
    array = arrays[buffer.name]
    shape = _shape(buffer, symbols)
    if array.dtype != buffer.dtype.numpy:
        raise InternalError(f"{where} is {buffer.dtype}, its array is {array.dtype}")
    if array.shape == shape:
        return array
    if array.size != math.prod(shape) or not array.flags.c_contiguous:
        raise InternalError(f"{where} has shape {shape}, its array {array.shape}")
    return array.reshape(shape)


def _shape(buffer: Buffer, symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(evaluate(extent, symbols)) for extent in buffer.shape)


def _poisoned_array(buffer: Buffer, symbols: Mapping[str, int]) -> Array:
    """Allocate memory whose content reveals a read before the first write.

    Floats are NaN, booleans are true, and the bytes of integers are 0xCD.
    """
    shape = _shape(buffer, symbols)
    if buffer.dtype.is_float:
        return np.full(shape, np.nan, buffer.dtype.numpy)
    if buffer.dtype is DType.bool:
        return np.full(shape, True)
    fill = np.frombuffer(b"\xcd" * buffer.dtype.bytes, buffer.dtype.numpy)
    return np.full(shape, fill[0], buffer.dtype.numpy)


def _launch(
    function: LoopFunction,
    kernel: Kernel,
    arguments: Mapping[str, Array],
    symbols: Mapping[str, int],
) -> None:
    """Run every workgroup, its threads in lock-step between barriers."""
    extents = [range(extent) for extent in launch_extents(function, symbols)]
    by_scope = {
        scope: [b for b in function.allocations if b.scope == scope]
        for scope in ("global", "shared", "local")
    }
    scratch = {b.name: _poisoned_array(b, symbols) for b in by_scope["global"]}
    for group in itertools.product(*extents[:3]):
        shared = {b.name: _poisoned_array(b, symbols) for b in by_scope["shared"]}
        threads = []
        for thread in itertools.product(*extents[3:]):
            local = {b.name: _poisoned_array(b, symbols) for b in by_scope["local"]}
            steps = kernel({**arguments, **scratch, **shared, **local}, group + thread)
            assert steps is not None  # a lock-step kernel is a generator
            threads.append(steps)
        while True:
            barriers = {next(thread, None) for thread in threads}
            if len(barriers) > 1:
                raise InternalError(
                    f"interp: kernel {function.name}: the threads of workgroup {group} wait at "
                    "different barriers: one stands in control flow that differs between threads"
                )
            if barriers == {None}:
                break


# -- functions that the printed Python calls ------------------------------------------


def _at(index: int, extent: int, where: str) -> int:
    if 0 <= index < extent:
        return index
    raise InternalError(f"interp: {where}: index {index} is outside [0, {extent})")


def _span(start: int, width: int, extent: int, where: str) -> slice:
    if start >= 0 and start + width <= extent:
        return slice(start, start + width)
    raise InternalError(f"interp: {where}: [{start}, {start + width}) is outside [0, {extent})")


def _check_all(array: Array, indices: tuple[Any, ...], name: str) -> None:
    for axis, (index, extent) in enumerate(zip(indices, array.shape, strict=True)):
        low, high = int(np.min(index)), int(np.max(index))
        _at(low, extent, f"{name}, axis {axis}")
        _at(high, extent, f"{name}, axis {axis}")


def _gather(array: Array, indices: tuple[Any, ...], mask: Array | None, name: str) -> Array:
    """Load the elements at vector indices. Lanes outside `mask` hold element 0."""
    if mask is not None:
        indices = tuple(np.where(mask, index, 0) for index in indices)
    _check_all(array, indices, name)
    return np.asarray(array[indices])


def _scatter(array: Array, indices: tuple[Any, ...], value: Any, name: str) -> None:
    _check_all(array, indices, name)
    array[indices] = value


def _choose(
    condition: Array,
    mask: Array | None,
    then: Callable[[Array], Any],
    other: Callable[[Array], Any],
) -> Array:
    outer = np.ones_like(condition) if mask is None else mask
    return np.asarray(np.where(condition, then(outer & condition), other(outer & ~condition)))


def _wrap(value: int) -> int:
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def _truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def _truncmod(a: int, b: int) -> int:
    return a - b * _truncdiv(a, b)


def _minimum(a: Any, b: Any) -> Any:
    return a if a <= b or a != a else b


def _maximum(a: Any, b: Any) -> Any:
    return a if a >= b or a != a else b


def _cast(value: Any, source: Any, target: Any) -> Any:
    return np.asarray(value, source).astype(target)[()]


def _bitcast(value: Any, source: Any, target: Any) -> Any:
    return np.asarray(value, source).view(target)[()]


def _ramp(base: int, stride: int, width: int) -> Array:
    return np.asarray(base + np.arange(width, dtype=np.int32) * np.int32(stride))


# The functions and types by the names that the printed Python uses.
_NAMESPACE: Mapping[str, Any] = {
    **{f"op_{name}": row.meaning for name, row in SCALAR_OPERATORS.items()},
    **{str(dtype): dtype.numpy.type for dtype in DType if dtype is not DType.bool},
    "bool_": np.bool_,
    "array": np.array,
    "full": np.full,
    "cast_int": lambda value, target: int(np.asarray(value).astype(target)),
    "bitcast_int": lambda value, source, target: int(_bitcast(value, source, target)),
    **{
        function.__name__.removeprefix("_"): function
        for function in (
            _at, _span, _gather, _scatter, _choose, _wrap, _truncdiv, _truncmod, _minimum, _maximum,
            _cast, _bitcast, _ramp,
        )
    },
}  # fmt: skip
