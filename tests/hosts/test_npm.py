"""The runtime from npm, and a model in a single file, in the hosts without pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.hosts import HOSTS
from tests.npm import run_installed, write_app

SCRIPTS = [name for name, host in HOSTS.items() if not host.is_browser]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    write_app(folder)
    return folder


@pytest.mark.parametrize("module", ["webmlc", "webmlc/service_worker", "./model.js"])
@pytest.mark.parametrize("host", SCRIPTS)
def test_a_model_runs_with_helpers_or_without(app: Path, host: str, module: str) -> None:
    command = HOSTS[host].command()[:-2]  # without the script that drives the other tests
    folder = None if module == "./model.js" else app / "model"
    report = run_installed(app, folder, module, command)
    assert report.get("runs") == [[1, 0, 1.5, 12]] * 3, report
    assert report["threads"] == (1 if module == "webmlc/service_worker" else 2)
