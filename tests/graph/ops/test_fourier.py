"""Fourier transforms in stages: which lengths have stages, and what the stages compute."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

import webmlc
from tests.against_onnxruntime import Device, parse
from webmlc.graph.ops.fourier import Transform
from webmlc.pipeline import shared_graph

RNG = np.random.default_rng(0)
DEVICES: tuple[Device, ...] = ("wasm", "webgpu")
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def spectrum(transform: Transform, signal: Array) -> Array:
    """What the stages compute of a signal [length, parts], by definition."""
    data, left, digits = signal.T, transform.length, list[int]()
    for stage in transform.stages():
        parts, radix, _, columns = stage.matrix.shape
        left //= radix
        data = data.reshape(parts, radix, left, math.prod(digits))
        if stage.factors is not None:
            data = np.einsum("pdfb,pqdb->qdfb", data, stage.factors)
        data = np.einsum("pdfb,pdqk->qfbk", data, stage.matrix)
        digits.append(columns)
    return data.reshape(2, *digits).T.reshape(-1, 2)[: transform.bins]


@pytest.mark.parametrize("length", [60, 128, 225, 400, 480, 512, 1000, 1023, 2048, 3 * 5 * 7 * 11])
@pytest.mark.parametrize("kind", ["real", "one-sided", "complex", "inverse"])
def test_stages_compute_the_spectrum(length: int, kind: str) -> None:
    parts, bins = {"real": (1, length), "one-sided": (1, length // 2 + 1)}.get(kind, (2, length))
    transform = Transform(length, parts, bins, kind == "inverse")
    signal = RNG.standard_normal((length, parts))
    values = signal @ [1, 1j][:parts]
    wanted = (np.fft.ifft if kind == "inverse" else np.fft.fft)(values)[:bins]
    result = spectrum(transform, signal) @ [1, 1j]
    assert math.prod(transform.radices) == length
    np.testing.assert_allclose(result, wanted, atol=1e-9 * np.abs(wanted).max())


def test_lengths_of_small_factors_have_stages() -> None:
    def radices(length: int) -> tuple[int, ...]:
        return Transform(length, 1, length // 2 + 1).radices

    assert all(len(radices(length)) > 1 for length in (256, 400, 480, 512, 882, 1024, 4096))
    assert radices(997) == (997,) and radices(16) == (16,)


def dft(shape: str, attributes: str = "onesided = 0", axis: int = -2) -> onnx.ModelProto:
    return parse(
        f"""g (float[{shape}] x) => (float[a, b, c] y) <int64 axis = {{{axis}}}> {{
        y = DFT <{attributes}> (x, , axis) }}""",
        20,
    )


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op for node in shared_graph(model).main.nodes]


CASES = {
    "one-sided": (dft("n, 256, 1", "onesided = 1"), (3, 256, 1)),
    "real": (dft("5, 400, 1"), (5, 400, 1)),
    "inverse": (dft("2, 480, 2", "inverse = 1"), (2, 480, 2)),
    "first axis": (dft("512, n, 2", axis=0), (512, 3, 2)),
    "four stages": (dft("2, 4096, 1", "onesided = 1"), (2, 4096, 1)),
}


def check(
    model: onnx.ModelProto, folder: Path, *runs: tuple[dict[str, np.ndarray], np.ndarray]
) -> None:
    """The results on both devices are as close to the wanted ones as one matrix would be."""
    assert "Einsum" in operators(model)
    webmlc.build(model, folder)
    for device in DEVICES:
        loaded = webmlc.load(folder, device=device)
        for feeds, wanted in runs:
            result = loaded.run(feeds)["y"]
            np.testing.assert_allclose(result, wanted, atol=2e-6 * np.abs(wanted).max())
        loaded.dispose()


@pytest.mark.parametrize("name", CASES)
def test_transforms_in_stages_are_right_on_both_devices(name: str, tmp_path: Path) -> None:
    """Numpy says what is right: onnxruntime errs by 2e-4 where a length is no power of two."""
    model, shape = CASES[name]
    x = RNG.standard_normal(shape).astype(np.float32)
    axis = 0 if name == "first axis" else 1
    values = x.astype(np.float64) @ [1, 1j][: shape[-1]]
    wanted = (np.fft.ifft if name == "inverse" else np.fft.fft)(values, axis=axis)
    if name in ("one-sided", "four stages"):
        wanted = wanted[:, : shape[1] // 2 + 1]
    check(model, tmp_path, ({"x": x}, np.stack([wanted.real, wanted.imag], -1)))


@pytest.mark.parametrize(
    ("kind", "samples"),
    [("real", "1000"), ("real", "n"), ("complex", "1000"), ("complex", "n"), ("no window", "n")],
)
def test_long_frames_are_transformed_in_stages(kind: str, samples: str, tmp_path: Path) -> None:
    parts, window_name = 1 if kind == "real" else 2, "" if kind == "no window" else "w"
    model = parse(
        f"""g (float[2, {samples}, {parts}] x, float[400] w) => (float[a, b, c, d] y)
        <int64 hop = {{160}}, int64 length = {{400}}> {{
        y = STFT <onesided = {int(parts == 1)}> (x, hop, {window_name}, length) }}""",
        17,
    )
    window = np.hanning(400).astype(np.float32)
    runs = []
    for count in (1000,) if samples == "1000" else (400, 1000):
        x = RNG.standard_normal((2, count, parts)).astype(np.float32)
        values = x.astype(np.float64) @ [1, 1j][:parts]
        frames = np.lib.stride_tricks.sliding_window_view(values, 400, 1)[:, ::160]
        wanted = np.fft.fft(frames * window if window_name else frames)
        wanted = wanted[..., :201] if parts == 1 else wanted
        runs.append(({"x": x, "w": window}, np.stack([wanted.real, wanted.imag], -1)))
    check(model, tmp_path, *runs)
