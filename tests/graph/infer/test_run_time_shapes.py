"""Shapes that a run decides: sizes computed from data, and outputs as long as data say; built and
run on both devices, against onnxruntime, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import check, parse
from tests.node import as_tensors, in_node
from webmlc.core.errors import InputError
from webmlc.package.manifest import Bind

ROOT = Path(__file__).parents[3]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 7, 3)).astype(np.float32)


def integers(*values: int) -> Any:
    return np.array(values, np.int64)


def mask(rows: int, columns: int, density: float) -> Any:
    return RNG.random((rows, columns)) < density


SLICE = """g (float[5, 7, 3] x, int64[2] a, int64[2] b) => (float[i, j, k] y) {
    s = Slice(x, a, b)
    y = Relu(s)
}"""
BACKWARDS = """g (float[5, 7, 3] x, int64[1] a, int64[1] b) => (float[i, j, k] y)
    <int64[1] axes = {1}, int64[1] steps = {-2}> { y = Slice(x, a, b, axes, steps) }"""
EMPTY = """g (float[5, 7, 3] x, int64[1] a, int64[1] b) => (float[i, j] y)
    <float[0, 2] none = {}, int64[1] axes = {0}, int64[1] steps = {-1}> {
    y = Slice(none, a, b, axes, steps)
}"""
EXPAND = """g (float[3, 1] x, int64[3] s) => (float[a, b, c] y) {
    e = Expand(x, s)
    n = Shape(e)
    sum = ReduceSum<keepdims = 0>(n)
    float = Cast<to = 1>(sum)
    y = Add(e, float)
}"""


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (
            SLICE,
            [((0, 0), (3, 4)), ((-2, -3), (2**62, -1)), ((4, 4), (2, 2)), ((1, -99), (99, 99))],
        ),
        (BACKWARDS, [((6,), (0,)), ((-1,), (-99,)), ((2,), (5,)), ((99,), (1,))]),
        (EMPTY, [((0,), (0,)), ((-1,), (-9,)), ((2,), (0,))]),
    ],
)
def test_slices_that_a_run_places(tmp_path: Path, text: str, runs: Any) -> None:
    check(parse(text), tmp_path, *({"x": X, "a": integers(*a), "b": integers(*b)} for a, b in runs))


AXES = [(0,), (1,), (-1,), (2,)]
PAIRS = [(0, 1), (2, 0), (-1, 1), (-3, -1)]
NAMED_AXES = """g (float[n, 7, 3] x, int64[COUNT] a) => (floatSIZES y)
    <int64[1] zero = {0}, int64[1] three = {3}, int64[2] twos = {2, 2}, int64[1] one = {1},
     int64[4] pads = {1, 0, 2, 4}> { BODY }"""


def named_axes(body: str, rank: int, count: int) -> onnx.ModelProto:
    """The model whose second input names axes of its first."""
    sizes = f"[{', '.join(f'size_{d}' for d in range(rank))}]" if rank else ""
    text = NAMED_AXES.replace("COUNT", str(count)).replace("SIZES", sizes)
    return parse(text.replace("BODY", body), opset=18)


@pytest.mark.parametrize(
    ("body", "rank", "runs"),
    [
        ("y = ReduceSum(x, a)", 3, AXES),
        ("y = ReduceMax<keepdims = 0>(x, a)", 1, PAIRS),
        ("y = ReduceMean(x, a)", 3, PAIRS),
        ("y = ReduceLogSumExp<keepdims = 0>(x, a)", 2, AXES),
        ("y = ReduceL2<keepdims = 0>(x, a)", 0, [(0, 1, 2), (-1, 1, 0)]),
        ("y = ReduceSum<noop_with_empty_axes = 1>(x, a)", 3, [()]),
        ("y = CumSum(x, a)", 3, AXES),
        ("y = CumSum<exclusive = 1, reverse = 1>(x, a)", 3, AXES),
        ("y = Unsqueeze(x, a)", 4, AXES),
        ("y = Unsqueeze(x, a)", 5, [(0, 1), (3, 0), (-1, -2), (4, -5)]),
        ("u = Unsqueeze(x, one) v = Unsqueeze(u, three) y = Squeeze(v, a)", 3,
         [(1, 3), (3, 1), (-2, -4)]),
        ("y = Slice(x, zero, three, a)", 3, AXES),
        ("y = Slice(x, three, zero, one, a)", 3, [(-1,), (-2,), (1,), (2,)]),
        ("y = Slice(x, a, twos, a, a)", 3, [(1, 2), (-1, -2), (2, 1)]),
        ("y = Pad<mode = \"edge\">(x, pads, , a)", 3, PAIRS),
    ],
)  # fmt: skip
def test_axes_that_a_run_names(tmp_path: Path, body: str, rank: int, runs: Any) -> None:
    model = named_axes(body, rank, len(runs[0]))
    check(model, tmp_path, *({"x": X, "a": integers(*run)} for run in runs))


@pytest.mark.parametrize(
    ("body", "rank"),
    [
        ("y = ReduceMax(x, a)", 3),
        ("y = ReduceSum<keepdims = 0>(x, a)", 1),
        ("y = Unsqueeze(x, a)", 5),
        ("y = Squeeze(x, a)", 1),
        ("y = Slice(x, twos, twos, a)", 3),
        ("y = Pad(x, pads, , a)", 3),
    ],
)
def test_axes_that_there_are_not_are_refused(tmp_path: Path, body: str, rank: int) -> None:
    """No tensor of the rank has them, or they are named twice; Squeeze: or their size is not 1."""
    webmlc.build(named_axes(body, rank, 2), tmp_path, target="wasm")
    model = webmlc.load(tmp_path, device="wasm")
    for axes in [(7, 0), (1, 1), (-9, 1)]:
        with pytest.raises(InputError, match=r"with these inputs a size is|its sizes are"):
            model.run({"x": X, "a": integers(*axes)})
    model.dispose()


HASHED = """
import sys
sys.path.insert(0, sys.argv[1])
import webmlc
from pathlib import Path
from tests.graph.infer.test_run_time_shapes import named_axes
webmlc.build(named_axes("y = Pad(x, pads, , a)", 3, 2), Path(sys.argv[2]), target="wasm")
"""


def test_binds_stand_in_the_same_order_in_every_build(tmp_path: Path) -> None:
    """Whatever order a process gives to sets of strings."""
    packages = []
    for seed in ("0", "1", "2"):
        folder = tmp_path / seed
        command = [sys.executable, "-c", HASHED, str(ROOT), str(folder)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, env=environment, timeout=60, check=True)
        packages.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert packages[0] == packages[1] == packages[2]


def test_a_later_run_needs_more_memory_than_an_earlier_one(tmp_path: Path) -> None:
    shapes = [(2, 3, 4), (1, 1, 1), (0, 3, 2), (40, 3, 100), (2, 3, 4), (900, 3, 70)]
    x = RNG.standard_normal((3, 1)).astype(np.float32)
    check(parse(EXPAND), tmp_path, *({"x": x, "s": integers(*s)} for s in shapes))


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("y = Reshape(x, s)", [(5, 7, 3), (3, -1, 5), (0, 0, -1), (-1, 0, 1)]),
        (
            "flat = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()  y = Reshape(flat, s)",
            [(2, 1, 2), (-1, 4, 1)],
        ),
        ("y = Tile(x, s)", [(1, 2, 3), (2, 0, 1)]),
        ("y = ConstantOfShape(s)", [(1, 2, 3), (4, 0, 1)]),
        ("a, b = Split<axis = 1>(x, two)  y = Concat<axis = 0>(a, a)", [(1, 6), (7, 0)]),
        ("y, i = TopK<axis = 1>(x, one)", [(3,), (7,), (1,)]),
        ("e = Constant<value = float[2, 0] {}>()  y, i = TopK<axis = 1>(e, one)", [(0,)]),
        ("y = Pad(x, six)", [(0, 1, 2, 3, 4, 5), (-1, 0, 1, 1, 0, -1)]),
    ],
)
def test_sizes_that_a_run_computes(tmp_path: Path, body: str, values: Any) -> None:
    count = len(values[0])
    name = {1: "one", 2: "two", 3: "s", 6: "six"}[count]
    used = "(float[5, 7, 3] x, " if "x" in body.partition("=")[2] else "("
    text = f"g {used}int64[{count}] {name}) => (float[a, b, c] y) {{ {body} }}"
    own = {"x": X} if "x," in used else {}
    check(parse(text), tmp_path, *({**own, name: integers(*v)} for v in values))


@pytest.mark.parametrize(
    ("dtype", "runs"),
    [
        ("int64", [(0, 5, 1), (3, -9, -2), (3, 9, -2), (1, 10, 4)]),
        ("float", [(0.0, 5.0, 1.0), (3.0, -9.0, -2.0), (0.0, 1.0, 0.25)]),
    ],
)
def test_ranges_that_a_run_decides(tmp_path: Path, dtype: str, runs: Any) -> None:
    text = f"g ({dtype} a, {dtype} b, {dtype} c) => ({dtype}[n] y) {{ y = Range(a, b, c) }}"
    numpy = np.int64 if dtype == "int64" else np.float32
    feeds = ({k: numpy(v) for k, v in zip("abc", run, strict=True)} for run in runs)
    check(parse(text), tmp_path, *feeds)


@pytest.mark.parametrize(
    ("arguments", "is_known"),
    [
        ("start, limit, step", True),
        ("limit, start, back", True),
        ("half, limit, step", False),
        ("start, limit, half", False),
        ("start, scaled, step", False),
    ],
)
def test_ranges_of_floats_up_to_a_size(tmp_path: Path, arguments: str, is_known: bool) -> None:
    """Detectors make a grid of so many floats. If all are whole, the build knows how many."""
    text = f"""g (float[n, 2] x) => (float[k] y)
        <float start = {{0.0}}, float step = {{1.0}}, float back = {{-2.0}}, float half = {{0.5}},
         float third = {{0.3}}> {{
        size = Shape<start = 0, end = 1>(x)  count = Squeeze(size)  limit = Cast<to = 1>(count)
        scaled = Mul(limit, third)  range = Range({arguments})  y = Add(range, half) }}"""
    check(parse(text), tmp_path, *({"x": np.zeros((n, 2), np.float32)} for n in (1, 7, 40)))
    binds = [s for s in webmlc.load(tmp_path).program.segments if isinstance(s, Bind)]
    assert bool(binds) != is_known


SELECTED = """g (bool[n, m] x, float[n, m] v) => (int64[2, k] y, float[k] z, float s) {
    y = NonZero(x)
    t = Transpose(y)
    g = GatherND(v, t)
    z = Relu(g)
    s = ReduceSum<keepdims = 0>(z)
}"""
COMPRESSED = """g (bool[n] x, float[n, m] v) => (float[m] u, float[m, m] p, float[k, m] c)
    <int64[1] axes = {0}> {
    c = Compress<axis = 0>(v, x)
    u = ReduceSum<keepdims = 0>(c, axes)
    t = Transpose(c)
    p = MatMul(t, c)
}"""
MASKS = [
    mask(3, 4, 0.5),
    mask(200, 100, 0.3),
    mask(0, 5, 1.0),
    mask(64, 64, 2.0),
    mask(9, 1, -1.0),
    mask(90, 70, 0.9),
]


def test_what_data_select(tmp_path: Path) -> None:
    """Nothing at all, too: sums over no elements are 0."""
    runs = [{"x": m, "v": RNG.standard_normal(m.shape).astype(np.float32)} for m in MASKS]
    check(parse(SELECTED), tmp_path / "selected", *runs)
    rows = [{"x": r["x"][:, 0].copy(), "v": r["v"]} for r in runs]
    check(parse(COMPRESSED), tmp_path / "compressed", *rows)


def test_boxes_that_overlap_are_suppressed(tmp_path: Path) -> None:
    text = """g (float[2, 30, 4] b, float[2, 3, 30] s, int64[1] n, float[1] iou, float[1] least)
        => (int64[k, 3] y) { y = NonMaxSuppression(b, s, n, iou, least) }"""
    corners = RNG.random((2, 30, 4)).astype(np.float32)
    scores = RNG.random((2, 3, 30)).astype(np.float32)
    runs = [
        {"b": corners, "s": scores, "n": integers(n), "iou": np.float32([iou]), "least": least}
        for n, iou, least in [(5, 0.3, np.float32([0.2])), (100, 0.1, np.float32([0.6])),
                              (2, 0.9, np.float32([2.0]))]
    ]  # fmt: skip
    twins = np.repeat(corners[:, :15], 2, axis=1)  # of which the union is exactly each one's area
    runs.append(runs[0] | {"b": twins, "n": integers(100), "iou": np.float32([1.0])})
    check(parse(text), tmp_path, *runs)


def test_binds_that_can_wait_stand_together(tmp_path: Path) -> None:
    """Both slices need sizes: they are read after one run of steps, not after one each."""
    model = parse("""g (float[9] x, int64[1] a, int64[1] b) => (float[i] y, float[j] z)
        <int64[1] zero = {0}> {
        y = Slice(x, zero, a)
        z = Slice(x, zero, b)
    }""")
    manifest = webmlc.build(model, tmp_path, target="wasm")
    kinds = [type(s).__name__ for s in manifest.programs["wasm"].segments]
    assert kinds == ["Run", "Bind", "Bind", "Run"]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, -3), "node 'y': with these inputs a size is -3: negative"),
        ((2, 2**31), "node 'y': with these inputs a size is 2147483648: more than 2147483647"),
    ],
)
def test_impossible_sizes_name_the_node(
    tmp_path: Path, shape: tuple[int, int], message: str
) -> None:
    text = "g (int64[2] s) => (float[a, b] y) { y = ConstantOfShape(s) }"
    manifest = webmlc.build(parse(text), tmp_path, target="wasm")
    assert isinstance(manifest.programs["wasm"].segments[0], Bind)
    loaded = webmlc.load(tmp_path, device="wasm")
    with pytest.raises(InputError) as caught:
        loaded.run({"s": integers(*shape)})
    assert str(caught.value) == message
    feeds = as_tensors({"s": integers(*shape)})
    assert in_node(tmp_path, [feeds]) == [{"error": message.replace("'", '"'), "code": "input"}]


def test_the_javascript_runtime_binds_during_a_run(tmp_path: Path) -> None:
    model = parse(SELECTED)
    webmlc.build(model, tmp_path, target="wasm")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = [
        {"x": m, "v": RNG.standard_normal(m.shape).astype(np.float32)} for m in MASKS if m.size
    ]
    runs = [as_tensors(feed) for feed in feeds]
    for results, feed in zip(in_node(tmp_path, runs), feeds, strict=True):
        for info, want in zip(model.graph.output, session.run(None, feed), strict=True):
            got = results[info.name]
            assert got["shape"] == list(want.shape)
            numbers = np.array([float(n) for n in got["data"]]).reshape(want.shape)
            np.testing.assert_allclose(numbers, want, rtol=1e-4, atol=1e-5)


def test_constants_spread_to_a_symbolic_size_are_made_in_every_run(tmp_path: Path) -> None:
    """Its inputs are constants, but its size is the run's."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3] x) => (float[n, 3] y)
        <float[3] c = {1, 2, 3}> { s = Shape(x)  e = Expand(c, s)  t = Exp(e)  m = Softmax(t)
                                   y = Add(x, m) }"""
    webmlc.build(onnx.parser.parse_model(text), tmp_path, target="wasm")
    model = webmlc.load(tmp_path, "wasm")
    row = np.exp(np.array([1, 2, 3], np.float64))
    row = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    for n in (2, 5, 1):
        np.testing.assert_allclose(
            model.run({"x": np.ones((n, 3), np.float32)})["y"], np.tile(1 + row, (n, 1)), rtol=1e-6
        )
    model.dispose()


def test_a_row_and_twice_as_many_broadcast(tmp_path: Path) -> None:
    """A size that is a multiple of another is the larger one, where the other is 1."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3] x) => (float[m, 3] y)
        <int64[2] twice = {2, 1}> { t = Tile(x, twice)  y = Add(t, x) }"""
    webmlc.build(onnx.parser.parse_model(text), tmp_path, target="wasm")
    model = webmlc.load(tmp_path, "wasm")
    x = np.array([[1, 2, 3]], np.float32)
    np.testing.assert_array_equal(model.run({"x": x})["y"], np.tile(2 * x, (2, 1)))
    model.dispose()


DEQUANTISED = """
    <uint8 q = {6}, uint8[2] qs = {4, 8}, float s = {0.5}, float zero = {0}, float five = {5},
     float three = {3}, int64 none = {0}, int64 one = {1}, int64[1] all = {-1}>
    { d = DequantizeLinear(q, s)  ds = DequantizeLinear(qs, s) """


@pytest.mark.parametrize(
    ("type_", "nodes"),
    [
        ("float[a]", "y = Range(zero, five, d)"),
        ("float[a]", "e = Mul(d, three)  y = Range(zero, five, e)"),
        ("int64[a]", "e = Cast <to = 7>(d)  y = Range(none, e, one)"),
        ("float[a, b]", "y = Resize(x, , ds)"),
        ("float[a]", "e = Cast <to = 7>(ds)  c = Expand(five, e)  z = Reshape(c, all)  y = Neg(z)"),
    ],
    ids=["step", "product", "end", "scales", "shape"],
)
def test_quantised_constants_decide_sizes(type_: str, nodes: str, tmp_path: Path) -> None:
    model = parse(f"g (float[2, 3] x) => ({type_} y) {DEQUANTISED} {nodes} }}")
    check(model, tmp_path, {"x": RNG.standard_normal((2, 3)).astype(np.float32)})


def test_sizes_that_kernels_compute_from_constants_are_bound_in_every_run(tmp_path: Path) -> None:
    """Regions of constants that are not finite have no bins that inference can count. The result
    of the finite region is defined.
    """
    model = parse(
        "g (float[1, 4, 5, 6] x) => (float[2, 4, 2, 3] y) <float[2, 5] r = "
        "{0, 0, 1, 4, 3, 0, 1, 0, 4, 4}> { y = MaxRoiPool <pooled_shape = [2, 3]>(x, r) }"
    )
    (regions,) = model.graph.initializer
    far = np.array([[0, 0, 1, 4, 3], [0, 1, 0, np.inf, 4]], np.float32)
    regions.CopyFrom(onnx.numpy_helper.from_array(far, "r"))
    webmlc.build(model, tmp_path)
    x = RNG.standard_normal((1, 4, 5, 6)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (want,) = session.run(None, {"x": x})
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)
        for _ in range(2):
            np.testing.assert_array_equal(loaded.run({"x": x})["y"][0], want[0])
        loaded.dispose()
