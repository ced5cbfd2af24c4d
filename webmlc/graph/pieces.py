"""Operators that put parts together, as parts: each is written by a block of its own, with no test
inside its loops.

A `Piece` is a pointwise tensor and where it goes in the output; later pieces overwrite earlier
ones.

    Concat(a, b)  ->  a at 0, b at a.shape[axis]          Pad(x)  ->  the fill value everywhere,
    then x inside
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from webmlc.core.expr import Const, Expr, as_int, const
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute
from webmlc.graph.ops.operator import Context

Tensors = tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an output: `tensor`, whose first element goes to `offsets`."""

    tensor: Tensor
    offsets: tuple[Expr, ...]


def _concat(context: Context, tensors: Tensors) -> tuple[Piece, ...]:
    axis = context.axis(0)
    position: Expr = const(0)
    pieces = []
    for tensor in tensors:
        assert tensor is not None
        offsets = tuple(position if d == axis else const(0) for d in range(tensor.rank))
        pieces.append(Piece(_copy("concat", tensor), offsets))
        position = simplify(position + tensor.shape[axis])
    return tuple(pieces)


def _pad(context: Context, tensors: Tensors) -> tuple[Piece, ...] | None:
    amounts = context.value(1)
    data = tensors[0]
    if context.attribute("mode", "constant") != "constant" or amounts is None or data is None:
        return None
    begins = [as_int(b) for b in amounts.reshape(2, -1)[0].tolist()]
    ends = [as_int(e) for e in amounts.reshape(2, -1)[1].tolist()]
    value = context.constant(2) if context.has(2) else np.zeros((), data.dtype.numpy)
    plain = len(begins) == data.rank and all(b is not None and b >= 0 for b in (*begins, *ends))
    if not plain or value is None or context.has(3):
        return None
    fill = Const(value.item(), data.dtype)
    filled = compute("fill", context.outputs[0].shape, lambda *_: fill)
    zero = tuple(const(0) for _ in begins)
    inside = Piece(_copy("pad", data), tuple(const(b) for b in begins if b is not None))
    return (Piece(filled, zero), inside)


def _copy(name: str, tensor: Tensor) -> Tensor:
    return compute(name, tensor.shape, lambda *axes: tensor[axes])


PIECES: dict[tuple[str, str], Callable[[Context, Tensors], tuple[Piece, ...] | None]] = {
    ("", "Concat"): _concat,
    ("", "Pad"): _pad,
}
