"""A few graphs of the fuzzer over run-time sizes on all devices, the same ones every time; and that
it sees what is wrong. `python -m tests.fuzz.sizes.run` runs thousands.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.fuzz.graph import Array
from tests.fuzz.sizes import elements, judge
from tests.fuzz.sizes.check import Bench
from tests.fuzz.sizes.draw import draw_subject, operators
from tests.fuzz.sizes.processes import Failure, Process
from tests.fuzz.sizes.references import DFT
from tests.fuzz.sizes.verdict import Outputs, Verdict, differences, judge_run
from tests.fuzz.test_fuzz import NOT_DRAWN
from webmlc.graph.table import OPS

GRAPHS, MOST_DRAWN = 1, 10
MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 21]> g (float[n] x, float[m] z) => (float[k] y) '
    "{ y = Add(x, z) }"
)
FEEDS = {"x": np.ones(3, np.float32), "z": np.ones(3, np.float32)}
TWO = {"y": np.full(3, 2, np.float32)}


def test_random_graphs(bench: Bench) -> None:
    """The first graphs that are not skipped, whichever operators there are."""
    cases = graphs = 0
    for number in range(MOST_DRAWN):
        subject = draw_subject(0, number)
        assert subject is not None
        checked = bench.check(subject, threads=1 + number % 2)
        for way, verdicts in checked.verdicts.items():
            assert not [v for v in verdicts if v.is_bug], (number, way, verdicts)
            cases += len(verdicts)
        graphs += bool(checked.verdicts)
        if graphs == GRAPHS:
            break
    assert cases > GRAPHS * len(bench.ways) * 4


def test_every_operator_is_drawn() -> None:
    drawn = set(operators())
    names = {f"{domain}.{op}".lstrip(".") for (domain, op), row in OPS.items() if row.cases}
    missing = {name for name in names if not name.startswith("webmlc.")} - drawn
    assert missing - NOT_DRAWN == NEWER


NEWER = {"BitCast", "CumProd", "Swish", "TensorScatter"}
"""Operators of opsets that the judge does not have."""


def verdict(ours: Outputs | Failure, judged: Outputs | Failure) -> Verdict:
    missing = Failure("refused", "no reference")
    return judge_run(MODEL, FEEDS, ours, judged, list, lambda _: missing)


def test_verdicts() -> None:
    refused = Failure("refused", "while running Add node")
    named = Failure("input", "node 'y': its sizes are n = 3 and m = 2")
    off: dict[str, Array] = {"y": TWO["y"] + np.array([0, 0, 1e-3], np.float32)}
    assert verdict(TWO, TWO).kind == "equal"
    assert verdict(off, TWO).kind == "differs"
    assert verdict({"y": TWO["y"][:2]}, TWO).kind == "differs"
    assert verdict(named, refused).kind == "refused"
    assert verdict(named, TWO).kind == "stricter"
    assert verdict(Failure("input", "something"), TWO).kind == "unnamed"
    assert verdict(TWO, refused).kind == "looser"
    assert verdict({"y": np.zeros(0, np.float32)}, refused).kind == "looser by rule"
    assert verdict(Failure("internal", "bytes behind"), TWO).kind == "internal"
    assert verdict(TWO, Failure("crash", "")).kind == "unjudged"
    assert {v.is_bug for v in (verdict(off, TWO), verdict(named, TWO), verdict(TWO, refused))} == {
        True
    }


def in_one_node(text: str, feeds: Outputs, ours: Array, on_gpu: bool = False) -> str:
    """The verdict on a model `y = ...` of inputs of ranks that `feeds` has."""
    inputs = ", ".join(f"float[{','.join('n' * a.ndim)}] {n}" for n, a in feeds.items())
    kind, rank = ("int64" if ours.dtype.kind == "i" else "float"), ",".join("k" * ours.ndim)
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({kind}[{rank}] y) {{ y = {text} }}")
    session, sums = judge.Judge(), judge.Judge()
    session.handle("open", model.SerializeToString())
    sums.handle("open", elements.with_magnitudes(model).SerializeToString())
    magnitudes = {name: elements.magnitudes(array) for name, array in feeds.items()}
    missing = Failure("refused", "no reference")
    return judge_run(
        model,
        feeds,
        {"y": ours},
        session.handle("run", feeds),  # type: ignore[arg-type]
        list,
        lambda _: missing,
        on_gpu,
        lambda: sums.handle("run", magnitudes),  # type: ignore[arg-type,return-value]
    ).kind


def test_only_elements_with_a_reason_may_differ() -> None:
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    rows = np.array([[3e38, 3e38, -3e38], [1, 2, 3]], np.float32)
    feeds: Outputs = {"x": rows, "z": np.ones((3, 1), np.float32)}
    for ours, kind in (([[nan], [6]], "differs by rule"), ([[3e38], [nan]], "differs")):
        assert in_one_node("MatMul(x, z)", feeds, np.array(ours, np.float32)) == kind
    feeds = {"x": np.array([[1, nan, 0], [1, 2, 0]], np.float32)}
    for places, kind in (([2, 1], "differs by rule"), ([2, 0], "differs")):
        text = "ArgMax<axis=1,keepdims=0>(x)"
        assert in_one_node(text, feeds, np.array(places)) == kind
    feeds = {"x": np.array([1e30, 1], np.float32)}
    for values, kind in (([0.5, np.sin(1)], "differs by rule"), ([0.5, 0.5], "differs")):
        assert in_one_node("Sin(x)", feeds, np.array(values, np.float32)) == kind
    feeds = {"x": np.array([inf, inf], np.float32), "z": np.array([-inf, 1], np.float32)}
    for sums, kind in (([0, inf], "differs by rule"), ([nan, nan], "differs")):
        assert in_one_node("Add(x, z)", feeds, np.array(sums, np.float32), True) == kind


def test_data_may_decide_the_shape_of_a_nudged_run() -> None:
    ours: dict[str, Array] = {"y": np.arange(2)}
    judged: dict[str, Array] = {"y": np.arange(3)}
    assert differences(ours, judged, [judged])
    assert not differences(ours, judged, [judged, {"y": np.arange(2)}])
    assert differences(ours, judged, [judged, {"y": np.arange(1, 3)}])


@pytest.mark.parametrize("inverse", (0, 1))
@pytest.mark.parametrize("parts", (1, 2))
def test_the_exact_transform_is_a_transform(parts: int, inverse: int) -> None:
    x = np.random.default_rng(parts).standard_normal((2, 10, 3, parts))
    result = DFT.eval(x, axis=1, inverse=inverse)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    want = (np.fft.ifft if inverse else np.fft.fft)(signal, axis=1)
    np.testing.assert_allclose(result[..., 0] + 1j * result[..., 1], want, atol=1e-12)


@pytest.mark.parametrize("length", (None, 9, 8))
def test_the_exact_transform_of_one_side_is_a_transform(length: int | None) -> None:
    x = np.random.default_rng(3).standard_normal((2, 5, 3, 2))
    inputs = (x,) if length is None else (x, np.array(length))
    result = DFT.eval(*inputs, axis=1, inverse=1, onesided=1)
    want = np.fft.irfft(x[..., 0] + 1j * x[..., 1], n=length, axis=1)
    np.testing.assert_allclose(result[..., 0], want, atol=1e-12)


def test_a_seed_gives_the_same_graph_and_inputs() -> None:
    first, second = draw_subject(3, 17), draw_subject(3, 17)
    assert first is not None and second is not None
    for one, other in zip(first.forms, second.forms, strict=True):
        assert one.to_model() == other.to_model()
        for a, b in zip(first.runs(one), second.runs(other), strict=True):
            assert a.keys() == b.keys()
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])


def test_the_judge_refuses_and_answers() -> None:
    session = judge.Judge()
    assert session.handle("open", MODEL.SerializeToString()) is None
    answer = session.handle("run", FEEDS)
    assert isinstance(answer, dict)
    np.testing.assert_array_equal(answer["y"], TWO["y"])
    assert isinstance(session.handle("run", {**FEEDS, "z": np.ones(2, np.float32)}), Failure)


def test_a_process_that_dies_is_a_result() -> None:
    process = Process(judge.serve, 60)
    assert process.ask("open", MODEL.SerializeToString()) is None
    assert process.process is not None
    process.process.kill()
    assert process.ask("run", FEEDS) == Failure("crash", "the process ended with exit code -9")
    process.close()
