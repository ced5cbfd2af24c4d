"""Sequences whose elements differ in size, and whose length or positions only a run knows: on both
devices against onnxruntime, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import SETTINGS, parse
from tests.graph.graphs import module
from tests.node import as_tensors, in_node
from webmlc.core.errors import InputError
from webmlc.graph.infer.evaluate import evaluate_module

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def number(n: int) -> Any:
    return np.array(n, np.int64)


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def appends(element: str, start: str = "SequenceEmpty<dtype = 1>()") -> str:
    """A loop that appends an element whose size depends on the iteration."""
    return f"""none = {start}
    s = Loop(n, , none) <
        body = l (int64 i, bool go, seq(float[q, b]) p) => (bool on, seq(float[q, b]) r) {{
            on = Identity(go)
            j = Add(i, one)
            j1 = Reshape(j, single)
            zero1 = Sub(j1, j1)
            {element}
            r = SequenceInsert(p, t)
        }}
    >"""


ROWS = "e = Slice(x, zero1, j1) t = Neg(e)"
COLUMNS = "e = Slice(x, zero1, j1, single) t = Exp(e)"
CONSTANTS = "<int64 one = {1}, int64[1] single = {1}>"
CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "appends rows": (
        f"""g (float[a, b] x, int64 n, int64 i) => (float[k, b] y, float[m, b] z, int64 size)
            {CONSTANTS} {{
            {appends(ROWS)}
            y = ConcatFromSequence<axis = 0>(s)
            z = SequenceAt(s, i)
            size = SequenceLength(s)
        }}""",
        [{"x": normal(5, 3), "n": number(n), "i": number(i)} for n, i in ((4, 2), (1, 0), (5, -1))],
    ),
    "appends columns": (
        f"""g (float[a, b] x, int64 n) => (float[a, k] y) {CONSTANTS} {{
            {appends(COLUMNS)}
            y = ConcatFromSequence<axis = -1>(s)
        }}""",
        [{"x": normal(3, 6), "n": number(n)} for n in (4, 1)],
    ),
    "appends to some": (
        f"""g (float[a, b] x, int64 n) => (float[k, b] y, int64 size) {CONSTANTS} {{
            {appends(ROWS, "SequenceConstruct(x, x)")}
            y = ConcatFromSequence<axis = 0>(s)
            size = SequenceLength(s)
        }}""",
        [{"x": normal(4, 3), "n": number(n)} for n in (3, 1)],
    ),
    "splits rows": (
        """g (float[a, b] x, int64[k] n, int64 i) => (float[c, b] y, float[d, b] z) {
            s = SplitToSequence<axis = 0>(x, n)
            y = SequenceAt(s, i)
            z = ConcatFromSequence<axis = 0>(s)
        }""",
        [
            {"x": normal(7, 3), "n": n, "i": number(i)}
            for n, i in ((numbers(2, 4, 1), 1), (numbers(7), 0), (numbers(3, 0, 4), -2))
        ],
    ),
    "splits with a remainder": (
        """g (float[a, b] x, int64 n, int64 i) => (float[c, b] y, float[a, b] z, int64 size) {
            s = SplitToSequence<axis = 0>(x, n)
            y = SequenceAt(s, i)
            e = SequenceErase(s, i)
            t = SequenceInsert(e, y, i)
            z = ConcatFromSequence<axis = 0>(t)
            size = SequenceLength(s)
        }""",
        [{"x": normal(7, 2), "n": number(n), "i": number(i)} for n, i in ((3, 1), (7, 0), (2, 3))],
    ),
    "chooses": (
        """g (float[a, b] x, float[c, b] w, int64 i) => (float[d, b] y) {
            e = Exp(x)
            s = SequenceConstruct(x, w, e)
            y = SequenceAt(s, i)
        }""",
        [{"x": normal(2, 3), "w": normal(4, 3), "i": number(i)} for i in (0, 1, 2, -1)],
    ),
    "edits": (
        """g (float[a, b] x, float[c, b] w, int64 i, int64 j) => (float[d, b] y, int64 size) {
            s = SequenceConstruct(x, w)
            e = Concat<axis = 0>(x, w)
            t = SequenceInsert(s, e, i)
            u = SequenceErase(t, j)
            v = SequenceInsert(u, w)
            y = ConcatFromSequence<axis = 0>(v)
            size = SequenceLength(v)
        }""",
        [
            {"x": normal(2, 3), "w": normal(1, 3), "i": number(i), "j": number(j)}
            for i, j in ((0, 2), (2, 0), (-1, -1), (1, 1))
        ],
    ),
    "maps": (
        """g (float[a, b] x, int64[k] n, float[b] w) => (float[c, b] y) {
            s = SplitToSequence<axis = 0>(x, n)
            t = SequenceMap(s, w) <
                body = m (float[q, b] r, float[b] v) => (float[q, b] o) {
                    h = Mul(r, v)
                    o = Tanh(h)
                }
            >
            y = ConcatFromSequence<axis = 0>(t)
        }""",
        [{"x": normal(6, 3), "n": n, "w": normal(3)} for n in (numbers(1, 3, 2), numbers(6))],
    ),
    "reduces": (
        """g (float[a, b] x, int64[k] n) => (float[k, b] y) <int64[1] zero = {0}> {
            s = SplitToSequence<axis = 0>(x, n)
            t = SequenceMap(s) <
                body = m (float[q, b] r) => (float[b] o) { o = ReduceSum<keepdims = 0>(r, zero) }
            >
            y = ConcatFromSequence<axis = 0, new_axis = 1>(t)
        }""",
        [{"x": normal(6, 3), "n": n} for n in (numbers(1, 3, 2), numbers(2, 4))],
    ),
    "equal elements": (
        """g (float[a, b] x, int64[k] n) => (float[c, k, b] y) {
            s = SplitToSequence<axis = 0>(x, n)
            y = ConcatFromSequence<axis = 1, new_axis = 1>(s)
        }""",
        [{"x": normal(6, 3), "n": n} for n in (numbers(2, 2, 2), numbers(3, 3), numbers(6))],
    ),
    "returns": (
        """g (float[a, b] x, int64[k] n) => (seq(float[c, b]) y, float[a, b] z) {
            s = SplitToSequence<axis = 0>(x, n)
            y = SequenceInsert(s, x)
            z = Sin(x)
        }""",
        [{"x": normal(6, 3), "n": n} for n in (numbers(1, 3, 2), numbers(6))],
    ),
    "words": (
        """g (int64[a] x, int64[k] n, int64 i) => (int64[c] y, int64[a] z) {
            s = SplitToSequence<axis = 0>(x, n)
            y = SequenceAt(s, i)
            z = ConcatFromSequence<axis = 0>(s)
        }""",
        [{"x": numbers(4, 5, 6, -7), "n": numbers(1, 3), "i": number(i)} for i in (0, 1)],
    ),
}


def check_same(actual: Any, want: Any) -> None:
    if isinstance(want, list):
        assert isinstance(actual, list) and len(actual) == len(want)
        for element, expected in zip(actual, want, strict=True):
            check_same(element, expected)
        return
    assert (actual.shape, actual.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(actual, want, rtol=1e-4, atol=1e-5)


def from_node(answer: Any, want: Any) -> Any:
    """A result of Node as an array, or as a list of arrays."""
    if isinstance(want, list):
        return [from_node(part, expected) for part, expected in zip(answer, want, strict=True)]
    return np.array(answer["data"], np.float64).astype(want.dtype).reshape(answer["shape"])


@pytest.mark.parametrize("name", CASES)
def test_a_run_decides_a_sequence_of_unequal_elements(tmp_path: Path, name: str) -> None:
    text, runs = CASES[name]
    session = onnxruntime.InferenceSession(parse(text).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    expected = [dict(zip(names, session.run(None, feeds), strict=True)) for feeds in runs]
    webmlc.build(parse(text), tmp_path)
    graph = module(text)
    for device, threads in SETTINGS:
        model = webmlc.load(tmp_path, device=device, threads=threads)
        for feeds, results in zip(runs, expected, strict=True):
            actual = model.run(feeds)
            for output, want in results.items():
                check_same(actual[output], want)
        model.dispose()
    for feeds, results in zip(runs, expected, strict=True):
        meaning = evaluate_module(graph, feeds)
        for output, want in results.items():
            check_same(meaning[output], want)
    if name in ("appends rows", "splits rows", "returns"):
        answers = in_node(tmp_path, [as_tensors(feeds) for feeds in runs])
        for answer, results in zip(answers, expected, strict=True):
            for output, want in results.items():
                check_same(from_node(answer[output], want), want)


def test_elements_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    webmlc.build(parse(CASES["equal elements"][0]), tmp_path)
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path, device=device)
        for lengths in (numbers(1, 5), numbers(2, 2), numbers(2, 2, 2, 2)):
            with pytest.raises(InputError, match=r"out of range|negative|sizes are"):
                model.run({"x": normal(6, 3), "n": lengths})
        model.dispose()


def test_a_position_behind_the_end_is_an_error(tmp_path: Path) -> None:
    webmlc.build(parse(CASES["splits rows"][0]), tmp_path, target="wasm")
    model = webmlc.load(tmp_path)
    for i in (3, -4):
        with pytest.raises(InputError, match="out of range"):
            model.run({"x": normal(7, 3), "n": numbers(2, 4, 1), "i": number(i)})
