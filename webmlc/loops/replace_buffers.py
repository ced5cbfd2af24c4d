"""Replace the buffers of a statement by others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from webmlc.core.expr import Expr
from webmlc.core.rewrite import rewriter
from webmlc.loops.ir import Buffer, Load, Stmt, Store, map_expressions, map_statements


def replace_buffers(root: Stmt, mapping: Mapping[Buffer, Buffer]) -> Stmt:
    """Replace buffers by others of the same rank in every load and store."""

    def load(node: Expr) -> Expr | None:
        match node:
            case Load(buffer=buffer, indices=indices) if buffer in mapping:
                return Load(mapping[buffer], indices)
        return None

    def store(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(buffer=buffer) if buffer in mapping:
                return replace(stmt, buffer=mapping[buffer])
        return None

    return map_statements(map_expressions(root, rewriter(load)), store)
