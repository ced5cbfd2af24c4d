"""Fixtures of tests that drive webmlc as its users do: installed, with defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.users.installed import Installed, install


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the wheel of this checkout is installed."""
    return install(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def webmlc(installation: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The command line of a user whose cache is empty at first."""
    return Installed(installation, tmp_path_factory.mktemp("home"))
