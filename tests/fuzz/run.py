"""Differential fuzzing: random graphs over the operator table, against the reference.

    python -m tests.fuzz.run --device wasm --graphs 2000 --seed 1 [--start 400] [--operator Conv]

Graphs come in groups of GROUP; each group has a seed of its own (`--seed`, its number), so that
`--start` goes on where an earlier run stopped. The first failure of a group is shrunk (hypothesis)
and printed as ONNX text with its inputs. Exit code 1 where there was any. A graph that is refused
is a line for each node that cannot be compiled; with `--verbose` its text and inputs, too.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from rich.progress import Progress

from tests.fuzz.check_graph import Verdict, check_graph
from tests.fuzz.draw_graph import graphs
from tests.fuzz.graph import FuzzGraph
from tests.fuzz.worker import Runner

GROUP = 20
SHRINK_SECONDS = 30


class Wrong(AssertionError):
    """A graph is not computed right."""


class Enough(BaseException):
    """The time for shrinking is over. (hypothesis lets what is no `Exception` through.)"""


@dataclass(slots=True)
class Group:
    """A group of graphs under test: what each was found to be."""

    runner: Runner
    counts: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    failure: tuple[FuzzGraph, Verdict] | None = None
    refused: list[tuple[FuzzGraph, Verdict]] = field(default_factory=list)
    _verdicts: dict[tuple[bytes, ...], Verdict] = field(default_factory=dict)
    _deadline: float | None = None

    def test(self, graph: FuzzGraph) -> None:
        """Raises `Wrong`; `Enough` where the deadline of shrinking is over."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise Enough
        key = graph.key()
        if key not in self._verdicts:
            self._verdicts[key] = check_graph(graph, self.runner.device, self.runner.run)
            if self._deadline is None:
                self._count(graph, self._verdicts[key])
        verdict = self._verdicts[key]
        if verdict.is_bug:
            if self.failure is None or len(graph.text()) < len(self.failure[0].text()):
                self.failure = (graph, verdict)
            self._deadline = self._deadline or time.monotonic() + SHRINK_SECONDS
            raise Wrong(verdict.message)

    def _count(self, graph: FuzzGraph, verdict: Verdict) -> None:
        if verdict.kind == "unsupported":
            self.refused.append((graph, verdict))
        self.counts[verdict.kind] += 1
        self.operators.update(node.op_type for node in graph.nodes)


def run_group(
    runner: Runner, seed: str, count: int, operators: tuple[str, ...] = (), most: int = 12
) -> Group:
    """Draw and test `count` graphs; stops at the first failure, shrunk."""
    group = Group(runner)
    test = given(graphs(operators, most))(group.test)
    test = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )(test)
    with contextlib.suppress(Wrong, Enough):
        seeded(seed)(test)()
    return group


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("wasm", "webgpu"), default="wasm")
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the graph to begin with")
    parser.add_argument("--seconds", type=float, default=60, help="time limit of one graph")
    parser.add_argument("--nodes", type=int, default=12, help="the most nodes of a graph")
    parser.add_argument("--operator", action="append", default=[], help="only this; repeatable")
    parser.add_argument("--verbose", action="store_true", help="print refused graphs whole")
    arguments = parser.parse_args()
    runner = Runner(arguments.device, arguments.seconds)
    counts: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    with Progress(transient=True) as progress:
        bar = progress.add_task(f"seed {arguments.seed}", total=arguments.graphs)
        for first in range(arguments.start, arguments.graphs, GROUP):
            seed = f"{arguments.seed}:{first // GROUP}"
            count = min(GROUP, arguments.graphs - first)
            only = tuple(arguments.operator)
            group = run_group(runner, seed, count, only, arguments.nodes)
            counts += group.counts
            operators += group.operators
            place = f"(seed {arguments.seed}, --start {first})"
            for graph, verdict in group.refused:
                for line in verdict.message.splitlines():
                    print(f"{verdict.kind} {place}: {line}", flush=True)
                if arguments.verbose:
                    print(graph.text(), flush=True)
            if group.failure is not None:
                graph, verdict = group.failure
                print(f"\n=== {verdict.kind} {place}")
                print(f"{verdict.message}\n{graph.text()}", flush=True)
            progress.update(bar, completed=first + count)
    runner.close()
    print(f"seed {arguments.seed}: {sum(counts.values())} graphs on {arguments.device}: ", end="")
    print(", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    print(f"{sum(operators.values())} nodes of {len(operators)} operators")
    sys.exit(any(Verdict(kind).is_bug for kind in counts))


if __name__ == "__main__":
    main()
