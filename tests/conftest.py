"""The settings of every test session.

Tests compile everything themselves: an entry of the cache of builds would hide what a kernel
compiles to now, and tests leave the user's cache alone. Tests of the cache have one of their own.
Properties are tested on the same examples every time, however busy the machine is. Every WGSL text
that a test emits is compiled by naga and by Tint; the session ends with their number. Sessions of
onnxruntime have one thread: to start more takes longer than most models of tests. Long tests start
first, so that no worker waits for another at the end.
"""

import gc
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import reference_sessions, shader_compilers

settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("repeatable")

os.environ["WEBMLC_CACHE"] = "off"  # also of the processes that tests start

LONG = frozenset(
    {
        "test_bounded_builds.py",
        "test_cached_builds.py",
        "test_cluster.py",
        "test_command.py",
        "test_files.py",
        "test_folders.py",
        "test_memory_plan.py",
        "test_resnet50.py",
        "test_search.py",
        "test_strategies.py",
    }
)
"""Files with tests that take several seconds each."""
DIGESTS = "compiled shaders"
"""The key under which a worker process of the session hands over what it compiled."""


def pytest_configure() -> None:
    gc.set_threshold(50_000, 20, 50)  # tests run passes one by one, too (`core.garbage`)
    shader_compilers.watch()
    reference_sessions.use_one_thread()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)  # stable: a file stays together


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # this is a worker of pytest-xdist
        output[DIGESTS] = sorted(shader_compilers.compiled)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    shader_compilers.compiled.update(getattr(node, "workeroutput", {}).get(DIGESTS, ()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    count = len(shader_compilers.compiled)
    terminalreporter.write_line(f"{count} distinct WGSL texts compiled, by naga and by Tint")
