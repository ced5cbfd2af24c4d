"""The interpreter against numpy: block form, dtype rules, bounds checks, and workgroups in lock-
step.
"""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Broadcast, Const, Operand, Ramp, Var, as_expr, const, select
from webmlc.loops.interp import run
from webmlc.loops.ir import (
    Axis,
    Barrier,
    Block,
    Buffer,
    For,
    If,
    Let,
    LoopFunction,
    Scope,
    Stmt,
    Store,
    grid,
    seq,
)

ROW, COL, DEPTH = Var("i"), Var("j"), Var("k")
VI, VJ, VK = Var("vi"), Var("vj"), Var("vk")


def buffer(
    name: str, *shape: Operand, dtype: DType = DType.float32, scope: Scope = "global"
) -> Buffer:
    return Buffer(name, tuple(as_expr(extent) for extent in shape), dtype, scope)


def function(body: Stmt, *params: Buffer, allocations: tuple[Buffer, ...] = ()) -> LoopFunction:
    return LoopFunction("f", params, 1, (), allocations, body)


def test_reduction_block_initialises_once_and_follows_symbols() -> None:
    n = Var("n")
    a, y = buffer("A", n, 5), buffer("Y", n)
    block = Block(
        "Y",
        (Axis(VI, n, "spatial"), Axis(VK, const(5), "reduce")),
        (ROW, DEPTH),
        Store(y, (VI,), y[VI] + a[VI, VK]),
        init=Store(y, (VI,), const(0, DType.float32)),
    )
    sums = LoopFunction("f", (a, y), 1, (n,), (), grid(((ROW, n), (DEPTH, const(5))), block))
    for rows in (1, 3):
        x = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
        out = np.full(rows, np.nan, np.float32)
        run(sums, {"A": x, "Y": out}, {"n": rows})
        np.testing.assert_array_equal(out, x.sum(1))


def test_predicate_guards_instances_outside_the_domain() -> None:
    y = buffer("Y", 10)
    index = ROW * 4 + COL
    block = Block(
        "Y",
        (Axis(VI, const(10), "spatial"),),
        (index,),
        Store(y, (VI,), VI.astype(DType.float32)),
        predicate=index < 10,
    )
    out = np.zeros(10, np.float32)
    run(function(grid(((ROW, const(3)), (COL, const(4))), block), y), {"Y": out})
    np.testing.assert_array_equal(out, np.arange(10))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (ROW + 1, r"Y, axis 0: index 4 is outside \[0, 4\)"),
        (ROW - 1, r"Y, axis 0: index -1 is outside \[0, 4\)"),
    ],
)
def test_out_of_bounds_is_an_error(index: Var, message: str) -> None:
    y = buffer("Y", 4)
    body = For(ROW, const(4), Store(y, (index,), const(1, DType.float32)))
    with pytest.raises(InternalError, match=message):
        run(function(body, y), {"Y": np.zeros(4, np.float32)})


def test_axis_outside_its_domain_is_an_error() -> None:
    y = buffer("Y", 8)
    block = Block("Y", (Axis(VI, const(4), "spatial"),), (ROW,), Store(y, (VI,), y[VI]))
    with pytest.raises(InternalError, match="block Y, axis vi: index 4 is outside"):
        run(function(For(ROW, const(8), block), y), {"Y": np.zeros(8, np.float32)})


def test_unwritten_memory_is_not_zero() -> None:
    y, t = buffer("Y", 1), buffer("T", 1)
    out = np.zeros(1, np.float32)
    run(function(Store(y, (const(0),), t[0]), y, allocations=(t,)), {"Y": out})
    assert np.isnan(out[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_integers_wrap(dtype: str) -> None:
    info, kind = np.iinfo(dtype), DType(dtype)
    x, y = buffer("X", 2, dtype=kind), buffer("Y", 2, dtype=kind)
    values = np.array([info.max, info.min], dtype)
    out = np.zeros(2, dtype)
    body = For(ROW, const(2), Store(y, (ROW,), x[ROW] * 3 + x[ROW] + 1))
    run(function(body, x, y), {"X": values, "Y": out})
    with np.errstate(over="ignore"):
        one = np.ones(2, dtype)
        np.testing.assert_array_equal(out, values * (one * 3) + values + one)


def test_float32_rounds_at_every_step() -> None:
    x, y = buffer("X", 1), buffer("Y", 1)
    out = np.zeros(1, np.float32)
    big = np.array([2.0**24], np.float32)
    body = Store(y, (const(0),), (x[0] + 1.0) - x[0])
    run(function(body, x, y), {"X": big, "Y": out})
    assert out[0] == 0  # 2²⁴ + 1 is not a float32; double arithmetic would give 1


def test_select_evaluates_the_chosen_side_only() -> None:
    x, y = buffer("X", 4), buffer("Y", 6)
    inside = (ROW >= 1) & (ROW < 5)
    values, out = np.arange(1, 5, dtype=np.float32), np.full(6, np.nan, np.float32)
    body = For(ROW, const(6), Store(y, (ROW,), select(inside, x[ROW - 1], const(0, DType.float32))))
    run(function(body, x, y), {"X": values, "Y": out})
    np.testing.assert_array_equal(out, [0, 1, 2, 3, 4, 0])

    lanes = Ramp(const(0), const(1), 8)
    wide = buffer("Y", 8)
    masked = select(lanes < Broadcast(const(4), 8), x[lanes], Broadcast(const(9, DType.float32), 8))
    out = np.zeros(8, np.float32)
    run(function(Store(wide, (lanes,), masked), x, wide), {"X": values, "Y": out})
    np.testing.assert_array_equal(out, [1, 2, 3, 4, 9, 9, 9, 9])


def test_vectors_lets_and_flat_buffers() -> None:
    x, y = buffer("X", 24), buffer("Y", 24)
    register = buffer("r", 4, scope="local")
    four, lanes = Ramp(ROW * 4, const(1), 4), Ramp(const(0), const(1), 4)
    strided = Ramp(ROW, const(6), 4)
    v = Var("v", DType.float32)
    body = seq(
        Store(register, (lanes,), x[four]),
        Let(v, x[ROW], Store(y, (strided,), register[lanes] * Broadcast(v, 4))),
    )
    values, out = np.random.default_rng(0).random((6, 4), np.float32), np.zeros(24, np.float32)
    program = function(For(ROW, const(6), body), x, y, allocations=(register,))
    run(program, {"X": values, "Y": out})
    flat = values.reshape(-1)
    expected = np.stack([values[i] * flat[i] for i in range(6)], axis=1)
    np.testing.assert_array_equal(out.reshape(4, 6), expected)


def test_workgroups_run_in_lock_step_between_barriers() -> None:
    """Each thread writes its element to shared memory, and after the barrier reads another
    thread's.
    """
    x, y = buffer("X", 3, 4), buffer("Y", 3, 4)
    s = buffer("S", 4, scope="shared")
    t = Var("t")
    body = seq(Store(s, (t,), x[ROW, t]), Barrier(), Store(y, (ROW, t), s[const(3) - t]))
    threads = For(t, const(4), body, "thread_binding", "threadIdx.x")
    groups = For(ROW, const(3), threads, "thread_binding", "blockIdx.x")
    reverse = function(groups, x, y, allocations=(s,))
    values, out = np.random.default_rng(0).random((3, 4), np.float32), np.zeros((3, 4), np.float32)
    run(reverse, {"X": values, "Y": out})
    np.testing.assert_array_equal(out, values[:, ::-1])


def test_a_barrier_in_divergent_control_flow_is_an_error() -> None:
    y, t = buffer("Y", 4), Var("t")
    body = If(t < 2, Barrier())
    threads = For(t, const(4), body, "thread_binding", "threadIdx.x")
    with pytest.raises(InternalError, match="control flow that differs between threads"):
        run(function(threads, y), {"Y": np.zeros(4, np.float32)})


def test_more_loops_than_python_nests() -> None:
    y = buffer("Y", 1)
    loops = tuple((Var(f"i{d}"), const(1 + d % 2)) for d in range(24))
    body = grid(loops, Store(y, (const(0),), y[0] + 1.0))
    out = np.zeros(1, np.float32)
    run(function(body, y), {"Y": out})
    assert out[0] == 2**12


def test_deep_expressions() -> None:
    y = buffer("Y", 1)
    value = y[0]
    for _ in range(3000):
        value = value + const(1, DType.float32)
    out = np.zeros(1, np.float32)
    run(function(Store(y, (const(0),), value), y), {"Y": out})
    assert out[0] == 3000


def test_arguments_are_checked() -> None:
    y = buffer("Y", 4)
    f = function(Store(y, (const(0),), Const(1, DType.float32)), y)
    with pytest.raises(InternalError, match="buffer Y has no array"):
        run(f, {})
    with pytest.raises(InternalError, match="is float32, its array is float64"):
        run(f, {"Y": np.zeros(4)})
    with pytest.raises(InternalError, match=r"has shape \(4,\), its array \(5,\)"):
        run(f, {"Y": np.zeros(5, np.float32)})
