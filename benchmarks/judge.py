"""Check the demands on the measured figures.

In: results (`results.merge`). Out: a `Verdict` for every demand that the results can answer.

    for verdict in judge(results): print(verdict.demand, verdict.found, verdict.holds)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.results import Entry, Results, ratio, row_of

THREADS = (1, 2)
"""The numbers of threads that are compared."""
FRAME_MS = 33
"""The milliseconds between two frames of a camera, which gives 30 a second."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A demand, the figure that was measured (with the model it belongs to, if any), and
    whether the demand holds.
    """

    demand: str
    found: str
    holds: bool


def judge(results: Results) -> list[Verdict]:
    """All verdicts, in the order of the demands."""
    models: dict[str, Entry] = results["models"]
    return [
        *_ratios(models),
        *_shares(models),
        *_scaling(models),
        *_quantised(models),
        *_frames(models),
        *_resources(models),
    ]


def _at_least(demand: str, figure: float, least: float, where: str = "") -> Verdict:
    """The verdict on a figure that must have at least the value `least`."""
    return Verdict(f"{demand} ≥ {least:g}", f"{figure:.2f}{where}", figure >= least)


def _ratios(models: dict[str, Entry]) -> Iterator[Verdict]:
    """The latency of ONNX Runtime Web over that of webmlc."""
    for variant, threads, mean, lowest in (
        (None, 1, 3.0, 1.5),
        ("simd128", 1, 1.8, None),
        (None, 2, 3.0, 1.5),
    ):
        ratios = {
            name: value
            for name, entry in models.items()
            if entry["judged"] and (value := ratio(entry, threads, variant)) is not None
        }
        if not ratios:
            continue
        title = f"{variant or 'relaxed'}, {threads} thread(s): times ONNX Runtime Web"
        count = f" ({len(ratios)} models)"
        yield _at_least(f"{title}, geometric mean", geometric_mean(ratios.values()), mean, count)
        if lowest is not None:
            worst = min(ratios, key=lambda name: ratios[name])
            yield _at_least(f"{title}, lowest", ratios[worst], lowest, f" ({worst})")
        if (variant, threads) == (None, 1):
            for name, least in (("resnet18", 4.0), ("vgg19", 4.0), ("resnet50", 2.5)):
                if name in ratios:
                    yield _at_least(f"{title}, {name}", ratios[name], least)


def _shares(models: dict[str, Entry]) -> Iterator[Verdict]:
    """The GFLOPS of kernels over the measured limit."""
    if "matmul" in models and models["matmul"].get("kernels"):
        share = models["matmul"]["kernels"][0]["share"]
        yield _at_least("MatMul 1024³, share of the limit", share, 0.9)
    if "resnet50" in models and models["resnet50"].get("convolutions"):
        share = models["resnet50"]["convolutions"]["share"]
        yield _at_least("ResNet-50's convolutions together, share of the limit", share, 0.85)


def _scaling(models: dict[str, Entry]) -> Iterator[Verdict]:
    """The latency with one thread over that with two."""
    for name in ("resnet50", "minilm_l6"):
        if name in models:
            single, double = (row_of(models[name], "webmlc", n) for n in THREADS)
            if single and double:
                yield _at_least(f"{name}: two threads over one", single["ms"] / double["ms"], 1.75)


def _quantised(models: dict[str, Entry]) -> Iterator[Verdict]:
    """Quantised models, against ONNX Runtime Web and against our own float models."""
    for name in ("maui_test_model", "micro_kws_qdq"):
        if name in models and (figure := ratio(models[name], 1)) is not None:
            yield _at_least(f"{name} (quantised): times ONNX Runtime Web", figure, 1.5)
    twins = [models.get(name) for name in ("micro_kws_fp32", "micro_kws_qdq")]
    rows = [row_of(entry, "webmlc", 1) if entry else None for entry in twins]
    if rows[0] and rows[1]:
        figure = rows[0]["ms"] / rows[1]["ms"]
        yield _at_least("micro_kws: floats over quantised", figure, 1.0)


def _frames(models: dict[str, Entry]) -> Iterator[Verdict]:
    """The latency of LiteRT.js over webmlc's on frames of a camera, every 33 ms."""
    for threads, least in ((1, 2.0), (2, 2.3)):
        figures = (ratio(e, threads, None, "litert", FRAME_MS) for e in models.values())
        ratios = [figure for figure in figures if figure is not None]
        if ratios:
            title = f"{threads} thread(s), every {FRAME_MS} ms: times LiteRT.js, geometric mean"
            yield _at_least(title, geometric_mean(ratios), least, f" ({len(ratios)} models)")


def _resources(models: dict[str, Entry]) -> Iterator[Verdict]:
    """The time to the first result, downloads and memory, each of the model where it is worst."""
    measures: tuple[tuple[str, str, float, Callable[[dict, dict], float | None]], ...] = (  # type: ignore[type-arg]
        ("navigation to first result over ONNX Runtime Web's", "", 0.5, _of("first_ms")),
        ("download besides weights", " KB", 300, lambda a, _: (a["download"] - a["weights"]) / 1e3),
        ("peak memory over ONNX Runtime Web's", "", 1.0, _of("memory")),
    )
    for title, unit, limit, measure in measures:
        worst, place = -math.inf, ""
        for name, entry in models.items():
            for threads in THREADS:
                ours = row_of(entry, "webmlc", threads)
                peer = row_of(entry, "onnxruntime", threads)
                value = measure(ours, peer) if ours and peer else None
                if value is not None and value > worst:
                    worst, place = value, f"{name}, {threads} thread(s)"
        if place:
            figure = f"{worst:.2f}{unit} ({place})"
            yield Verdict(f"{title}, highest ≤ {limit:g}{unit}", figure, worst <= limit)


def _of(key: str) -> Callable[[dict, dict], float | None]:  # type: ignore[type-arg]
    """The ratio of one figure of two rows, or None where one of them has no such figure."""
    return lambda a, b: a[key] / b[key] if a[key] and b[key] else None
