"""Share a kernel's work out to threads.

In: a finished schedule of serial loops. Out: the same schedule with the outermost loop of every
nest parallel. Loops are fused first if the outermost loop alone would not balance, or may run only
once (a batch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

from msgspec import Struct

from webmlc.core.expr import Call, Expr, as_int
from webmlc.core.machine import Cpu
from webmlc.core.rewrite import variables
from webmlc.loops.ir import For, Seq, Stmt, blocks, loads, stores
from webmlc.schedule.analysis import operations
from webmlc.schedule.edit import locals_shared_with
from webmlc.schedule.rules.rule import Rule
from webmlc.schedule.rules.space import Product, Space
from webmlc.schedule.rules.tiling.nests import extent_of
from webmlc.schedule.schedule import Schedule

F = TypeVar("F")
P = TypeVar("P")


class Sharing(Struct, frozen=True, tag="shared"):
    """The parameters of how threads share a kernel's work."""

    kernel_operations: int
    """Scalar operations of the whole kernel from which threads share it."""
    iterations: int
    """Iterations that a parallel loop should have: loops are fused until it has."""
    loop_operations: int
    """Scalar operations below which a loop is not fused into the parallel one around it."""
    nest_operations: int
    """Scalar operations below which one thread runs a nest by itself."""
    part_operations: int
    """Scalar operations of a nest that is shared anew in each iteration of the loop around it."""


class Shared(Struct, frozen=True):
    """The parameters of a kernel's loops, and how threads share them."""

    kernel: Any
    """The parameters of the rule for one thread."""
    sharing: Sharing | None
    """How threads share the loops; `None`: one thread runs them all."""


def shared(
    rule: Rule[F, P, Cpu], are_independent: Callable[[F], bool] = lambda _: True
) -> Rule[F, Shared, Cpu]:
    """A rule for several threads: the rule for one thread, then its outermost loops are shared.
    Threads share a kernel only if its nests `are_independent`.
    """

    def space(facts: F, machine: Cpu) -> Product[Shared]:
        sharing = Space.of(
            Sharing,
            kernel_operations=(0, machine.parallel_operations) if are_independent(facts) else (),
            iterations=(4, machine.parallel_iterations, 16, 32),
            loop_operations=(0, machine.shared_loop_operations),
            nest_operations=(0, machine.shared_nest_operations),
            part_operations=(machine.inner_nest_operations,),
        )
        return Space.of(
            Shared, kernel=rule.space(facts, machine), sharing=Space.either(None, sharing)
        )

    def default(facts: F, machine: Cpu) -> Shared:
        sharing = Sharing(
            machine.parallel_operations,
            machine.parallel_iterations,
            machine.shared_loop_operations,
            machine.shared_nest_operations,
            machine.inner_nest_operations,
        )
        return Shared(rule.default(facts, machine), sharing if are_independent(facts) else None)

    def build(schedule: Schedule, facts: F, parameters: Shared) -> None:
        rule.build(schedule, facts, parameters.kernel)
        if parameters.sharing is not None:
            share_work(schedule, parameters.sharing)

    return Rule(rule.name, rule.match, space, default, build, needs_proof=rule.needs_proof)


MOST = 16
"""Of 16 operations of a loop's body, at least 15 must be in nests that are shared one by one: one
thread runs the remaining operations (an estimate)."""


def share_work(schedule: Schedule, sharing: Sharing) -> None:
    """Make one loop of every nest parallel, if the kernel has enough work."""
    if operations(schedule.function) < sharing.kernel_operations:
        return
    nests = _nests(schedule.function.body)
    while nests:
        nest = nests.pop()
        if locals_shared_with(schedule.function, nest):
            continue  # one tile: its results reach the next nest in one thread's memory
        if _operations(schedule, nest) < sharing.nest_operations:
            continue
        loops, last = _loops_to_share(schedule, nest, sharing)
        few = not _is_enough(schedule, nest, loops, sharing)
        parts = _parts_to_share(schedule, loops, last, sharing) if few else None
        if parts is not None:
            nests += parts
        elif loops:
            schedule.parallel(schedule.fuse(*loops) if len(loops) > 1 else loops[0])


def _parts_to_share(
    schedule: Schedule, loops: list[str], last: For, sharing: Sharing
) -> list[For] | None:
    """The nests inside of loops with too few iterations, if sharing out each nest is better. The
    nests exchange no values, and have nearly all operations of these loops. `None` if there are no
    such nests.
    """
    if not isinstance(last.body, Seq):
        return None
    parts = _independent_nests(last.body)
    if not loops:
        return parts
    work = [_operations(schedule, part) for part in parts]
    if sum(work) * MOST < _operations(schedule, last.body) * (MOST - 1):
        return None
    if _least_iterations(schedule, loops) == 1:
        return parts  # around them a batch, perhaps of one
    inside, _ = _loops_to_share(schedule, parts[work.index(max(work))], sharing)
    is_enough = _least_iterations(schedule, inside) >= sharing.iterations
    return parts if max(work) >= sharing.part_operations and is_enough else None


def _is_enough(schedule: Schedule, nest: For, loops: list[str], sharing: Sharing) -> bool:
    """True if the loops have enough iterations to balance threads. A symbolic loop counts as
    enough, unless it is outermost or runs along the first axis: it may then be a batch of one.
    """
    batch = _loops_of_first_axes(nest) | {nest.var.name}
    unknown = any(extent_of(schedule, loop) is None for loop in loops if loop not in batch)
    return unknown or _least_iterations(schedule, loops) >= sharing.iterations


def _least_iterations(schedule: Schedule, loops: list[str]) -> int:
    """The fewest iterations that some loops can have."""
    return prod(_literal_factor(schedule.extent(loop)) for loop in loops)


def _operations(schedule: Schedule, body: Stmt) -> int:
    return operations(replace(schedule.function, body=body))


def _independent_nests(body: Seq) -> list[For]:
    """The nests of `body` that exchange no values with its other statements."""
    written = [{store.buffer.name for store in stores(s)} for s in body.statements]
    read = [{load.buffer.name for load in loads(s)} for s in body.statements]

    def exchanges(a: int, b: int) -> bool:
        return bool(written[a] & read[b] or read[a] & written[b])

    return [
        nest
        for a, nest in enumerate(body.statements)
        if isinstance(nest, For) and not any(exchanges(a, b) for b in range(len(written)) if a != b)
    ]


def _nests(body: Stmt) -> list[For]:
    statements = body.statements if isinstance(body, Seq) else (body,)
    return [statement for statement in statements if isinstance(statement, For)]


def _loops_to_share(schedule: Schedule, nest: For, sharing: Sharing) -> tuple[list[str], For]:
    """The outermost loops of a nest that together have enough iterations, and the last loop that
    was looked at. Of symbolic loops nothing is known.
    """
    reduced = _reduction_loops(nest)
    chosen: list[str] = []
    iterations = 1
    loop = nest
    while iterations < sharing.iterations:
        name = loop.var.name
        if loop.kind != "serial" or name in reduced:
            break
        if chosen and _operations(schedule, loop) < sharing.loop_operations:
            break  # it would take a fused index apart for every few instructions
        if extent_of(schedule, name) != 1 or chosen:
            chosen.append(name)
            iterations *= _literal_factor(schedule.extent(name))
        if not isinstance(loop.body, For):
            break
        loop = loop.body
    return chosen, loop


def _literal_factor(extent: Expr) -> int:
    """The literal factors of an extent: the least it can be, but for none at all."""
    match extent:
        case Call(op="mul", args=(a, b)):
            return _literal_factor(a) * _literal_factor(b)
    return as_int(extent) or 1


def _loops_of_first_axes(nest: For) -> set[str]:
    """The loops of a nest that run along the first axis of some block."""
    firsts = [block.bindings[0] for block in blocks(nest) if block.bindings]
    return {var.name for binding in firsts for var in variables(binding)}


def _reduction_loops(nest: For) -> set[str]:
    """The loops of a nest that some reduction runs along."""
    return {
        var.name
        for block in blocks(nest)
        for axis, binding in block.bound_axes()
        if axis.kind == "reduce"
        for var in variables(binding)
    }
