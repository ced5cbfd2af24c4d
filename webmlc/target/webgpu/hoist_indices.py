"""Move the parts of index expressions that a loop does not change in front of it.

In: a lowered, legalised function. Out: an equal one whose indices are sums of a `Let` made before
the loop, the loop's own terms and a constant. Drivers of real GPUs would find this themselves;
software adapters evaluate what is written.

    for k in range(64):                       base = m * 512
        ... A[m * 512 + k * 8 + 4]     ->     for k in range(64):
                                                  ... A[base + k * 8 + 4]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from webmlc.core.affine import Term, from_terms, terms
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Call, Const, Expr, Ramp, Var, call
from webmlc.core.rewrite import rewrite, walk
from webmlc.loops.ir import For, If, Let, Load, LoopFunction, Seq, Stmt, Store, seq
from webmlc.target import VECTOR_LANES
from webmlc.target.scoped import Names

_DIVISIONS = frozenset({"truncdiv", "truncmod", "shift_right", "bit_and"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def hoist_indices(function: LoopFunction, views: frozenset[str]) -> LoopFunction:
    """Needs legalised indices. Guarantees: bases of gathers from scalar views (not in `views`) are
    variables.
    """
    counts: dict[Expr, int] = {}
    _hoist(function, views, counts)
    body = _hoist(function, views, {e: n for e, n in counts.items() if n > 1})
    return replace(function, body=body)


def _hoist(function: LoopFunction, views: frozenset[str], counts: dict[Expr, int]) -> Stmt:
    """One walk: the first counts what sums have in common, the second gives it lets."""
    hoister = _Hoister(Names.of(function), views, counts, bool(counts))
    hoister.levels = dict.fromkeys(function.symbols, 0)
    return hoister.scope(False, lambda: hoister.statement(function.body))


@dataclass(slots=True)
class _Hoister:
    """One walk: the scopes around the current statement, each with the lets it will open with."""

    names: Names
    views: frozenset[str]
    counts: dict[Expr, int]  # sums without their constants, by how often they occur
    binds_common: bool
    levels: dict[Var, int] = field(default_factory=dict)  # the scope that each variable is bound in
    lets: list[dict[Expr, Var]] = field(default_factory=list)
    is_loop: list[bool] = field(default_factory=list)
    local: dict[Expr, Var] = field(default_factory=dict)  # lets of the current statement

    def scope(self, is_loop: bool, walk_body: Callable[[], Stmt]) -> Stmt:
        """Open a scope (of a loop, a let or the function), walk its body, and put its lets in
        front.
        """
        self.lets.append({})
        self.is_loop.append(is_loop)
        body = walk_body()
        self.is_loop.pop()
        return _with_lets(self.lets.pop(), body)

    def statement(self, root: Stmt) -> Stmt:
        match root:
            case Seq(statements=statements):
                return seq(*(self.statement(s) for s in statements))
            case For(var=var, body=body, kind=kind):
                self.levels[var] = len(self.lets)
                inner = self.scope(kind == "serial", lambda: self.statement(body))
                return replace(root, body=inner)
            case Let(var=var, value=value, body=body):
                bound = self.around(lambda: Let(var, self.expression(value), Seq(())))
                self.levels[var] = len(self.lets)
                inner = self.scope(False, lambda: self.statement(body))
                return _replace_innermost(bound, inner)
            case If(condition=condition, then=then, otherwise=otherwise):
                other = None if otherwise is None else self.statement(otherwise)
                then = self.statement(then)
                return self.around(lambda: If(self.expression(condition), then, other))
            case Store(buffer=buffer, indices=indices, value=value):
                return self.around(
                    lambda: Store(
                        buffer,
                        tuple(self.index(i, buffer.name) for i in indices),
                        self.expression(value),
                    )
                )
        return root

    def around(self, make: Callable[[], Stmt]) -> Stmt:
        """A statement with the lets that its own expressions asked for."""
        outer, self.local = self.local, {}
        made = make()
        result, self.local = _with_lets(self.local, made), outer
        return result

    def expression(self, root: Expr) -> Expr:
        def rule(node: Expr) -> Expr | None:
            match node:
                case Load(buffer=buffer, indices=indices):
                    return Load(buffer, tuple(self.index(i, buffer.name) for i in indices))
                case Call(op=op, args=(a, b)) if op in _COMPARISONS and a.dtype == INDEX:
                    return Call(op, (self.sum(a), self.sum(b)), node.dtype)
            return None

        return rewrite(root, rule)

    def index(self, index: Expr, buffer: str) -> Expr:
        """A hoisted index. Bases into vector views are hoisted in units of vectors, and stay `4 *
        unit`.
        """
        match index:
            case Ramp(base=Const()):
                return index
            case Ramp(base=base, stride=Const(value=1) as one, width=width) if buffer in self.views:
                unit = self.sum(_exact_quotient(base))
                return Ramp(call("mul", unit, Const(VECTOR_LANES)), one, width)
            case Ramp(base=base, stride=stride, width=width):
                return Ramp(self.bind(self.sum(base), self.local), stride, width)
        return self.sum(index)

    def sum(self, index: Expr) -> Expr:
        """Split a sum by the loops its terms change in."""
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
        """What a sum is without its constant: bound where others have it in common."""
        match part:
            case Var() | Const() | Call(op="mul", args=(Var(), Const())):
                return part
        if any(isinstance(node, Load) for node in walk(part)):
            return part  # the scope may store to what it reads
        if self.binds_common:
            return self.bind(part, self.lets[-1]) if part in self.counts else part
        self.counts[part] = self.counts.get(part, 0) + 1
        return part

    def atom(self, atom: Expr) -> Expr:
        """A quotient or remainder over a let of what it divides."""
        match atom:
            case Call(op=op, args=(Call() as a, b), dtype=dtype) if op in _DIVISIONS:
                parts = dict(terms(a))
                constant = parts.pop((), 0)
                if any(isinstance(n, Load) for n in walk(a)) or len(parts) < 2:
                    return atom
                place = max(self.place(term) for term in parts)
                rest = self.bind(from_terms(parts), self.lets[place])
                return Call(op, (call("add", rest, Const(constant)), b), dtype)
        return atom

    def bind(self, value: Expr, lets: dict[Expr, Var]) -> Expr:
        if isinstance(value, Var | Const):
            return value
        if value not in lets:
            lets[value] = Var(self.names.fresh("base"))
            self.levels[lets[value]] = len(self.lets) - 1
        return lets[value]

    def place(self, term: Term) -> int:
        """The outermost useful scope of a term: just outside the first loop that does not change
        it.
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


def _add(left: Expr, parts: dict[Term, int]) -> Expr:
    if left == Const(0):
        return from_terms(parts)
    return from_terms({(left,): 1, **parts})


def _exact_quotient(base: Expr) -> Expr:
    """A quarter of a base: `legalise` has put it in the form `unit * 4`."""
    match base:
        case Call(op="mul", args=(unit, Const(value=value))) if value == VECTOR_LANES:
            return unit
    return from_terms({t: f // VECTOR_LANES for t, f in terms(base).items()})


def _with_lets(lets: dict[Expr, Var], body: Stmt) -> Stmt:
    for value, var in reversed(lets.items()):
        body = Let(var, value, body)
    return body


def _replace_innermost(lets: Stmt, body: Stmt) -> Stmt:
    """Put `body` under a chain of lets that ends in one with an empty body."""
    assert isinstance(lets, Let)
    inner = body if lets.body == Seq(()) else _replace_innermost(lets.body, body)
    return replace(lets, body=inner)
