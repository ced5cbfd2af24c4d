"""CausalAttention against plain equations, on both devices: windows, soft caps, shared heads, and
numbers of new tokens and of keys that only a run knows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import webmlc
from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError, UnsupportedError
from webmlc.core.expr import Const, Expr, Var, as_int, const
from webmlc.core.machine import RELAXED
from webmlc.core.rewrite import substitute
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.attention.tile_rows import tile_rows
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.ir import Function, Module, Node, TensorType

HEADS, GROUPS, SIZE = 6, 2, 12


def module_of(groups: int = GROUPS, **attributes: float) -> Module:
    """One node. The numbers of tokens and of keys are symbols."""

    def type_of(rows: Expr, heads: int) -> TensorType:
        return TensorType(DType.float32, (rows, const(heads), const(SIZE)))

    types = {"q": type_of(Var("tokens"), HEADS)}
    types |= dict.fromkeys(("k", "v"), type_of(Var("keys"), groups))
    node = Node("CausalAttention", ("q", "k", "v"), ("y",), attributes, "webmlc", ("attention",))
    main = Function("main", ("q", "k", "v"), ("y",), (node,), types, {})
    return Module("attention", {"main": main}, opsets={"": 24, "webmlc": 1})


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, window: int, softcap: float
) -> np.ndarray:
    k, v = (x.astype(np.float64).repeat(HEADS // GROUPS, axis=1) for x in (k, v))
    scores = np.einsum("thd,jhd->htj", q, k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    ends = np.arange(len(q))[:, None] + len(k) - len(q)
    keys = np.arange(len(k))
    hidden = (keys > ends) | ((keys <= ends - window) if window else False)
    scores[:, hidden] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("htj,jhd->thd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (3, 1.5)], ids=["plain", "window"])
def test_attention_equals_reference(window: int, softcap: float, tmp_path: Path) -> None:
    module = module_of(scale=2.0, window=window, softcap=softcap)
    webmlc.build(module, tmp_path / "package")
    rng = np.random.default_rng(4)
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path / "package", device=device)
        for tokens, keys in ((1, 1), (1, 70), (5, 5), (6, 6), (7, 41), (33, 33)):
            q = rng.standard_normal((tokens, HEADS, SIZE)).astype(np.float32)
            k, v = rng.standard_normal((2, keys, GROUPS, SIZE)).astype(np.float32)
            k *= 20  # large scores: the exponentials must not overflow
            y = model.run({"q": q, "k": k, "v": v})["y"]
            expected = reference(q, k, v, 2.0, window, softcap)
            np.testing.assert_allclose(y, expected, atol=5e-5, err_msg=f"{device} {tokens} {keys}")
        with pytest.raises(InputError, match="keys"):
            model.run({"q": q, "k": k[:8], "v": v[:8]})


def test_whole_tiles_of_rows_read_packed_keys() -> None:
    function = infer_shapes(module_of(scale=1.0))
    main = tile_rows(function, RELAXED).main
    operators = ["PackKeys", "CausalScores", "Softmax", "WeightedValues", "CausalAttention"]
    assert [node.op for node in main.nodes] == [*operators, "Concat"]
    for tokens, panels, rows, rest in ((1, 0, 0, 1), (14, 5, 12, 2)):
        values = {Var("tokens"): Const(tokens), Var("keys"): Const(40)}
        shapes = [main.types[main.nodes[i].outputs[0]].shape for i in (0, 1, 4)]
        packed, scores, last = (
            [as_int(simplify(substitute(size, values))) for size in shape] for shape in shapes
        )
        assert (packed[1], scores[1], last[0]) == (panels, rows, rest)


def test_heads_that_cannot_be_shared() -> None:
    with pytest.raises(UnsupportedError, match="6 heads of queries for 4 heads of keys"):
        webmlc.compile.compile_model(module_of(groups=4, scale=1.0), "wasm")
