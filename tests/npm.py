"""The runtime as the npm package `webmlc`, installed into an app."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@lru_cache(maxsize=1)
def packed_runtime() -> bytes:
    """The tarball, packed once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["node", str(ROOT / "npm" / "pack.mjs"), folder],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip()).read_bytes()


@lru_cache(maxsize=1)
def _installed_app() -> tempfile.TemporaryDirectory[str]:
    """An app that has installed the tarball. No registry is asked."""
    folder = tempfile.TemporaryDirectory()
    app = Path(folder.name)
    (app / "webmlc.tgz").write_bytes(packed_runtime())
    (app / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    done = subprocess.run(
        ["npm", "install", "--offline", "--no-audit", "--no-fund", "./webmlc.tgz"],
        cwd=app,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def install_runtime(app: Path) -> None:
    """Make a folder an app that has installed the runtime from npm."""
    shutil.copytree(_installed_app().name, app, dirs_exist_ok=True)
