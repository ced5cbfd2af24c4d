"""Loops whose values change size, and loops that only data end: on both devices against
onnxruntime, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.ops.host_control import check_everywhere
from webmlc.host.load import load

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def count(n: int) -> Any:
    return np.array(n, np.int64)


def body(inner: str, *, values: str, results: str) -> str:
    """A body that runs as often as the loop says."""
    return f"""l (int64 i, bool go, {values}) => (bool on, {results}) {{
        on = Identity(go)
        {inner}
    }}"""


GROWS = f"""g (float[a, b] x, int64 n) => (float[k, b] y, float[m] s) {{
    y = Loop(n, , x) <body = {body(
        "row = ReduceSum(p, axes) q = Concat<axis = 0>(p, row)",
        values="float[p0, b] p", results="float[q0, b] q")}>
    s = ReduceMean<axes = [1], keepdims = 0>(y)
}}""".replace("{\n    y =", "<int64[1] axes = {0}> {\n    y =", 1)  # fmt: skip
SHRINKS = f"""g (float[a] x, int64 n) => (float[k] y)
    <int64[1] one = {{1}}, int64[1] end = {{1000}}> {{
    y = Loop(n, , x) <body = {body(
        "t = Slice(p, one, end) q = Neg(t)", values="float[p0] p", results="float[q0] q")}>
}}"""  # fmt: skip
WHILE = """g (float[3] x, float limit) => (float[3] y, float[k, 3] s, int64[k] steps) {
    go = Constant<value_int = 1>()
    start = Cast<to = 9>(go)
    y, s, steps = Loop(, start, x) <
        body = l (int64 i, bool c, float[3] p) => (bool d, float[3] q, float[3] o, int64 j) {
            q = Add(p, p)
            o = Neg(q)
            j = Identity(i)
            m = Abs(q)
            t = ReduceSum<keepdims = 0>(m)
            d = Less(t, limit)
        }
    >
}"""
BOUNDED = WHILE.replace("Loop(, start", "Loop(most, start").replace(
    "float limit)", "float limit, int64 most)"
)
ENDLESS = WHILE.replace("Loop(, start", "Loop(most, start").replace(
    "{\n    go", "<int64 most = {9223372036854775807}> {\n    go", 1
)
NEVER = WHILE.replace("Cast<to = 9>(go)", "Less(limit, limit)")
DATA = f"""g (float[a] x, int64 n) => (float[k] y) {{
    y = Loop(n, , x) <body = {body(
        "w = NonZero(p) f = Transpose(w) v = GatherND(p, f) q = Relu(v)",
        values="float[p0] p", results="float[q0] q")}>
}}"""  # fmt: skip
USES_STEP = f"""g (float[a] x, int64 n) => (float[k] y, float[n, 2] s) <int64[1] zero = {{0}}> {{
    one = Constant<value_ints = [1]>()
    none = Slice(x, zero, zero)
    y, s = Loop(n, , none) <body = {body(
        '''end = Add(i, one)
        head = Slice(x, zero, end)
        q = Concat<axis = 0>(p, head)
        f = Cast<to = 1>(end)
        o = Concat<axis = 0>(f, f)''',
        values="float[p0] p", results="float[q0] q, float[2] o")}>
}}"""  # fmt: skip
NESTED = f"""g (float[a, 2] x, int64 n) => (float[k, 2] y, float[n, 2] s) {{
    y, s = Loop(n, , x) <body = {body(
        '''q = Loop(i, , p) <body = ''' + body(
            "u = Exp(r) t = Concat<axis = 0>(u, x)",
            values="float[r0, 2] r", results="float[t0, 2] t").replace("l (", "m (").replace(
            "int64 i, bool go", "int64 j, bool more").replace("on = Identity(go)",
            "yet = Identity(more)").replace("bool on", "bool yet") + '''>
        o = ReduceMin<axes = [0], keepdims = 0>(q)''',
        values="float[p0, 2] p", results="float[q0, 2] q, float[2] o")}>
}}"""  # fmt: skip
BRANCHES = f"""g (float[a] x, int64 n) => (float[k] y) <int64 two = {{2}}, int64 zero = {{0}}> {{
    y = Loop(n, , x) <body = {body(
        '''r = Mod(i, two)
        even = Equal(r, zero)
        q = If(even) <
            then_branch = t () => (float[d] o) { o = Concat<axis = 0>(p, x) },
            else_branch = e () => (float[d] o) { o = Neg(p) }
        >''',
        values="float[p0] p", results="float[q0] q")}>
}}"""  # fmt: skip
SWAPS = f"""g (float[a] x, float[b] w, int64 n) => (float[k] y, float[m] z) {{
    y, z = Loop(n, , x, w) <body = {body(
        "q = Identity(r) s = Concat<axis = 0>(p, r)",
        values="float[p0] p, float[r0] r", results="float[q0] q, float[s0] s")}>
}}"""  # fmt: skip
CAPTURES = f"""g (float[a] x, int64 n) => (float[k] y, float[a] z) {{
    w = Exp(x)
    y = Loop(n, , w) <body = {body(
        "q = Concat<axis = 0>(p, w)", values="float[p0] p", results="float[q0] q")}>
    z = Neg(w)
}}"""  # fmt: skip
DECODES = """g (float[v, d] table, float[d, v] head, int64[1] first, int64 most)
    => (int64[k] tokens)
    <int64[1] end = {0}, int64[1] axis = {0}, int64 last = {-1}> {
    yes = Equal(end, end)
    go = Squeeze(yes)
    tokens = Loop(most, go, first) <
        body = l (int64 i, bool c, int64[p0] p) => (bool d, int64[q0] q) {
            e = Gather(table, p)
            t = Transpose(e)
            w = MatMul(e, t)
            s = Softmax(w)
            h = MatMul(s, e)
            final = Gather<axis = 0>(h, last)
            logits = MatMul(final, head)
            token = ArgMax<axis = 0>(logits)
            q = Concat<axis = 0>(p, token)
            same = Equal(token, end)
            differs = Not(same)
            d = Squeeze(differs)
        }
    >
}"""
BINDS_OR_NOT = """g (float[a] x, bool c, int64 n) => (float[q] y) {
    y = Loop(n, , x) <
        body = l (int64 i, bool go, float[p] v) => (bool on, float[p2] o) {
            on = Identity(go)
            u = If(c) <
                then_branch = t () => (float[1, p5] r) {
                    places = NonZero(v)
                    r = Cast<to = 1>(places)
                },
                else_branch = e () => (float[1, p5] r) {
                    row = Constant<value_ints = [1, -1]>()
                    w = Tanh(v)
                    all = Concat<axis = 0>(w, v, x)
                    r = Reshape(all, row)
                }
            >
            s = Sigmoid(u)
            m = ReduceSum<keepdims = 0>(s)
            h = Mul(x, m)
            o = Concat<axis = 0>(v, h)
        }
    >
}"""
GROWS_OR_BINDS = """g (float[a] x, float limit) => (float[q] y)
    <float[3] w = {1, -2, 3}, float least = {0.5}> {
    go = Constant<value_int = 1>()
    start = Cast<to = 9>(go)
    y = Loop(, start, x) <
        body = l (int64 i, bool c, float[p] v) => (bool d, float[p2] o) {
            m = ReduceMean<keepdims = 0>(v)
            is_large = Greater(m, least)
            flat = Constant<value_ints = [-1]>()
            u = If(is_large) <
                then_branch = t () => (float[p3] r) {
                    places = NonZero(v)
                    numbers = Cast<to = 1>(places)
                    r = Reshape(numbers, flat)
                },
                else_branch = e () => (float[p3] r) { r = Concat<axis = 0>(v, w, x) }
            >
            factor = Constant<value_float = 0.7>()
            o = Mul(u, factor)
            size = Size(o)
            step = Add(size, i)
            total = Cast<to = 1>(step)
            d = Less(total, limit)
        }
    >
}"""
TABLE = normal(11, 8)
CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "grows": (GROWS, [{"x": normal(2, 3), "n": count(n)} for n in (5, 0, 40)]),
    "shrinks": (SHRINKS, [{"x": normal(9), "n": count(n)} for n in (3, 9, 1)]),
    "while": (WHILE, [{"x": normal(3), "limit": np.array(n, np.float32)} for n in (1000, 0, 10)]),
    "bounded": (
        BOUNDED,
        [
            {"x": normal(3), "limit": np.array(1e4, np.float32), "most": count(n)}
            for n in (3, 0, 100)
        ],
    ),
    "endless": (ENDLESS, [{"x": normal(3), "limit": np.array(500, np.float32)}]),
    "never": (NEVER, [{"x": normal(3), "limit": np.array(500, np.float32)}]),
    "data": (DATA, [{"x": normal(30), "n": count(n)} for n in (1, 3)]),
    "step": (USES_STEP, [{"x": normal(6), "n": count(n)} for n in (4, 1, 6)]),
    "nested": (NESTED, [{"x": -np.abs(normal(2, 2)), "n": count(n)} for n in (3, 1)]),
    "branches": (BRANCHES, [{"x": normal(3), "n": count(n)} for n in (5, 2, 0)]),
    "swaps": (SWAPS, [{"x": normal(2), "w": normal(1), "n": count(n)} for n in (6, 1)]),
    "captures": (CAPTURES, [{"x": normal(3), "n": count(n)} for n in (3, 0, 90, 1)]),
    "binds or not": (
        BINDS_OR_NOT,
        [
            {"x": normal(size), "c": np.array(c), "n": count(n)}
            for size, c, n in ((4, False, 1), (4, True, 2), (4, False, 3), (100, False, 2))
        ],
    ),
    "grows or binds": (
        GROWS_OR_BINDS,
        [{"x": normal(4), "limit": np.array(n, np.float32)} for n in (30, 1)],
    ),
    "decodes": (
        DECODES,
        [
            {"table": TABLE, "head": TABLE.T.copy(), "first": np.array([start]), "most": count(n)}
            for n, start in ((20, 3), (2, 5))
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop_changes_the_sizes_of_its_values(tmp_path: Path, name: str) -> None:
    text, runs = CASES[name]
    in_javascript = name in ("grows", "while", "step", "swaps", "binds or not")
    check_everywhere(text, tmp_path, runs, in_javascript)
    is_on_device = name == "bounded"  # its scan has room for all iterations that the input allows
    assert load(tmp_path).program.has_jumps != is_on_device
