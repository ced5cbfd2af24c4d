"""Fit a kernel of symbolic sizes to the types of a node's inputs.

In: a kernel, and the context of a node whose operator it is. Out: the same kernel over the sizes of
the node. The shapes of the inputs decide the symbols, and the symbols decide the outputs:

    kernel(A: [n, 64], B: [2 * n])   of a node over float32[batch + 1, 64]
        ->   kernel(A: [batch + 1, 64], B: [2 * (batch + 1)])

A symbol is the size of some dimension of an input, so that each symbol is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from webmlc.core.errors import UserError
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import substitute, variables
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError
from webmlc.graph.ops.shapes import canonical, require
from webmlc.loops.ir import (
    Buffer,
    LoopFunction,
    bound_variables,
    map_statements,
    rename_bound,
    replace_buffers,
    substitute_statement,
)
from webmlc.schedule.tree import fresh


def check_symbols(function: LoopFunction, name: str) -> None:
    """Raise `UserError` if no input of a kernel decides one of its symbols."""
    decided = {d for b in function.input_params() for d in b.shape if isinstance(d, Var)}
    if undecided := [symbol for symbol in function.symbols if symbol not in decided]:
        raise UserError(
            f"{name}: no dimension of an input is {undecided[0]}, so its size is unknown"
        )


def fitted(function: LoopFunction, context: Context) -> LoopFunction:
    """The kernel over the sizes of a node. Raises `NotSupportedError` if the types of the node do
    not fit the parameters. The context records sizes that must be equal.
    """
    types = list(_types(function, context))
    sizes: dict[Var, Expr] = {}
    pairs = [
        (buffer, declared, size)
        for buffer, type_ in types
        for declared, size in zip(buffer.shape, type_.shape, strict=True)
    ]
    for _, declared, size in pairs:
        if isinstance(declared, Var):
            sizes.setdefault(declared, size)
    for buffer, declared, size in pairs:
        if not require(context, "equal", canonical(substitute(declared, sizes)), size):
            raise _misfit(buffer, dict(types)[buffer], sizes)
    named = _with_free_names(function, {v.name for size in sizes.values() for v in variables(size)})
    return _with_sizes(named, sizes)


def _types(function: LoopFunction, context: Context) -> Iterator[tuple[Buffer, TensorType]]:
    """Each input parameter with the type of its input. The ranks are equal."""
    params = function.input_params()
    count = sum(1 for index in range(len(context.node.inputs)) if context.has(index))
    if count != len(params):
        names = ", ".join(buffer.name for buffer in params)
        raise NotSupportedError(f"its kernel takes {len(params)} inputs ({names}), not {count}")
    for index, buffer in enumerate(params):
        type_ = context.type(index)
        if type_.dtype is not buffer.dtype or type_.rank != len(buffer.shape):
            raise _misfit(buffer, type_, {})
        yield buffer, type_


def _misfit(buffer: Buffer, type_: TensorType, sizes: Mapping[Var, Expr]) -> NotSupportedError:
    declared = f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"
    named = {v for size in buffer.shape for v in variables(size) if v in sizes}
    where = "".join(f", where {v} is {sizes[v]}" for v in sorted(named, key=lambda v: v.name))
    return NotSupportedError(f"its kernel takes {declared} for {buffer.name}{where}, not {type_}")


def _with_free_names(function: LoopFunction, names: Iterable[str]) -> LoopFunction:
    """The kernel whose buffers and variables, but for its symbols, have none of these names."""
    clashes = function.used_names() & set(names)
    if not clashes:
        return function
    used_names = {*names, *function.used_names()}
    buffers = {
        b: replace(b, name=fresh(b.name, used_names))
        for b in (*function.params, *function.allocations)
        if b.name in clashes
    }
    variables_ = {
        v: Var(fresh(v.name, used_names))
        for v in bound_variables(function.body)
        if v.name in clashes
    }
    body = replace_buffers(function.body, buffers)
    body = map_statements(
        substitute_statement(body, variables_), lambda s: rename_bound(s, variables_)
    )
    return replace(
        function,
        params=tuple(buffers.get(b, b) for b in function.params),
        allocations=tuple(buffers.get(b, b) for b in function.allocations),
        body=body,
    )


def _with_sizes(function: LoopFunction, sizes: Mapping[Var, Expr]) -> LoopFunction:
    """The kernel with sizes in place of its symbols."""

    def sized(buffer: Buffer) -> Buffer:
        shape = tuple(canonical(substitute(size, sizes)) for size in buffer.shape)
        return replace(buffer, shape=shape)

    all_buffers = (*function.params, *function.allocations)
    buffers = {buffer: sized(buffer) for buffer in all_buffers}
    symbols = {v for size in sizes.values() for v in variables(size)}
    return replace(
        function,
        params=tuple(buffers[b] for b in function.params),
        allocations=tuple(buffers[b] for b in function.allocations),
        symbols=tuple(sorted(symbols, key=lambda v: v.name)),
        body=substitute_statement(replace_buffers(function.body, buffers), sizes),
    )
