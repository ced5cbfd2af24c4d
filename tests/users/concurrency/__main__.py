"""Run one model from several threads, and compare every result."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from functools import partial
from time import perf_counter

import webmlc
from tests.users.concurrency.model import CLASSIFIER, Case
from tests.users.concurrency.threads import at_once
from webmlc.host.load import Model

SIZES = (1, 2, 3, 4, 7, 8, 16, 33)
"""The batch sizes that each thread runs by turns."""


def main() -> int:
    """Print the seconds and the numbers of results; return 1 if one is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--device", default="wasm")
    parser.add_argument("--model-threads", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        webmlc.build(CLASSIFIER, folder)
        model = webmlc.load(folder, arguments.device, arguments.model_threads)
        threads, runs = arguments.threads, arguments.runs // arguments.threads
        start = perf_counter()
        tallies = at_once([partial(tally, model, runs, i) for i in range(threads)], 1e6)
        seconds = perf_counter() - start
    total = sum(tallies, Counter())
    print(f"{sum(total.values())} runs from {threads} threads in {seconds:.1f} s: {dict(total)}")
    return int(set(total) != {"right"})


def tally(model: Model, runs: int, seed: int) -> Counter[str]:
    """Count what the runs of one thread result in."""
    cases = [Case(model, seed * 100 + i, rows) for i, rows in enumerate(SIZES)]
    results: Counter[str] = Counter()
    for number in range(runs):
        try:
            results["right" if cases[number % len(cases)].is_right(model) else "wrong"] += 1
        except Exception as error:
            results[type(error).__name__] += 1
    return results


if __name__ == "__main__":
    sys.exit(main())
