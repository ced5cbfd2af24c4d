"""Give what is local to a kernel short names: shaders are downloaded, and a tile has a hundred
variables.

In: a function ready to print. Out: an equal one. Loops over workgroups and threads are `bx`, `tx`,
...; serial loops `k`; index lets `p`; other lets `v`; registers `r`; local arrays `a`; each
followed by a number where there are several. Parameters, symbols and shared buffers keep their
names.

    for conv_0_conv_1_0 in T.thread_binding(13, "blockIdx.x"): ...   ->   for bx in
    T.thread_binding(13, "blockIdx.x"): ...
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import rewrite
from webmlc.loops.ir import (
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
from webmlc.target.scoped import Names

TAKEN = ("group", "thread", "vector", "workgroup", "workgroups", "infinity_bits")
"""Names that the printer itself uses."""


def _short(names: Names, wish: str) -> str:
    """`r`, `r1`, `r2`, ...: the first that is free."""
    count = names.counts.get(wish, 0)
    names.counts[wish] = count + 1
    name = f"{wish}{count}" if count else wish
    return _short(names, wish) if name in names.used_names else name


def shorten_names(function: LoopFunction, registers: frozenset[str]) -> LoopFunction:
    """Rename; needs unique names. Registers are renamed too, in the order of their allocation."""
    kept = [b for b in function.allocations if b.scope != "local"]
    fixed = [b.name for b in (*function.params, *kept)] + [s.name for s in function.symbols]
    names = Names([*TAKEN, *fixed])
    variables: dict[Var, Expr] = {}
    for stmt in walk_statements(function.body):
        match stmt:
            case For(var=var, thread=thread):
                wish = "k" if thread is None else f"{thread[0]}{thread[-1]}"
                variables[var] = Var(_short(names, wish), var.dtype)
            case Let(var=var):
                wish = "p" if var.dtype == INDEX else "v"
                variables[var] = Var(_short(names, wish), var.dtype)
    buffers: dict[str, Buffer] = {}
    for buffer in function.allocations:
        if buffer.scope == "local":
            wish = "r" if buffer.name in registers else "a"
            buffers[buffer.name] = replace(buffer, name=_short(names, wish))

    def expression(node: Expr) -> Expr | None:
        match node:
            case Var():
                return variables.get(node)
            case Load(buffer=buffer, indices=indices) if buffer.name in buffers:
                return Load(buffers[buffer.name], indices)
        return None

    def statement(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(var=var) | Let(var=var):
                new = variables[var]
                assert isinstance(new, Var)
                return replace(stmt, var=new)
            case Store(buffer=buffer) if buffer.name in buffers:
                return replace(stmt, buffer=buffers[buffer.name])
        return None

    body = map_expressions(function.body, lambda e: rewrite(e, expression))
    allocations = tuple(buffers.get(b.name, b) for b in function.allocations)
    return replace(function, body=map_statements(body, statement), allocations=allocations)
