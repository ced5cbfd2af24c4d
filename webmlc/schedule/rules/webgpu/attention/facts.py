"""The facts of a kernel of attention, its parameters, and the workgroup memory that they take.

A kernel of attention is a product, a softmax along its rows, and a product of the result:

    m[i] = max(l[i, :]); e = exp(l - m); s[i] = sum(e[i, :]); p[i, d] = sum(e[i, :] * v[:, d])
    y[i, d] = p[i, d] / s[i]

Tiles of rows and single rows have two algorithms each. A kernel has a section for tiles and one for
the rows left over, which run in different workgroups. On a GPU, the sections share their memory:
their largest buffers of vectors, the next largest, and so on, and likewise their buffers of scalars
(`target/webgpu/share_memory.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

from msgspec import Struct

from webmlc.core.expr import Expr, Var, as_int
from webmlc.core.machine import MAX_WORKGROUP_BYTES, Gpu
from webmlc.core.rewrite import variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Axis, Block, Buffer, LoopFunction, blocks, loads, stores
from webmlc.schedule.analysis import axis_ranges, contraction_of, flat_index, lane_stride
from webmlc.schedule.rules.tiling.nests import axes_of_kind, loop_of, softmax_blocks
from webmlc.schedule.rules.webgpu.rows import producers_of
from webmlc.schedule.schedule import Schedule

RADIX = 8
"""Results of threads that one thread folds at each level of a tree, by default: 64 threads take two
levels (as in `reduction.py`)."""
MAX_UNROLLED = 64
"""Iterations of a loop that are written out, by default: drivers count and bound each iteration of
other loops (an estimate: the elements of most heads)."""
STEPS = 4
"""Steps of a reduction that a thread of a tile writes out by default: a vec4 of keys."""
LOGIT_ROWS = 4
"""Rows of the logits that a thread of a tile computes together, by default: each key is read once
for all these rows (chosen by hand: with four keys, 16 sums stay in registers)."""
FLOAT_BYTES = 4
VECTOR = 4
"""The elements of a vector."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The blocks of a kernel of attention, by their results: the `final` block divides a product
    with the values by the sum of the exponentials. `rows` and `keys`: their numbers, `None` if
    symbolic; `columns`: elements of a row of the result; `lanes`: elements of a vector, which one
    thread computes; `heights`: the rows of plain tiles that primitives build. On machines with
    subgroups, a workgroup folds the results of its threads at once. `shares_memory`: whether tiles
    may count on the memory of single rows (software adapters keep the tiles that they were measured
    with). `key_vectors`: the vectors of a key, if neighbours on a GPU can read keys side by side;
    else `None`. `has_narrow_keys`: whether elements of keys have less than 32 bits. `copies_keys`:
    whether tiles can copy keys to workgroup memory.
    """

    function: LoopFunction
    logits: str
    maximum: str
    exponentials: str
    total: str
    product: str
    final: str
    rows: int | None
    keys: int | None
    columns: int
    lanes: int
    heights: tuple[int, ...] = ()
    has_subgroups: bool = False
    shares_memory: bool = False
    key_vectors: int | None = None
    has_narrow_keys: bool = False
    copies_keys: bool = False

    @property
    def vectors(self) -> int:
        """The vectors of a row of the result. One thread computes each vector."""
        return self.columns // self.lanes


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops of the final block: over rows that read the same keys and values, over everything
    else that tells rows apart, and along a row. There is no `row` if each has keys of its own.
    """

    row: str | None
    batch: tuple[str, ...]
    columns: tuple[str, ...]


def attention_facts(function: LoopFunction, machine: Gpu) -> Facts | None:
    """The facts of a kernel of attention; `None` for another kernel."""
    every = {block.name: block for block in blocks(function.body)}
    names = softmax_blocks(every)
    final = list(every.values())[-1]
    if names is None or axes_of_kind(final, "reduce") or final.name in names:
        return None
    if axes_of_kind(every[names[0]], "reduce"):
        return None  # threads share logits, not sums
    product = every[names[-1]]
    size = as_int(simplify(axes_of_kind(product, "spatial")[-1].extent))
    if size is None:
        return None
    row = _row_axis(product)
    rows = 1 if row is None else as_int(simplify(row.extent))
    lanes = machine.lanes if size % machine.lanes == 0 else 1
    keys = as_int(simplify(axes_of_kind(product, "reduce")[-1].extent))
    facts = Facts(
        function,
        *names,
        final.name,
        rows,
        keys,
        size,
        lanes,
        has_subgroups="subgroups" in machine.features,
        shares_memory=machine.reads_lines,
    )
    if not machine.reads_lines:
        return facts
    scores = key_product(Schedule(function), facts)
    if scores is None:
        return facts
    has_narrow_keys = scores.keys.dtype.bytes < 4
    return replace(facts, key_vectors=scores.vectors, has_narrow_keys=has_narrow_keys)


def final_loops(function: LoopFunction, facts: Facts) -> Loops:
    """The loops of the final block by their roles. Nothing has scheduled the function."""
    every = {block.name: block for block in blocks(function.body)}
    final, product = every[facts.final], every[facts.product]
    rows = {v for index in _indices(final, every[facts.total]) for v in variables(index)}
    row = _row_axis(product)
    chosen: Var | None = None
    if row is not None:
        (store,) = stores(product.body)
        place = _indices(final, product)[store.indices.index(row.var)]
        chosen = place if isinstance(place, Var) else None
    batch, columns, along = [], [], None
    for axis in axes_of_kind(final, "spatial"):
        loop = loop_of(final, axis)
        if loop is None:
            continue
        if axis.var == chosen:
            along = loop
        elif axis.var in rows or as_int(simplify(axis.extent)) == 1:
            batch.append(loop)
        else:
            columns.append(loop)
    return Loops(along, tuple(batch), tuple(columns))


def _indices(reader: Block, writer: Block) -> tuple[Expr, ...]:
    """The indices at which a block reads the result of another block."""
    (name,) = {store.buffer.name for store in stores(writer.body)}
    return next(load.indices for load in loads(reader) if load.buffer.name == name)


def _row_axis(product: Block) -> Axis | None:
    """The axis of the rows that read the same values: a symbolic axis, or else the longest."""
    roles = contraction_of(product)
    (store,) = stores(product.body)
    rows = [axis for axis in (roles.rows if roles is not None else ()) if axis.var in store.indices]
    sizes = [as_int(simplify(axis.extent)) for axis in rows]
    ranked = [(size is None, size or 0, -p) for p, size in enumerate(sizes) if size != 1]
    return rows[-max(ranked)[2]] if ranked else None


@dataclass(frozen=True, slots=True)
class KeyProduct:
    """The block that multiplies queries by keys, the vectors of a key, and the buffer of keys."""

    block: str
    vectors: int
    keys: Buffer


def key_product(schedule: Schedule, facts: Facts) -> KeyProduct | None:
    """The products of queries and keys; `None` where keys are no vectors."""
    for block in producers_of(schedule.function, schedule.block(facts.logits)):
        roles = contraction_of(block)
        if roles is None or len(roles.reduced) != 1:
            continue
        size = as_int(simplify(roles.reduced[0].extent))
        keys = roles.right
        index = flat_index(keys.buffer, keys.indices)
        step = lane_stride(index, roles.reduced[0].var, facts.lanes, axis_ranges(block))
        if size is None or step != 1 or facts.lanes == 1 or size % facts.lanes:
            return None
        if keys.buffer not in schedule.function.params or keys.buffer == roles.left.buffer:
            return None
        return KeyProduct(block.name, size // facts.lanes, keys.buffer)
    return None


class PlainTile(Struct, frozen=True, tag="plain"):
    """Rows of a workgroup whose threads read keys from memory and share their results."""

    rows: int
    """Rows of a tile."""
    steps: int = STEPS
    """Steps of a reduction that a thread writes out."""
    logit_rows: int = LOGIT_ROWS
    """Rows of the logits that a thread computes together."""


class CopiedTile(Struct, frozen=True, tag="copied"):
    """Rows of a workgroup that copies keys to its memory; its threads keep results in registers."""

    rows: int
    """Rows of a tile."""
    stage: int
    """Vectors of each key that are copied at once."""
    steps: int = STEPS
    """Steps of a reduction that a thread writes out."""
    logit_rows: int = LOGIT_ROWS
    """Rows of the logits that a thread computes together."""


class SharedRow(Struct, frozen=True, tag="shared"):
    """A single row of a workgroup. Each thread stores the logit of one key."""

    workgroup: int
    """Threads, and keys of a step, at most."""
    radix: int = RADIX
    """Results of threads that one thread folds at each level of a tree."""
    unrolled: int = MAX_UNROLLED
    """Iterations of a loop that a thread writes out, at most."""
    fold_steps: int = 1
    """Iterations of the trees that a thread writes out, at most."""


class RegisterRow(Struct, frozen=True, tag="registers"):
    """A single row of a workgroup. Each thread keeps the logits of some keys."""

    workgroup: int
    """Threads, at most."""
    keys: int
    """Keys of a step whose logits a thread keeps, at most."""
    key_threads: int
    """Threads that share the product of the row and a key."""
    radix: int = RADIX
    """Results of threads that one thread folds at each level of a tree."""
    unrolled: int = MAX_UNROLLED
    """Iterations of a loop that a thread writes out, at most."""
    fold_steps: int = 1
    """Iterations of the trees that a thread writes out, at most."""


class Parameters(Struct, frozen=True):
    """How workgroups compute rows."""

    tile: CopiedTile | PlainTile | None
    """The tiles of rows; `None`: each row has a workgroup of its own."""
    row: RegisterRow | SharedRow | None
    """The rows that fill no tile; `None`: tiles cover all rows."""


def covers(facts: Facts, tile: CopiedTile | PlainTile | None) -> bool:
    """True if tiles are known to leave no row over."""
    return tile is not None and facts.rows is not None and facts.rows % tile.rows == 0


@dataclass(frozen=True, slots=True)
class Memory:
    """The elements of the workgroup buffers of a section. `vectors`: for each buffer of float32
    vectors. `scalars`: for each buffer of scalars. `unshared_elements`: in all buffers of other
    types, which sections do not share.
    """

    vectors: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    unshared_elements: int = 0


def fits(facts: Facts, *sections: Memory) -> bool:
    """True if the memory of a workgroup holds these sections of a kernel."""
    count = elements_of(*sections, shares=facts.shares_memory)
    return count * FLOAT_BYTES <= MAX_WORKGROUP_BYTES


def elements_of(*sections: Memory, shares: bool) -> int:
    """The elements of workgroup memory that sections take, of 32 bits each."""
    kinds = [[sorted(m.vectors, reverse=True) for m in sections]]
    kinds.append([sorted(m.scalars, reverse=True) for m in sections])
    fold = max if shares else sum
    shared = sum(fold(rank) for kind in kinds for rank in zip_longest(*kind, fillvalue=0))
    return shared + sum(memory.unshared_elements for memory in sections)


def row_memory(facts: Facts, row: SharedRow | RegisterRow) -> Memory:
    """The memory of a single row: vectors of the result, and exponentials, sums and a part of a
    tree for each thread. A shared row adds the logits. A register row adds maxima, and the partial
    products of keys, padded by one element a key.
    """
    threads = max(row.workgroup, 2 * facts.vectors)
    result = threads * VECTOR
    if isinstance(row, SharedRow):
        return memory_of(facts, result, (threads,) * 4)
    tree = 2 * threads // row.radix
    scalars = (threads * row.keys, threads, threads, tree, tree)
    parts = (threads * (row.key_threads + 1),) if row.key_threads > 1 else ()
    return memory_of(facts, result, (*parts, *scalars))


def memory_of(facts: Facts, result: int, scalars: tuple[int, ...]) -> Memory:
    """The memory of a section with the elements of a part of the result, and with other scalars."""
    return Memory((result,), scalars) if facts.lanes > 1 else Memory((), (result, *scalars))
