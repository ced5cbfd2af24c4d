"""Measure on many machines: the workers of a Dask cluster.

    dask scheduler                                                   # on one machine
    webmlc tune-worker --scheduler tcp://HOST:8786 --listen ADDRESS  # on each machine
    webmlc tune model.onnx --scheduler tcp://HOST:8786               # anywhere

`feeder` hands out the jobs, and `slots` runs on each machine. Both need dask.distributed, which is
optional.
"""

from __future__ import annotations

import logging

from webmlc.core.errors import UserError
from webmlc.core.machine import Device
from webmlc.host.serve import HOST
from webmlc.tune.search.search import Search


def work_on_cluster(search: Search, scheduler: str, device: Device) -> None:
    """Measure all jobs of a search on the workers of a scheduler.

    Raises `UserError` if no scheduler answers, if it ends, or if it has no worker for the device.
    """
    _prepare_distributed()
    from webmlc.tune.cluster.feeder import connect

    with connect(search, scheduler, device) as feeder:
        feeder.work()


def run_worker(scheduler: str, engine: str, threads: int, address: str = HOST) -> None:
    """Measure `threads` trials at a time for a scheduler until it ends, or until Ctrl-C. The worker
    listens on `address`, at which the scheduler must reach it.

    Raises `UserError` if the engine cannot be used here, or if no scheduler answers.
    """
    _prepare_distributed()
    from webmlc.tune.cluster.slots import engine_slots, serve

    serve(scheduler, engine_slots(engine, threads), address)


def _prepare_distributed() -> None:
    """Import the library, and silence its log: errors tell users what they must know.

    Raises `UserError` if it is not installed.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--scheduler needs dask.distributed ({error}). "
            "Install it with pip install 'webmlc[cluster]'."
        ) from error
    for name in ("distributed", "distributed.client", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
