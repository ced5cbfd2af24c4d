"""The facts that schedule rules need of a loop function: how its blocks read and write memory, and
the role of each axis.

In: a `LoopFunction` and its blocks. Out: facts; nothing here changes a function. Shared by the
rules of all targets.

    Y[m, n] += A[m, k] * B[n // 8, k, n % 8]   ->   Contraction: m is a row, n is a column (the lane
    axis), k is reduced
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from webmlc.core.affine import literal_stride
from webmlc.core.bounds import SYMBOL, Interval, bounds
from webmlc.core.combination import Combination
from webmlc.core.dtypes import INDEX, LANE_TYPES, DType
from webmlc.core.expr import Call, Cast, Const, Expr, Var, as_int, call, const
from webmlc.core.machine import POLYNOMIAL_COST, TYPICAL_SIZE
from webmlc.core.rewrite import evaluate, substitute, variables, walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.simplify import prove_equal, simplify
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    Load,
    LoopFunction,
    Stmt,
    Store,
    blocks,
    child_statements,
    expressions,
    loads,
    loads_in,
    stores,
)
from webmlc.loops.write_out_combinations import write_out_combinations
from webmlc.schedule.tree import cached_by_identity, path_to_block, ranges_along

_LANE = Var("analysis.lane")
_GROUP = Var("analysis.group")
_PRODUCTS = frozenset({"mul", "dot_u8_i8", "dot_u7_i8", "dot_i8"})
"""The operators that multiply two operands of a contraction."""


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a buffer by a block, as a flat row-major element index over the block's
    axes.
    """

    buffer: Buffer
    index: Expr
    is_store: bool


@dataclass(frozen=True, slots=True)
class Fold:
    """The body of a reduction block: `target[...] = combine(target[...], value)`."""

    combine: str
    target: Load
    value: Expr


@dataclass(frozen=True, slots=True)
class Contraction:
    """A fold by addition of a product of numbers, or of words of bytes. Axes by the operands that
    they index, outermost first.

    `rows` occur in the left operand only, `columns` in the right operand only (the last is
    contiguous in memory), `batch` in both; `reduced` are the reduction axes. Every spatial axis
    occurs in the result.
    """

    left: Load
    right: Load
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    reduced: tuple[Axis, ...]


def flat_index(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """The row-major element index."""
    return row_major(buffer.shape, indices)


def row_major(shape: Sequence[Expr], indices: Sequence[Expr]) -> Expr:
    """The row-major index of an element of an array."""
    result: Expr = Const(0)
    for size, index in zip(shape, indices, strict=True):
        result = call("add", call("mul", result, size), index)
    return result


def axis_ranges(block: Block) -> dict[Var, Interval]:
    """The interval of every axis of a block, and of the symbols in their extents."""
    ranges: dict[Var, Interval] = {}
    for axis in block.axes:
        ranges.update(dict.fromkeys(variables(axis.extent), SYMBOL))
    for axis in block.axes:
        ranges[axis.var] = Interval(0, max(0, bounds(axis.extent, ranges).high - 1))
    return ranges


def accesses(block: Block) -> tuple[Access, ...]:
    """Every distinct access of a block's body; writes first."""
    distinct: dict[Access, None] = {}
    for stmt in stores(block.body):
        distinct[Access(stmt.buffer, flat_index(stmt.buffer, stmt.indices), True)] = None
    for load in loads(block.body):
        distinct[Access(load.buffer, flat_index(load.buffer, load.indices), False)] = None
    return tuple(distinct)


def stride(index: Expr, var: Var, ranges: Mapping[Var, Interval]) -> Expr | None:
    """How far one step of `var` moves a flat index, where every step moves it equally far; else
    `None`.
    """
    literal = literal_stride(index, var)
    if literal is not None:
        return Const(literal)
    step = simplify(substitute(index, {var: var + 1}) - index, ranges)
    return None if var in variables(step) or loads_in(step) else step


def lane_stride(index: Expr, var: Var, lanes: int, ranges: dict[Var, Interval]) -> int | None:
    """The stride of a flat index within aligned groups of `lanes` values of `var`; `None` if it is
    not a constant.

    `n // 8 * 4096 + n % 8` has the lane stride 1 for 4 and for 8 lanes, though no stride.
    """
    literal = literal_stride(index, var)
    if literal is not None:
        return literal
    inside = {
        **ranges,
        _LANE: Interval(0, lanes - 1),
        _GROUP: Interval(0, max(0, ranges[var].high // lanes) if var in ranges else SYMBOL.high),
    }
    grouped = simplify(substitute(index, {var: _GROUP * lanes + _LANE}), inside)
    step = stride(grouped, _LANE, inside)
    return None if step is None else as_int(step)


@cached_by_identity(maxsize=1024)
def is_vectorizable(
    function: LoopFunction,
    block: str,
    loop: str,
    lanes: int,
    apart: Literal["loads", "stores"] | None = None,
    edge: int = 0,
) -> bool:
    """True if aligned groups of `lanes` iterations of `loop` write adjacent elements and read
    adjacent elements or one. The elements of loads, or of stores, may be `apart`, at one distance.

    All elements touched must fit 32-bit lanes, and the block's body be a single store. The first
    and the last `edge` iterations do not matter.
    """
    path, statement = path_to_block(function, "is_vectorizable", block)
    if not isinstance(statement.body, Store) or not has_vector_types(statement):
        return False
    ranges = ranges_along(function, path[:-1])
    values = statement.axis_values()
    var = Var(loop)
    if edge:
        ranges[var] = Interval(edge, ranges[var].high - edge)
    for access in accesses(statement):
        step = lane_stride(substitute(access.index, values), var, lanes, ranges)
        spread = apart == "stores" and step != 0 if access.is_store else apart == "loads"
        if spread and step is not None:
            continue
        if step not in ((1,) if access.is_store else (0, 1)):
            return False
    if statement.predicate is not None and var in variables(statement.predicate):
        return False
    settled = (simplify(substitute(c, values), ranges) for c in conditions(statement))
    return not any(var in variables(c) for c in settled)


def reads_evenly(function: LoopFunction, block: str, loop: str) -> bool:
    """True if every load of a fold's value is contiguous along `loop` or does not move, all of
    vector types.
    """
    path, statement = path_to_block(function, "reads_evenly", block)
    fold = fold_of(statement)
    if fold is None or not has_vector_types(statement):
        return False
    ranges = ranges_along(function, path[:-1])
    values = statement.axis_values()
    var = Var(loop)
    steps = []
    for node in value_nodes(fold.value):
        if isinstance(node, Load):
            index = substitute(flat_index(node.buffer, node.indices), values)
            steps.append(stride(index, var, ranges))
    tests = any(var in variables(substitute(c, values)) for c in conditions(statement))
    return Const(1) in steps and all(s in (Const(0), Const(1)) for s in steps) and not tests


def conditions(block: Block) -> list[Expr]:
    """The expressions that choose values by indices, and must not differ between lanes: the
    conditions of selects and the rows of combinations.
    """
    assert isinstance(block.body, Store)
    choices: list[Expr] = []
    for node in value_nodes(block.body.value):
        match node:
            case Call(op="select", args=(condition, _, _)) if not loads_in(condition):
                choices.append(condition)
            case Combination(row=row):
                choices.append(row)
    return choices


def has_vector_types(block: Block) -> bool:
    """True if all values are of types that vectors hold."""
    assert isinstance(block.body, Store)
    if block.body.buffer.dtype not in LANE_TYPES:
        return False
    for node in value_nodes(block.body.value):
        if isinstance(node, Load) and node.dtype not in LANE_TYPES:
            return False
        if not _is_index(node) and node.dtype not in LANE_TYPES:
            return False
    return True


def value_nodes(root: Expr) -> Iterator[Expr]:
    """The nodes of a value down to its loads. Indices of loads are no part of the value."""
    return walk(root, lambda node: not isinstance(node, Load))


def _is_index(node: Expr) -> bool:
    return node.dtype == INDEX


def fold_of(block: Block) -> Fold | None:
    """The fold that a reduction block's body is; `None` for another body."""
    reduced = {axis.var for axis in _reduce_axes(block)}
    match block.body:
        case Store(
            buffer=buffer, indices=indices, value=Call(op=op, args=(Load() as target, value))
        ):
            moves = any(variables(index) & reduced for index in indices)
            if target.buffer == buffer and target.indices == indices and reduced and not moves:
                return Fold(op, target, value)
    return None


def is_update(block: Block) -> bool:
    """True for a block whose instances may update the same element, or read elements that other
    instances wrote. The instances run in order along the block's reduce axes, if there are any. A
    fold without an initial value folds into elements that exist already.
    """
    spatial = {axis.var for axis in block.axes if axis.kind == "spatial"}
    if _reduce_axes(block):
        return block.init is None
    return any(
        loads_in(index) and variables(index) & spatial
        for store in stores(block.body)
        for index in store.indices
    )


def updates_others(function: LoopFunction) -> bool:
    """True if a block updates elements that other blocks of the function write or read. The block
    must be a separate kernel, which starts when the other blocks are done.
    """
    every = list(blocks(function.body))
    return len(every) > 1 and any(map(is_update, every))


def overwrites_others(function: LoopFunction) -> bool:
    """True if a block fills a whole buffer, and another block writes some of its elements again, at
    places known at build time. The second block must start when the first is done.
    """
    every = list(blocks(function.body))
    writers = Counter(name for b in every for name in {s.buffer.name for s in stores(b.body)})
    return any(
        writers[store.buffer.name] > 1 and _fills(block, store)
        for block in every
        for store in stores(block.body)
    )


def _fills(block: Block, store: Store) -> bool:
    """True if the instances of a block store to every element of a buffer."""
    extents = {axis.var: axis.extent for axis in block.axes if axis.kind == "spatial"}
    return all(
        (isinstance(index, Var) and extents.get(index) == size)
        or (index == const(0) and size == const(1))
        for index, size in zip(store.indices, store.buffer.shape, strict=True)
    )


def _reduce_axes(block: Block) -> tuple[Axis, ...]:
    return tuple(axis for axis in block.axes if axis.kind == "reduce")


def contraction_of(block: Block) -> Contraction | None:
    """The contraction that a block is: a fold by addition of a product of two loads; `None` for
    another block.

    The right operand is the operand that runs along the result's last axis.
    """
    fold = fold_of(block)
    match fold:
        case Fold(combine="add", value=Call(op=op, args=(a, b))) if op in _PRODUCTS:
            left, right = _operand(a), _operand(b)
        case _:
            return None
    if left is None or right is None:
        return None
    spatial = [axis for axis in block.axes if axis.kind == "spatial"]
    last = next((a.var for a in reversed(spatial) if as_int(a.extent) != 1), None)
    if last in _index_variables(left) and last not in _index_variables(right):
        left, right = right, left
    in_left, in_right = _index_variables(left), _index_variables(right)
    return Contraction(
        left,
        right,
        tuple(a for a in spatial if a.var not in in_right),
        tuple(a for a in spatial if a.var in in_right and a.var not in in_left),
        tuple(a for a in spatial if a.var in in_right and a.var in in_left),
        _reduce_axes(block),
    )


def multiplies_bytes(function: LoopFunction) -> bool:
    """True if a function has dot products of words of bytes."""
    return any(calls_operator(function.body, op) for op in ("dot_u8_i8", "dot_i8"))


def multiplies_small_bytes(function: LoopFunction) -> bool:
    """True if a function has dot products of words of bytes, with left operands of seven bits."""
    return calls_operator(function.body, "dot_u7_i8")


def sums_in_pairs(function: LoopFunction) -> bool:
    """True if sums of pairs of 16 bits may be faster for a function: the left operands of its dot
    products of bytes have seven bits, or a single row.
    """
    return multiplies_small_bytes(function) or any(
        calls_operator(block.body, "dot_u8_i8") and _may_have_single_row(block)
        for block in blocks(function.body)
    )


def _may_have_single_row(block: Block) -> bool:
    """True for a contraction of one row, or of a number of rows known only at run time."""
    contraction = contraction_of(block)
    return contraction is not None and all(
        as_int(axis.extent) in (None, 1) for axis in contraction.rows
    )


def reduces(function: LoopFunction) -> bool:
    """True if a block of a function reduces."""
    return any(_reduce_axes(block) for block in blocks(function.body))


def reduces_products(function: LoopFunction) -> bool:
    """True if a block of a function multiplies and reduces."""
    reductions = (block for block in blocks(function.body) if _reduce_axes(block))
    return any(calls_operator(block.body, op) for block in reductions for op in _PRODUCTS)


def calls_operator(root: Stmt, op: str) -> bool:
    """True if a scalar operator computes a part of a stored value."""
    values = (value_nodes(store.value) for store in stores(root))
    return any(isinstance(node, Call) and node.op == op for nodes in values for node in nodes)


def _operand(value: Expr) -> Load | None:
    """The only load of an operand (which may be a converted or offset load)."""
    operands = [node for node in value_nodes(value) if isinstance(node, Load)]
    return operands[0] if len(operands) == 1 else None


def _index_variables(load: Load) -> frozenset[Var]:
    return frozenset(v for index in load.indices for v in variables(index))


def collapses(outer: Axis, inner: Axis, block: Block) -> bool:
    """True if walking `inner` then `outer` steps through every buffer as one loop would: the two
    can be fused.
    """
    if as_int(outer.extent) == 1 or as_int(inner.extent) == 1:
        return True
    ranges = axis_ranges(block)
    for access in accesses(block):
        big, small = (
            stride(access.index, outer.var, ranges),
            stride(access.index, inner.var, ranges),
        )
        if big is None or small is None or not prove_equal(big, small * inner.extent, ranges):
            return False
    return not any({outer.var, inner.var} & variables(v) for v in free_values(block))


def free_values(block: Block) -> list[Expr]:
    """The axis variables that a body uses as values, not as indices: a fused loop would need a
    division for each.
    """
    nodes = (node for stmt in stores(block.body) for node in value_nodes(stmt.value))
    return [node for node in nodes if isinstance(node, Var)]


def operations(function: LoopFunction) -> int:
    """Scalar operations of one run, roughly; a symbolic dimension counts as `TYPICAL_SIZE`."""
    total = 0
    sizes = {symbol.name: TYPICAL_SIZE for symbol in function.symbols}

    def visit(stmt: Stmt, times: int) -> None:
        nonlocal total
        match stmt:
            case For(extent=extent):
                times *= max(0, int(evaluate(extent, sizes)))
            case Store():
                nodes = (node for e in expressions(stmt) for node in walk(e))
                total += times * max(1, sum(_cost(node) for node in nodes))
        for child in child_statements(stmt):
            visit(child, times)

    visit(write_out_combinations(function).body, 1)
    return total


def takes_polynomial(block: Block) -> bool:
    """True if an element of a block takes a polynomial."""
    nodes = (node for e in expressions(block.body) for node in walk(e))
    operators = (SCALAR_OPERATORS[node.op] for node in nodes if isinstance(node, Call))
    return any(operator.cost >= POLYNOMIAL_COST for operator in operators)


def only_moves(block: Block) -> bool:
    """True if the only store of a block computes nothing: it moves elements."""
    assert isinstance(block.body, Store)
    return not any(
        isinstance(node, Cast | Combination) or (isinstance(node, Call) and node.op != "select")
        for node in value_nodes(block.body.value)
        if not _is_index(node) and node.dtype is not DType.bool
    )


def _cost(node: Expr) -> int:
    """A rough count of the instructions of one node; index arithmetic is free."""
    match node:
        case Call(op=op) if node.dtype != INDEX and node.dtype is not DType.bool:
            return SCALAR_OPERATORS[op].cost
        case Load():
            return 1
    return 0
