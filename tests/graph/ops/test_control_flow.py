"""Control flow that a run decides, built and run on both devices, against onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

import webmlc
from tests.against_onnxruntime import Device, check, parse
from webmlc.host.load import load
from webmlc.package.manifest import Bind
from webmlc.target.targets import TARGETS
from webmlc.target.wasm.target import WASM

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


BRANCHES = """g (float[n, 4] x, float[4] b, bool c) => (float[n, 4] y, float[n] z) {
    y, z = If(c) <
        then_branch = t () => (float[n, 4] p, float[n] q) {
            r = Relu(x)
            p = Add(r, b)
            q = ReduceSum<keepdims = 0>(p, axis)
        },
        else_branch = e () => (float[n, 4] u, float[n] v) {
            u = Identity(x)
            m = ReduceMax<axes = [1], keepdims = 0>(x)
            v = Neg(m)
        }
    >
}"""


def test_a_condition_of_a_run_chooses_a_branch(tmp_path: Path) -> None:
    text = BRANCHES.replace("{\n    y, z", "<int64[1] axis = {1}>{\n    y, z", 1)
    runs = [
        {"x": normal(n, 4), "b": normal(4), "c": np.array(c)} for n in (1, 7) for c in (True, False)
    ]
    check(parse(text), tmp_path, *runs)


READERS = {
    "branch": """y = If(c) <
        then_branch = t () => (float[n, 4] p) { p = Clip(x, s) },
        else_branch = e () => (float[n, 4] q) { q = Identity(x) }>""",
    "loop": """k = Constant<value_int = 5>()
    y = Loop(k, , x) <body = l (int64 i, bool g, float[n, 4] a) => (bool h, float[n, 4] b) {
        h = Identity(g)
        b = Add(a, s)
    }>""",
    "nested": """y = If(c) <
        then_branch = t () => (float[n, 4] p) {
            p = If(c) <
                then_branch = v () => (float[n, 4] r) { r = Mul(x, s) },
                else_branch = w () => (float[n, 4] o) { o = Identity(x) }>
        },
        else_branch = e () => (float[n, 4] q) { q = Sub(x, s) }>""",
}


@pytest.mark.parametrize("reader", READERS)
def test_bodies_read_dequantised_numbers_of_the_outer_graph(tmp_path: Path, reader: str) -> None:
    """The build knows the number, but keeps the node. A body's copy lost the fraction."""
    text = f"""g (float[n, 4] x, bool c) => (float[n, 4] y)
        <int8 stored = {{7}}, float unit = {{0.0153}}> {{
        s = DequantizeLinear(stored, unit)
        {READERS[reader]}
    }}"""
    runs = [{"x": normal(3, 4), "c": np.array(c)} for c in (True, False)]
    check(parse(text, 21), tmp_path, *runs)


def test_a_long_loop_carries_swaps_and_scans(tmp_path: Path) -> None:
    text = """g (float[n] x, float[n] w) => (float[n] a, float[n] b, float[k, n] s) {
        count = Constant<value_int = 50>()
        half = Constant<value_float = 0.5>()
        a, b, s = Loop(count, , x, w) <
            body = l (int64 i, bool c, float[n] p, float[n] q)
                => (bool d, float[n] r, float[n] t, float[n] o) {
                d = Identity(c)
                r = Identity(q)
                f = Cast<to = 1>(i)
                m = Mul(p, half)
                g = Mul(f, x)
                t = Sub(g, m)
                o = Neg(t)
            }
        >
    }"""
    check(
        parse(text), tmp_path, {"x": normal(3), "w": normal(3)}, {"x": normal(40), "w": normal(40)}
    )


def test_a_computed_condition_ends_a_loop(tmp_path: Path) -> None:
    text = """g (float[n] x) => (float[n] y, int64 k) {
        zero = Constant<value_int = 0>()
        limit = Constant<value_float = 100.0>()
        y, k = Loop( , , x, zero) <
            body = l (int64 i, bool c, float[n] p, int64 j) => (bool d, float[n] q, int64 m) {
                q = Add(p, p)
                one = Constant<value_int = 1>()
                m = Add(j, one)
                a = Abs(q)
                s = ReduceSum<keepdims = 0>(a)
                d = Less(s, limit)
            }
        >
    }"""
    check(parse(text), tmp_path, {"x": normal(5)}, {"x": np.full(9, 0.01, np.float32)})


COUNTING = """g (float[n, 2] x, int64 first) => (float[2] y, float[k, 2] s)
    <float[2] w = {0.0, 1.0}, float half = {0.5}, int64 zero = {0}> {
    size = Shape<start = 0, end = 1>(x)
    limit = Squeeze(size)
    go = START
    j, l, y, s = Loop( , go, COUNTER, limit, w) <
        body = b (int64 m, bool c, int64 i, int64 end, float[2] p)
            => (bool d, int64 next, int64 same, float[2] q, float[2] o) {
            one = Constant<value_int = 1>()
            next = Add(i, one)
            same = Identity(end)
            f = Cast<to = 1>(next)
            e = Cast<to = 1>(same)
            d = CONDITION
            h = Mul(p, half)
            g = CastLike(next, half)
            q = Add(h, g)
            o = Neg(q)
        }
    >
}"""


def counting(counter: str, start: str, condition: str) -> onnx.ModelProto:
    """A loop that counts from `counter` up to the rows of the input, as TensorFlow's do."""
    text = COUNTING.replace("COUNTER", counter).replace("START", start)
    text = text if counter == "first" else text.replace(", int64 first", "")
    return parse(text.replace("CONDITION", condition))


@pytest.mark.parametrize(
    ("start", "condition"),
    [("Less(zero, limit)", "Less(f, e)"), ("GreaterOrEqual(limit, zero)", "GreaterOrEqual(e, f)")],
)
def test_a_loop_without_a_trip_count_counts_to_a_size(
    tmp_path: Path, start: str, condition: str
) -> None:
    model = counting("zero", start, condition)
    check(model, tmp_path, *({"x": normal(n, 2)} for n in (5, 90, 1)))
    segments = load(tmp_path).program.segments
    assert not any(isinstance(s, Bind) for s in segments)  # the size of the scan is known before


@pytest.mark.parametrize("condition", ["Less(f, e)", "LessOrEqual(next, same)"])
def test_a_loop_counts_from_what_a_run_says(tmp_path: Path, condition: str) -> None:
    """If the initial condition holds, one iteration runs, whatever the limit is."""
    model = counting("first", "GreaterOrEqual(limit, first)", condition)
    runs = ((9, 4), (70, 1), (2, 2), (2, 3))
    check(model, tmp_path, *({"x": normal(n, 2), "first": np.array(i)} for n, i in runs))


@pytest.mark.parametrize(
    "change",
    [
        ("Identity(end)", "Add(end, one)"),
        ("Add(i, one)", "Add(i, end)"),
        ("Cast<to = 1>", "Cast<to = 10>"),
    ],
    ids=["a limit that moves", "another step", "a float16 that rounds"],
)
def test_the_host_runs_a_loop_that_does_not_count_to_a_limit(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    text = (
        COUNTING.replace(*change).replace("COUNTER", "first").replace("START", "Less(zero, limit)")
    )
    rows = (0,) if "end, one" in change[1] else (0, 5)  # a limit that moves is never reached
    runs = [{"x": normal(n, 2), "first": np.array(1)} for n in rows]
    check(parse(text.replace("CONDITION", "Less(f, e)")), tmp_path, *runs)
    assert load(tmp_path).program.has_jumps


def test_a_scan_of_a_symbolic_length_goes_backwards(tmp_path: Path) -> None:
    text = """g (float[2] h, float[2, t] x, float[t, 2] y) => (float[2] k, float[2, t] z) {
        k, z = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
            scan_output_axes = [1], scan_output_directions = [1],
            body = b (float[2] s, float[2] p, float[2] q) => (float[2] r, float[2] o) {
                m = Mul(p, q)
                r = Add(s, m)
                o = Sub(r, p)
            }
        >(h, x, y)
    }"""
    check(
        parse(text),
        tmp_path,
        *({"h": normal(2), "x": normal(2, t), "y": normal(t, 2)} for t in (1, 5, 90)),
    )


def test_a_state_that_starts_as_a_constant_is_carried(tmp_path: Path) -> None:
    text = """g (float[t, 2] x) => (float[2] k, float[t, 2] z)
        <float[2] start = {1, 2}> {
        k, z = Scan<num_scan_inputs = 1,
            body = b (float[2] s, float[2] p) => (float[2] r, float[2] o) {
            r = Add(s, p)
            o = Mul(r, p)
        }>(start, x)
    }"""
    runs = [{"x": normal(t, 2)} for t in (3, 3, 50)]
    check(parse(text), tmp_path, *runs)


def test_a_branch_inside_a_loop_inside_a_loop(tmp_path: Path) -> None:
    text = """g (float[n] x, float[m] w) => (float[n] y, float[m, n] s) {
        y, s = Scan<num_scan_inputs = 1,
            body = b (float[n] p, float v) => (float[n] q, float[n] o) {
                count = Constant<value_int = 30>()
                q = Loop(count, , p) <
                    body = l (int64 i, bool c, float[n] f) => (bool d, float[n] g) {
                        d = Identity(c)
                        ten = Constant<value_int = 10>()
                        early = Less(i, ten)
                        g = If(early) <
                            then_branch = t () => (float[n] h) { h = Add(f, v) },
                            else_branch = e () => (float[n] k) {
                                u = Sin(f)
                                k = Mul(u, x)
                            }
                        >
                    }
                >
                o = Sub(q, p)
            }
        >(x, w)
    }"""
    few, many = normal(6) / 8, normal(2) / 8  # of large ones the loop would be chaotic
    check(parse(text), tmp_path, {"x": few, "w": normal(4)}, {"x": many, "w": normal(70)})


def test_a_loop_scans_as_often_as_a_value_says(tmp_path: Path) -> None:
    text = """g (int64 count, bool go, float[2] x) => (float[2] y, float[k, 2] s, float[2] t) {
        y, s = Loop(count, go, x) <
            body = b (int64 i, bool c, float[2] p) => (bool d, float[2] q, float[2] o) {
                d = Identity(c)
                f = Cast<to = 1>(i)
                o = Add(p, f)
                q = Sub(p, x)
            }
        >
        t = ReduceSum<keepdims = 0>(s, axis)
    }""".replace("{", "<int64[1] axis = {0}> {", 1)
    counts = [(np.array(n), np.array(go)) for n, go in ((3, True), (0, True), (70, True))]
    counts.append((np.array(5), np.array(False)))
    check(parse(text), tmp_path, *({"count": n, "go": go, "x": normal(2)} for n, go in counts))


def test_a_loop_scans_until_a_computed_condition(tmp_path: Path) -> None:
    text = """g (float[2] x, int64 most) => (float[2] y, float[k, 2] s, float[k, 2] t) {
        y, s = Loop(most, , x) <
            body = b (int64 i, bool c, float[2] p) => (bool d, float[2] q, float[2] o) {
                limit = Constant<value_float = 50.0>()
                q = Add(p, p)
                o = Neg(q)
                a = Abs(q)
                m = ReduceMax<keepdims = 0>(a)
                d = Less(m, limit)
            }
        >
        t = Relu(s)
    }"""
    cases = [(normal(2), 100), (normal(2), 3), (np.zeros(2, np.float32), 20), (normal(2), 0)]
    check(parse(text), tmp_path, *({"x": x, "most": np.array(most)} for x, most in cases))


def test_a_loop_in_a_branch_runs_as_often_as_a_value_outside_says(tmp_path: Path) -> None:
    text = """g (float[2] x, int64 count, bool go) => (float[2] y) {
        y = If(go) <
            then_branch = t () => (float[2] p) {
                p, s = Loop(count, , x) <
                    body = b (int64 i, bool c, float[2] q) => (bool d, float[2] r, float[2] o) {
                        d = Identity(c)
                        r = Add(q, x)
                        o = Neg(r)
                    }
                >
            },
            else_branch = e () => (float[2] u) { u = Abs(x) }
        >
    }"""
    counts = [(3, True), (40, True), (5, False)]
    feeds = [{"x": normal(2), "count": np.array(n), "go": np.array(g)} for n, g in counts]
    check(parse(text), tmp_path, *feeds)


def test_a_layer_starts_every_run_anew(tmp_path: Path) -> None:
    """The initial state is a constant, which the loop's first copy must bring back each time."""
    model = parse(
        "g (float[40, 1, 3] x) => (float[40, 1, 1, 2] y) { y = LSTM<hidden_size = 2>(x, w, r) }"
    )
    weights = {"w": normal(1, 8, 3), "r": normal(1, 8, 2)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in weights.items())
    check(model, tmp_path, {"x": normal(40, 1, 3)}, {"x": normal(40, 1, 3)})


def test_an_equation_of_sizes_decides_a_rank(tmp_path: Path) -> None:
    """Torch exports `x.squeeze(1)` as a branch."""
    text = """g (float[n, m] x) => (float[n] y) {
        sizes = Shape<start = 1, end = 2>(x)
        flat = Squeeze(sizes)
        one = Constant<value_int = 1>()
        single = Equal(flat, one)
        y = If(single) <
            then_branch = t () => (float[n] p) {
                axis = Constant<value_ints = [1]>()
                p = Squeeze(x, axis)
            },
            else_branch = e () => (float[n, m] q) { q = Identity(x) }
        >
    }"""
    webmlc.build(parse(text), tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)  # type: ignore[arg-type]
        x = normal(5, 1)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x[:, 0])
        x = normal(5, 2)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x)
        loaded.dispose()


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_run_any_length(tmp_path: Path, op: str, gates: int) -> None:
    """A symbolic length and batch, both directions, and sequences of their own lengths."""
    hidden, features = 3, 5
    layer = f'{op}<hidden_size = {hidden}, direction = "bidirectional">(x, w, r, b, lens)'
    model = parse(
        f"""g (float[t, n, {features}] x, int32[n] lens)
            => (float[t, 2, n, {hidden}] y, float[2, n, {hidden}] h) {{ y, h = {layer} }}"""
    )
    rows = gates * hidden
    weights = {"w": normal(2, rows, features), "r": normal(2, rows, hidden)}
    weights["b"] = normal(2, 2 * rows)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in weights.items())
    runs = [
        {"x": normal(t, len(lens), features), "lens": np.array(lens, np.int32)}
        for t, lens in ((1, [1]), (4, [2, 4]), (30, [30, 1, 17]))
    ]
    check(model, tmp_path, *runs)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_control_flow_is_profiled(tmp_path: Path, device: Device) -> None:
    text = BRANCHES.replace("{\n    y, z", "<int64[1] axis = {1}>{\n    y, z", 1)
    model = parse(text)
    webmlc.build(model, tmp_path, target=device)
    loaded = webmlc.load(tmp_path, device=device)
    times = loaded.profile({"x": normal(2, 4), "b": normal(4), "c": np.array(True)})
    assert {"if", "else"} <= {step.kernel for step in times}
    loaded.dispose()


def test_no_thread_writes_over_a_condition_that_another_has_yet_to_read(tmp_path: Path) -> None:
    """The condition's place is free once it is read: a branch's result may lie there."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (bool[9,1] m, bool c) => (float[9,8] x, float[9,8] y)
        <int64 b = {8}, int64 n = {16}, int64 r = {8192}, float l = {0}, float h = {4096}> {
            w = MelWeightMatrix (b, n, r, l, h)
            x = Where (m, w, w)
            y = If (c) <then_branch = t () => (float[9,8] o) { o = Neg (w) },
                        else_branch = e () => (float[9,8] p) { p = Relu (w) }> }"""
    plain = WASM.variants["simd128"]
    shared = replace(plain, machine=replace(plain.machine, parallel_operations=0))
    variants = {**WASM.variants, "simd128": shared}
    with patch.dict(TARGETS, wasm=replace(WASM, variants=variants)):
        webmlc.build(onnx.parser.parse_model(text), tmp_path, target="wasm")
    model = load(tmp_path, "wasm", 2, "simd128")
    for condition in [True, False] * 20:
        got = model.run({"c": np.array(condition), "m": np.ones((9, 1), bool)})
        np.testing.assert_array_equal(got["y"], -got["x"] if condition else got["x"])
    model.dispose()
