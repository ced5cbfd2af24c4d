"""Check one graph: build it once, run it with several inputs on each device, and judge each run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import onnx

from tests.fuzz.sizes import devices, judge
from tests.fuzz.sizes.devices import Way
from tests.fuzz.sizes.draw import Form, Subject
from tests.fuzz.sizes.elements import magnitudes, with_magnitudes
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.processes import Failure, Process
from tests.fuzz.sizes.verdict import NUDGED_RUNS, UNJUDGED, Outputs, Verdict, judge_run

JUDGE_SECONDS, SECONDS = 8, 60


@dataclass(slots=True)
class Checked:
    """The verdicts on a graph: by way and run; `skipped` says why there are none."""

    model: onnx.ModelProto | None = None
    runs: list[Feeds] = field(default_factory=list)
    verdicts: dict[Way, list[Verdict]] = field(default_factory=dict)
    skipped: str = ""


class Bench:
    """The processes that checks use."""

    def __init__(self, ways: Sequence[Way] = devices.WAYS) -> None:
        self.ways = tuple(ways)
        self.judge = Process(judge.serve, JUDGE_SECONDS)
        self.host = Process(devices.serve, SECONDS)
        self.node = devices.Node(SECONDS)

    def check(self, subject: Subject, threads: int) -> Checked:
        """The verdicts on the first form of a graph that can be built and that the judge runs."""
        skipped = "no valid form"
        for form in subject.forms:
            with tempfile.TemporaryDirectory(prefix="webmlc-sizes-") as folder:
                failure = self._build(form, folder)
                if failure is None:
                    checked = self.check_runs(form.to_model(), folder, subject.runs(form), threads)
                    if not checked.skipped or checked.skipped.startswith("judge"):
                        return checked
                elif failure.kind != "unsupported":
                    verdict = Verdict(failure.kind, failure.message)
                    runs = [subject.runs(form)[0]]
                    return Checked(form.to_model(), runs, {way: [verdict] for way in self.ways})
                else:
                    skipped = failure.message
        return Checked(skipped=f"build: {skipped}")

    def _build(self, form: Form, folder: str) -> Failure | None:
        data = form.to_model().SerializeToString()
        result: Failure | None = self.host.ask("build", data, folder, self.ways)
        return result

    def check_runs(
        self,
        model: onnx.ModelProto,
        folder: str,
        runs: list[Feeds],
        threads: int,
        ways: Sequence[Way] = (),
    ) -> Checked:
        """The verdicts on runs of a package, in all ways of the bench or only in these."""
        judged = self.judged(model, runs)
        if isinstance(judged[0], Failure):
            return Checked(skipped=f"judge: {judged[0].message}")
        kept = [i for i, r in enumerate(judged) if not _is_lost(r)]
        runs, judged = [runs[i] for i in kept], [judged[i] for i in kept]
        checked = Checked(model, runs)
        for way in ways or self.ways:
            ours = self._run(folder, way, threads, runs)
            checked.verdicts[way] = [
                self._verdict(model, way, feeds, o, j)
                for o, j, feeds in zip(ours, judged, runs, strict=True)
            ]
        return checked

    def _verdict(
        self,
        model: onnx.ModelProto,
        way: Way,
        feeds: Feeds,
        ours: Outputs | Failure,
        judged: Outputs | Failure,
    ) -> Verdict:
        data = model.SerializeToString()
        nudge = partial(self._nudged, data, feeds, way == "webgpu")
        reference = partial(self.judge.ask, "reference", data, feeds)
        sums = partial(self._sum_magnitudes, model, feeds)
        return judge_run(model, feeds, ours, judged, nudge, reference, way == "webgpu", sums)

    def judged(self, model: onnx.ModelProto, runs: list[Feeds]) -> list[Outputs | Failure]:
        """The verdict on each run."""
        data = model.SerializeToString()
        opened = self.judge.ask("open", data)
        results: list[Outputs | Failure] = []
        for feeds in runs:
            results.append(opened or self.judge.ask("run", feeds))
            if _is_lost(results[-1]):
                opened = self.judge.ask("open", data)
        return results

    def _nudged(self, data: bytes, feeds: Feeds, flushes: bool) -> list[Outputs | Failure]:
        """Runs of the judge on nudged inputs. WGSL lets a GPU take subnormal numbers for 0."""
        self.judge.ask("open", data)
        results = self.judge.ask("nudged", feeds, NUDGED_RUNS, flushes)
        return [results] if isinstance(results, Failure) else results

    def _sum_magnitudes(self, model: onnx.ModelProto, feeds: Feeds) -> Outputs | Failure:
        """The run of the judge on the magnitudes of inputs and constants."""
        opened = self.judge.ask("open", with_magnitudes(model).SerializeToString())
        positive = {name: magnitudes(array) for name, array in feeds.items()}
        result: Outputs | Failure = opened or self.judge.ask("run", positive)
        return result

    def _run(
        self, folder: str, way: Way, threads: int, runs: list[Feeds]
    ) -> list[Outputs | Failure]:
        """The results of all runs. If they end the process, each run has a process of its own."""

        def ask(some: list[Feeds]) -> list[Outputs | Failure] | Failure:
            if way == "node":
                return self.node.run(folder, threads, some)
            answer: list[Outputs | Failure] | Failure
            answer = self.host.ask("run", folder, way, threads, some)
            return answer

        results = ask(runs)
        if not isinstance(results, Failure):
            return results
        alone = [ask([feeds]) for feeds in runs]
        return [r if isinstance(r, Failure) else r[0] for r in alone]

    def close(self) -> None:
        """End the processes."""
        self.judge.close()
        self.host.close()
        self.node.close()


def _is_lost(result: Outputs | Failure) -> bool:
    """True if the judge died, or has too little memory: nothing can be said of the run."""
    return isinstance(result, Failure) and result.kind in UNJUDGED
