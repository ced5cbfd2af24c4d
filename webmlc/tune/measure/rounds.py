"""Check, warm up and time the candidates of a trial in rounds: steps 2 to 5 of every engine.

In: a trial, and a `Runner` that holds its candidates ready to run. Out: a `Measurement`. The twin
for JavaScript engines is `page/measure.js`.
"""

from __future__ import annotations

import math
import typing

from webmlc.tune.measure.trial import Measurement, Protocol, Trial, difference

SHORTEST_MS = 1e-6
"""Milliseconds that stand for a time too short for the timer."""

OVERHEADS = 10
"""A sample takes at least this many times as long as an empty sample: the time of submitting work
to a GPU says nothing of a kernel."""

MAX_GROWTH = 8
"""How many times as often a candidate repeats in the next sample of its warm-up, at most."""


class EngineError(Exception):
    """A candidate that the engine refuses to load or to run."""


class Runner(typing.Protocol):
    """The candidates of a trial, ready to run."""

    def outputs(self, candidate: int) -> list[bytes]:
        """Poison the output buffers, run the candidate once, and return them, in order.

        Raises `EngineError`.
        """

    def sample(self, candidate: int, repeats: int) -> float:
        """The milliseconds that `repeats` repetitions of the candidate take.

        Raises `EngineError`.
        """

    def overhead(self) -> float:
        """The milliseconds of a sample without repetitions, after `outputs(0)`."""


def measure(trial: Trial, runner: Runner) -> Measurement:
    """Measure the candidates of a trial. Raises `EngineError` if candidate 0 does not run."""
    reasons = ["" for _ in range(trial.candidates)]
    control = runner.outputs(0)
    for candidate in range(1, trial.candidates):
        try:
            reasons[candidate] = _mismatch(trial, runner.outputs(candidate), control)
        except EngineError as error:
            reasons[candidate] = f"failed: {error}"
    candidates = [c for c in range(trial.candidates) if not reasons[c]]
    overhead = runner.overhead()
    repeats, *_ = [_warm_up(trial.protocol, runner, c, overhead) for c in candidates]
    samples: list[list[float]] = [[] for _ in range(trial.candidates)]
    spent = 0.0
    for number in range(trial.protocol.rounds):
        if number >= trial.protocol.fewest and spent >= trial.protocol.limit_ms:
            break
        for candidate in candidates:
            milliseconds = max(runner.sample(candidate, repeats), SHORTEST_MS)
            samples[candidate].append(milliseconds / (repeats * len(trial.calls)))
            spent += milliseconds
        ranked = sorted(candidates, key=lambda c: min(samples[c]))
        limit = min(samples[ranked[0]]) * trial.protocol.hopeless
        limit *= 2 if number + 1 < trial.protocol.grace else 1
        survivors = {0, *[c for c in ranked if c != 0][:1]}
        candidates = [c for c in candidates if c in survivors or min(samples[c]) <= limit]
        candidates.append(candidates.pop(0))
    return Measurement(tuple(map(tuple, samples)), tuple(reasons))


def _mismatch(trial: Trial, actual: list[bytes], expected: list[bytes]) -> str:
    """Why a candidate's outputs are wrong, or ""."""
    types = [buffer.dtype for buffer in trial.buffers if buffer.is_output]
    for a, e, dtype in zip(actual, expected, types, strict=True):
        if text := difference(a, e, dtype, trial.tolerance):
            return f"wrong: {text}"
    return ""


def _warm_up(protocol: Protocol, runner: Runner, candidate: int, overhead: float) -> int:
    """Warm a candidate up. Returns the number of repetitions that makes a sample long enough."""
    sample_ms = max(protocol.sample_ms, OVERHEADS * overhead)
    repeats, spent = 1, 0.0
    while True:
        milliseconds = max(runner.sample(candidate, repeats), SHORTEST_MS)
        spent += milliseconds
        kernel_ms = max(milliseconds - overhead, milliseconds / OVERHEADS)
        fitting = math.ceil(repeats * sample_ms / kernel_ms)
        fitting = min(max(1, fitting), protocol.max_repeats)
        if spent >= protocol.warmup_ms:
            return fitting
        repeats = min(fitting, MAX_GROWTH * repeats)
