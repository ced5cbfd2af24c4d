"""Find the loops that carry values through a buffer from one iteration to a later one.

In: the accesses to an allocation, the loops around all accesses, and the region that
`compact_buffers` would keep. Out: the variables of the loops that must keep their part of the
buffer; none where each iteration may reuse the same elements.

    for t in range(9):
        Y[t] = Y[t - 1] + A[t]          # t carries: iteration t reads what t - 1 wrote
"""

from __future__ import annotations

from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import For, Seq
from webmlc.target.offset_digits import (
    Access,
    Region,
    divide_term,
    outer_terms,
    term_variables,
)


def carrying_variables(
    accesses: list[Access], loops: list[For], depth: int, region: Region
) -> frozenset[Var]:
    """The variables of outer terms under a loop whose later iterations may read values that earlier
    iterations wrote. Empty where shrinking is safe.
    """
    outer_variables = _outer_variables(accesses[0], region) & {loop.var for loop in loops}
    if not outer_variables or _is_written_first(accesses, depth, region):
        return frozenset()
    has_carrier = False
    carried: set[Var] = set()
    for loop in loops:
        if loop.var not in outer_variables and loop.kind not in ("parallel", "thread_binding"):
            has_carrier = True
        elif loop.var in outer_variables and has_carrier:
            carried.add(loop.var)
    if not carried and not _is_injective(accesses[0], loops, region):
        carried |= outer_variables
    return frozenset(carried)


def _outer_variables(access: Access, region: Region) -> set[Var]:
    """The variables of the outer terms of an access's offset."""
    return {v for t in outer_terms(access.offset, region.digits.outer) for v in term_variables(t)}


def _is_written_first(accesses: list[Access], depth: int, region: Region) -> bool:
    """True where each iteration fills the whole region before it reads any of it: its first
    statement only stores, and stores all of it.
    """
    if any(len(access.path) <= depth for access in accesses):
        return False
    position = accesses[0].path[depth][1]
    if not isinstance(accesses[0].path[depth][0], Seq):
        return False
    first_accesses = [access for access in accesses if access.path[depth][1] == position]
    if any(not access.is_store for access in first_accesses):
        return False
    for dimension, (low, extent) in enumerate(zip(region.lows, region.extents, strict=True)):
        boxes = [region.digits.ranges(access)[dimension] for access in first_accesses]
        if min(b.low for b in boxes) > low or max(b.high for b in boxes) < low + extent - 1:
            return False
    return True


def _is_injective(access: Access, loops: list[For], region: Region) -> bool:
    """True where different iterations of the outer loops use disjoint parts of the full buffer."""
    arguments = access, loops, region
    return _are_variables_in_indices(*arguments) or _are_steps_disjoint(*arguments)


def _are_variables_in_indices(access: Access, loops: list[For], region: Region) -> bool:
    """True where the indices determine the outer variables.

    Each variable is an index itself, or several indices are its digits. A variable has digits if it
    was fused from several loops (`f // (n * 4), f // 4 % n, f % 4`).
    """
    outer = _outer_variables(access, region)
    return all(
        loop.var in access.indices or _is_in_digits(loop.var, access)
        for loop in loops
        if loop.var in outer
    )


def _is_in_digits(var: Var, access: Access) -> bool:
    """True where the indices that contain `var` are all of its digits in mixed radix."""
    digits = [
        (index, size)
        for index, size in zip(access.indices, access.shape, strict=True)
        if var in term_variables((index,))
    ]
    stride: Expr = Const(1)
    for position in reversed(range(len(digits))):
        index, size = digits[position]
        digit = var // stride if position == 0 else var // stride % size
        if simplify(digit, access.scope) != simplify(index, access.scope):
            return False
        stride = simplify(stride * size)
    return bool(digits)


def _are_steps_disjoint(access: Access, loops: list[For], region: Region) -> bool:
    """True where no step of an outer loop is smaller than what its inner loops cover."""
    extents = {loop.var: as_int(loop.extent) for loop in loops}
    levels: list[list[tuple[int, int]]] = [[] for _ in region.digits.strides]
    for term, factor in outer_terms(access.offset, region.digits.outer).items():
        if not term_variables(term) & extents.keys():
            continue  # symbols alone are the same in every iteration
        for level, stride in zip(levels, region.digits.strides, strict=True):
            quotient = divide_term(term, factor, stride)
            if quotient is None:
                continue
            (atom, *more_atoms) = quotient[0]
            extent = extents.get(atom) if isinstance(atom, Var) and not more_atoms else None
            level.append((quotient[1], -1 if extent is None else extent))
            break
    for level, inner_extent in zip(levels, region.extents, strict=True):
        reach = inner_extent
        for position, (step, extent) in enumerate(sorted(level)):
            if step < reach or (extent < 0 and position < len(level) - 1):
                return False
            reach = step * extent
    return True
