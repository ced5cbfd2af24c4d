"""Compute on small types in wide types, and store small types as bits.

Needs: vectors and registers exist; runs before the targets' own `legalise`. Guarantees: operators
apply only to bool and to numbers of 32 and 64 bits. (`select` is an exception: it only moves
values.) No float has less than 32 bits and no integer less than 8: buffers and variables hold the
bits (`small_types`). Each operation rounds or wraps its result. That is exact, because float32 has
more than twice the precision of any small float.

before (uint8, then float16)       after
    Y[i] = A[i] + B[i]                 Y[i] = cast(cast(A[i], int32) + cast(B[i], int32), uint8)
    Y[i] = A[i] + B[i]                 Y[i] = encode(decode(A[i]) + decode(B[i]))      (uint16)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Var
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
    decode_finite_half,
    encode,
    storage,
    to_odd,
)


def legalise_types(function: LoopFunction, printed: frozenset[DType] = frozenset()) -> LoopFunction:
    """Widen every operation of `function` on a small type, and store small types as bits. Types in
    `printed` stay: the target's printer widens and stores them.
    """
    legaliser = _Legaliser(STORED - printed, (SMALL_FLOATS | SMALL_INTEGERS) - printed)
    return replace(
        function,
        params=tuple(map(legaliser.buffer, function.params)),
        allocations=tuple(map(legaliser.buffer, function.allocations)),
        body=map_statements(
            map_expressions(function.body, legaliser.expression), legaliser.statement
        ),
    )


@dataclass(frozen=True, slots=True)
class _Legaliser:
    """The types to store as bits, and the types to widen for arithmetic. `results` are the legal
    forms of expressions, because many expressions share nodes.
    """

    stored: frozenset[DType]
    small: frozenset[DType]
    results: dict[Expr, Expr] = field(default_factory=dict)

    def buffer(self, buffer: Buffer) -> Buffer:
        """The buffer, with elements of the type that stores them."""
        return replace(buffer, dtype=self.storage(buffer.dtype))

    def storage(self, dtype: DType) -> DType:
        """The type that holds values of `dtype` in memory and in variables."""
        return storage(dtype) if dtype in self.stored else dtype

    def statement(self, node: Stmt) -> Stmt | None:
        match node:
            case Store(buffer=buffer, indices=indices, value=value) if buffer.dtype in self.stored:
                return Store(self.buffer(buffer), indices, value, node.stage)
            case Let(var=var, value=value, body=body) if var.dtype in self.stored:
                return Let(Var(var.name, self.storage(var.dtype)), value, body)
        return None

    def expression(self, root: Expr) -> Expr:
        """Rewrite an expression bottom-up with an explicit stack. Rules see the original types."""
        results = self.results
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if node in results:
                continue
            children = node.children
            if children and not expanded:
                stack.append((node, True))
                stack.extend([(child, False) for child in children])
                continue
            results[node] = self.node(node, tuple(map(results.__getitem__, children)))
        return results[root]

    def node(self, node: Expr, children: tuple[Expr, ...]) -> Expr:
        """The legal form of `node`, given the legal forms of its children."""
        match node:
            case Const(value=value, dtype=dtype) if dtype in self.stored:
                return bits_of(value, dtype)
            case Var(name=name, dtype=dtype) if dtype in self.stored:
                return Var(name, self.storage(dtype))
            case Load(buffer=buffer) if buffer.dtype in self.stored:
                return Load(self.buffer(buffer), children)
            case Call(op="finite"):
                return children[0]
            case Call(op="select", dtype=dtype):
                return Call("select", children, self.storage(dtype))
            case Call(op=op, args=args, dtype=dtype) if args[-1].dtype in self.small:
                small = args[-1].dtype
                wide_operands = tuple(self.widened(child, small) for child in children)
                if dtype is DType.bool:
                    return Call(op, wide_operands, dtype)
                return self.narrowed(Call(op, wide_operands, wide_operands[-1].dtype), small)
            case Cast(value=Call(op="finite", args=(value,)), dtype=DType.float32) if (
                value.dtype is DType.float16 and value.dtype in self.stored
            ):
                return decode_finite_half(children[0])
            case Cast(value=value, dtype=dtype):
                return self.cast(children[0], value.dtype, dtype)
            case Bitcast(value=value, dtype=dtype) if {value.dtype, dtype} & self.stored:
                return children[0].astype(self.storage(dtype))
        return node if children == node.children else node.rebuild(children)

    def widened(self, value: Expr, dtype: DType) -> Expr:
        """A stored or small value in the type that computes on it."""
        if isinstance(value, Broadcast):  # widen once, and keep the amount of a shift a scalar
            return Broadcast(self.widened(value.value, dtype), value.width)
        return decode(value, dtype) if dtype in self.stored else value.astype(DType.int32)

    def narrowed(self, value: Expr, dtype: DType) -> Expr:
        """A result, rounded or wrapped to the small type."""
        return encode(value, dtype) if dtype in self.stored else value.astype(dtype)

    def cast(self, value: Expr, source: DType, target: DType) -> Expr:
        """The conversion of a value of type `source`, given in its legal form."""
        wide_value = decode(value, source) if source in self.stored else value
        if source == target:
            return value
        if target in TINY_INTEGERS:
            return encode(wide_value.astype(DType.int32), target)
        if target in self.stored:
            is_exact = target is DType.float16 and wide_value.dtype is DType.float64
            return encode(
                to_odd(wide_value) if is_exact else wide_value.astype(DType.float32), target
            )
        return Cast(wide_value, target) if wide_value.dtype != target else wide_value
