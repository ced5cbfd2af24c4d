"""Bundle a page that imports the runtime from a package, or from npm, as docs/bundlers.md says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser.pages import ROOT, Page, PageReport, open_pages
from tests.npm import install_runtime
from tests.packages import scaled

HTML = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>page</title>
<script type="module" src="SCRIPT"></script>"""
PAGE = """import { load } from "./model/webmlc.js";

globalThis.run = async (device, threads) => {
  const model = await load("./model/", { device, threads });
  const x = { dtype: "float32", shape: [1, 4], data: Float32Array.from([1, 2, 3, 4]) };
  const runs = [];
  for (let i = 0; i < 4; i++) {
    runs.push(Array.from((await model.run({ x })).y.data));
    await new Promise((resolve) => setTimeout(resolve, 60)); // helpers and their caller come up
  }
  model.dispose();
  return { runs, threads: model.threads, device: model.device };
};
"""
OWN_WORKER = """import { load } from "./model/webmlc.js";

onmessage = async ({ data: [device, threads] }) => {
  try {
    const model = await load(new URL("/model/", location.origin), { device, threads });
    const x = { dtype: "float32", shape: [1, 4], data: Float32Array.from([1, 2, 3, 4]) };
    const runs = [];
    for (let i = 0; i < 4; i++) {
      runs.push(Array.from((await model.run({ x })).y.data));
      await new Promise((resolve) => setTimeout(resolve, 60)); // helpers and their caller come up
    }
    await model.dispose();
    postMessage({ runs, threads: model.threads, device: model.device });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
"""
PAGE_OF_WORKER = """
globalThis.run = (device, threads) =>
  new Promise((resolve, reject) => {
    const worker = new Worker(new URL("./own_worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = ({ message }) => reject(new Error(`the page's worker: ${message}`));
    worker.postMessage([device, threads]);
  });
"""
CHOICES = [("wasm", 1), ("wasm", 2), ("webgpu", 1)]
CONFIGURED_WEBPACK = """
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
const webpack = createRequire(process.argv[1])("webpack");
const { default: config } = await import(pathToFileURL("webpack.config.mjs"));
webpack(config, (error, stats) => {
  if (!error && !stats.hasErrors() && !stats.hasWarnings()) return;
  console.error(error ?? stats.toString());
  process.exitCode = 1;
});
"""


def documented(heading: str, language: str) -> str:
    """The first block of code in a language under a heading of the documentation."""
    text = (ROOT / "docs" / "bundlers.md").read_text()
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)[0]


def environment() -> dict[str, str]:
    """The environment of this process, with the tools of node_modules."""
    return os.environ | {
        "PATH": f"{ROOT / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    }


def command(site: Path, *words: str) -> None:
    """Run a tool of node_modules in the site's folder."""
    process = subprocess.run(
        words,
        cwd=site,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def shell(site: Path, lines: str) -> None:
    command(site, "sh", "-ec", lines.replace("npx ", ""))


def vite(site: Path) -> None:
    (site / "vite.config.mjs").write_text(documented("Vite", "js"))
    shell(site, documented("Vite", "sh"))


def vite_from_a_checkout(site: Path) -> None:
    """The modules of the runtime, before they are joined for a package."""
    (site / "runtime").symlink_to(ROOT / "runtime_js")
    (site / "page.js").write_text(PAGE.replace("./model/webmlc.js", "./runtime/webmlc.js"))
    vite(site)


def vite_from_npm(site: Path) -> None:
    import_from_npm(site)
    vite(site)


def import_from_npm(site: Path) -> None:
    """Import the runtime from its npm package, which is installed into the site."""
    install_runtime(site)
    for script in site.glob("*.js"):
        script.write_text(script.read_text().replace("./model/webmlc.js", "webmlc"))


def webpack(site: Path, mode: str = "production") -> None:
    config = documented("webpack", "js").replace('"production"', f'"{mode}"')
    (site / "webpack.config.mjs").write_text(config)
    command(
        site, "node", "--input-type=module", "-e", CONFIGURED_WEBPACK, str(ROOT / "package.json")
    )
    (site / "dist" / "index.html").write_text(HTML.replace("SCRIPT", "./main.js"))


def webpack_from_npm(site: Path) -> None:
    import_from_npm(site)
    webpack(site)


def webpack_from_npm_for_development(site: Path) -> None:
    import_from_npm(site)
    webpack(site, "development")


def esbuild(site: Path) -> None:
    shell(site, documented("esbuild", "sh"))
    (site / "dist" / "index.html").write_text(HTML.replace("SCRIPT", "./page.js"))


def esbuild_without_the_worker(site: Path) -> None:
    command(site, "esbuild", "page.js", "--bundle", "--format=esm", "--outdir=dist")
    shell(site, "cp -r model dist/model")
    (site / "dist" / "index.html").write_text(HTML.replace("SCRIPT", "./page.js"))


def esbuild_for_a_classic_script(site: Path) -> None:
    command(site, "esbuild", "page.js", "--bundle", "--outdir=dist")
    shell(site, "cp -r model dist/model")
    (site / "dist" / "index.html").write_text(HTML.replace("SCRIPT", "./page.js"))


@pytest.mark.parametrize(
    ("bundle", "bundles_worker"),
    [
        (vite, True),
        (vite_from_a_checkout, True),
        (vite_from_npm, True),
        (webpack, True),
        (webpack_from_npm, True),
        (webpack_from_npm_for_development, True),
        (esbuild, True),
        (esbuild_without_the_worker, False),
        (esbuild_for_a_classic_script, False),
    ],
)
def test_a_bundled_page_runs(
    tmp_path: Path, bundle: Callable[[Path], None], bundles_worker: bool
) -> None:
    """With one thread, with two, and on the GPU, whose script is imported on demand."""
    (tmp_path / "index.html").write_text(HTML.replace("SCRIPT", "./page.js"))
    (tmp_path / "page.js").write_text(PAGE)
    scaled(tmp_path / "model")
    bundle(tmp_path)
    reports = open_pages({"/": tmp_path / "dist"}, *pages_of("/"))
    for report, (device, _) in zip(reports, CHOICES, strict=True):
        fetched = {request["path"] for request in report.requests}
        assert "/model/webmlc.js" not in fetched  # the bundle has it
        if device == "wasm":
            assert ("/model/wasm_worker.js" not in fetched) == bundles_worker
    check(reports)


def write_own_worker(site: Path) -> None:
    (site / "index.html").write_text(HTML.replace("SCRIPT", "./page.js"))
    (site / "page.js").write_text(PAGE_OF_WORKER)
    (site / "own_worker.js").write_text(OWN_WORKER)
    scaled(site / "model")


@pytest.mark.parametrize("bundle", [vite, vite_from_npm, webpack, webpack_from_npm])
def test_a_worker_of_the_page_runs_models(tmp_path: Path, bundle: Callable[[Path], None]) -> None:
    """The worker is bundled, and starts the workers of the model."""
    write_own_worker(tmp_path)
    bundle(tmp_path)
    reports = open_pages({"/": tmp_path / "dist"}, *pages_of("/"))
    fetched = {request["path"] for report in reports for request in report.requests}
    assert not fetched & {"/model/webmlc.js", "/model/wasm_worker.js", "/own_worker.js"}
    check(reports)


def pages_of(address: str) -> list[Page]:
    return [Page(address, f"() => run('{device}', {threads})") for device, threads in CHOICES]


def check(reports: list[PageReport]) -> None:
    """Every choice was honoured, and the outputs are right."""
    for report, (device, threads) in zip(reports, CHOICES, strict=True):
        assert report.value["runs"] == [[1, 0, 1.5, 12]] * 4
        assert (report.value["device"], report.value["threads"]) == (device, threads)
        assert report.errors == []


@contextmanager
def vite_server(site: Path) -> Iterator[str]:
    """The address of vite's server for development."""
    words = ["vite", "--host", "127.0.0.1", "--port", "0", "--clearScreen", "false"]
    server = subprocess.Popen(
        words,
        cwd=site,
        env=environment() | {"NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    limit = threading.Timer(60, os.killpg, [server.pid, signal.SIGTERM])
    limit.start()
    try:
        assert server.stdout is not None
        yield next(m[0] for line in server.stdout if (m := re.search(r"http://\S+", line)))
    finally:
        limit.cancel()
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate(timeout=10)


def test_a_page_runs_while_it_is_developed(tmp_path: Path) -> None:
    """Vite's server bundles what comes from npm, and serves the worker from where it was."""
    (tmp_path / "index.html").write_text(HTML.replace("SCRIPT", "./page.js"))
    (tmp_path / "page.js").write_text(PAGE)
    scaled(tmp_path / "model")
    import_from_npm(tmp_path)
    (tmp_path / "vite.config.mjs").write_text(documented("Vite", "js"))
    with vite_server(tmp_path) as address:
        check(open_pages({"/": tmp_path}, *pages_of(address)))


def test_a_worker_of_the_page_runs_while_it_is_developed(tmp_path: Path) -> None:
    write_own_worker(tmp_path)
    import_from_npm(tmp_path)
    (tmp_path / "vite.config.mjs").write_text(documented("Vite", "js"))
    with vite_server(tmp_path) as address:
        check(open_pages({"/": tmp_path}, *pages_of(address)))


def test_a_bundle_in_a_file_asks_for_a_server(tmp_path: Path) -> None:
    """A page from a file may run a classic script, but may not fetch files."""
    (tmp_path / "page.js").write_text(PAGE)
    scaled(tmp_path / "model")
    esbuild_for_a_classic_script(tmp_path)
    html = tmp_path / "dist" / "index.html"
    html.write_text(html.read_text().replace('type="module"', ""))
    source = "() => run('wasm', 1).catch(({ name, code, message }) => [name, code, message])"
    [report] = open_pages({"/": tmp_path}, Page(html.as_uri(), source))
    name, code, message = report.value
    assert (name, code) == ("PackageError", "package")
    assert "model/manifest.json: cannot be fetched (pages read no files" in message
    assert "webmlc serve" in message
    assert report.errors == []
