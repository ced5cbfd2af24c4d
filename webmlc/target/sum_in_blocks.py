"""Sum long runs of float32 in blocks, so that the error does not grow with their length.

In: a lowered function that adds up more than `LONGEST_SUM` numbers, or `LONGEST_PRODUCT` products,
one after the other, in a register or an element of memory. Out: sums of blocks of `BLOCK` numbers,
which are added without an error: a second register holds the rounding error of the first (Knuth's
two-sum). A loop of symbolic extent has both forms, and a branch. before → after:

    for k in range(n):             total, error, s = s, 0, 0
        s = s + x[k]        →      for block in range((n + 255) // 256):
                                       for k in range(min(256, n - block * 256)):
                                           s = s + x[block * 256 + k]
                                       sum = total + s
                                       error = error + ((total - (sum - (sum - total))) + ...)
                                       total, s = sum, 0
                                   s = total + error

One accumulator stops growing at 2^24 equal terms, and has lost a thousandth of its sum before.
Pairwise summation bounds the error by the logarithm of the length; here it is the error of one
block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from webmlc.core.bounds import bounds
from webmlc.core.dtypes import DType
from webmlc.core.expr import (
    Call,
    Const,
    Expr,
    Var,
    as_int,
    call,
    literal,
    minimum,
    scalar_of,
    select,
)
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
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
    accessed_buffers,
    loads_in,
    seq,
    substitute_statement,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import read_register, register_index
from webmlc.target.scoped import Names, Scope, inside, map_scoped, symbol_ranges

Indices = tuple[Expr, ...]
BLOCK = 256
"""The numbers of a block. A block of equal numbers has an error of some 3e-6. Chosen by hand: the
sums of blocks then take 2 % of the time of a reduction in the first-level cache (estimated)."""
LONGEST_SUM = 1024
"""The most numbers that one register adds up without blocks. Derived: the share of a lane in a row
of 16,384 numbers, which four vectors add up. The rows of all benchmark models are shorter."""
LONGEST_PRODUCT = 16384
"""The most products of two values that one register adds up without blocks. Such terms mostly have
both signs. Derived: the matrices of benchmark models are not deeper."""
FEW_REGISTERS = 8
"""The most registers that add up a symbolic number of products in blocks. Larger tiles get no
blocks: a second form of the loop made a product of matrices of 64 rows 6 % slower (in wasmtime)."""
_ENDLESS = 1 << 30
"""More terms than memory holds: the assumed length of a loop of symbolic extent."""


def sum_in_blocks(function: LoopFunction) -> LoopFunction:
    """Rewrite every loop with long sums.

    needs: registers. guarantees: the same sums but for rounding; no element adds up more than the
    limits, unless the loop uses the element otherwise.
    """
    rewriting = _Rewriting(Names.of(function))
    body, _ = rewriting.visit(function.body, symbol_ranges(function))
    if not rewriting.added:
        return function
    return replace(function, body=body, allocations=(*function.allocations, *rewriting.added))


@dataclass(frozen=True, slots=True)
class _Sums:
    """The effects of a statement on buffers. By buffer, `terms` is the most terms that it adds to
    one element, `places` holds the indices of that element, and `starts` holds the variables that
    are 0 where it sets the element. `products` are the buffers whose terms are products, and `uses`
    are the buffers with any other use.
    """

    terms: dict[Buffer, int] = field(default_factory=dict)
    places: dict[Buffer, Indices] = field(default_factory=dict)
    products: frozenset[Buffer] = frozenset()
    starts: dict[Buffer, frozenset[Var]] = field(default_factory=dict)
    uses: frozenset[Buffer] = frozenset()

    def limit(self, buffer: Buffer) -> int:
        """The most terms that are added to an element of a buffer without blocks."""
        return LONGEST_PRODUCT if buffer in self.products else LONGEST_SUM

    def without(self, uses: frozenset[Buffer]) -> _Sums:
        """The same effects with further `uses`, whose buffers hold no sums."""
        terms = {b: n for b, n in self.terms.items() if b not in uses}
        places = {b: i for b, i in self.places.items() if b not in uses}
        starts = {b: v for b, v in self.starts.items() if b not in uses}
        return _Sums(terms, places, self.products, starts, self.uses | uses)

    def outside(self, var: Var) -> _Sums:
        """The same effects, outside the scope of a variable that places may depend on."""
        inner = {b for b, place in self.places.items() if any(var in variables(i) for i in place)}
        return self.without(frozenset(inner))


@dataclass(slots=True)
class _Rewriting:
    """The names of a function, and the registers added so far."""

    names: Names
    added: list[Buffer] = field(default_factory=list)

    def visit(self, stmt: Stmt, scope: Scope) -> tuple[Stmt, _Sums]:
        """The rewritten statement, and its effects on buffers."""
        match stmt:
            case Seq(statements=statements):
                pairs = [self.visit(s, scope) for s in statements]
                return seq(*(s for s, _ in pairs)), _together([sums for _, sums in pairs])
            case For(body=body, kind=kind):
                inner, sums = self.visit(body, inside(stmt, scope))
                if kind == "serial":
                    return self.loop(replace(stmt, body=inner), sums, scope)
                sums = sums.without(frozenset({*sums.terms, *sums.starts}))
                return replace(stmt, body=inner), sums
            case Let(var=var, value=value, body=body):
                inner, sums = self.visit(body, inside(stmt, scope))
                return replace(stmt, body=inner), sums.outside(var).without(_used([value]))
            case If(then=Store(buffer=buffer) as then) if zeros := _starts(stmt, scope):
                return stmt, _Sums(places={buffer: then.indices}, starts={buffer: zeros})
            case If(condition=condition, then=then, otherwise=otherwise):
                pairs = [self.visit(s, scope) for s in (then, otherwise) if s is not None]
                sums = _together([sums for _, sums in pairs]).without(_used([condition]))
                return If(condition, *(s for s, _ in pairs)), sums
            case Store(buffer=buffer, indices=indices) if (term := _term(stmt)) is not None:
                products = frozenset({buffer}) if _is_product(term) else frozenset()
                uses = _used([term, *indices])
                return stmt, _Sums({buffer: 1}, {buffer: indices}, products).without(uses)
        return stmt, _Sums(uses=frozenset(accessed_buffers(stmt)))

    def loop(self, loop: For, sums: _Sums, scope: Scope) -> tuple[Stmt, _Sums]:
        """A loop, in blocks where it adds too many terms to some elements."""
        restarted = {b for b, v in sums.starts.items() if loop.var not in v}
        sums = sums.outside(loop.var).without(frozenset(restarted))
        high = bounds(loop.extent, scope).high
        trips = _ENDLESS if high > _ENDLESS else max(int(high), 0)
        long = {r: n for r, n in sums.terms.items() if n * trips > sums.limit(r)}
        if as_int(loop.extent) is None and len(long) > FEW_REGISTERS:
            long = {r: n for r, n in long.items() if r not in sums.products}
        terms = {r: BLOCK if r in long else n * trips for r, n in sums.terms.items()}
        after = replace(sums, terms=terms)
        if not long:
            return loop, after
        return self.in_blocks(loop, long, sums, scope), after

    def in_blocks(self, loop: For, long: Mapping[Buffer, int], sums: _Sums, scope: Scope) -> Stmt:
        """A loop whose iterations add terms to elements, in blocks of about `BLOCK` terms."""
        limit = min(map(sums.limit, long))
        terms = max(long.values())
        extent = loop.extent
        length = as_int(extent)
        size = _block_size(length, max(1, BLOCK // terms))
        totals = [self.total(Load(b, sums.places[b]), b in sums.starts) for b in long]
        start, step, end = zip(*totals, strict=True)
        outer = loop
        if size > 1:
            block = Var(self.names.fresh(f"{loop.var.name}_block"))
            inner = Var(self.names.fresh(loop.var.name))
            body = substitute_statement(loop.body, {loop.var: block * size + inner})
            block_extent = minimum(Const(size), extent - block * size)
            outer = For(block, (extent + size - 1) // size, For(inner, block_extent, body))
        blocks = seq(*start, replace(outer, body=seq(outer.body, *step)), *end)
        blocks = map_scoped(blocks, scope, simplify)
        if length is not None:
            return blocks
        is_long = call("gt", extent, Const(max(limit // terms, 1)))
        return If(is_long, blocks, loop)

    def total(self, element: Load, is_started: bool) -> tuple[Stmt, Stmt, Stmt]:
        """Three statements: begin the total of an element's blocks, add a block to the total, and
        move the total to the element. If the loop starts the element itself (`is_started`), the
        element has no value before the loop.
        """
        total, error, together = (self.register(element, n) for n in ("total", "error", "sum"))
        block, t, e, s = element, *map(read_register, (total, error, together))
        grown = s - t
        lost = (t - (s - grown)) + (block - grown)
        zero = literal(0.0, block)
        cleared = Store(element.buffer, element.indices, zero)
        begin = seq(_set(total, zero if is_started else block), _set(error, zero), cleared)
        add = seq(_set(together, t + block), _set(error, e + lost), _set(total, s), cleared)
        # The rounding error of an infinite total is a NaN.
        result = select(call("isnan", e), t, t + e)
        return begin, add, Store(element.buffer, element.indices, result)

    def register(self, element: Load, name: str) -> Buffer:
        """A new register with the lanes of an element."""
        shape = () if element.lanes == 1 else (Const(VECTOR_LANES),)
        name = self.names.fresh(f"{element.buffer.name}_{name}")
        self.added.append(Buffer(name, shape, DType.float32, "local"))
        return self.added[-1]


def _together(parts: Sequence[_Sums]) -> _Sums:
    """The effects of several statements on buffers. A buffer counts as used, not as summed, if two
    elements are summed, or if it has another use.
    """
    terms: dict[Buffer, int] = {}
    places: dict[Buffer, Indices] = {}
    uses = set[Buffer]().union(*(part.uses for part in parts))
    for part in parts:
        for buffer, count in part.terms.items():
            terms[buffer] = terms.get(buffer, 0) + count
        for buffer, place in part.places.items():
            if places.setdefault(buffer, place) != place:
                uses.add(buffer)
    products = frozenset[Buffer]().union(*(part.products for part in parts))
    starts = {buffer: v for part in parts for buffer, v in part.starts.items()}
    return _Sums(terms, places, products, starts).without(frozenset(uses))


def _used(values: Sequence[Expr]) -> frozenset[Buffer]:
    """The buffers that expressions read."""
    return frozenset(load.buffer for value in values for load in loads_in(value))


def _starts(stmt: If, scope: Scope) -> frozenset[Var]:
    """The loops in whose first iterations a statement sets an element to a constant."""
    match stmt:
        case If(
            condition=Call(op="eq", args=(index, Const(value=0))),
            then=Store(value=value),
            otherwise=None,
        ) if isinstance(scalar_of(value), Const):
            return variables(index) if bounds(index, scope).low >= 0 else frozenset()
    return frozenset()


def _term(store: Store) -> Expr | None:
    """The term that an update adds to an element of float32; None for any other store."""
    element = Load(store.buffer, store.indices)
    if store.buffer.dtype is not DType.float32:
        return None
    match store.value:
        case Call(op="add", args=(a, b)) if element in (a, b):
            term = b if a == element else a
        case Call(op="fma", args=(a, b, c)) if c == element:
            term = call("mul", a, b)
        case _:
            return None
    return None if element in loads_in(term) else term


def _is_product(term: Expr) -> bool:
    """True for a product of two values that differ."""
    match term:
        case Call(op="mul", args=(a, b)):
            return a != b and not any(isinstance(scalar_of(x), Const) for x in (a, b))
    return False


def _block_size(extent: int | None, size: int) -> int:
    """The iterations of a block, at most `size`. If a number between half of `size` and `size`
    divides the extent, no block is shorter than the others.
    """
    if extent is None:
        return size
    return next((n for n in range(size, size // 2, -1) if extent % n == 0), size)


def _set(register: Buffer, value: Expr) -> Store:
    return Store(register, register_index(register), value)
