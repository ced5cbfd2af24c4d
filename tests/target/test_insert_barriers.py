"""Test `insert_barriers` by golden bodies, and by results in lock-step that a missing
barrier would change.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.checks import body_text
from webmlc.core.errors import InternalError
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.target.insert_barriers import insert_barriers

HEAD = """\
@T.kernel
def f(A: T.Buffer((8, 4), "float32"), R: T.Output((4,), "float32")):
    S = T.alloc_buffer((4,), "float32", scope="shared")
    for b in T.thread_binding(1, "blockIdx.x"):
        for t in T.thread_binding(4, "threadIdx.x"):
"""
"""The head of a kernel of one workgroup with four threads."""


def kernel(body: str) -> LoopFunction:
    return parse_function(HEAD + "\n".join(" " * 12 + line for line in body.splitlines()))


BODIES = {
    "write then read": (
        "S[t] = A[0, t]\nR[t] = S[3 - t]",
        "S[t] = A[0, t]\nT.barrier()\nR[t] = S[3 - t]",
    ),
    "around the back edge": (
        "R[t] = T.float32(0.0)\nfor k in range(8):\n    S[t] = A[k, t]\n    R[t] = R[t] + S[3 - t]",
        "R[t] = T.float32(0.0)\n"
        "for k in range(8):\n"
        "    T.barrier()\n"
        "    S[t] = A[k, t]\n"
        "    T.barrier()\n"
        "    R[t] = R[t] + S[3 - t]",
    ),
    "distributed over the threads, in a loop": (
        "for k in range(2):\n"
        "    for j in range(2):\n"
        '        for u in T.thread_binding(2, "threadIdx.x"):\n'
        "            S[j * 2 + u] = A[k, j * 2 + u]\n"
        "    R[t] = S[3 - t]",
        "for k in range(2):\n"
        "    T.barrier()\n"
        "    for j in range(2):\n"
        '        for u in T.thread_binding(2, "threadIdx.x"):\n'
        "            S[j * 2 + u] = A[k, j * 2 + u]\n"
        "    T.barrier()\n"
        "    R[t] = S[3 - t]",
    ),
    "before loops that only read": (
        "S[t] = A[0, t]\nfor k in range(4):\n    R[t] = R[t] + S[k]",
        "S[t] = A[0, t]\nT.barrier()\nfor k in range(4):\n    R[t] = R[t] + S[k]",
    ),
    "before a condition, not in it": (
        "S[t] = A[0, t]\nif t < 2:\n    R[t] = S[t + 2]\nelse:\n    R[t] = S[t - 2]",
        "S[t] = A[0, t]\nT.barrier()\nif t < 2:\n    R[t] = S[t + 2]\nelse:\n    R[t] = S[t - 2]",
    ),
    "in a condition that all threads decide alike": (
        "if b < 1:\n    S[t] = A[0, t]\n    R[t] = S[3 - t]\nelse:\n    R[t] = 0.0",
        "if b < 1:\n    S[t] = A[0, t]\n    T.barrier()\n    R[t] = S[3 - t]\n"
        "else:\n    R[t] = 0.0",
    ),
    "private elements": (
        "S[t] = 0.0\nfor k in range(8):\n    S[t] = S[t] + A[k, t]\nR[t] = S[3 - t]",
        "S[t] = 0.0\nfor k in range(8):\n    S[t] = S[t] + A[k, t]\nT.barrier()\nR[t] = S[3 - t]",
    ),
    "two elements of a thread": (
        "if t < 2:\n    S[t * 2] = A[0, t]\nif t < 2:\n    S[t * 2 + 1] = A[1, t]\nR[t] = S[t]",
        "if t < 2:\n    S[t * 2] = A[0, t]\nif t < 2:\n    S[t * 2 + 1] = A[1, t]\n"
        "T.barrier()\nR[t] = S[t]",
    ),
    "one thread's element for all": (
        "if t == 0:\n    S[0] = A[0, 0]\nR[t] = S[0]",
        "if t == 0:\n    S[0] = A[0, 0]\nT.barrier()\nR[t] = S[0]",
    ),
    "a tree of sums": (
        "S[t] = A[0, t]\nif t < 2:\n    S[t] = S[t] + S[t + 2]\nR[t] = S[0] + S[1]",
        "S[t] = A[0, t]\nT.barrier()\nif t < 2:\n    S[t] = S[t] + S[t + 2]\nT.barrier()\n"
        "R[t] = S[0] + S[1]",
    ),
    "between statements that the same threads run": (
        "if t < 2:\n    S[t] = A[0, t]\n    R[t] = S[1 - t]",
        "if t < 2:\n    S[t] = A[0, t]\nT.barrier()\nif t < 2:\n    R[t] = S[1 - t]",
    ),
}
"""Bodies of a kernel, before and after."""


@pytest.mark.parametrize("name", BODIES)
def test_barriers_are_inserted_where_threads_must_wait(name: str) -> None:
    before, after = BODIES[name]
    result = insert_barriers(kernel(before))
    assert result == kernel(after)
    assert "T.barrier()" in body_text(result)


def test_threads_cannot_wait_where_only_some_of_them_are() -> None:
    body = "if A[0, t] > 0.0:\n    S[t] = A[0, t]\n    R[t] = S[3 - t]"
    with pytest.raises(InternalError, match="only some of them"):
        insert_barriers(kernel(body))


def test_threads_wait_for_each_other() -> None:
    before, _ = BODIES["around the back edge"]
    a = np.random.default_rng(0).standard_normal((8, 4), np.float32)
    r = np.zeros(4, np.float32)
    run(insert_barriers(kernel(before)), {"A": a, "R": r})
    np.testing.assert_allclose(r, a[:, ::-1].sum(0), rtol=1e-5)


def test_a_function_without_shared_buffers_is_unchanged() -> None:
    function = parse_function("""\
@T.kernel
def f(A: T.Buffer((4,), "float32"), R: T.Output((4,), "float32")):
    for t in T.thread_binding(4, "threadIdx.x"):
        R[t] = A[t]
""")
    assert insert_barriers(function) is function


TILE = """\
@T.kernel
def f(A: T.Buffer((8, 4), "float32"), R: T.Output((4, 8), "float32")):
    S = T.alloc_buffer((40,), "float32", scope="shared")
    for b in T.thread_binding(1, "blockIdx.x"):
        for u in T.thread_binding(4, "threadIdx.y"):
            for t in T.thread_binding(4, "threadIdx.x"):
                S[u * 5 + t] = A[u, t]
                S[u * 5 + t + 20] = A[u + 4, t]
        for u in T.thread_binding(4, "threadIdx.y"):
            for t in T.thread_binding(4, "threadIdx.x"):
                R[u, t] = S[t * 5 + u]
                R[u, t + 4] = S[t * 5 + u + 20]
"""


def test_threads_along_two_axes_are_told_apart() -> None:
    """Each thread writes elements of its own, and reads those of others."""
    text = body_text(insert_barriers(parse_function(TILE)))
    assert text.count("T.barrier()") == 1
    assert text.index("+ 20] =") < text.index("T.barrier()") < text.index("R[u_1, t_1]")
