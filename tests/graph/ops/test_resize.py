"""Resize whose sizes, scales or region only a run knows: on both devices, against onnxruntime and
`onnx.reference`, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import webmlc
from tests.against_onnxruntime import ERRORS_ONLY
from tests.node import as_tensors, in_node
from webmlc.core.errors import UnsupportedError

SHAPES = [
    ((4, 5), (8, 10)), ((4, 5), (7, 3)), ((6, 8), (3, 4)), ((3, 3), (1, 9)), ((5, 7), (5, 7)),
    ((9, 11), (2, 3)), ((1, 2), (4, 1)),
]  # fmt: skip
"""Sizes before and after."""

FILTERS = [
    'mode = "nearest"',
    'mode = "nearest", nearest_mode = "ceil"',
    'mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"',
    'mode = "nearest", nearest_mode = "round_prefer_ceil"',
    'mode = "linear"',
    'mode = "linear", coordinate_transformation_mode = "align_corners"',
    'mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"',
    'mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"',
    'mode = "linear", antialias = 1',
    'mode = "cubic"',
    'mode = "cubic", coordinate_transformation_mode = "align_corners"',
    'mode = "cubic", coordinate_transformation_mode = "asymmetric", cubic_coeff_a = -0.5',
    'mode = "cubic", antialias = 1',
    'mode = "cubic", exclude_outside = 1',
]


def parse(text: str, opset: int = 19) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]>\n{text}')


def image(size: tuple[int, int], dtype: Any = np.float32) -> Any:
    x = np.random.default_rng(0).standard_normal((1, 2, *size))
    return (x * 20 + 128).astype(dtype) if dtype is np.uint8 else x.astype(dtype)


def scales_of(before: tuple[int, int], after: tuple[int, int]) -> Any:
    return (np.float32((1, 2, *after)) / np.float32((1, 2, *before))).astype(np.float32)


def expected(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """onnxruntime's result; that of `onnx.reference` where onnxruntime has none."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]
    except onnxruntime.capi.onnxruntime_pybind11_state.OnnxRuntimeException:
        return ReferenceEvaluator(model).run(None, feeds)[0]


def check(model: onnx.ModelProto, folder: Path, *runs: dict[str, Any], atol: float = 1e-4) -> None:
    webmlc.build(model, folder)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(folder, device=device)  # type: ignore[arg-type]
        for feeds in runs:
            want, got = expected(model, feeds), loaded.run(feeds)["y"]
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=1e-4, atol=atol
            )
        loaded.dispose()


@pytest.mark.parametrize("attributes", FILTERS)
def test_sizes_that_are_an_input(tmp_path: Path, attributes: str) -> None:
    model = parse(f"""g (float[n, 2, height, width] x, int64[4] s) => (float[a, b, c, d] y) {{
        y = Resize<{attributes}>(x, , , s) }}""")
    runs = [{"x": image(b), "s": np.array((1, 2, *a), np.int64)} for b, a in SHAPES]
    check(model, tmp_path, *runs)


@pytest.mark.parametrize("attributes", FILTERS)
def test_scales_that_are_an_input(tmp_path: Path, attributes: str) -> None:
    model = parse(f"""g (float[n, 2, height, width] x, float[4] s) => (float[a, b, c, d] y) {{
        y = Resize<{attributes}>(x, , s) }}""")
    check(model, tmp_path, *({"x": image(b), "s": scales_of(b, a)} for b, a in SHAPES))


@pytest.mark.parametrize("attributes", ['mode = "nearest"', 'mode = "linear"', 'mode = "cubic"'])
def test_sizes_of_another_image(tmp_path: Path, attributes: str) -> None:
    """They are known as expressions of symbols: nothing is read during a run."""
    model = parse(f"""g (float[n, 2, height, width] x, float[1, 1, h, w] like)
        => (float[a, b, c, d] y) <int64[1] two = {{2}}, int64[1] four = {{4}}> {{
        l = Shape(like)  s = Slice(l, two, four)
        y = Resize<{attributes}, axes = [2, 3]>(x, , , s) }}""")
    runs = [{"x": image(b), "like": np.zeros((1, 1, *a), np.float32)} for b, a in SHAPES]
    check(model, tmp_path, *runs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_that_a_run_computes(tmp_path: Path, mode: str) -> None:
    """To a longer side of 12, as detectors do: floats of data, and of symbols."""
    model = parse(
        f"""g (float[1, 2, height, width] x, int64 longest) => (float[a, b, c, d] y)
        <int64[1] two = {{2}}, int64[1] four = {{4}}, float[2] ones = {{1, 1}}> {{
        l = Shape(x)  hw = Slice(l, two, four)  longer = ReduceMax<keepdims = 1>(hw)
        f = Cast<to = 1>(longer)  g = Cast<to = 1>(longest)  r = Div(g, f)
        s = Concat<axis = 0>(ones, r, r)
        y = Resize<mode = "{mode}">(x, , s) }}""",
        18,
    )
    runs = [{"x": image(b), "longest": np.array(n, np.int64)} for b, _ in SHAPES for n in (3, 12)]
    check(model, tmp_path, *runs)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes_that_keep_the_aspect_ratio(tmp_path: Path, policy: str, mode: str) -> None:
    model = parse(f"""g (float[n, 2, height, width] x, int64[2] s) => (float[a, b, c, d] y) {{
        y = Resize<mode = "{mode}", keep_aspect_ratio_policy = "{policy}", axes = [2, 3]>(x, , , s)
        }}""")
    runs = [{"x": image(b), "s": np.array(a, np.int64)} for b, a in SHAPES]
    check(model, tmp_path, *runs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("region", [True, False])
def test_regions_are_cropped(tmp_path: Path, mode: str, region: bool) -> None:
    """The region is an input, or a constant; positions outside the image are filled."""
    roi = "r" if region else "k"
    inputs = "float[4] r, " if region else ""
    model = parse(f"""g (float[n, 2, height, width] x, {inputs}int64[2] s) => (float[a, b, c, d] y)
        <float[4] k = {{0.213, -0.337, 0.871, 1.419}}> {{
        y = Resize<mode = "{mode}", coordinate_transformation_mode = "tf_crop_and_resize",
            extrapolation_value = 10.0, axes = [2, 3]>(x, {roi}, , s) }}""")
    runs: list[dict[str, Any]] = [
        {"x": image(b), "s": np.array(a, np.int64)} for b, a in SHAPES if 1 not in (*a, *b)
    ]
    if region:
        runs = [{**feeds, "r": np.float32([0.213, -0.337, 0.871, 1.419])} for feeds in runs]
    webmlc.build(model, tmp_path)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)  # type: ignore[arg-type]
        for feeds in runs:
            want = ReferenceEvaluator(model).run(None, feeds)[0]
            np.testing.assert_allclose(loaded.run(feeds)["y"], want, rtol=1e-4, atol=1e-4)
        loaded.dispose()


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_bytes_are_rounded(tmp_path: Path, mode: str) -> None:
    """A run's sizes give what sizes known at build time give."""
    text = """g (uint8[1, 2, 5, 7] x{}) => (uint8[a, b, c, d] y) {} {{
        y = Resize<mode = "{}">(x, , , s) }}"""
    x = image((5, 7), np.uint8)
    webmlc.build(parse(text.format(", int64[4] s", "", mode)), tmp_path / "run")
    constant = "<int64[4] s = {1, 2, 8, 4}>"
    webmlc.build(parse(text.format("", constant, mode)), tmp_path / "build", target="wasm")
    known = webmlc.load(tmp_path / "build").run({"x": x})["y"].astype(int)
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path / "run", device=device)  # type: ignore[arg-type]
        result = loaded.run({"x": x, "s": np.array([1, 2, 8, 4])})["y"].astype(int)
        assert np.abs(result - known).max() <= (0 if mode == "nearest" else 1)
        loaded.dispose()


def test_inputs_of_no_elements_stand_for_none(tmp_path: Path) -> None:
    """As opsets 11 and 12 have them."""
    model = parse(
        """g (float[1, 2, height, width] x, int64[4] s) => (float[a, b, c, d] y)
        <float[0] none = {}> { y = Resize<mode = "cubic">(x, none, none, s) }""",
        11,
    )
    runs = [{"x": image(b), "s": np.array((1, 2, *a), np.int64)} for b, a in SHAPES]
    check(model, tmp_path, *runs)


def test_the_javascript_runtime_resizes(tmp_path: Path) -> None:
    model = parse("""g (float[n, 2, height, width] x, float[4] s, int64[4] t)
        => (float[a, b, c, d] y, float[e, f, g, h] z) {
        y = Resize<mode = "linear">(x, , s)
        z = Resize<mode = "cubic", antialias = 1>(x, , , t) }""")
    webmlc.build(model, tmp_path, target="wasm")
    feeds = [
        {"x": image(b), "s": scales_of(b, a), "t": np.array((1, 2, *a), np.int64)}
        for b, a in SHAPES
    ]
    loaded = webmlc.load(tmp_path)
    results = in_node(tmp_path, [as_tensors(feed) for feed in feeds])
    for feed, result in zip(feeds, results, strict=True):
        for name, want in loaded.run(feed).items():
            assert result[name]["shape"] == list(want.shape)
            numbers = np.array(result[name]["data"], np.float64).reshape(want.shape)
            np.testing.assert_allclose(numbers, want, rtol=1e-6, atol=1e-6)
    loaded.dispose()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ('mode = "sinc"', "mode 'sinc'"),
        ('coordinate_transformation_mode = "polar"', "coordinate_transformation_mode 'polar'"),
    ],
)
def test_unknown_modes_are_refused(tmp_path: Path, attributes: str, message: str) -> None:
    model = parse(f"""g (float[1, 2, height, width] x, int64[4] s) => (float[a, b, c, d] y) {{
        y = Resize<{attributes}>(x, , , s) }}""")
    with pytest.raises(UnsupportedError, match=message):
        webmlc.build(model, tmp_path)
