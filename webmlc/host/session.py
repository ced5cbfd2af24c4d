"""Run a model with states: a session keeps them from run to run.

In: a loaded model. Out: a `Session`, the twin of `Session` in `runtime_js/session.js`. A state
grows by the rows of each run, or is replaced by each run. Its memory is planned once, for the
capacity of the session. A state that is replaced is zero at first.

    session = model.session(capacity=1024)
    logits = session.run({"input_ids": prompt})["logits"]   # session.length is now prompt.size
    logits = session.run({"input_ids": next_token})["logits"]
    session.truncate(prompt.size)
    session.dispose()

    session = model.session()                               # of a recurrent model
    speech = session.run({"input": samples})["output"]
    session.reset()
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy
from msgspec import structs

from webmlc.core.errors import InputError, UserError
from webmlc.host.bind import bind, chosen_ports, read_inputs, shape_of
from webmlc.host.executor import Array, States
from webmlc.package.manifest import Manifest, StatePort
from webmlc.package.sizes import evaluate

if TYPE_CHECKING:
    from webmlc.host.load import Model


class Session:
    """One owner of the states of a model. Several sessions share the weights and the code.

    Any number of threads may use a session: their calls take turns.
    """

    def __init__(self, model: Model, capacity: int | None) -> None:
        if not model.manifest.has_states:
            raise UserError("this model has no states, so it has no sessions; call model.run")
        if capacity is None:
            if model.manifest.length or model.manifest.capacity:
                raise InputError("capacity is missing: this model has states that grow")
            capacity = 1
        if capacity < 1:
            raise InputError(f"capacity is {capacity}: at least 1 is needed")
        self._model = model
        self._states = States(capacity)

    @property
    def states(self) -> States:
        """The record of the states. Raises `UserError` after `dispose`."""
        self._states.check_not_disposed()
        return self._states

    @property
    def capacity(self) -> int:
        """The number of rows for which there is memory."""
        return self.states.capacity

    @property
    def length(self) -> int:
        """The number of rows in each state that grows."""
        return self.states.length

    def run(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run the model, and append to the states, or replace them. Return its outputs, or only the
        outputs that `outputs` names.

        Raises `InputError` as `Model.run` does, or if the capacity is exceeded. The session is
        unchanged then, unless indices were out of range: such a run replaces states, too.
        """
        return self._model.run(inputs, outputs, states=self.states)

    def truncate(self, length: int) -> None:
        """Forget all rows after the first `length`.

        Raises `InputError` if the model has states that do not grow: these have no earlier value.
        """
        manifest = self._model.manifest
        if any(p.axis(manifest.length) is None for p in manifest.states):
            raise InputError("the model has states that do not grow: call reset, or load")
        self._model.exclusively(partial(self._truncate, length), self.states)

    def _truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise InputError(f"length is {length}, expected a number from 0 to {self.length}")
        self.states.length = length

    def reset(self) -> None:
        """Begin again, with no rows in states that grow, and zeros in all other states."""
        self._model.reset(self.states)

    def save(self) -> bytes:
        """The valid rows of all states, as a safetensors file."""
        rows, states = self._model.read_states(self.states)
        sizes = json.dumps(self._model.state_sizes(states.symbols or {}))
        metadata = {"length": str(states.length), "sizes": sizes}
        return safetensors.numpy.save({n: rows[n] for n in sorted(rows)}, metadata)

    def load(self, data: bytes) -> None:
        """Replace the states by the data that `save` returned in any session of this model.

        Raises `InputError` if the data is of another model, or is longer than the capacity.
        """
        try:
            rows = {n: np.asarray(a) for n, a in safetensors.numpy.load(data).items()}
            header_bytes = int.from_bytes(data[:8], "little")
            length, sizes = _saved_metadata(data[8 : 8 + header_bytes])
        except (ValueError, KeyError, safetensors.SafetensorError) as error:
            raise InputError(f"the data is no saved session ({error})") from error
        if length > self.capacity:
            raise InputError(
                f"the saved session has {length} rows, but capacity is {self.capacity}"
            )
        capacity = sizes.get(self._model.manifest.capacity, self.capacity)
        if capacity != self.capacity:
            raise InputError(f"the saved session has capacity {capacity}, not {self.capacity}")
        if rows or length:
            self._model.write_states(self.states, rows, length, sizes)
        else:  # the session had not begun
            self.reset()

    def dispose(self) -> None:
        """Free the memory of the states, at the end of a run that another thread is in."""
        if not self._states.is_disposed:
            self._model.release(self._states)


def run_alone(
    model: Model, inputs: Mapping[str, Array], outputs: Sequence[str] | None
) -> dict[str, Array]:
    """Run a model with states without a session. If its states replace inputs and outputs, the run
    takes the inputs, and returns the outputs, or only the outputs that `outputs` names.
    """
    presents = [structs.replace(port.past, name=port.present) for port in model.manifest.states]
    chosen = {port.name for port in chosen_ports((*model.manifest.outputs, *presents), outputs)}
    ports = [port for port in model.manifest.states if port.present in chosen]
    with session_of(model, inputs) as (session, feeds, symbols):
        results = session.run(feeds, [p.name for p in model.outputs if p.name in chosen])
        if ports:
            (rows, states), name = model.read_states(session.states), model.manifest.length
            if name:
                symbols[name] = states.length
            after = {**(states.symbols or {}), **symbols}
            results |= {
                p.present: _present(p, rows[p.past.buffer], after, model.manifest, session.capacity)
                for p in ports
            }
        return results


@contextmanager
def session_of(
    model: Model, inputs: Mapping[str, Array]
) -> Iterator[tuple[Session, dict[str, Array], dict[str, int]]]:
    """Open a session that holds the pasts in `inputs`, which may be missing, and that has room for
    one run. Yields also the other inputs and their symbols. Among the symbols, the capacity is the
    number of rows of the pasts that are buffers.
    """
    ports, name = model.manifest.states, model.manifest.length
    present = [port for port in ports if port.past.name in inputs]
    pasts = {p.past.buffer: _past(p, inputs, name) for p in present}
    feeds = {n: a for n, a in inputs.items() if n not in {p.past.name for p in ports}}
    if 0 < len(pasts) < len(ports):
        missing = next(p.past.name for p in ports if p.past.name not in inputs)
        raise InputError(f"input {missing!r} is missing, but other pasts are there")
    growing = [port.past.buffer for port in present if port.axis(name) is not None]
    lengths = {len(pasts[buffer]) for buffer in growing} or {0}
    if len(lengths) > 1:
        raise InputError(f"the pasts have different numbers of rows: {sorted(lengths)}")
    (length,) = lengths
    symbols = bind(model.manifest, read_inputs(model.manifest, feeds), length)
    new, stored = model.rows(symbols), {0}
    if symbol := model.manifest.capacity:
        places = [(p.past.buffer, p.axis(symbol)) for p in present]
        stored = {pasts[name].shape[axis] for name, axis in places if axis is not None} or {0}
        if len(stored) > 1:
            raise InputError(f"the pasts have different numbers of rows: {sorted(stored)}")
        new = max(new, *(evaluate(port.rows, symbols) for port in ports if port.rows is not None))
        symbols[symbol] = max(stored)
    for port in present:
        _check_replaced(port, inputs[port.past.name], symbols, name)
    session = Session(model, max(length, *stored) + new or 1)
    for port in present:
        axis = port.axis(symbol)
        if axis is not None:
            pasts[port.past.buffer] = _padded(pasts[port.past.buffer], axis, session.capacity)
    try:
        if pasts:
            model.write_states(session.states, pasts, length, symbols)
        yield session, feeds, symbols
    finally:
        session.dispose()


def _past(port: StatePort, inputs: Mapping[str, Array], length: str) -> Array:
    """The rows of a state that an input holds, or the whole state."""
    past = np.asarray(inputs[port.past.name])
    if past.dtype != port.past.dtype.numpy or past.ndim != len(port.past.shape):
        raise InputError(
            f"input {port.past.name!r} has dtype {past.dtype} and {past.ndim} dimensions, expected "
            f"{port.past.dtype} and {len(port.past.shape)}"
        )
    axis = port.axis(length)
    return np.ascontiguousarray(past if axis is None else np.moveaxis(past, axis, 0))


def _check_replaced(port: StatePort, past: Array, symbols: Mapping[str, int], length: str) -> None:
    """Raise `InputError` if the input for a state that does not grow has another shape."""
    expected = shape_of(port.past, symbols)
    if port.axis(length) is None and np.shape(past) != expected:
        raise InputError(
            f"input {port.past.name!r} has shape {list(np.shape(past))}, expected {list(expected)}"
        )


def _padded(past: Array, axis: int, rows: int) -> Array:
    """A past with zeros behind it, so that it has this number of rows along the axis."""
    widths = [(0, rows - past.shape[axis] if a == axis else 0) for a in range(past.ndim)]
    return np.pad(past, widths)


def _present(
    port: StatePort, rows: Array, symbols: Mapping[str, int], manifest: Manifest, capacity: int
) -> Array:
    """The rows of a state as the output that it replaces. `symbols` hold after the run, with the
    number of rows of the pasts as the capacity. `capacity` is the session's capacity.
    """
    axis, shape = port.axis(manifest.length), list(shape_of(port.past, symbols))
    buffer_axis = port.axis(manifest.capacity)
    if buffer_axis is not None and port.size is not None:
        shape[buffer_axis] = capacity
        whole = rows.view(port.past.dtype.numpy).reshape(shape)
        return whole.take(range(evaluate(port.size, symbols)), buffer_axis)
    if axis is None:
        return rows.view(port.past.dtype.numpy).reshape(shape)
    array = rows.view(port.past.dtype.numpy).reshape(shape[axis], *shape[:axis], *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(array, 0, axis))


def _saved_metadata(header: bytes) -> tuple[int, dict[str, int]]:
    """The number of rows that the header of a saved session states, and the sizes of its inputs."""
    metadata = json.loads(header)["__metadata__"]
    return int(metadata["length"]), json.loads(metadata.get("sizes", "{}"))
