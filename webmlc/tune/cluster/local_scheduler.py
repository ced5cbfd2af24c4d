"""Start a Dask scheduler that only this machine reaches, and workers beside it, for tests and
benchmarks of clusters.

    with local_scheduler() as (address, process):
        with python_process("-m", "webmlc", "tune-worker", "--scheduler", address) as (_, line):
            ...
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import dask.config
import distributed

from webmlc.host.serve import HOST
from webmlc.tune.cluster.slots import QUIET

Process = subprocess.Popen[str]


@contextmanager
def python_process(*arguments: str) -> Iterator[tuple[Process, str]]:
    """A process of Python, which is killed in the end, and the first line that it prints. Ctrl-C
    ends it, even if a shell started this one in the background, where processes ignore it.
    """
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def local_scheduler() -> Iterator[tuple[str, Process]]:
    """The address of a scheduler, and its process."""
    with python_process("-m", __name__) as (process, address):
        yield address, process


async def _serve() -> None:
    """Print the address of a scheduler, and run it until it is killed."""
    logging.disable()
    with dask.config.set(QUIET):
        async with distributed.Scheduler(host=HOST, port=0, dashboard=False) as scheduler:
            print(scheduler.address, flush=True)
            await scheduler.finished()


if __name__ == "__main__":
    asyncio.run(_serve())
