"""Open a TensorFlow Lite file: the subgraph of its first signature as plain records.

In: a path. Out: a `TfliteFile`. Only this module imports the library `tflite`, which reads the
tables of TensorFlow Lite's schema, and only when such a file is read.

    >>> file = open_tflite(Path("pose.tflite"))                       # doctest: +SKIP
    >>> [operator.name for operator in file.subgraph.operators]       # doctest: +SKIP
    ['CONV_2D', 'DEPTHWISE_CONV_2D', 'ADD', ...]

Every defect of the file raises a `ModelError` of one clear message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import ml_dtypes
import numpy as np

from webmlc.core.dependencies import note_library
from webmlc.core.dtypes import DType
from webmlc.core.errors import ModelError
from webmlc.frontend.tflite.sparse import dense_values, member_names
from webmlc.graph.ir import Array

CUSTOM = "CUSTOM"
"""The builtin operator whose name is the custom code."""
NUMPY_TYPES: Mapping[str, Any] = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "FLOAT64": np.float64,
    "BFLOAT16": ml_dtypes.bfloat16,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
    "INT4": ml_dtypes.int4,
}
"""The numpy types of elements by the name in the schema's `TensorType`. Texts, complex numbers,
resources and variants are missing.
"""
EMPTY_TABLE = struct.pack("<HHi", 4, 4, 4)
"""A table without fields in flatbuffers' format: its list of fields, then the table."""
MOST_BUNDLES = 3
"""The most bundles around a model. MediaPipe's gesture recogniser has 2."""
DEFECTS = (
    struct.error,
    IndexError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
"""The errors of the library `tflite` when the tables of a file lead out of it."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The real value of an integer is `(integer - zero) * scale`. There is one scale, or one for
    each position along `axis`.
    """

    scales: Array
    zeros: Array
    axis: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal parameters."""
        return (*self.scales.tolist(), *self.zeros.tolist(), self.axis)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a subgraph. `element` is the name of its type in the schema. A size of -1 is a
    size that only a run knows. `data` is the array of a constant.
    """

    name: str
    element: str
    shape: tuple[int, ...]
    data: Array | None = None
    quantisation: Quantisation | None = None
    has_rank: bool = True

    @property
    def dtype(self) -> DType | None:
        """The element type; None for texts, complex numbers, resources and variants."""
        numpy_type = NUMPY_TYPES.get(self.element)
        return None if numpy_type is None else DType.of(np.dtype(numpy_type))

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)


class Options:
    """The options of an operator: `options.StrideW` is a number, and `options.NewShape` an array if
    the schema has a vector there. An option is of the first of the tables that has it. An option
    that no table has raises `AttributeError`.
    """

    def __init__(self, *tables: Any) -> None:
        self._tables = tables

    def __getattr__(self, name: str) -> Any:
        table = next((t for t in self._tables if hasattr(t, name)), None)
        if hasattr(table, f"{name}AsNumpy"):
            is_none = getattr(table, f"{name}IsNone")()
            return () if is_none else getattr(table, f"{name}AsNumpy")().tolist()
        return getattr(table, name)()


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a subgraph. Inputs and outputs are indices of tensors, or -1 if left out."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Options
    version: int = 1
    custom_options: bytes = b""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A function of the file. `inputs` and `outputs` are indices of tensors."""

    tensors: Sequence[Tensor]
    operators: Sequence[Operator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a subgraph: the index of a tensor, and a name. A tensor may have
    several names.
    """

    inputs: Sequence[tuple[int, str]]
    outputs: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class TfliteFile:
    """The subgraph of the first signature of a file. A file without signatures has its first
    subgraph here. `read` reads the subgraph of a number, which control flow names; it raises
    `ModelError` if it is damaged.
    """

    path: Path
    number: int
    signature: Signature | None
    read: Callable[[int], Subgraph]

    @property
    def subgraph(self) -> Subgraph:
        """The subgraph of the signature."""
        return self.read(self.number)


def open_tflite(path: Path, name: str | None = None) -> TfliteFile:
    """Read a file: the signature of this name, or the first. In a bundle, `name` is the file to
    read. Raises `ModelError` if the file is damaged, or if nothing has the name.
    """
    import tflite

    note_library("tflite")
    content = path.read_bytes()
    if content.startswith(b"PK"):
        content, name = _member(path, name), None
    with _defects_of(path):
        return _Reader(path, content, tflite).file(name)


def _member(path: Path, name: str | None) -> bytes:
    """The bytes of a model in a bundle. Bundles may be in bundles; a slash parts their names."""
    with _defects_of(path):
        models = dict(_models(path.read_bytes(), "", MOST_BUNDLES))
    if name is None and len(models) == 1:
        (name,) = models
    if name is None or name not in models:
        listed = ", ".join(models) or "none"
        raise ModelError(
            f"{path}: no model of the bundle is chosen. It has: {listed}. Name one as signature."
        )
    return models[name]


def _models(content: bytes, prefix: str, levels: int) -> Iterator[tuple[str, bytes]]:
    """The models of a bundle, by their names."""
    try:
        with ZipFile(BytesIO(content)) as archive:
            for member in archive.infolist():
                if member.file_size > len(content):  # bundles are not compressed
                    continue
                name = prefix + member.filename
                if name.endswith(".tflite"):
                    yield name, archive.read(member)
                elif name.endswith(".task") and levels:
                    yield from _models(archive.read(member), f"{name}/", levels - 1)
    except (BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error


@contextmanager
def _defects_of(path: Path) -> Iterator[None]:
    """Turn errors of the library into a `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except DEFECTS as error:
        raise ModelError(
            f"{path}: the TensorFlow Lite model is damaged or truncated ({error})."
        ) from None


class _Reader:
    """A reader of one file."""

    def __init__(self, path: Path, content: bytes, schema: Any) -> None:
        self.path, self.content, self.schema = path, content, schema
        self.model = schema.Model.GetRootAs(content, 0)
        self.graphs: dict[int, Subgraph] = {}

    def names(self, enumeration: str) -> dict[int, str]:
        """The names of an enumeration of the schema by number."""
        return member_names(self.schema, enumeration)

    @cached_property
    def codes(self) -> list[tuple[str, int]]:
        """The name of each operator code and its version. Older files have only the deprecated
        field, which ends at 127.
        """
        names = self.names("BuiltinOperator")
        codes = []
        for code in _items(self.model, "OperatorCodes"):
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            name = names.get(number, f"operator {number}")
            if name == CUSTOM:
                name = _text(code.CustomCode())
            codes.append((name, code.Version()))
        return codes

    def file(self, name: str | None) -> TfliteFile:
        subgraphs = _items(self.model, "Subgraphs")
        if not subgraphs:
            raise ModelError(f"{self.path}: the TensorFlow Lite model has no subgraph.")
        tables = _items(self.model, "SignatureDefs")
        keys = [_text(table.SignatureKey()) for table in tables]
        if name is not None and name not in keys:
            listed = ", ".join(keys) or "none"
            raise ModelError(f"{self.path}: no signature is named {name!r}. It has: {listed}.")
        if not tables:
            return self.opened(0, None)
        table = tables[0 if name is None else keys.index(name)]
        number = table.SubgraphIndex()
        if number >= len(subgraphs):
            raise ModelError(
                f"{self.path}: the signature names subgraph {number}, which is missing."
            )
        inputs, outputs = (
            [(port.TensorIndex(), _text(port.Name())) for port in _items(table, ports)]
            for ports in ("Inputs", "Outputs")
        )
        return self.opened(number, Signature(inputs, outputs))

    def opened(self, number: int, signature: Signature | None) -> TfliteFile:
        """The file, whose main subgraph is read, and whose other subgraphs are not."""
        self.read(number)
        return TfliteFile(self.path, number, signature, self.read)

    def read(self, number: int) -> Subgraph:
        """The subgraph of a number. Each is read once."""
        if number not in self.graphs:
            with _defects_of(self.path):
                if not 0 <= number < self.model.SubgraphsLength():
                    raise IndexError(f"subgraph {number} of {self.model.SubgraphsLength()}")
                self.graphs[number] = self.subgraph(self.model.Subgraphs(number))
        return self.graphs[number]

    def subgraph(self, table: Any) -> Subgraph:
        tables = _items(table, "Operators")
        operands = ("Inputs", "Outputs", "CustomOptions")
        sizes = (getattr(o, f"{field}Length")() for o in tables for field in operands)
        if sum(sizes) > len(self.content):  # operators share vectors
            raise IndexError("the operands of all operators do not fit into the file")
        graph = Subgraph(
            self.tensors(table),
            [self.operator(o) for o in tables],
            _integers(table, "Inputs"),
            _integers(table, "Outputs"),
        )
        count = len(graph.tensors)
        for index in (i for o in graph.operators for i in (*o.inputs, *o.outputs)):
            if not -1 <= index < count:
                raise IndexError(f"tensor {index} of {count}")
        for index in (*graph.inputs, *graph.outputs):
            if not 0 <= index < count:
                raise IndexError(f"tensor {index} of {count} as an input or output of the model")
        return graph

    def tensors(self, table: Any) -> list[Tensor]:
        """The tensors of a subgraph. A table in several places of the vector is read once."""
        read: dict[int, Tensor] = {}
        tables = _items(table, "Tensors")
        for index, item in enumerate(tables):
            if item._tab.Pos not in read:
                read[item._tab.Pos] = self.tensor(item, index)
        return [read[item._tab.Pos] for item in tables]

    def tensor(self, table: Any, index: int) -> Tensor:
        element = self.names("TensorType").get(table.Type(), f"type {table.Type()}")
        name = _text(table.Name()) or f"tensor_{index}"
        shape = _integers(table, "Shape")
        data = self.buffer(table.Buffer())
        array = None
        if element in NUMPY_TYPES and (data.size or (table.Buffer() and 0 in shape)):
            array = self.array(table, NUMPY_TYPES[element], shape, data)
        signature = _integers(table, "ShapeSignature")
        return Tensor(
            name,
            element,
            signature if len(signature) == len(shape) and array is None else shape,
            array,
            _quantisation(table.Quantization()),
            bool(table.HasRank() or shape or array is not None),
        )

    def array(self, table: Any, numpy_type: Any, shape: tuple[int, ...], data: Array) -> Array:
        """The constant of a tensor. A sparse tensor becomes dense."""
        if numpy_type is ml_dtypes.int4:
            nibbles = np.stack([data << 4, data], axis=-1).view(np.int8) >> 4
            values = nibbles.reshape(-1)[: prod(shape)].astype(ml_dtypes.int4)
        else:
            values = data.view(numpy_type)
        sparsity = table.Sparsity()
        if sparsity is not None:
            return dense_values(sparsity, self.schema, values, shape)
        return values.reshape(shape)

    def buffer(self, index: int) -> Array:
        """The bytes of a buffer. Large buffers are behind the tables of the file."""
        if not 0 <= index < self.model.BuffersLength():
            raise IndexError(f"buffer {index} of {self.model.BuffersLength()}")
        table = self.model.Buffers(index)
        if table.DataLength():
            data: Array = table.DataAsNumpy()
            return data
        start, size = (table.Offset(), table.Size()) if table.Offset() > 1 else (0, 0)
        if start + size > len(self.content):
            raise IndexError(f"buffer {index} ends after the file")
        return np.frombuffer(self.content, np.uint8, size, start)

    def operator(self, table: Any) -> Operator:
        name, version = self.codes[table.OpcodeIndex()]
        custom = b""
        if table.CustomOptionsLength():
            custom = table.CustomOptionsAsNumpy().tobytes()
        elif table.LargeCustomOptionsOffset() > 1:
            start = table.LargeCustomOptionsOffset()
            custom = self.content[start : start + table.LargeCustomOptionsSize()]
        return Operator(
            name,
            _integers(table, "Inputs"),
            _integers(table, "Outputs"),
            self.options(table),
            version,
            custom,
        )

    def options(self, table: Any) -> Options:
        """The options of an operator. Newer operators have a second union of options. Files may
        leave out a table of options that all have their default.
        """
        for suffix in ("", "2"):
            kind = getattr(table, f"BuiltinOptions{suffix}Type")()
            inner = getattr(table, f"BuiltinOptions{suffix}")()
            if kind and inner is not None:
                name = self.names(f"BuiltinOptions{suffix}")[kind]
                options = getattr(self.schema, name)()
                options.Init(inner.Bytes, inner.Pos)
                return Options(options)
        return self.defaults

    @cached_property
    def defaults(self) -> Options:
        """All options of the schema with their defaults."""
        tables = []
        for kind in self.names("BuiltinOptions").values():
            if hasattr(self.schema, kind):
                tables.append(getattr(self.schema, kind)())
                tables[-1].Init(EMPTY_TABLE, len(EMPTY_TABLE) // 2)
        return Options(*tables)


def _quantisation(table: Any) -> Quantisation | None:
    """The parameters of a quantised tensor; None if it has no scale."""
    if table is None or not table.ScaleLength():
        return None
    scales = np.array(table.ScaleAsNumpy(), np.float32)
    zeros = np.array(table.ZeroPointAsNumpy(), np.int64) if table.ZeroPointLength() else 0
    return Quantisation(scales, np.broadcast_to(zeros, scales.shape), table.QuantizedDimension())


def _items(table: Any, field: str) -> list[Any]:
    """The tables in a vector of tables, each of which has a place of four bytes in the file."""
    read: Callable[[int], Any] = getattr(table, field)
    count = getattr(table, f"{field}Length")()
    if 4 * count > len(table._tab.Bytes):
        raise IndexError(f"{count} {field} do not fit into the file")
    return [read(index) for index in range(count)]


def _integers(table: Any, field: str) -> tuple[int, ...]:
    """The numbers in a vector."""
    if not getattr(table, f"{field}Length")():
        return ()
    return tuple(getattr(table, f"{field}AsNumpy")().tolist())


def _text(text: bytes | None) -> str:
    return "" if text is None else text.decode("utf-8", "replace")
