"""A trial: candidates of one kernel, ready to be measured by any engine, and their measurement.

A trial is plain data, so that it travels to another process, another machine or a browser's page.
Candidate 0 is the control: the default schedule, to which the other candidates are compared. An
engine

1. allocates `buffers` and fills them (`fill`);
2. checks every candidate: poisons the output buffers with bytes of `POISON`, runs the candidate
   once, and compares the outputs with those of candidate 0;
3. warms up: runs every candidate for `warmup_ms`;
4. chooses the number of repetitions in a sample: a sample of candidate 0 takes `sample_ms`, and ten
   times as long as a sample without repetitions. All candidates use this number, so that the cost
   of a sample itself favours no candidate;
5. takes samples in rounds: in each round, every candidate runs once, one after the other, so that a
   disturbance affects all alike. The first candidate of a round comes last in the next round, so
   that no place in the order is an advantage. A candidate drops out if its fastest sample is slower
   than `hopeless` times the fastest sample of all; in the first `grace` rounds, the limit is twice
   as high. Candidate 0 and the fastest other candidate never drop out. After `fewest` rounds, a
   round begins only if all samples together took less than `limit_ms`.

The engines are `engines/wasm.py` (wasmtime), `engines/webgpu.py` (wgpu-py), and `page/measure.js`
for every JavaScript engine. Every engine implements these steps, and nothing more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import convert
from numpy.typing import NDArray

from webmlc.core.dtypes import DType
from webmlc.core.machine import Device

POISON = 0x4D
"""The byte that fills outputs before a candidate is checked: an element that the candidate does not
write shows. 77 as an integer, 2.15e8 as a float32."""

_CHUNK = 1 << 16
"""Elements that are filled at once: their hashes fit a cache."""
HASH = 2654435761
"""Knuth's multiplicative hash: 2³² divided by the golden ratio."""


@dataclass(frozen=True, slots=True)
class TrialBuffer:
    """A buffer of `size` bytes at `offset`: in linear memory, or in a GPU's one storage buffer.

    `pattern` holds a few elements, as they lie in memory, that fill an input (see `fill`). An
    output has none, and is poisoned instead.
    """

    offset: int
    size: int
    dtype: DType
    pattern: bytes = b""

    @property
    def is_output(self) -> bool:
        """True if a candidate writes the buffer."""
        return not self.pattern


@dataclass(frozen=True, slots=True)
class Protocol:
    """How an engine measures (see the module). Counts are of rounds."""

    rounds: int = 12
    fewest: int = 3
    limit_ms: float = 2000.0
    grace: int = 3
    sample_ms: float = 2.0
    warmup_ms: float = 20.0
    hopeless: float = 1.5
    max_repeats: int = 10_000


PROTOCOL = Protocol()
"""How candidates are measured while a search goes on."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Candidates of one kernel, and the memory they run in.

    On `wasm`, `module` is one module (see `target.wasm.emit_module`) with `steps` steps for each
    candidate. The steps of a candidate are a loop of calls. Candidate i runs its calls `repeats`
    times with

        memory[repeats_address] = repeats; run(steps * i, steps * (i + 1), 0, threads)

    after the engine has written `words`, pairs of an address and the 32-bit words to store there.

    On `webgpu`, candidate i is the entry point `entries[i]` of the WGSL module `shaders[i]`, with
    the bindings of group 0: binding b is buffer `calls[c][b]`, for one call c after the other. If
    `uniform` is not empty, the last binding is a uniform buffer with these int32s.

    A candidate makes `len(calls)` calls per repetition. Each call reads its own copy of the
    constants, so that caches hold no more constants than in a run of the model.

    Outputs are equal if they have the same bytes. If `tolerance` is above 0, elements may differ.
    Floats of 32 or 64 bits may differ by this share of the largest finite magnitude of the output;
    other elements may differ by 1 if their bits are read as integers.
    """

    device: Device
    buffers: tuple[TrialBuffer, ...]
    calls: tuple[tuple[int, ...], ...]
    total_bytes: int
    threads: int = 1
    candidates: int = 0
    tolerance: float = 0.0
    protocol: Protocol = PROTOCOL
    module: bytes = b""
    pages: int = 0
    steps: int = 0
    repeats_address: int = 0
    words: tuple[tuple[int, tuple[int, ...]], ...] = ()
    shaders: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    read_only: tuple[bool, ...] = ()
    workgroups: tuple[tuple[int, int, int], ...] = ()
    uniform: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """What an engine measured: for each candidate, the milliseconds of one call in each of its
    rounds, and the reason why the candidate is disqualified, or "".

    A disqualified candidate has no times. A reason starts with "wrong: " if the results differ from
    candidate 0's results, and with "failed: " if the engine refused the candidate.
    """

    milliseconds: tuple[tuple[float, ...], ...]
    reasons: tuple[str, ...]


def measurement_of(data: Any, candidates: int) -> Measurement:
    """The measurement in JSON data that a page sent. Raises `ValueError` if it is none."""
    measurement = convert(data, Measurement)
    milliseconds, reasons = measurement.milliseconds, measurement.reasons
    if len(milliseconds) != candidates or len(reasons) != candidates:
        raise ValueError(f"a measurement of {len(milliseconds)} candidates, not {candidates}")
    if not all(min(row) > 0 and sum(row) < math.inf for row in milliseconds if row):  # no NaN
        raise ValueError("a measurement with times that are not positive")
    return measurement


def pattern_of(dtype: DType) -> bytes:
    """Elements that fill an input of a type: small integers that the type holds, at most from -2 to
    2. Floats multiply and add these integers exactly.
    """
    low, high = (0, 1) if dtype is DType.bool else dtype.limits
    return np.arange(max(-2, int(low)), min(2, int(high)) + 1).astype(dtype.numpy).tobytes()


def fill(buffer: TrialBuffer, seed: int) -> NDArray[np.uint8]:
    """The bytes of an input: element i is number hash(i + 1000·seed) of the pattern, where

        hash(x) = (x · 2654435761 mod 2³²) // 2¹⁶ mod (number of elements in the pattern)

    `seed` is the buffer's number in the trial.
    """
    pattern = np.frombuffer(buffer.pattern, np.uint8).reshape(-1, buffer.dtype.bytes)
    count = buffer.size // buffer.dtype.bytes
    filled = np.empty((count, buffer.dtype.bytes), np.uint8)
    for start in range(0, count, _CHUNK):
        index = np.arange(start, min(start + _CHUNK, count), dtype=np.uint32)
        hashed = (index + np.uint32(1000 * seed)) * np.uint32(HASH) >> np.uint32(16)
        filled[start : start + _CHUNK] = pattern[hashed % np.uint32(len(pattern))]
    return filled.reshape(-1)


def difference(actual: bytes, expected: bytes, dtype: DType, tolerance: float) -> str:
    """How two outputs differ, or "" where they are equal (see `Trial`)."""
    if actual == expected:
        return ""
    if tolerance == 0:
        return "the bytes of the results differ"
    if dtype not in (DType.float32, DType.float64):
        bits = np.dtype(f"i{dtype.bytes}")
        units = np.abs(
            np.frombuffer(actual, bits).astype(np.int64)
            - np.frombuffer(expected, bits).astype(np.int64)
        )
        return "" if units.max() <= 1 else f"the results differ by {units.max()} units"
    values = np.frombuffer(actual, dtype.numpy).astype(np.float64)
    reference = np.frombuffer(expected, dtype.numpy).astype(np.float64)
    is_same = (values == reference) | (np.isnan(values) & np.isnan(reference))
    magnitude = float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        errors = np.where(is_same, 0.0, np.abs(values - reference))
    worst = float(errors.max())  # NaN where only one of two is
    if worst <= tolerance * magnitude:
        return ""
    return f"the results differ by {worst:.3g}, where the largest is {magnitude:.3g}"
