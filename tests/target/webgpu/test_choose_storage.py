"""The storage of each buffer: registers, words, halves, and memory in vectors."""

from __future__ import annotations

import pytest

from webmlc.loops.text import parse_function
from webmlc.target.webgpu.choose_storage import choose_storage

KERNEL = """
@T.kernel
def k(
    A: T.Buffer((64,), "float32"),
    B: T.Buffer((64,), "uint8"),
    C: T.Buffer((62,), "float32"),
    H: T.Buffer((64,), "float16"),
    X: T.Output((64,), "uint8"),
    Y: T.Output((64,), "uint8"),
):
    r = T.alloc_buffer((), "float32", scope="local")
    s = T.alloc_buffer((8,), "float16", scope="shared")
    l = T.alloc_buffer((8,), "float32", scope="local")
    for i in range(12):
        r[()] = A[i * 4 + 1] + C[i] + l[i % 8]
        l[(i + 1) % 8] = T.cast(H[i], "float32") + T.cast(s[i % 8], "float32")
        l[i % 8] = r[()]
        A[T.ramp(i * 4, 1, 4)] = C[T.ramp(i * 4, 1, 4)]
        X[T.ramp(i * 4, 1, 4)] = B[T.ramp(i * 4 + 1, 1, 4)]
        Y[i] = B[i]
"""


@pytest.mark.parametrize(
    ("features", "half"), [(frozenset(), "words"), (frozenset({"shader-f16"}), "halves")]
)
def test_each_buffer_says_how_it_is_stored(features: frozenset[str], half: str) -> None:
    function = choose_storage(parse_function(KERNEL), features)
    buffers = {b.name: b for b in (*function.params, *function.allocations)}
    assert {name: b.storage for name, b in buffers.items()} == {
        "A": "elements",
        "B": "words",
        "C": "elements",
        "H": half,
        "X": "words",  # whole words, in vectors
        "Y": "atomic words",
        "r": "register",
        "s": "halves" if half == "halves" else "elements",
        "l": "elements",
    }
    # The last vector of C is not whole, and B is read from between two vectors.
    assert {name for name, b in buffers.items() if b.in_vectors} == {"A", "X"}
