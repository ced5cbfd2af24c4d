"""`roll_maximum`: sums of exponentials relative to a maximum run in the same loop as the maximum.

Each step of the loop knows the maximum so far. Its exponentials are relative to this maximum. If
the maximum grows, the sums so far shrink by the exponential of the difference. This is the online
softmax (Milakov and Gimelshein, 2018); as a loop transformation it is the rolling update of Neptune
(Zhao et al., 2025). No element of `E` lives longer than a step.

for b in range(n):                             m[()] = lowest; s[()] = 0
    m = max(m, p[b])                           for b in range(n):
for b_1 in range(n):                               before = m
    for k in range(8):                             m = max(m, p[b])
        E[b_1, k] = exp(L[b_1, k] - m)    ->       scale = exp(before - m)
for b_2 in range(n):                               for k in range(8):
    for k in range(8):                                 E[b, k] = exp(L[b, k] - m)
        c[b_2] += E[b_2, k]                        for k in range(8):
for b_3 in range(n):                                   c[b] += E[b, k]
    s += c[b_3]                                    s = s * scale + c[b]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Const, Expr, Var, call
from webmlc.core.rewrite import substitute, variables, walk
from webmlc.core.simplify import prove_equal
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    Load,
    Seq,
    Stmt,
    Store,
    loads,
    map_statements,
    seq,
    stores,
    substitute_statement,
)
from webmlc.schedule.analysis import Fold, fold_of
from webmlc.schedule.edit import Edit
from webmlc.schedule.nest import copy_spatial_loops
from webmlc.schedule.primitives.reduction import decompose_reduction
from webmlc.schedule.regions import scan, within
from webmlc.schedule.tree import (
    Intervals,
    Path,
    loops_of,
    outer_blocks,
    rebind,
)

LOWEST = Const(float(np.finfo(np.float32).min), DType.float32)
"""The maximum before the first step: finite, because the difference of two infinities is NaN."""


def roll_maximum(edit: Edit, block: str, *loops: str) -> tuple[str, str, str]:
    """Merge `loops` into one. The first is the loop of the maximum `block`. The other loops are its
    siblings, in order, each with one block. A block computes exponentials relative to the maximum,
    sums exponentials (or their products with other values) within a step, or folds such values
    along the loop.

    Returns the merged loop, the block that keeps the maximum of the last step, and the block that
    computes the scale. Raises `ScheduleError` if a block has another
    form, if a block reads elements that another step writes, or if another block reads the
    exponentials. A sum whose exponentials are all zero is zero, not NaN.
    """
    merger = _Merger(edit, block, loops)
    merger.check()
    return merger.merge()


def exponential_of(block: Block) -> tuple[Expr, Load] | None:
    """The operands `x` and `m` of a block that stores `exp(x - m)`; `None` for another block."""
    match block.body:
        case Store(value=Call(op="exp", args=(Call(op="sub", args=(value, Load() as top)),))):
            return value, top
    return None


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A buffer whose elements have the factor exp(-m): the axes that index it, and the indices of
    their maximum over these axes.
    """

    axes: tuple[Expr, ...]
    maximum: tuple[Expr, ...]


@dataclass(slots=True)
class _Merger:
    """The edit, the block of the maximum, and the names of the loops to merge. `check` finds
    the scaled buffers, and the folds along the loop, with the indices of their maxima. The maximum
    and the folds are in the `running` buffers; `inits` are the blocks that start them, by loop.
    """

    edit: Edit
    block: str
    loops: Sequence[str]
    scaled: dict[str, _Scaled] = field(default_factory=dict)
    folds: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    inits: dict[str, str] = field(default_factory=dict)

    # -- what the blocks are ------------------------------------------------------------------

    def check(self) -> None:
        """Raise `ScheduleError` if merging would change more than the order of roundings."""
        path, first = self.edit.loop(self.loops[0])
        for name in self.loops:
            other_path, loop = self.edit.loop(name)
            self.edit.require_serial(loop)
            if not isinstance(path[-2], Seq) or other_path[-2] is not path[-2]:
                self.edit.refuse(f"loops {first.var.name!r} and {name!r} are no siblings", name)
            if not prove_equal(loop.extent, first.extent, self.edit.ranges(path)):
                self.edit.refuse(f"loop {name!r} has another extent", name)
        top = self.check_maximum(first)
        self.running.add(top.name)
        for name in self.loops[1:]:
            _, loop = self.edit.loop(name)
            self.classify(self.only_block(loop), loop.var, top)
        self.check_readers(top)
        self.check_between(path[-2].statements if isinstance(path[-2], Seq) else ())
        self.check_steps(path)

    def check_maximum(self, loop: For) -> Buffer:
        """The buffer of the maximum, which must be a fold along the first loop alone."""
        block = self.only_block(loop)
        fold = self.fold_along(block, loop.var)
        if block.name != self.block or fold is None or not fold.combine.endswith("max"):
            reason = f"loop {loop.var.name!r} does not hold the maximum {self.block!r} alone"
            self.edit.refuse(reason, loop.var.name, self.block)
        if fold.target.buffer.dtype is not DType.float32:
            self.edit.refuse(f"the maximum is {fold.target.buffer.dtype}", self.block)
        return fold.target.buffer

    def classify(self, block: Block, loop: Var, top: Buffer) -> None:
        """Note how a block uses the maximum; refuse a block of another form."""
        store = block.body
        assert isinstance(store, Store)
        exponential = exponential_of(block)
        if exponential is not None and exponential[1].buffer == top:
            value, maximum = exponential
            if not self.is_running(value):
                return self.add(block, store, maximum.indices)
        fold = fold_of(block)
        indices = None if fold is None or fold.combine != "add" else self.factor(fold.value)
        if indices is None or block.init is None:
            reason = f"block {block.name!r} is no sum of values in proportion to exponentials"
            self.edit.refuse(reason, block.name)
        reduced = {axis.var for axis in block.axes if axis.kind == "reduce"}
        if any(variables(index) & reduced for index in indices):
            self.edit.refuse(f"block {block.name!r} mixes several maxima", block.name)
        if self.fold_along(block, loop) is None:
            return self.add(block, store, indices)
        self.folds[block.name] = indices
        self.running.add(store.buffer.name)
        return None

    def add(self, block: Block, store: Store, maximum: tuple[Expr, ...]) -> None:
        """Note a scaled buffer, which a block writes in every step."""
        used = {v for index in maximum for v in variables(index)}
        if not used <= {index for index in store.indices if isinstance(index, Var)}:
            reason = f"the indices of block {block.name!r} do not tell its maximum"
            self.edit.refuse(reason, block.name)
        self.scaled[store.buffer.name] = _Scaled(store.indices, maximum)

    def factor(self, value: Expr) -> tuple[Expr, ...] | None:
        """The indices of the maximum of a value in proportion to a scaled element, else `None`."""
        match value:
            case Load(buffer=buffer, indices=indices) if buffer.name in self.scaled:
                scaled = self.scaled[buffer.name]
                places = {
                    axis: index
                    for axis, index in zip(scaled.axes, indices, strict=True)
                    if isinstance(axis, Var)
                }
                return tuple(substitute(index, places) for index in scaled.maximum)
            case Call(op="mul", args=(a, b)):
                left, right = self.factor(a), self.factor(b)
                if left is not None and not self.is_running(b):
                    return left
                return right if right is not None and not self.is_running(a) else None
            case Call(op="select", args=(condition, a, Const(value=0))):
                return None if self.is_running(condition) else self.factor(a)
        return None

    def is_running(self, value: Expr) -> bool:
        """True for a value that depends on the maximum or on a fold, which steps change."""
        reads = {node.buffer.name for node in walk(value) if isinstance(node, Load)}
        return not reads.isdisjoint(self.running | self.scaled.keys())

    def only_block(self, loop: For) -> Block:
        """The only block under a loop, which must be a single store."""
        inside = list(outer_blocks(loop.body))
        if len(inside) != 1 or not isinstance(inside[0].body, Store):
            name = loop.var.name
            self.edit.refuse(f"loop {name!r} does not hold one block of one store", name)
        return inside[0]

    def fold_along(self, block: Block, loop: Var) -> Fold | None:
        """The fold that a block is, if it has an init and folds along the loop alone."""
        pairs = block.bound_axes()
        reduced = [binding for axis, binding in pairs if axis.kind == "reduce"]
        return fold_of(block) if reduced == [loop] and block.init is not None else None

    # -- who else reads them ------------------------------------------------------------------

    def check_readers(self, top: Buffer) -> None:
        """Refuse if other blocks read the maximum or exponentials, which live for one step."""
        merged = {self.block, *self.folds}
        for name in self.loops:
            merged.add(self.only_block(self.edit.loop(name)[1]).name)
        temporaries = {buffer.name for buffer in self.edit.function.allocations}
        for name in (top.name, *self.scaled):
            if name not in temporaries:
                self.edit.refuse(f"{name!r} is the caller's, who needs all of it", name)
            for other in self.edit.blocks():
                if other.name not in merged and name in _names(loads(other)):
                    reason = f"block {other.name!r} reads {name!r}, of which one step remains"
                    self.edit.refuse(reason, other.name)

    def check_between(self, statements: Sequence[Stmt]) -> None:
        """Refuse if a statement between the loops writes a buffer that the loops use: all loops
        move above it.
        """
        chosen = [s for s in statements if isinstance(s, For) and s.var.name in self.loops]
        used = {n for loop in chosen for n in _names([*loads(loop), *stores(loop)])}
        start, end = (statements.index(loop) for loop in (chosen[0], chosen[-1]))
        for other in statements[start:end]:
            if other not in chosen and (shared := used & _names(stores(other))):
                reason = f"{min(shared)!r} is written between the loops"
                self.edit.refuse(reason, *(b.name for b in outer_blocks(other)))

    def check_steps(self, path: Path) -> None:
        """Refuse if a step reads scaled elements that it does not write."""
        ranges = self.edit.ranges(path)
        bodies = dict(zip(self.loops, self.bodies(ranges), strict=True))
        for name in self.scaled:
            written = []
            for loop, body in bodies.items():
                scanned = scan(body, ranges, [name])
                spans = {
                    kind: scanned.region(accesses)
                    for kind in (True, False)
                    if (accesses := [a for a in scanned.accesses if a.writes is kind])
                }
                if True in spans:
                    written.append(spans[True])
                elif False in spans and not any(
                    all(within(a, b, ranges) for a, b in zip(spans[False], region, strict=True))
                    and None not in region
                    for region in written
                ):
                    reason = f"a step of loop {loop!r} reads {name!r} of other steps"
                    self.edit.refuse(reason, loop)

    def bodies(self, ranges: Intervals) -> list[Stmt]:
        """The bodies of all loops, over the variable of the first."""
        step = Var(self.loops[0])
        loops = [self.edit.loop(name)[1] for name in self.loops]
        return [rebind(loop.body, {loop.var: step}, ranges) for loop in loops]

    # -- the merged loop ----------------------------------------------------------------------

    def merge(self) -> tuple[str, str, str]:
        """Make one loop. Returns the names of the loop and of the two new blocks."""
        self.clear_first()
        path, first = self.edit.loop(self.loops[0])
        _, maximum = self.edit.block(self.block)
        assert isinstance(maximum.body, Store) and isinstance(path[-2], Seq)
        top = Load(maximum.body.buffer, maximum.body.indices)
        before, scale = (
            replace(top.buffer, name=self.edit.name(f"{top.buffer.name}_{part}"))
            for part in ("before", "scale")
        )
        bodies = self.bodies(self.edit.ranges(path))
        growth = call("exp", call("sub", Load(before, top.indices), top))
        stage = maximum.body.stage
        keep = self.beside(maximum, first, Store(before, top.indices, top, stage))
        shrink = self.beside(maximum, first, Store(scale, top.indices, growth, stage))
        bodies = [self.with_scale(body, scale) for body in bodies]
        loop = replace(first, body=seq(keep[0], bodies[0], shrink[0], *bodies[1:]))
        self.edit.put(path[:-1], self.regrouped(path[-2], first, loop), before, scale)
        return first.var.name, keep[1], shrink[1]

    def clear_first(self) -> None:
        """Start the maximum and the folds before their loops; the maximum at a finite value."""
        for name in self.loops:
            block = self.only_block(self.edit.loop(name)[1]).name
            if block == self.block or block in self.folds:
                self.inits[name] = decompose_reduction(self.edit, block, name)
        path, init = self.edit.block(self.inits[self.loops[0]])
        assert isinstance(init.body, Store)
        self.edit.put(path, replace(init, body=replace(init.body, value=LOWEST)))

    def beside(self, maximum: Block, loop: For, store: Store) -> tuple[Stmt, str]:
        """A block that runs in every step for every maximum, and its name."""
        block_path, _ = self.edit.block(maximum.name)
        around = loops_of(block_path)
        inner = around[around.index(loop) + 1 :]
        copies = copy_spatial_loops(self.edit, maximum, inner, "of_step")
        axes: list[Axis] = []
        renamed: dict[Var, Expr] = {}
        for axis in maximum.axes:
            axes.append(replace(axis, var=self.edit.var(axis.var.name)))
            renamed[axis.var] = axes[-1].var
        bindings = tuple(substitute(b, copies.mapping) for b in maximum.bindings)
        body = substitute_statement(store, renamed)
        name = self.edit.block_name(store.buffer.name)
        block = Block(name, tuple(axes), bindings, body, None, copies.predicate)
        return copies.around(block), name

    def with_scale(self, body: Stmt, scale: Buffer) -> Stmt:
        """A step whose fold scales its sum before it adds."""

        def rule(stmt: Stmt) -> Stmt | None:
            if not isinstance(stmt, Block) or stmt.name not in self.folds:
                return None
            fold = fold_of(stmt)
            assert fold is not None and isinstance(stmt.body, Store)
            factor = Load(scale, self.folds[stmt.name])
            shrunk = call("mul", fold.target, factor)
            return replace(stmt, body=replace(stmt.body, value=call("add", shrunk, fold.value)))

        return map_statements(body, rule)

    def regrouped(self, siblings: Seq, first: For, loop: For) -> Stmt:
        """The statements with the merged loop in place of the first, after all inits."""
        names = set(self.inits.values())
        inits = [s for s in siblings.statements if {b.name for b in outer_blocks(s)} & names]
        merged = [s for s in siblings.statements if isinstance(s, For) and s.var.name in self.loops]
        position = siblings.statements.index(first)
        moved = {id(stmt) for stmt in (*inits, *merged)}
        ahead, behind = (
            [s for s in part if id(s) not in moved]
            for part in (siblings.statements[:position], siblings.statements[position:])
        )
        return seq(*ahead, *inits, loop, *behind)


def _names(accesses: Iterable[Load | Store]) -> set[str]:
    """The names of the buffers of some accesses."""
    return {access.buffer.name for access in accesses}
