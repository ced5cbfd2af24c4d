"""Compute each part of index expressions once, in the scope that it belongs to.

In: a kernel whose indices were hoisted. Out: an equal kernel. Its index variables are bound where
their operands are known, and no two of them have the same value. A quotient, a remainder, or a sum
without its constant that the text has several times is an index variable, too.

    p = b * 64 + t                             p = b * 64 + t
    x = A[p // 96 * 672 + t + 8]               q = p // 96
    p_1 = b * 64 + t                    ->     s = q * 672 + t
    Y[p_1 // 96 * 288] =                       Y[q * 288] = A[s + 8] * A[s + 9]
        x * A[p_1 // 96 * 672 + t + 9]

The drivers of real GPUs do this themselves. A software adapter computes and compiles the text
literally, and its division handles the four threads of a vector one after the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from webmlc.core.affine import from_terms, terms
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Call, Const, Expr, Leaf, Ramp, Var, call
from webmlc.core.rewrite import rewriter, substitution, variables, walk
from webmlc.loops.ir import (
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads_in,
    map_expressions,
    seq,
)
from webmlc.target.scoped import Names
from webmlc.target.webgpu.hoist_indices import DIVISIONS


def share_indices(function: LoopFunction) -> LoopFunction:
    """Needs hoisted indices. Guarantees equal results."""
    sharer = _Sharer(Names.of(function), dict.fromkeys(function.symbols, 0))
    body = sharer.scope(function.body)
    values = sharer.inlined()
    return replace(function, body=map_expressions(body, substitution(values)) if values else body)


@dataclass(slots=True)
class _Sharer:
    """A walk over a function, with the scopes around the current statement."""

    names: Names
    levels: dict[Var, int]
    """The scope that binds each variable."""
    scopes: list[dict[Expr, Var]] = field(default_factory=list)
    """The index variables of each scope, by their values."""
    aliases: dict[Var, Expr] = field(default_factory=dict)
    """The index variables that were removed, with their replacements."""
    created: dict[Var, Expr] = field(default_factory=dict)
    """The index variables of this pass, with their values."""
    uses: Counter[Var] = field(default_factory=Counter)
    """The number of times that the text has each variable."""

    def scope(self, body: Stmt, var: Var | None = None) -> Stmt:
        """Walk a body in a scope of its own, which `var` opens, and bind the index variables of the
        scope in front of it.
        """
        if var is not None:
            self.levels[var] = len(self.scopes)
        self.scopes.append({})
        body = self.statement(body)
        for value, bound in reversed(self.scopes.pop().items()):
            if bound not in self.created or self.uses[bound] > 1:
                body = Let(bound, value, body)
        return body

    def statement(self, root: Stmt) -> Stmt:
        """Rewrite a statement over shared index variables."""
        while isinstance(root, Let) and _is_pure(root.value):
            self.move(root.var, root.value)
            root = root.body
        match root:
            case Seq(statements=statements):
                return seq(*map(self.statement, statements))
            case Let(var=var, value=value, body=body):
                new_value = self.counted(self.expression(value))
                return Let(var, new_value, self.scope(body, var))
            case For(var=var, extent=extent, body=body):
                new_extent = self.counted(substitution(self.aliases)(extent))
                return replace(root, extent=new_extent, body=self.scope(body, var))
            case If(condition=condition, then=then, otherwise=otherwise):
                new_condition = self.counted(self.expression(condition))
                new_then = self.statement(then)
                new_otherwise = None if otherwise is None else self.statement(otherwise)
                return If(new_condition, new_then, new_otherwise)
            case Store(indices=indices, value=value):
                new_indices = tuple(self.counted(self.index(self.expression(i))) for i in indices)
                new_value = self.counted(self.expression(value))
                return replace(root, indices=new_indices, value=new_value)
        return root

    def move(self, var: Var, value: Expr) -> None:
        """Bind an index variable in the outermost scope that knows its operands, or replace it by
        an expression or a variable with the same value.
        """
        new_value = self.expression(value)
        replacement = new_value if isinstance(new_value, Leaf) else self.bound(new_value)
        if replacement is None:
            self.enter(var, new_value)
        else:
            self.aliases[var] = replacement

    def expression(self, root: Expr) -> Expr:
        """An expression whose quotients, remainders and indices are shared."""
        return rewriter(self.shared)(substitution(self.aliases)(root))

    def shared(self, node: Expr) -> Expr | None:
        """The replacement of a node whose children are shared; `None` for no replacement."""
        match node:
            case Call(op=op) if op in DIVISIONS and _is_pure(node):
                return self.bind(node)
            case Load(buffer=buffer, indices=indices):
                return Load(buffer, tuple(map(self.index, indices)))
        return None

    def index(self, index: Expr) -> Expr:
        """An index, or the base of a ramp, as a shared sum and a constant."""
        match index:
            case Ramp(base=Call(op="mul", args=(unit, Const() as lanes)), stride=stride):
                return Ramp(call("mul", self.sum(unit), lanes), stride, index.width)
            case Ramp():
                return index
        return self.sum(index)

    def sum(self, index: Expr) -> Expr:
        """A sum whose part without its constant is shared."""
        if not _is_pure(index):
            return index
        parts = dict(terms(index))
        constant = parts.pop((), 0)
        part = from_terms(parts)
        match part:
            case Var() | Const() | Call(op="mul", args=(Var(), Const())):
                return index
        return call("add", self.bind(part), Const(constant))

    def bind(self, value: Expr) -> Expr:
        """The variable of a value, which is created if the value has none."""
        bound = self.bound(value)
        if bound is None:
            bound = Var(self.names.fresh("index"))
            self.enter(bound, value)
            self.created[bound] = value
        return bound

    def enter(self, var: Var, value: Expr) -> None:
        """Bind a variable in the outermost scope that knows the operands of its value."""
        level = self.level(value)
        self.scopes[level][self.counted(value)] = var
        self.levels[var] = level

    def counted(self, expr: Expr) -> Expr:
        """The expression, after its index variables are counted."""
        self.uses.update([expr] if isinstance(expr, Var) else [])
        for node in walk(expr):
            self.uses.update(child for child in node.children if isinstance(child, Var))
        return expr

    def bound(self, value: Expr) -> Var | None:
        """The variable of a value; `None` if the value has none."""
        return self.scopes[self.level(value)].get(value)

    def level(self, value: Expr) -> int:
        """The innermost scope that binds an operand of a value."""
        return max((self.levels[var] for var in variables(value)), default=0)

    def inlined(self) -> dict[Var, Expr]:
        """The values of this pass's variables that the text uses once."""
        values: dict[Var, Expr] = {}
        for var, value in self.created.items():
            if self.uses[var] == 1:
                values[var] = substitution(values)(value)
        return values


def _is_pure(value: Expr) -> bool:
    """True for a scalar index that reads no memory."""
    return value.dtype == INDEX and value.lanes == 1 and not loads_in(value)
