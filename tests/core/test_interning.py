"""Equal expressions are one object, whoever builds them, and unused ones are freed."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from webmlc.core import interning
from webmlc.core.dtypes import DType
from webmlc.core.expr import Broadcast, Call, Cast, Const, Expr, Ramp, Var
from webmlc.loops.ir import Buffer, Load


def build() -> Expr:
    """An expression with a node of most classes."""
    n = Var("n")
    data = Buffer("data", (n, Const(4)), DType.float32)
    vector = data[Ramp(n * 4 + 1, Const(1), 4), 2]
    return Call("add", (vector, Broadcast(Cast(n, DType.float32), 4)), DType.float32)


def test_equal_expressions_are_one_object() -> None:
    first = build()
    assert build() is first
    assert pickle.loads(pickle.dumps(first)) is first
    assert Var("n") is Var(name="n", dtype=DType.int32)


def test_buffers_that_differ_in_one_field_differ() -> None:
    data = Buffer("data", (Const(4),), DType.float32)
    others = (
        Buffer("other", (Const(4),), DType.float32),
        Buffer("data", (Const(8),), DType.float32),
        Buffer("data", (Const(4),), DType.int32),
        Buffer("data", (Const(4),), DType.float32, "local"),
    )
    loads = {Load(buffer, (Const(0),)) for buffer in (data, *others)}
    assert len(loads) == 5


@pytest.mark.parametrize(
    ("value", "equal", "other"),
    [
        (0.0, 0, -0.0),
        (float("nan"), -float("nan"), 0.0),
        (1.0, True, 1.5),
    ],
)
def test_float_literals(value: float, equal: float, other: float) -> None:
    assert Const(value, DType.float32) is Const(equal, DType.float32)
    assert Const(value, DType.float32) is not Const(other, DType.float32)
    assert Const(value, DType.float32) is not Const(value, DType.float64)


def test_literals_keep_the_python_type_of_their_dtype() -> None:
    for number in (1, True, 1.0):
        assert type(Const(number).value) is int
        assert type(Const(number, DType.bool).value) is bool
        assert type(Const(number, DType.float32).value) is float


def test_unused_expressions_are_removed() -> None:
    """A chain is freed as a whole, although each entry holds the node below."""
    gc.collect()
    interning._OBJECTS.remove_unused()
    before = len(interning._ENTRIES)
    chain: Expr = Var("start")
    for step in range(300):
        chain = Call("neg", (chain + step,), chain.dtype)
    assert len(interning._ENTRIES) > before + 300
    del chain
    interning._OBJECTS.remove_unused()
    assert len(interning._ENTRIES) < before + 100


def test_threads_share_expressions() -> None:
    def chains() -> list[Expr]:
        nodes: list[Expr] = [Var("shared")]
        for step in range(500):
            nodes.append(Call("add", (nodes[-1], Const(step + 1)), nodes[-1].dtype))
        return nodes

    with ThreadPoolExecutor(4) as pool:
        first, *others = [future.result() for future in [pool.submit(chains) for _ in range(8)]]
    for nodes in others:
        assert all(a is b for a, b in zip(first, nodes, strict=True))
