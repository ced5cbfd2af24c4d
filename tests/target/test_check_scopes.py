"""Test the whole messages of `check_scopes`, and that it accepts the legal variant of each
kernel.
"""

from __future__ import annotations

import pytest

from webmlc.core.errors import InternalError
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.target.check_scopes import check_scopes


def kernel(scope: str, body: str) -> LoopFunction:
    """A kernel with a buffer S in this scope."""
    lines = "\n".join("    " + line for line in body.splitlines())
    return parse_function(f"""\
@T.kernel
def f(A: T.Buffer((4,), "float32"), R: T.Output((4,), "float32")):
    S = T.alloc_buffer((4,), "float32", scope="{scope}")
{lines}
""")


THREAD_LOOP = 'for t in T.thread_binding(4, "threadIdx.x"):\n    '
"""The head of a loop over four threads."""


def test_an_update_by_every_thread_is_refused() -> None:
    body = "S[0] = 0.0\nfor k in range(4):\n    S[0] = S[0] + A[k]\n" + THREAD_LOOP + "R[t] = S[0]"
    with pytest.raises(InternalError) as error:
        check_scopes(kernel("shared", body))
    assert str(error.value) == (
        "lower: kernel f: every thread of threadIdx.x updates the same element of the shared "
        "buffer S; accumulate in a local buffer"
    )
    check_scopes(kernel("local", body))  # each thread has a sum of its own


def test_a_read_of_another_threads_local_buffer_is_refused() -> None:
    body = THREAD_LOOP + "S[t] = A[t]\nfor j in range(4):\n    R[j] = S[j]"
    with pytest.raises(InternalError) as error:
        check_scopes(kernel("local", body))
    assert str(error.value) == (
        "lower: kernel f: the local buffer S is written under a loop over threadIdx.x and read "
        "outside it"
    )
    check_scopes(kernel("shared", body))
    with pytest.raises(InternalError, match="the global buffer S is written under a loop over"):
        check_scopes(kernel("global", body))
    groups = body.replace("threadIdx", "blockIdx")
    with pytest.raises(InternalError, match="the shared buffer S is written under a loop over"):
        check_scopes(kernel("shared", groups))


def test_a_local_element_of_another_thread_is_refused() -> None:
    second = 'for u in T.thread_binding(2, "threadIdx.x"):\n    for j in range(2):\n        '
    body = THREAD_LOOP + "S[t] = A[t]\n" + second + "R[u * 2 + j] = S[u * 2 + j]"
    with pytest.raises(InternalError) as error:
        check_scopes(kernel("local", body))
    assert str(error.value) == (
        "lower: kernel f: the local buffer S has an index that depends on the number of the "
        "thread: not all loops share out its elements in the same way"
    )
    check_scopes(kernel("shared", body))
    check_scopes(kernel("local", body.replace("S[t]", "S[0]").replace("S[u * 2 + j]", "S[0]")))


def test_a_thread_loop_of_one_iteration_is_ignored() -> None:
    body = 'for t in T.thread_binding(1, "threadIdx.x"):\n    S[t] = A[t]\nR[0] = S[0]'
    check_scopes(kernel("local", body))
