"""Rewrites that look for a pattern meet its operators over operands of every rank.

A pattern is usually found over batches of matrices. The same operators over matrices, vectors and
numbers are another computation, or the same one without the axes that the rewrite reads.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.against_onnxruntime import check, parse

PATTERNS = {
    "views around an Expand": """
        g (float s, float[4] v, float[2,4] m, float[2,3,4] b)
          => (float[6,1] ys, float[6,4] yv, float[6,4] ym, float[8,3,4] yb)
        <int64[4] ones = {1,1,1,1}, int64[4] longer = {1,3,2,1}, int64[2] column = {6,1},
         int64[4] row = {1,1,1,4}, int64[2] rows = {6,4}, int64[4] apart = {1,1,2,4},
         int64[4] repeated = {1,3,2,4}, int64[5] whole = {1,1,2,3,4}, int64[5] times = {1,4,2,3,4},
         int64[3] merged = {8,3,4}> {
          s1 = Reshape (s, ones) s2 = Expand (s1, longer) ys = Reshape (s2, column)
          v1 = Reshape (v, row) v2 = Expand (v1, longer) yv = Reshape (v2, rows)
          m1 = Reshape (m, apart) m2 = Expand (m1, repeated) ym = Reshape (m2, rows)
          b1 = Reshape (b, whole) b2 = Expand (b1, times) yb = Reshape (b2, merged) }""",
    "a softmax before a product": """
        g (float[48] x, float[6,48] m, float[2,6,48] b, float[48] v, float[48,8] w)
          => (float xv, float[8] xw, float[6] mv, float[6,8] mw, float[2,6] bv, float[2,6,8] bw) {
          x1 = Softmax (x) xv = MatMul (x1, v) xn = Neg (x) x2 = Softmax (xn) xw = MatMul (x2, w)
          m1 = Softmax (m) mv = MatMul (m1, v) mn = Neg (m) m2 = Softmax (mn) mw = MatMul (m2, w)
          b1 = Softmax (b) bv = MatMul (b1, v) bn = Neg (b) b2 = Softmax (bn) bw = MatMul (b2, w)
        }""",
    "attention of one query": """
        g (float[16] q, float[16,48] k, float[48,8] v, float[16] c)
          => (float[8] y, float[8] z) <float zero = {0}, bool[1] is_masked = {1}> {
          s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v)
          t = MatMul (c, k) r = Softmax (t) w = Where (is_masked, zero, r) z = MatMul (w, v) }""",
    "logits that are a matrix and a product of a vector": """
        g (float[16] q, float[16,48] k, float[48,48] mask, float[48,8] v) => (float[48,8] y) {
          s = MatMul (q, k) l = Add (mask, s) p = Softmax (l) y = MatMul (p, v) }""",
    "rows of a table with one row": """
        g (int64 i, int64[3] j, int64[3,1] k) => (float[2] x, float[3,2] y, float[3,2] z)
        <int64 zero = {0}, int64[1] first = {0}, float[1,2] table = {2,3}, int64[2] column = {3,1}>
        {
          a = Equal (i, first) b = Cast <to = 1> (a) x = MatMul (b, table)
          c = Equal (k, zero) d = Cast <to = 1> (c) y = MatMul (d, table)
          e = Reshape (j, column) f = Equal (first, e) h = Cast <to = 1> (f)
          z = MatMul (h, table) }""",
}


@pytest.mark.parametrize("text", PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_over_operands_of_any_rank(text: str, tmp_path: Path) -> None:
    model, rng = parse(text), np.random.default_rng(0)
    feeds = {}
    for port in model.graph.input:
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        is_float = port.type.tensor_type.elem_type == 1
        values = rng.standard_normal(shape) if is_float else rng.integers(-1, 2, shape)
        feeds[port.name] = np.asarray(values, np.float32 if is_float else np.int64)
    check(model, tmp_path / "package", feeds)
