"""`tensorize`: a loop nest with the meaning of an intrinsic becomes the intrinsic's implementation.

for i0, j0, k0, i1, j1, k1 in T.grid(...):     for i0, j0, k0 in T.grid(16, 16, 16):
    with T.block("C"):                             with T.block("C_o"):
        vi = ...(64, i0 * 4 + i1)         ->           vio, vjo, vko = T.axis.remap(...)
        ...                                            T.intrinsic("matmul_4x4_f32")
        C[vi, vj] += A[vi, vk] * B[vk, vj]             ...the 4x4 tile, in registers and vectors...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import rewriter, substitute
from webmlc.loops.ir import (
    NO_STAGE,
    Binder,
    Block,
    Buffer,
    For,
    Let,
    Load,
    LoopFunction,
    Stmt,
    Store,
    map_expressions,
    map_statements,
    walk_statements,
)
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.intrinsics import INTRINSICS, parsed
from webmlc.schedule.match_intrinsic import Match, match_intrinsic
from webmlc.schedule.primitives.blockize import blockize
from webmlc.schedule.tree import (
    fresh,
    path_to_block,
    ranges_along,
    replace_last,
    used_names,
)
from webmlc.schedule.update import with_body

_NAME = "tensorize"


def tensorize(function: LoopFunction, loop: str, intrinsic: str) -> tuple[LoopFunction, str]:
    """Replace `loop` and its body by `intrinsic`, in a block that `blockize` makes.

    An init stays in this block. Returns the function and the block's name. Raises `ScheduleError`
    if there is no such intrinsic, if `blockize` refuses, or if the nest has another meaning.
    """
    if intrinsic not in INTRINSICS:
        names = ", ".join(INTRINSICS)
        raise ScheduleError(_NAME, f"no intrinsic {intrinsic!r}; there are {names}", function, loop)
    blocked, name = blockize(function, loop)
    path, outer = path_to_block(blocked, _NAME, name)
    semantics, implementation = parsed(intrinsic)
    loops, inner = _nest(outer)
    values = inner.axis_values()
    ranges = ranges_along(blocked, (*path, *loops))
    matched_places: Match | None = None
    stage = NO_STAGE
    if isinstance(inner.body, Store):
        stage = inner.body.stage
        store = Store(
            inner.body.buffer,
            tuple(substitute(index, values) for index in inner.body.indices),
            substitute(inner.body.value, values),
            stage,
        )
        matched_places = match_intrinsic(loops, store, semantics, ranges)
    if matched_places is None:
        reason = f"loop {loop!r} and what is inside it is not what {intrinsic!r} means"
        raise ScheduleError(_NAME, reason, function, loop)
    writer = _Writer(matched_places, stage, used_names(blocked))
    body = writer.write(implementation)
    new = replace(outer, body=body, intrinsic=intrinsic)
    allocations = (*blocked.allocations, *writer.allocations)
    return with_body(blocked, replace_last(path, new), allocations), name


def _nest(outer: Block) -> tuple[list[For], Block]:
    loops: list[For] = []
    body = outer.body
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    assert isinstance(body, Block)  # `blockize` made a perfect nest around one block
    return loops, body


@dataclass(slots=True)
class _Writer:
    """Writes an implementation over the buffers of a match, under names that are free."""

    places: Match
    stage: int
    taken_names: set[str]
    allocations: tuple[Buffer, ...] = ()

    def write(self, implementation: LoopFunction) -> Stmt:
        renamed: dict[Var, Var] = {}
        for stmt in walk_statements(implementation.body):
            if isinstance(stmt, Binder):
                renamed[stmt.var] = replace(stmt.var, name=fresh(stmt.var.name, self.taken_names))
        locals_: Mapping[Buffer, Buffer] = {
            buffer: replace(buffer, name=fresh(buffer.name, self.taken_names))
            for buffer in implementation.allocations
        }
        self.allocations = tuple(locals_.values())

        def load(node: Expr) -> Expr | None:
            match node:
                case Var():
                    return renamed.get(node)
                case Load(buffer=buffer, indices=indices):
                    return Load(*self.access(buffer, indices, locals_))
            return None

        def rule(stmt: Stmt) -> Stmt | None:
            match stmt:
                case Store(buffer=buffer, indices=indices, value=value):
                    return Store(*self.access(buffer, indices, locals_), value, self.stage)
                case For() | Let():
                    return replace(stmt, var=renamed[stmt.var])
            return None

        return map_statements(map_expressions(implementation.body, rewriter(load)), rule)

    def access(
        self, buffer: Buffer, indices: tuple[Expr, ...], locals_: Mapping[Buffer, Buffer]
    ) -> tuple[Buffer, tuple[Expr, ...]]:
        """The element of the scheduled function that stands for an element of the
        implementation.
        """
        if buffer in locals_:
            return locals_[buffer], indices
        place = self.places[buffer.name]
        return place.buffer, place.indices(indices)
