"""The values of a run that the host holds, and the segments that it executes with them.

In: the bytes of inputs and downloads by buffer, and the symbols so far. Out: further symbols,
values under other names, and the index of the next segment. The twin of this module is
`runtime_js/host_values.js`.

    Move((t,), (y,), ((3, n),)); Measure(y, (y_1,), (1,))     ->  symbols: y_1 = n
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import InputError, PackageError
from webmlc.host.bind import bind_from_memory
from webmlc.package.manifest import (
    BeginList,
    Bind,
    Collect,
    Jump,
    JumpUnless,
    Measure,
    Move,
    Program,
    Stack,
)
from webmlc.package.sizes import Size, evaluate, symbols_of

Array = NDArray[Any]
MAX_JUMPS = 1 << 22
"""The most jumps of a run, about as many as the iterations of its loops. A damaged package may jump
for ever. Chosen by hand: a loop that runs kernels takes minutes for as many iterations.
"""


@dataclass(slots=True)
class HostValues:
    """The `symbols` so far, the `bytes` of each value on the host, and the `shapes` of the values
    that a `Move` named. `lists` has the values that a `Collect` appended, with their shapes.
    `jumps` counts the jumps of the run.
    """

    program: Program
    symbols: dict[str, int]
    bytes: dict[str, Array]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lists: dict[str, list[tuple[Array, tuple[int, ...]]]] = field(default_factory=dict)
    jumps: int = 0

    def bind(self, segment: Bind | Measure) -> Mapping[str, int]:
        """Bind the symbols of a segment, and return them. Symbols of later segments are forgotten,
        because they belong to an earlier iteration of a loop.
        """
        if isinstance(segment, Bind):
            symbols = bind_from_memory(self.program, segment, self.read(segment.buffer))
        else:
            self.read(segment.buffer)
            shape = self.shapes[segment.buffer]
            pairs = zip(segment.symbols, segment.axes, strict=True)
            symbols = {symbol: shape[axis] for symbol, axis in pairs}
        bound = self.program.bound
        for symbol in bound[bound.index(segment.symbols[-1]) + 1 :]:
            self.symbols.pop(symbol, None)
        self.symbols |= symbols
        return symbols

    def execute(self, segment: Move | BeginList | Collect | Stack) -> None:
        """Execute a segment that holds values for later."""
        match segment:
            case Move():
                self._move(segment)
            case BeginList(target=target):
                self.lists[target] = []
            case Collect():
                value = self._shaped(segment.source, segment.target, segment.shape)
                self._list(segment.target).append(value)
            case Stack():
                self._stack(segment)

    def _move(self, segment: Move) -> None:
        """Give values further names."""
        parts = zip(segment.sources, segment.targets, segment.shapes, strict=True)
        values = [self._shaped(*part) for part in parts]
        for target, (data, shape) in zip(segment.targets, values, strict=True):
            self.bytes[target], self.shapes[target] = data, shape

    def _stack(self, segment: Stack) -> None:
        """Join the values of a list along a new axis. In an empty list, a size that only a value
        would bind is 0.

        Raises `InputError` if their shapes differ.
        """
        values, axis = self._list(segment.target), segment.axis
        del self.lists[segment.target]
        sizes = [s if symbols_of((s,)) <= self.symbols.keys() else 0 for s in segment.shape]
        shape = values[0][1] if values else self._evaluate(sizes)
        for _, other in values:
            if other != shape:
                raise InputError(
                    f"a loop scans values of shapes {shape} and {other} into {segment.target!r}: "
                    "all slices of a scan must have one shape"
                )
        rows = prod(shape[:axis])
        parts = [data.reshape(rows, -1) for data, _ in values if data.size]
        joined = np.concatenate(parts, axis=1) if parts else np.empty(0, np.uint8)
        self.bytes[segment.target] = joined.reshape(-1)
        self.shapes[segment.target] = (*shape[:axis], len(values), *shape[axis:])

    def read(self, name: str) -> Array:
        """The bytes of a value. Raises `PackageError` if no segment has computed it yet."""
        if name not in self.bytes:
            raise PackageError(f"manifest.json: {name!r} is read before a segment computes it")
        return self.bytes[name]

    def _list(self, name: str) -> list[tuple[Array, tuple[int, ...]]]:
        if name not in self.lists:
            raise PackageError(f"manifest.json: the list {name!r} is used before it begins")
        return self.lists[name]

    def _shaped(
        self, source: str, target: str, sizes: Iterable[Size]
    ) -> tuple[Array, tuple[int, ...]]:
        """The value of `source`, and its shape as the value of `target`. In a session, a value may
        have more bytes than its shape needs.

        Raises `PackageError` if it has another number of bytes.
        """
        data, shape = self.read(source), self._evaluate(sizes)
        needed = prod(shape) * self.program.item_bytes[target]
        if data.nbytes < needed or (data.nbytes > needed and not self._has_states):
            raise PackageError(
                f"manifest.json: {source!r} has {data.nbytes} bytes, but {target!r} of shape "
                f"{shape} has {needed}"
            )
        return data, shape

    @property
    def _has_states(self) -> bool:
        return any(buffer.kind == "state" for buffer in self.program.buffers)

    def _evaluate(self, shape: Iterable[Size]) -> tuple[int, ...]:
        """A shape with the symbols so far."""
        values = self.program.values(self.symbols)
        return tuple(evaluate(size, values) for size in shape)

    def next(self, segment: Jump | JumpUnless, following: int) -> int:
        """The index of the next segment: the target of the jump, or the following segment.

        Raises `InputError` if the run has jumped `MAX_JUMPS` times.
        """
        if isinstance(segment, JumpUnless) and self.read(segment.unless)[0]:
            return following
        self.jumps += 1
        if self.jumps > MAX_JUMPS:
            raise InputError(
                f"with these inputs a loop does not end: {MAX_JUMPS} jumps between segments. Give "
                "the loop of the model a trip count"
            )
        return segment.target
