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
    """The first graphs that can be judged, whichever operators there are."""
    cases = graphs = 0
    for number in range(MOST_DRAWN):
        subject = draw_subject(0, number)
        if subject is None:
            continue  # an operator that the judge does not run
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


def test_rounding_of_what_cancels_is_no_difference() -> None:
    feeds = {"x": np.array([-3.0979156, 1], np.float32)}
    for off, kind in ((1.5e-7, "equal"), (1e-6, "differs")):
        ours = np.array([-0.0030187157 + off, 0.8413447], np.float32)
        assert in_one_node("Gelu(x)", feeds, ours) == kind


def test_sums_that_an_infinite_scale_makes_a_nan_may_differ() -> None:
    """Only they: the other sums saturate."""
    text = """g (uint8[n,k] x, float s) => (uint8[n,m] y) <float one = {1}, uint8 zero = {3},
        uint8[2,1] w = {3, 4}> { y = QLinearMatMul(x, one, zero, w, one, zero, s, zero) }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    feeds: Outputs = {"x": np.array([[5, 3], [3, 5]], np.uint8), "s": np.zeros((), np.float32)}
    session, missing = judge.Judge(), Failure("refused", "no reference")
    session.handle("open", model.SerializeToString())
    judged: Outputs = session.handle("run", feeds)  # type: ignore[assignment]
    for wrong, kind in ((0, "differs by rule"), (1, "differs")):
        ours: Outputs = {"y": judged["y"].copy()}
        ours["y"][wrong] ^= 7
        result = judge_run(model, feeds, ours, judged, list, lambda _: missing)
        assert result.kind == kind


def test_samples_outside_of_an_infinite_pixel_may_differ() -> None:
    x = np.ones((1, 2, 2, 2), np.float32)
    x[0, 0, 0, 0] = np.inf
    feeds: Outputs = {"x": x, "r": np.array([[0, 0, 9, 9]], np.float32)}
    text = "RoiAlign<output_height=2, output_width=1, sampling_ratio=1>(x, r, i)"
    head = '<ir_version: 10, opset_import: ["" : 21]> g (float[n,c,h,w] x, float[k,4] r)'
    body = f"=> (float[k,c,p,q] y) <int64[1] i = {{0}}> {{ y = {text} }}"
    model = onnx.parser.parse_model(f"{head} {body}")
    session, missing = judge.Judge(), Failure("refused", "no reference")
    session.handle("open", model.SerializeToString())
    judged: Outputs = session.handle("run", feeds)  # type: ignore[assignment]
    assert np.isnan(judged["y"][0, 0]).any()
    for channel, kind in ((0, "differs by rule"), (1, "differs")):
        ours: Outputs = {"y": np.nan_to_num(judged["y"], nan=0)}
        ours["y"][0, 1] = judged["y"][0, 1] + channel
        result = judge_run(model, feeds, ours, judged, list, lambda _: missing)
        assert result.kind == kind


def test_the_second_opinion_gives_each_group_its_weights() -> None:
    text = """g (float[n,c,h,w] x, float[c,m,i,j] w, float[o] b) => (float[n,o,p,q] y)
        { y = ConvTranspose<group=2, strides=[2,1], pads=[1,0,0,1]>(x, w, b) }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 4, 3, 5), "w": (4, 3, 2, 3), "b": (6,)}
    feeds = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    session, data = judge.Judge(), model.SerializeToString()
    session.handle("open", data)
    judged: Outputs = session.handle("run", feeds)  # type: ignore[assignment]
    second = judge.reference(data, feeds, ("y",))
    np.testing.assert_allclose(second["y"], judged["y"], rtol=1e-5, atol=1e-5)


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
    first, second = draw_subject(3, 18), draw_subject(3, 18)
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
