"""Separate the nests of a kernel that compute from the nests that store a constant around the
result.

conv, relu = ...                            (conv, relu -> out[1:57, 1:57],)
out[0], out[57], out[:, 0], ... = 0    ->   (out[0] = 0, out[57] = 0, out[:, 0] = 0, ...)
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.expr import Const
from webmlc.loops.ir import LoopFunction, Seq, Stmt, seq, stores


def results_and_fills(function: LoopFunction) -> tuple[LoopFunction, LoopFunction] | None:
    """The nests that compute and the nests that fill, as two kernels; `None` if the function lacks
    one of the two.
    """
    nests = function.body.statements if isinstance(function.body, Seq) else (function.body,)
    fills = [nest for nest in nests if _fills(nest)]
    results = [nest for nest in nests if not _fills(nest)]
    if not fills or not results:
        return None
    return replace(function, body=seq(*results)), replace(function, body=seq(*fills))


def _fills(nest: Stmt) -> bool:
    return all(isinstance(store.value, Const) for store in stores(nest))
