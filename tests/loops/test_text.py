"""Text of loop functions: canonical texts print back to themselves; errors point at the place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webmlc.core.dtypes import DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.interp import run
from webmlc.loops.ir import Buffer, For, Let, Load, LoopFunction, Seq, Store
from webmlc.loops.text import LoopTextError, parse_function, print_function

MM_RELU = """\
@T.kernel
def mm_relu(A: T.Buffer((128, 128), "float32"), B: T.Buffer((128, 128), "float32"), \
C: T.Buffer((128, 128), "float32")):
    Y = T.alloc_buffer((128, 128), "float32")
    for i, j, k in T.grid(128, 128, 128):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(128, 128):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))
"""

EVERYTHING = """\
@T.kernel(origin=['conv 1', 'relu'])
def everything(
    A: T.Buffer((n, 8), "float32"),
    M: T.Buffer((n * 2 + 1,), "bool"),
    C: T.Output((n, 8), "float32"),
    D: T.Output((), "int64"),
    n: T.symbol,
):
    S = T.alloc_buffer((8,), "float32", scope="shared")
    R = T.alloc_buffer((), "float32", scope="local")
    for b in T.thread_binding(n, "blockIdx.x"):
        for t in T.thread_binding(8, "threadIdx.x"):
            S[t] = A[b, t]
            T.barrier()
            with T.let(early, S[7 - t]):
                R[()] = early
            C[b, t] = R[()]
    for i in T.parallel((n + 3) // 4):
        for j in range(4):
            with T.block("C"):
                vi = T.axis.spatial(n, i * 4 + j)
                vk = T.axis.reduce(8, 0)
                T.where(i * 4 + j < n)
                T.intrinsic("row")
                with T.init():
                    C[vi, vk] = T.float32("-inf")
                for u in T.unrolled(2):
                    for v in T.vectorized(4):
                        C[vi, u * 4 + v] = T.max(C[vi, vk], T.float32(-0.5))
    for i_1, j_1 in T.grid(n, 8):
        with T.block("D"):
            vi_1, vj_1 = T.axis.remap("SR", [i_1, j_1])
            if M[vi_1] & (vj_1 < 4):
                x = T.bitcast(A[vi_1, vj_1], 'int32')
                y = T.cast(x % -3, 'int64')
                D[()] = T.select(y == T.int64(0), y, T.neg(y))
            else:
                pass
    for i_2, j_2 in T.grid(n, 8):
        with T.block("E"):
            vi_2, vj_2 = T.axis.remap("SS", [i_2, j_2])
            C[vi_2, vj_2] = T.combination([[1, 0.5], [-1, 0]], vj_2 % 2, A[vi_2, 0], A[vi_2, 1])
    base = n // 2
    C[0, T.ramp(base, 1, 4)] = T.broadcast(T.float32("nan"), 4) + A[0, T.ramp(base, 2, 4)]
    pass"""


def test_a_persons_text_becomes_the_canonical_one() -> None:
    """The design document's example: outputs are inferred, and the second nest's names become
    unique.
    """
    function = parse_function(MM_RELU)
    assert function.outputs == 1
    text = print_function(function)
    assert 'C: T.Output((128, 128), "float32")' in text
    assert "for i_1, j_1 in T.grid(128, 128):" in text
    assert 'vi_1, vj_1 = T.axis.remap("SS", [i_1, j_1])' in text
    assert parse_function(text) == function
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128), np.float32) for _ in "ab")
    c = np.zeros_like(a)
    run(function, {"A": a, "B": b, "C": c})
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), atol=1e-4)


def test_every_construct_round_trips() -> None:
    function = parse_function(EVERYTHING)
    text = print_function(function)
    assert text == EVERYTHING.removesuffix("\n    pass")
    again = parse_function(text)
    assert again == function
    assert again.origin == function.origin == ("conv 1", "relu")


def test_the_storage_of_buffers_round_trips() -> None:
    text = """\
@T.kernel
def f(
    A: T.Buffer((8,), "uint8", storage="atomic words"),
    B: T.Output((8,), "float32", in_vectors=True),
):
    r = T.alloc_buffer((4,), "float32", scope="local", storage="register")
    r[T.ramp(0, 1, 4)] = B[T.ramp(4, 1, 4)]
    B[T.ramp(0, 1, 4)] = r[T.ramp(0, 1, 4)]"""
    function = parse_function(text)
    assert print_function(function) == text
    buffers = (*function.params, *function.allocations)
    assert [b.storage for b in buffers] == ["atomic words", "elements", "register"]
    with pytest.raises(LoopTextError, match="unknown storage 'heap'"):
        parse_function(text.replace("atomic words", "heap"))


def test_an_empty_let_and_an_empty_function_round_trip() -> None:
    y = Buffer("Y", (Const(4),), DType.float32)
    for body in (Seq(()), Let(Var("a"), Const(1), Seq(())), For(Var("i"), Const(3), Seq(()))):
        function = LoopFunction("f", (y,), 1, (), (), body)
        assert parse_function(print_function(function)) == function


BUFFER = Buffer("A", (Const(4), Const(4)), DType.float32)
FLAT = Buffer("Z", (), DType.float32)
INDICES = (
    "add",
    "sub",
    "mul",
    "floordiv",
    "floormod",
    "min",
    "max",
    "neg",
    "shift_left",
    "bit_xor",
)


def index_expressions() -> st.SearchStrategy[Expr]:
    leaves: st.SearchStrategy[Expr] = st.one_of(
        st.integers(-9, 99).map(Const), st.sampled_from([Var("i"), Var("j"), Var("n")])
    )

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.builds(
            lambda op, a, b: Call(op, (a, b)[: SCALAR_OPERATORS[op].arity], DType.int32),
            st.sampled_from(INDICES),
            inner,
            inner,
        )

    return st.recursive(leaves, grow, max_leaves=6)


def float_expressions() -> st.SearchStrategy[Expr]:
    index = index_expressions()
    leaves: st.SearchStrategy[Expr] = st.one_of(
        st.floats(width=32).map(lambda v: Const(v, DType.float32)),
        st.builds(lambda a, b: Load(BUFFER, (a, b)), index, index),
        st.just(Load(FLAT, ())),
        index.map(lambda a: Cast(a, DType.float32)),
        index.map(lambda a: Bitcast(a, DType.float32)),
        st.builds(lambda a, b: Load(BUFFER, (a, Ramp(b, Const(1), 4))), index, index),
        st.floats(width=32).map(lambda v: Broadcast(Const(v, DType.float32), 4)),
    )
    rows = [r for r in SCALAR_OPERATORS.values() if r.result == "same" and r.name != "select"]

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        compare = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])
        return st.one_of(
            st.builds(
                lambda row, *operands: Call(row.name, operands[: row.arity], DType.float32),
                st.sampled_from(rows),
                *[inner] * max(row.arity for row in rows),
            ),
            st.builds(
                lambda op, a, b, c: Call(
                    "select", (Call(op, (a, b), DType.bool), b, c), DType.float32
                ),
                compare,
                inner,
                inner,
                inner,
            ),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@settings(max_examples=100, deadline=None)
@given(float_expressions(), index_expressions())
def test_any_expression_round_trips(value: Expr, index: Expr) -> None:
    body = For(Var("i"), Const(4), For(Var("j"), Const(4), Store(BUFFER, (index, Var("j")), value)))
    function = LoopFunction("f", (FLAT, BUFFER), 1, (Var("n"),), (), body)
    assert parse_function(print_function(function)) == function


def test_deep_expressions_round_trip() -> None:
    value: Expr = Load(BUFFER, (Const(0), Const(0)))
    for step in range(60):
        value = Call("max", (value, Const(math.sqrt(step), DType.float32)), DType.float32)
    function = LoopFunction("f", (BUFFER,), 1, (), (), Store(BUFFER, (Const(0), Const(0)), value))
    assert parse_function(print_function(function)) == function


HEAD = '@T.kernel\ndef f(A: T.Buffer((8,), "float32"), n: T.symbol):\n'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "    A[i] = A[0]",
            "loop text, line 3: i is not bound here\n        A[i] = A[0]\n          ^",
        ),
        (
            "    A[0] = A[0] + n",
            "loop text, line 3: T.add of float32, int32: cast them to one dtype\n"
            "        A[0] = A[0] + n\n"
            "               ^",
        ),
        (
            "    A[0, 1] = A[0]",
            "loop text, line 3: A has 1 dimensions, indexed with 2\n"
            "        A[0, 1] = A[0]\n"
            "        ^",
        ),
        (
            "    A[0] = n",
            "loop text, line 3: a int32 stored to A, which holds float32\n"
            "        A[0] = n\n"
            "               ^",
        ),
        (
            "    A[0] = print(n)",
            "loop text, line 3: not an expression of the loop language\n"
            "        A[0] = print(n)\n"
            "               ^",
        ),
        (
            "    while n: pass",
            "loop text, line 3: not a statement of the loop language\n"
            "        while n: pass\n"
            "        ^",
        ),
        (
            "    for i in T.thread_binding(8, 'warp'):\n        A[i] = A[i]",
            "loop text, line 3: T.thread_binding(extent, axis), axis one of blockIdx.x, "
            "blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z\n"
            "        for i in T.thread_binding(8, 'warp'):\n"
            "                 ^",
        ),
        (
            "    A[0] = T.combination([[1, 2]], 0, A[0])",
            "loop text, line 3: T.combination of 1 values has a row of other length\n"
            "        A[0] = T.combination([[1, 2]], 0, A[0])\n"
            "               ^",
        ),
        (
            "    A[0] = T.combination([[n]], 0, A[0])",
            "loop text, line 3: the first operand of T.combination is a matrix of numbers\n"
            "        A[0] = T.combination([[n]], 0, A[0])\n"
            "               ^",
        ),
        (
            "    A[0] = = 1",
            "loop text, line 3: invalid syntax\n        A[0] = = 1\n               ^",
        ),
    ],
)
def test_errors_point_at_the_place(body: str, message: str) -> None:
    with pytest.raises(LoopTextError) as error:
        parse_function(HEAD + body)
    assert str(error.value) == message
