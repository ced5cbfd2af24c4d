"""A package of a language model: what it holds in addition, and that other packages do not."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from tests.generate.fakes import language_assets
from tests.packages import parts
from webmlc.host.load import load
from webmlc.package.runtime_files import LANGUAGE, LIBRARIES, runtime_files
from webmlc.package.write import write_package

ROOT = Path(__file__).parents[2]
MOST_BYTES = 120_000
"""The most bytes that scripts of generation may add to a download."""
LOAD = """
import { pathToFileURL } from "node:url";
const folder = pathToFileURL(`${process.argv[2]}/`);
const { load } = await import(new URL("webmlc.js", folder).href);
const model = await load(folder, { device: "wasm", threads: 1 });
try {
  model.generate("hello", { top_p: 2 });
} catch ({ name, message }) {
  console.log(`${name}: ${message}`);
}
model.dispose();
"""


def test_only_language_models_generate() -> None:
    others, files = runtime_files(), runtime_files(is_language_model=True)
    assert b"TextGenerator" in files["webmlc.js"]
    assert not any(b"TextGenerator" in data for data in others.values())
    assert not set(LIBRARIES) & others.keys()
    unloaded = ("index.js", "pipeline.js")
    scripts = [name for name in files if name.endswith(".js") and name not in unloaded]
    added = sum(len(files[name]) - len(others.get(name, b"")) for name in scripts)
    assert added < MOST_BYTES
    scripts_of_pages = (files["webmlc.js"], files["shared.js"], files["index.js"])
    assert not any(b"pipeline.js" in data for data in scripts_of_pages)


def test_the_libraries_are_those_of_npm(tmp_path: Path) -> None:
    """If this fails, run `node tests/js/bundle_libraries.mjs`, and read the difference."""
    script = ROOT / "tests" / "js" / "bundle_libraries.mjs"
    subprocess.run(["node", str(script), str(tmp_path)], check=True, timeout=60)
    for name in LIBRARIES:
        committed = (ROOT / "runtime_js" / LANGUAGE / name).read_text("utf-8")
        assert (tmp_path / name).read_text("utf-8") == committed
        assert "eval(" not in committed and "Function(" not in committed.replace("isFunction(", "")


def test_a_package_loads_with_its_tokenizer(tmp_path: Path) -> None:
    write_package(tmp_path, replace(parts(), assets=language_assets()))
    model = load(tmp_path, device="wasm")
    assert model.is_language_model
    assert model.file("chat_template.jinja").startswith(b"{%-")
    model.dispose()
    script = tmp_path / "load.mjs"
    script.write_text(LOAD)
    command = ["node", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("InputError: top_p is 2"), done.stderr[-1000:]
