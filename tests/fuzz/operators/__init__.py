"""How to draw each operator: `DESCRIPTIONS[name](sketch)` adds one node of it, or raises `Retry`.

An operator of the table without a description is drawn as the cases of its row say
(`from_case`), so that a new row is fuzzed from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from tests.fuzz.operators import contractions, control, elementwise, movement, reductions
from tests.fuzz.sketch import Retry, Sketch
from tests.graph.ops.test_rows import make_input
from webmlc.graph.table import OPS

Describe = Callable[[Sketch], None]

DESCRIPTIONS: dict[str, Describe] = {
    **{op: partial(elementwise.unary, op=op) for op in elementwise.UNARY},
    **{op: partial(elementwise.binary, op=op) for op in elementwise.BINARY},
    **{op: partial(elementwise.variadic, op=op) for op in elementwise.VARIADIC},
    **{op: partial(elementwise.divide, op=op) for op in ("Div", "Mod")},
    **{op: partial(elementwise.cast, op=op) for op in ("Cast", "CastLike")},
    "Pow": elementwise.power,
    "Clip": elementwise.clip,
    "BitShift": elementwise.bit_shift,
    "Where": elementwise.where,
    "PRelu": elementwise.prelu,
    "QuantizeLinear": elementwise.quantize,
    "DequantizeLinear": elementwise.dequantize,
    **{op: partial(reductions.reduce, op=op) for op in reductions.REDUCTIONS},
    **{op: partial(reductions.argument, op=op) for op in reductions.ARGUMENTS},
    **{op: partial(reductions.along_an_axis, op=op) for op in reductions.ALONG_AN_AXIS},
    **{op: partial(reductions.scan, op=op) for op in reductions.SCANS},
    "TopK": reductions.top_k,
    "LpNormalization": reductions.lp_normalization,
    "LayerNormalization": partial(reductions.layer_norm, op="LayerNormalization"),
    "RMSNormalization": partial(reductions.layer_norm, op="RMSNormalization"),
    "BatchNormalization": reductions.batch_norm,
    "InstanceNormalization": reductions.instance_norm,
    "GroupNormalization": reductions.group_norm,
    "LRN": reductions.lrn,
    "MeanVarianceNormalization": reductions.mean_variance,
    **{
        op: partial(reductions.global_pool, op=op)
        for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
    },
    "MatMul": contractions.matmul,
    "Gemm": contractions.gemm,
    "Einsum": contractions.einsum,
    "MatMulInteger": contractions.matmul_integer,
    "QLinearMatMul": contractions.qlinear_matmul,
    "Conv": contractions.conv,
    "ConvTranspose": contractions.conv_transpose,
    "ConvInteger": contractions.conv_integer,
    **{op: partial(contractions.pool, op=op) for op in ("AveragePool", "MaxPool", "LpPool")},
    "Transpose": movement.transpose,
    "Reshape": movement.reshape,
    "Flatten": movement.flatten,
    "Squeeze": movement.squeeze,
    "Unsqueeze": movement.unsqueeze,
    "Concat": movement.concat,
    "Split": movement.split,
    "Slice": movement.slice_,
    "Pad": movement.pad,
    "Expand": movement.expand,
    "Tile": movement.tile,
    "Gather": movement.gather,
    "GatherElements": movement.gather_elements,
    "GatherND": movement.gather_nd,
    "ScatterElements": movement.scatter_elements,
    "ScatterND": movement.scatter_nd,
    "DepthToSpace": movement.depth_to_space,
    "SpaceToDepth": movement.space_to_depth,
    "Trilu": movement.trilu,
    "EyeLike": movement.eye_like,
    "ConstantOfShape": movement.constant_of_shape,
    "Range": movement.range_,
    "Shape": partial(movement.shape_, op="Shape"),
    "Size": partial(movement.shape_, op="Size"),
    "OneHot": movement.one_hot,
    "ReverseSequence": movement.reverse_sequence,
    "Resize": movement.resize,
    "GridSample": movement.grid_sample,
    "If": control.if_,
    "Loop": control.loop,
    "Scan": control.scan,
}


def from_case(sketch: Sketch, key: tuple[str, str]) -> None:
    """Draw a case of an operator's row, with other numbers."""
    domain, op = key
    case = sketch.choose(OPS[key].cases)
    if not domain and case.opset is not None:
        newest = onnx.defs.get_schema(op, sketch.opset).since_version
        if onnx.defs.get_schema(op, case.opset).since_version != newest:
            raise Retry  # a case of an older form
    rng = sketch.generator()
    inputs = [
        ""
        if spec is None
        else sketch.input(make_input(spec, rng))
        if isinstance(spec, str)
        else sketch.constant(spec)
        for spec in case.inputs
    ]
    attributes = {
        name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for name, value in case.attributes.items()
    }
    sketch.node(op, *inputs, outputs=case.outputs, domain=domain, **attributes)


def drawable(opset: int) -> dict[str, Describe]:
    """Every operator that can be drawn in this opset."""
    found: dict[str, Describe] = {}
    for (domain, op), row in OPS.items():
        if not domain and not onnx.defs.has(op, opset):
            continue
        if not domain and op in DESCRIPTIONS:
            found[op] = DESCRIPTIONS[op]
        elif row.cases:
            found[f"{domain}.{op}".lstrip(".")] = partial(from_case, key=(domain, op))
    return found
