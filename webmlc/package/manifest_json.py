"""Write a manifest as the text of `manifest.json`, and read it.

In: a `Manifest`. Out: JSON, with one buffer, step or file per line. Equal manifests are equal
bytes. The records decide the fields. The file only says three things in a shorter form:

- an argument of a step is the number of the buffer;
- the tensors of a weights file are a list of `[name, begin, end]`;
- equal layers are said once (`repetitions`): in that list, and in all lists of programs.

Reading checks every field, and names the culprit. `runtime_js/manifest.js` does the same:

    PackageError: manifest.json: programs.wasm.steps[3].outputs: Expected `int`, got `str`
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from webmlc.core.errors import InternalError, PackageError
from webmlc.package.check_manifest import check_manifest
from webmlc.package.manifest import FORMAT, VERSION, Manifest, Program
from webmlc.package.repetitions import fold, unfold

LINE = 160
"""Keep a container on one line if its text has at most this many characters. Chosen by hand."""


def to_json(manifest: Manifest) -> str:
    """Convert a manifest to the text of `manifest.json`."""
    fields = msgspec.json.decode(msgspec.json.encode(manifest, enc_hook=_name))
    data = {"format": FORMAT, "version": VERSION, **fields}
    for file in data.get("weights", ()):
        file["tensors"] = fold([[name, *span] for name, span in file["tensors"].items()])
    for program in data.get("programs", {}).values():
        numbers = {buffer["name"]: number for number, buffer in enumerate(program["buffers"])}
        for step in program["steps"]:
            step["arguments"] = [numbers[name] for name in step["arguments"]]
    return _text({**data, "programs": _folded(data.get("programs", {}))}) + "\n"


def _name(value: Any) -> str:
    """The text of a name that is a handle on a value (`graph.builder`)."""
    if isinstance(value, str):
        return str(value)
    raise InternalError(f"package: a manifest holds no {type(value).__name__}")


def from_json(text: str) -> Manifest:
    """Read the text of `manifest.json`.

    Raises `PackageError` if it is malformed or of another version.
    """
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PackageError(f"manifest.json is not JSON: {error}") from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise PackageError("manifest.json: not a webmlc package")
    if (version := data.pop("version", None)) != VERSION:
        raise PackageError(
            f"manifest.json: package version {version}, this webmlc reads {VERSION}: rebuild it"
        )
    try:
        for file in data.get("weights", ()):
            tensors = unfold(file["tensors"])
            file["tensors"] = {name: (begin, end) for name, begin, end in tensors}
        programs = data.get("programs", {}).items()
        data["programs"] = {device: _program(device, program) for device, program in programs}
        manifest = msgspec.convert(data, Manifest)
    except msgspec.ValidationError as error:
        raise PackageError(f"manifest.json: {_where(error)}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise PackageError(f"manifest.json is damaged: {error!r}") from error
    check_manifest(manifest)
    return manifest


def _program(device: str, data: Any) -> Program:
    """Read a program. An argument that is no number of a buffer stays, and is refused."""
    data = _unfolded(data)
    names = dict(enumerate(buffer.get("name") for buffer in data["buffers"]))
    for step in data["steps"]:
        step["arguments"] = [names.get(number, number) for number in step["arguments"]]
    try:
        return msgspec.convert(data, Program)
    except msgspec.ValidationError as error:
        raise PackageError(f"manifest.json: {_where(error, f'programs.{device}')}") from error


def _where(error: msgspec.ValidationError, place: str = "") -> str:
    """The path of a wrong field, and what is wrong with it."""
    problem, _, path = str(error).partition(" - at `$")
    return f"{place}{path[:-1]}".strip(".") + f": {problem}"


def _folded(value: Any) -> Any:
    """The value with shorter lists."""
    if isinstance(value, dict):
        return {key: _folded(inner) for key, inner in value.items()}
    return fold(value) if isinstance(value, list) else value


def _unfolded(value: Any) -> Any:
    """The value with its whole lists: the inverse of `_folded`."""
    if isinstance(value, dict):
        return {key: _unfolded(inner) for key, inner in value.items()}
    return unfold(value) if isinstance(value, list) else value


def _text(value: Any) -> str:
    """Print compact JSON, and break long containers into lines."""
    compact = json.dumps(value, separators=(",", ":"))
    if len(compact) <= LINE:
        return compact
    match value:
        case dict():
            return (
                "{\n" + ",\n".join(f"{json.dumps(k)}:{_text(v)}" for k, v in value.items()) + "\n}"
            )
        case list() if all(isinstance(item, dict) for item in value):
            return "[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in value) + "\n]"
    return compact
