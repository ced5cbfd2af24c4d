"""Results of expressions that are cached."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from webmlc.core import rewrite
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Broadcast, Call, Cast, Const, Expr, Ramp, Var, call
from webmlc.core.rewrite import bottom_up, containing, contents, rewriter


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_empty_the_cache_while_others_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "CACHED", 1)

    @bottom_up()
    def size(root: Expr) -> int:
        return 1 + sum(map(size, root.children))

    sums = [Var(f"v{i}") * 2 + 3 for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(size, sums * 400))
    assert counts == [5] * len(counts)


def test_contents_are_those_of_all_nodes() -> None:
    i, x = Var("i"), Var("x", DType.float16)
    index = Ramp(i * 3, Const(1), 4)
    wide = Cast(call("exp", x), DType.float32)
    assert contents(i) == {Var, INDEX}
    assert contents(index) == {Ramp, Call, "mul", Var, Const, INDEX}
    assert contents(wide) == {Cast, DType.float32, Call, "exp", Var, DType.float16}
    assert contents(Broadcast(wide, 4)) == contents(wide) | {Broadcast}
    assert contents(wide + wide) == contents(wide) | {"add"}


def test_a_rewriter_leaves_expressions_that_do_not_concern_it() -> None:
    i, j = Var("i"), Var("j")
    visited: list[Expr] = []

    def rule(node: Expr) -> Expr | None:
        visited.append(node)
        return i if isinstance(node, Call) and node.op == "min" else None

    limited, plain = call("min", i, j), j * 5 + 7
    root = call("max", limited + plain, plain)
    result = rewriter(rule, containing("min"))(root)
    assert result == call("max", i + plain, plain) == rewriter(rule)(root)
    assert visited.count(plain) == 1  # by the rewriter of all expressions
    assert rewriter(rule, containing("min"))(plain) is plain
