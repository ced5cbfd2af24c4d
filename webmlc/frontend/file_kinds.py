"""Recognise the kind of a file by its content, and advise what to do with a file that is no model.

In: a path. Out: its `FileKind`, or `None` for a file that may be an ONNX model. People rename
files, and servers send pages instead of files, so a name says little.

    >>> kind_of(Path("model.onnx")).name                          # doctest: +SKIP
    'a Git LFS pointer, which stands for a file elsewhere'

A file is read only as far as its kind needs: some kilobytes of its head, and the list of an
archive. `check_path` refuses every file that no reader takes.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile

from webmlc.core.errors import ModelError
from webmlc.core.package_files import FORMAT, MANIFEST

HEAD = 4096
"""The bytes of a file that are read first. Chosen by hand: they hold the head of a page, and the
head of an archive.
"""
LARGEST_JSON = 16 << 20
"""The most bytes of a JSON text that is parsed. Chosen by hand: large tokenizers have 10 MB."""
MODEL_SUFFIXES = (".onnx", ".gguf", ".tflite", ".task", ".keras", ".pt2")
"""The suffixes of the files that webmlc builds."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """The kind of a file: its name in a message, and the advice for a user who passes such a file.
    The kind of a model that webmlc reads has a suffix instead of advice.
    """

    name: str
    advice: str = ""
    suffix: str = ""


READABLE = {
    suffix: FileKind(name, suffix=suffix)
    for suffix, name in {
        ".gguf": "a GGUF model",
        ".tflite": "a TensorFlow Lite model",
        ".task": "a bundle of TensorFlow Lite models",
        ".keras": "a Keras model",
        ".pt2": "an exported program of PyTorch",
    }.items()
}
"""The kinds that webmlc reads, by suffix."""

EXPORT_CHECKPOINT = (
    "Load it into its module in Python, and pass the module to webmlc.build with example_inputs, "
    "or export it to ONNX (for a model of Hugging Face: optimum-cli export onnx)."
)
UNPACK = "Unpack it, and name the model file inside."
FETCH_AGAIN = "Download it again."
NO_MODEL = (
    "Name a model: ONNX (.onnx), GGUF (.gguf), PyTorch (.pt2), Keras (.keras) or TensorFlow Lite "
    "(.tflite)."
)

STATE_DICT = FileKind(
    "a PyTorch checkpoint, which holds weights without the model's graph", EXPORT_CHECKPOINT
)
PICKLE = FileKind(
    "a Python pickle", "Load it in Python if you trust it, and pass the object to webmlc.build."
)
OPENVINO = FileKind("a model of OpenVINO", "Build the ONNX model that it came from.")
TENSORFLOW_JS = FileKind(
    "a model of TensorFlow.js", "Build the Keras model or the SavedModel that it came from."
)
DAMAGED_ARCHIVE = FileKind("a damaged or truncated zip archive", FETCH_AGAIN)

MAGIC: tuple[tuple[int, bytes, FileKind], ...] = (
    (0, b"GGUF", READABLE[".gguf"]),
    (4, b"TFL3", READABLE[".tflite"]),
    (
        0,
        b"version https://git-lfs",
        FileKind(
            "a Git LFS pointer, which stands for a file elsewhere",
            "Fetch the file itself: git lfs pull.",
        ),
    ),
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        FileKind(
            "an HDF5 file, as older versions of Keras write",
            "Load it in Python (keras.models.load_model), and save it as .keras. If it holds "
            "weights only, build the model in Python, and load them into it.",
        ),
    ),
    (
        4,
        b"ORTM",
        FileKind(
            "a model in the own format of ONNX Runtime", "Build the .onnx file that it came from."
        ),
    ),
    (
        4,
        b"ET1",
        FileKind("a program of ExecuTorch", "Save the exported program with torch.export.save."),
    ),
    *(
        (0, magic, FileKind("a model in a format older than GGUF", "Get or convert a .gguf file."))
        for magic in (b"lmgg", b"tjgg", b"fmgg", b"algg")
    ),
    (0, b"ftrt", FileKind("an engine of TensorRT", "Build the ONNX model that it came from.")),
    (0, b"\x93NUMPY", FileKind("a NumPy array", NO_MODEL)),
    *(
        (0, magic, FileKind(f"a {name} archive", UNPACK))
        for name, magic in {
            "gzip": b"\x1f\x8b",
            "bzip2": b"BZh",
            "xz": b"\xfd7zXZ\0",
            "Zstandard": b"\x28\xb5\x2f\xfd",
            "7-Zip": b"7z\xbc\xaf\x27\x1c",
            "RAR": b"Rar!",
        }.items()
    ),
    (257, b"ustar", FileKind("a tar archive", UNPACK)),
    *(
        (0, magic, FileKind(name, NO_MODEL))
        for name, magic in {
            "a PNG picture": b"\x89PNG",
            "a JPEG picture": b"\xff\xd8\xff",
            "a PDF document": b"%PDF-",
            "a WebAssembly module": b"\0asm",
            "an SQLite database": b"SQLite format 3",
            "a sound or a picture (RIFF)": b"RIFF",
            "a program": b"\x7fELF",
        }.items()
    ),
)
"""The kinds of files with fixed bytes at a fixed place: the place, the bytes and the kind."""
TORCH_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa85019")
"""The beginning of PyTorch's checkpoints from before 2020, after the two bytes of a pickle."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The bytes that some editors write before a text of UTF-8."""
VARINT, BYTES = 0, 2
"""Two wire types of protocol buffers: a number, and a text or a message after its length."""
MOST_FIELDS = 1 << 16
"""The most fields of a message that are looked at. Chosen by hand: more than a graph has nodes."""
COREML_FIELDS = range(200, 3001)
"""The fields of a Core ML `Model` that hold the network. No other message here has such fields."""


def check_path(path: Path) -> None:
    """Raise a `ModelError` if no reader takes the file or folder at a path. The message says which
    kind of file is there, and what to do.
    """
    kind = kind_of(path)
    if kind is not None and not kind.suffix:
        raise ModelError(f"{path}: {kind.name}. {kind.advice}".removesuffix(" "))


def is_kind(source: object, suffix: str) -> bool:
    """True for the path of a model of the kind with this suffix. The content decides, or the name
    if the content is of no known kind.
    """
    if not isinstance(source, str | Path):
        return False
    kind = kind_of(Path(source))
    return Path(source).suffix.lower() == suffix if kind is None else kind.suffix == suffix


def kind_of(path: Path) -> FileKind | None:
    """The kind of the file or folder at a path; `None` if it may be an ONNX model, or the folder of
    a SavedModel.

    Raises `ModelError` if the file cannot be read.
    """
    try:
        if path.is_dir():
            kind = _folder_kind(path)
        elif path.exists():
            kind = _file_kind(path)
        else:
            return _missing(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from error
    if kind is None or not kind.advice:
        return kind
    return FileKind(f"this is {kind.name}", kind.advice)


def _missing(path: Path) -> FileKind:
    """The kind of a path at which there is no file, with a guess at the user's intention."""
    text = str(path).replace("\\", "/")
    if re.match(r"(https?|hf|s3|gs):/", text):
        return FileKind("no such file", "webmlc downloads nothing: download the file first.")
    is_name = re.fullmatch(r"[\w-]+", text) or (
        re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text)
        and path.suffix.lower() not in MODEL_SUFFIXES
        and not path.parent.exists()
    )
    if is_name:
        return FileKind(
            "no such file or folder",
            "If it is a model of the Hugging Face hub, export it to a file first: "
            f"optimum-cli export onnx --model {text} {path.name}",
        )
    return FileKind("no such file or folder")


def _folder_kind(folder: Path) -> FileKind | None:
    if (folder / "saved_model.pb").is_file():
        return None
    if _json(folder / MANIFEST).get("format") == FORMAT:
        return _package(folder)
    if (folder / "Manifest.json").is_file() and (folder / "Data").is_dir():
        return FileKind("a Core ML model", "Export the model that it came from to ONNX.")
    models = [path for path in sorted(folder.glob("*")) if path.suffix in MODEL_SUFFIXES]
    models += [path for path in sorted(folder.glob("*/*")) if path.suffix in MODEL_SUFFIXES]
    if models:
        names = ", ".join(map(str, models[:3])) + (", ..." if len(models) > 3 else "")
        return FileKind("a folder", f"Name a model in it: {names}.")
    if any(map(_is_openvino, folder.glob("*.xml"))):
        return OPENVINO
    if "modelTopology" in _json(folder / "model.json"):
        return TENSORFLOW_JS
    checkpoints = [*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.pt")]
    if checkpoints:
        name = checkpoints[0].name
        return FileKind(f"a folder with weights ({name}) and no graph", EXPORT_CHECKPOINT)
    is_empty = next(folder.iterdir(), None) is None
    return FileKind("an empty folder" if is_empty else "a folder without a model", NO_MODEL)


def _is_openvino(path: Path) -> bool:
    with path.open("rb") as file:
        return b"<net" in file.read(HEAD)


def _package(folder: Path) -> FileKind:
    return FileKind(
        "a package already",
        "Build the model that it was built from, or run the package: "
        f"webmlc run {folder} (webmlc.load in Python).",
    )


def _file_kind(path: Path) -> FileKind | None:
    if not path.is_file():
        return FileKind("no regular file", NO_MODEL)
    with path.open("rb") as file:
        head = file.read(HEAD)
        size = path.stat().st_size
        if not head:
            return FileKind("an empty file", "Download or export the model again.")
        for offset, magic, kind in MAGIC:
            if head.startswith(magic, offset):
                return kind
        if head.startswith((b"PK\3\4", b"PK\5\6")):
            return _zip_kind(path)
        if head[:2] in (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"):
            return STATE_DICT if TORCH_MAGIC in head[:64] else PICKLE
        if _is_safetensors(head, size):
            return FileKind(
                "a safetensors file, which holds weights without the model's graph",
                EXPORT_CHECKPOINT,
            )
        return _text_kind(path, head, size) or _protobuf_kind(path, file, size)


def _is_safetensors(head: bytes, size: int) -> bool:
    if len(head) < 10 or head[8:9] != b"{":
        return False
    (length,) = struct.unpack("<Q", head[:8])
    return bool(length <= size - 8) and head[9:].lstrip()[:1] in (b'"', b"}")


def _zip_kind(path: Path) -> FileKind:
    """The kind of an archive, by the names of its files."""
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
    except (BadZipFile, ValueError, NotImplementedError):
        return DAMAGED_ARCHIVE
    if path.suffix == ".task" and any(name.endswith((".tflite", ".task")) for name in names):
        return READABLE[".task"]
    inner = {name.partition("/")[2] for name in names}  # PyTorch writes a folder around all files
    if {"config.json", "metadata.json"} <= {*names}:
        return READABLE[".keras"]
    if "archive_format" in inner or "serialized_exported_program.json" in {*names, *inner}:
        return READABLE[".pt2"]
    if "constants.pkl" in inner or any(name.startswith("code/") for name in inner):
        return FileKind(
            "a TorchScript archive, which torch.onnx exports no more",
            "Export the module that it came from: torch.export.save writes a .pt2 file.",
        )
    if "data.pkl" in inner:
        return STATE_DICT
    if names and all(name.endswith(".npy") for name in names):
        return FileKind("an archive of NumPy arrays", NO_MODEL)
    models = [name for name in names if name.lower().endswith(MODEL_SUFFIXES)]
    if models:
        return FileKind(f"a zip archive that holds {models[0]}", UNPACK)
    return FileKind("a zip archive", UNPACK)


def _text_kind(path: Path, head: bytes, size: int) -> FileKind | None:
    """The kind of a text; `None` for other bytes."""
    if not _is_text(head):
        return None
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip().lower()
    if re.match(rb"(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype html|html|head|body)", text, re.S):
        return FileKind(
            "an HTML page, which a server sent instead of a file",
            f"{FETCH_AGAIN} On Hugging Face and GitHub, take the link of the download button.",
        )
    if text.startswith(b"<") and b"<net" in text:
        return OPENVINO
    if text.startswith((b"{", b"[")):
        return _json_kind(_json(path) if size <= LARGEST_JSON else {}, path)
    if text.startswith(b"tree\nversion="):
        return FileKind(
            "a model of LightGBM",
            "Load it in Python: webmlc.build(lightgbm.Booster(model_file=...), ...).",
        )
    if b"ir_version" in text:
        return FileKind(
            "an ONNX model as text",
            "Convert it in Python: onnx.save(onnx.load(path, format='textproto'), 'model.onnx').",
        )
    first = head.removeprefix(BYTE_ORDER_MARK).strip().partition(b"\n")[0][:60]
    return FileKind(f"a text, which begins with {first.decode(errors='replace')!r}", NO_MODEL)


def _is_text(head: bytes) -> bool:
    """True if some bytes are UTF-8 without control characters. The last character may be cut."""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) < HEAD or error.start < HEAD - 3:
            return False
        text = head[: error.start].decode()
    return all(c.isprintable() or c in "\t\n\r\f\ufeff" for c in text[:512])


def _json_kind(value: dict[str, Any], path: Path) -> FileKind:
    if value.get("format") == FORMAT:
        return FileKind("the manifest of a package", f"Name its folder: {path.parent}.")
    if "modelTopology" in value or "weightsManifest" in value:
        return TENSORFLOW_JS
    if "model_type" in value or "architectures" in value:
        return FileKind("the configuration of a Hugging Face model", EXPORT_CHECKPOINT)
    if "learner" in value:
        return FileKind(
            "a model of XGBoost", "Load it into an xgboost.Booster, and pass that to webmlc.build."
        )
    if message := value.get("error") or value.get("message"):
        return FileKind(f"the answer of a server: {str(message)[:100]!r}", FETCH_AGAIN)
    return FileKind("a JSON text", NO_MODEL)


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is none."""
    try:
        value = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _protobuf_kind(path: Path, file: BinaryIO, size: int) -> FileKind | None:
    """The kind of a message whose fields differ from the fields of an ONNX model."""
    fields = _fields(file, size)
    networks = [wire for number, wire in fields.items() if number in COREML_FIELDS]
    if (
        fields.get(1) == VARINT
        and networks == [BYTES]
        and fields.keys() <= {1, 2, 10, *COREML_FIELDS}
    ):
        return FileKind("a Core ML model", "Export the model that it came from to ONNX.")
    if path.suffix == ".pb" and fields == {1: VARINT, 2: BYTES}:
        return FileKind("a part of a TensorFlow SavedModel", f"Name its folder: {path.parent}.")
    if fields.get(1) == BYTES and fields.keys() <= {1, 2, 3, 4}:
        return FileKind(
            "a frozen graph of TensorFlow", "Save the model as a SavedModel, and name its folder."
        )
    if fields.get(2) == VARINT and fields.keys() <= {1, 2, *range(4, 15)}:
        return FileKind("an ONNX tensor", "Name the model that it belongs to.")
    return None


def _fields(file: BinaryIO, size: int) -> dict[int, int]:
    """The wire types of the fields of a message of protocol buffers. Contents are skipped. The
    result is empty if the message is malformed, ends early or has too many fields.
    """
    fields: dict[int, int] = {}
    position = 0
    for _ in range(MOST_FIELDS):
        if position == size:
            return fields
        file.seek(position)
        window = file.read(32)
        try:
            tag, length = _varint(window, 0)
            number, wire = tag >> 3, tag & 7
            if wire == VARINT:
                _, length = _varint(window, length)
            elif wire == BYTES:
                payload, length = _varint(window, length)
                length += payload
            else:
                length += {1: 8, 5: 4}[wire]
        except LookupError:
            return {}
        position += length
        if number == 0 or position > size:
            return {}
        fields[number] = wire
    return {}


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number at a position, and the position after it. Raises `IndexError` at the end."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
