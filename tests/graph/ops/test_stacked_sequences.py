"""Sequences of lengths and positions that only a run knows: on both devices against onnxruntime,
and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import SETTINGS, parse
from tests.node import as_tensors, in_node
from webmlc.core.errors import InputError, UnsupportedError

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def number(n: int) -> Any:
    return np.array(n, np.int64)


APPENDS = """g (float[2, b] x, int64 n) => (float[2, k, b] y, int64 size) {
    none = SequenceEmpty<dtype = 1>()
    s = Loop(n, , none) <
        body = l (int64 i, bool go, seq(float[2, b]) p) => (bool on, seq(float[2, b]) q) {
            on = Identity(go)
            f = Cast<to = 1>(i)
            t = Add(x, f)
            q = SequenceInsert(p, t)
        }
    >
    y = ConcatFromSequence<axis = 1, new_axis = 1>(s)
    size = SequenceLength(s)
}"""
APPENDS_TO_SOME = """g (float[a, b] x) => (float[k, b] y, float[a, b] z) {
    rows = Shape<start = 0, end = 1>(x)
    n = Squeeze(rows)
    first = SequenceConstruct(x)
    s, z = Loop(n, , first, x) <
        body = l (int64 i, bool go, seq(float[a, b]) p, float[a, b] r)
            => (bool on, seq(float[a, b]) q, float[a, b] t) {
            on = Identity(go)
            t = Neg(r)
            u = Exp(t)
            v = SequenceInsert(p, u)
            q = Identity(v)
        }
    >
    y = ConcatFromSequence<axis = 0>(s)
}"""
ENDS_ON_DATA = """g (float[b] x, float limit) => (float[k, b] y) {
    yes = Equal(limit, limit)
    none = SequenceEmpty<dtype = 1>()
    s, z = Loop(, yes, none, x) <
        body = l (int64 i, bool go, seq(float[b]) p, float[b] r)
            => (bool on, seq(float[b]) q, float[b] t) {
            t = Add(r, r)
            q = SequenceInsert(p, t)
            m = ReduceMax<keepdims = 0>(t)
            on = Less(m, limit)
        }
    >
    y = ConcatFromSequence<axis = 0, new_axis = 1>(s)
}"""
SPLITS = """g (float[a, b] x, int64 i) => (float[c, d] y, float[b] z, int64 size) {
    s = SplitToSequence<axis = 0>(x)
    y = SequenceAt(s, i)
    t = SplitToSequence<axis = 0, keepdims = 0>(x)
    z = SequenceAt(t, i)
    size = SequenceLength(t)
}"""
CHUNKS = """g (float[a, b] x, int64 i) => (float[a, c] y, float[d, e] z) <int64 two = {2}> {
    s = SplitToSequence<axis = 1>(x, two)
    y = SequenceAt(s, i)
    z = ConcatFromSequence<axis = 0>(s)
}"""
CHOOSES = """g (float[a, b] x, float[a, b] w, int64 i) => (float[a, b] y) {
    e = Exp(x)
    s = SequenceConstruct(x, w, e)
    y = SequenceAt(s, i)
}"""
EDITS = """g (float[a, b] x, int64 i, int64 j) => (float[k, a, b] y, int64 size) {
    n = Neg(x)
    e = Exp(x)
    s = SequenceConstruct(x, n)
    t = SequenceInsert(s, e, i)
    r = SequenceInsert(t, n)
    u = SequenceErase(r, j)
    v = SequenceErase(u)
    y = ConcatFromSequence<axis = 0, new_axis = 1>(v)
    size = SequenceLength(v)
}"""
BRANCHES = """g (float[a, b] x, bool c) => (float[k, b] y, int64 size) {
    n = Neg(x)
    s = If(c) <
        then_branch = t () => (seq(float[a, b]) o) { o = SequenceConstruct(x, n, x) },
        else_branch = e () => (seq(float[a, b]) o) { o = SequenceConstruct(n) }
    >
    y = ConcatFromSequence<axis = 0>(s)
    size = SequenceLength(s)
}"""
MAPS = """g (float[a, b] x, float[b] w) => (float[k, b] y) {
    s = SplitToSequence<axis = 0, keepdims = 0>(x)
    t = SequenceMap(s, w) <
        body = m (float[b] r, float[b] v) => (float[b] o) {
            h = Mul(r, v)
            o = Tanh(h)
        }
    >
    y = ConcatFromSequence<axis = 0, new_axis = 1>(t)
}"""
QUEUE = """g (float[a] x, int64 n) => (float[k, a] y) <int64 zero = {0}> {
    e = Exp(x)
    first = SequenceConstruct(x, e)
    s = Loop(n, , first) <
        body = l (int64 i, bool go, seq(float[a]) p) => (bool on, seq(float[a]) q) {
            on = Identity(go)
            h = SequenceAt(p, zero)
            t = SequenceErase(p, zero)
            m = Neg(h)
            u = SequenceInsert(t, m)
            v = Mul(h, h)
            q = SequenceInsert(u, v)
        }
    >
    y = ConcatFromSequence<axis = 0, new_axis = 1>(s)
}"""
RETURNS = """g (float[a, b] x) => (seq(float[b]) y) {
    s = SplitToSequence<axis = 0, keepdims = 0>(x)
    last = ReduceSum<keepdims = 0>(x, zero)
    y = SequenceInsert(s, last)
}""".replace("(seq(float[b]) y) {", "(seq(float[b]) y) <int64[1] zero = {0}> {")
TAKES = """g (seq(float[a, 3]) x, int64 i) => (float[k, 3] y, int64 size, float[a, 3] z) {
    y = ConcatFromSequence<axis = 0>(x)
    size = SequenceLength(x)
    z = SequenceAt(x, i)
}"""
OPTIONS = """g (float[a, b] x, int64 i) => (float[b] y) {
    s = SplitToSequence<axis = 0, keepdims = 0>(x)
    o = Optional(s)
    t = OptionalGetElement(o)
    y = SequenceAt(t, i)
}"""
CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "appends": (APPENDS, [{"x": normal(2, 3), "n": number(n)} for n in (3, 1, 40)]),
    "appends to some": (APPENDS_TO_SOME, [{"x": normal(n, 3)} for n in (3, 1)]),
    "ends on data": (
        ENDS_ON_DATA,
        [{"x": np.abs(normal(3)), "limit": np.array(n, np.float32)} for n in (100, 0)],
    ),
    "splits": (SPLITS, [{"x": normal(n, 3), "i": number(i)} for n, i in ((3, 2), (5, -1))]),
    "chunks": (CHUNKS, [{"x": normal(3, n), "i": number(i)} for n, i in ((6, 2), (2, 0))]),
    "chooses": (
        CHOOSES,
        [{"x": normal(2, 3), "w": normal(2, 3), "i": number(i)} for i in (0, 1, 2, -1)],
    ),
    "edits": (
        EDITS,
        [
            {"x": normal(2, 3), "i": number(i), "j": number(j)}
            for i, j in ((0, 3), (2, -2), (-1, 0))
        ],
    ),
    "branches": (BRANCHES, [{"x": normal(2, 3), "c": np.array(c)} for c in (True, False)]),
    "maps": (MAPS, [{"x": normal(n, 3), "w": normal(3)} for n in (4, 1)]),
    "queue": (QUEUE, [{"x": normal(3), "n": number(n)} for n in (5, 0, 1)]),
    "returns": (RETURNS, [{"x": normal(n, 3)} for n in (4, 1)]),
    "takes": (TAKES, [{"x": normal(n, 2, 3), "i": number(-1)} for n in (4, 1)]),
    "options": (OPTIONS, [{"x": normal(n, 3), "i": number(0)} for n in (4, 1)]),
}


def by_onnxruntime(text: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of onnxruntime, with a stack for each sequence."""
    model = parse(text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in model.graph.output]
    is_sequence = {i.name: i.type.HasField("sequence_type") for i in model.graph.input}
    results = []
    for feeds in runs:
        lists = {name: list(v) if is_sequence[name] else v for name, v in feeds.items()}
        values = session.run(None, lists)
        results.append({n: np.array(v) for n, v in zip(names, values, strict=True)})
    return results


@pytest.mark.parametrize("name", CASES)
def test_a_run_decides_a_sequence(tmp_path: Path, name: str) -> None:
    text, runs = CASES[name]
    expected = by_onnxruntime(text, runs)
    webmlc.build(parse(text), tmp_path)
    for device, threads in SETTINGS:
        model = webmlc.load(tmp_path, device=device, threads=threads)
        for feeds, results in zip(runs, expected, strict=True):
            actual = model.run(feeds)
            for output, want in results.items():
                assert actual[output].shape == want.shape
                np.testing.assert_allclose(actual[output], want, rtol=1e-4, atol=1e-5)
        model.dispose()
    if name in ("appends", "edits", "queue", "takes"):
        answers = in_node(tmp_path, [as_tensors(feeds) for feeds in runs])
        for results, answer in zip(expected, answers, strict=True):
            for output, want in results.items():
                got = np.array(answer[output]["data"], np.float64).reshape(want.shape)
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_position_out_of_range_is_an_error(tmp_path: Path) -> None:
    webmlc.build(parse(EDITS), tmp_path, target="wasm")
    model = webmlc.load(tmp_path)
    for i, j in ((3, 0), (0, 4), (-4, 0)):
        with pytest.raises(InputError, match="out of range"):
            model.run({"x": normal(2, 3), "i": number(i), "j": number(j)})


def test_a_position_in_an_empty_sequence_is_checked(tmp_path: Path) -> None:
    text = """g (float[a] x, int64 p) => (float[k, a] y) {
        none = SequenceEmpty()
        s = SequenceInsert(none, x, p)
        y = ConcatFromSequence<axis = 0, new_axis = 1>(s)
    }"""
    webmlc.build(parse(text), tmp_path)
    x = normal(3)
    for device, threads in SETTINGS:
        model = webmlc.load(tmp_path, device=device, threads=threads)
        np.testing.assert_array_equal(model.run({"x": x, "p": number(0)})["y"], x[None])
        for p in (1, -1, 5):
            with pytest.raises(InputError, match="out of range"):
                model.run({"x": x, "p": number(p)})
        model.dispose()


def test_elements_of_other_shapes_are_refused(tmp_path: Path) -> None:
    text = CHOOSES.replace("float[a, b] w", "float[b, a, b] w")
    with pytest.raises(UnsupportedError):
        webmlc.build(parse(text), tmp_path)
