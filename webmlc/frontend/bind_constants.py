"""Turn inputs into constants, such as axes, scales or a sampling rate that never changes.

In: a graph, and arrays by input name. Out: arrays of the inputs' types, and the sizes of the
symbolic dimensions that the arrays determine. `read_constants` reads arrays from the text of a
command line:

    >>> read_constants(["sr=16000", "axes=[1, 2]"])["axes"].tolist()
    [1, 2]

A number takes the type of the input. Integers and booleans must be exact; floats are rounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from onnx import GraphProto, ValueInfoProto

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.frontend.protos import dtype_of
from webmlc.graph.ir import Array

Constants = Mapping[str, ArrayLike]
"""Arrays, or values that numpy converts to arrays, by the names of inputs."""


def bind_constants(
    graph: GraphProto, constants: Constants
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return arrays by input name, and sizes by the text of a symbolic dimension (`dim_param`).

    Raises `InputError` if a name belongs to no input, or if the type of the input does not admit
    the value.
    """
    defaults = {tensor.name for tensor in graph.initializer}
    inputs = {info.name: info for info in graph.input if info.name not in defaults}
    arrays: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for name, value in constants.items():
        if name not in inputs:
            names = ", ".join(map(repr, inputs)) or "none"
            raise InputError(f"constant {name!r}: the model has no such input; its inputs: {names}")
        arrays[name] = _as_input_array(inputs[name], value)
        _bind_sizes(inputs[name], arrays[name], sizes)
    return arrays, sizes


def _as_input_array(info: ValueInfoProto, value: ArrayLike) -> Array:
    """Convert the value to an array of the input's element type."""
    subject = f"constant {info.name!r}"
    dtype = dtype_of(info.type.tensor_type.elem_type)
    if not info.type.HasField("tensor_type") or dtype is None:
        raise InputError(f"{subject}: the input is not a tensor of numbers")
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{subject}: {value!r} is not an array ({error})") from None
    if not array.size:
        return np.zeros(array.shape, dtype.numpy)
    if not _is_number(array):
        raise InputError(f"{subject}: {value!r} does not consist of numbers")
    if not _fits(array, dtype):
        raise InputError(f"{subject}: {dtype} cannot hold {_text(array)} exactly")
    return np.asarray(array.astype(dtype.numpy))


def _is_number(array: Array) -> bool:
    return array.dtype.kind in "biuf" or array.dtype.name in set(DType)


def _fits(array: Array, dtype: DType) -> bool:
    """True if the type can hold every integer exactly, and every float after rounding."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            rounded = array.astype(dtype.numpy)
        return bool((np.isfinite(rounded) | ~np.isfinite(array)).all())
    numbers = array
    if DType.of(array.dtype).is_float:
        numbers = array.astype(np.float64)
        if not np.isfinite(numbers).all() or (np.trunc(numbers) != numbers).any():
            return False
    low, high = (0, 1) if dtype is DType.bool else dtype.limits
    return low <= int(numbers.min()) and int(numbers.max()) <= high


def _bind_sizes(info: ValueInfoProto, array: Array, sizes: dict[str, int]) -> None:
    """Check the array's shape against the declared one, and add its symbols to `sizes`."""
    if not info.type.tensor_type.HasField("shape"):
        return
    shape: list[int | str] = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in info.type.tensor_type.shape.dim
    ]
    fits = len(shape) == array.ndim
    for declared, size in zip(shape, array.shape, strict=False):
        if isinstance(declared, str) and declared != "?":
            declared = sizes.setdefault(declared, size)
        fits &= declared in ("?", size)
    if not fits:
        names = {name: sizes[name] for name in shape if isinstance(name, str) and name in sizes}
        bindings = ", ".join(f"{name} = {size}" for name, size in names.items())
        raise InputError(
            f"constant {info.name!r} has shape {list(array.shape)}, expected "
            f"[{', '.join(map(str, shape))}]" + (f" with {bindings}" if bindings else "")
        )


def _text(array: Array) -> str:
    return np.array2string(array, threshold=8, separator=", ")


def read_constants(texts: Sequence[str]) -> dict[str, Array]:
    """Read arrays from texts of the form `NAME=VALUE` or `NAME=FILE.npy`.

    A value is a number, or a list as in JSON. Raises `InputError` if a text has neither form, or if
    a file cannot be read.
    """
    return dict(map(_read_constant, texts))


def _read_constant(text: str) -> tuple[str, Array]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise InputError(
            f"--constant {text!r}: write NAME=VALUE or NAME=FILE.npy, for instance "
            "--constant axes=[1,2]"
        )
    if value.endswith(".npy"):
        return name, _read_file(name, Path(value))
    try:
        return name, np.asarray(json.loads(value))
    except ValueError:
        raise InputError(
            f"--constant {text!r}: {value!r} is neither a number nor a list of numbers. Write "
            "for instance 16000, [1, 2] or [[0.5], [1]], or name a .npy file"
        ) from None


def _read_file(name: str, path: Path) -> Array:
    try:
        array: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error) if path.exists() else "no such file"
        raise InputError(f"--constant {name}: {path} cannot be read: {reason}") from None
    return np.asarray(array)
