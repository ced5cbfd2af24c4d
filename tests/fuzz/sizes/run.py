"""Differential fuzzing over run-time sizes, indices and numbers, against onnxruntime.

    python -m tests.fuzz.sizes.run --cases 5000 --seed 1 [--start 400] [--operator Gather]
    python -m tests.fuzz.sizes.run --seed 1 --only 417        # one graph again, printed whole

A case is one run of one graph with inputs of its own; RUNS of them share a package, which is built
once with symbolic sizes. Ways: wasm (wasmtime), webgpu (wgpu-py), node (the JavaScript runtime).
Every run is in the debug mode with red zones. A failing case is printed as ONNX text with its
inputs. Exit code 1 where there was any.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict

from tests.fuzz.sizes.check import Bench, Checked
from tests.fuzz.sizes.devices import WAYS, Way
from tests.fuzz.sizes.draw import draw_subject, text_of
from tests.fuzz.sizes.verdict import describe

PROGRESS = 20
"""Graphs after which the number of cases so far is written to stderr."""


class Summary:
    """Counts of verdicts by way, and of the operators behind them."""

    def __init__(self) -> None:
        self.counts: defaultdict[Way, Counter[str]] = defaultdict(Counter)
        self.by_operator: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.skipped: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()

    def add(self, checked: Checked) -> None:
        """Count a graph."""
        if checked.model is None:
            self.skipped[checked.skipped.split(":")[0]] += 1
            return
        self.operators.update(n.op_type for n in checked.model.graph.node)
        for way, verdicts in checked.verdicts.items():
            for verdict in verdicts:
                self.counts[way][verdict.kind] += 1
                if verdict.operator:
                    self.by_operator[verdict.kind][verdict.operator] += 1

    def cases(self) -> int:
        """Cases of the way that has the fewest."""
        return min((counts.total() for counts in self.counts.values()), default=0)

    def print(self) -> None:
        """All counts."""
        for way, counts in self.counts.items():
            kinds = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
            print(f"{way}: {counts.total()} cases: {kinds}")
        for kind, operators in self.by_operator.items():
            print(f"{kind}: {', '.join(f'{o} {n}' for o, n in operators.most_common())}")
        print(f"{len(self.operators)} operators; graphs left out: {dict(self.skipped)}")


def report(number: int, seed: int, checked: Checked, seen: Counter[tuple[str, str]]) -> None:
    """Print the bugs of a graph, whole where they are the first of their kind."""
    for way, verdicts in checked.verdicts.items():
        for at, verdict in enumerate(verdicts):
            if not verdict.is_bug or checked.model is None:
                continue
            key = (verdict.kind, verdict.operator)
            seen[key] += 1
            feeds = checked.runs[at]
            print(
                f"\n=== {verdict.kind} {verdict.operator} on {way} (--seed {seed} --only {number})"
            )
            print(verdict.message)
            print(text_of(checked.model, feeds) if seen[key] <= 1 else describe(feeds), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", action="append", choices=WAYS, default=[])
    parser.add_argument("--cases", type=int, default=5000, help="runs on each device")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="the graph to begin with")
    parser.add_argument("--only", type=int, help="this graph alone")
    parser.add_argument("--operator", action="append", default=[], help="only this; repeatable")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--verbose", action="store_true", help="print why graphs are left out")
    arguments = parser.parse_args()
    bench = Bench(tuple(arguments.device) or WAYS)
    summary, seen = Summary(), Counter[tuple[str, str]]()
    number = arguments.start if arguments.only is None else arguments.only
    begin = time.monotonic()
    while summary.cases() < arguments.cases and time.monotonic() - begin < arguments.seconds:
        subject = draw_subject(arguments.seed, number, arguments.operator)
        if subject is not None:
            checked = bench.check(subject, threads=1 + number % 2)
            summary.add(checked)
            report(number, arguments.seed, checked, seen)
            if arguments.verbose and checked.skipped:
                print(f"{number}: {checked.skipped[:300]}", flush=True)
        if arguments.only is not None:
            break
        number += 1
        if number % PROGRESS == 0:
            print(f"graph {number}: {summary.cases()} cases", file=sys.stderr, flush=True)
    bench.close()
    summary.print()
    print(f"seed {arguments.seed}, graphs {arguments.start} to {number}", flush=True)
    sys.exit(bool(seen))


if __name__ == "__main__":
    main()
