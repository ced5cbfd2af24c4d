"""Branches whose results differ in rank or in element type, as exporters guard a squeeze: on both
devices against onnxruntime, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.graph.ops.host_control import check_everywhere
from webmlc.core.errors import InputError, UnsupportedError

RNG = np.random.default_rng(0)
CONSTANTS = "<int64 one = {1}, int64[1] axis = {1}, int64[1] flat = {-1}, int64[2] rows = {-1, 4}>"


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def flags(names: str, **feeds: Any) -> list[dict[str, Any]]:
    """Runs with each combination of boolean inputs."""
    places = range(1 << len(names))
    return [
        {**feeds, **{name: np.array(bool(p >> k & 1)) for k, name in enumerate(names)}}
        for p in places
    ]


def guard(name: str, value: str, size: str = "n") -> str:
    """Squeeze axis 1 of a value of rank 3 if its size is 1."""
    return f"""
    {name}_size = Shape<start = 1, end = 2>({value})
    {name}_number = Squeeze({name}_size)
    {name}_is_one = Equal({name}_number, one)
    {name} = If({name}_is_one) <
        then_branch = {name}_t () => (float[b, 4] {name}_o) {{ {name}_o = Squeeze({value}, axis) }},
        else_branch = {name}_e () => (float[b, {size}, 4] {name}_p) {{
            {name}_p = Identity({value})
        }}
    >"""


def reduced(condition: str = "c", axis: str = "") -> str:
    """A value of rank 2 or less, by a condition."""
    axes = f"<axes = [{axis}], keepdims = 0>" if axis else "<keepdims = 0>"
    rank = "[b]" if axis else ""
    return f"""q = If({condition}) <
        then_branch = t () => (float[a, b] o) {{ o = Relu(x) }},
        else_branch = e () => (float{rank} p) {{ p = ReduceMax{axes}(x) }}
    >"""


X, W = normal(3, 4), normal(4, 5)
SIZES = [{"x": normal(2, n, 4), "w": W} for n in (1, 3, 1)]
CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "any rank returned": (
        f"g (float[a, b] x, bool c) => (float[k, l] q) {{ {reduced()} }}",
        flags("c", x=X),
    ),
    "product": (
        f"""g (float[b, n, 4] x, float[4, 5] w) => (float[k, 5] y) {CONSTANTS} {{
            {guard("q", "x")} y = MatMul(q, w) }}""",
        SIZES,
    ),
    "flattened": (
        f"""g (float[b, n, 4] x, float[4, 5] w) => (float[k, 5] y) {CONSTANTS} {{
            {guard("q", "x")} r = Reshape(q, rows) s = MatMul(r, w) y = Tanh(s) }}""",
        SIZES,
    ),
    "rank and elements returned": (
        f"""g (float[b, n, 4] x, float[4, 5] w) => (float[k, 5] y, float[m] z) {CONSTANTS} {{
            {guard("q", "x")} y = MatMul(q, w) e = Exp(y) z = Reshape(e, flat) }}""",
        SIZES,
    ),
    "one condition twice": (
        f"""g (float[b, n, 4] x, float[b, n, 4] w) => (float[k] z) {CONSTANTS} {{
            {guard("q", "x")} {guard("r", "w")}
            s = Add(q, r) z = Reshape(s, flat) }}""",
        [{"x": normal(2, n, 4), "w": normal(2, n, 4)} for n in (1, 3)],
    ),
    "two conditions": (
        f"""g (float[b, n, 4] x, float[b, m, 4] w) => (float[k] z) {CONSTANTS} {{
            {guard("q", "x")} {guard("r", "w", "m")}
            s = Add(q, r) z = Reshape(s, flat) }}""",
        [{"x": normal(3, n, 4), "w": normal(3, m, 4)} for n, m in ((1, 1), (3, 3), (1, 3), (3, 1))],
    ),
    "two results": (
        """g (float[a, b] x, bool c) => (float[k] z, float[a, b] y) <int64[1] flat = {-1}> {
            q, p = If(c) <
                then_branch = t () => (float[a] o, float[a, b] r) {
                    one = Constant<value_ints = [1]>()
                    o = ReduceSum<keepdims = 0>(x, one)
                    r = Exp(x)
                },
                else_branch = e () => (float[a, b] s, float[a, b] u) {
                    s = Identity(x)
                    u = Sin(x)
                }
            >
            m = Neg(p) k = Neg(q) y = Mul(m, m) z = Reshape(k, flat)
        }""",
        flags("c", x=X),
    ),
    "shape": (
        f"""g (float[a, b] x, bool c) => (int64[k] s, int64 n, float[1, l] y) {{
            {reduced(axis="0")} s = Shape(q) n = Size(q) y = Flatten<axis = 0>(q) }}""",
        flags("c", x=X),
    ),
    "nested": (
        f"""g (float[a, b] x, bool c, bool d) => (float[m] z) <int64[1] flat = {{-1}}> {{
            u = If(d) <
                then_branch = v () => (float[a, b] h) {{ {reduced()} h = Neg(q) }},
                else_branch = w () => (float[b] i) {{ i = ReduceMin<axes = [0], keepdims = 0>(x) }}
            >
            k = Abs(u) z = Reshape(k, flat)
        }}""",
        flags("cd", x=X),
    ),
    "two of any rank": (
        f"""g (float[a, b] x, bool c, bool d) => (float[k, l] y, float[m, n] z, float[a, b] w) {{
            {reduced()}
            r = If(d) <
                then_branch = v () => (float[b] i) {{ i = ReduceMin<axes = [0], keepdims = 0>(x) }},
                else_branch = u () => (float[a, b] j) {{ j = Cos(x) }}
            >
            y = Neg(q) z = Exp(r) w = Sqrt(x)
        }}""",
        flags("cd", x=np.abs(X)),
    ),
    "loop": (
        f"""g (float[a] v, bool c, int64 n) => (float[k] y) <int64[1] flat = {{-1}}> {{
            y = Loop(n, , v) <
                body = l (int64 i, bool go, float[p] s) => (bool on, float[p2] w) {{
                    on = Identity(go)
                    half = Constant<value_ints = [1, -1]>()
                    x = Reshape(s, half)
                    {reduced()}
                    r = Neg(q)
                    f = Reshape(r, flat)
                    w = Concat<axis = 0>(f, s)
                }}
            >
        }}""",
        [
            {"v": normal(3), "c": np.array(c), "n": np.array(n)}
            for c in (True, False)
            for n in (3, 0)
        ],
    ),
    "inequality": (
        """g (float[b, n] x) => (float[k] z) <int64 two = {2}, int64[1] flat = {-1}> {
            s = Shape<start = 1, end = 2>(x)
            n = Squeeze(s)
            c = Greater(n, two)
            q = If(c) <
                then_branch = t () => (float[b] o) { o = ReduceMax<axes = [1], keepdims = 0>(x) },
                else_branch = e () => (float[b, n] p) { p = Identity(x) }
            >
            k = Softmax(q)
            z = Reshape(k, flat)
        }""",
        [{"x": normal(2, n)} for n in (1, 5, 2)],
    ),
    "optional": (
        """g (float[a, b] x, bool c) => (float[a, b] y) {
            o = If(c) <
                then_branch = t () => (optional(float[a, b]) p) { p = Optional(x) },
                else_branch = e () => (optional(float[a, b]) r) {
                    r = Optional<type = float[a, b]>()
                }
            >
            has = OptionalHasElement(o)
            y = If(has) <
                then_branch = u () => (float[a, b] v) { v = OptionalGetElement(o) },
                else_branch = w () => (float[a, b] z) { z = Neg(x) }
            >
        }""",
        flags("c", x=X),
    ),
    "sequences": (
        """g (float[a, b] x, float[d, b] w, bool c, int64 i) => (float[k, b] y, float[m, b] z) {
            s = If(c) <
                then_branch = t () => (seq(float[q, b]) o) { o = SequenceConstruct(x, w) },
                else_branch = e () => (seq(float[q, b]) p) { p = SequenceConstruct(w, x, w) }
            >
            y = ConcatFromSequence<axis = 0>(s)
            z = SequenceAt(s, i)
        }""",
        [{**run, "w": normal(2, 4), "i": np.array(i)} for run in flags("c", x=X) for i in (1, 0)],
    ),
    "half": (
        f"""g (float16[a, b] x, bool c) => (float16[k, l] y) {{
            {reduced().replace("float[", "float16[").replace("float p", "float16 p")}
            y = Neg(q) }}""",
        flags("c", x=X.astype(np.float16)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_branches_decide_the_rank_of_a_result(tmp_path: Path, name: str) -> None:
    text, runs = CASES[name]
    in_javascript = name in ("any rank returned", "two conditions", "two of any rank", "loop")
    check_everywhere(text, tmp_path, runs, in_javascript)


def test_other_element_types_are_cast_behind_the_if(tmp_path: Path) -> None:
    text = """g (float[a, b] x, bool c) => (float y) {
        q = If(c) <
            then_branch = t () => (float[a, b] o) { o = Relu(x) },
            else_branch = e () => (int64[2] p) { p = Shape(x) }
        >
        r = Cast<to = 1>(q)
        y = ReduceSum<keepdims = 0>(r)
    }"""  # onnxruntime refuses it
    webmlc.build(parse(text), tmp_path)
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path, device=device)
        for c, want in ((True, np.maximum(X, 0).sum()), (False, 7.0)):
            y = model.run({"x": X, "c": np.array(c)})["y"]
            np.testing.assert_allclose(y, want, rtol=1e-5)
        model.dispose()


GUARDED = f"""g (float[b, n, 4] x, float[4, 5] w) => (float[b, 5] y) {CONSTANTS} {{
    {guard("q", "x")} y = Gemm(q, w) }}"""


def test_a_run_checks_the_branch_that_the_nodes_behind_it_need(tmp_path: Path) -> None:
    webmlc.build(parse(GUARDED), tmp_path)
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path, device=device)
        x = normal(2, 1, 4)
        np.testing.assert_allclose(model.run({"x": x, "w": W})["y"], x[:, 0] @ W, rtol=1e-4)
        with pytest.raises(InputError, match="'q': its sizes are n = 3 and 1: they must be equal"):
            model.run({"x": normal(2, 3, 4), "w": W})
        model.dispose()
    assert not webmlc.load(tmp_path).program.has_jumps


def test_a_run_checks_a_condition_of_data(tmp_path: Path) -> None:
    text = f"""g (float[a, b] x, float[b, k] w, bool c) => (float[a, k] y) {{
        {reduced()} y = Gemm(q, w) }}"""
    webmlc.build(parse(text), tmp_path)
    for device in ("wasm", "webgpu"):
        model = webmlc.load(tmp_path, device=device)
        y = model.run({"x": X, "w": W, "c": np.array(True)})["y"]
        np.testing.assert_allclose(y, np.maximum(X, 0) @ W, rtol=1e-4, atol=1e-5)
        with pytest.raises(InputError, match=r"'q'.*out of range"):
            model.run({"x": X, "w": W, "c": np.array(False)})
        model.dispose()


def test_an_output_of_any_rank_says_so(tmp_path: Path) -> None:
    webmlc.build(parse(CASES["two of any rank"][0]), tmp_path, target="wasm")
    model = webmlc.load(tmp_path)
    assert [(p.name, p.shape) for p in model.outputs] == [
        ("y", ("...",)),
        ("z", ("...",)),
        ("w", ("a", "b")),
    ]
    feeds = {"x": X, "c": np.array(False), "d": np.array(True)}
    assert model.run(feeds, ["z"])["z"].shape == (4,)
    assert list(model.run(feeds, ["w", "y"])) == ["y", "w"]
    assert 'y: { dtype: "float32"; shape: number[]' in (tmp_path / "model.d.ts").read_text()


def test_what_no_node_can_read_is_refused(tmp_path: Path) -> None:
    for text, message in (
        (GUARDED.replace("Gemm(q, w)", "Gemm<transB = 1>(w, q)"), "Gemm"),
        (
            f"""g (float[a, b] x, int64 n, bool c) => (float[k, l] y) {{
                y = Loop(n, , x) <
                    body = l (int64 i, bool go, float[p, q] s) => (bool on, float[p2, q2] w) {{
                        on = Identity(go) {reduced()} w = Neg(q)
                    }}
                >
            }}""",
            "unlike results",
        ),
    ):
        with pytest.raises(UnsupportedError, match=message):
            webmlc.build(parse(text), tmp_path)
