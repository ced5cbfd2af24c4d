"""Write a package as one script, which holds the runtime, the code and the weights.

In: the folder of a package. Out: one ES module, for small models:

    import { load } from "./model.js";
    const model = await load({ device: "auto" });

Beside the script lies `model.d.ts`, with its types. It imports nothing: it contains the types of
the runtime as a namespace.

The script contains the package's files as an archive: the length of a JSON list of paths and
lengths (4 bytes, little endian), the list, and the files. The archive is compressed and written in
base64; a web server's compression undoes the growth by base64. The runtime is joined from
`runtime_js`. Its worker is a text, which the page starts from a `blob:` URL.
`runtime_js/standalone/embedded.js` reads the archive and the worker.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import warnings
from base64 import b64encode
from pathlib import Path

from webmlc.core.errors import ModelWarning, PackageError
from webmlc.core.package_files import LANGUAGE_FILES
from webmlc.core.replace_file import replace_file
from webmlc.package.compression import deflate
from webmlc.package.manifest import MANIFEST
from webmlc.package.model_types import MODEL_TYPES
from webmlc.package.runtime_files import SUFFIXES, joined_script

LARGE_BYTES = 4 << 20
"""Warn of a larger script, in bytes. A page decodes the whole script before the model starts to
load, and browsers cache no compiled code for it. On a phone, decoding 4 MB takes about a second.
"""
MAX_BYTES = 32 << 20
"""Refuse to write a larger script, in bytes. Its text, archive and files are in memory at once."""
FIRST_LINE = "// A model in one script, written by webmlc:"
"""The beginning of such a script. Its first line ends with the hash of all later lines. A build
replaces no other file, and no script that was changed after it was written."""
_HASH = "sha256:"
_UNUSED = (*SUFFIXES, ".wat", ".wgsl")
"""The suffixes of files that the script holds in another form, or that no host reads."""


def write_single_file(folder: Path, out: Path, *, force: bool = False) -> int:
    """Write the package in `folder` as the script `out`, and its types beside it.

    Returns the length of the script in bytes.

    Raises `PackageError` if the script would be too large, or if it would replace a file that no
    build wrote, unless `force`. Warns of a script above `LARGE_BYTES`.
    """
    types = types_path(out)
    for path, first in ((out, FIRST_LINE), (types, TYPES_FIRST_LINE)):
        if path.is_dir() or (path.exists() and not force and not _is_written(path, first)):
            raise PackageError(
                f"{path} exists, and no build of webmlc wrote it as it is; choose another file, or "
                "replace it with --force"
            )
    data = _with_hash(single_file(folder))
    size = f"the single file has {len(data) / 1e6:.1f} MB"
    remedy = "build a package in a folder, whose weights are streamed and cached"
    if len(data) > MAX_BYTES:
        raise PackageError(f"{size}, and the limit is {MAX_BYTES / 1e6:.1f} MB; {remedy}")
    if len(data) > LARGE_BYTES:
        warnings.warn(
            f"{size}: a page decodes all of it before the model loads. For more than "
            f"{LARGE_BYTES / 1e6:.1f} MB, better {remedy}.",
            ModelWarning,
            stacklevel=2,
        )
    name = json.loads((folder / MANIFEST).read_text("utf-8"))["name"]
    declarations = _with_hash(single_file_types(folder, name))
    replace_file(out, data)
    replace_file(types, declarations)
    return len(data)


def single_file(folder: Path) -> str:
    """The text of the script."""
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    is_language_model = all(path in manifest["files"] for path in LANGUAGE_FILES)
    manifest["files"] = {
        path: file for path, file in manifest["files"].items() if not path.endswith(_UNUSED)
    }
    files = {MANIFEST: json.dumps(manifest, separators=(",", ":")).encode()}
    files |= {path: (folder / path).read_bytes() for path in manifest["files"]}
    entry = "single_language_file.js" if is_language_model else "single_file.js"
    contents = {
        "ARCHIVE": b64encode(archive(files)).decode(),
        "WORKER": joined_script("wasm_worker.js"),
    }
    script = joined_script(entry, {name: _literal(text) for name, text in contents.items()})
    return f"{FIRST_LINE} {' '.join(str(manifest['name']).split())}\n{script}"


def archive(files: dict[str, bytes]) -> bytes:
    """The files as one compressed block of bytes.

    >>> import zlib
    >>> zlib.decompress(archive({"a": b"bc"}))
    b'\\t\\x00\\x00\\x00[["a",2]]bc'
    """
    entries = [[path, len(data)] for path, data in files.items()]
    listing = json.dumps(entries, separators=(",", ":")).encode()
    return deflate(struct.pack("<I", len(listing)) + listing + b"".join(files.values()))


def _literal(text: str) -> str:
    """A string of JavaScript, which does not end the `<script>` of a page that contains it."""
    return json.dumps(text).replace("</", "<\\/").replace("<!--", "<\\!--")


def _with_hash(text: str) -> bytes:
    """The text, with the hash of its later lines at the end of its first line."""
    first, _, content = text.encode().partition(b"\n")
    return first + f" {_HASH}{hashlib.sha256(content).hexdigest()}\n".encode() + content


def _is_written(path: Path, first: str) -> bool:
    """True if a file is as a build wrote it. A file without a hash is from an older version."""
    line, _, content = path.read_bytes().partition(b"\n")
    _, has_hash, digest = line.partition(_HASH.encode())
    is_same = (
        not has_hash or digest.decode("ascii", "replace") == hashlib.sha256(content).hexdigest()
    )
    return line.startswith(first.encode()) and is_same


TYPES_FIRST_LINE = "// The types of a model in one script, written by webmlc:"
"""The beginning of such a file. A build replaces no other file."""
NAMESPACE = "runtime"
"""The namespace of the runtime's types."""
RUNTIME_TYPES = ("typed.d.ts", "webmlc.d.ts")
"""The files of the package's runtime whose types a page may name."""

_IMPORT = re.compile(r"^import type \{([^}]*)\} from .*;\n", re.MULTILINE)
_REEXPORT = re.compile(r"^export type \{[^}]*\} from .*;\n", re.MULTILINE)
_LOAD = re.compile(r"^(?:/\*\*(?:(?!\*/).)*\*/\n)?export function load<.*;\n", re.MULTILINE)
_HEAD = re.compile(r"\A// .*\n+")
_ERROR = re.compile(r"^export class (\w+Error) ", re.MULTILINE)


def types_path(script: Path) -> Path:
    """The file of a script's types: `model.d.ts` for `model.js`, `model.d.mts` for `model.mjs`."""
    return script.with_suffix(f".d{script.suffix.replace('js', 'ts')}")


def single_file_types(folder: Path, name: str) -> str:
    """The text of the types. `name` is the name of the model."""
    texts = [_HEAD.sub("", (folder / file).read_text("utf-8")) for file in RUNTIME_TYPES]
    runtime = _LOAD.sub("", _REEXPORT.sub("", _IMPORT.sub("", "\n".join(texts))))
    model = _HEAD.sub("", (folder / MODEL_TYPES).read_text("utf-8"))
    errors = "".join(
        f"export import {error} = {NAMESPACE}.{error};\n" for error in _ERROR.findall(runtime)
    )
    return f"""\
{TYPES_FIRST_LINE} {" ".join(name.split())}

/** The types of webmlc. */
export declare namespace {NAMESPACE} {{
{runtime.strip()}
}}

{_IMPORT.sub(_aliases, model).strip()}

/** Load the model. Throws PackageError, AdapterError, HostError or InputError. */
export function load(options?: {NAMESPACE}.LoadOptions): Promise<Model>;

{errors}"""


def _aliases(names: re.Match[str]) -> str:
    """Rewrite an import of the model's types as aliases of types in the namespace."""
    pairs = (part.split(" as ") for part in names[1].split(","))
    return "".join(
        f"import {pair[-1].strip()} = {NAMESPACE}.{pair[0].strip()};\n" for pair in pairs
    )
