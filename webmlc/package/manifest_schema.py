"""Derive other forms of the manifest's format from its records.

In: nothing. Out: files by path, which are generated and never edited. A test compares them:

    python -m webmlc.package.manifest_schema        # write them

- `runtime_js/manifest_records.js`: the types that the runtime checks (`manifest_faults.js`), the
  version and the addresses of the control area;
- `runtime_js/manifest_types.d.ts`: TypeScript interfaces;
- `docs/manifest.schema.json`: a JSON Schema of the manifest after equal layers were written out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from webmlc.core.control_area import CONTROL
from webmlc.core.machine import PAGE_BYTES
from webmlc.package.manifest import FORMAT, VERSION, Manifest
from webmlc.package.memory_plan import (
    ALIGNMENT,
    CONSTANT_ALIGNMENT,
    LARGE,
    LARGEST_BUFFER,
    PAGE,
)

ROOT = Path(__file__).parents[2]
Schema = dict[str, Any]
_CONSTANTS = {
    "PAGE": PAGE,
    "PAGE_BYTES": PAGE_BYTES,
    "ALIGNMENT": dict(ALIGNMENT),
    "CONSTANT_ALIGNMENT": CONSTANT_ALIGNMENT,
    "LARGE": LARGE,
    "LARGEST_BUFFER": LARGEST_BUFFER,
}
_HEAD = "Written by `python -m webmlc.package.manifest_schema`. Change webmlc/package/manifest.py."


def generated_files() -> dict[str, str]:
    """The text of each file, by its path in the repository."""
    schema = json_schema()
    return {
        "runtime_js/manifest_records.js": javascript(schema["$defs"]),
        "runtime_js/manifest_types.d.ts": declarations(schema["$defs"]),
        "docs/manifest.schema.json": json.dumps(schema, indent=1) + "\n",
    }


def json_schema() -> Schema:
    """The JSON Schema of a manifest."""
    schema = msgspec.json.schema(Manifest)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def javascript(definitions: Schema) -> str:
    """The script with the table of types: the fields of each record, with their defaults."""
    lines = [f"  {name}: {_json(_definition(schema))}," for name, schema in definitions.items()]
    control = ", ".join(f"{name}: {address}" for name, address in CONTROL._asdict().items())
    return "\n".join(
        [
            f"// The format of manifests. {_HEAD}",
            "",
            f"export const FORMAT = {_json(FORMAT)};",
            f"export const VERSION = {VERSION};",
            "/** Addresses in linear memory, in bytes: see webmlc/core/control_area.py. */",
            f"export const CONTROL = {{ {control} }};",
            "// Constants of plans, in bytes: see webmlc/package/memory_plan.py.",
            *(f"export const {name} = {_json(value)};" for name, value in _CONSTANTS.items()),
            "/** The types of the manifest by name. @type {Record<string, any>} */",
            "export const TYPES = {",
            *lines,
            "};",
            "",
        ]
    )


def _definition(schema: Schema) -> Any:
    match schema:
        case {"properties": dict(fields)}:
            return {"fields": [_field(name, field) for name, field in fields.items()]}
    return table(schema)


def _field(name: str, schema: Schema) -> list[Any]:
    """A field as `[name, type]`, or `[name, type, default]`."""
    return [name, table(schema), *([schema["default"]] if "default" in schema else [])]


def table(schema: Schema) -> Any:
    """The type of a field, as the runtime checks it."""
    match schema:
        case {"$ref": path}:
            return path.rpartition("/")[2]
        case {"title": "Size"}:
            return "Size"
        case {"discriminator": {"mapping": dict(names)}}:
            return {"tags": {tag: path.rpartition("/")[2] for tag, path in names.items()}}
        case {"anyOf": [inner, {"type": "null"}]}:
            return {"optional": table(inner)}
        case {"enum": values}:
            return {"values": values}
        case {"pattern": pattern}:
            return {"pattern": pattern}
        case {"prefixItems": items}:
            return {"tuple": [table(item) for item in items]}
        case {"type": "array", "items": item}:
            return {"list": table(item)}
        case {"type": "object", "additionalProperties": dict(item), **others}:
            keys = others.get("propertyNames")
            return {"map": table(item), **({"keys": table(keys)} if keys else {})}
        case {"type": str(kind)}:
            return kind
    raise ValueError(f"no type for {schema}")


def declarations(definitions: Schema) -> str:
    """The TypeScript interfaces, with the first sentences of the records' docstrings."""
    texts = [f"// The records of manifests. {_HEAD} It documents the fields.\n"]
    texts += ["/** An integer, a symbol's name, or [operator, Size, ...]. */\n"
              "export type Size = number | string | [string, ...Size[]];\n"]  # fmt: skip
    for name, schema in definitions.items():
        sentence = _first_sentence(schema)
        head = f"/** {sentence} */\n" if sentence else ""
        match schema:
            case {"properties": dict(fields)}:
                body = "".join(f"  {key}: {typescript(field)};\n" for key, field in fields.items())
                texts.append(f"{head}export interface {name} {{\n{body}}}\n")
            case _:
                texts.append(f"{head}export type {name} = {typescript(schema)};\n")
    return "\n".join(texts)


def _first_sentence(schema: Schema) -> str:
    """The first sentence of a record. The docstring of an enumeration describes Python only."""
    paragraph = "" if "enum" in schema else str(schema.get("description", "")).split("\n\n")[0]
    sentence, _, _ = " ".join(paragraph.split()).rstrip(".").partition(". ")
    return sentence and f"{sentence}."


def typescript(schema: Schema) -> str:
    """The TypeScript type of a field."""
    match schema:
        case {"$ref": path}:
            return str(path).rpartition("/")[2]
        case {"title": "Size"}:
            return "Size"
        case {"anyOf": parts}:
            return " | ".join(map(typescript, parts))
        case {"enum": values}:
            return " | ".join(map(_json, values))
        case {"prefixItems": items}:
            return f"[{', '.join(map(typescript, items))}]"
        case {"type": "array", "items": item}:
            inner = typescript(item)
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        case {"type": "object", "additionalProperties": dict(item), **others}:
            keys = typescript(others["propertyNames"]) if "propertyNames" in others else "string"
            kind = "Partial<Record" if "|" in keys else "Record"
            return f"{kind}<{keys}, {typescript(item)}>" + ">" * kind.startswith("Partial")
        case {"type": "object"}:
            return "any"
        case {"type": "integer"}:
            return "number"
        case {"pattern": _}:
            return "string"
        case {"type": str(kind)}:
            return kind
    raise ValueError(f"no type for {schema}")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    """Write the files."""
    for path, text in generated_files().items():
        (ROOT / path).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
