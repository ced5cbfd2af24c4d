"""`verify` accepts what is sound, and its drawn message for what is not is golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from webmlc.core.combination import Combination
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Broadcast, Call, Const, Ramp, Var, const
from webmlc.loops.ir import (
    Block,
    Buffer,
    For,
    Load,
    LoopFunction,
    Stmt,
    Store,
    map_statements,
    seq,
    substitute_statement,
    walk_statements,
)
from webmlc.loops.text import draw, parse_function
from webmlc.loops.verify import verify

ROW_SUM = parse_function("""\
@T.kernel
def row_sum(A: T.Buffer((n, 8), "float32"), B: T.Output((n,), "float32"), n: T.symbol):
    for i, k in T.grid(n, 8):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0.0)
            B[vi] = B[vi] + A[vi, vk]
""")


def with_store(change: Callable[[Store], Stmt]) -> LoopFunction:
    """ROW_SUM with its accumulating store changed."""

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(value=Call()):
                return change(stmt)
        return None

    return replace(ROW_SUM, body=map_statements(ROW_SUM.body, rule))


def with_block(**changes: object) -> LoopFunction:
    def rule(stmt: Stmt) -> Stmt | None:
        return replace(stmt, **changes) if isinstance(stmt, Block) else None  # type: ignore[arg-type]

    return replace(ROW_SUM, body=map_statements(ROW_SUM.body, rule))


def with_loop(name: str, **changes: object) -> LoopFunction:
    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For(var=var) if var.name == name:
                return replace(stmt, **changes)  # type: ignore[arg-type]
        return None

    return replace(ROW_SUM, body=map_statements(ROW_SUM.body, rule))


A, B = ROW_SUM.params
VI = Var("vi")
ZERO = Const(0, DType.float32)
LANES = Ramp(const(0), const(1), 4)
OTHER = Buffer("Z", (const(8),), DType.float32)

BROKEN: dict[str, tuple[LoopFunction, str, str]] = {
    "unbound": (
        with_store(lambda s: Store(s.buffer, s.indices, B[VI] + A[VI, Var("vq")])),
        "vq is not bound here",
        "B[vi] = B[vi] + A[vi, vq]\n~~~~~~~~~~~~~~~~~~~~~~^^",
    ),
    "isolation": (
        with_store(lambda s: Store(s.buffer, s.indices, B[VI] + A[VI, Var("k")])),
        "k is not visible inside the block",
        "B[vi] = B[vi] + A[vi, k]\n~~~~~~~~~~~~~~~~~~~~~~^",
    ),
    "undeclared": (
        with_store(lambda s: Store(s.buffer, s.indices, OTHER[VI])),
        "the buffer Z is not declared",
        "B[vi] = Z[vi]\n~~~~~~~~^",
    ),
    "redeclared": (
        with_store(lambda s: Store(s.buffer, s.indices, replace(A, scope="local")[VI, 0])),
        "A is not as it was declared",
        "B[vi] = A[vi, 0]\n~~~~~~~~^",
    ),
    "rank": (
        with_store(lambda s: Store(s.buffer, s.indices, Load(A, (VI,)))),
        "A has 2 dimensions, indexed with 1",
        "B[vi] = A[vi]\n~~~~~~~~^",
    ),
    "dtype": (
        with_store(lambda s: Store(s.buffer, s.indices, VI + 1)),
        "vi + 1 is int32, not float32",
        "B[vi] = vi + 1\n~~~~~~~~^^^^^^",
    ),
    "operands": (
        with_store(lambda s: Store(s.buffer, s.indices, Call("add", (VI, B[VI]), DType.float32))),
        "add of int32, float32 is not float32",
        "B[vi] = vi + B[vi]\n~~~~~~~~^^^^^^^^^^",
    ),
    "input": (
        with_store(lambda s: Store(A, (VI, const(0)), ZERO)),
        "the input A is written",
        "A[vi, 0] = T.float32(0.0)\n^",
    ),
    "lanes": (
        with_store(lambda s: Store(B, (LANES,), B[VI])),
        "1 lanes stored to 4 elements of B",
        "B[T.ramp(0, 1, 4)] = B[vi]\n~~~~~~~~~~~~~~~~~~~~~^^^^^",
    ),
    "widths": (
        with_store(
            lambda s: Store(B, (LANES,), Call("add", (Broadcast(ZERO, 4), B[VI]), DType.float32))
        ),
        "add of vectors of [1, 4] lanes",
        "B[T.ramp(0, 1, 4)] = T.broadcast(T.float32(0.0), 4) + B[vi]\n"
        "~~~~~~~~~~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
    ),
    "combination": (
        with_store(lambda s: Store(s.buffer, s.indices, Combination(((1.0, 2.0),), VI, (B[VI],)))),
        "1 values for rows of [2]",
        "B[vi] = T.combination([[1, 2]], vi, B[vi])\n~~~~~~~~" + "^" * 34,
    ),
    "row of a combination": (
        with_store(lambda s: Store(s.buffer, s.indices, Combination(((1.0,),), B[VI], (B[VI],)))),
        "a combination's row is float32, not int32",
        "B[vi] = T.combination([[1]], B[vi], B[vi])\n~~~~~~~~" + "^" * 34,
    ),
    "combined types": (
        with_store(
            lambda s: Store(s.buffer, s.indices, Combination(((1.0, 1.0),), VI, (B[VI], VI)))
        ),
        "a combination of float32, int32",
        "B[vi] = T.combination([[1, 1]], vi, B[vi], vi)\n~~~~~~~~" + "^" * 38,
    ),
    "combined vectors": (
        with_store(
            lambda s: Store(s.buffer, s.indices, Combination(((1.0,),), VI, (Broadcast(ZERO, 4),)))
        ),
        "a combination of vectors of 4 lanes",
        "B[vi] = T.combination([[1]], vi, T.broadcast(T.float32(0.0), 4))\n~~~~~~~~" + "^" * 56,
    ),
    "twice": (
        replace(ROW_SUM, body=seq(ROW_SUM.body, ROW_SUM.body)),
        "the name i is taken",
        "for i, k in T.grid(n, 8):\n~~~~^",
    ),
    "keyword": (
        replace(
            ROW_SUM,
            body=For(Var("in"), const(2), substitute_statement(ROW_SUM.body, {})),
        ),
        "'in' is not a name",
        "for in, i, k in T.grid(2, n, 8):\n~~~~^^",
    ),
    "bindings": (
        with_block(bindings=(Var("i"),)),
        "2 axes with 1 bindings",
        'with T.block("B"):\n^^^^^^^^^^^^^^^^^^',
    ),
    "race": (
        with_loop("k", kind="parallel"),
        "k does not run in order, and vk reduces",
        'vi, vk = T.axis.remap("SR", [i, k])\n~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~^',
    ),
    "thread": (
        with_loop("i", thread="threadIdx.x"),
        "a serial loop on thread axis threadIdx.x",
        "for i, k in T.grid(n, 8):\n^^^^^^^^^^^^^^^^^^^^^^^^^",
    ),
    "predicate": (
        with_block(predicate=Var("i") + 1),
        "i + 1 is int32, not bool",
        'with T.block("B"):\n^^^^^^^^^^^^^^^^^^',
    ),
    "scope": (
        replace(ROW_SUM, params=(replace(A, scope="local"), B)),
        "parameter A is not global",
        "",
    ),
}


def test_sound_functions_pass() -> None:
    verify(ROW_SUM)
    verify(with_loop("i", kind="parallel"))
    verify(with_store(lambda s: Store(B, (LANES,), Broadcast(ZERO, 4))))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_functions_are_drawn(name: str) -> None:
    function, message, drawn = BROKEN[name]
    with pytest.raises(InternalError) as error:
        verify(function)
    first, _, text = str(error.value).partition("\n")
    assert first.startswith(f"verify: kernel row_sum: {message}")
    lines = text.splitlines()
    if drawn:
        at = next(i for i, line in enumerate(lines) if set(line.strip()) == {"^"})
        shown, mark = drawn.split("\n")
        assert lines[at - 1].strip() == shown
        indent = len(lines[at - 1]) - len(lines[at - 1].lstrip())
        assert lines[at] == " " * indent + mark.replace("~", " ")


def test_the_whole_message() -> None:
    with pytest.raises(InternalError) as error:
        verify(BROKEN["unbound"][0])
    assert (
        str(error.value)
        == """\
verify: kernel row_sum: vq is not bound here
    @T.kernel
    def row_sum(A: T.Buffer((n, 8), "float32"), B: T.Output((n,), "float32"), n: T.symbol):
        for i, k in T.grid(n, 8):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0.0)
                B[vi] = B[vi] + A[vi, vq]
                                      ^^"""
    )


def test_a_long_function_is_drawn_around_the_culprit() -> None:
    nests = "".join(
        f"""\
    for i{n} in range(8):
        with T.block("B{n}"):
            v{n} = T.axis.remap("S", [i{n}])
            B[v{n}] = A[v{n}] + T.float32({n}.0)
"""
        for n in range(9)
    )
    head = '@T.kernel\ndef f(A: T.Buffer((8,), "float32"), B: T.Output((8,), "float32")):\n'
    long = parse_function(head + nests)
    stored = [s for s in walk_statements(long.body) if isinstance(s, Store)]
    middle = next(s for s in stored if "4.0" in str(s.value))
    assert (
        draw(long, middle, "T.float32(4.0)")
        == """\
    ...
    def f(A: T.Buffer((8,), "float32"), B: T.Output((8,), "float32")):
        ...
        for i4 in range(8):
            with T.block("B4"):
                v4 = T.axis.remap("S", [i4])
                B[v4] = A[v4] + T.float32(4.0)
                                ^^^^^^^^^^^^^^
        for i5 in range(8):
            with T.block("B5"):
                v5 = T.axis.remap("S", [i5])
                ..."""
    )
