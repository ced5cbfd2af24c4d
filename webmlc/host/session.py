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
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy

from webmlc.core.errors import InputError, UserError
from webmlc.host.executor import Array, States

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


def _saved_length(header: bytes) -> int:
    """The number of rows that the header of a saved session states."""
    return int(json.loads(header)["__metadata__"]["length"])
