"""`fission`: a loop over several statements becomes one loop a statement.

for i in T.serial(6):                          for i in T.serial(6):
    for k in T.serial(16):                         for k in T.serial(16):
        with T.block("C"): C[i] += A[i, k]  ->         with T.block("C"): C[i] += A[i, k]
    with T.block("D"): D[i] = C[i] + 1         for i_1 in T.serial(6):
                                                   with T.block("D"): D[i_1] = C[i_1] + 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from webmlc.core.bounds import Interval, bounds, iterations
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import substitute, substitution
from webmlc.core.simplify import simplify
from webmlc.loops.ir import For, Seq, seq
from webmlc.schedule.analysis import row_major, stride
from webmlc.schedule.edit import Edit
from webmlc.schedule.regions import Access, Scan, scan
from webmlc.schedule.tree import (
    outer_blocks,
    rebind,
)


def fission(edit: Edit, loop: str, together: Sequence[str] = ()) -> tuple[str, ...]:
    """Give each statement of `loop` a loop of its own, in order. The statements that hold a block
    of `together` share one loop, which comes last.

    Returns the loops. Raises `ScheduleError` if the loop has only one
    statement. Also raises it if a statement may read or overwrite elements that an earlier
    statement of a later iteration writes or reads. A statement also does not move behind others
    that use its buffers.
    """
    path, old = edit.serial_loop(loop)
    if not isinstance(old.body, Seq) or len(old.body.statements) < 2:
        edit.refuse(f"loop {loop!r} has only one statement", loop)
    ranges = edit.ranges(path)
    statements = old.body.statements
    is_last = [any(b.name in together for b in outer_blocks(s)) for s in statements]
    scans = [scan(statement, ranges) for statement in statements]
    for later in range(1, len(scans)):
        for earlier in range(later):
            if is_last[earlier]:
                culprit = None if is_last[later] else _common(scans[earlier], scans[later])
            elif as_int(old.extent) == 1:
                culprit = None  # there is no later iteration
            else:
                culprit = _conflict(scans[earlier], scans[later], old.var)
            if culprit is not None:
                meet = f"iterations of loop {loop!r} may meet in buffer {culprit!r}"
                edit.refuse(f"{meet}: its statements must keep their order", loop)
    outer = edit.ranges(path[:-1])
    outer[old.var] = iterations(old.extent, outer)
    bodies = [s for s, last in zip(statements, is_last, strict=True) if not last]
    if any(is_last):
        bodies.append(seq(*(s for s, last in zip(statements, is_last, strict=True) if last)))
    loops = [For(old.var, old.extent, bodies[0])]
    for statement in bodies[1:]:
        var = edit.var(loop)
        inside = {**outer, var: outer[old.var]}
        loops.append(For(var, old.extent, rebind(statement, {old.var: var}, inside)))
    edit.put(path, seq(*loops))
    return tuple(each.var.name for each in loops)


def _common(earlier: Scan, later: Scan) -> str | None:
    """A buffer that both statements use and at least one writes, if any: such statements cannot
    change their order.
    """
    mine, theirs = earlier.by_buffer(), later.by_buffer()
    for name in mine.keys() & theirs.keys():
        if any(access.writes for access in (*mine[name], *theirs[name])):
            return name
    return None


def _conflict(earlier: Scan, later: Scan, var: Var) -> str | None:
    """The buffer in which `later` at one iteration and `earlier` at another may meet, if any."""
    comparison = _Comparison.of(earlier, later, var)
    mine, theirs = earlier.by_buffer(), later.by_buffer()
    for name in mine.keys() & theirs.keys():
        for a in mine[name]:
            for b in theirs[name]:
                if (a.writes or b.writes) and not comparison.apart(a, b):
                    return name
    return None


@dataclass(frozen=True, slots=True)
class _Movement:
    """How an index moves with the variable of the loop: by `step` from one iteration to the next
    (`None` if the step depends on the iteration), from `start` on.
    """

    step: Expr | None
    start: Expr


@dataclass(slots=True)
class _Comparison:
    """Compares indices of an earlier and a later statement, at iterations of `var`. `rename` gives
    new names to the loops inside the later statement.
    """

    var: Var
    ranges: Mapping[Var, Interval]
    rename: Callable[[Expr], Expr]
    movements: dict[Expr, _Movement] = field(default_factory=dict)

    @classmethod
    def of(cls, earlier: Scan, later: Scan, var: Var) -> _Comparison:
        """The comparison of the accesses of two statements."""
        ranges = {**earlier.ranges, **later.ranges}
        new_names: dict[Var, Expr] = {}
        for inner in later.inner:
            new = Var(f"{inner.name}'")
            new_names[inner], ranges[new] = new, later.ranges[inner]
        return cls(var, ranges, substitution(new_names))

    def apart(self, a: Access, b: Access) -> bool:
        """True if the two accesses touch different elements whenever their iterations differ."""
        if any(self.differs(i, j) for i, j in zip(a.indices, b.indices, strict=True)):
            return True
        suffixes = (
            (a.buffer.shape[d:], a.indices[d:], b.indices[d:]) for d in range(len(a.indices))
        )
        return any(
            self.differs(row_major(shape, mine), row_major(shape, theirs))
            for shape, mine, theirs in suffixes
        )

    def differs(self, a: Expr, b: Expr) -> bool:
        """True if two indices move equally, by more than they are apart in one iteration.

        `a(i) - b(j) = step * (i - j) + offset`, with `offset` in an interval shorter than `step`
        both ways.
        """
        mine, theirs = self.movement(a), self.movement(self.rename(b))
        if mine.step is None or mine.step != theirs.step:
            return False
        offset = bounds(simplify(mine.start - theirs.start, self.ranges), self.ranges)
        size = bounds(mine.step, self.ranges)
        if size.high < 0:
            return offset.low > size.high and offset.high < -size.high
        return offset.low > -size.low and offset.high < size.low

    def movement(self, index: Expr) -> _Movement:
        """How an index moves. Cached: an access is compared with many others."""
        if index not in self.movements:
            simple = simplify(index, self.ranges)
            start = substitute(simple, {self.var: Const(0)})
            self.movements[index] = _Movement(stride(simple, self.var, self.ranges), start)
        return self.movements[index]
