"""Find the part of a local buffer that one thread uses, in several loops over threads.

In: the accesses to a local buffer in sibling loops over threads, with or without barriers between
the loops. Out: the same accesses as if one loop over the threads were around all accesses, if no
thread accesses an element of another thread. Then `compact_buffers` shrinks the buffer to the part
of a thread, which registers can hold.

    for t in T.thread_binding(64, "threadIdx.x"):       for t in ...:
        for i in range(4): L[t * 4 + i] = ...               for i in range(4): L[i] = ...
    for u in T.thread_binding(64, "threadIdx.x"):  ->   for u in ...:
        for i in range(4): ... = L[u * 4 + i]               for i in range(4): ... = L[i]
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from webmlc.core.affine import from_terms, terms
from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import evaluate, substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import For
from webmlc.target.offset_digits import (
    Access,
    Region,
    divide_term,
    term_variables,
)


def thread_loops(access: Access) -> dict[str, For]:
    """The loops over threads of a workgroup around an access, by their axes."""
    loops = (loop for loop in access.loops() if (loop.thread or "").startswith("threadIdx"))
    return {loop.thread: loop for loop in loops if loop.thread is not None}


def in_one_loop(accesses: list[Access]) -> tuple[list[Access], dict[Var, int]] | None:
    """The accesses over the variables of one loop for each axis of threads, and each variable with
    its number of threads. `None` if one loop is around all accesses already, or if the accesses lie
    in loops over different axes.
    """
    nests = [thread_loops(access) for access in accesses]
    if len({id(loop) for nest in nests for loop in nest.values()}) <= len(nests[0]):
        return None
    if any(nest.keys() != nests[0].keys() for nest in nests):
        return None
    counts = {axis: [as_int(simplify(nest[axis].extent)) for nest in nests] for axis in nests[0]}
    threads = {}
    for axis, loop in nests[0].items():
        sizes = [count for count in counts[axis] if count is not None]
        if len(sizes) < len(nests):
            return None
        threads[loop.var] = max(sizes)
    renamed = []
    for access, nest in zip(accesses, nests, strict=True):
        new: dict[Var, Expr] = {nest[axis].var: loop.var for axis, loop in nests[0].items()}
        scope = dict(access.scope)
        for axis, loop in nests[0].items():
            scope[loop.var] = access.scope[nest[axis].var]
        offset = simplify(substitute(access.offset, new), scope)
        indices = tuple(substitute(index, new) for index in access.indices)
        renamed.append(replace(access, indices=indices, offset=offset, scope=scope))
    return renamed, threads


def part_of_thread(
    accesses: list[Access], region: Region, threads: dict[Var, int]
) -> tuple[int, list[Expr]] | None:
    """The number of elements that each thread keeps, and the place of each access among them.
    `None` if a thread may access an element of another thread. `accesses` are over one loop for
    each axis of `threads`, and `region` holds the elements that a thread accesses. Where all digits
    of a dimension are multiples of a number, the elements between them belong to other threads.
    """
    digits = [
        [simplify(d - low) for d, low in zip(parts, region.lows, strict=True)]
        for parts in (region.digits.split(access.offset) for access in accesses)
    ]
    if any(variables(digit) & threads.keys() for parts in digits for digit in parts):
        return None
    units = [_common_factor([parts[n] for parts in digits]) for n in range(len(region.extents))]
    counts = [(extent - 1) // unit + 1 for extent, unit in zip(region.extents, units, strict=True)]
    if not _are_disjoint(accesses[0], region, units, counts, threads):
        return None
    places = []
    for access, parts in zip(accesses, digits, strict=True):
        place: Expr = Const(0)
        for digit, unit, count in zip(parts, units, counts, strict=True):
            place = place * count + simplify(digit // unit, access.scope)
        places.append(simplify(place, access.scope))
    return math.prod(counts), places


def _common_factor(digits: list[Expr]) -> int:
    """The largest number that divides every term of some digits; 1 if all are zero."""
    return math.gcd(*(factor for digit in digits for factor in terms(digit).values())) or 1


def _are_disjoint(
    access: Access, region: Region, units: list[int], counts: list[int], threads: dict[Var, int]
) -> bool:
    """True if no two threads access the same element of the whole buffer."""
    starts: list[Expr] = [Const(0)] * len(region.digits.strides)
    for term, factor in region.digits.outer_terms(access.offset).items():
        if not term_variables(term) & threads.keys():
            continue
        for dimension, stride in enumerate(region.digits.strides):
            quotient = divide_term(term, factor, stride)
            if quotient is not None and term_variables(quotient[0]) <= threads.keys():
                starts[dimension] = starts[dimension] + from_terms({quotient[0]: quotient[1]})
                break
        else:
            return False
    coordinates = np.indices(list(threads.values())).reshape(len(threads), -1)
    values = {var.name: row for var, row in zip(threads, coordinates, strict=True)}
    shape = coordinates.shape[1:]
    places = np.stack([np.broadcast_to(evaluate(start, values), shape) for start in starts])
    steps = np.indices(counts).reshape(len(counts), -1) * np.array(units)[:, None]
    elements = (places[:, :, None] + steps[:, None, :]).reshape(len(starts), -1)
    return bool(np.unique(elements, axis=1).shape[1] == elements.shape[1])
