"""State: values that a session keeps from run to run.

`Append` adds rows to a state along its first axis. The attribute `length` is a symbol: the number
of rows that the session holds before the run.

    %k: float32[past + tokens, 3, 64] = webmlc.Append(%rows: float32[tokens, 3, 64]) {length=past}
"""

from __future__ import annotations

from webmlc.core.expr import Expr
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.shapes import canonical

APPEND = ("webmlc", "Append")


def _append_type(context: Context) -> TensorType:
    length: Expr = context.attribute("length")
    first, *inner = context.shape(0)
    return TensorType(context.dtype(0), (canonical(length + first), *inner))


OPS: tuple[Operator, ...] = (Operator("Append", _append_type, domain="webmlc"),)
