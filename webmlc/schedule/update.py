"""Making the changed function: the small edits that primitives end with."""

from __future__ import annotations

from dataclasses import replace

from webmlc.loops.ir import Buffer, For, LoopFunction, LoopKind, Stmt
from webmlc.schedule.tree import Path, replace_last


def with_body(
    function: LoopFunction, body: Stmt, allocations: tuple[Buffer, ...] | None = None
) -> LoopFunction:
    """`function` over another body, and other allocations if given."""
    return LoopFunction(
        function.name,
        function.params,
        function.outputs,
        function.symbols,
        function.allocations if allocations is None else allocations,
        body,
        function.origin,
        function.stages,
    )


def with_loop_kind(
    function: LoopFunction, path: Path, kind: LoopKind, thread: str | None = None
) -> LoopFunction:
    """`function` with the loop at the end of `path` run as `kind`."""
    loop = path[-1]
    assert isinstance(loop, For)
    return with_body(function, replace_last(path, replace(loop, kind=kind, thread=thread)))
