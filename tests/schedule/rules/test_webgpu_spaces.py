"""Random members of the spaces for WebGPU: each of them is refused before a search measures it, or
its shader computes what numpy computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.lib.stride_tricks import sliding_window_view

from tests.schedule.rules import kernels as k
from tests.target.webgpu import gpu
from webmlc.core.errors import InternalError
from webmlc.core.machine import ADAPTERS
from webmlc.loops.ir import LoopFunction
from webmlc.schedule.rules import match_kernel
from webmlc.schedule.rules.webgpu.attention.facts import (
    Parameters,
    PlainTile,
    RegisterRow,
    SharedRow,
)
from webmlc.target.targets import lower

Array = np.ndarray[Any, Any]
S = k.S
MEMBERS = 2
"""Members that are drawn for each kernel and machine."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, its result as numpy computes it, and the rules that schedule it: for a GPU, and for
    a software adapter (the same unless it is named).
    """

    kernel: LoopFunction
    reference: Callable[..., Array]
    rule: str
    software_rule: str = ""
    symbols: dict[str, int] = field(default_factory=dict)


def product(a: Array, b: Array, c: Array) -> Array:
    """Rows times packed columns, a bias and a relu."""
    columns = np.moveaxis(b, 0, 1).reshape(a.shape[1], -1)[:, : len(c)]
    return np.maximum(a @ columns + c, 0)


def convolution(x: Array, w: Array, b: Array, r: Array) -> Array:
    """A convolution of NHWC feature maps by packed weights, a bias, a second operand and a relu."""
    windows = sliding_window_view(x, w.shape[1:3], (1, 2))  # n, y, x, c, ky, kx
    sums = np.einsum("nyxcij,pijco->nyxpo", windows, w)
    return np.maximum(sums.reshape(*sums.shape[:3], -1)[..., : len(b)] + b + r, 0)


def patches(x: Array, w: Array, b: Array, r: Array) -> Array:
    """The same, where windows do not overlap."""
    size = w.shape[1]
    batch, rows, columns = (a // size if n else a for n, a in enumerate(x.shape[:3]))
    windows = x.reshape(batch, rows, size, columns, size, -1)
    sums = np.einsum("nyixjc,pijco->nyxpo", windows, w)
    return np.maximum(sums.reshape(*sums.shape[:3], -1)[..., : len(b)] + b + r, 0)


def depthwise(x: Array, w: Array, b: Array) -> Array:
    """A convolution of each channel by itself, a bias and a relu."""
    windows = sliding_window_view(x, w.shape[:2], (1, 2))
    return np.maximum(np.einsum("nyxcij,ijc->nyxc", windows, w) + b, 0)


def softmax(x: Array) -> Array:
    """The softmax of rows."""
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attention(q: Array, keys: Array, values: Array) -> Array:
    """Attention of heads, scaled by a half."""
    weights = softmax(np.einsum("bihd,bjhd->bhij", q, keys) * 0.5)
    return np.einsum("bhij,bjhd->bihd", weights, values)


def in_border(x: Array, w: Array, b: Array, r: Array) -> Array:
    """A convolution with a zero before each row and column, and two after."""
    return np.pad(convolution(x, w, b, r), ((0, 0), (1, 2), (1, 2), (0, 0)))


def column_halves(x: Array) -> Array:
    """Half of the sums of the columns."""
    return x.sum(0) / 2


def planes(a: Array) -> Array:
    """The planes of F(2x2, 3x3), by the polynomials with all but one of the roots 0, 1 and -1, and
    with all of them.
    """
    polynomials = np.array([[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]])
    tiles = sliding_window_view(a, 4, 1)[:, ::2]  # y, tile, c, x
    return np.einsum("iy,jx,ytcx->ijtc", polynomials, polynomials, tiles)


CASES = {
    "matmul": Case(k.matmul(21, 32, 24), product, "contraction"),
    "matmul, as deep as parts": Case(k.matmul(7, 12, 12), product, "contraction"),
    "matmul, staged": Case(k.matmul(64, 64, 32), product, "contraction"),
    "matmul, one row": Case(k.matmul(1, 24, 48), product, "contraction"),
    "matmul, symbolic rows": Case(k.matmul(S, 24, 16), product, "contraction", symbols={"s": 13}),
    "conv 3x3": Case(k.convolution(6, 5, 8, 16, 3), convolution, "contraction"),
    "conv 1x1": Case(k.convolution(4, 6, 4, 24, 1), convolution, "contraction"),
    "conv of patches": Case(k.convolution(4, 3, 3, 16, 8, 8), patches, "contraction"),
    "conv in a border": Case(
        k.bordered(k.convolution(5, 5, 8, 16, 3), 5, 5, 16), in_border, "slabs"
    ),
    "depthwise": Case(k.depthwise(6, 8, 12, 3), depthwise, "window"),
    "attention of heads": Case(k.attention_of_heads(1, 2, 17, 33, 8), attention, "attention"),
    "attention in tall tiles": Case(k.attention_of_heads(1, 2, 53, 45, 16), attention, "attention"),
    "attention, symbolic": Case(
        k.attention_of_heads(S, 2, S, S, 8), attention, "attention", symbols={"s": 11}
    ),
    "softmax": Case(k.softmax(6, 40), softmax, "rows"),
    "long softmax": Case(k.softmax(3, 300), softmax, "reduction"),
    "column sums": Case(k.column_sums(120, 36), column_halves, "columns", "window"),
    "column sums, symbolic": Case(
        k.column_sums(S, 10), column_halves, "columns", "window", symbols={"s": 77}
    ),
    "transform": Case(k.winograd_input(5, 12), planes, "transform"),
    "add bias": Case(k.add_bias(3, 4, 12), np.add, "pointwise"),
    "transpose": Case(k.transpose((1, 0), 40, 33), np.transpose, "transpose", "pointwise"),
}
RULES_OF_FEATURES = {
    adapter: "contraction" if "quads" in machine.features else "reduction"
    for adapter, machine in ADAPTERS.items()
}
"""The rule that uses the features of each kind of adapter."""
PLACES = [
    (name, adapter)
    for name, case in CASES.items()
    for adapter, machine in ADAPTERS.items()
    if not machine.features or case.rule == RULES_OF_FEATURES[adapter]
]
"""The kernels on each kind of adapter; with features, those of the rules that use them."""


@pytest.mark.parametrize(("name", "adapter"), PLACES, ids=map("-".join, PLACES))
def test_random_members_compute_what_numpy_computes(name: str, adapter: str) -> None:
    case, machine = CASES[name], ADAPTERS[adapter]
    match = match_kernel(case.kernel, machine)
    assert match is not None
    software_rule = case.software_rule or case.rule
    assert match.rule.name == (software_rule if adapter == "software" else case.rule)
    space = match.space()
    searched = space.without_proofs()  # what a search draws from
    generator = Random(name)
    for _ in range(MEMBERS):
        member = searched.random(generator)
        try:
            schedule = match.build(member)
        except InternalError:
            assert member not in space
            continue
        data = k.arguments(case.kernel, case.symbols)
        inputs = [data[b.name] for b in case.kernel.params[:-1]]
        wide = [x.astype(np.float64) for x in inputs]
        want = case.reference(*wide)
        lowered = lower(schedule.function, machine)
        results = gpu.run_on_gpu(lowered, data, case.symbols, features=machine.features)
        (got,) = results.values()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(member))


@pytest.mark.parametrize(
    ("tile", "row"),
    [
        (PlainTile(16, logit_rows=2), RegisterRow(64, 2, 1)),
        (PlainTile(16, logit_rows=8), RegisterRow(64, 2, 1)),
        (PlainTile(8, logit_rows=8), SharedRow(64, unrolled=8)),
        (None, RegisterRow(64, 2, 1, unrolled=16)),
        (PlainTile(8), SharedRow(128)),
    ],
)
def test_threads_of_attention_have_other_tiles(
    tile: PlainTile | None, row: SharedRow | RegisterRow
) -> None:
    kernel, machine = k.attention_of_heads(1, 2, 37, 70, 20), ADAPTERS["gpu"]
    match = match_kernel(kernel, machine)
    assert match is not None
    parameters = Parameters(tile, row)
    assert parameters in match.space()
    schedule = match.build(parameters)
    data = k.arguments(kernel, {})
    want = attention(*(data[b.name].astype(np.float64) for b in kernel.params[:-1]))
    (got,) = gpu.run_on_gpu(lower(schedule.function, machine), data, {}).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adapter", ["gpu", "subgroups"])
@pytest.mark.parametrize(("keys", "threads"), [(1, 2), (2, 1), (2, 4), (4, 4)])
def test_threads_of_a_row_keep_logits_and_share_keys(adapter: str, keys: int, threads: int) -> None:
    """In two steps, or one; the last turns of a step may have no keys."""
    kernel, machine = k.attention_of_heads(1, 2, 1, S, 32), ADAPTERS[adapter]
    match = match_kernel(kernel, machine)
    assert match is not None
    default = match.default()
    row = structs.replace(default.row, keys=keys, key_threads=threads)
    parameters = structs.replace(default, row=row)
    assert parameters in match.space()
    lowered = lower(match.build(parameters).function, machine)
    for count in (1, 65, 333):
        data = k.arguments(kernel, {"s": count})
        want = attention(*(data[b.name].astype(np.float64) for b in kernel.params[:-1]))
        results = gpu.run_on_gpu(lowered, data, {"s": count}, features=machine.features)
        (got,) = results.values()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
