"""Open a GGUF file: its metadata and its tensors, with one clear error for each defect.

In: a path. Out: a `GgufFile`. Only this folder imports the library `gguf`, and only when a GGUF
file is read.

    >>> file = open_gguf(Path("smollm2.gguf"))           # doctest: +SKIP
    >>> file.architecture, file.count("block_count")     # doctest: +SKIP
    ('llama', 30)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from webmlc.core.dependencies import note_library
from webmlc.core.errors import ModelError
from webmlc.frontend.gguf.weights import READERS, Matrix, read_matrix
from webmlc.graph.ir import Array
from webmlc.graph.ops.block_quantised import BlockQuantised

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

MAX_COUNT = 1 << 24
"""The largest width, number of layers or context of a model. Larger numbers are defects of a file.
Chosen by hand: the longest context of a published model has 10 million tokens.
"""
MAX_NUMBER = 1e12
"""The largest number, such as the base of a rotary embedding. Larger numbers are defects of a file.
Chosen by hand: published bases have up to 1e9.
"""
EXPONENTS: Mapping[str, Any] = {
    "float16": np.uint16(0x7C00),
    "bfloat16": np.uint16(0x7F80),
    "float32": np.uint32(0x7F800000),
}
"""The bits of the exponent, by type."""
CHECKED_AT_ONCE = 1 << 22
"""The number of elements of a tensor that are checked at once, to limit the memory of the check."""
T = TypeVar("T")


def shown(value: Any) -> str:
    """A value of the metadata for an error message, cut to some words."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The metadata by key, and the tensors by name. `read_names` are the names of tensors that
    were read.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ReaderTensor]
    read_names: set[str] = field(default_factory=set)

    def error(self, text: str) -> ModelError:
        """The error about a defect of the file."""
        return ModelError(f"{self.path}: {text}")

    @property
    def architecture(self) -> str:
        """The name of the architecture, such as `llama`."""
        return self.text("general.architecture")

    def value(self, key: str, default: Any = None) -> Any:
        """The metadata under a key. Raises `ModelError` if it is missing and has no default."""
        value = self.metadata.get(key, default)
        if value is None:
            raise self.error(f"the metadata has no {key!r}. The file is incomplete.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number of the architecture: the metadata `<architecture>.<key>`."""
        name = f"{self.architecture}.{key}"
        value = self.value(name, default)
        if isinstance(value, list):
            raise self.error(
                f"{name!r} is {shown(value)}, not one number. Layers that differ from "
                "each other are not supported."
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self.error(f"{name!r} is {shown(value)}, not a finite number.")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A number of the architecture that is above 0, and at most 1e12."""
        value = self.number(key, default)
        if not 0 < value <= MAX_NUMBER:
            raise self.error(
                f"{self.architecture}.{key} is {value}. It must be above 0, and at "
                f"most {MAX_NUMBER:g}."
            )
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A number of the architecture that is a positive integer, `MAX_COUNT` at most."""
        value = self.number(key, default)
        if not 1 <= value <= MAX_COUNT or value != int(value):
            raise self.error(
                f"{self.architecture}.{key} is {value}. It must be an integer from 1 "
                f"to {MAX_COUNT}."
            )
        return int(value)

    def text(self, key: str, default: str | None = None) -> str:
        """The text under a key."""
        value = self.value(key, default)
        if not isinstance(value, str):
            raise self.error(f"{key!r} is {shown(value)}, not a text.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The truth value under a key."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key!r} is {shown(value)}, neither true nor false.")
        return value

    def items(self, key: str, kind: type[T], default: Sequence[T] | None = None) -> Sequence[T]:
        """The list under a key, whose elements are all of one kind: str, int or float."""
        value = self.value(key, default)
        if not isinstance(value, list) or not all(type(element) is kind for element in value):
            raise self.error(f"{key!r} is {shown(value)}, not a list of {kind.__name__} elements.")
        return value

    @property
    def tokens(self) -> Sequence[str]:
        """The texts of the vocabulary."""
        tokens = self.items("tokenizer.ggml.tokens", str)
        if not tokens:
            raise self.error("the list of tokens is empty.")
        return tokens

    def token_number(self, name: str) -> int | None:
        """The number of the token with a role such as `bos`, or `None` if the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        number, count = self.metadata.get(key), len(self.tokens)
        if number is None:
            return None
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise self.error(
                f"{key!r} is {shown(number)}. The file has {count} tokens, which are "
                "numbered from 0."
            )
        return number

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """The matrix [rows, columns] of a tensor."""
        tensor = self._tensor(name, (rows, columns))
        matrix = read_matrix(tensor.data, tensor.tensor_type.name, (rows, columns))
        if isinstance(matrix, BlockQuantised):
            self._check_finite(name, matrix.scales)
            if matrix.minimums is not None:
                self._check_finite(name, matrix.minimums)
        else:
            self._check_finite(name, matrix)
        return matrix

    def vector(self, name: str, size: int) -> Array:
        """The tensor of one dimension as float32."""
        tensor = self._tensor(name, (size,))
        vector = read_matrix(tensor.data.reshape(1, -1), tensor.tensor_type.name, (1, size))
        if isinstance(vector, BlockQuantised):
            raise self.error(
                f"the vector {name!r} has the type {tensor.tensor_type.name}. "
                "Vectors must be of floats."
            )
        self._check_finite(name, vector)
        return vector.reshape(size).astype(np.float32)

    def _check_finite(self, name: str, floats: Array) -> None:
        """Raise `ModelError` if a number is NaN or infinite: all bits of its exponent are 1."""
        bits = EXPONENTS[floats.dtype.name]
        for part in np.array_split(floats.reshape(-1), max(floats.size // CHECKED_AT_ONCE, 1)):
            if np.any(np.bitwise_and(part.view(bits.dtype), bits) == bits):
                raise self.error(
                    f"the tensor {name!r} has numbers that are not finite. The "
                    "file is damaged, or its conversion failed."
                )

    def optional_vector(self, name: str, size: int) -> Array | None:
        """The tensor of one dimension, or None if the file does not have it."""
        return self.vector(name, size) if name in self.tensors else None

    def unread_names(self) -> list[str]:
        """The tensors that nothing has read."""
        return sorted(self.tensors.keys() - self.read_names)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> ReaderTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.error(
                f"the tensor {name!r} is missing. The file is incomplete, or its "
                f"architecture is not {self.architecture!r}."
            )
        self.read_names.add(name)
        # GGUF lists dimensions from the innermost one on.
        stored = tuple(int(d) for d in reversed(tensor.shape.tolist()))
        if stored != shape:
            raise self.error(
                f"the tensor {name!r} has the shape {list(stored)}. The metadata "
                f"says {list(shape)}."
            )
        if tensor.tensor_type.name not in READERS:
            raise self.error(
                f"the tensor {name!r} has the quantisation type "
                f"{tensor.tensor_type.name}. webmlc reads {', '.join(READERS)}. Convert the model "
                "with llama-quantize."
            )
        return tensor


def open_gguf(path: Path) -> GgufFile:
    """Open a file. Raises `ModelError` if it is missing, malformed or truncated."""
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        reader_class = _bounded_reader()
    except ImportError:
        raise ModelError(
            f"{path}: GGUF files need the package 'gguf'. Install it: pip install 'webmlc[gguf]'"
        ) from None
    note_library("gguf")
    # The library trusts the file, so a malformed file may cause any of these errors.
    errors = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
    try:
        with np.errstate(over="ignore"):
            reader = reader_class(path)
            metadata = {name: entry.contents() for name, entry in reader.fields.items()}
    except errors as error:
        if number := re.search(r"(\d+)\W* is not a valid GGMLQuantizationType", str(error)):
            raise ModelError(
                f"{path}: a tensor has the unknown quantisation type {number[1]}. "
                f"webmlc reads {', '.join(READERS)}."
            ) from None
        raise ModelError(f"{path}: not a GGUF model, or a truncated one ({error})") from None
    return GgufFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})


def _bounded_reader() -> type[GGUFReader]:
    """The library's reader, which reads nothing past the end of a file.

    The library itself would read an array of any length past the end, for years.
    """
    from gguf import GGUFReader

    class BoundedReader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **named: Any) -> Array:
            if isinstance(self.data, np.memmap):
                # Slicing a plain array takes a third of the time: SmolLM2 opens in 4.6 s, not 12.7.
                self.data = self.data.view(np.ndarray)  # type: ignore[assignment]
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError(f"it ends after {len(self.data)} bytes")
            array: Array = super()._get(offset, dtype, count, *rest, **named)
            return array

    return BoundedReader
