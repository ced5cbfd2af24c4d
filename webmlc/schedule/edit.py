"""An edit: a primitive at work on a loop function. It finds loops and blocks, takes new names,
refuses what it must not change, and writes the changed function.

    def unroll(edit: Edit, loop: str) -> None:
        path, old = edit.serial_loop(loop)
        if as_int(old.extent) is None:
            edit.refuse(f"the extent {old.extent} of loop {loop!r} is not a constant", loop)
        edit.put(path, replace(old, kind="unrolled"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from webmlc.core.expr import Call, Const, Expr, Var, as_int
from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables
from webmlc.loops.ir import Block, Buffer, For, LoopFunction, Stmt, replace_buffers, stores
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.tree import (
    Intervals,
    Path,
    block_names,
    depends_on,
    fresh,
    outer_blocks,
    path_to_block,
    path_to_loop,
    ranges_along,
    replace_last,
    uses,
    with_body,
)


class Edit:
    """The function as the primitive has changed it so far, for a `machine` or for any machine."""

    def __init__(
        self, primitive: str, function: LoopFunction, machine: Machine | None = None
    ) -> None:
        self.primitive = primitive
        self.function = function
        self.machine = machine
        self._names: set[str] | None = None
        self._block_names: set[str] | None = None

    # -- look ------------------------------------------------------------------------------------

    def loop(self, name: str) -> tuple[Path, For]:
        """The path to a loop, and the loop."""
        return path_to_loop(self.function, self.primitive, name)

    def serial_loop(self, name: str) -> tuple[Path, For]:
        """The path to a loop, and the loop, which must not have a kind yet: the kind would have no
        meaning for the new loops.
        """
        path, loop = self.loop(name)
        self.require_serial(loop)
        return path, loop

    def block(self, name: str) -> tuple[Path, Block]:
        """The path to a block, and the block."""
        return path_to_block(self.function, self.primitive, name)

    def blocks(self) -> list[Block]:
        """The outermost blocks, in program order."""
        return list(outer_blocks(self.function.body))

    def position(self, block: Block) -> int:
        """The position of an outermost block in the program order."""
        return next(i for i, other in enumerate(self.blocks()) if other is block)

    def ranges(self, path: Path = ()) -> Intervals:
        """The intervals of the symbols, and of the loops and axes of a path."""
        return ranges_along(self.function, path)

    # -- name ------------------------------------------------------------------------------------

    def name(self, base: str) -> str:
        """A new name of a buffer, a loop or an axis."""
        if self._names is None:
            self._names = self.function.used_names()
        return fresh(base, self._names)

    def var(self, base: str) -> Var:
        """A new loop or axis variable."""
        return Var(self.name(base))

    def block_name(self, base: str) -> str:
        """A new name of a block."""
        if self._block_names is None:
            self._block_names = block_names(self.function)
        return fresh(base, self._block_names)

    # -- refuse ----------------------------------------------------------------------------------

    def refuse(self, reason: str, *culprits: str) -> NoReturn:
        """Raise the error that says why the step is refused, and by which loops and blocks."""
        raise self.refusal(reason, *culprits)

    def refusal(self, reason: str, *culprits: str) -> ScheduleError:
        """The error, to raise where a function would end."""
        return ScheduleError(self.primitive, reason, self.function, *culprits)

    def require_serial(self, loop: For) -> None:
        """Refuse a loop that has a kind."""
        if loop.kind != "serial":
            kind, name = loop.kind.replace("_", " "), loop.var.name
            if kind.startswith(self.primitive):
                self.refuse(f"loop {name!r} is already {kind}", name)
            self.refuse(f"loop {name!r} is {kind}; {self.primitive} it before that", name)

    def require_data_parallel(self, loop: For) -> None:
        """Refuse a loop that a reduce axis runs along: its iterations meet in one element."""
        name = loop.var.name
        for block in outer_blocks(loop.body):
            for axis, binding in block.bound_axes():
                if axis.kind == "reduce" and depends_on(binding, {name}):
                    reason = (
                        f"loop {name!r} runs along the reduce axis {axis.var.name!r} of block "
                        f"{block.name!r}: its iterations meet in one element"
                    )
                    self.refuse(reason, name, block.name)

    def require_own_locals(self, loop: For) -> None:
        """Refuse a loop that shares a `local` buffer with statements outside: each thread has its
        own buffer.
        """
        for buffer in locals_shared_with(self.function, loop):
            name = loop.var.name
            self.refuse(
                f"loop {name!r} shares {buffer.name!r} with what is outside; each thread has one",
                name,
            )

    def require_outermost(self, path: Path, name: str) -> None:
        """Refuse a loop or block inside another block: the outer block isolates it from statements
        outside.
        """
        for stmt in path[:-1]:
            if isinstance(stmt, Block):
                reason = f"{name!r} is inside block {stmt.name!r}, which isolates it"
                self.refuse(reason, name, stmt.name)

    def only_output(self, block: Block) -> Buffer:
        """The one buffer that a block writes."""
        written = {store.buffer for store in stores(block)}
        if len(written) != 1:
            reason = (
                f"block {block.name!r} writes {len(written)} buffers; {self.primitive} needs one"
            )
            self.refuse(reason, block.name)
        return written.pop()

    def only_temporary(self, block: Block) -> Buffer:
        """The one buffer that a block writes, which must not be the caller's."""
        buffer = self.only_output(block)
        if buffer not in self.function.allocations:
            reason = f"block {block.name!r} writes {buffer.name!r}, which is the caller's"
            self.refuse(f"{reason}; cache_write it first", block.name)
        return buffer

    # -- change ----------------------------------------------------------------------------------

    def change(self, function: LoopFunction) -> None:
        """Go on with another function."""
        self.function = function
        self._names = self._block_names = None

    def put(self, path: Path, new: Stmt | None, *allocations: Buffer) -> None:
        """Replace the last statement of a path (`None` removes it, and the loops that it leaves
        empty), and allocate more buffers.
        """
        old = self.function
        body = replace_last(path, new)
        self.change(with_body(old, body, (*old.allocations, *allocations)))

    def exchange(self, old: Buffer, new: Buffer) -> None:
        """Use another buffer of the same rank in the place of a temporary."""
        function = self.function
        allocations = tuple(new if b == old else b for b in function.allocations)
        self.change(with_body(function, replace_buffers(function.body, {old: new}), allocations))


def locals_shared_with(function: LoopFunction, loop: For) -> list[Buffer]:
    """The `local` buffers that are used both under `loop` and elsewhere."""
    local = [buffer for buffer in function.allocations if buffer.scope == "local"]
    if not local:
        return []
    inside, everywhere = uses(loop), uses(function.body)
    return [b for b in local if 0 < inside[b.name] < everywhere[b.name]]


def repeating_loops(block: Block, loops: Iterable[For]) -> list[str]:
    """The `loops` that run an instance of `block` again. No axis of the block follows such a loop,
    or a spatial axis takes a value twice along it (`i + j`, after `compute_at`; and `min(i, n) +
    j`).

    A reduction that is begun once and run twice counts everything twice.
    """
    extents = {loop.var: as_int(loop.extent) for loop in loops if as_int(loop.extent) != 1}
    followed = {var for binding in block.bindings for var in variables(binding)}
    names = [var.name for var in extents if var not in followed]
    for axis, binding in block.bound_axes():
        if axis.kind == "spatial":
            names += _overlapping(binding, extents)
    return sorted(set(names))


def _overlapping(binding: Expr, extents: Mapping[Var, int | None]) -> list[str]:
    """The loops of a sum `a·i + b·j` whose steps do not exceed the reach of the finer terms."""
    terms: list[tuple[int, Var]] = []
    names: list[str] = []
    stack = [binding]
    while stack:
        match stack.pop():
            case Call(op="add", args=(a, b)):
                stack += [a, b]
            case Call(op="mul", args=(Var() as var, Const(value=int() as step))) if var in extents:
                terms.append((step, var))
            case Var() as var if var in extents:
                terms.append((1, var))
            case Call(op="min", args=args):
                inside = {var for arg in args for var in variables(arg)}
                names += [var.name for var in extents if var in inside]
    reach, before = 0, ""
    for step, var in sorted(terms, key=lambda term: (term[0], term[1].name)):
        if step <= reach:
            names += [before, var.name]
        size = extents[var]
        if size is None:  # an unknown reach: assume that later steps exceed it
            continue
        reach, before = reach + step * (size - 1), var.name
    return names
