"""The operator that grows a state, such as a language model's cache of keys (domain `webmlc`).

    %keys: float32[past + n, 3, 64] = webmlc.Append(%rows: float32[n, 3, 64]) {length=past}

The state holds `length` rows before the run. The output holds these, and the new rows after them.
The operator has no `compute`: a pass replaces it by a write into the buffer of the state.
"""

from __future__ import annotations

from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, Operator
from webmlc.graph.ops.shapes import canonical


def _append_type(context: Context) -> tuple[TensorType, ...]:
    rows, *rest = context.shape(0)
    shape = (canonical(context.attribute("length") + rows), *rest)
    return (TensorType(context.dtype(0), shape),)


OPS: tuple[Operator, ...] = (Operator("Append", _append_type, domain="webmlc"),)
