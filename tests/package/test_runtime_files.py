"""The runtime's files in a package: fewer, shorter, the same code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from webmlc.core.errors import InternalError
from webmlc.package.runtime_files import LIBRARIES, join_modules, runtime_files, shorten

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "runtime_js"
SCRIPTS = sorted(path for path in RUNTIME.rglob("*.js") if path.name not in LIBRARIES)


def test_pages_and_workers_share_one_module() -> None:
    files = {name: data.decode() for name, data in runtime_files().items()}
    scripts = {name: text for name, text in files.items() if name.endswith(".js")}
    imports = {n: re.findall(r'import\{[^}]*\}from"\./(.+?)";', s) for n, s in scripts.items()}
    assert sorted(imports.pop("index.js")) == ["shared.js", "webmlc.js"]
    assert imports.pop("shared.js") == []
    assert set(imports) == {
        "webmlc.js",
        "session.js",
        "run_alone.js",
        "fastest_device.js",
        "file_cache.js",
        "wasm_worker.js",
        "webgpu_device.js",
        "adapter.js",
        "texts.js",
        "typed_model.js",
        "samples.js",
        "gpu_pixels.js",
    }
    assert all(names == ["shared.js"] for names in imports.values())
    for file, name in {"webmlc.js": "async function load", "shared.js": "class InputError"}.items():
        assert f"export {name}" in scripts[file]
    assert "export function wake" not in scripts["shared.js"]  # nothing else needs it


def test_no_worker_starts_workers_or_imports_on_demand() -> None:
    """Bundlers see a cycle in the one; vite bundles a worker as one file, and refuses the other."""
    files = {name: data.decode() for name, data in runtime_files().items()}
    for name in ("wasm_worker.js", "shared.js"):
        assert not re.search(r"new Worker\b|\bimport\(", files[name])
    assert "new Worker(new URL(" in files["webmlc.js"]


@pytest.mark.parametrize("kind", ["is_typed", "is_language_model"])
def test_no_two_modules_of_a_file_have_the_same_name(tmp_path: Path, kind: str) -> None:
    """A name that is declared twice is an error of syntax."""
    for name, data in runtime_files(**{kind: True}).items():
        if name.endswith(".js"):
            (tmp_path / name).write_bytes(data)
    scripts = sorted(map(str, tmp_path.glob("*.js")))
    done = subprocess.run(
        [ROOT / "node_modules" / ".bin" / "esbuild", *scripts, f"--outdir={tmp_path / 'out'}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_no_two_modules_of_a_single_file_have_the_same_name() -> None:
    """Its modules are joined within a function, where a second function replaces the first."""
    modules: dict[str, list[str]] = {}
    for path in (ROOT / "runtime_js").glob("*.js"):
        declared = r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)"
        for match in re.finditer(declared, path.read_text("utf-8"), re.MULTILINE):
            modules.setdefault(match[1], []).append(path.name)
    page = "index.js"  # the page of a package, which is no part of it
    assert {n: m for n, m in modules.items() if len(set(m) - {page}) > 1} == {}


def test_a_module_comes_after_what_it_imports() -> None:
    scripts = {
        "webmlc.js": 'export { b } from "./b.js";\nexport { a } from "./a.js";\n',
        "b.js": 'import { a } from "./a.js";\nexport const b = () => import("./lazy.js");\n',
        "a.js": 'import { z } from "./z.js";\nexport const a = z;\n',
        "z.js": "export const z = 1;\n",
        "lazy.js": 'import { a } from "./a.js";\nimport { c } from "./c.js";\n',
        "c.js": 'import { z } from "./z.js";\nexport const c = z;\n',
        "page.js": 'import { b } from "./webmlc.js";\n',
    }
    assert join_modules(scripts) == {
        "webmlc.js": 'import {a} from "./shared.js";\n'
        'export const b = () => import("./lazy.js");\n'
        'export { a } from "./shared.js";\n',
        "shared.js": "export const z = 1;\nexport const a = z;\n",
        "lazy.js": 'import {z,a} from "./shared.js";\nconst c = z;\n',
        "page.js": 'import {b} from "./webmlc.js";\n',
    }


def test_modules_that_import_each_other_are_refused() -> None:
    scripts = {
        "webmlc.js": 'import { a } from "./a.js";\n',
        "a.js": 'import { b } from "./b.js";\nexport const a = 1;\n',
        "b.js": 'import { a } from "./a.js";\nexport const b = 1;\n',
    }
    with pytest.raises(InternalError, match=r"each other: a\.js -> b\.js -> a\.js$"):
        join_modules(scripts)


def test_scripts_lose_comments_and_layout() -> None:
    script = """// What this file is.

/**
 * Adds.
 * @param {number} a
 */
export function add(a) {
  // One more.
  const text = "// no comment"; // Why.
  /** @type {number} */
  const b = a - -1;
  return `${text}, ( ${b} )`;
}
"""
    assert (
        shorten(script) == 'export function add(a){const text="// no comment";const b=a- -1;'
        "return`${text}, ( ${b} )`;}"
    )


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which an independent printer wrote all scripts: those in `short` after
    `shorten`, and those in `long` as they are.
    """
    folder = tmp_path_factory.mktemp("printed")
    entries = []
    for kind in ("short", "long"):
        (folder / kind).mkdir()
        for script in SCRIPTS:
            code = script.read_text("utf-8")
            entries.append(folder / kind / script.relative_to(RUNTIME))
            entries[-1].parent.mkdir(exist_ok=True)
            entries[-1].write_text(shorten(code) if kind == "short" else code, "utf-8")
    esbuild = [ROOT / "node_modules" / ".bin" / "esbuild", "--minify-whitespace"]
    places = [f"--outbase={folder}", f"--outdir={folder / 'printed'}"]
    subprocess.run([*esbuild, *places, *entries], capture_output=True, timeout=60, check=True)
    return folder / "printed"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(RUNTIME)))
def test_a_short_script_is_the_same_program(printed: Path, script: Path) -> None:
    """The library that shortens them does not know templates within templates."""
    name = script.relative_to(RUNTIME)
    short, long = (printed / kind / name for kind in ("short", "long"))
    assert short.read_text("utf-8") == long.read_text("utf-8")
