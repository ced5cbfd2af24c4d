"""A wrong file is named for what it is, whatever its name says, with what to do."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.numpy
from onnx import numpy_helper

import webmlc
from tests.command_line import run
from webmlc.core.errors import ModelError, PackageError, UserError
from webmlc.frontend.doors.export_source import DOORS, export_source
from webmlc.frontend.file_kinds import check_path, kind_of

DIGITS = Path(__file__).parents[2] / "demos" / "digits" / "digits.onnx"


def archive(*names: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name in names:
            file.writestr(name, "content")
    return data.getvalue()


def tar() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        file.add(DIGITS, "digits.onnx")
    return data.getvalue()


def npy() -> bytes:
    data = io.BytesIO()
    np.save(data, np.ones(3))
    return data.getvalue()


def field(number: int, value: bytes | int) -> bytes:
    """A field of protocol buffers, of less than 128 bytes."""
    if isinstance(value, int):
        tag = number << 3
        return bytes([tag, value]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7, value])
    tag = number << 3 | 2
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return head + bytes([len(value)]) + value


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>"
OPENVINO = b'<?xml version="1.0"?>\n<net name="model" version="11"><layers/></net>'
TORCH_2019 = b"\x80\x02" + bytes.fromhex("8a0a6cfc9c46f9206aa85019") + b".\x80\x02M\xe9\x03."
NODE = field(1, field(1, b"input") + field(2, b"Placeholder"))
WRONG: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file. Download or export"),
    "lfs": (LFS, "a Git LFS pointer, which stands for a file elsewhere. Fetch .* git lfs pull"),
    "html": (HTML, "an HTML page, which a server sent instead of a file. Download it again"),
    "html with a comment": (b"\xef\xbb\xbf\n<!-- x -->" + HTML.lower(), "an HTML page"),
    "xhtml": (b'<?xml version="1.0"?>\n' + HTML, "an HTML page"),
    "state dict": (
        archive("archive/data.pkl", "archive/version", "archive/data/0"),
        "a PyTorch checkpoint, which holds weights without .* pass the module to webmlc.build",
    ),
    "old state dict": (TORCH_2019, "a PyTorch checkpoint"),
    "torchscript": (
        archive("net/data.pkl", "net/constants.pkl", "net/code/__torch__.py"),
        "a TorchScript archive.* torch.export.save",
    ),
    "safetensors": (safetensors.numpy.save({"w": np.ones(3)}), "a safetensors file"),
    "safetensors with metadata": (
        safetensors.numpy.save({"w": np.ones(3)}, metadata={"format": "pt"}),
        "a safetensors file",
    ),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file.* save it as .keras"),
    "zip": (archive("readme.txt"), "a zip archive. Unpack it"),
    "zip with a model": (archive("a/pose.tflite"), r"a zip archive that holds a/pose\.tflite"),
    "truncated zip": (archive("metadata.json", "config.json")[:40], "a damaged or truncated zip"),
    "npz": (archive("x.npy", "y.npy"), "an archive of NumPy arrays"),
    "npy": (npy(), "a NumPy array"),
    "tar": (tar(), "a tar archive. Unpack it"),
    "gzip": (gzip.compress(b"model"), "a gzip archive. Unpack it"),
    "pickle": (pickle.dumps({"coef": [1, 2]}), "a Python pickle. Load it in Python if you trust"),
    "old pickle": (pickle.dumps([1], protocol=2), "a Python pickle"),
    "frozen graph": (NODE * 3 + field(4, field(1, 5)), "a frozen graph of TensorFlow. Save"),
    "core ml": (
        field(1, 7) + field(2, b"") + field(500, field(1, b"layer")),
        "a Core ML model. Export the model that it came from",
    ),
    "core ml program": (field(1, 8) + field(2, b"") + field(502, field(1, 1)), "a Core ML model"),
    "tensor": (
        numpy_helper.from_array(np.ones((2, 3), np.float32), "x").SerializeToString(),
        "an ONNX tensor. Name the model",
    ),
    "openvino": (OPENVINO, "a model of OpenVINO. Build the ONNX model"),
    "ort": (struct.pack("<I", 24) + b"ORTM" + bytes(32), "the own format of ONNX Runtime"),
    "json": (b'{"a": 1}', "a JSON text"),
    "json list": (b"[1, 2]", "a JSON text"),
    "configuration": (b'{"model_type": "bert"}', "the configuration of a Hugging Face model"),
    "answer": (b'{"error": "Repository not found"}', "answer of a server: 'Repository not found'"),
    "tensorflow.js": (b'{"modelTopology": {}}', "a model of TensorFlow.js"),
    "xgboost": (b'{"learner": {}}', "a model of XGBoost. Load it into an xgboost.Booster"),
    "lightgbm": (b"tree\nversion=v4\n", "a model of LightGBM. Load it in Python"),
    "onnx text": (b'<ir_version: 8, opset_import: ["": 17]> g', "an ONNX model as text"),
    "text": (b"Access denied\n", "a text, which begins with 'Access denied'"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(20), "a PNG picture. Name a model"),
    "ggml": (b"tjgg" + bytes(32), "a format older than GGUF"),
}


@pytest.mark.parametrize("suffix", [".onnx", ".gguf", ".keras", ".bin"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_named(name: str, suffix: str, tmp_path: Path) -> None:
    content, message = WRONG[name]
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"^{path}: this is .*{message}") as error:
        export_source(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (b"GGUF" + bytes(8), ".gguf"),
        (b"\x1c\0\0\0TFL3" + bytes(8), ".tflite"),
        (archive("metadata.json", "config.json", "model.weights.h5"), ".keras"),
        (archive("program/archive_format", "program/models/model.json"), ".pt2"),
        (archive("serialized_exported_program.json", "version"), ".pt2"),
    ],
    ids=["gguf", "tflite", "keras", "pt2", "older pt2"],
)
def test_the_content_opens_a_door(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    kind = kind_of(path)
    assert kind is not None and kind.suffix == suffix
    doors = [door.framework for door in DOORS if door.accepts(path)]
    expected = {".tflite": ["TensorFlow Lite"], ".keras": ["Keras"], ".pt2": ["PyTorch"]}
    assert doors == expected.get(suffix, [])


@pytest.mark.parametrize("path", sorted(DIGITS.parents[1].rglob("*.onnx")), ids=lambda p: p.name)
def test_an_onnx_model_may_be_one(path: Path) -> None:
    assert kind_of(path) is None


def test_models_of_unusual_bytes_may_be_onnx(tmp_path: Path) -> None:
    graph = onnx.load(DIGITS).graph
    path = tmp_path / "m.bin"
    for producer in ("", "TFL", "x" * 300):
        path.write_bytes(onnx.ModelProto(graph=graph, producer_name=producer).SerializeToString())
        assert kind_of(path) is None
    path.write_bytes(b"\x08\x08" * 100_000)
    assert kind_of(path) is None
    path.write_bytes(DIGITS.read_bytes()[:-9])
    assert kind_of(path) is None


FOLDERS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "empty": ({}, "an empty folder. Name a model"),
    "other": ({"notes.txt": ""}, "a folder without a model"),
    "models": (
        {"onnx/model.onnx": "", "a.tflite": ""},
        r"Name a model in it: .*a\.tflite, .*onnx/",
    ),
    "checkpoint": (
        {"config.json": "{}", "model.safetensors": ""},
        r"a folder with weights \(model\.safetensors\) and no graph. Load it into its module",
    ),
    "core ml": ({"Manifest.json": "{}", "Data/model.mlmodel": ""}, "a Core ML model"),
    "openvino": ({"model.xml": OPENVINO.decode(), "model.bin": ""}, "a model of OpenVINO"),
    "tensorflow.js": ({"model.json": '{"modelTopology": {}}'}, "a model of TensorFlow.js"),
    "package": ({"manifest.json": '{"format": "webmlc"}'}, "a package already. Build the model"),
    "web app": ({"manifest.json": '{"name": "app"}'}, "a folder without a model"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_without_a_model_is_named(name: str, tmp_path: Path) -> None:
    files, message = FOLDERS[name]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    with pytest.raises(ModelError, match=f"^{tmp_path}: this is .*{message}"):
        check_path(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("microsoft/resnet-18", "Hugging Face hub.* --model microsoft/resnet-18 resnet-18"),
        ("gpt2", "Hugging Face hub.* --model gpt2 gpt2"),
        ("https://example.org/model.onnx", "webmlc downloads nothing: download the file first"),
        ("missing/model.onnx", r"no such file or folder\.$"),
        ("../missing", r"no such file or folder\.$"),
    ],
)
def test_a_missing_file_is_named(path: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        webmlc.build(path, "out")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"weight": np.ones(3)}, "has no graph. Load it into its module"),
        (DIGITS.read_bytes(), "pass onnx.load_model_from_string"),
        (None, "cannot read an object of class NoneType"),
    ],
)
def test_a_wrong_object_is_named(source: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        export_source(source)


def test_load_says_what_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(HTML)
    manifest = {"format": "webmlc"}
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "manifest.json").write_text(json.dumps(manifest))
    for path, message in (
        (DIGITS, rf"this is a model, not a package. .* webmlc build {DIGITS} -o build/digits$"),
        (tmp_path / "page.html", "this is an HTML page"),
        (tmp_path, r"no manifest\.json here; make a package"),
        (tmp_path / "package" / "manifest.json", "the manifest of a package. Name its folder"),
        ("microsoft/resnet-18", r"no manifest\.json here"),
    ):
        with pytest.raises(PackageError, match=message):
            webmlc.load(path)


@pytest.mark.parametrize("command", ["build", "run", "check", "bench", "inspect", "report", "chat"])
def test_every_command_names_a_wrong_file(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "model.onnx").write_bytes(LFS)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for path, message in (
        ("model.onnx", "model.onnx: this is a Git LFS pointer"),
        ("folder", "folder: this is an empty folder"),
        ("microsoft/resnet-18", "microsoft/resnet-18: no such file or folder. If it is"),
    ):
        result = run(monkeypatch, capsys, command, path)
        assert result.code == 2
        assert result.err.startswith(f"error: {message}") and result.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "folder"}
