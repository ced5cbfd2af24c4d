"""Compile kernels in other processes.

In: tasks (`target.target.Task`), and a function that compiles one. Out: the code of each, as bytes.

    with KernelPool(jobs=2, compile_task=code_bytes) as pool:
        pool.start({"a key": task})            # returns at once
        pool.take("a key")                     # None: compile it here

One process compiles all tasks of a kernel, one after the other. Most variants of a kernel have one
lowered form, which the first task leaves in the caches of that process.

On Linux, processes are forked if this process has no other thread: a fork would copy the locks
that other threads hold. Otherwise each process is spawned and imports webmlc, which takes longer.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from webmlc.core.garbage import THRESHOLDS
from webmlc.loops.content import ContentDigest, content_digest
from webmlc.target.target import Task

FEWEST: Mapping[str, int] = {"fork": 12, "spawn": 100}
"""The fewest kernels that other processes compile, by the start method of the processes.

Derived: a kernel takes about 0.1 s, a forked process starts in 0.02 s, and a spawned one imports
webmlc first, which takes 1 s.
"""


@dataclass(slots=True)
class KernelPool:
    """At most `jobs` processes, which end with the pool. With one job, there are none."""

    jobs: int
    compile_task: Callable[[Task], bytes]
    pending: dict[str, Future[dict[str, bytes]]] = field(default_factory=dict)
    executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> KernelPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)

    def start(self, tasks: Mapping[str, Task]) -> None:
        """Begin to compile kernels, the slowest first. Fewer kernels than `FEWEST` are left to
        this process.
        """
        if self.executor is None:
            method = start_method()
            if self.jobs < 2 or len(tasks) < FEWEST[method]:
                return
            context = multiprocessing.get_context(method)
            self.executor = ProcessPoolExecutor(self.jobs, context, _begin)
        groups: dict[ContentDigest, dict[str, Task]] = {}
        for key, task in tasks.items():
            if key not in self.pending:
                groups.setdefault(content_digest(task.kernel), {})[key] = task
        for digest in sorted(groups, key=lambda digest: (-digest.size, digest.sha256)):
            future = self.executor.submit(_compile, self.compile_task, groups[digest])
            self.pending |= dict.fromkeys(groups[digest], future)

    def take(self, key: str) -> bytes | None:
        """Wait for the code of a kernel. The result is `None` if no process compiles the kernel, or
        if the compilation failed. Compiling the kernel in this process then raises the same error.
        """
        future = self.pending.pop(key, None)
        if future is None or future.exception() is not None:
            return None
        return future.result()[key]


def start_method() -> Literal["fork", "spawn"]:
    """The method by which other processes start."""
    is_alone = threading.active_count() == 1
    return "fork" if sys.platform == "linux" and is_alone else "spawn"


def _compile(compile_task: Callable[[Task], bytes], tasks: Mapping[str, Task]) -> dict[str, bytes]:
    """The code of the tasks of one kernel, by their keys."""
    return {key: compile_task(task) for key, task in tasks.items()}


def _begin() -> None:
    """Prepare a process of the pool: ignore Ctrl-C, and end when the build's process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # keep the objects that the build made before the fork out of collections
    gc.set_threshold(*THRESHOLDS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the process of the build has ended, for whatever reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
