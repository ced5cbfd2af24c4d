"""`tir`: schedules of programs by hand, with TVM's names.

    schedule = tir.Schedule(mm_relu)
    i, j, k = schedule.get_loops("Y")
    j0, j1 = schedule.split(j, factors=[None, 8])
    schedule.reorder(i, j0, k, j1)
    schedule.vectorize(j1)
    print(schedule)                  # the program now; schedule.trace is plain data, and replays

Blocks and loops are names, so a trace is plain data. Every primitive checks that the program keeps
its meaning, and else raises `ScheduleError`, which shows the place. The primitives are the methods
of `schedule.schedule.Schedule`; this class adds TVM's names for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from webmlc.core.errors import UserError
from webmlc.core.expr import Expr, as_int
from webmlc.core.machine import MACHINES, Machine
from webmlc.loops.ir import (
    THREAD_AXES,
    Block,
    LoopFunction,
    Scope,
    blocks,
    child_statements,
    stores,
    walk_statements,
)
from webmlc.loops.ir import loads as loads_of
from webmlc.loops.print_text import print_function
from webmlc.programs.ir_module import IRModule
from webmlc.programs.script import Program
from webmlc.programs.tensor_intrin import TensorIntrin
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.tiling.cover import divisors
from webmlc.schedule.schedule import Schedule as _Schedule
from webmlc.schedule.trace import Step

__all__ = [
    "IRModule",
    "PrimFunc",
    "Schedule",
    "ScheduleError",
    "TensorIntrin",
    "perfect_tiles",
    "replay",
]

PrimFunc = Program
"""TVM's name of a program."""


class Schedule(_Schedule):
    """A schedule of a program (see the module), which `origin` is before the first step.
    `debug_mask` and its like of TVM are not taken.

    A schedule for a machine, by its name (`core.machine.MACHINES`), refuses intrinsics that the
    machine lacks.
    """

    def __init__(
        self, program: Program | LoopFunction | IRModule, machine: str | Machine | None = None
    ) -> None:
        if isinstance(program, IRModule):
            program = program.only_kernel()
        function = program.function if isinstance(program, Program) else program
        if not isinstance(function, LoopFunction):
            kind = type(program).__name__
            raise UserError(f"a schedule takes a kernel, not a {kind}: decorate it")
        if isinstance(machine, str):
            if machine not in MACHINES:
                names = ", ".join(MACHINES)
                raise UserError(f"no machine {machine!r}: choose one of {names}")
            machine = MACHINES[machine]
        super().__init__(function, machine)
        self.origin = self.function

    def copy(self) -> Schedule:
        """A schedule at the same point, to try steps on."""
        other = Schedule(self.function, self.machine)
        other.origin, other.trace = self.origin, list(self.trace)
        return other

    @property
    def mod(self) -> IRModule:
        """The program now, as a module of one kernel."""
        return IRModule({self.function.name: self.program})

    @property
    def program(self) -> Program:
        """The program now."""
        return Program(replace(self.function, is_scheduled=True))

    def script(self) -> str:
        """The program now, as a script that `webmlc.kernel` reads."""
        return print_function(self.function)

    def show(self) -> None:
        """Print the program."""
        print(self.script())

    def __str__(self) -> str:
        return self.script()

    # -- questions -------------------------------------------------------------------------------

    def get_block(self, name: str, func_name: str | None = None) -> str:
        """The block of a name; blocks are their names."""
        self.block(name)
        return name

    get_sblock = get_block

    def get_loops(self, block: str) -> list[str]:
        """The loops around a block, outermost first."""
        return self.loops(block)

    def get_child_blocks(self, block: str) -> list[str]:
        """The blocks directly inside a block."""
        inner = self.block(block)
        return [b.name for child in child_statements(inner) for b in blocks(child)]

    def get_producers(self, block: str) -> list[str]:
        """The blocks that write what a block reads."""
        reads = {load.buffer for load in loads_of(self.block(block))}
        return [b.name for b in self._leaves() if b.name != block and reads & _written(b)]

    def get_consumers(self, block: str) -> list[str]:
        """The blocks that read what a block writes."""
        written = _written(self.block(block))
        return [
            b.name
            for b in self._leaves()
            if b.name != block and written & {load.buffer for load in loads_of(b)}
        ]

    def get_output_blocks(self) -> list[str]:
        """The blocks that write outputs."""
        outputs = set(self.function.output_params())
        return [b.name for b in self._leaves() if outputs & _written(b)]

    def get(self, name: str) -> Block | int | Expr:
        """The block of a name, or the extent of a loop: a number if it is known."""
        if name in self.blocks():
            return self.block(name)
        extent = self.extent(name)
        size = as_int(extent)
        return extent if size is None else size

    def _leaves(self) -> Iterable[Block]:
        return (s for s in walk_statements(self.function.body) if isinstance(s, Block))

    # -- primitives with other arguments in TVM --------------------------------------------------

    def cache_read(self, block: str, read_buffer: str | int, storage_scope: Scope = "local") -> str:
        """Let a block read a buffer, given by its name or its number among those that the block
        reads, through a copy in `storage_scope`; returns the copying block.
        """
        names = list(dict.fromkeys(load.buffer.name for load in _reads(self.block(block))))
        name = _of_number(read_buffer, names, block, "reads")
        return super().cache_read(block, name, storage_scope)

    def cache_write(
        self, block: str, *arguments: str | int, storage_scope: Scope | None = None
    ) -> str:
        """Let a block write a buffer of a scope, which a new block copies out; returns the new
        block. TVM's number of the written buffer may stand before the scope, and is 0.
        """
        scopes = [a for a in arguments if not isinstance(a, int)]
        scope = storage_scope or (scopes[0] if scopes else "local")
        return super().cache_write(block, scope)  # type: ignore[arg-type]

    def set_scope(self, block: str, *arguments: str | int) -> None:
        """Put the temporary that a block writes into a scope. TVM's number of the buffer may stand
        before the scope, and is 0.
        """
        super().set_scope(block, arguments[-1])  # type: ignore[arg-type]

    def compute_at(self, block: str, loop: str, preserve_unit_loops: bool = False) -> None:
        """Move a producer under a loop of its consumer."""
        super().compute_at(block, loop)

    def reverse_compute_at(self, block: str, loop: str, preserve_unit_loops: bool = False) -> None:
        """Move a consumer under a loop of its producer."""
        super().reverse_compute_at(block, loop)

    def split(
        self, loop: str, factors: Sequence[int | None], preserve_unit_iters: bool = True
    ) -> tuple[str, ...]:
        """Split a loop into a nest of `factors` iterations, of which one may be None; returns the
        new loops. Raises `ScheduleError` if `factors` is a number.
        """
        if isinstance(factors, int):
            reason = f"the factors are a list, one for each new loop, such as [None, {factors}]"
            raise ScheduleError("split", reason, self.function, loop)
        return super().split(loop, factors)

    def bind(self, loop: str, thread_axis: str) -> None:
        """Bind a loop to a GPU axis, `"blockIdx.x"` to `"threadIdx.z"`."""
        if thread_axis not in THREAD_AXES:
            names = ", ".join(THREAD_AXES)
            raise UserError(f"{thread_axis!r} is not an axis of a GPU: choose one of {names}")
        super().bind(loop, thread_axis)

    def merge(self, *loops: str) -> str:
        """Refuse, and say what to do: two nests are merged by moving a block."""
        raise UserError("merge is not a primitive here: use compute_at or reverse_compute_at")

    def annotate(self, name: str, key: str, value: Any) -> None:
        """Refuse, and say what to do: a schedule has no annotations."""
        raise UserError(
            f"annotations such as {key!r} are not read: use unroll, vectorize, parallel or bind"
        )

    def apply_trace(self, trace: Iterable[Mapping[str, Any] | Step]) -> None:
        """Apply the steps of a trace, which is plain data."""
        self.follow(trace)  # type: ignore[arg-type]


def replay(program: Program | LoopFunction | IRModule, trace: Iterable[Step]) -> Program:
    """The program that the steps of `trace` make of `program`. Raises `ScheduleError` if a step
    cannot be applied.
    """
    schedule = Schedule(program)
    schedule.follow(trace)
    return schedule.program


def perfect_tiles(
    extent: int, n: int, max_innermost_factor: int | None = None
) -> list[tuple[int | None, ...]]:
    """The `n` factors by which `split` divides a loop of `extent` iterations without a remainder:
    candidate values for `webmlc.tune`. The first factor is None, which `split` derives. As in TVM,
    the last one is at most `max_innermost_factor`.

    >>> perfect_tiles(6, 2)
    [(None, 1), (None, 2), (None, 3), (None, 6)]

    Raises `UserError` unless the numbers are positive.
    """
    largest = extent if max_innermost_factor is None else max_innermost_factor
    if min(extent, n, largest) < 1:
        raise UserError(f"{extent} iterations have no {n} factors: the numbers must be positive")
    tiles: list[tuple[int, ...]] = [()]
    for _ in range(n - 1):
        tiles = [(d, *tile) for tile in tiles for d in divisors(extent // prod(tile), extent)]
    return [(None, *tile) for tile in sorted(tiles) if not tile or tile[-1] <= largest]


def _reads(block: Block) -> Iterable[Any]:
    """The loads of a block in the order in which they are written, without those of what it
    writes.
    """
    written = _written(block)
    return (load for load in loads_of(block) if load.buffer not in written)


def _written(block: Block) -> set[Any]:
    return {store.buffer for store in stores(block)}


def _of_number(buffer: str | int, names: Sequence[str], block: str, verb: str) -> str:
    if isinstance(buffer, str):
        return buffer
    if buffer >= len(names):
        raise UserError(f"block {block} {verb} {len(names)} buffers, so it has no number {buffer}")
    return names[buffer]
