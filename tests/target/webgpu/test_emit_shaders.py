"""Test the grids, bindings, workgroup memory and refusals of the WGSL emitter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.target.webgpu import gpu
from webmlc.core.errors import InternalError
from webmlc.core.machine import WEBGPU
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import gpu_obstacle
from webmlc.loops.text import parse_function
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.targets import lower
from webmlc.target.webgpu.emit_shaders import emit_shaders
from webmlc.target.webgpu.names import wgsl_name

DOUBLE = """\
@T.kernel(origin=["Mul 1", "twice"])
def double(A: T.Buffer(({n},), "{dtype}"), C: T.Output(({n},), "{dtype}"){symbol}):
    for i in range({n}):
        with T.block("C"):
            vi = T.axis.spatial({n}, i)
            C[vi] = A[vi] + A[vi]
"""

REVERSE = """\
@T.kernel
def reverse(A: T.Buffer((96,), "float32"), C: T.Output((96,), "float32")):
    S = T.alloc_buffer((32,), "float32", scope="shared")
    for b in T.thread_binding(3, "blockIdx.x"):
        for t in T.thread_binding(32, "threadIdx.x"):
            S[t] = A[b * 32 + t]
            T.barrier()
            C[b * 32 + t] = S[31 - t]
"""

DIVERGENT = REVERSE.replace(
    "            T.barrier()", "            if t < 3:\n                T.barrier()"
)

CHAIN = """\
@T.kernel
def chain(
    A: T.Buffer((64,), "float32"), B: T.Output((64,), "float32"), C: T.Output((64,), "float32")
):
    for b in T.thread_binding(64, "blockIdx.x"):
        B[b] = A[b]
    for c in T.thread_binding(64, "blockIdx.x"):
        C[c] = B[63 - c]
"""

GATHER = """\
@T.kernel
def gather(
    A: T.Buffer((8,), "float32"), I: T.Buffer((32,), "int32"), C: T.Output((96,), "float32")
):
    for i in T.thread_binding(96, "threadIdx.x"):
        C[i] = A[T.select(I[i // 3] < 0, I[i // 3] + 8, I[i // 3])]
"""


def _double(n: object, dtype: str = "float32") -> LoopFunction:
    """A kernel that doubles n elements, where n may be a symbol."""
    symbol = f", {n}: T.symbol" if isinstance(n, str) else ""
    return parse_function(DOUBLE.format(n=n, dtype=dtype, symbol=symbol))


def _lowered(function: LoopFunction, workgroup_size: int = 64) -> LoopFunction:
    """A kernel, scheduled and lowered."""
    machine = replace(WEBGPU, workgroup_size=workgroup_size)
    return lower(schedule_kernel(function, machine).function, machine)


@pytest.mark.parametrize("size", [70_001, 131_073])
def test_a_grid_above_the_limit_has_several_rows(size: int) -> None:
    lowered = _lowered(_double(size), 1)
    entry = emit_shaders({"double": lowered}).entries["double"]
    x, y, z = (int(str(extent)) for extent in entry.workgroups)
    assert max(x, y) <= 65_535 and x * y >= size and z == 1
    a = np.arange(size, dtype=np.float32)
    out = gpu.run_on_gpu(lowered, {"A": a, "C": np.zeros_like(a)})["C"]
    np.testing.assert_array_equal(out, a + a)


@pytest.mark.parametrize("size", [1, 5, 70_001])
def test_symbolic_grids_are_evaluated_at_launch(size: int) -> None:
    lowered = _lowered(_double("n"), 1)
    a = np.arange(size, dtype=np.float32)
    out = gpu.run_on_gpu(lowered, {"A": a, "C": np.zeros_like(a)}, {"n": size})["C"]
    np.testing.assert_array_equal(out, a + a)


def test_constants_are_read_only_and_the_origin_is_a_comment() -> None:
    text = emit_shaders({"double": _lowered(_double(8))}, {"double": frozenset({"A"})}).text
    assert "var<storage, read> A_0" in text
    assert "var<storage, read_write> C_0" in text
    assert "// double: Mul 1, twice\n" in text


def test_kernels_of_one_module_have_distinct_names() -> None:
    kernel = _lowered(_double(8))
    text = emit_shaders({"double": kernel, "again": replace(kernel, name="again")}).text
    assert text.count("fn double(") == text.count("fn again(") == 1
    assert "A_0" in text and "A_1" in text


def test_workgroup_memory_and_barriers() -> None:
    function = parse_function(REVERSE)
    a = np.arange(96, dtype=np.float32)
    expected = {"A": a, "C": np.zeros_like(a)}
    run(function, expected)
    actual = gpu.run_on_gpu(function, {"A": a, "C": np.zeros_like(a)})["C"]
    np.testing.assert_array_equal(actual, expected["C"])
    assert "var<workgroup> S_0: array<f32, 32>;" in emit_shaders({"reverse": function}).text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DIVERGENT, "a barrier under a condition that may differ between threads"),
        (CHAIN, "reads B, which another writes"),
    ],
)
def test_a_kernel_that_one_dispatch_cannot_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        emit_shaders({"kernel": parse_function(text)})


def test_a_workgroup_too_large_for_webgpu_is_refused() -> None:
    with pytest.raises(InternalError, match=r"double.*workgroups of \(512, 1, 1\) invocations"):
        emit_shaders({"double": _lowered(_double(2048), 512)})


@pytest.mark.parametrize(
    ("dtype", "count"), [("float32", 4097), ("float16", 4097), ("int64", 2049)]
)
def test_more_workgroup_memory_than_every_device_has_is_refused(dtype: str, count: int) -> None:
    """Types of less than 32 bits take 32 without `shader-f16`."""
    fitting = REVERSE.replace("(32,)", f"({count - 1},)").replace("float32", dtype)
    emit_shaders({"reverse": parse_function(fitting)})
    large = fitting.replace(f"({count - 1},)", f"({count},)")
    message = r"kernel reverse: it needs 16400 bytes of workgroup memory \(\w+ 16400\)"
    with pytest.raises(InternalError, match=message):
        emit_shaders({"reverse": parse_function(large)})


def test_obstacles_are_reported() -> None:
    assert gpu_obstacle(_double(8)) is None
    assert gpu_obstacle(_double(8, "int64")) is None
    assert gpu_obstacle(_double(8, "float64")) == "a shader has no values of float64"
    with pytest.raises(InternalError, match="kernel double: a shader has no values of float64"):
        emit_shaders({"double": _double(8, "float64")})


def test_an_index_that_the_text_repeats_is_computed_once() -> None:
    """The three loads of an index are one node, which the text has three times."""
    function = parse_function(GATHER)
    shaders = emit_shaders({"gather": lower(function, WEBGPU)})
    assert shaders.text.count("/ 3") == 1


def test_reserved_names_are_changed() -> None:
    assert [wgsl_name(n) for n in ("k", "target", "vec4", "9a", "a.b")] == [
        "k", "target_", "vec4_", "x9a", "a_b",
    ]  # fmt: skip
