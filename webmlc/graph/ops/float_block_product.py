"""Products of float32 activations with weights that are quantised in blocks, as one reduction.

`FloatBlockProduct` computes the same as `PackedBlockProduct` with the attribute `exact`, from the
same packed weights (`block_quantised.py`). It widens each weight before the multiplication:

    y[*, n] = Σ over k: x[*, k] · (scales[n, k // block] · (values[n, k] - excess) + minimums[...])

So the product has one reduction, and a kernel may add a prologue and an epilogue to it. A GPU waits
for memory, not for the additional multiplication. With the attribute `first`, the columns start at
row `first` of the weights: several products may read parts of one matrix.
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_expr, const
from webmlc.graph.compute import Tensor, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.block_quantised import DOMAIN, scale_at, stored_value
from webmlc.graph.ops.layout import BYTES_PER_WORD, PACK
from webmlc.graph.ops.operator import Context, Operator


def _type(context: Context) -> TensorType:
    *rows, _ = context.shape(0)
    return TensorType(DType.float32, (*rows, as_expr(context.attribute("columns"))))


def _product(
    context: Context,
    data: Tensor,
    values: Tensor,
    scales: Tensor,
    minimums: Tensor | None = None,
) -> Tensor:
    """Sum over blocks, the words of a block, the parts of a word, and the bytes of a part."""
    bits, excess = int(context.attribute("bits")), int(context.attribute("excess"))
    first = int(context.attribute("first", 0))
    parts, words = 8 // bits, values.shape[2]

    def element(*axes: Expr) -> Expr:
        *row, column, block, word, part, byte = axes
        panel, lane = (first + column) // PACK, (first + column) % PACK
        stored = stored_value(values[(panel, block, word, lane)], bits, part, byte)
        value = (stored - excess).astype(DType.float32)
        weight = value * scale_at(scales, (panel, block, lane))
        if minimums is not None:
            weight = weight + scale_at(minimums, (panel, block, lane))
        number = ((block * parts + part) * words + word) * BYTES_PER_WORD + byte
        return data[(*row, number)] * weight

    extents = (values.shape[1], words, const(parts), const(BYTES_PER_WORD))
    return reduce("product", context.outputs[0].shape, extents, "add", element)


OPS: tuple[Operator, ...] = (
    Operator("FloatBlockProduct", _type, _product, kind="contraction", domain=DOMAIN),
)
