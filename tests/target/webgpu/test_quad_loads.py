"""Test that the four threads of a quad share loads where all of them run and need the same vector,
and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.schedule.rules import kernels as k
from tests.target.webgpu import gpu
from webmlc.core.machine import SOFTWARE, SOFTWARE_SUBGROUPS
from webmlc.loops.ir import LoopFunction
from webmlc.loops.text import parse_function
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower, machine_of
from webmlc.target.webgpu.emit_shaders import emit_shaders
from webmlc.target.webgpu.quad_loads import Exchanges, Place, Swap, exchanges, quad_loads

Array = NDArray[Any]
FEATURES = SOFTWARE_SUBGROUPS.features
ACROSS, DOWN, GROUPS = 8, 4, 3

KERNEL = """\
@T.kernel
def scale(A: T.Buffer(({rows},), "float32"), B: T.Buffer((384,), "float32"),
          C: T.Output((384,), "float32")):
    for b in T.thread_binding(3, "blockIdx.x"):
        for y in T.thread_binding({down}, "threadIdx.y"):
            for x in T.thread_binding({across}, "threadIdx.x"):
                {head}C[{place}] = B[{place}] * A[{vector}]
"""
PLACE = "T.ramp((b * 32 + y * {across} + x) * 4, 1, 4)"


def scale(
    vector: str, head: str = "", across: int = ACROSS, down: int = DOWN, rows: int = 384
) -> LoopFunction:
    """A kernel each of whose threads multiplies two vectors: one of its own, and that of A at
    `vector`, under `head`.
    """
    place = PLACE.format(across=across)
    text = KERNEL.format(vector=vector, head=head, across=across, down=down, place=place, rows=rows)
    return parse_function(text)


def text_of(function: LoopFunction) -> str:
    return emit_shaders({function.name: function}, features=FEATURES).text


def run(function: LoopFunction) -> tuple[Array, Array, Array]:
    """A and B, and what the adapter computes of them, by threads. Elements that no thread writes
    are 0.
    """
    a = np.arange(384, dtype=np.float32).reshape(96, 4) + 1
    b = np.sin(np.arange(384, dtype=np.float32)).reshape(GROUPS, -1, 4)
    arrays = {"A": a.ravel(), "B": b.ravel(), "C": np.zeros(384, np.float32)}
    (got,) = gpu.run_on_gpu(function, arrays, features=FEATURES).values()
    return a, b, got.reshape(b.shape)


def test_quads_share_the_vector_of_their_row() -> None:
    function = scale("T.ramp(b * 16 + y * 4, 1, 4)")
    text = text_of(function)
    assert "quad_vector_f32(A_0[" in text
    assert text.startswith("enable subgroups;\n\ndiagnostic(off, subgroup_uniformity);\n")
    a, b, got = run(function)
    rows = np.repeat(a[: GROUPS * DOWN], ACROSS, 0).reshape(b.shape)
    np.testing.assert_array_equal(got, b * rows)


def test_quads_share_under_conditions_that_they_decide_alike() -> None:
    function = scale("T.ramp(b * 16 + y * 4, 1, 4)", head="if y < 3:\n                    ")
    assert "quad_vector" in text_of(function)
    a, b, got = run(function)
    rows = np.repeat(a[: GROUPS * DOWN], ACROSS, 0).reshape(b.shape)
    np.testing.assert_array_equal(got[:, :24], (b * rows)[:, :24])
    assert not got[:, 24:].any()


@pytest.mark.parametrize(
    ("vector", "head"),
    [
        ("T.ramp(b * 128 + x * 4, 1, 4)", ""),  # another vector in each thread
        ("T.ramp((b + x // 8) * 4, 1, 4)", "if x < 6:\n                    "),  # half a quad
        ("T.ramp(b * 4, 1, 4)", "if B[x] < 2.0:\n                    "),  # memory decides
        ("T.ramp(b * 4, 1, 4)", "for i in range(x):\n                    "),
        ('T.ramp(T.cast(B[b], "int32") * 4, 1, 4)', ""),  # memory says where
    ],
)
def test_no_quad_shares_where_its_threads_differ(vector: str, head: str) -> None:
    assert "quad" not in text_of(scale(vector, head))


@pytest.mark.parametrize(("across", "down"), [(2, 16), (6, 5), (1, 32)])
def test_no_quad_shares_where_quads_reach_over_rows(across: int, down: int) -> None:
    assert "quad" not in text_of(scale("T.ramp(b * 4, 1, 4)", across=across, down=down))


def test_no_quad_shares_what_the_kernel_writes() -> None:
    function = scale("T.ramp(b * 4, 1, 4)")
    (name,) = [b.name for b in function.params if b.name == "C"]
    text = KERNEL.format(
        vector="", head="", across=8, down=4, place=PLACE.format(across=8), rows=384
    ).replace("A[]", f"{name}[T.ramp(b * 4, 1, 4)]")
    assert "quad" not in text_of(parse_function(text))


def test_quads_share_only_where_a_machine_has_them() -> None:
    function = scale("T.ramp(b * 16 + y * 4, 1, 4)")
    assert "quad" not in emit_shaders({"scale": function}, features=frozenset()).text
    assert machine_of(k.matmul(64, 64, 64), SOFTWARE_SUBGROUPS) == SOFTWARE_SUBGROUPS
    assert machine_of(k.add(100, 8), SOFTWARE_SUBGROUPS) == SOFTWARE


PRODUCTS = {
    "product": (k.matmul(64, 64, 32), {}),
    "rows left over": (k.matmul(19, 64, 20), {}),
    "one row": (k.matmul(1, 64, 20), {}),
    "columns of few quads": (k.matmul(37, 48, 12), {}),
    "columns left over": (k.matmul(35, 70, 24), {}),
    "odd depth": (k.matmul(35, 64, 13), {}),
    "symbolic rows": (k.matmul(k.S, 32, 16), {"s": 53}),
    "few symbolic rows": (k.matmul(k.S, 32, 16), {"s": 3}),
    "convolution": (k.convolution(13, 11, 8, 32, 3), {}),
    "convolution of few channels": (k.convolution(9, 9, 3, 32, 3, 2), {}),
    "scores": (k.packed_scores(2, k.S, k.S, 8), {"s": 21}),
    "three tiles beside each other": (k.matmul(70, 24, 8), {}),
    "tall tiles": (k.matmul(150, 1024, 128), {}),
}
SHARE = {name for name in PRODUCTS if "odd" not in name and "few channels" not in name}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_quads_are_right(name: str) -> None:
    function, symbols = PRODUCTS[name]
    lowered = lower(schedule_kernel(function, SOFTWARE_SUBGROUPS).function, SOFTWARE_SUBGROUPS)
    assert ("quad_" in text_of(lowered)) == (name in SHARE)
    data = k.arguments(function, symbols)
    (got,) = gpu.run_on_gpu(lowered, data, symbols, features=FEATURES).values()
    (want,) = k.outputs_of(function, symbols)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


UPDATE = """\
@T.kernel
def update(A: T.Buffer((64,), "float32"), B: T.Buffer((4096,), "float32"),
           C: T.Output((256,), "float32")):
    a = T.alloc_buffer((4,), "float32", scope="local")
    r = T.alloc_buffer((4,), "float32", scope="local")
{registers}
    for x in T.thread_binding(16, "threadIdx.x"):
        r[T.ramp(0, 1, 4)] = T.broadcast(T.float32(0.0), 4)
        a[T.ramp(0, 1, 4)] = A[T.ramp({vector}, 1, 4)]
{loads}
        r[T.ramp(0, 1, 4)] = r[T.ramp(0, 1, 4)] + ({sum})
        C[T.ramp(x * 4, 1, 4)] = r[T.ramp(0, 1, 4)]{rest}
"""
"""The update of a register by the product of a matrix and a vector."""


def update(vector: str, columns: Sequence[str], rest: str = "") -> LoopFunction:
    """The update by the columns of B at some places, and a vector of A."""
    lanes = "T.ramp(0, 1, 4)"
    registers = [f'    b{i} = T.alloc_buffer((4,), "float32", scope="local")' for i in range(4)]
    loads = [f"        b{i}[{lanes}] = B[T.ramp({c}, 1, 4)]" for i, c in enumerate(columns)]
    terms = [f"T.broadcast(a[{i}], 4) * b{i}[{lanes}]" for i in range(4)]
    return parse_function(
        UPDATE.format(
            registers="\n".join(registers),
            vector=vector,
            loads="\n".join(loads),
            sum=" + ".join(terms),
            rest=rest,
        )
    )


def exchanges_of(function: LoopFunction) -> Exchanges:
    inputs = frozenset({"A", "B"})
    return exchanges(function, quad_loads(function, inputs, 16), inputs)


def of_own(step: int) -> list[str]:
    """The places of columns that a thread does not share, some vectors apart."""
    return [f"(x * 64 + {i * step}) * 4" for i in range(4)]


def test_threads_take_the_terms_of_a_sum_in_their_own_orders() -> None:
    """All need the same vector, or pairs of them the same vectors and columns, or the same columns
    alone: those that one needs from another are swapped.
    """
    cases = (
        ("0", of_own(4), 0, 0),
        ("x // 2 * 4", [f"(x % 2 * 256 + {i * 4}) * 4" for i in range(4)], 2, 2),
        ("x * 4", ["0", "16", "32", "48"], 3, 3),
    )
    for vector, columns, mask, swaps in cases:
        found = exchanges_of(update(vector, columns))
        assert list(found.vectors.values()) == [mask]
        assert sum(isinstance(column, Swap) for column in found.columns.values()) == swaps
        places = [column for column in found.columns.values() if isinstance(column, Place)]
        assert {place.step for place in places} == {4}


@pytest.mark.parametrize(
    ("vector", "columns", "rest"),
    [
        (
            "0",
            ["x * 64 * 4", "(x * 64 + 4) * 4", "(x * 64 + 8) * 4", "(x * 64 + 16) * 4"],
            "",
        ),  # uneven
        ("0", of_own(4), "\n        C[x] = a[0]"),  # the vector is used elsewhere
        ("0", of_own(4), "\n        C[T.ramp(x * 4, 1, 4)] = b2[T.ramp(0, 1, 4)]"),
        ("x * 4", of_own(4), ""),  # nothing is shared
    ],
)
def test_other_sums_keep_their_order(vector: str, columns: list[str], rest: str) -> None:
    found = exchanges_of(update(vector, columns, rest))
    assert not found.vectors and not found.columns
