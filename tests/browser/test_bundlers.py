"""Build a page that imports a package for production, as docs/bundlers.md says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.pages import ROOT, Page, open_pages
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


def command(site: Path, *words: str) -> None:
    """Run a tool of node_modules in the site's folder."""
    path = f"{ROOT / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        words,
        cwd=site,
        env=os.environ | {"PATH": path},
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


def webpack(site: Path) -> None:
    (site / "webpack.config.mjs").write_text(documented("webpack", "js"))
    command(
        site, "node", "--input-type=module", "-e", CONFIGURED_WEBPACK, str(ROOT / "package.json")
    )
    (site / "dist" / "index.html").write_text(HTML.replace("SCRIPT", "./main.js"))


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
        (webpack, True),
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
    choices = [("wasm", 1), ("wasm", 2), ("webgpu", 1)]
    pages = [Page("/", f"() => run('{device}', {threads})") for device, threads in choices]
    reports = open_pages({"/": tmp_path / "dist"}, *pages)
    for report, (device, threads) in zip(reports, choices, strict=True):
        assert report.value["runs"] == [[1, 0, 1.5, 12]] * 4
        assert (report.value["device"], report.value["threads"]) == (device, threads)
        assert report.errors == []
        fetched = {request["path"] for request in report.requests}
        assert "/model/webmlc.js" not in fetched  # the bundle has it
        if device == "wasm":
            assert ("/model/wasm_worker.js" not in fetched) == bundles_worker


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
