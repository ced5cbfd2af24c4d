"""Is a graph computed right? The verdict on one graph, on one device.

check_graph(graph, Runner("wasm", 60))    # Verdict("passed") or what is wrong
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.fuzz.graph import FuzzGraph
from tests.fuzz.oracle import MORE_RUNS, RUNS, differs, expect
from tests.fuzz.worker import Device, Failure, Results


@dataclass(frozen=True, slots=True)
class Verdict:
    """`passed`, `unsupported` (refused, saying why), `mismatch`, `error`, `crash` or `hang`."""

    kind: str
    message: str = ""

    @property
    def is_bug(self) -> bool:
        """True for what has to be mended."""
        return self.kind not in ("passed", "unsupported")


def check_graph(graph: FuzzGraph, device: Device, run: Callable[[FuzzGraph], Results]) -> Verdict:
    """Run a graph and compare. A graph that is refused with symbolic sizes gets fixed sizes."""
    results = run(graph)
    if isinstance(results, Failure) and results.kind == "unsupported" and graph.symbols:
        graph = replace(graph, symbols={})
        results = run(graph)
    if isinstance(results, Failure):
        return Verdict(results.kind, results.message)
    for runs in (RUNS, MORE_RUNS):
        expected = expect(graph, runs, device)
        wrong = [
            f"{name} {message} ({configuration})"
            for configuration, outputs in results.items()
            for name in graph.outputs
            if (message := differs(outputs[name], expected[name]))
        ]
        if not wrong:
            return Verdict("passed")
    return Verdict("mismatch", "\n".join(wrong))
