"""The valid ONNX models that are damaged: the cases of all operators, and some small graphs.

A base is a model with arrays for its inputs. Each graph of `GRAPHS` has parts that no case of one
operator has: local functions, scopes within scopes, sequences, sizes that data decide.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.graph.ops.test_rows import make_model
from webmlc.graph.table import OPS

Array = NDArray[Any]
Base = tuple[onnx.ModelProto, dict[str, Array]]

SIZES = {"n": 2, "m": 3}
"""The sizes of the symbols of `GRAPHS`."""

HEADER = '<ir_version: 10, opset_import: ["" : 21, "local" : 1, "ai.onnx.ml" : 3]>'

GRAPHS = {
    "convolution": """g (float[n,3,8,8] x) => (float[n,q] y) <float[4,3,3,3] w, float[4] b,
            int64[2] s = {0, -1}> {
        c = Conv <pads: ints = [1,1,1,1], strides: ints = [2,2]> (x, w, b)
        r = Relu (c)
        p = MaxPool <kernel_shape: ints = [2,2]> (r)
        y = Reshape (p, s) }""",
    "attention": """g (float[n,m,8] x, bool[n,m] k) => (float[n,m,8] y) <float[8,8] w,
            float d = {2.83}, float l = {-1e4}, float z = {0}, int64[1] a = {1}, float[8] h> {
        q = MatMul (x, w)
        t = Transpose <perm: ints = [0,2,1]> (x)
        p = MatMul (q, t)
        e = Div (p, d)
        f = Unsqueeze (k, a)
        o = Where (f, z, l)
        u = Add (e, o)
        v = Softmax <axis: int = -1> (u)
        c = MatMul (v, x)
        y = LayerNormalization (c, h) }""",
    "control flow": """g (float[n,3] x, bool c) => (float[n,3] y, float[n,3] z) <int64 four = {4},
            bool on = {1}> {
        y = Loop (four, on, x) <body = b (int64 i, bool k, float[n,3] s) => (bool l, float[n,3] t)
            { l = Identity (k) t = Add (s, x) }>
        z = If (c) <then_branch = t () => (float[n,3] o) { q = Neg (x) o = Abs (q) },
                    else_branch = e () => (float[n,3] o) { q = Mul (x, x) o = Sub (q, y) }> }""",
    "scan": """g (float[3] s, float[m,3] x) => (float[3] t, float[m,3] z) {
        t, z = Scan <num_scan_inputs = 1, body = b (float[3] a, float[3] e) => (float[3] c,
            float[3] d) { c = Add (a, e) d = Mul (c, c) }> (s, x) }""",
    "shapes": """g (float[n,m,4] x) => (float[a,b] y, float[n,m,2] v)
            <int64[1] k = {2}, int64[1] one = {-1}, int64 zero = {0}> {
        s = Shape (x)
        t = Gather (s, k)
        u = Concat <axis: int = 0> (t, one)
        y = Reshape (x, u)
        v, w = TopK <axis: int = -1> (x, k) }""",
    "data-dependent sizes": """g (float[n,3] x) => (int64[2,r] y, float[p] z) <float[1,3] h> {
        g = Greater (x, h)
        y = NonZero (g)
        z = Compress (x, f)
        f, e = Split <axis: int = 0, num_outputs: int = 2> (o)
        o = Reshape (g, i)
        i = Constant <value_ints: ints = [-1]> () }""",
    "quantised": """g (float[n,6] x) => (float[n,3] y)
            <float s = {0.1}, uint8 z = {128}, int8[6,3] w, int8 v = {0}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        f = DequantizeLinear (w, s, v)
        m = MatMul (d, f)
        y = Clip (m, s) }""",
    "sequence": """g (float[n,4] x) => (float[n,4] y, seq(float[n,2]) z) <int64 i = {1}> {
        z = SplitToSequence <axis: int = 1> (x, two)
        two = Constant <value_int: int = 2> ()
        e = SequenceAt (z, i)
        a = SequenceInsert (z, e)
        c = ConcatFromSequence <axis: int = 1> (a)
        w = Constant <value_ints: ints = [4]> ()
        v = Constant <value_ints: ints = [0]> ()
        o = Constant <value_ints: ints = [1]> ()
        y = Slice (c, v, w, o) }""",
    "functions": """g (float[n,4] x) => (float[n,4] y) {
        h = local.gated <alpha: float = 0.3> (x, x)
        y = local.scaled (h) }
        <domain: "local", opset_import: ["" : 18, "local" : 1]>
        gated <alpha: float = 0.1> (a, b) => (c)
        { t = LeakyRelu <alpha: float = @alpha> (a) u = Sigmoid (b) v = Mul (t, u)
          c = local.scaled <factor: float = @alpha> (v) }
        <domain: "local", opset_import: ["" : 21]>
        scaled <factor: float = 2.0> (a) => (c)
        { k = Constant <value_float: float = @factor> () c = Mul (a, k) }""",
    "trees": """g (float[n,3] x) => (float[n,1] y) {
        y = ai.onnx.ml.TreeEnsembleRegressor <n_targets: int = 1,
            nodes_treeids: ints = [0,0,0], nodes_nodeids: ints = [0,1,2],
            nodes_featureids: ints = [2,0,0], nodes_modes: strings = ["BRANCH_LEQ","LEAF","LEAF"],
            nodes_values: floats = [0.1,0.0,0.0], nodes_truenodeids: ints = [1,0,0],
            nodes_falsenodeids: ints = [2,0,0], target_treeids: ints = [0,0],
            target_nodeids: ints = [1,2], target_ids: ints = [0,0],
            target_weights: floats = [1.5,-2.5]> (x) }""",
    "recurrent": """g (float[m,n,4] x) => (float[m,1,n,3] y, float[1,n,3] h) <float[1,12,4] w,
            float[1,12,3] r, float[1,24] b> { y, h = LSTM <hidden_size: int = 3> (x, w, r, b) }""",
}


def draw_base(rng: random.Random) -> tuple[str, Base]:
    """A base and its title. The model is a copy, which the caller may change."""
    if rng.random() < 0.5:
        title = rng.choice(list(GRAPHS))
        model, feeds = graph_base(title)
    else:
        domain, name = rng.choice([key for key, row in OPS.items() if row.cases])
        number = rng.randrange(len(OPS[domain, name].cases))
        title = f"{name}-{number}"
        model, feeds = row_base(domain, name, number)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return title, (copy, dict(feeds))


@cache
def graph_base(title: str) -> Base:
    """A graph of `GRAPHS`. Weights that its text only declares are random."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(HEADER + GRAPHS[title])
    for info in model.graph.value_info:
        model.graph.initializer.append(numpy_helper.from_array(random_array(info, rng), info.name))
    del model.graph.value_info[:]
    return model, {info.name: random_array(info, rng) for info in model.graph.input}


@cache
def row_base(domain: str, name: str, number: int) -> Base:
    """The model of a case of one operator, with the types that ONNX infers."""
    model, feeds = make_model(domain, name, OPS[domain, name].cases[number])
    with suppress(onnx.shape_inference.InferenceError):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for info in model.graph.output:
        if not info.type.tensor_type.elem_type:
            info.ClearField("type")  # of an operator that onnx does not know
    return model, feeds


def random_array(info: onnx.ValueInfoProto, rng: np.random.Generator) -> Array:
    """An array of a declared type. Symbols that `SIZES` does not name are 2."""
    tensor = info.type.tensor_type
    shape = [
        d.dim_value if d.HasField("dim_value") else SIZES.get(d.dim_param, 2)
        for d in tensor.shape.dim
    ]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0, 3, shape)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)
