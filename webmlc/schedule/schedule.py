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

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from webmlc.core.expr import Expr, Operand, Var
from webmlc.core.flags import verify_level
from webmlc.loops.ir import Block, For, LoopFunction, Scope, Stmt, blocks, walk_statements
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.nest import axis_variables
from webmlc.schedule.primitives import PRIMITIVES
from webmlc.schedule.primitives.partition import Copy
from webmlc.schedule.same import Same
from webmlc.schedule.trace import Step, Trace, arguments_of, step
from webmlc.schedule.tree import (
    fresh,
    loops_of,
    path_to_block,
    path_to_loop,
    rebind,
    symbol_ranges,
    used_names,
)
from webmlc.schedule.update import with_body


class Schedule:
    """A function and the steps that made it. Every method applies one primitive of the same name
    (see its file).
    """

    def __init__(self, function: LoopFunction) -> None:
        self.function = _with_unique_loops(Same(function))
        self.trace: Trace = []
        self._checks_steps = verify_level() >= 2

    def copy(self) -> Schedule:
        """A schedule at the same point, to try steps on."""
        other = Schedule(self.function)
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
            _apply(Same(self.function), primitive, _hashable(arguments))
        except ScheduleError:
            return False
        return True

    # -- loops -----------------------------------------------------------------------------------

    def split(self, loop: str, factors: Sequence[int | None]) -> list[str]:
        """Split a loop into a nest of `factors` iterations; returns the new loops."""
        return list(self.apply("split", loop, list(factors)))

    def overlap(self, loop: str, tiles: int, size: int) -> tuple[str, str]:
        """Run a loop as full tiles of `size`, with overlapping last tiles; returns the loop over
        tiles and the loop within a tile.
        """
        outer, inner = self.apply("overlap", loop, tiles, size)
        return outer, inner

    def partition(self, loop: str, at: Operand) -> tuple[Copy, Copy]:
        """Split the iterations of a loop into [0, at) and [at, extent); returns both parts."""
        first, last = self.apply("partition", loop, at)
        return first, last

    def reorder(self, *loops: str) -> None:
        """Put loops of one nest in this order, outermost first."""
        self.apply("reorder", *loops)

    def fuse(self, *loops: str) -> str:
        """Fuse perfectly nested loops; returns the fused loop."""
        return str(self.apply("fuse", *loops))

    def fission(self, loop: str, together: Sequence[str] = ()) -> list[str]:
        """Give each statement of a loop its own loop, but the statements of the blocks `together` a
        common loop; returns the loops.
        """
        arguments = (loop, list(together)) if together else (loop,)
        return list(self.apply("fission", *arguments))

    def add_unit_loop(self, block: str) -> str:
        """Put a loop of one iteration around a block; returns the loop."""
        return str(self.apply("add_unit_loop", block))

    def unroll(self, loop: str) -> None:
        """Write the body of a loop once for each iteration."""
        self.apply("unroll", loop)

    def round_up(self, loop: str, size: int) -> None:
        """Let a loop that ends with a temporary's dimension go on to a multiple of `size`."""
        self.apply("round_up", loop, size)

    def vectorize(self, loop: str) -> None:
        """Make the iterations of a loop the lanes of a vector."""
        self.apply("vectorize", loop)

    def parallel(self, loop: str) -> None:
        """Share the iterations of a loop out to threads."""
        self.apply("parallel", loop)

    def bind(self, loop: str, thread: str) -> None:
        """Bind a loop to a GPU axis."""
        self.apply("bind", loop, thread)

    # -- blocks ----------------------------------------------------------------------------------

    def cache_read(self, block: str, buffer: str, scope: Scope) -> str:
        """Let a block read a buffer through a copy of `scope`; returns the copying block."""
        return str(self.apply("cache_read", block, buffer, scope))

    def cache_write(self, block: str, scope: Scope) -> str:
        """Let a block write a buffer of `scope` that a new block copies out; returns the new
        block.
        """
        return str(self.apply("cache_write", block, scope))

    def prefetch(self, loop: str, buffer: str, times: Expr) -> str:
        """Bring the elements of a buffer that a loop's body reads into the cache before the body,
        once or not at all; returns the new block.
        """
        return str(self.apply("prefetch", loop, buffer, times))

    def set_scope(self, block: str, scope: Scope) -> None:
        """Put the temporary that a block writes into `scope`."""
        self.apply("set_scope", block, scope)

    def reuse_buffer(self, block: str, reader: str) -> None:
        """Let the temporary that a block writes lie in the buffer that its last reader writes."""
        self.apply("reuse_buffer", block, reader)

    def split_dimension(self, block: str, dimension: int, size: int) -> None:
        """Split a dimension of the temporary that a block writes, and the block axes along it."""
        self.apply("split_dimension", block, dimension, size)

    def compute_at(self, block: str, loop: str) -> None:
        """Move a producer under a loop of its consumer."""
        self.apply("compute_at", block, loop)

    def reverse_compute_at(self, block: str, loop: str) -> None:
        """Move a consumer under a loop of its producer."""
        self.apply("reverse_compute_at", block, loop)

    def compute_inline(self, block: str) -> None:
        """Compute a pointwise producer where it is read."""
        self.apply("compute_inline", block)

    def reverse_compute_inline(self, block: str) -> None:
        """Compute a pointwise consumer where its operand is computed."""
        self.apply("reverse_compute_inline", block)

    def decompose_reduction(self, block: str, loop: str) -> str:
        """Move the init of a reduction before a loop; returns the init block."""
        return str(self.apply("decompose_reduction", block, loop))

    def rfactor(self, loop: str, axis: int) -> str:
        """Reduce each iteration of a loop apart, then the results; returns the first block."""
        return str(self.apply("rfactor", loop, axis))

    def roll_maximum(self, block: str, *loops: str) -> tuple[str, str, str]:
        """Merge the loop of a maximum with the loops of sums of exponentials relative to it;
        returns the loop, and the blocks that keep the last maximum and compute the scale.
        """
        loop, before, scale = self.apply("roll_maximum", block, *loops)
        return loop, before, scale

    def blockize(self, loop: str) -> str:
        """Make one block of a loop and its body; returns the block."""
        return str(self.apply("blockize", loop))

    def tensorize(self, loop: str, intrinsic: str) -> str:
        """Replace a loop nest by an intrinsic of the same meaning; returns its block."""
        return str(self.apply("tensorize", loop, intrinsic))

    # -- steps -----------------------------------------------------------------------------------

    def apply(self, primitive: str, *arguments: Any) -> Any:
        """Apply a row of `PRIMITIVES` and record it; returns the names of the new loops or blocks,
        if any.
        """
        result = _apply(Same(self.function), primitive, _hashable(arguments))
        function, names = result if isinstance(result, tuple) else (result, None)
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


@lru_cache(maxsize=1024)
def _apply(function: Same, primitive: str, arguments: tuple[Any, ...]) -> Any:
    """The result of a primitive. Cached: a rule that matches a kernel tries steps that it then
    takes.
    """
    return PRIMITIVES[primitive](function.function, *arguments)


@lru_cache(maxsize=64)
def _with_unique_loops(function: Same) -> LoopFunction:
    """`unique_loops`, cached: the steps of two schedules of one function are the same steps."""
    return unique_loops(function.function)


def _hashable(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in arguments)


def replay(function: LoopFunction, trace: Iterable[Step]) -> LoopFunction:
    """The function that the steps of `trace` make of `function`."""
    schedule = Schedule(function)
    schedule.follow(trace)
    return schedule.function


def unique_loops(function: LoopFunction) -> LoopFunction:
    """`function` with different names for all its loops: two nests may both run over `i` in a
    program's text.
    """
    names = [s.var.name for s in walk_statements(function.body) if isinstance(s, For)]
    if len(set(names)) == len(names):
        return function
    taken_names = used_names(function)
    visited_names: set[str] = set()
    ranges = symbol_ranges(function)

    def visit(stmt: Stmt) -> Stmt:
        from webmlc.loops.ir import map_statements

        def rule(node: Stmt) -> Stmt | None:
            if not isinstance(node, For) or node.var.name not in visited_names:
                if isinstance(node, For):
                    visited_names.add(node.var.name)
                return None
            var = Var(fresh(node.var.name, taken_names))
            body = rebind(node.body, {node.var: var}, ranges)
            return For(var, node.extent, body, node.kind, node.thread)

        return map_statements(stmt, rule)

    return with_body(function, visit(function.body))
