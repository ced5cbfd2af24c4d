"""Let the rows of a register tile share their offsets in all unrolled steps of a loop.

Needs: the form over pointers. Guarantees: the same loads. Some loads fill a vector with one element
(`v128.load32_splat`). V8 adds the offset of such a load to the base of the memory in a separate
instruction, and computes equal sums once. So each further step gets a pointer of its own, and uses
the offsets of the first step:

before                                             after
    for k in range(96):                                for k in range(96):
        ... splat(A[p[()]]) ...                            ... splat(A[p[()]]) ...
        ... splat(A[p[()] + 384]) ...                      ... splat(A[p[()] + 384]) ...
        ... splat(A[p[()] + 1]) ...                        q[()] = p[()] + 1
        ... splat(A[p[()] + 385]) ...                      ... splat(A[q[()]]) ...
        p[()] = p[()] + 2                                  ... splat(A[q[()] + 384]) ...
                                                           p[()] = p[()] + 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from webmlc.core.affine import constant_part
from webmlc.core.dtypes import INDEX
from webmlc.core.expr import Broadcast, Expr
from webmlc.core.rewrite import rewrite, walk
from webmlc.loops.ir import Buffer, For, Load, Seq, Stmt, Store, map_statements, seq
from webmlc.target.scoped import Names
from webmlc.target.wasm.reduce_strength import StrengthReduced

MAX_SHARED_OFFSETS = 8
"""The most offsets that the steps of a loop share. Each offset occupies a general register. V8 has
13 general registers on x86-64, also for the memory, the pointers and the loop. Derived.
"""

Splats = list[tuple[int, int]]
"""The loads that fill a vector: the position of the statement, and the offset from the pointer."""


def share_offsets(reduced: StrengthReduced) -> StrengthReduced:
    """Give the unrolled steps of innermost loops pointers of their own."""
    names = Names.of(reduced.function)
    pointers = dict(reduced.pointers)

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(body=Seq(statements=body)) if all(isinstance(s, Store) for s in body):
                stores = [s for s in body if isinstance(s, Store)]
                for pointer, splats in _splats(stores, pointers).items():
                    size = _step_size([offset for _, offset in splats])
                    if size is None:
                        continue
                    step = Buffer(names.fresh(pointer.name), (), INDEX, "local")
                    pointers[step] = pointers[pointer]
                    stores = _with_step_pointers(stores, pointer, step, splats, size)
                return replace(stmt, body=seq(*stores)) if len(stores) > len(body) else None
        return None

    body = map_statements(reduced.function.body, rule)
    created = [pointer for pointer in pointers if pointer not in reduced.pointers]
    allocations = (*reduced.function.allocations, *created)
    function = replace(reduced.function, body=body, allocations=allocations)
    return StrengthReduced(function, pointers)


def _splats(stores: Sequence[Store], pointers: Mapping[Buffer, Buffer]) -> dict[Buffer, Splats]:
    """The loads that fill a vector, by pointer, as long as the pointer does not change."""
    splats: dict[Buffer, Splats] = {}
    changed: set[Buffer] = set()
    for position, store in enumerate(stores):
        for node in walk(store.value):
            match _splat(node, pointers):
                case pointer, offset if pointer not in changed:
                    splats.setdefault(pointer, []).append((position, offset))
        changed.add(store.buffer)
    return splats


def _splat(node: Expr, pointers: Mapping[Buffer, Buffer]) -> tuple[Buffer, int] | None:
    """The pointer and the offset of a load that fills a vector; `None` for another expression."""
    match node:
        case Broadcast(value=Load(buffer=buffer, indices=(index,))) if buffer.dtype.bytes == 4:
            match constant_part(index):
                case Load(buffer=pointer), offset if pointers.get(pointer) == buffer:
                    return pointer, offset
    return None


def _step_size(offsets: Sequence[int]) -> int | None:
    """The number of offsets that all steps can share with the fewest additions. The offsets of each
    step must be the offsets of the first step plus a positive distance. `None` if no additions are
    saved. A loop with few loads is unchanged: V8 unrolls it, and its iterations share all offsets.

    >>> _step_size([0, 384, 768, 1, 385, 769, 2, 386, 770])
    3
    """
    count = len(offsets)
    if count <= MAX_SHARED_OFFSETS:
        return None
    additions = {
        size: size - 1 + count // size - 1
        for size in range(2, min(MAX_SHARED_OFFSETS, count // 2) + 1)
        if count % size == 0 and _is_periodic(offsets, size)
    }
    best = min(additions, key=lambda size: additions[size], default=None)
    return best if best is not None and additions[best] < len(set(offsets)) - 1 else None


def _is_periodic(offsets: Sequence[int], size: int) -> bool:
    """True where each run of `size` offsets is the first run plus a positive distance."""
    first = offsets[:size]
    for start in range(size, len(offsets), size):
        distance = offsets[start] - offsets[0]
        if distance <= 0 or [o + distance for o in first] != list(offsets[start : start + size]):
            return False
    return True


def _with_step_pointers(
    stores: Sequence[Store], pointer: Buffer, step: Buffer, splats: Splats, size: int
) -> list[Store]:
    """The statements of a loop. All steps except the first use the pointer `step`."""
    distances: dict[int, set[int]] = {}
    for number, (position, _) in enumerate(splats):
        distance = splats[number - number % size][1] - splats[0][1]
        distances.setdefault(position, set()).add(distance)
    if any(len(several) > 1 for several in distances.values()):
        return list(stores)  # a statement reads for two steps
    result: list[Store] = []
    current = 0
    for position, store in enumerate(stores):
        if position not in distances:
            result.append(store)
            continue
        (distance,) = distances[position]
        if distance != current:
            result.append(Store(step, (), Load(pointer, ()) + distance))
            current = distance
        value = _moved(store.value, pointer, step, distance) if distance else store.value
        result.append(replace(store, value=value))
    return result


def _moved(root: Expr, pointer: Buffer, step: Buffer, distance: int) -> Expr:
    """`root` with the loads that fill a vector moved from one pointer to another."""

    def rule(node: Expr) -> Expr | None:
        match node:
            case Broadcast(value=Load(buffer=buffer, indices=(index,))):
                moving, offset = constant_part(index)
                if moving == Load(pointer, ()):
                    index = Load(step, ()) + (offset - distance)
                    return Broadcast(Load(buffer, (index,)), node.lanes)
        return None

    return rewrite(root, rule)
