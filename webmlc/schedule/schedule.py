"""The schedule of a loop function: primitives applied step by step, recorded as a trace that
replays.

Loops and blocks are addressed by name (a loop by its variable), so a step is plain data:

    schedule = Schedule(matmul)
    i, j, k = schedule.loops("C")
    outer, inner = schedule.split(j, [None, 8])
    schedule.vectorize(inner)
    assert replay(matmul, schedule.trace) == schedule.function

`WEBMLC_VERIFY=2` verifies the function after every step, and runs it before and after on small
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from webmlc.core.expr import Expr, Var
from webmlc.core.flags import verify_level
from webmlc.core.machine import Machine
from webmlc.loops.ir import Block, For, LoopFunction, Stmt, blocks, map_statements
from webmlc.schedule.edit import Edit
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.nest import axis_variables
from webmlc.schedule.primitives.cache import cache_read, cache_write
from webmlc.schedule.primitives.compute_at import compute_at, reverse_compute_at
from webmlc.schedule.primitives.fission import fission
from webmlc.schedule.primitives.inline import compute_inline, reverse_compute_inline
from webmlc.schedule.primitives.loop_kinds import bind, parallel, unroll, vectorize
from webmlc.schedule.primitives.overlap import overlap
from webmlc.schedule.primitives.partition import partition
from webmlc.schedule.primitives.prefetch import prefetch
from webmlc.schedule.primitives.reduction import decompose_reduction, rfactor
from webmlc.schedule.primitives.reorder import reorder
from webmlc.schedule.primitives.roll_maximum import roll_maximum
from webmlc.schedule.primitives.split import add_unit_loop, fuse, split
from webmlc.schedule.primitives.temporaries import (
    reuse_buffer,
    round_up,
    set_scope,
    split_dimension,
)
from webmlc.schedule.primitives.tensorize import blockize, tensorize
from webmlc.schedule.trace import Step, Trace, arguments_of, step
from webmlc.schedule.tree import (
    cached_by_identity,
    fresh,
    loop_names,
    loops_of,
    path_to_block,
    path_to_loop,
    ranges_along,
    rebind,
    with_body,
)

P = ParamSpec("P")
R = TypeVar("R")


class Primitive(Generic[P, R]):
    """A method of `Schedule` that applies a primitive and records the step. The function's name,
    signature and docstring are the method's, without the edit.
    """

    def __init__(self, function: Callable[Concatenate[Edit, P], R]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, schedule: None, owner: type) -> Self: ...
    @overload
    def __get__(self, schedule: Schedule, owner: type) -> Callable[P, R]: ...
    def __get__(self, schedule: Schedule | None, owner: type) -> Any:
        return self if schedule is None else partial(schedule.apply, self.name)

    def positional(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments as a step records them: in order, without names."""
        return signature(self.function).bind(None, *arguments, **named).args[1:]


class Schedule:
    """A function and the steps that made it. A schedule for a `machine` refuses instructions that
    the machine lacks.
    """

    def __init__(self, function: LoopFunction, machine: Machine | None = None) -> None:
        self.function = unique_loops(function)
        self.machine = machine
        self.trace: Trace = []
        self._checks_steps = verify_level() >= 2

    def copy(self) -> Schedule:
        """A schedule at the same point, to try steps on."""
        other = Schedule(self.function, self.machine)
        other.trace = list(self.trace)
        return other

    # -- questions -------------------------------------------------------------------------------

    def blocks(self) -> list[str]:
        """The names of the blocks, in program order."""
        return [block.name for block in blocks(self.function.body)]

    def loops(self, block: str) -> list[str]:
        """The names of the loops around `block`, outermost first, up to the block that encloses
        it.
        """
        path, _ = path_to_block(self.function, "loops", block)
        return [loop.var.name for loop in loops_of(path)]

    def reduce_loops(self, block: str) -> list[str]:
        """The loops that a block's reduction runs along, outermost first."""
        along = {var.name for var in axis_variables(self.block(block), "reduce")}
        return [loop for loop in self.loops(block) if loop in along]

    def block(self, name: str) -> Block:
        """The block called `name`."""
        return path_to_block(self.function, "block", name)[1]

    def loop(self, name: str) -> For:
        """The loop called `name`."""
        return path_to_loop(self.function, "loop", name)[1]

    def extent(self, loop: str) -> Expr:
        """How often `loop` runs."""
        return self.loop(loop).extent

    def allows(self, primitive: str, *arguments: Any) -> bool:
        """True if a primitive accepts a step, which is not applied."""
        try:
            _apply(self.function, primitive, _hashable(arguments), self.machine)
        except ScheduleError:
            return False
        return True

    # -- primitives: a row each ------------------------------------------------------------------

    add_unit_loop = Primitive(add_unit_loop)
    bind = Primitive(bind)
    blockize = Primitive(blockize)
    cache_read = Primitive(cache_read)
    cache_write = Primitive(cache_write)
    compute_at = Primitive(compute_at)
    compute_inline = Primitive(compute_inline)
    decompose_reduction = Primitive(decompose_reduction)
    fission = Primitive(fission)
    fuse = Primitive(fuse)
    overlap = Primitive(overlap)
    parallel = Primitive(parallel)
    partition = Primitive(partition)
    prefetch = Primitive(prefetch)
    reorder = Primitive(reorder)
    reuse_buffer = Primitive(reuse_buffer)
    reverse_compute_at = Primitive(reverse_compute_at)
    reverse_compute_inline = Primitive(reverse_compute_inline)
    rfactor = Primitive(rfactor)
    roll_maximum = Primitive(roll_maximum)
    round_up = Primitive(round_up)
    set_scope = Primitive(set_scope)
    split = Primitive(split)
    split_dimension = Primitive(split_dimension)
    tensorize = Primitive(tensorize)
    unroll = Primitive(unroll)
    vectorize = Primitive(vectorize)

    # -- steps -----------------------------------------------------------------------------------

    def apply(self, primitive: str, *arguments: Any, **named: Any) -> Any:
        """Apply a row of `PRIMITIVES` and record it; returns the names of the new loops or blocks,
        if any.
        """
        if named:
            arguments = PRIMITIVES[primitive].positional(arguments, named)
        function, names = _apply(self.function, primitive, _hashable(arguments), self.machine)
        if self._checks_steps:
            self._check(function, step(primitive, arguments))
        self.function = function
        self.trace.append(step(primitive, arguments))
        return names

    def follow(self, trace: Iterable[Step]) -> None:
        """Apply the steps of a trace."""
        for recorded in trace:
            self.apply(recorded["primitive"], *arguments_of(recorded))

    def _check(self, after: LoopFunction, recorded: Step) -> None:
        from webmlc.schedule.check_step import check_step

        check_step(self.function, after, recorded, run=True)


PRIMITIVES: dict[str, Primitive[..., Any]] = {
    name: row for name, row in vars(Schedule).items() if isinstance(row, Primitive)
}
"""The primitives by name."""


@cached_by_identity(maxsize=1024)
def _apply(
    function: LoopFunction, primitive: str, arguments: tuple[Any, ...], machine: Machine | None
) -> tuple[LoopFunction, Any]:
    """The function after a step, and the names that the primitive returns. Cached: a rule that
    matches a kernel tries steps that it then takes.
    """
    edit = Edit(primitive, function, machine)
    names = PRIMITIVES[primitive].function(edit, *arguments)
    return edit.function, names


def forget_steps() -> None:
    """Forget the cached steps: an intrinsic may have another meaning now."""
    _apply.cache_clear()  # type: ignore[attr-defined]


def _hashable(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in arguments)


def replay(function: LoopFunction, trace: Iterable[Step]) -> LoopFunction:
    """The function that the steps of `trace` make of `function`."""
    schedule = Schedule(function)
    schedule.follow(trace)
    return schedule.function


@cached_by_identity(maxsize=64)
def unique_loops(function: LoopFunction) -> LoopFunction:
    """`function` with different names for all its loops: two nests may both run over `i` in a
    program's text. Cached: the steps of two schedules of one function are the same steps.
    """
    names = loop_names(function)
    if len(set(names)) == len(names):
        return function
    taken_names = function.used_names()
    visited_names: set[str] = set()
    ranges = ranges_along(function, ())

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For):
            return None
        if node.var.name not in visited_names:
            visited_names.add(node.var.name)
            return None
        var = Var(fresh(node.var.name, taken_names))
        return replace(node, var=var, body=rebind(node.body, {node.var: var}, ranges))

    return with_body(function, map_statements(function.body, rule))
