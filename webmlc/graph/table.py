"""The operator table: `OPS[domain, name]` is the row of every operator that webmlc compiles.

ONNX's operators are in `ops/`. An operator that only one pass writes is beside that pass, in
`algorithms/`.

>>> OPS["", "Relu"].kind
'elementwise'
"""

from webmlc.graph.algorithms.attention import causal
from webmlc.graph.algorithms.attention import operators as attention
from webmlc.graph.algorithms.strassen import operators as strassen
from webmlc.graph.algorithms.winograd import operators as winograd
from webmlc.graph.ops import (
    axes,
    block_quantised,
    cast,
    columns,
    contract,
    control,
    convolution,
    derivative,
    elementwise,
    elimination,
    float_block_product,
    grid_sample,
    image,
    index,
    layout,
    ml_encode,
    ml_linear,
    ml_scores,
    ml_tree,
    ngrams,
    normalisation,
    pooling,
    quantise,
    random,
    recurrent,
    reduction,
    regions,
    resize,
    rotate,
    selection,
    sequence,
    shape,
    signal,
    slice,
    sort,
    state,
    suppression,
    training,
    unique,
    view,
)
from webmlc.graph.ops.microsoft import attention as fused_attention
from webmlc.graph.ops.microsoft import fused, group_query, quantised, rotary
from webmlc.graph.ops.microsoft import normalisation as skip_normalisation
from webmlc.graph.ops.operator import Operator

OPS: dict[tuple[str, str], Operator] = {
    (row.domain, row.name): row
    for row in (
        *elementwise.OPS,
        *cast.OPS,
        *contract.OPS,
        *convolution.OPS,
        *pooling.OPS,
        *axes.OPS,
        *reduction.OPS,
        *normalisation.OPS,
        *view.OPS,
        *slice.OPS,
        *shape.OPS,
        *index.OPS,
        *sort.OPS,
        *state.OPS,
        *selection.OPS,
        *unique.OPS,
        *suppression.OPS,
        *grid_sample.OPS,
        *control.OPS,
        *sequence.OPS,
        *recurrent.OPS,
        *resize.OPS,
        *image.OPS,
        *quantise.OPS,
        *ml_encode.OPS,
        *ml_linear.OPS,
        *ml_scores.OPS,
        *ml_tree.OPS,
        *random.OPS,
        *quantised.OPS,
        *elimination.OPS,
        *ngrams.OPS,
        *columns.OPS,
        *regions.OPS,
        *signal.OPS,
        *training.OPS,
        *derivative.OPS,
        *layout.OPS,
        *block_quantised.OPS,
        *float_block_product.OPS,
        *winograd.OPS,
        *strassen.OPS,
        *attention.OPS,
        *causal.OPS,
        *rotate.OPS,
        *fused.OPS,
        *skip_normalisation.OPS,
        *fused_attention.OPS,
        *group_query.OPS,
        *rotary.OPS,
    )
}
