"""The parameters of attention, and the workgroup memory that they take.

Tiles of rows and single rows have two algorithms each. A kernel has a section for tiles and one for
the rows left over, which run in different workgroups. On a GPU, the sections share their memory:
their largest buffers of vectors, the next largest, and so on, and likewise their buffers of scalars
(`target/webgpu/share_memory.py`).

    elements_of(tile_memory, row_memory, shares=True) # the elements of the larger buffers
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from msgspec import Struct

from webmlc.core.machine import MAX_WORKGROUP_BYTES
from webmlc.schedule.rules.webgpu.attention.facts import Facts

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
