"""Build candidates, and the trials that measure them, between two trials of a search.

    builder = CandidateBuilder(threads=1, processes=ProcessPoolExecutor())
    candidates = builder.build([task, task], [member, other_member])
    trial = builder.trial(task, [control, *candidates], protocol)

A search without kernels, such as the made-up search of a test or a benchmark, has its own builder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from webmlc.tune.candidates import Candidate, Refusal, make_trial, try_candidate
from webmlc.tune.model_trial import Scheduled, model_trial
from webmlc.tune.tasks import Task
from webmlc.tune.trial import Protocol, Trial


class CandidateBuilder:
    """Builds candidates in this process, or side by side in `processes`, which start at once.
    Kernels run with `threads` threads.
    """

    def __init__(self, threads: int = 1, processes: Executor | None = None) -> None:
        self.threads, self.processes = threads, processes
        self._started: list[Future[None]] = []
        if processes is not None:
            self._started = [processes.submit(_import) for _ in range(os.cpu_count() or 1)]

    def wait(self) -> None:
        """Return when all processes have started."""
        for started in self._started:
            started.result()

    def build(self, tasks: Iterable[Task], members: Iterable[Any]) -> Iterator[Candidate | Refusal]:
        """A member of each task's space as code, or the reason why it cannot be built."""
        build = map if self.processes is None else self.processes.map
        return iter(build(try_candidate, tasks, members))

    def trial(self, task: Task, candidates: Sequence[Candidate], protocol: Protocol) -> Trial:
        """The trial of some candidates; the first is the control."""
        return make_trial(task, candidates, self.threads, protocol)

    def model_trial(self, sets: Sequence[Sequence[Scheduled]]) -> Trial | None:
        """The trial of some sets of kernels; `None` if it needs too much memory."""
        return model_trial(sets, self.threads)


def _import() -> None:
    """Do nothing: a process that runs this function has imported the modules that build
    candidates.
    """
