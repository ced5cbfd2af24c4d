"""Branches whose results differ in size, and branches that bind sizes: on both devices against
onnxruntime, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import check, parse
from tests.graph.ops.host_control import check_everywhere
from webmlc.core.errors import InputError

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def both(**feeds: Any) -> list[dict[str, Any]]:
    """Runs that take each branch, and the first again."""
    return [{**feeds, "c": np.array(c)} for c in (True, False, True)]


GROWS = """g (float[a, b] x, bool c) => (float[n, b] y, float[b, n] z) {
    y = If(c) <
        then_branch = t () => (float[p, b] o) { o = Concat<axis = 0>(x, x) },
        else_branch = e () => (float[a, b] o) { o = Neg(x) }
    >
    w = Transpose(y)
    z = Softmax(w)
}"""
DATA = """g (float[a, b] x, bool c) => (int64[2, n] y, float[n, 2] z) <int64[2] shape = {2, 0}> {
    y = If(c) <
        then_branch = t () => (int64[2, n] o) { o = NonZero(x) },
        else_branch = e () => (int64[2, m] o) { f = ConstantOfShape(shape) o = Cast<to = 7>(f) }
    >
    w = Transpose(y)
    z = Cast<to = 1>(w)
}"""
STATIC = """g (float[2, 3] x, bool c) => (float[n] s, int32[k] i, bool[3, m] l)
    <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int32[5] five = {1, 2, 3, 4, 5}> {
    y, i, l = If(c) <
        then_branch = t () => (float[2, 3] o, int32[2] j, bool[3, 2] k) {
            o = Identity(x)
            k1 = Transpose(x)
            k = Cast<to = 9>(k1)
            j1 = Shape(x)
            j = Cast<to = 6>(j1)
        },
        else_branch = e () => (float[4, 3] o, int32[5] j, bool[3, 4] k) {
            o = Identity(w)
            j = Identity(five)
            k1 = Transpose(w)
            k = Cast<to = 9>(k1)
        }
    >
    s = ReduceMax<axes = [1], keepdims = 0>(y)
}"""
NESTED = """g (float[a, b] x, bool c, bool d) => (float[n, b] y) {
    y = If(c) <
        then_branch = t () => (float[p, b] o) {
            i = If(d) <
                then_branch = tt () => (float[q, b] u) { u = Concat<axis = 0>(x, x) },
                else_branch = te () => (float[q, b] u) { u = Concat<axis = 0>(x, x, x) }
            >
            o = Exp(i)
        },
        else_branch = e () => (float[a, b] o) { o = Neg(x) }
    >
}"""
SEQUEL = """g (float[a, b] x, bool c) => (float[k, n] z, int64 s) <int64[2] flat = {-1, 1}> {
    y = If(c) <
        then_branch = t () => (float[p, b] o) { o = Concat<axis = 0>(x, x) },
        else_branch = e () => (float[a, b] o) { o = Neg(x) }
    >
    s = Size(y)
    r = Reshape(y, flat)
    largest = ReduceMax<keepdims = 0>(y)
    zero = Sub(largest, largest)
    is_large = Greater(largest, zero)
    z = If(is_large) <
        then_branch = u () => (float[n, 1] v) { v = Relu(r) },
        else_branch = w () => (float[m, n] v) {
            t = Transpose(y)
            v = MatMul(y, t)
        }
    >
}"""
INNER_LOOP = """g (float[a, b] x, int64 n, bool c) => (float[k, b] y) {
    y = If(c) <
        then_branch = t () => (float[a, b] o) {
            o = Loop(n, , x) <
                body = l (int64 i, bool go, float[a, b] p) => (bool on, float[a, b] q) {
                    on = Identity(go)
                    q = Add(p, x)
                }
            >
        },
        else_branch = e () => (float[m, b] o) { o = Concat<axis = 0>(x, x) }
    >
}"""
AROUND_BIND = """g (float[a] x, bool c, int64[1] k) => (float[n] y, float[m] z)
    <int64[1] zero = {0}> {
    head = Slice(x, zero, k)
    twice = Add(head, head)
    y = If(c) <
        then_branch = t () => (float[p] o) {
            w = Concat<axis = 0>(twice, x)
            ends = Add(k, k)
            o = Slice(w, zero, ends)
        },
        else_branch = e () => (float[q] o) { o = Sin(twice) }
    >
    z = Concat<axis = 0>(twice, y)
}"""
VIEWS = """g (float[a, b] x, bool c) => (float[n, m] y) <int64[2] row = {1, -1}> {
    e = Exp(x)
    y = If(c) <
        then_branch = t () => (float[1, p] o) { o = Reshape(e, row) },
        else_branch = f () => (float[a, b] o) { o = Identity(x) }
    >
}"""
HALVES = """g (float16[a, b] x, bool c) => (float16[n, b] z) {
    w = Mul(x, x)
    y = If(c) <
        then_branch = t () => (float16[p, b] o) { o = Concat<axis = 0>(w, x) },
        else_branch = e () => (float16[a, b] o) { o = Neg(w) }
    >
    z = Sqrt(y)
}"""
UNUSED = """g (float[a, b] x, bool c) => (int64[2] s, float[a, b] r) {
    y = If(c) <
        then_branch = t () => (float[p, b] o) { o = Concat<axis = 0>(x, x) },
        else_branch = e () => (float[a, b] o) { o = Neg(x) }
    >
    s = Shape(y)
    r = Relu(x)
}"""
CASES = {
    "sizes": (GROWS, both(x=normal(3, 4)) + both(x=normal(50, 7))),
    "data": (DATA, both(x=np.array([[0, 1, 2], [3, 0, 0]], np.float32))),
    "static": (STATIC, both(x=normal(2, 3))),
    "nested": (
        NESTED,
        [{**r, "d": np.array(d)} for r in both(x=normal(2, 3)) for d in (0 > 1, True)],
    ),
    "sequel": (SEQUEL, both(x=normal(3, 2)) + both(x=-np.abs(normal(2, 5)))),
    "loop": (INNER_LOOP, both(x=normal(3, 2), n=np.array(4)) + both(x=normal(3, 2), n=np.array(0))),
    "binds": (AROUND_BIND, both(x=normal(9), k=np.array([2])) + both(x=normal(5), k=np.array([0]))),
    "views": (VIEWS, both(x=normal(3, 4)) + both(x=normal(1, 4))),
    "halves": (HALVES, both(x=np.abs(normal(3, 4)).astype(np.float16))),
    "shapes only": (UNUSED, both(x=normal(3, 4))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_branch_decides_the_size_of_a_result(tmp_path: Path, name: str) -> None:
    text, runs = CASES[name]
    in_javascript = name in ("sizes", "data", "binds")
    check_everywhere(text, tmp_path / "package", runs, in_javascript)


def test_a_branch_checks_its_requirements_only_if_it_is_taken(tmp_path: Path) -> None:
    text = """g (float[a, b] x, float[d, b] w, bool c, int64[k] i) => (float[n, b] y) {
        y = If(c) <
            then_branch = t () => (float[a, b] o) { o = Add(x, w) },
            else_branch = e () => (float[k, b] o) { o = Gather(x, i) }
        >
    }"""
    feeds = {"x": normal(3, 2), "w": normal(3, 2), "i": np.array([0, 2, 1, -1])}
    runs = both(**feeds)
    check(parse(text), tmp_path, *runs)
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path, device=device)
        with pytest.raises(InputError, match="out of range"):
            model.run({**feeds, "w": normal(2, 2), "c": np.array(True)})
        with pytest.raises(InputError, match="out of range"):
            model.run({**feeds, "i": np.array([3]), "c": np.array(False)})
        for wrong, c in (({"w": normal(2, 2)}, False), ({"i": np.array([3])}, True)):
            model.run({**feeds, **wrong, "c": np.array(c)})
        model.dispose()
