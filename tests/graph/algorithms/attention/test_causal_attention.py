"""CausalAttention against plain equations, on both devices: windows, soft caps, shared heads, and
numbers of new tokens and of keys that only a run knows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import webmlc
from webmlc.build_options import BuildOptions
from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError, UnsupportedError
from webmlc.core.expr import Const, Expr, Var, as_int, const
from webmlc.core.machine import RELAXED, SIMD128, Machine
from webmlc.core.rewrite import substitute
from webmlc.core.simplify import simplify
from webmlc.core.stages import ignore
from webmlc.graph.algorithms.attention.tile_rows import tile_rows
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.pipeline import kernel_module
from webmlc.schedule.rules import choose_rule
from webmlc.target.targets import TARGETS, lower
from webmlc.target.wasm.emit_module import print_function

HEADS, GROUPS, SIZE = 6, 2, 12


def module_of(
    groups: int = GROUPS, heads: int = HEADS, size: int = SIZE, **attributes: float
) -> Module:
    """One node. The numbers of tokens and of keys are symbols."""

    def type_of(rows: Expr, count: int) -> TensorType:
        return TensorType(DType.float32, (rows, const(count), const(size)))

    types = {"q": type_of(Var("tokens"), heads)}
    types |= dict.fromkeys(("k", "v"), type_of(Var("keys"), groups))
    node = Node("CausalAttention", ("q", "k", "v"), ("y",), attributes, "webmlc", ("attention",))
    main = Function("main", ("q", "k", "v"), ("y",), (node,), types, {})
    return Module("attention", {"main": main}, opsets={"": 24, "webmlc": 1})


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, window: int, softcap: float
) -> np.ndarray:
    k, v = (x.astype(np.float64).repeat(q.shape[1] // k.shape[1], axis=1) for x in (k, v))
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


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (7, 1), (16, 1)])
def test_threads_share_sections_of_keys(heads: int, groups: int, tmp_path: Path) -> None:
    webmlc.build(module_of(groups, heads, scale=0.5), tmp_path, target="wasm")
    rng = np.random.default_rng(5)
    with_threads = [webmlc.load(tmp_path, threads=threads) for threads in (1, 2)]
    for tokens, keys in ((1, 48), (1, 49), (2, 97), (5, 150)):
        q = rng.standard_normal((tokens, heads, SIZE)).astype(np.float32)
        k, v = rng.standard_normal((2, keys, groups, SIZE)).astype(np.float32)
        expected = reference(q, k, v, 0.5, 0, 0.0)
        for model in with_threads:
            y = model.run({"q": q, "k": k, "v": v})["y"]
            np.testing.assert_allclose(y, expected, atol=1e-5, err_msg=f"{tokens} {keys}")


@pytest.mark.parametrize("machine", [RELAXED, SIMD128], ids=["relaxed", "simd128"])
def test_a_token_reads_a_key_once_for_all_heads_of_a_group(machine: Machine) -> None:
    """In a group of three heads of 64 elements, three keys have nine sums, two vectors at a time.
    Values have six sums in registers, of two vectors for each head, until the section ends. Only
    the last section of keys has bounds.
    """
    module = infer_shapes(module_of(3, 9, 64, scale=0.125))
    kernel = kernel_module(module, TARGETS["wasm"], ignore).kernels["attendsections"]
    rule, schedule = choose_rule(name_dimensions(kernel).function, machine)
    assert rule == "attention to sections"
    features = "relaxed" if machine is RELAXED else "simd128"
    text = print_function(lower(schedule.function, machine), features).text
    loops = re.findall(r"\(loop (?:(?!\(loop ).)*?\(br_if[^\n]*", text, re.DOTALL)
    multiply = "f32x4.relaxed_madd" if machine is RELAXED else "f32x4.mul"
    for stage, sums, loads in (("scores", 2 * 9, 2 * (3 + 3)), ("product", 2 * 6, 2 * (3 + 2))):
        plain, bounded = (part for part in loops if f"$L_{stage}" in part and multiply in part)
        for loop in (plain, bounded):
            assert (loop.count(multiply), loop.count("v128.load")) == (sums, loads)
            assert "v128.store" not in loop
        assert "i32.mul" not in plain
        assert len(re.findall(r"i32\.add \(local\.get \$\w+\) \(i32\.const", plain)) == 2


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16])
def test_keys_and_values_are_fetched_before_a_section(dtype: DType) -> None:
    """Once for keys, and once for values. Four bfloat16 are a load of 16 bits each, and a shift."""
    module = module_of(3, 9, 64, scale=0.125)
    main = module.main
    operands = {name: replace(main.types[name], dtype=dtype) for name in ("k", "v")}
    narrow = replace(main, types={**main.types, **operands})
    module = infer_shapes(replace(module, functions={"main": narrow}))
    kernel = kernel_module(module, TARGETS["wasm"], ignore).kernels["attendsections"]
    _, schedule = choose_rule(name_dimensions(kernel).function, RELAXED)
    text = print_function(lower(schedule.function, RELAXED), "relaxed").text
    assert sum(name.endswith("_prefetch") for name in schedule.blocks()) == 2
    assert ("(i32x4.shl (v128.load16x4_u" in text) == (dtype is DType.bfloat16)


def module_with_caches(groups: int = GROUPS, heads: int = HEADS, size: int = SIZE) -> Module:
    """Attention whose keys and values are a session's, in bfloat16."""
    module = module_of(groups, heads, size, scale=0.5)
    main = module.main
    rows = TensorType(DType.bfloat16, (Var("tokens"), const(groups), const(size)))
    appends = tuple(
        Node("Append", (f"{name}_rows",), (name,), {"length": Var("past")}, "webmlc", (name,))
        for name in ("k", "v")
    )
    types = {"q": main.types["q"], "k_rows": rows, "v_rows": rows}
    function = replace(main, inputs=tuple(types), nodes=(*appends, *main.nodes), types=types)
    return replace(module, functions={"main": function}, length="past")


def test_caches_in_half_precision_are_exact_and_keep_nan(tmp_path: Path) -> None:
    """A query sees halves as they are, small and large ones, and a sum that is not finite where a
    value that it sees is not.
    """
    webmlc.build(module_with_caches(), tmp_path)
    rng = np.random.default_rng(6)
    q = rng.standard_normal((70, HEADS, SIZE)).astype(np.float32)
    k, v = rng.standard_normal((2, 70, GROUPS, SIZE)).astype(ml_dtypes.bfloat16)
    v[::3] *= ml_dtypes.bfloat16(2**-16)
    v[1::5] *= ml_dtypes.bfloat16(16000)
    expected = reference(q, k, v, 0.5, 0, 0.0)
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path, device=device)
        for bad, cache in ((np.nan, "k"), (np.nan, "v"), (np.inf, "v")):
            rows = {"k_rows": k.copy(), "v_rows": v.copy()}
            rows[f"{cache}_rows"][66, 1, 5] = bad
            session = model.session(capacity=80)
            for first, last in ((0, 65), (65, 66), (66, 68), (68, 69)):
                inputs = {name: array[first:last] for name, array in rows.items()}
                y = session.run({"q": q[first:last], **inputs})["y"]
                if last <= 66:
                    np.testing.assert_allclose(y, expected[first:last], rtol=2e-5, atol=2e-2)
                else:
                    shared = HEADS // GROUPS
                    assert not np.isfinite(y[:, shared:]).all(axis=-1).any(), (device, cache)
                    assert np.isfinite(y[:, :shared]).all(), (device, cache)
        model.dispose()


def test_tiles_copy_narrow_keys_on_gpus(tmp_path: Path) -> None:
    """Their copies, which no other vectors share, fit into a workgroup's memory with the rest: else
    the build fails.
    """
    webmlc.build(module_with_caches(1, 2, 32), tmp_path, "webgpu")
    rng = np.random.default_rng(7)
    q = rng.standard_normal((70, 2, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 70, 1, 32)).astype(ml_dtypes.bfloat16)
    expected = reference(q, k, v, 0.5, 0, 0.0)
    model = webmlc.load(tmp_path, device="webgpu")
    session = model.session(capacity=80)
    for first, last in ((0, 69), (69, 70)):
        inputs = {"q": q[first:last], "k_rows": k[first:last], "v_rows": v[first:last]}
        y = session.run(inputs)["y"]
        np.testing.assert_allclose(y, expected[first:last], rtol=1e-5, atol=1e-5)
    model.dispose()


def test_whole_tiles_of_rows_read_packed_keys() -> None:
    function = infer_shapes(module_of(scale=1.0))
    main = tile_rows(function, RELAXED).main
    tiles = ["PackKeys", "CausalScores", "Softmax", "WeightedValues"]
    sections = ["AttendSections", "Softmax", "MergeSections"]
    assert [node.op for node in main.nodes] == [*tiles, *sections, "Concat"]
    for tokens, panels, rows, rest in ((1, 0, 0, 1), (14, 5, 12, 2)):
        values = {Var("tokens"): Const(tokens), Var("keys"): Const(40)}
        shapes = [main.types[main.nodes[i].outputs[0]].shape for i in (0, 1, 4)]
        packed, scores, last = (
            [as_int(simplify(substitute(size, values))) for size in shape] for shape in shapes
        )
        assert (packed[1], scores[1], last[0]) == (panels, rows, rest)


def test_heads_that_cannot_be_shared() -> None:
    with pytest.raises(UnsupportedError, match="6 heads of queries for 4 heads of keys"):
        webmlc.pipeline.compile_model(module_of(groups=4, scale=1.0), BuildOptions("wasm"))
