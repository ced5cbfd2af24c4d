"""Measure on many machines: the workers of a Dask cluster."""

from __future__ import annotations

from webmlc.core.machine import Device
from webmlc.tune.search import Search


def work_on_cluster(search: Search, scheduler: str, device: Device) -> None:
    """Measure all jobs of a search on the workers of a scheduler."""
    raise NotImplementedError


def run_worker(scheduler: str, engine: str, threads: int) -> None:
    """Measure for a scheduler until it ends."""
    raise NotImplementedError
