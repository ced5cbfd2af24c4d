"""The JavaScript runtime as a package holds it.

In: the folder `runtime_js`. Out: its files for pages, by name: scripts without comments and
indentation, and the modules that a page and its workers share joined into `webmlc.js`, so that one
request brings what a first run waits for. Imports are taken out; no JavaScript is generated.

    runtime_files()["webmlc.js"]    # errors.js, dtypes.js, ..., model.js, in the order of imports

A script of its own is what only some pages need (`webgpu_device.js`, `index.js`) or what a worker
runs (`wasm_worker.js`); where it imports a module that was joined, it imports `webmlc.js`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from webmlc.core.errors import InternalError

MAIN = "webmlc.js"
WORKER = "wasm_worker.js"
SUFFIXES = (".js", ".ts", ".html", ".css")

_TYPE = re.compile(r"/\*\*.*?\*/[ \n]*", re.DOTALL)
_REMARK = re.compile(r" +// .*$", re.MULTILINE)
_LINE = re.compile(r"^[ \n]*(?://.*\n[ \n]*)*", re.MULTILINE)
_IMPORT = re.compile(r'^(?:import|export) \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


def runtime_files() -> dict[str, bytes]:
    """Every file of the runtime that a package holds, by name."""
    files = {p.name: p for p in sorted(_folder().iterdir()) if p.suffix in SUFFIXES}
    scripts = {
        name: without_comments(path.read_text("utf-8"))
        for name, path in files.items()
        if path.suffix == ".js"
    }
    rest = {name: path.read_bytes() for name, path in files.items() if name not in scripts}
    return rest | {name: text.encode() for name, text in join_modules(scripts).items()}


def join_modules(scripts: Mapping[str, str]) -> dict[str, str]:
    """The scripts, what `MAIN` and `WORKER` import joined into `MAIN`. It exports what the modules
    did: their names are distinct, or it would be no valid module.

    >>> one, two = "export const a = 1;\\n", 'import { a } from "./one.js";\\n'
    >>> main = 'export { a } from "./one.js";\\n'
    >>> join_modules({"one.js": one, "two.js": two, "webmlc.js": main})
    {'webmlc.js': 'export const a = 1;\\n', 'two.js': 'import { a } from "./webmlc.js";\\n'}
    """
    joined: dict[str, str] = {}

    def visit(names: Iterable[str]) -> None:
        for name in names:
            if name not in joined:
                visit(_IMPORT.findall(scripts[name]))
                joined[name] = _IMPORT.sub("", scripts[name])

    for entry in (MAIN, WORKER):
        visit(_IMPORT.findall(scripts.get(entry, "")))

    def shared(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group().replace(name, MAIN) if name in joined else match.group()

    own = {n: _IMPORT.sub(shared, s) for n, s in scripts.items() if n not in joined and n != MAIN}
    return {MAIN: "".join(joined.values()), **own}


def without_comments(script: str) -> str:
    """A script of ours without what pages need not download: comments and indentation. (No text of
    ours spans lines, or holds what looks like a comment.)

    >>> without_comments("/** @type {number} */\\nlet a = 1; // one\\n  // Two.\\n  a = 2;\\n")
    'let a = 1;\\na = 2;\\n'
    """
    return _LINE.sub("", _REMARK.sub("", _TYPE.sub("", script)))


def _folder() -> Path:
    """Where the JavaScript runtime is: inside an installed webmlc, beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "runtime_js", package.parent / "runtime_js"):
        if (folder / MAIN).is_file():
            return folder
    raise InternalError("package: this installation of webmlc lacks its runtime_js folder")
