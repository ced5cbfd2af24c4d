"""Trials of a small matmul, with candidates that are right, wrong or broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.schedule.rules import kernels as k
from webmlc.core.expr import Const, Var
from webmlc.core.machine import RELAXED, WEBGPU, Device, Machine
from webmlc.loops.ir import For, LoopFunction, Seq, Store
from webmlc.schedule.rules import match_kernel
from webmlc.target.webgpu.emit_shaders import Shaders
from webmlc.tune.measure.candidates import Candidate, candidate, code_of
from webmlc.tune.measure.make_trials import make_trial
from webmlc.tune.measure.trial import Protocol, Trial
from webmlc.tune.tasks import Task

QUICK = Protocol(rounds=3, grace=2, sample_ms=0.2, warmup_ms=0.5)
"""A protocol for tests, which ask what is measured but not how exactly."""
FAR = 1 << 28
"""The index of an element that lies behind the memory of every trial here."""


def matmul_task(device: Device = "wasm", rows: int = 48, machine: Machine | None = None) -> Task:
    """A product with bias and relu, whose right operand and bias are constants of which a model has
    so many that three calls read different ones.
    """
    default = RELAXED if device == "wasm" else WEBGPU
    match = match_kernel(k.matmul(rows, 32, 64), machine or default)
    assert match is not None
    constants = frozenset({"b", "c"})
    return Task("key", "matmul", match, (), constants, {}, 1, 3 * 4 * (64 * 32 + 32))


def good_candidates(task: Task, count: int) -> list[Candidate]:
    """The default schedule, and other members of the task's space with another text each."""
    default = candidate(task, task.match.default())
    texts = {default.text: default}
    for member in task.match.space().members():
        if len(texts) == count:
            break
        other = candidate(task, member)
        texts.setdefault(other.text, other)
    return list(texts.values())


def idle(original: Candidate) -> Candidate:
    """A candidate that writes nothing."""
    return _with_kernel(original, replace(original.kernel, body=Seq(())))


def trapping(original: Candidate) -> Candidate:
    """A candidate all of whose threads write outside of memory."""
    output, i = original.kernel.params[-1], Var("i")
    store = Store(output, (i + FAR,), Const(0.0, output.dtype))
    body = For(i, Const(64), store, kind="parallel")
    return _with_kernel(original, replace(original.kernel, body=body))


def _with_kernel(original: Candidate, kernel: LoopFunction) -> Candidate:
    task = matmul_task("webgpu" if isinstance(original.code, Shaders) else "wasm")
    return replace(original, kernel=kernel, code=code_of(task, kernel))


def trial_of(
    task: Task, candidates: Sequence[Candidate], threads: int = 1, protocol: Protocol = QUICK
) -> Trial:
    """A trial that is over soon."""
    return make_trial(task, candidates, threads, protocol)
