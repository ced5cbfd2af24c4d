"""`load` says what is at an address that is no package, and what to do, under Node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.packages import scaled

SCRIPT = Path(__file__).parent / "load_wrong.mjs"
PAGE = "<!doctype html><title>My app</title><div id=root></div>"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
COPY = (
    "Copy the folder that `webmlc build` wrote to where the page is served, and pass its URL to "
    "`load`"
)
HTML = "this is an HTML page, which the server sent instead of the file, as servers of single-page"
POINTER = "this is a Git LFS pointer, which stands for a file elsewhere. Fetch the file itself"

MANIFESTS = {
    PAGE: HTML,
    f"\ufeff<!-- made -->\n{PAGE}": HTML,
    '<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>': "this is an XML text",
    LFS: POINTER,
    "": "this is an empty file",
    "Not found": "is not JSON",
    '{"name": "My app", "icons": [], "start_url": "/"}': "this is the manifest of a web app",
    '{"error": "Repository not found"}': 'this is the answer of a server: "Repository not found"',
    '{"model_type": "bert"}': "not a webmlc package",
    "null": "not a webmlc package",
}
"""Files that a server may send instead of a manifest, and the text of the error."""

ADDRESSES = {
    "./absent/": f"HTTP status 404; is the package's URL right? {COPY}",
    "./folder": f"HTTP status 404; is the package's URL right? {COPY}",
    "./model.onnx": "Pages load packages, not models: build one with `webmlc build`",
    "./chat.Q4_K_M.gguf?download=true": "Pages load packages, not models",
    "Xenova/all-MiniLM-L6-v2": "If you mean a model of the Hugging Face hub: export it to a file",
    "./good/manifest.json": "Pass the URL of the package's folder, without manifest.json",
    "./model.mjs": "A package in a single file is a script. Take `load` from it",
}

FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "page for weights": (HTML, lambda f: (f / "weights.safetensors").write_text(PAGE)),
    "long page for weights": (
        HTML,
        lambda f: (f / "weights.safetensors").write_text(PAGE + 900 * " "),
    ),
    "pointer": (POINTER, lambda f: (f / "weights.safetensors").write_text(LFS)),
    "page for a module": (
        HTML,
        lambda f: (f / "model.simd128.wasm.deflate").write_text(PAGE),
    ),
}

VALUES = {
    "bytes": "load takes the URL of a package's folder, not Uint8Array",
    "blob": "load takes the URL of a package's folder, not Blob",
    "nothing": "load takes the URL of a package's folder, not undefined",
    "object": "load takes the URL of a package's folder, not Object",
}


def errors(folder: Path, addresses: list[Any]) -> list[tuple[str, str, str]]:
    """The errors of `load` in a working folder."""
    process = subprocess.run(
        ["node", str(SCRIPT)],
        cwd=folder,
        input=json.dumps(addresses),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return [tuple(error) for error in json.loads(process.stdout)]


def test_a_wrong_manifest_is_named(tmp_path: Path) -> None:
    for i, text in enumerate(MANIFESTS):
        (tmp_path / f"site{i}").mkdir()
        (tmp_path / f"site{i}" / "manifest.json").write_text(text)
    answers = errors(tmp_path, [f"site{i}/" for i in range(len(MANIFESTS))])
    for (text, message), (name, code, actual) in zip(MANIFESTS.items(), answers, strict=True):
        assert (name, code) == ("PackageError", "package")
        assert f"manifest.json: {message}" in actual, text
        assert len(actual) < 600


def test_a_page_at_the_address_of_a_model_says_what_to_load(tmp_path: Path) -> None:
    """A server of a single-page app has a page for every address."""
    folder = tmp_path / "model.onnx"
    folder.mkdir()
    (folder / "manifest.json").write_text(PAGE)
    [(_, _, message)] = errors(tmp_path, ["./model.onnx"])
    assert HTML in message and message.count("`webmlc build`") == 1
    assert "Pages load packages, not models" in message


def test_an_address_that_is_no_package_is_explained(tmp_path: Path) -> None:
    scaled(tmp_path / "good")
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08")
    answers = errors(tmp_path, list(ADDRESSES))
    for (address, message), (name, code, actual) in zip(ADDRESSES.items(), answers, strict=True):
        assert (name, code) == ("PackageError", "package"), address
        assert message in actual, address


def test_a_wrong_file_of_a_package_is_named(tmp_path: Path) -> None:
    for i, (_, spoil) in enumerate(FILES.values()):
        scaled(tmp_path / f"p{i}")
        spoil(tmp_path / f"p{i}")
    answers = errors(tmp_path, [f"p{i}/" for i in range(len(FILES))])
    for (case, (message, _)), (name, code, actual) in zip(FILES.items(), answers, strict=True):
        assert (name, code) == ("PackageError", "package"), case
        assert message in actual, case


def test_a_value_that_is_no_address_is_refused(tmp_path: Path) -> None:
    answers = errors(tmp_path, [{"kind": kind} for kind in VALUES])
    for message, (name, code, actual) in zip(VALUES.values(), answers, strict=True):
        assert (name, code) == ("InputError", "input")
        assert actual == f"{message}: pages compile no models, `webmlc build` does"
