"""Each part of an index is computed once, and kernels compute the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.schedule.rules import kernels as k
from webmlc.core.machine import SOFTWARE_SUBGROUPS
from webmlc.loops.ir import Let, LoopFunction, walk_statements
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.webgpu.hoist_indices import hoist_indices
from webmlc.target.webgpu.legalise import legalise
from webmlc.target.webgpu.printer import emit_shader
from webmlc.target.webgpu.share_indices import share_indices

S = k.S
KERNELS: dict[str, tuple[LoopFunction, dict[str, int]]] = {
    "depthwise": (k.depthwise(4, 6, 12, 3), {}),
    "matmul": (k.matmul(13, 20, 6), {}),
    "symbolic rows": (k.matmul(S, 20, 6), {"s": 13}),
    "symbolic scores": (k.packed_scores(2, S, S, 8), {"s": 21}),
    "groups": (k.grouped_convolution(4, 4, 4, 6, 2), {}),
    "softmax": (k.softmax(3, 72), {}),
    "gather": (k.gather_rows(12, 5, S), {"s": 7}),
}


def _lowered(function: LoopFunction) -> LoopFunction:
    scheduled = schedule_kernel(function, SOFTWARE_SUBGROUPS).function
    return lower(scheduled, SOFTWARE_SUBGROUPS)


@pytest.mark.parametrize("case", KERNELS.values(), ids=KERNELS)
def test_kernels_compute_the_same(case: tuple[LoopFunction, dict[str, int]]) -> None:
    function, symbols = case
    hoisted = hoist_indices(legalise(_lowered(function)))
    shared = share_indices(hoisted)
    lets = [stmt for stmt in walk_statements(shared.body) if isinstance(stmt, Let)]
    assert len({let.var for let in lets}) == len(lets)
    results = zip(k.outputs_of(shared, symbols), k.outputs_of(function, symbols), strict=True)
    for result, expected in results:
        np.testing.assert_allclose(result, expected.reshape(-1), rtol=1e-5, atol=1e-5)


def test_a_quotient_is_computed_once() -> None:
    lowered = _lowered(k.depthwise(4, 6, 12, 3))
    texts = [emit_shader(lowered, frozenset(), is_software=shares).text for shares in (False, True)]
    before, after = (re.findall(r"\w+ [/%] \d+", text) for text in texts)
    assert len(after) == len(set(after)) < len(before)
    assert len(texts[1]) < len(texts[0])
