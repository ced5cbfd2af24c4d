"""Write the types of a package that is one script.

In: the folder of the package. Out: the text of `model.d.ts` beside `model.js`. The text imports
nothing: it contains the types of the runtime as a namespace.

    import { load, type Outputs } from "./model.js";
    const { logits }: Outputs = await (await load()).run({ image });
"""

from __future__ import annotations

import re
from pathlib import Path

from webmlc.package.model_types import MODEL_TYPES

FIRST_LINE = "// The types of a model in one script, written by webmlc:"
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
{FIRST_LINE} {" ".join(name.split())}

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
