"""The operator table: `OPS[domain, name]` is the row of every operator that webmlc compiles.

ONNX's operators are in `ops/`. An operator that only one pass writes is beside that pass, in
`algorithms/`.

>>> OPS["", "Relu"].kind
'elementwise'
"""

from types import ModuleType

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
from webmlc.graph.ops.ml import encode, linear, scores, tree
from webmlc.graph.ops.operator import Operator

MODULES: tuple[ModuleType, ...] = (
    elementwise, cast, contract, convolution, pooling, axes, reduction, normalisation, view,
    slice, shape, index, sort, state, selection, unique, suppression, grid_sample, control,
    sequence, recurrent, resize, image, quantise, encode, linear, scores, tree,
    random, quantised, elimination, ngrams, columns, regions, signal, training, derivative,
    layout, block_quantised, float_block_product, winograd, strassen, attention, causal, rotate,
    fused, skip_normalisation, fused_attention, group_query, rotary,
)  # fmt: skip
OPS: dict[tuple[str, str], Operator] = {
    (row.domain, row.name): row for module in MODULES for row in module.OPS
}
