"""The benchmark turns measurements into shares, demands, the merged file and the chart."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.chart import chart
from benchmarks.judge import judge
from benchmarks.models import Ready
from benchmarks.results import Entry, Row, entry_of, merge, ratio, row_of
from benchmarks.run import Conditions, groups_of

WHERE = {"cpu": "a", "cores": 2, "browser": "Chromium 1", "onnxruntime": "1"}
LIMIT = 50.0


def row(engine: str, threads: int, ms: float, variant: str | None = None) -> Row:
    """A row of measure.mjs."""
    found: Row = {"device": "wasm", "threads": threads, "engine": engine, "latencies": [ms] * 3}
    found |= {"load": [10, 30, 20], "first": [40, 60, 50], "error": 1e-6, "memory": 1000}
    found |= {"bytes": 5000, "weights": 4000}
    return found if variant is None else found | {"variant": variant}


def entry(ratio: float) -> Entry:
    """A model of two steps: 3 ms that convolve 0.1 GFLOP, computed with half of the operations,
    and 1 ms that does not.
    """
    rows = [row("webmlc", n, 4.0 / n, "relaxed") for n in (1, 2)]
    rows += [row("webmlc", n, 8.0 / n, "simd128") for n in (1, 2)]
    rows += [row("onnxruntime", n, ratio * 4.0 / n) for n in (1, 2)]
    step = {"kernel": "conv", "device": "wasm", "origin": ["c", "relu"], "milliseconds": [3, 3, 9]}
    other = {"kernel": "pool", "device": "wasm", "origin": ["p"], "milliseconds": [1, 1, 1]}
    rows[0]["profile"] = [step, other]
    works = {"wasm": [(50_000_000, 800, 400), (1_000_000, 10, 10)]}
    ready = Ready("m", 1.0, ["onnxruntime"], works, {"c": 100_000_000})
    return entry_of(ready, rows, LIMIT, native=2.0, runs=3, judged=True)


def test_steps_and_convolutions_are_shares_of_the_limit() -> None:
    made = entry(2.0)
    first, second = made["kernels"]
    assert (first["kernel"], first["ms"], first["gflops"]) == ("conv", 3, 16.7)
    assert first["share"] == pytest.approx(50 / 3 / LIMIT, abs=1e-3)
    assert (second["gflops"], second["bytes_moved"]) == (1.0, 10)
    assert made["convolutions"] == {"ms": 3, "gflops": 33.3, "share": 0.667}
    assert made["rows"][0]["load_ms"] == 20


def test_entries_replace_those_of_their_model_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    merge(path, WHERE, {"b": entry(2.0), "a": entry(3.0)})
    results = merge(path, WHERE, {"a": entry(4.0)})
    assert json.loads(path.read_text()) == json.loads(json.dumps(results))
    assert list(results["models"]) == ["a", "b"]
    assert results["models"]["a"] == entry(4.0)
    with pytest.raises(ValueError, match="another machine"):
        merge(path, {**WHERE, "cpu": "b"}, {"a": entry(4.0)})


def test_demands_are_judged_where_they_are_worst(tmp_path: Path) -> None:
    found = {"resnet50": entry(2.0), "resnet18": entry(8.0)}
    verdicts = {v.demand: v for v in judge(merge(None, WHERE, found))}

    def verdict(part: str) -> tuple[bool, str]:
        (one,) = (v for demand, v in verdicts.items() if part in demand)
        return one.holds, one.found

    assert verdict("relaxed, 1 thread(s): times ONNX Runtime Web, geometric") == (
        True,
        "4.00 (2 models)",
    )
    assert verdict("relaxed, 1 thread(s): times ONNX Runtime Web, lowest") == (
        True,
        "2.00 (resnet50)",
    )
    assert verdict("resnet50 ≥ 2.5") == (False, "2.00")
    assert verdict("convolutions together") == (False, "0.67")
    assert verdict("resnet50: two threads") == (True, "2.00")
    assert verdict("first result")[0] is False
    assert verdict("download") == (True, "1.00 KB (resnet18, 1 thread(s))")
    assert verdict("simd128") == (True, "2.00 (2 models)")
    assert not any("micro" in demand for demand in verdicts)


def test_the_chart_has_a_bar_for_every_ratio_best_model_first() -> None:
    text = chart(merge(None, WHERE, {"slow": entry(1.5), "fast<": entry(6.0)}))
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    bars = [r for r in root.iter(f"{space}rect") if r.get("class", "").startswith("bar")]
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert widths[:2] == [pytest.approx(4 * w, abs=0.5) for w in widths[2:]]
    names = [t.text for t in root.iter(f"{space}text") if t.get("text-anchor") == "end"]
    assert names == ["fast<", "slow"]


def test_frames_are_compared_with_frames() -> None:
    """Series with an interval are no measurements in turns, and the interval 0 is a loop."""
    rows = [row("webmlc", n, 4.0) for n in (1, 2)]
    for interval, ms in ((33, 9.0), (0, 20.0)):
        series = [row(engine, 1, ms * n) for n, engine in enumerate(("webmlc", "litert"), start=1)]
        rows += [{**row_, "interval": interval} for row_ in series]
    ready = Ready("m", 1.0, ["litert"], {}, {})
    entry_ = entry_of(ready, rows, LIMIT, native=2.0, runs=3, judged=False)
    assert row_of(entry_, "webmlc", 1) == entry_["rows"][0]
    assert [ratio(entry_, 1, engine="litert", interval=n) for n in (None, 33, 0)] == [None, 2, 2]
    (verdict,) = (v for v in judge(merge(None, WHERE, {"m": entry_})) if "LiteRT" in v.demand)
    assert (verdict.holds, verdict.found) == (True, "2.00 (1 models)")


def test_groups_have_the_peers_that_can_run_the_model() -> None:
    ready = Ready("m", 1.0, ["onnxruntime", "litert"], {}, {})
    (series, loop) = groups_of(ready, False, Conditions(["wasm"], [2], ["litert", "tfjs"], [33, 0]))
    assert series["engines"] == [{"engine": "webmlc"}, {"engine": "litert"}]
    assert (series["interval"], loop["interval"], loop["threads"]) == (33, 0, 2)
    (turns,) = groups_of(ready, True, Conditions(["wasm"], [1], ["onnxruntime"], []))
    assert "interval" not in turns
    assert [e["engine"] for e in turns["engines"]] == ["webmlc", "webmlc", "onnxruntime"]
