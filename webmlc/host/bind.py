"""Check the inputs of a run, and bind the symbols of the package from input shapes and memory.

In: the manifest and `{name: array}`. Out: the value of each symbol, and the contiguous arrays. The
twins of this module are `bindSymbols` and `bindFromMemory` in `runtime_js/manifest.js`.

    x: float32[batch, 10], an array of shape (3, 10)  ->  {"batch": 3}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError, PackageError
from webmlc.core.shaped_values import with_shape
from webmlc.core.sizes import Rule, holds
from webmlc.host.model_port import ModelPort
from webmlc.package.manifest import AnyPort, Bind, Manifest, Port, Program
from webmlc.package.sizes import evaluate, shape_text, size_text, symbols_of

Array = NDArray[Any]
P = TypeVar("P", bound=AnyPort)
LIMIT = 1 << 31
"""The first size, and the first number of bytes of an input, that is too large.

Derived from kernels, whose indices are int32.
"""


def read_inputs(manifest: Manifest, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs by port name, as contiguous arrays.

    Raises `InputError` if a name, a dtype or a rank does not match the model.
    """
    check_names(manifest.inputs, inputs)
    return {port.name: _array(port, inputs[port.name]) for port in manifest.inputs}


def check_names(ports: Sequence[AnyPort], inputs: Mapping[str, Any]) -> None:
    """Raise `InputError` if the names of some inputs are not the names of the ports."""
    names = [port.name for port in ports]
    if unknown := [name for name in inputs if name not in names]:
        problem = f"no input is named {unknown[0]!r}"
    elif missing := [name for name in names if name not in inputs]:
        problem = f"input {missing[0]!r} is missing"
    else:
        return
    takes = [f"{p.name!r} ({ModelPort.of(p).dtype}{shape_text(p.shape)})" for p in ports]
    raise InputError(f"{problem}; the model takes {', '.join(takes) or 'none'}")


def bind(
    manifest: Manifest, arrays: Mapping[str, Array], length: int = 0, capacity: int | None = None
) -> dict[str, int]:
    """Return the symbols by name. `arrays` are the results of `read_inputs`. `length` and
    `capacity` belong to the session. Without a capacity, its symbol is not bound.

    Raises `InputError` if a shape does not match the model.
    """
    symbols = {
        s.name: int(arrays[s.input].shape[s.axis]) if s.input else length for s in manifest.symbols
    }
    if capacity is not None and manifest.capacity:
        symbols[manifest.capacity] = capacity
    elif manifest.capacity:
        del symbols[manifest.capacity]
    for port in manifest.inputs:
        expected = shape_of(port, symbols)
        if arrays[port.name].shape != expected:
            origins = _origins(manifest, symbols)
            raise InputError(
                f"input {port.name!r} has shape {shape_text(arrays[port.name].shape)}, expected "
                f"{shape_text(port.shape)} = {shape_text(expected)}"
                + (f" with {origins}" if origins else "")
            )
    check_requirements(manifest, symbols, symbols)
    return symbols


def chosen_ports(ports: Sequence[P], names: Sequence[str] | None) -> Sequence[P]:
    """The outputs of these names, in the order of the model; by default, all outputs.

    Raises `InputError` if no output has a name.
    """
    if names is None:
        return ports
    if isinstance(names, str):
        raise InputError(f"outputs is {names!r}, expected a list of names")
    offered = [port.name for port in ports]
    if unknown := [name for name in names if name not in offered]:
        returned = ", ".join(map(repr, offered)) or "none"
        raise InputError(f"no output is named {unknown[0]!r}; the model returns {returned}")
    return [port for port in ports if port.name in names]


def chosen_outputs(manifest: Manifest, names: Sequence[str] | None) -> Sequence[Port]:
    """The outputs of the program that hold the outputs of the model of these names.

    Raises `InputError` if no output has a name.
    """
    shapes = manifest.shapes
    visible = [port for port in manifest.outputs if port.name not in shapes.values()]
    chosen = {port.name for port in chosen_ports(visible, names)}
    chosen |= {sizes for name, sizes in shapes.items() if name in chosen}
    return [port for port in manifest.outputs if port.name in chosen]


def with_shapes(manifest: Manifest, outputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs of the model: outputs of the program, some of them reshaped by others.

    Raises `PackageError` if a shape does not fit.
    """
    for name, sizes in manifest.shapes.items():
        if name in outputs:
            try:
                outputs[name] = with_shape(outputs[name], outputs.pop(sizes))
            except ValueError as error:
                raise PackageError(f"manifest.json: {name!r}: {error}") from error
    return outputs


def outputs_of(
    ports: Iterable[Port],
    values: Mapping[str, Array],
    symbols: Mapping[str, int],
    inputs: Iterable[Array],
) -> dict[str, Array]:
    """The outputs by name, as arrays that share no memory with the inputs or with each other.

    The bytes in `values` may be more than a short session needs.
    """
    used = {array.ctypes.data for array in inputs}
    outputs = {}
    for port in ports:
        data, shape = values[port.buffer], shape_of(port, symbols)
        data = data.copy() if data.ctypes.data in used else data
        used.add(data.ctypes.data)
        outputs[port.name] = data.view(port.dtype.numpy)[: prod(shape)].reshape(shape)
    return outputs


def bind_from_memory(program: Program, bind: Bind, data: Array) -> dict[str, int]:
    """Read the symbols of `bind` from the bytes of its buffer.

    Raises `InputError` if one is not a possible size, which the values of the inputs cause.
    """
    values = data.view(program.buffer(bind.buffer).dtype.numpy)
    symbols = {s: int(values[e]) for s, e in zip(bind.symbols, bind.elements, strict=True)}
    for size in symbols.values():
        if not 0 <= size < LIMIT:
            reason = "negative" if size < 0 else f"more than {LIMIT - 1}"
            raise InputError(
                f"node {', '.join(map(repr, bind.origin))}: "
                f"with these inputs a size is {size}: {reason}"
            )
    return symbols


FAILURES: Mapping[Rule, str] = {
    "equal": "they must be equal",
    "unequal": "they must differ, or the rank of the result changes: give the node its axes, or "
    "build for this size alone (--dim)",
    "at most": "the first must not be larger",
    "broadcast": "they must be equal, or one of them 1",
    "stretch": "they must be equal, or the first 1",
}
"""The condition on a pair of sizes that a rule stands for, in the words of an error."""


_PARTS = ("length", "capacity")
"""The symbols without an input, by their axes."""


def check_requirements(
    manifest: Manifest, symbols: Mapping[str, int], fresh: Collection[str]
) -> None:
    """Check the requirements of the model that depend on `fresh` symbols.

    Raises `InputError`, which names the node, the sizes and the inputs that determine them.
    """
    for requirement in manifest.requirements:
        left, right = requirement.left, requirement.right
        names = symbols_of((left, right))
        if not names <= symbols.keys() or names.isdisjoint(fresh):
            continue
        try:
            a, b = evaluate(left, symbols), evaluate(right, symbols)
        except InputError as error:
            raise InputError(f"node {requirement.node!r}: {error}") from error
        if holds(requirement.rule, a, b):
            continue
        sizes = " and ".join(
            str(size) if isinstance(size, int) else f"{size_text(size)} = {value}"
            for size, value in ((left, a), (right, b))
        )
        origins = _origins(manifest, symbols, names)
        raise InputError(
            f"node {requirement.node!r}: its sizes are {sizes}: {FAILURES[requirement.rule]}"
            + (f"; {origins}" if origins else "")
        )


def check_counts(
    manifest: Manifest, values: Mapping[str, Array], symbols: Mapping[str, int]
) -> None:
    """Raise an `InputError` that names the node and the sizes of the inputs, if a run counted
    indices out of range.
    """
    for check in manifest.checks:
        counts = values[check.buffer].view(np.int32)
        for node, count in zip(check.nodes, counts.tolist(), strict=True):
            if count:
                origins = _origins(manifest, symbols)
                raise InputError(
                    f"node {node!r}: with these inputs {count} of its indices or sizes "
                    f"{'is' if count == 1 else 'are'} out of range"
                    + (f"; {origins}" if origins else "")
                )


def _origins(
    manifest: Manifest, symbols: Mapping[str, int], names: Collection[str] | None = None
) -> str:
    """Describe the inputs that bind the symbols, or only the symbols of these names."""
    return ", ".join(
        f"{s.name} = {symbols[s.name]} from "
        + (f"axis {s.axis} of {s.input!r}" if s.input else f"the {_PARTS[s.axis]} of the session")
        for s in manifest.symbols
        if names is None or s.name in names
    )


def shape_of(port: Port, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Evaluate the shape of a port. Raises `InputError` if a size is negative."""
    shape = tuple(evaluate(size, symbols) for size in port.shape)
    for size in shape:
        if size < 0:
            raise InputError(f"with these inputs a size of {port.name!r} is {size}: negative")
    return shape


def _array(port: Port, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"input {port.name!r} is no array of one shape: {error}") from error
    if array.dtype != port.dtype.numpy:
        raise InputError(
            f"input {port.name!r} has dtype {array.dtype}, expected {port.dtype}: "
            f"convert it with .astype({_numpy_name(port.dtype)})"
        )
    if array.ndim != len(port.shape):
        raise InputError(
            f"input {port.name!r} has shape {shape_text(array.shape)}, "
            f"expected {shape_text(port.shape)}"
        )
    if array.nbytes >= LIMIT:
        raise InputError(f"input {port.name!r} has {array.nbytes} bytes: more than 32-bit memory")
    # ascontiguousarray makes a scalar one-dimensional
    return np.ascontiguousarray(array).reshape(array.shape)


def _numpy_name(dtype: DType) -> str:
    return f'"{dtype}"' if dtype.is_numpy_own else f"ml_dtypes.{dtype}"
