"""The runtime as the npm package `webmlc`, installed into an app."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.packages import scaled
from webmlc.package.single_file import write_single_file

ROOT = Path(__file__).parents[1]
RUN = """
import * as webmlc from "NAME";
import process from "node:process";

try {
  const parameters = [...PLACE, { device: "wasm", threads: 2 }];
  const model = await webmlc.load(...parameters);
  const x = { dtype: "float32", shape: [1, 4], data: Float32Array.from([1, 2, 3, 4]) };
  const runs = [];
  for (let i = 0; i < 3; i++) runs.push(Array.from((await model.run({ x })).y.data));
  model.dispose();
  console.log(JSON.stringify({ runs, threads: model.threads, names: Object.keys(webmlc) }));
} catch (error) {
  console.log(JSON.stringify({ name: error.name, message: error.message }));
}
process.exit();
"""


@lru_cache(maxsize=1)
def packed_runtime() -> bytes:
    """The tarball, packed once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["node", str(ROOT / "runtime_js" / "npm" / "pack.mjs"), folder],
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


def write_app(app: Path) -> None:
    """Make a folder an app with the runtime, a package in `model/`, and the same model as the
    single file `model.js`.
    """
    install_runtime(app)
    scaled(app / "model")
    write_single_file(app / "model", app / "model.js")


def run_installed(
    app: Path, model: Path | None, name: str = "webmlc", host: Sequence[str] = ("node",)
) -> Any:
    """Load a model with the module `name` of an app, run it, and return the outputs or the error.

    `model` is the folder of a package, or None for a single file.
    """
    place = [] if model is None else [str(model)]
    script = RUN.replace("NAME", name).replace("PLACE", json.dumps(place))
    (app / "run.js").write_text(script)
    done = subprocess.run(
        [*host, "run.js"], cwd=app, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
