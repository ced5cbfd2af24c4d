"""Move the parts of index expressions that a loop does not change in front of the loop.

In: a lowered, legalised function. Out: an equal function, whose indices are sums of a `Let` before
the loop, the loop's own terms, and a constant. The drivers of real GPUs would do this themselves,
but software adapters evaluate the expressions as written.

    for k in range(64):                       base = m * 512
        ... A[m * 512 + k * 8 + 4]     ->     for k in range(64):
                                                  ... A[base + k * 8 + 4]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from webmlc.core.affine import Term, from_terms, terms
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Call, Const, Expr, Leaf, Ramp, Var, call
from webmlc.core.rewrite import bottom_up, postorder, walk
from webmlc.loops.ir import (
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    loads_in,
    seq,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.scoped import Names, join_lets

DIVISIONS = frozenset({"truncdiv", "truncmod", "shift_right", "bit_and"})
"""The quotients and remainders that legalised indices contain."""
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
"""The comparisons whose operands are sums like indices."""


def hoist_indices(function: LoopFunction) -> LoopFunction:
    """Needs legalised indices. Guarantees that every gather from memory that is not in vectors has
    a variable as its base.
    """
    counts: dict[Expr, int] = {}
    _hoist(function, counts)
    body = _hoist(function, {e: n for e, n in counts.items() if n > 1})
    return replace(function, body=body)


def _hoist(function: LoopFunction, counts: dict[Expr, int]) -> Stmt:
    """Count the common parts of sums in a first walk, and bind them in a second one."""
    hoister = _Hoister(Names.of(function), counts, bool(counts))
    hoister.levels = dict.fromkeys(function.symbols, 0)
    return hoister.scope(False, lambda: hoister.statement(function.body))


@dataclass(slots=True)
class _Hoister:
    """One walk over a function, with the scopes around the current statement."""

    names: Names
    counts: dict[Expr, int]  # how often the text has each sum, constants left out
    binds_common: bool
    levels: dict[Var, int] = field(default_factory=dict)  # the scope that each variable is bound in
    lets: list[dict[Expr, Var]] = field(default_factory=list)
    is_loop: list[bool] = field(default_factory=list)
    local: dict[Expr, Var] = field(default_factory=dict)  # lets of the current statement
    uses: int = 1  # how often the text repeats the node that is rewritten

    def scope(self, is_loop: bool, walk_body: Callable[[], Stmt]) -> Stmt:
        """Open a scope (of a loop, a let, or the function), walk its body, and put the lets of the
        scope in front of it.
        """
        self.lets.append({})
        self.is_loop.append(is_loop)
        body = walk_body()
        self.is_loop.pop()
        return _with_lets(self.lets.pop(), body)

    def statement(self, root: Stmt) -> Stmt:
        """Rewrite the expressions of a statement over hoisted parts."""
        match root:
            case Seq(statements=statements):
                return seq(*(self.statement(s) for s in statements))
            case For(var=var, body=body, kind=kind):
                self.levels[var] = len(self.lets)
                inner = self.scope(kind == "serial", lambda: self.statement(body))
                return replace(root, body=inner)
            case Let(var=var, value=value, body=body):
                let = self.around(lambda: Let(var, self.expression(value), Seq(())))
                self.levels[var] = len(self.lets)
                inner = self.scope(False, lambda: self.statement(body))
                return _replace_innermost(let, inner)
            case If(condition=condition, then=then, otherwise=otherwise):
                new_otherwise = None if otherwise is None else self.statement(otherwise)
                then = self.statement(then)
                return self.around(lambda: If(self.expression(condition), then, new_otherwise))
            case Store(buffer=buffer, indices=indices, value=value, stage=stage):
                return self.around(
                    lambda: Store(
                        buffer,
                        tuple(self.index(i, buffer) for i in indices),
                        self.expression(value),
                        stage,
                    )
                )
        return root

    def around(self, make: Callable[[], Stmt]) -> Stmt:
        """The statement that `make` returns, under the lets that its expressions created."""
        outer_lets, self.local = self.local, {}
        statement = make()
        result, self.local = _with_lets(self.local, statement), outer_lets
        return result

    def expression(self, root: Expr) -> Expr:
        """An expression with its indices and index comparisons hoisted."""
        if not _has_sums(root):
            return root
        results: dict[Expr, Expr] = {}
        uses = {} if self.binds_common else _uses(root)
        for node in postorder(root, _parents_of_sums, results):
            self.uses = uses.get(node, 1)
            children = node.children
            new_children = tuple([results.get(child, child) for child in children])
            new = node if new_children == children else node.rebuild(new_children)
            match new:
                case Load(buffer=buffer, indices=indices):
                    new = Load(buffer, tuple(self.index(i, buffer) for i in indices))
                case Call(op=op, args=(a, b)) if op in _COMPARISONS and a.dtype == INDEX:
                    new = Call(op, (self.sum(a), self.sum(b)), new.dtype)
            results[node] = new
        self.uses = 1
        return results[root]

    def index(self, index: Expr, buffer: Buffer) -> Expr:
        """A hoisted index. A base into memory in vectors is hoisted in units of vectors, and keeps
        the form `4 * unit`.
        """
        match index:
            case Ramp(base=Const()):
                return index
            case Ramp(base=base, stride=Const(value=1) as unit_stride, width=width) if (
                buffer.in_vectors
            ):
                unit = self.sum(_exact_quotient(base))
                return Ramp(call("mul", unit, Const(VECTOR_LANES)), unit_stride, width)
            case Ramp(base=base, stride=stride, width=width):
                return Ramp(self.bind(self.sum(base), self.local), stride, width)
        return self.sum(index)

    def sum(self, index: Expr) -> Expr:
        """Split a sum by the scopes that its terms can move to."""
        if index.lanes > 1:
            return index
        groups: dict[int, dict[Term, int]] = {}
        innermost = len(self.lets) - 1
        constant = 0
        for term, factor in terms(index).items():
            if not term:
                constant = factor
                continue
            place = self.place(term)
            atoms = tuple(self.atom(atom) for atom in term)
            groups.setdefault(place, {})[atoms] = factor
        result: Expr = Const(0)
        for level in sorted(groups):
            result = _add(result, groups[level])
            if level < innermost:
                result = self.bind(result, self.lets[level])
        return call("add", self.common(result), Const(constant))

    def common(self, part: Expr) -> Expr:
        """The part of a sum without its constant. It is bound where other sums share it."""
        match part:
            case Var() | Const() | Call(op="mul", args=(Var(), Const())):
                return part
        if loads_in(part):
            return part  # the scope may store to the buffer that it reads
        if self.binds_common:
            return self.bind(part, self.lets[-1]) if part in self.counts else part
        self.counts[part] = self.counts.get(part, 0) + self.uses
        return part

    def atom(self, atom: Expr) -> Expr:
        """A quotient or remainder whose dividend, without its constant, is bound by a let."""
        match atom:
            case Call(op=op, args=(Call() as a, b), dtype=dtype) if op in DIVISIONS:
                parts = dict(terms(a))
                constant = parts.pop((), 0)
                if loads_in(a) or len(parts) < 2:
                    return atom
                place = max(self.place(term) for term in parts)
                base = self.bind(from_terms(parts), self.lets[place])
                return Call(op, (call("add", base, Const(constant)), b), dtype)
        return atom

    def bind(self, value: Expr, lets: dict[Expr, Var]) -> Expr:
        """The variable of a value, bound by one of `lets`."""
        if isinstance(value, Leaf):
            return value
        if value not in lets:
            lets[value] = Var(self.names.fresh("base"))
            self.levels[lets[value]] = len(self.lets) - 1
        return lets[value]

    def place(self, term: Term) -> int:
        """The outermost useful scope for a term: just outside the first loop that does not
        change the term.
        """
        innermost = len(self.lets) - 1
        level = 0
        for atom in term:
            for node in walk(atom):
                match node:
                    case Load():
                        return innermost
                    case Var():
                        level = max(level, self.levels.get(node, innermost))
        for inner in range(level + 1, innermost + 1):
            if self.is_loop[inner]:
                return inner - 1
        return innermost


@bottom_up()
def _has_sums(root: Expr) -> bool:
    """True where an expression has an index that is not constant, or compares indices."""
    match root:
        case Const() | Var():
            return False
        case Load(indices=indices) if not all(_is_constant(index) for index in indices):
            return True
        case Call(op=op, args=(a, _)) if op in _COMPARISONS and a.dtype == INDEX:
            return True
    return any(map(_has_sums, root.children))


def _is_constant(index: Expr) -> bool:
    return isinstance(index.base if isinstance(index, Ramp) else index, Const)


def _parents_of_sums(node: Expr) -> tuple[Expr, ...]:
    """The children of a node that have indices or compare them."""
    return tuple(filter(_has_sums, node.children))


def _uses(root: Expr) -> dict[Expr, int]:
    """The number of times that the text of an expression repeats each node that `_has_sums`."""
    uses: dict[Expr, int] = {}
    for node in postorder(root, _parents_of_sums, uses):
        uses[node] = 0
    uses[root] = 1
    for node in reversed(list(uses)):  # users first
        for child in _parents_of_sums(node):
            uses[child] += uses[node]
    return uses


def _add(left: Expr, parts: dict[Term, int]) -> Expr:
    if left == Const(0):
        return from_terms(parts)
    return from_terms({(left,): 1, **parts})


def _exact_quotient(base: Expr) -> Expr:
    """A base divided by the lanes. `legalise` has given it the form `unit * 4`."""
    match base:
        case Call(op="mul", args=(unit, Const(value=value))) if value == VECTOR_LANES:
            return unit
    return from_terms({t: f // VECTOR_LANES for t, f in terms(base).items()})


def _with_lets(lets: dict[Expr, Var], body: Stmt) -> Stmt:
    return join_lets([*((var, value) for value, var in lets.items()), body])


def _replace_innermost(lets: Stmt, body: Stmt) -> Stmt:
    """Put `body` into the innermost let of a chain, whose body is empty."""
    assert isinstance(lets, Let)
    inner = body if lets.body == Seq(()) else _replace_innermost(lets.body, body)
    return replace(lets, body=inner)
