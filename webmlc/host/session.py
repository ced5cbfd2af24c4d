"""Run a model with states: a session keeps them from run to run.

In: a loaded model. Out: a `Session`, the twin of the one in `runtime_js/session.js`. A state grows
by the rows of each run. Its memory is planned once, for the capacity of the session.

    session = model.session(capacity=1024)
    logits = session.run({"input_ids": prompt})["logits"]   # session.length is now prompt.size
    logits = session.run({"input_ids": next_token})["logits"]
    session.truncate(prompt.size)
    session.dispose()
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy

from webmlc.core.errors import InputError, UserError
from webmlc.host.bind import bind, shape_of
from webmlc.host.executor import Array, States
from webmlc.package.manifest import StatePort

if TYPE_CHECKING:
    from webmlc.host.load import Model


class Session:
    """One owner of the states of a model. Several sessions share the weights and the code."""

    def __init__(self, model: Model, capacity: int) -> None:
        if not model.manifest.length:
            raise UserError("this model has no states, so it has no sessions; call model.run")
        if capacity < 1:
            raise InputError(f"capacity is {capacity}: at least 1 is needed")
        self._model = model
        self._states: States | None = States(capacity)

    @property
    def states(self) -> States:
        """The record of the states. Raises `UserError` after `dispose`."""
        if self._states is None:
            raise UserError("this session was disposed of; open another with model.session")
        return self._states

    @property
    def capacity(self) -> int:
        """The number of rows for which there is memory."""
        return self.states.capacity

    @property
    def length(self) -> int:
        """The number of rows that the states hold."""
        return self.states.length

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model, and append to the states.

        Raises `InputError` as `Model.run` does, or if the capacity is exceeded. The session is
        unchanged then.
        """
        return self._model.run(inputs, self.states)

    def truncate(self, length: int) -> None:
        """Forget all rows after the first `length`."""
        if not 0 <= length <= self.length:
            raise InputError(f"length is {length}, expected a number from 0 to {self.length}")
        self.states.length = length

    def save(self) -> bytes:
        """The valid rows of all states, as a safetensors file."""
        rows = self._model.read_states(self.states)
        metadata = {"length": str(self.length)}
        return safetensors.numpy.save({n: rows[n] for n in sorted(rows)}, metadata)

    def load(self, data: bytes) -> None:
        """Replace the states by those that `save` returned, in any session of this model.

        Raises `InputError` if the data is of another model, or is longer than the capacity.
        """
        try:
            rows = {n: np.asarray(a) for n, a in safetensors.numpy.load(data).items()}
            header_bytes = int.from_bytes(data[:8], "little")
            length = _saved_length(data[8 : 8 + header_bytes])
        except (ValueError, KeyError, safetensors.SafetensorError) as error:
            raise InputError(f"the data is no saved session ({error})") from error
        if length > self.capacity:
            raise InputError(
                f"the saved session has {length} rows, but capacity is {self.capacity}"
            )
        self._model.write_states(self.states, rows, length)

    def dispose(self) -> None:
        """Free the memory of the states."""
        if self._states is not None:
            self._model.release(self._states)
            self._states = None


def run_alone(model: Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run a model with states without a session. If its states replace inputs and outputs, it takes
    and returns these.
    """
    with session_of(model, inputs) as (session, feeds, symbols):
        results = session.run(feeds)
        if ports := model.manifest.state_ports:
            states, name = model.read_states(session.states), model.manifest.length
            symbols[name] = session.length
            results |= {p.present: _present(p, states[p.past.buffer], symbols, name) for p in ports}
        return results


@contextmanager
def session_of(
    model: Model, inputs: Mapping[str, Array]
) -> Iterator[tuple[Session, dict[str, Array], dict[str, int]]]:
    """Open a session that holds the pasts in `inputs`, which may be missing, and that has room for
    one run. Yields also the other inputs and their symbols.
    """
    ports, name = model.manifest.state_ports, model.manifest.length
    pasts = {p.past.buffer: _past(p, inputs, name) for p in ports if p.past.name in inputs}
    feeds = {n: a for n, a in inputs.items() if n not in {p.past.name for p in ports}}
    if 0 < len(pasts) < len(ports):
        missing = next(p.past.name for p in ports if p.past.name not in inputs)
        raise InputError(f"input {missing!r} is missing, but other pasts are there")
    lengths = {len(rows) for rows in pasts.values()} or {0}
    if len(lengths) > 1:
        raise InputError(f"the pasts have different numbers of rows: {sorted(lengths)}")
    (length,) = lengths
    symbols, _ = bind(model.manifest, feeds, length)
    session = model.session(max(length + model.rows(symbols), 1))
    try:
        if length:
            model.write_states(session.states, pasts, length, symbols)
        yield session, feeds, symbols
    finally:
        session.dispose()


def _past(port: StatePort, inputs: Mapping[str, Array], length: str) -> Array:
    """The rows of a state that an input holds."""
    past = np.asarray(inputs[port.past.name])
    if past.dtype != port.past.dtype.numpy or past.ndim != len(port.past.shape):
        raise InputError(
            f"input {port.past.name!r} has dtype {past.dtype} and {past.ndim} dimensions, expected "
            f"{port.past.dtype} and {len(port.past.shape)}"
        )
    return np.ascontiguousarray(np.moveaxis(past, port.axis(length), 0))


def _present(port: StatePort, rows: Array, symbols: Mapping[str, int], length: str) -> Array:
    """The rows of a state as the output that it replaces. `symbols` hold after the run."""
    axis, shape = port.axis(length), list(shape_of(port.past, symbols))
    array = rows.view(port.past.dtype.numpy).reshape(shape[axis], *shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(array, 0, axis))


def _saved_length(header: bytes) -> int:
    """The number of rows that the header of a saved session states."""
    return int(json.loads(header)["__metadata__"]["length"])
