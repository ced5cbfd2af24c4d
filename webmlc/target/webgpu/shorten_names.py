"""Give the variables of a kernel short names: shaders are downloaded, and a tile has a hundred
variables.

In: a function ready to print. Out: an equal function. Loops over workgroups and threads are named
`bx`, `tx`, ...; serial loops `k`; lets of indices `p`; other lets `v`; registers `r`; local arrays
`a`. A number follows where there are several. Parameters, symbols and shared buffers keep their
names.

    for conv_0_conv_1_0 in T.thread_binding(13, "blockIdx.x"): ...
        ->   for bx in T.thread_binding(13, "blockIdx.x"): ...
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import rewriter
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
from webmlc.target.webgpu.names import PRINTER_NAMES


def _short(names: Names, preferred: str) -> str:
    """The first unused name among `r`, `r1`, `r2`, ..."""
    count = names.counts.get(preferred, 0)
    names.counts[preferred] = count + 1
    name = f"{preferred}{count}" if count else preferred
    return _short(names, preferred) if name in names.used_names else name


def shorten_names(function: LoopFunction) -> LoopFunction:
    """Shorten names, which must be unique. Registers are renamed in the order of allocation."""
    shared_buffers = [b for b in function.allocations if b.scope != "local"]
    fixed_names = [b.name for b in (*function.params, *shared_buffers)] + [
        s.name for s in function.symbols
    ]
    names = Names([*PRINTER_NAMES, *fixed_names])
    variables: dict[Var, Expr] = {}
    for stmt in walk_statements(function.body):
        match stmt:
            case For(var=var, thread=thread):
                preferred = "k" if thread is None else f"{thread[0]}{thread[-1]}"
                variables[var] = Var(_short(names, preferred), var.dtype)
            case Let(var=var):
                preferred = "p" if var.dtype == INDEX else "v"
                variables[var] = Var(_short(names, preferred), var.dtype)
    buffers: dict[str, Buffer] = {}
    for buffer in function.allocations:
        if buffer.scope == "local":
            preferred = "r" if buffer.storage == "register" else "a"
            buffers[buffer.name] = replace(buffer, name=_short(names, preferred))

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

    body = map_expressions(function.body, rewriter(expression))
    allocations = tuple(buffers.get(b.name, b) for b in function.allocations)
    return replace(function, body=map_statements(body, statement), allocations=allocations)
