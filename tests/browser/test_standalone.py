"""Places without imports on demand: single files, service workers and extensions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import HERE, ROOT, Page, open_pages
from tests.npm import write_app

HTML = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>page</title>
<script type="module">SCRIPT</script>"""
RUNS = """
globalThis.runs = async (load, choices) => {
  const reports = [];
  for (const options of choices) {
    const model = await load(options);
    const x = { dtype: "float32", shape: [1, 4], data: Float32Array.from([1, 2, 3, 4]) };
    const outputs = [];
    for (let i = 0; i < 3; i++) {
      outputs.push(Array.from((await model.run({ x })).y.data));
      await new Promise((resolve) => setTimeout(resolve, 60)); // helpers and their caller come up
    }
    const { device, threads, threadsReason } = model;
    model.dispose();
    reports.push({ outputs, device, threads, threadsReason });
  }
  return reports;
};
"""
BOTH = '[{ device: "wasm", threads: 2 }, { device: "webgpu" }]'
ROW = [1, 0, 1.5, 12]
IN_SERVICE_WORKER = """async ({ script, type }) => {
  const registration = await navigator.serviceWorker.register(script, { type });
  const worker = registration.installing ?? registration.active;
  const { port1, port2 } = new MessageChannel();
  const answer = new Promise((resolve) => (port1.onmessage = ({ data }) => resolve(data)));
  worker.postMessage(null, [port2]);
  return answer;
}"""
ANSWER = f"""
addEventListener("message", ({{ ports: [port] }}) => {{
  runs(LOAD, {BOTH}).catch(String).then((reports) => port.postMessage(reports));
}});
"""
EXTENSION = {
    "manifest_version": 3,
    "name": "webmlc",
    "version": "1",
    "background": {"service_worker": "background.js", "type": "module"},
    "content_security_policy": {"extension_pages": "script-src 'self' 'wasm-unsafe-eval'"},
    "cross_origin_embedder_policy": {"value": "require-corp"},
    "cross_origin_opener_policy": {"value": "same-origin"},
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runtime from npm, a package, and the same model as a single file."""
    folder = tmp_path_factory.mktemp("app")
    write_app(folder)
    (folder / "runs.js").write_text(RUNS)
    (folder / "index.html").write_text(HTML.replace("SCRIPT", ""))
    return folder


def check(reports: Any, threads: int) -> None:
    """The outputs of both devices."""
    assert isinstance(reports, list), reports
    assert [report["device"] for report in reports] == ["wasm", "webgpu"]
    assert [report["outputs"] for report in reports] == [[ROW] * 3] * 2
    assert reports[0]["threads"] == threads


def test_a_single_file_runs_in_pages(app: Path, tmp_path: Path) -> None:
    """In a page from a file, which may fetch nothing, and in an isolated page, which has threads.

    A page from a file imports no other file either, so that one contains the script.
    """
    use = f'import {{ load }} from "./model.js"; globalThis.run = () => runs(load, {BOTH});'
    (app / "single.html").write_text(HTML.replace("SCRIPT", f'import "./runs.js"; {use}'))
    model = (app / "model.js").read_text()
    inline = f"{RUNS}{model}\nglobalThis.run = () => runs(load, {BOTH});"
    (tmp_path / "inline.html").write_text(HTML.replace("SCRIPT", inline))
    wait = "while (!globalThis.run) await new Promise((resolve) => setTimeout(resolve, 20));"
    call = f"async () => {{ {wait} return run(); }}"
    served, opened = open_pages(
        {"/": app},
        Page("/single.html", call),
        Page((tmp_path / "inline.html").as_uri(), call),
    )
    check(served.value, threads=2)
    assert {r["path"] for r in served.requests} == {"/single.html", "/runs.js", "/model.js"}
    check(opened.value, threads=1)
    assert "not cross-origin isolated" in opened.value[0]["threadsReason"]
    assert served.errors == opened.errors == []


def test_a_single_file_says_what_its_worker_needs(app: Path) -> None:
    policy = {"Content-Security-Policy": "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'"}
    load = """async () => {
      const { load } = await import("/model.js");
      return load({ device: "wasm" }).catch(({ name, message }) => [name, message]);
    }"""
    [report] = open_pages({"/": app}, Page("/", load), headers=policy)
    name, message = report.value
    assert name == "HostError"
    assert "the worker in this script did not start" in message
    assert "allow worker-src blob: in the page's Content-Security-Policy, or build a" in message


def test_models_run_in_service_workers(app: Path) -> None:
    """From modules, from a bundle for a classic script, and from a single file."""
    service_worker = "./node_modules/webmlc/standalone/service_worker.js"
    load = '(options) => load("./model/", options)'
    start = f'import "./runs.js"; import {{ load }} from "SOURCE";{ANSWER}'
    module = start.replace("SOURCE", service_worker).replace("LOAD", load)
    (app / "module.js").write_text(module)
    (app / "source.js").write_text(module.replace(service_worker, "webmlc/service_worker"))
    (app / "single.js").write_text(start.replace("SOURCE", "./model.js").replace("LOAD", "load"))
    esbuild = [ROOT / "node_modules" / ".bin" / "esbuild", "source.js", "--bundle"]
    subprocess.run([*esbuild, "--minify", "--outfile=classic.js"], cwd=app, check=True)
    assert "import(" not in (app / "classic.js").read_text()
    scripts = [("/module.js", "module"), ("/classic.js", "classic"), ("/single.js", "module")]
    pages = [Page("/", IN_SERVICE_WORKER, arg={"script": s, "type": t}) for s, t in scripts]
    for report in open_pages({"/": app}, *pages):
        check(report.value, threads=1)
        assert report.value[0]["threadsReason"] == "the model runs in the thread that loaded it"


def test_an_extension_runs_models_in_its_page_and_in_its_service_worker(
    app: Path, tmp_path: Path
) -> None:
    """Manifest V3: no code from elsewhere, no eval, and WebAssembly only by 'wasm-unsafe-eval'."""
    shutil.copytree(app / "node_modules" / "webmlc", tmp_path / "webmlc")
    shutil.copytree(app / "model", tmp_path / "model")
    (tmp_path / "runs.js").write_text(RUNS)
    (tmp_path / "manifest.json").write_text(json.dumps(EXTENSION))
    for script, module in {
        "page.js": "./webmlc/language/webmlc.js",
        "background.js": "./webmlc/standalone/service_worker.js",
    }.items():
        (tmp_path / script).write_text(
            f'import "./runs.js"; import {{ load }} from "{module}";\n'
            f'globalThis.run = () => runs((options) => load("./model/", options), {BOTH});\n'
        )
    html = HTML.replace(">SCRIPT", ' src="page.js">').replace('<link rel="icon" href="data:,">', "")
    (tmp_path / "page.html").write_text(html)
    done = subprocess.run(
        ["node", str(HERE / "extension.mjs"), str(tmp_path), "page.html"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check(report["page"], threads=2)
    check(report["serviceWorker"], threads=1)
    assert report["errors"] == []
