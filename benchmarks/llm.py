"""Measure a language model against llama.cpp (wllama) in one Chromium.

In: a GGUF file, by default that of the chat demo (SmolLM2-135M-Instruct Q4_1). Out: a table,
and with `--json` a file: load time, prefill and decode in tokens per second by context length, peak
memory of the page's process without files, and downloads of each engine; and the limits of the
machine in the same run: the bytes that as many threads read, and their floating-point operations.

Other work of the machine changes the figures of two threads most. A browser starts a scheduling
group of its own, so `nice` does not protect it, but `chrt -r 1` does (as root, on Linux).

    python benchmarks/llm.py --json benchmarks/llm_results.json
    python benchmarks/llm.py --model model.gguf --threads 1 --lengths 16,256 --rounds 1
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import webmlc
from benchmarks.limit import write_limit
from benchmarks.node_job import run_job
from benchmarks.results import commit
from demos.chat.run import fetch_model
from webmlc.target.wasm.assemble import assemble

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "llm"
WLLAMA = ROOT / "node_modules" / "@wllama" / "wllama" / "esm"
READ = """(module (memory (export "memory") 3201)
  (func (export "fill") (param $bytes i32)
    (memory.fill (i32.const 0) (i32.const 1) (local.get $bytes)))
  (func (export "run") (param $bytes i32) (result i32)
    (local $at i32) (local $a v128) (local $b v128)
    (loop $next
      (local.set $a (v128.or (local.get $a) (v128.load (local.get $at))))
      (local.set $b (v128.or (local.get $b) (v128.load offset=16 (local.get $at))))
      (local.set $a (v128.or (local.get $a) (v128.load offset=32 (local.get $at))))
      (local.set $b (v128.or (local.get $b) (v128.load offset=48 (local.get $at))))
      (local.set $at (i32.add (local.get $at) (i32.const 64)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $bytes))))
    (v128.any_true (v128.or (local.get $a) (local.get $b)))))"""
"""A loop that reads memory once, to measure its bandwidth."""
READ_BYTES = 200 << 20
"""What it reads: more than caches hold."""


def mounts(model: Path) -> dict[str, str]:
    """Build the package, and lay out what the pages need."""
    package = OUT / "package"
    webmlc.build(model, package, target="wasm")
    gguf, limits = OUT / "gguf", OUT / "limits"
    for folder in (gguf, limits):
        folder.mkdir(exist_ok=True)
    link = gguf / "model.gguf"
    link.unlink(missing_ok=True)
    link.symlink_to(model.resolve())
    (limits / "read.wasm").write_bytes(assemble(READ))
    sizes = {"bytes": READ_BYTES, "flops": write_limit(limits / "flops")}
    (limits / "limits.json").write_text(json.dumps(sizes))
    folders = {"/model/": package, "/gguf/": gguf, "/limits/": limits, "/wllama/": WLLAMA}
    folders |= {"/bench/": ROOT / "benchmarks" / "llm", "/page/": ROOT / "benchmarks" / "page"}
    return {prefix: str(folder) for prefix, folder in folders.items()}


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the results: medians of the rounds, downloads with and without the weights."""
    weights = (".gguf", ".safetensors")
    sizes = [(r["path"], r["bytes"]) for r in row["downloads"] if r["status"] == 200]
    return {
        "engine": row["engine"],
        "version": row["version"],
        "threads": row["threads"],
        "load_ms": round(row["load"]),
        "download": sum(size for _, size in sizes),
        "download_code": sum(size for path, size in sizes if not path.endswith(weights)),
        "memory": row["memory"],
        **{
            kind: {n: round(median(rates), 2) for n, rates in row[kind].items()}
            for kind in ("prefill", "decode")
        },
    }


def show(rows: list[dict[str, Any]], lengths: list[str]) -> None:
    """Print the table."""
    table = Table(title="tokens per second")
    columns = ("engine", "threads", "load ms", "code KB", "memory MB")
    kinds = [f"{kind} {n}" for kind in ("prefill", "decode") for n in lengths]
    for column in (*columns, *kinds):
        table.add_column(column, justify="right")
    for row in rows:
        rates = [row[kind][n] for kind in ("prefill", "decode") for n in lengths]
        sizes = (row["download_code"] // 1000, row["memory"] // 1_000_000)
        values = (row["engine"], row["threads"], row["load_ms"], *sizes, *rates)
        table.add_row(*map(str, values))
    Console(width=160).print(table)


def main(
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file.", show_default="that of demos/chat")
    ] = None,
    threads: str = "1,2",
    lengths: str = "16,256,1024",
    count: Annotated[int, typer.Option(help="Tokens of one measurement of decoding.")] = 32,
    rounds: int = 3,
    engines: str = "webmlc,wllama",
    as_json: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure a language model against llama.cpp in one Chromium."""
    path = model or fetch_model()
    job = {
        "mounts": mounts(path),
        "device": "wasm",
        "threads": [int(n) for n in threads.split(",")],
        "lengths": [int(n) for n in lengths.split(",")],
        "count": count,
        "rounds": rounds,
        "engines": engines.split(","),
    }
    result = run_job(ROOT / "benchmarks" / "llm" / "measure.mjs", job)
    rows = [summary(row) for row in result["rows"]]
    show(rows, lengths.split(","))
    limits = result["limits"]
    print(f"a blank page takes {result['blank'] / 1e6:.0f} MB of the memory")
    for count, limit in limits.items():
        print(f"threads: {count}; together they read {limit['bandwidth'] / 1e9:.1f} GB/s", end=" ")
        print(f"and compute {limit['flops'] / 1e9:.1f} GFLOPS of fused multiply-adds")
    if as_json is not None:
        data = {
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "model": path.name,
            "bytes": path.stat().st_size,
            "browser": result["browser"],
            "limits": limits,
            "blank_page": result["blank"],
            "rows": rows,
        }
        as_json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
