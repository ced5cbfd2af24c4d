"""Write a manifest as the text of `manifest.json`, and read it.

In: a `Manifest`. Out: JSON, with one buffer, step or file per line. Equal manifests give equal
bytes. The records define the fields. The file shortens some of them:

- an argument of a step is the distance of its buffer from the first unused buffer, which is after
  all buffers of earlier arguments: 0 is the unused buffer itself, and -1 the buffer before it.
  Equal layers therefore have equal steps;
- a number in a list of `Memory` is the distance to the number before it;
- the tensor of a constant is left out if it has the name of the buffer;
- the tensors of a weights file are a list of `[name, length]`. The first tensor begins at the
  `start` of the file, each other tensor at the next multiple of 256 bytes;
- equal layers are written once (`repetitions`): in the list of tensors, and in all lists of
  programs.

Reading checks every field, and names the wrong field. `runtime_js/manifest.js` does the same:

    PackageError: manifest.json: programs.wasm.steps[3].outputs: Expected `int`, got `str`
"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec

from webmlc.core.errors import InternalError, PackageError
from webmlc.frontend.file_kinds import kind_of
from webmlc.package.check_manifest import check_manifest
from webmlc.package.manifest import FORMAT, MANIFEST, VERSION, Manifest, Program
from webmlc.package.memory_plan import CONSTANT_ALIGNMENT
from webmlc.package.placement import align
from webmlc.package.repetitions import fold, unfold

LINE = 160
"""Keep a container on one line if its text has at most this many characters. Chosen by hand."""


def to_json(manifest: Manifest) -> str:
    """Convert a manifest to the text of `manifest.json`."""
    fields = msgspec.json.decode(msgspec.json.encode(manifest, enc_hook=_name))
    data = {"format": FORMAT, "version": VERSION, **fields}
    for file in data.get("weights", ()):
        spans = file["tensors"]
        file["start"] = next((begin for begin, _ in spans.values()), 0)
        file["tensors"] = fold([[name, end - begin] for name, (begin, end) in spans.items()])
    for program in data.get("programs", {}).values():
        _shorten(program)
    return _text({**data, "programs": _folded(data.get("programs", {}))}) + "\n"


def _shorten(program: dict[str, Any]) -> None:
    """Write numbers as distances, and leave out the tensors that have the names of buffers."""
    numbers = {buffer["name"]: number for number, buffer in enumerate(program["buffers"])}
    for buffer in program["buffers"]:
        if buffer.get("tensor") == buffer["name"]:
            del buffer["tensor"]
    unused = 0
    for step in program["steps"]:
        names, step["arguments"] = step["arguments"], []
        for number in (numbers[name] for name in names):
            step["arguments"].append(number - unused)
            unused = max(unused, number + 1)
    for memory in program.get("memory", {}).values():
        for key in memory.keys() - {"arena"}:
            memory[key] = [b - a for a, b in pairwise([0, *memory[key]])]


def _lengthen(program: dict[str, Any]) -> None:
    """Undo `_shorten`. An argument that is no distance to a buffer stays, so reading refuses it."""
    names = [buffer.get("name") for buffer in program["buffers"]]
    for buffer in program["buffers"]:
        if buffer.get("kind") == "constant":
            buffer.setdefault("tensor", buffer.get("name"))
    unused = 0
    for step in program["steps"]:
        distances, step["arguments"] = step["arguments"], []
        for number in (unused + distance for distance in distances):
            is_buffer = 0 <= number < len(names)
            step["arguments"].append(names[number] if is_buffer else number)
            unused = max(unused, number + 1)
    for memory in program.get("memory", {}).values():
        for key in memory.keys() - {"arena"}:
            memory[key] = list(accumulate(memory[key]))


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
            end = file.pop("start")
            tensors, file["tensors"] = unfold(file["tensors"]), {}
            for name, length in tensors:
                begin = align(end, CONSTANT_ALIGNMENT)
                file["tensors"][name] = begin, (end := begin + length)
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
    """Read a program, and name its device in an error."""
    data = _unfolded(data)
    _lengthen(data)
    try:
        return msgspec.convert(data, Program)
    except msgspec.ValidationError as error:
        raise PackageError(f"manifest.json: {_where(error, f'programs.{device}')}") from error


def _where(error: msgspec.ValidationError, place: str = "") -> str:
    """The path of a wrong field, and the fault in it."""
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


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the package in `folder`. Raises `PackageError` if there is none."""
    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except OSError as error:
        raise PackageError(f"{folder}: {_instead(folder)}") from error
    except UnicodeDecodeError as error:
        raise PackageError(f"{folder / MANIFEST}: not UTF-8 text") from error
    return from_json(text)


def _instead(path: Path) -> str:
    """Describe the contents of a path without a package, and say what to do."""
    kind = kind_of(path) if path.is_file() else None
    if path.is_file() and (kind is None or kind.suffix):
        out = f"build/{path.stem}"
        return (
            f"this is a model, not a package. Build it, and load the package: webmlc build {path} "
            f"-o {out}"
        )
    if kind is not None:
        return f"{kind.name}. {kind.advice}"
    return f"no {MANIFEST} here; make a package with `webmlc build MODEL -o {path}`"
