"""Test that the threads of subgroups share folds of workgroup memory, whatever their number is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.rules import kernels as k
from tests.target.webgpu import gpu
from webmlc.core.dtypes import DType
from webmlc.core.machine import SUBGROUPS, WEBGPU
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.schedule.intrinsics import fold_name
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower, machine_of
from webmlc.target.webgpu.emit_shaders import emit_shaders

Array = NDArray[Any]
FEATURES = SUBGROUPS.features

FOLD = """\
@T.kernel
def fold(A: T.Buffer((64,), "{dtype}"), C: T.Output((64,), "{dtype}")):
    S = T.alloc_buffer((64,), "{dtype}", scope="shared")
    R = T.alloc_buffer((), "{dtype}", scope="local")
    for b in T.thread_binding(1, "blockIdx.x"):
        for t in T.thread_binding(64, "threadIdx.x"):
            S[t] = A[t]
            R[()] = T.{dtype}(3)
            T.barrier()
            {head}
                R[()] = {update}
            C[t] = R[()]
"""
UPDATES: dict[str, tuple[str, str, np.ufunc]] = {
    "sum": ("add", "subgroupAdd", np.add),
    "product": ("mul", "subgroupMul", np.multiply),
    "largest": ("max", "subgroupMax", np.maximum),
    "smallest": ("min", "subgroupMin", np.minimum),
}
"""The operator of a fold, the operation of a subgroup that it becomes, and what it means."""


def fold(update: str, dtype: str, head: str = "for u in range(64):") -> LoopFunction:
    """A kernel whose threads all fold what they have in workgroup memory."""
    line = update_by(UPDATES[update][0], "S[u]", dtype)
    return parse_function(FOLD.format(update=line, dtype=dtype, head=head))


def update_by(op: str, term: str, dtype: str) -> str:
    """The update of a fold, whose term calls the instruction."""
    name = fold_name(op, DType(dtype))
    return f'T.{op}(R[()], T.call_intrin("{name}", {term}))'


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
@pytest.mark.parametrize("update", UPDATES)
def test_threads_share_a_fold(update: str, dtype: str) -> None:
    function = fold(update, dtype)
    text = emit_shaders({"fold": function}, features=FEATURES).text
    assert UPDATES[update][1] in text
    assert text.startswith("enable subgroups;\n")
    x = (np.arange(64) % 3 + 1).astype(dtype)
    results = gpu.run_on_gpu(function, {"A": x, "C": x}, features=FEATURES)
    with np.errstate(over="ignore"):
        want = UPDATES[update][2].reduce(x, initial=x.dtype.type(3), dtype=x.dtype)
    np.testing.assert_allclose(results["C"], np.full(64, want), rtol=1e-6)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("place", [0, 7, 40])
def test_a_nan_is_not_lost(update: str, place: int) -> None:
    x = np.ones(64, np.float32)
    x[place] = np.nan
    results = gpu.run_on_gpu(fold(update, "float32"), {"A": x, "C": x}, features=FEATURES)
    assert np.isnan(results["C"]).all()


@pytest.mark.parametrize("head", [
    "for u in range(4):",  # too short
    "for v in range(t):\n             for u in range(64):",
    "if t < 9:\n             for u in range(64):",
])  # fmt: skip
def test_no_subgroup_runs_where_threads_differ(head: str) -> None:
    lines = head.split("\n")
    text = FOLD.format(update=update_by("add", "S[u]", "float32"), dtype="float32", head=head)
    if len(lines) > 1:
        text = text.replace("                R[()] = R", "                 R[()] = R")
    function = parse_function(text)
    assert "subgroup" not in emit_shaders({"fold": function}, features=FEATURES).text


@pytest.mark.parametrize("value", ["S[(u + t) % 64]", "S[u] + A[u]", "S[u] * R[()]"])
def test_no_subgroup_folds_what_differs_between_threads(value: str) -> None:
    head = "for u in range(64):"
    text = FOLD.format(update=update_by("add", value, "float32"), dtype="float32", head=head)
    shaders = emit_shaders({"fold": parse_function(text)}, features=FEATURES)
    assert "subgroup" not in shaders.text


def test_the_feature_is_used_only_where_a_machine_has_it() -> None:
    assert "subgroup" not in emit_shaders({"fold": fold("sum", "float32")}).text
    assert machine_of(k.softmax(3, 1000), SUBGROUPS) == SUBGROUPS
    assert machine_of(k.softmax(100, 8), SUBGROUPS) == WEBGPU
    assert machine_of(k.matmul(64, 64, 64), SUBGROUPS) == WEBGPU
    assert machine_of(k.float_block_product(k.S, 24, 2), SUBGROUPS) == SUBGROUPS  # of its norm
    assert machine_of(k.float_block_product(k.S, 24, 2, False), SUBGROUPS) == WEBGPU


def softmax(x: Array) -> Array:
    """The softmax of rows."""
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


ROWS = {
    "softmax": (k.softmax(5, 1000), softmax, {}),
    "symbolic softmax": (k.softmax(3, k.S), softmax, {"s": 777}),
    "short symbolic softmax": (k.softmax(3, k.S), softmax, {"s": 5}),
    "sum": (k.total(3, 777, keep=1), lambda x: x.sum(1), {}),
    "sum of all": (k.total(13, 99), np.sum, {}),
    "largest": (k.total(3, 500, keep=1, combine="max"), lambda x: x.max(1), {}),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_folded_with_one_barrier_each(name: str) -> None:
    function, reference, symbols = ROWS[name]
    lowered = lower(schedule_kernel(function, SUBGROUPS).function, SUBGROUPS)
    text = emit_shaders({"rows": lowered}, features=FEATURES).text
    folds = text.count("let total = ")
    assert folds == (2 if "softmax" in name else 1)
    assert text.count("workgroupBarrier") == folds
    data = k.arguments(function, symbols)
    (got,) = gpu.run_on_gpu(lowered, data, symbols, features=FEATURES).values()
    want = reference(data[function.params[0].name].astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 19])
def test_threads_of_rows_left_over_wait_for_each_other(rows: int) -> None:
    """A condition that all threads decide alike is around what a subgroup folds."""
    function = k.attention_of_heads(1, 2, k.S, 333, 32)
    lowered = lower(schedule_kernel(function, SUBGROUPS).function, SUBGROUPS)
    text = emit_shaders({"a": lowered}, features=FEATURES).text
    match = re.search(r"logits_tail\w*\[tx", text)
    assert match is not None
    stored, folded = match.start(), text.index("subgroupMax")
    assert stored < text.index("workgroupBarrier", stored) < folded
    data = k.arguments(function, {"s": rows})
    results = gpu.run_on_gpu(lowered, data, {"s": rows}, features=FEATURES)
    (got,) = results.values()
    np.testing.assert_allclose(got, _attended(function, data), rtol=1e-5, atol=1e-5)


def _attended(function: LoopFunction, data: dict[str, Array]) -> Array:
    """The attention of heads, in float64."""
    q, keys, values = (data[b.name].astype(np.float64) for b in function.params[:3])
    weights = softmax(np.einsum("bihd,bjhd->bhij", q, keys) * 0.5)
    return np.einsum("bhij,bjhd->bihd", weights, values)


@pytest.mark.parametrize("keys", [333, k.S])
def test_a_row_of_attention_is_folded_with_a_barrier_for_each_fold(keys: k.Size) -> None:
    function = k.attention_of_heads(1, 2, 1, keys, 32)
    symbols = {} if keys == 333 else {"s": 333}
    lowered = {m: lower(schedule_kernel(function, m).function, m) for m in (WEBGPU, SUBGROUPS)}
    texts = {m: emit_shaders({"a": f}, features=m.features).text for m, f in lowered.items()}
    barriers = {machine: text.count("workgroupBarrier") for machine, text in texts.items()}
    assert barriers[SUBGROUPS] + 2 == barriers[WEBGPU]  # trees of two levels
    assert "subgroupMax" in texts[SUBGROUPS]  # of the logits of a step
    data = k.arguments(function, symbols)
    (got,) = gpu.run_on_gpu(lowered[SUBGROUPS], data, symbols, features=FEATURES).values()
    np.testing.assert_allclose(got, _attended(function, data), rtol=1e-5, atol=1e-5)
