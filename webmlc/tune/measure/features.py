"""Describe a lowered kernel by numbers, from which the cost model predicts its time.

In: a lowered function and the values of its symbols. Out: one number for each of `NAMES`. Counts
are the logarithms of counts in one run: a loop counts as often as its extent says, and both
branches of a condition count. The kinds of numbers follow the features of Ansor (Zheng et al.,
"Ansor: Generating High-Performance Tensor Programs for Deep Learning", 2020, appendix B).

    vector = features(candidate.kernel, task.all_sizes)
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from webmlc.core.bounds import Interval, bounds
from webmlc.core.expr import Call, Expr, Var
from webmlc.core.instruction import InstructionCall
from webmlc.core.rewrite import variables, walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.count_work import buffer_bytes
from webmlc.loops.ir import (
    Barrier,
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
)
from webmlc.target.registers import register_lanes

_COUNTS = (
    "vector operations",
    "scalar operations",
    "expensive operations",
    "vector loads",
    "scalar loads",
    "bytes loaded",
    "vector stores",
    "scalar stores",
    "bytes stored",
    "register moves",
    "iterations",
    "loop entries",
    "conditions",
    "barriers",
    "statements",
)
"""Counts of operations and accesses, each counted as often as it runs. `statements` are the
statements of the code, each counted once."""

NAMES = (
    *_COUNTS,
    "bytes of parameters",
    "bytes of temporaries",
    "bytes of shared memory",
    "registers",
    "iterations in parallel",
    "threads of a workgroup",
    "iterations of an inner loop",
    "operations per load",
    "operations per iteration",
    "reuse of parameters",
)
"""The meaning of each number of `features`."""


def features(function: LoopFunction, sizes: Mapping[str, int]) -> NDArray[np.float32]:
    """The features of a lowered function, float32 of shape [len(NAMES)]."""
    counting = _Counting(frozenset(register_lanes(function)))
    values = {s: Interval(sizes[s.name], sizes[s.name]) for s in function.symbols}
    counting.statement(function.body, _Place(values))
    counts = counting.counts
    operations = counts["vector operations"] + counts["scalar operations"]
    loads = counts["vector loads"] + counts["scalar loads"]
    parameter_bytes = sum(buffer_bytes(b, sizes) for b in function.params)
    scopes: Counter[str] = Counter()
    for buffer in function.allocations:
        if buffer not in counting.registers:
            scopes[buffer.scope] += buffer_bytes(buffer, sizes)
    derived = (
        parameter_bytes,
        scopes["global"] + scopes["local"],
        scopes["shared"],
        len(counting.registers),
        counting.parallel,
        counting.threads,
        counts["inner iterations"] / max(1, counts["inner entries"]),
        operations / max(1, loads),
        operations / max(1, counts["iterations"]),
        (counts["bytes loaded"] + counts["bytes stored"]) / max(1, parameter_bytes),
    )
    numbers = [*(counts[name] for name in _COUNTS), *derived]
    return np.log2(1 + np.array(numbers, np.float64)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Place:
    """The ranges of the variables around a statement, and how often it runs."""

    ranges: Mapping[Var, Interval]
    times: float = 1.0
    parallel: float = 1.0


@dataclass(slots=True)
class _Counting:
    """The counts so far."""

    registers: frozenset[Buffer]
    counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    parallel: float = 1.0
    threads: float = 1.0

    def add(self, name: str, amount: float) -> None:
        self.counts[name] += amount

    def statement(self, stmt: Stmt, place: _Place) -> None:
        """Count a statement and the statements inside it."""
        self.add("statements", 1)
        for expr in expressions(stmt):
            self.expression(expr, place.times)
        match stmt:
            case Seq(statements=statements):
                for child in statements:
                    self.statement(child, place)
            case Store(buffer=buffer, indices=indices):
                self.access("store", buffer, indices, place.times)
            case For():
                self.loop(stmt, place)
            case If(then=then, otherwise=otherwise):
                self.add("conditions", place.times)
                self.statement(then, place)
                if otherwise is not None:
                    self.statement(otherwise, place)
            case Let(var=var, value=value, body=body):
                ranges = {**place.ranges, var: _range(value, place.ranges)}
                self.statement(body, replace(place, ranges=ranges))
            case Barrier():
                self.add("barriers", place.times)

    def loop(self, loop: For, place: _Place) -> None:
        """Count a loop; a loop over threads or over parallel iterations has no counter of its
        own.
        """
        extent = max(0.0, _range(loop.extent, place.ranges).high)
        if not math.isfinite(extent):
            extent = 1.0
        ranges = {**place.ranges, loop.var: Interval(0, int(max(0, extent - 1)))}
        parallel = place.parallel
        if loop.kind in ("parallel", "thread_binding"):
            parallel *= extent
            self.parallel = max(self.parallel, parallel)
            if loop.thread is not None and loop.thread.startswith("threadIdx"):
                self.threads = max(self.threads, self.threads * extent)
        else:
            self.add("loop entries", place.times)
            self.add("iterations", place.times * extent)
            if not _contains_loop(loop.body):
                self.add("inner entries", place.times)
                self.add("inner iterations", place.times * extent)
        self.statement(loop.body, _Place(ranges, place.times * extent, parallel))

    def expression(self, root: Expr, times: float) -> None:
        """Count the operations and the loads of an expression."""
        for node in walk(root):
            match node:
                case Load(buffer=buffer, indices=indices):
                    self.access("load", buffer, indices, times)
                case Call() | InstructionCall():
                    self.add("vector operations" if node.lanes > 1 else "scalar operations", times)
                    if (cost := _cost(node)) > 1:
                        self.add("expensive operations", times * cost)

    def access(self, kind: str, buffer: Buffer, indices: tuple[Expr, ...], times: float) -> None:
        """Count a load or a store."""
        if buffer in self.registers:
            self.add("register moves", times)
            return
        lanes = max((index.lanes for index in indices), default=1)
        self.add(f"{'vector' if lanes > 1 else 'scalar'} {kind}s", times)
        self.add(
            f"bytes {'loaded' if kind == 'load' else 'stored'}", times * lanes * buffer.dtype.bytes
        )


def _cost(node: Call | InstructionCall) -> int:
    """The cost of an operator. An instruction costs as much as the operators of its meaning that
    are no additions.
    """
    if isinstance(node, Call):
        return SCALAR_OPERATORS[node.op].cost if node.op in SCALAR_OPERATORS else 1
    calls = (part for part in walk(node.instruction.meaning) if isinstance(part, Call))
    return sum(cost for cost in map(_cost, calls) if cost > 1)


def _range(value: Expr, ranges: Mapping[Var, Interval]) -> Interval:
    """The values of an index expression, as far as the variables around it tell."""
    if any(isinstance(node, Load) for node in walk(value)):
        return Interval(-math.inf, math.inf)
    return bounds(value, {v: ranges[v] for v in variables(value) if v in ranges})


def _contains_loop(stmt: Stmt) -> bool:
    match stmt:
        case For():
            return True
        case Seq(statements=statements):
            return any(map(_contains_loop, statements))
        case If(then=then, otherwise=otherwise):
            return _contains_loop(then) or (otherwise is not None and _contains_loop(otherwise))
        case Let(body=body):
            return _contains_loop(body)
    return False
