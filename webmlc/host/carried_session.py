"""Run a model whose session carries outputs to the inputs of the next run, on the host.

In: a loaded model of which `Manifest.carried` pairs inputs and outputs. Out: a `CarriedSession`,
the twin of `CarriedSession` in `runtime_js/carried_session.js`. The values are empty at first, and
have any size later.

    session = model.session()                                   # of a merged decoder
    first = {"input_ids": prompt, "use_cache_branch": np.array([False])}
    logits = session.run(first)["logits"]                       # session.length is now prompt.size
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from webmlc.core.errors import InputError, UserError
from webmlc.core.turns import Turns
from webmlc.host.bind import check_names, chosen_ports, shape_of

if TYPE_CHECKING:
    from webmlc.host.load import Model

Array = NDArray[Any]
T = TypeVar("T")
UNLIMITED = (1 << 31) - 1
"""The default capacity: the most rows that a tensor may have."""


class CarriedSession:
    """One owner of the values that a model carries from run to run.

    Any number of threads may use a session: their calls take turns.
    """

    def __init__(self, model: Model, capacity: int) -> None:
        if capacity < 1:
            raise InputError(f"capacity is {capacity}: at least 1 is needed")
        manifest = model.manifest
        self.capacity = capacity
        self._model, self._turns, self._is_disposed = model, Turns(), False
        self._carried = {pair.input: pair.output for pair in manifest.carried}
        self._ports = [port for port in manifest.inputs if port.name not in self._carried]
        self._pasts = [port for port in manifest.inputs if port.name in self._carried]
        self._values: dict[str, Array] = {}
        sizes = {size for port in self._ports for size in port.shape if isinstance(size, str)}
        self._symbols = {symbol.name for symbol in manifest.symbols}
        free = self._symbols - sizes
        candidates = (size for port in self._pasts for size in port.shape)
        self._length_symbol = next((s for s in candidates if isinstance(s, str) and s in free), "")

    @property
    def length(self) -> int:
        """The number of rows of the values that grow with the first of them."""
        return self._length_of(self._values)

    def run(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run the model, and carry its presents. Return its other outputs, or only the outputs that
        `outputs` names.

        Raises `InputError` as `Model.run` does, or if the capacity is exceeded. The session is
        unchanged then.
        """
        return self._take(partial(self._run, inputs, outputs))

    def _run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None) -> dict[str, Array]:
        check_names(self._ports, inputs)
        presents = list(self._carried.values())
        outputs_of_model = self._model.manifest.model_outputs
        visible = [port for port in outputs_of_model if port.name not in presents]
        names = [port.name for port in chosen_ports(visible, outputs)]
        pasts = self._values or self._empty(inputs)
        results = self._model.run({**inputs, **pasts}, [*names, *presents])
        values = {
            past: results[present] if results[present].size else pasts[past]
            for past, present in self._carried.items()
        }
        length = self._length_of(values)
        if length > self.capacity:
            raise InputError(
                f"the run leaves {length} rows, but the session has a capacity of {self.capacity}; "
                "open a session with a larger capacity, or truncate it"
            )
        self._values = values
        return {name: results[name] for name in names}

    def _empty(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The values before the first run: sizes that no other input determines are 0."""
        symbols = dict.fromkeys(self._symbols, 0)
        for port in self._ports:
            for size, extent in zip(port.shape, np.shape(inputs[port.name]), strict=False):
                if isinstance(size, str):
                    symbols[size] = extent
        return {p.name: np.zeros(shape_of(p, symbols), p.dtype.numpy) for p in self._pasts}

    def _length_of(self, values: Mapping[str, Array]) -> int:
        for port in self._pasts:
            if port.name in values and self._length_symbol in port.shape:
                return int(values[port.name].shape[port.shape.index(self._length_symbol)])
        return 0

    def truncate(self, length: int) -> None:
        """Forget all rows after the first `length`.

        Raises `InputError` if the values have fewer rows.
        """
        self._take(partial(self._truncate, length))

    def _truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise InputError(f"length is {length}, expected a number from 0 to {self.length}")
        for port in self._pasts:
            if port.name in self._values and self._length_symbol in port.shape:
                axis = port.shape.index(self._length_symbol)
                self._values[port.name] = self._values[port.name].take(range(length), axis)

    def reset(self) -> None:
        """Begin again, without values."""
        self._take(self._values.clear)

    def save(self) -> bytes:
        """The values, as a safetensors file."""
        values = self._take(lambda: dict(self._values))
        return safetensors.numpy.save({n: np.ascontiguousarray(v) for n, v in values.items()})

    def load(self, data: bytes) -> None:
        """Replace the values by the data that `save` returned in any session of this model.

        Raises `InputError` if the data is of another model, or is longer than the capacity.
        """
        try:
            values = safetensors.numpy.load(data)
        except (ValueError, safetensors.SafetensorError) as error:
            raise InputError(f"the data is no saved session ({error})") from error
        types = {p.name: (p.dtype.numpy, len(p.shape)) for p in self._pasts if values}
        if types != {name: (value.dtype, value.ndim) for name, value in values.items()}:
            raise InputError("the saved values are not those of this model")
        if self._length_of(values) > self.capacity:
            raise InputError(
                f"the saved session has {self._length_of(values)} rows, but capacity is "
                f"{self.capacity}"
            )
        self._take(partial(self._replace, values))

    def _replace(self, values: dict[str, Array]) -> None:
        self._values = values

    def dispose(self) -> None:
        """Free the values."""
        self._is_disposed = True
        self._turns.later(self._values.clear)

    def _take(self, function: Callable[[], T]) -> T:
        if self._is_disposed:
            raise UserError("this session was disposed of; open another with model.session")
        return self._turns.take(function)
