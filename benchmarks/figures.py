"""Write the measured figures into README and the documentation.

In: `results.json`, which `run.py` writes, `llm_results.json` (`llm.py`) and `llm_accuracy.json`
(`llm_accuracy.py`). Out: the text between the markers of `DOCUMENTS`, and the chart
`docs/measured.svg`. `make bench` ends with this script, and `tests/benchmarks/test_figures.py`
compares.

    <!-- figures: summary. Written by `python -m benchmarks.figures`. -->
    Measured on 2026-11-23 at commit bca6fdd4, ...
    <!-- end of figures -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.chart import chart
from benchmarks.results import Entry, Row, ratio, row_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
CHART = ROOT / "docs" / "measured.svg"
BEGIN = "<!-- figures: {name}. Written by `python -m benchmarks.figures`. -->"
END = "<!-- end of figures -->"
SECTION = re.compile(
    re.escape(BEGIN).replace(r"\{name\}", r"(\w+)") + r"\n(.*?)" + re.escape(END), re.DOTALL
)
THREADS = (1, 2)

TITLES: Mapping[str, str] = {
    "digits": "Digits, the demo's model",
    "matmul": "MatMul 1024³",
    "squeezenet": "SqueezeNet",
    "mobilenet_v2": "MobileNetV2",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "vgg19": "VGG-19",
    "efficientnet_b0": "EfficientNet-B0",
    "yolox_nano": "YOLOX-nano",
    "minilm_l6": "MiniLM, 128 tokens",
    "maui_test_model": "MAUI's test model, int8 (QDQ)",
}
"""The models that README shows, in this order, and their titles."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The contents of the three files."""

    results: Mapping[str, Any]
    language: Mapping[str, Any]
    accuracy: Mapping[str, Any]

    @property
    def models(self) -> Mapping[str, Entry]:
        """The entries of all models, by name."""
        models: Mapping[str, Entry] = self.results["models"]
        return models


def read_figures(folder: Path = FOLDER) -> Figures:
    """The figures in the folder's files."""
    names = ("results.json", "llm_results.json", "llm_accuracy.json")
    return Figures(*(json.loads((folder / name).read_text("utf-8")) for name in names))


def caption(figures: Figures, models: Iterable[str]) -> str:
    """When, at which commit and on what the models were measured."""
    entries = [figures.models[name] for name in models]
    times = sorted({f"{e['date']} at commit {e['commit']}" for e in entries})
    runs = sorted({str(e["runs"]) for e in entries})
    results = figures.results
    return (
        f"Measured on {', '.join(times)}: {results['cpu']}, {results['cores']} cores, "
        f"{results['browser']}, medians of {' or '.join(runs)} runs."
    )


def summary(figures: Figures) -> str:
    """README's table: the speed relative to each peer, and the downloads besides weights."""
    names = [name for name in TITLES if name in figures.models]
    rows = [_summary_row(TITLES[name], figures.models[name]) for name in names]
    judged = [entry for entry in figures.models.values() if entry["judged"]]
    means = [geometric_mean(filter(None, (ratio(e, n) for e in judged))) for n in THREADS]
    mean = " / ".join(f"{value:.1f}" for value in means)
    rows.append((f"**geometric mean of {len(judged)} models**", f"**{mean}**", "", ""))
    head = (
        "CPU, 1 / 2 threads",
        f"times as fast as {_version(figures, 'onnxruntime', 'ONNX Runtime Web')}",
        f"as {_version(figures, 'tfjs', 'TF.js')}",
        "download besides weights: webmlc / ONNX Runtime Web",
    )
    return f"{caption(figures, names)}\n\n{_table(head, rows)}"


def _summary_row(title: str, entry: Entry) -> tuple[str, ...]:
    rows = [row_of(entry, engine, 1) for engine in ("webmlc", "onnxruntime")]
    sizes = [_bytes(row["download"] - row["weights"]) if row else "failed" for row in rows]
    return (title, _ratios(entry, "onnxruntime"), _ratios(entry, "tfjs"), " / ".join(sizes))


def claims(figures: Figures) -> str:
    """Two sentences for the first page of the documentation."""
    shown = [figures.models[name] for name in TITLES if name in figures.models]
    ratios = [value for e in shown for n in THREADS if (value := ratio(e, n)) is not None]
    ours = [row for e in shown if (row := row_of(e, "webmlc", 1))]
    peers = [row for e in shown if (row := row_of(e, "onnxruntime", 1))]
    sizes = sorted(row["download"] - row["weights"] for row in ours)
    least = min(row["download"] - row["weights"] for row in peers)
    return (
        f"In the same Chromium and on the same CPU, {len(shown)} models ran {min(ratios):.1f} to "
        f"{max(ratios):.1f} times as fast as with ONNX Runtime Web. A page\ndownloads "
        f"{_bytes(sizes[0])} to {_bytes(sizes[-1])} besides the weights, and {_bytes(least)} or "
        "more with ONNX Runtime Web. [Measurements](measured.md) has every model,\nthe date, the "
        "commit, the machine and the command that measures again."
    )


def models_table(figures: Figures) -> str:
    """Every model: latencies of all engines, the time to the first result, downloads and memory."""
    head = (
        "model",
        "webmlc, ms",
        "ONNX Runtime Web, ms",
        "ratio",
        "TF.js, ms",
        "first result, ms: webmlc / peer",
        "download besides weights",
        "peak memory, MB: webmlc / peer",
        "error",
    )
    rows = []
    for name, entry in sorted(figures.models.items()):
        ours, peer = (row_of(entry, engine, 1) for engine in ("webmlc", "onnxruntime"))
        pair = [row for row in (ours, peer) if row]
        rows.append(
            (
                name,
                _latencies(entry, "webmlc"),
                _latencies(entry, "onnxruntime"),
                _ratios(entry, "onnxruntime"),
                _latencies(entry, "tfjs"),
                " / ".join(str(row["first_ms"]) for row in pair),
                " / ".join(_bytes(row["download"] - row["weights"]) for row in pair),
                " / ".join(f"{row['memory'] / 1e6:.0f}" for row in pair if row["memory"]),
                f"{ours['error']:.0e}" if ours else "failed",
            )
        )
    return f"{caption(figures, figures.models)}\n\n{_table(head, rows)}"


def language(figures: Figures) -> str:
    """The language model against llama.cpp: tokens per second, load time, downloads, memory."""
    data = figures.language
    lengths = list(data["rows"][0]["decode"])
    kinds = [(kind, n) for kind in ("prefill", "decode") for n in lengths]
    head = (
        "engine",
        "threads",
        *(f"{kind} at {n}" for kind, n in kinds),
        "load, ms",
        "download besides weights",
        "memory, MB",
    )
    rows = [
        (
            {"wllama": f"wllama ({row['version']})"}.get(row["engine"], row["engine"]),
            str(row["threads"]),
            *(f"{row[kind][n]:.0f}" for kind, n in kinds),
            str(row["load_ms"]),
            _bytes(row["download_code"]),
            f"{row['memory'] / 1e6:.0f}",
        )
        for row in data["rows"]
    ]
    where = f"{data['model']}, {data['browser']}, tokens per second at a context of so many tokens"
    when = f"Measured on {data['date']} at commit {data['commit']}"
    return f"{when}: {where}.\n\n{_table(head, rows)}"


def accuracy(figures: Figures) -> str:
    """How far builds of the language model are from the reference."""
    data = figures.accuracy
    head = ("build", "perplexity", "difference of the logarithms", "equal greedy texts")
    rows = [("reference", f"{data['perplexity']:.3f}", "", "")]
    for build in data["builds"]:
        texts = build["equal_texts"]
        count = texts + len(build["differences"])
        error = f"{build['difference']:.4f} ± {build['standard_error']:.4f}"
        texts_of = f"{texts} of {count}"
        rows.append((build["build"], f"{build['perplexity']:.3f}", error, texts_of))
    where = f"{data['model']}, {data['tokens']} tokens; the reference is {data['reference']}"
    when = f"Measured on {data['date']} at commit {data['commit']}"
    return f"{when}: {where}.\n\n{_table(head, rows)}"


def _version(figures: Figures, engine: str, title: str) -> str:
    """The title of a peer with the version that was measured."""
    rows: list[Row] = [row for entry in figures.models.values() for row in entry["rows"]]
    versions = sorted({r["version"] for r in rows if r["engine"] == engine and r.get("version")})
    return " ".join([title, *versions])


def _latencies(entry: Entry, engine: str) -> str:
    """The milliseconds with one thread and with two."""
    rows = [row_of(entry, engine, n) for n in THREADS]
    return " / ".join(f"{row['ms']:.3g}" for row in rows if row)


def _ratios(entry: Entry, engine: str) -> str:
    """A peer's latency over webmlc's, with one thread and with two."""
    ratios = [ratio(entry, n, engine=engine) for n in THREADS]
    return " / ".join(f"{value:.1f}" for value in ratios if value is not None)


def _bytes(count: int) -> str:
    """Bytes in KB below a megabyte, else in MB."""
    return f"{count / 1e3:.0f} KB" if count < 1_000_000 else f"{count / 1e6:.1f} MB"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


SECTIONS: Mapping[str, Callable[[Figures], str]] = {
    "summary": summary,
    "claims": claims,
    "models": models_table,
    "language": language,
    "accuracy": accuracy,
}
"""The text of each section of figures, by its name in the markers."""

DOCUMENTS = tuple(ROOT / name for name in ("README.md", "docs/README.md", "docs/measured.md"))
"""The documents that have sections of figures."""


def filled(document: str, figures: Figures) -> str:
    """A document with its figures written again. Raises `KeyError` for an unknown section."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return f"{BEGIN.format(name=name)}\n\n{SECTIONS[name](figures)}\n\n{END}"

    return SECTION.sub(fill, document)


def main() -> None:
    """Write all figures again."""
    figures = read_figures()
    for path in DOCUMENTS:
        path.write_text(filled(path.read_text("utf-8"), figures), "utf-8")
    CHART.write_text(chart(dict(figures.results)), "utf-8")


if __name__ == "__main__":
    main()
