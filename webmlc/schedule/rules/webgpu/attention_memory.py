"""What attention takes of a workgroup's memory: for a tile of rows, and for a single row.

A kernel has a section for tiles and one for the rows left over, which run in different workgroups.
On a GPU, the sections share their memory: their largest buffers of vectors, the next ones, and so
on, and likewise their buffers of scalars (`target/webgpu/share_memory.py`).

    elements_of(tile_memory, row_memory, shares=True)     # those of the larger buffers
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from webmlc.core.machine import MAX_WORKGROUP_BYTES
from webmlc.schedule.rules.webgpu.attention_facts import Facts

FLOAT_BYTES = 4
VECTOR = 4
"""The elements of a vector."""


@dataclass(frozen=True, slots=True)
class Row:
    """How a workgroup of `workgroup` threads computes a single row. A thread keeps the logits of
    `keys_per_thread` keys, or stores that of one key if that is 0. `key_threads` threads share the
    product of the query and a key, and one folds `radix` results at each level of a tree.
    """

    workgroup: int
    keys_per_thread: int = 0
    key_threads: int = 1
    radix: int = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """The elements of the shared buffers of a section: of those that hold vectors of float32, of
    those that hold scalars, and of all whose type is another one, so that no section shares them.
    """

    vectors: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    unshared_elements: int = 0


def fits(facts: Facts, *sections: Memory) -> bool:
    """True where the memory of a workgroup holds these sections of a kernel."""
    count = elements_of(*sections, shares=facts.shares_memory)
    return count * FLOAT_BYTES <= MAX_WORKGROUP_BYTES


def elements_of(*sections: Memory, shares: bool) -> int:
    """The elements of workgroup memory that sections take, of 32 bits each."""
    kinds = [[sorted(m.vectors, reverse=True) for m in sections]]
    kinds.append([sorted(m.scalars, reverse=True) for m in sections])
    fold = max if shares else sum
    shared = sum(fold(rank) for kind in kinds for rank in zip_longest(*kind, fillvalue=0))
    return shared + sum(memory.unshared_elements for memory in sections)


def row_memory(facts: Facts, row: Row) -> Memory:
    """The memory of a single row: vectors of the result; exponentials, sums, and a part of a tree,
    for each thread. Then its logits, or else their maxima, and the parts of products of keys, with
    one more between those of each key.
    """
    threads = max(row.workgroup, 2 * facts.vectors)
    result = threads * VECTOR
    if row.keys_per_thread == 0:
        return memory_of(facts, result, (threads,) * 4)
    tree = 2 * threads // row.radix
    scalars = (threads * row.keys_per_thread, threads, threads, tree, tree)
    parts = (threads * (row.key_threads + 1),) if row.key_threads > 1 else ()
    return memory_of(facts, result, (*parts, *scalars))


def memory_of(facts: Facts, result: int, scalars: tuple[int, ...]) -> Memory:
    """The memory of a section with the elements of a part of the result, and with others."""
    return Memory((result,), scalars) if facts.lanes > 1 else Memory((), (result, *scalars))
