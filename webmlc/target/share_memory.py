"""Let the sections of a kernel share workgroup memory.

Needs: a lowered kernel, ready to print as a shader, where the nests of loops over workgroups run in
different workgroups (`webgpu/threads.py`). Guarantees: shared buffers of different sections become
one buffer of the larger size, if they have the same type and are written alike, as vectors or as
scalars. The largest buffers of all sections are joined first, then the next largest, and so on.
WebGPU counts every buffer of a kernel, although a workgroup uses the buffers of one section only.

S = T.alloc_buffer((64,), scope="shared")      S_or_R = T.alloc_buffer((96,), scope="shared")
R = T.alloc_buffer((96,), scope="shared")
for b in workgroups:                           for b in workgroups:
    for t in threads: S[t] = x[b, t]      ->       for t in threads: S_or_R[t] = x[b, t]
    ...                                            ...
for c in workgroups:                           for c in workgroups:
    for t in threads: R[t] = y[c, t]               for t in threads: S_or_R[t] = y[c, t]
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import zip_longest

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, as_int
from webmlc.core.machine import MAX_WORKGROUP_BYTES, VARIABLE_BYTES, WORD_BYTES
from webmlc.loops.ir import (
    Buffer,
    For,
    LoopFunction,
    Stmt,
    Store,
    child_statements,
    distinct_loads,
    replace_buffers,
)
from webmlc.target.scoped import Names, statements_of


def share_memory(function: LoopFunction, *, stays_apart: bool = False) -> LoopFunction:
    """Return `function` with one buffer in place of several buffers that its sections may share.
    With `stays_apart`, the function is unchanged if every device has enough memory for each buffer.
    """
    if stays_apart and apart_bytes(function) <= MAX_WORKGROUP_BYTES:
        return function
    names = Names.of(function)
    shared: dict[Buffer, Buffer] = {}
    for group in _groups(function):
        if len(group) > 1:
            size = max(map(_elements, group))
            name = names.fresh("_or_".join(buffer.name for buffer in group))
            memory = replace(group[0], name=name, shape=(Const(size),))
            shared |= dict.fromkeys(group, memory)
    if not shared:
        return function
    allocations = dict.fromkeys(shared.get(buffer, buffer) for buffer in function.allocations)
    body = replace_buffers(function.body, shared)
    return replace(function, body=body, allocations=tuple(allocations))


def shared_bytes(function: LoopFunction) -> int:
    """The bytes of workgroup memory that the sections of `function` take if they share it, as far
    as sizes are literals. Vectors may still be loops.
    """
    return sum(max(_elements(b) * b.dtype.bytes for b in group) for group in _groups(function))


def apart_bytes(function: LoopFunction) -> int:
    """The bytes of workgroup memory that `function` takes, at most, if its sections do not share
    it, as far as sizes are literals.
    """
    shared = (buffer for buffer in function.allocations if buffer.scope == "shared")
    return sum(counted_bytes(_elements(b) * max(WORD_BYTES, b.dtype.bytes)) for b in shared)


def counted_bytes(size: int) -> int:
    """The bytes that a variable of `size` bytes in workgroup memory counts as."""
    return -(-size // VARIABLE_BYTES) * VARIABLE_BYTES


def _elements(buffer: Buffer) -> int:
    return math.prod(as_int(size) or 1 for size in buffer.shape)


def _groups(function: LoopFunction) -> list[list[Buffer]]:
    """The shared buffers of a function, in groups. Buffers of a group may have the same memory."""
    users: dict[Buffer, set[int]] = {b: set() for b in function.allocations if b.scope == "shared"}
    if not users:
        return []
    for number, section in enumerate(statements_of(function.body)):
        scalars, vectors = _stored(section)
        for buffer in {load.buffer for load in distinct_loads(section)} | scalars | vectors:
            if buffer in users:
                users[buffer].add(number)
    scalars, _ = _stored(function.body)
    alone: list[list[Buffer]] = []
    classes: dict[tuple[DType, bool], dict[int, list[Buffer]]] = {}
    for buffer in sorted(users, key=_elements, reverse=True):
        if len(users[buffer]) == 1 and all(as_int(size) is not None for size in buffer.shape):
            by_section = classes.setdefault((buffer.dtype, buffer in scalars), {})
            by_section.setdefault(min(users[buffer]), []).append(buffer)
        else:
            alone.append([buffer])
    joined = [
        [buffer for buffer in rank if buffer is not None]
        for by_section in classes.values()
        for rank in zip_longest(*(by_section[number] for number in sorted(by_section)))
    ]
    return [*joined, *alone]


def _stored(root: Stmt) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers to which a statement stores scalars, and the buffers with stores of vectors."""
    scalars: set[Buffer] = set()
    vectors: set[Buffer] = set()
    stack = [(root, False)]
    while stack:
        stmt, in_vector = stack.pop()
        if isinstance(stmt, Store):
            is_vector = in_vector or any(index.lanes > 1 for index in stmt.indices)
            (vectors if is_vector else scalars).add(stmt.buffer)
        in_vector |= isinstance(stmt, For) and stmt.kind == "vectorized"
        stack.extend((child, in_vector) for child in child_statements(stmt))
    return scalars, vectors
