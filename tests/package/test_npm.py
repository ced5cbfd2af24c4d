"""The npm package holds the runtime and nothing else, and runs models in Node."""

from __future__ import annotations

import io
import json
import posixpath
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.npm import install_runtime, packed_runtime, run_installed
from tests.packages import scaled
from webmlc.version import VERSION

pytestmark = pytest.mark.xdist_group("npm")  # one worker builds what the tests share

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime_js"
TYPES = """
import { InputError, load, type LabelledScore, type Model, type TypedModel } from "webmlc";
import { load as loadInServiceWorker } from "webmlc/service_worker";
import type { Model as Scaled } from "./model/model.js"; // as the build wrote it

const model: Model = await load("./model/", { device: "auto" });
const data: ArrayLike<number | bigint> = (await model.run({ x: new Float32Array(4) })).y.data;
const other: Model = await loadInServiceWorker("./model/");
const scaled = await load<Scaled>("./model/");
const x = { dtype: "float32", shape: [1, 4], data: new Float32Array(4) } as const;
const { y } = await scaled.run({ x: { ...x, shape: [1, 4] } });
const columns: 4 = y.shape[1];
// @ts-expect-error: no input has this name
await scaled.run({ z: { ...x, shape: [1, 4] } });
// @ts-expect-error: not the types of a model
await load<{ run: string }>("./model/");
type Classifier = TypedModel<{ image: ImageData }, { logits: LabelledScore[] }>;
const classifier = await load<Classifier>("./classifier/");
const { logits } = await classifier.run({ image: new ImageData(2, 2) }, { outputs: ["logits"] });
const label: string = logits[0].label;
console.log(data, other, label, columns, InputError);
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    install_runtime(folder)
    scaled(folder / "model")
    return folder


def test_the_package_holds_what_its_modules_import() -> None:
    with tarfile.open(fileobj=io.BytesIO(packed_runtime())) as archive:
        files = {
            member.name.removeprefix("package/"): archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    contract = json.loads(files["package.json"])
    assert contract["version"] == VERSION
    assert contract.keys().isdisjoint({"bin", "dependencies", "scripts"})
    entries = [target for entry in contract["exports"].values() for target in _targets(entry)]
    reached = {"README.md", "LICENSE"}
    waiting = [*(entry.removeprefix("./") for entry in entries), "wasm_worker.js"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        text = files[name] if name.endswith(".js") or name == "types.d.ts" else ""
        for path in re.findall(r'(?:from |import\()"(\.[^"]+)"', text):
            waiting += {posixpath.normpath(posixpath.join(posixpath.dirname(name), path))} - reached
    assert reached == set(files)
    for name in files.keys() - {"package.json", "README.md", "LICENSE"}:
        assert files[name] == (RUNTIME / name).read_text("utf-8")


def _targets(entry: Any) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry.values())


def test_the_runtime_states_its_version() -> None:
    """It has no other way to know that a worker is of another version."""
    text = (RUNTIME / "platform.js").read_text("utf-8")
    assert f'export const RUNTIME_VERSION = "{VERSION}";' in text
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize(("name", "threads"), [("webmlc", 2), ("webmlc/service_worker", 1)])
def test_a_package_elsewhere_runs_in_node(app: Path, name: str, threads: int) -> None:
    report = run_installed(app, app / "model", name)
    assert report["runs"] == [[1, 0, 1.5, 12]] * 3
    assert report["threads"] == threads
    assert {"load", "InputError", "PackageError"} <= set(report["names"])


def test_another_format_is_an_error_that_names_the_versions(app: Path, tmp_path: Path) -> None:
    scaled(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    changed = manifest | {"version": 5, "compiler": "webmlc 0.0.9"}
    (tmp_path / "manifest.json").write_text(json.dumps(changed))
    report = run_installed(app, tmp_path)
    assert report["name"] == "PackageError"
    assert (
        "manifest.json: is a package of format 5, which webmlc 0.0.9 wrote. This runtime, of "
        f"webmlc {VERSION}, reads format {manifest['version']}. Build the package again, or use "
        "the runtime of the version that wrote it"
    ) in report["message"]


def test_a_worker_of_another_version_is_not_used(app: Path, tmp_path: Path) -> None:
    """A bundle without its worker takes that of the package, if it fits."""
    shutil.copytree(app / "node_modules", tmp_path / "node_modules")
    (tmp_path / "node_modules" / "webmlc" / "wasm_worker.js").unlink()
    scaled(tmp_path / "model")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    assert run_installed(tmp_path, tmp_path / "model")["runs"] == [[1, 0, 1.5, 12]] * 3
    shared = tmp_path / "model" / "shared.js"
    shared.write_text(shared.read_text().replace(f'"{VERSION}"', '"0.0.9"'))
    report = run_installed(tmp_path, tmp_path / "model")
    assert report["name"] == "HostError"
    assert f"(it is of webmlc 0.0.9, the page's runtime of {VERSION})" in report["message"]


def test_typescript_finds_the_types(app: Path) -> None:
    (app / "types.ts").write_text(TYPES)
    options = ["--ignoreConfig", "--noEmit", "--strict", "--module", "nodenext", "--types", ""]
    done = subprocess.run(
        [ROOT / "node_modules" / ".bin" / "tsc", *options, "types.ts"],
        cwd=app,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
