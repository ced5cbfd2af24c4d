"""Small types become wide ones for arithmetic, and bits in memory and in variables.

Needs: vectors and registers made, before the targets' own `legalise`. Guarantees: operators only on
bool and on numbers of 32 and 64 bits (but `select`, which only moves); no float of less than 32
bits and no integer of less than 8 anywhere: buffers and variables hold their bits (`small_types`).
Results are rounded or wrapped after every operation, which is exact: float32 has more than twice
the precision of any small float.

before (uint8, then float16)       after
    Y[i] = A[i] + B[i]                 Y[i] = cast(cast(A[i], int32) + cast(B[i], int32), uint8)
    Y[i] = A[i] + B[i]                 Y[i] = encode(decode(A[i]) + decode(B[i]))      (uint16)
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Call, Cast, Const, Expr, Var
from webmlc.loops.ir import (
    Buffer,
    Let,
    Load,
    LoopFunction,
    Stmt,
    Store,
    map_expressions,
    map_statements,
)
from webmlc.target.small_types import (
    SMALL_FLOATS,
    SMALL_INTEGERS,
    STORED,
    TINY_INTEGERS,
    bits_of,
    decode,
    encode,
    storage,
    to_odd,
)

_SMALL = SMALL_FLOATS | SMALL_INTEGERS


def legalise_types(function: LoopFunction) -> LoopFunction:
    """Widen every operation of `function` on a small type, and store small types as bits."""
    return replace(
        function,
        params=tuple(map(_buffer, function.params)),
        allocations=tuple(map(_buffer, function.allocations)),
        body=map_statements(map_expressions(function.body, _legal), _statement),
    )


def _buffer(buffer: Buffer) -> Buffer:
    return replace(buffer, dtype=storage(buffer.dtype)) if buffer.dtype in STORED else buffer


def _statement(node: Stmt) -> Stmt | None:
    match node:
        case Store(buffer=buffer, indices=indices, value=value) if buffer.dtype in STORED:
            return Store(_buffer(buffer), indices, value)
        case Let(var=var, value=value, body=body) if var.dtype in STORED:
            return Let(Var(var.name, storage(var.dtype)), value, body)
    return None


def _legal(root: Expr) -> Expr:
    """Bottom-up, with the original types at hand; an explicit stack."""
    done: dict[Expr, Expr] = {}
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        children = node.children()
        if children and not expanded:
            stack.append((node, True))
            stack.extend((c, False) for c in children)
            continue
        done[node] = _node(node, tuple(done[c] for c in children))
    return done[root]


def _node(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """The legal form of `node` over the legal forms of its children."""
    match node:
        case Const(value=value, dtype=dtype) if dtype in STORED:
            return bits_of(value, dtype)
        case Var(name=name, dtype=dtype) if dtype in STORED:
            return Var(name, storage(dtype))
        case Load(buffer=buffer) if buffer.dtype in STORED:
            return Load(_buffer(buffer), children)
        case Call(op="select", dtype=dtype):
            return Call("select", children, storage(dtype))
        case Call(op=op, args=args, dtype=dtype) if args[-1].dtype in _SMALL:
            small = args[-1].dtype
            wide = tuple(_widened(child, small) for child in children)
            if dtype is DType.bool:
                return Call(op, wide, dtype)
            return _narrowed(Call(op, wide, wide[-1].dtype), small)
        case Cast(value=value, dtype=dtype):
            return _cast(children[0], value.dtype, dtype)
        case Bitcast(value=value, dtype=dtype) if value.dtype in STORED or dtype in STORED:
            return children[0].astype(storage(dtype))
    changed = any(a is not b for a, b in zip(children, node.children(), strict=True))
    return node.rebuild(children) if changed else node


def _widened(value: Expr, dtype: DType) -> Expr:
    return decode(value, dtype) if dtype in STORED else value.astype(DType.int32)


def _narrowed(value: Expr, dtype: DType) -> Expr:
    return encode(value, dtype) if dtype in STORED else value.astype(dtype)


def _cast(value: Expr, source: DType, target: DType) -> Expr:
    wide = decode(value, source) if source in STORED else value
    if source == target:
        return value
    if target in TINY_INTEGERS:
        return encode(wide.astype(DType.int32), target)
    if target in SMALL_FLOATS:
        is_exact = target is DType.float16 and wide.dtype is DType.float64
        return encode(to_odd(wide) if is_exact else wide.astype(DType.float32), target)
    return Cast(wide, target) if wide.dtype != target else wide
