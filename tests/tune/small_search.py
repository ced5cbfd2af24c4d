"""A small search without an engine: the tests of what a search prints and writes need its figures.

Every trial takes the same times: 2 ms for the control, and less for each further candidate. The
last two candidates of a full trial are disqualified.
"""

from __future__ import annotations

import onnx
import onnx.parser

from webmlc.tune.measure.platforms import Platform
from webmlc.tune.measure.trial import Measurement, Trial
from webmlc.tune.measure.workers import work
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import BATCH, Options
from webmlc.tune.tasks import Task, read_graph

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[16,24] a, float[24,8] b) => (float[16,8] y) {
        p = MatMul(a, b)
        y = Softmax(p)
    }"""
CONTROL_MS = 2.0
"""The milliseconds of the default schedule."""
CONFIRMED_RATIO = 0.5
"""The relative time of the fastest candidate in the trial that confirms it."""
PLATFORM = Platform("an engine", "1.2", "A <fast> CPU", "x86_64")
WRONG, FAILED = "wrong: the results differ by 3 units", "failed: no <memory>"


class FixedWorker:
    """A worker whose trials take no time. A candidate's relative time is `step` below that of
    the one before it.
    """

    platform = PLATFORM

    def __init__(self, step: float = 0.05) -> None:
        self.step = step

    def measure(self, trial: Trial, seconds: float) -> Measurement:
        """The same times for each trial."""
        rounds = trial.protocol.rounds
        ratios: list[float | None]
        if trial.protocol.rounds == 30:  # it confirms
            ratios = [1.0, CONFIRMED_RATIO, *[0.9] * (trial.candidates - 2)]
        else:
            ratios = [1.0 - self.step * number for number in range(trial.candidates)]
            if trial.candidates == BATCH + 1:
                ratios[-2:] = [None, None]
        reasons = ["" if ratio else FAILED for ratio in ratios]
        if not ratios[-1]:
            reasons[-2] = WRONG
        milliseconds = [(CONTROL_MS * ratio,) * rounds if ratio else () for ratio in ratios]
        return Measurement(tuple(milliseconds), tuple(reasons))

    def stop(self) -> None:
        """See `Worker`."""


def small_tasks() -> list[Task]:
    """The tasks of a model one of whose nodes has the name of an HTML element."""
    model = onnx.parser.parse_model(MODEL)
    model.graph.node[0].name = "<script>alert('&')</script>"
    return read_graph(model, "wasm", {}).tasks()


def small_search(measurements: int = 8, seconds: float = 36_000.0, step: float = 0.05) -> Search:
    """A search that is over."""
    options = Options("random", seconds, measurements=measurements, model="small <model>")
    search = Search(small_tasks(), options)
    work(search, FixedWorker(step))
    return search
