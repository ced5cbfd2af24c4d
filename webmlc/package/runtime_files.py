"""Prepare the JavaScript runtime for a package.

In: the folder `runtime_js`. Out: the files that a package holds, by name. Scripts are shortened and
modules are joined, so that a first run waits for few requests. Import lines are rewritten; no
JavaScript is generated.

    webmlc.js           for a page to import        wasm_worker.js      the workers
    webgpu_device.js    imported on demand          typed_model.js      imported on demand
    session.js          imported on demand          fastest_device.js   imported on demand
    adapter.js          imported on demand          file_cache.js       imported on demand
    gpu_pixels.js       imported on demand          run_alone.js        imported on demand
    samples.js          imported on demand          texts.js            imported on demand
    shared.js           imported by several files   index.js            the page of the package

A package of a language model also holds the files of `runtime_js/language`. They replace files of
the same name: the models of this `webmlc.js` generate text, and the page is a chat. The line
`<!-- include notice.html -->` of a page stands for the contents of that file.

`joined_script` joins everything that a script needs into one, for a package in a single file
(`single_file.py`). The npm package holds the modules as they are (`runtime_js/npm/pack.mjs`).

Packages with typed values or a tokeniser, and packages of language models, hold `pipeline.js`,
which exports the names of transformers.js. Only pages that import `pipeline.js` load it.

Workers do not import modules that start workers, because bundlers would report a cycle. Workers do
not import modules with imports on demand either: vite bundles a worker into one file by default,
and refuses to split it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import rjsmin

from webmlc.core.errors import InternalError

MAIN = "webmlc.js"
"""The script that pages import."""
SHARED = "shared.js"
"""The file into which modules that several scripts need are joined."""
SUFFIXES = (".js", ".ts", ".html", ".css")
"""The suffixes of the files in the runtime's folder that a package holds."""
LANGUAGE = "language"
"""The folder, in the runtime's folder, of the files that only packages of language models hold."""
TYPED = "typed"
"""The folder of the files that let models take pictures and return labels. Every package holds
these files, because bundlers look for every file that a module may import."""
PAGE = "package_page"
"""The folder of the page of a package, except for packages of language models."""
PIPELINE = "pipeline"
"""The folder of `pipeline.js`."""
ENCODER_FILES = (
    "merged_tokens.js",
    "open_tokenizer.js",
    "tokenizer_file.js",
    "tokenizers.js",
)
"""The files of `LANGUAGE` that `pipeline.js` needs: they turn text into tokens."""
PART = "notice"
"""The stem of the files that both pages include. A package does not hold them."""
LIBRARIES = ("jinja.js", "tokenizers.js")
"""The scripts of other projects, which are minified already."""
STANDALONE = "standalone"
"""The folder, in the runtime's folder, of the scripts that hold all parts of the runtime."""

_INCLUDE = re.compile(r"^ *(?:<!--|/\*) include ([\w.]+) (?:-->|\*/)\n", re.MULTILINE)

# The texts that `join_modules` and `joined_script` rewrite.
_EXPORT = re.compile(r"^export (?=(?:async )?(?:class|const|function) (\w+))", re.MULTILINE)
_LIBRARY_EXPORT = re.compile(r"export\{(\w+) as (\w+)\};\s*$")
_OTHER_FOLDER = re.compile(r'"\.{1,2}/(?:\w+/)?')
_IMPORT = re.compile(r'^(import|export) \{([^}]*)\} from "\./(\w+\.js)";\n', re.MULTILINE)


def runtime_files(*, is_language_model: bool = False, is_typed: bool = False) -> dict[str, bytes]:
    """All files of the runtime that a package holds, by name."""
    files = _files_of(_folder() / TYPED)
    files |= _files_of(_folder())
    if not is_language_model:
        files |= _files_of(_folder() / PAGE)
    if is_typed or is_language_model:
        files |= _files_of(_folder() / PIPELINE)
        files |= {name: _folder() / LANGUAGE / name for name in ENCODER_FILES}
    if is_language_model:
        files |= _files_of(_folder() / LANGUAGE)
    scripts = {
        name: _flat(path)
        for name, path in files.items()
        if path.suffix == ".js" and name not in LIBRARIES
    }
    pages = {
        name: _INCLUDE.sub(lambda m: files[m[1]].read_text("utf-8"), _flat(path)).encode()
        for name, path in files.items()
        if name not in scripts and path.stem != PART
    }
    return pages | dict(_short_files(tuple(scripts.items())))


def _files_of(folder: Path) -> dict[str, Path]:
    """The files of a folder of the runtime that a package may hold, by name."""
    return {path.name: path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES}


@lru_cache(maxsize=2)
def _short_files(scripts: tuple[tuple[str, str], ...]) -> tuple[tuple[str, bytes], ...]:
    """Join and shorten scripts, given as names and texts.

    Cached, because this takes longer than the build of a small model, and every build of a process
    asks for the same scripts.
    """
    return tuple((n, shorten(text).encode()) for n, text in join_modules(dict(scripts)).items())


def join_modules(scripts: Mapping[str, str]) -> dict[str, str]:
    """Join modules into fewer files.

    `MAIN`, and each script that no other script imports, stay files. A module that only one of
    these files needs is joined into that file. A module that several files need is joined into
    `SHARED`. Each module follows its imports. The names in all modules must be distinct, or the
    joined file would not be a valid module. A joined module keeps only the exports that another
    file imports, or that a script re-exports.

    Raises `InternalError` if modules import each other.

    >>> a, b = "export const a = 1;\\n", 'import { a } from "./a.js";\\nexport const b = a;\\n'
    >>> main = 'import { b } from "./b.js";\\n'
    >>> join_modules({"a.js": a, "b.js": b, "webmlc.js": main})
    {'webmlc.js': 'const a = 1;\\nconst b = a;\\n'}
    >>> join_modules({"a.js": a, "webmlc.js": b, "worker.js": main.replace("b", "a")})["worker.js"]
    'import {a} from "./shared.js";\\n'
    """
    imports = {name: [m[3] for m in _IMPORT.finditer(text)] for name, text in scripts.items()}
    imported = {module for modules in imports.values() for module in modules} - {MAIN}

    def joined_imports(name: str) -> list[str]:
        return [module for module in imports[name] if module in imported]

    orders = {name: _order(name, joined_imports) for name in scripts if name not in imported}
    users = Counter(module for order in orders.values() for module in order)
    places = {
        module: SHARED if users[module] > 1 else entry
        for entry, order in orders.items()
        for module in order
    }
    return {file: _join(file, scripts, places) for file in dict.fromkeys(places.values())}


def _order(entry: str, imports: Callable[[str], Iterable[str]]) -> list[str]:
    """The modules that a script imports, directly or not, each after its own imports; then the
    script. `imports` is called once for each module.

    Raises `InternalError` if modules import each other, because a joined file has an order.
    """
    order: dict[str, None] = {}

    def append(module: str, importers: tuple[str, ...]) -> None:
        if module in importers:
            cycle = " -> ".join((*importers[importers.index(module) :], module))
            raise InternalError(f"package: modules of runtime_js import each other: {cycle}")
        if module not in order:
            for imported in imports(module):
                append(imported, (*importers, module))
            order[module] = None

    append(entry, ())
    return list(order)


def _exported(file: str, scripts: Mapping[str, str], places: Mapping[str, str]) -> set[str]:
    """The names in `file` that other files import, and the names that its scripts re-export."""
    return {
        name
        for script, text in scripts.items()
        for keyword, names, module in _IMPORT.findall(text)
        if places[module] == file and (places[script] != file or keyword == "export")
        for name in names.replace(",", " ").split()
    }


def _join(file: str, scripts: Mapping[str, str], places: Mapping[str, str]) -> str:
    """Join the scripts whose place is `file`, after one import line per file that they need."""
    names: dict[str, dict[str, None]] = {}
    exported = _exported(file, scripts, places)

    def rewrite(line: re.Match[str]) -> str:
        keyword, list_of_names, module = line.groups()
        place = places[module]
        if place == file:
            return ""
        if keyword == "export":
            return line[0].replace(module, place)
        words = list_of_names.replace(",", " ").split()
        names.setdefault(place, {}).update(dict.fromkeys(words))
        return ""

    def code_of(name: str) -> str:
        code = _IMPORT.sub(rewrite, scripts[name])
        return code if name == file else _EXPORT.sub(lambda m: m[0] * (m[1] in exported), code)

    body = "".join(code_of(name) for name, place in places.items() if place == file)
    lines = [f'import {{{",".join(words)}}} from "./{place}";\n' for place, words in names.items()]
    return "".join(lines) + body


def joined_script(entry: str, constants: Mapping[str, str] | None = None) -> str:
    """Join a script and everything that it imports into one script, which imports nothing.

    Only its exports are names of the module, so that code of a page may surround it.
    `constants` are the values, as JavaScript, of constants that are empty strings in the source.
    The names in all modules must be distinct.
    """
    folders = (_folder(), *(_folder() / name for name in (TYPED, LANGUAGE, STANDALONE)))
    paths = {path.name: path for folder in folders for path in sorted(folder.glob("*.js"))}
    texts: dict[str, str] = {}

    def imports_of(name: str) -> list[str]:
        texts[name] = f"const LIBRARY = {name!r};\n" if name in LIBRARIES else _flat(paths[name])
        return [module for _, _, module in _IMPORT.findall(texts[name])]

    scripts = {name: texts[name] for name in _order(entry, imports_of)}
    script = shorten(_enclosed(_join(entry, scripts, dict.fromkeys(scripts, entry))))
    for name in scripts.keys() & set(LIBRARIES):
        library = _as_constant(paths[name].read_text("utf-8"))
        script = script.replace(f"const LIBRARY={name!r};", library)
    for name, value in (constants or {}).items():
        script = script.replace(f'const {name}="";', f"const {name}={value};", 1)
    return script


def _enclosed(script: str) -> str:
    """Put a script into a function, and export the names that the script exports."""
    names = ", ".join(match[1] for match in _EXPORT.finditer(script))
    if not names:
        return script
    body = _EXPORT.sub("", script)
    return f"export const {{ {names} }} = (() => {{\n{body}return {{ {names} }};\n}})();\n"


def _as_constant(library: str) -> str:
    """Turn a library into its one export: its other names may clash with the runtime's names."""
    export = _LIBRARY_EXPORT.search(library)
    if export is None:
        raise InternalError("package: a library of runtime_js has not exactly one export")
    body = library[: export.start()]
    return f"const {export[2]}=(()=>{{{body}return {export[1]}}})();\n"


def _flat(path: Path) -> str:
    """The script, with imports that name no folders: a package and a joined script are flat."""
    return _OTHER_FOLDER.sub('"./', path.read_text("utf-8"))


def shorten(script: str) -> str:
    """Remove comments, and the spaces and line breaks that a script does not need.

    Pages download less.

    >>> shorten("/** @type {number} */\\nlet a = `1  ${ 2 }`; // one\\na += [\\n  2,\\n];\\n")
    'let a=`1  ${ 2 }`;a+=[2,];'
    """
    return str(rjsmin.jsmin(script))


def _folder() -> Path:
    """The folder of the JavaScript runtime: inside an installed webmlc, beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "runtime_js", package.parent / "runtime_js"):
        if (folder / MAIN).is_file():
            return folder
    raise InternalError("package: this installation of webmlc lacks its runtime_js folder")
