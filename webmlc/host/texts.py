"""Compute with texts, before and after the program.

In: the inputs of a run, with texts as arrays of `str`. Out: the inputs of the program, in which a
text is a number; and at the end the outputs of the model, in which numbers are texts again. The
twin of this module is `runtime_js/texts.js`, and `core/text_steps.py` documents the steps.

    {"text": ["good dog"]}  ->  {"counts": [[0, 1, 1]]}  ->  {"label": [2]}  ->  {"label": ["pet"]}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError, PackageError
from webmlc.core.text_patterns import compiled_pattern
from webmlc.core.text_steps import (
    Append,
    CountGrams,
    Grams,
    Join,
    Match,
    Normalise,
    Parse,
    Print,
    Split,
    Take,
    TextStep,
    Tokenise,
    View,
    sources,
)
from webmlc.host.bind import check_names, chosen_ports
from webmlc.package.manifest import Manifest, TextPort
from webmlc.package.manifest import Texts as TextRecord
from webmlc.package.sizes import shape_text

Array = NDArray[Any]
T = TypeVar("T")
ReadFile = Callable[[str], bytes]
RunProgram = Callable[[Mapping[str, Array], "Sequence[str] | None"], dict[str, Array]]
MARKS = "\x02", "\x03"
"""The tokens before and after the tokens of a text."""
_SPACE = " \t\n\v\f\r"
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,20})")
_FLOAT = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE
)


class Texts:
    """The texts of a loaded model."""

    def __init__(self, manifest: Manifest, record: TextRecord, read: ReadFile) -> None:
        self._record = record
        self._words = _read_json(read, record.words, list[str])
        self._numbers = {word: number for number, word in enumerate(self._words)}
        self._inputs, self._outputs = manifest.model_inputs, manifest.model_outputs
        self._grams = {
            step.grams: Counter(_read_json(read, step.grams, Grams), step)
            for step in record.before
            if isinstance(step, CountGrams)
        }

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the program, and the texts of n-grams."""
        texts = [text for counter in self._grams.values() for text in counter.texts]
        return tuple(dict.fromkeys([*self._words, *texts]))

    def run(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None, program: RunProgram
    ) -> dict[str, Array]:
        """Run the model. `program` runs the program with its inputs, and returns the outputs of
        some names. Raises `InputError` as `Model.run` does.
        """
        chosen = [port.name for port in chosen_ports(self._outputs, outputs)]
        texts = {port.name for port in self._record.outputs}
        has_texts = not texts.isdisjoint(chosen)
        hidden = self._record.reads if has_texts else ()
        values = _Values(self._words, self._numbers)
        numbers = program(
            self._feeds(inputs, values), [*(n for n in chosen if n not in texts), *hidden]
        )
        if has_texts:
            values.arrays |= numbers
            values.compute(self._record.after, self._grams)
        return {name: values.texts(name) if name in texts else numbers[name] for name in chosen}

    def feeds(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs of the program. Raises `InputError` for wrong texts."""
        return self._feeds(inputs, _Values(self._words, self._numbers))

    def _feeds(self, inputs: Mapping[str, Any], values: _Values) -> dict[str, Array]:
        for name, tensor in self._record.constants.items():
            values.arrays[name] = _texts(tensor.texts, tensor.shape)
        check_names(self._inputs, inputs)
        sizes: dict[str, int] = {}
        for port in self._record.inputs:
            values.arrays[port.name] = _read(port, inputs[port.name], sizes)
        values.compute(self._record.before, self._grams)
        numeric = {name: array for name, array in inputs.items() if name not in values.arrays}
        return {**numeric, **{name: values.number(name) for name in self._record.feeds}}


@dataclass(slots=True)
class _Values:
    """The values of a run: texts as arrays of `str`, and numbers. `extra` numbers the texts of the
    run that are no words.
    """

    words: Sequence[str]
    numbers: Mapping[str, int]
    arrays: dict[str, Array] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> Array:
        """A value as the program reads it."""
        array = self.arrays[name]
        if array.dtype != object:
            return array
        flat = []
        for text in array.reshape(-1).tolist():
            number = self.numbers.get(text)
            if number is None:
                number = self.extra.setdefault(text, len(self.words) + len(self.extra))
            flat.append(number)
        return np.array(flat, np.int64).reshape(array.shape)

    def texts(self, name: str) -> Array:
        """A value as texts."""
        array = self.arrays[name]
        if array.dtype == object:
            return array
        words = [*self.words, *self.extra] if self.extra else self.words
        return _texts([words[number] for number in array.reshape(-1).tolist()], array.shape)

    def compute(self, steps: Iterable[TextStep], grams: Mapping[str, Counter]) -> None:
        """Compute the steps in order."""
        for step in steps:
            read = self.arrays.__getitem__ if isinstance(step, View | Print) else self.texts
            arrays = [read(name) for name in sources(step)]
            if isinstance(step, CountGrams):
                self.arrays[step.result] = grams[step.grams].count(arrays[0])
            elif isinstance(step, Split):
                self.arrays[step.result], self.arrays[step.counts] = _split(step, arrays[0])
            else:
                try:
                    self.arrays[step.result] = compute_step(step, *arrays)
                except (ValueError, IndexError) as error:
                    shapes = " and ".join(shape_text(array.shape) for array in arrays)
                    raise InputError(
                        f"the texts {step.result!r} cannot be computed of shapes {shapes}: {error}"
                    ) from None


def compute_step(step: TextStep, *arrays: Array) -> Array:
    """The result of a step on arrays of texts."""
    array = arrays[0]
    match step:
        case View(shape=sizes):
            return array.reshape(_viewed(sizes, array.shape))
        case Take(axis=axis, indices=indices):
            return array.take(indices, axis)
        case Join(axis=axis):
            return np.concatenate(arrays, axis)
        case Normalise():
            return _normalise(step, array)
        case Tokenise():
            return _padded([_tokens(step, text) for text in array.flat], array.shape, step)
        case Append():
            left, right = np.broadcast_arrays(*arrays)
            pairs = zip(left.flat, right.flat, strict=True)
            return _texts([text + end for text, end in pairs], left.shape)
        case Match(pattern=pattern):
            matches = compiled_pattern(pattern).fullmatch
            flags = [matches(text) is not None for text in array.flat]
            return np.array(flags, np.bool_).reshape(array.shape)
        case Parse(dtype=dtype):
            numbers = [_parse(text, dtype) for text in array.flat]
            return np.array(numbers, dtype.numpy).reshape(array.shape)
        case Print():
            return _texts([_print(number) for number in array.flat], array.shape)
    raise TypeError(step)


def _viewed(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The shape of a `View`. Axes of equal size do not count for the size that remains, because
    they may be empty.
    """
    remaining = prod(n for axis, n in enumerate(shape) if axis >= len(sizes) or sizes[axis])
    remaining //= prod(size for size in sizes if size > 0)
    return [
        shape[axis] if size == 0 else remaining if size == -1 else size
        for axis, size in enumerate(sizes)
    ]


def _texts(texts: Iterable[str], shape: Sequence[int]) -> Array:
    array = np.empty(tuple(shape), object)
    array.reshape(-1)[:] = list(texts)
    return array


def _read_json(read: ReadFile, path: str, kind: type[T]) -> T:
    """Read a file of the package. Raises `PackageError` if it does not hold this type."""
    try:
        return msgspec.json.decode(read(path), type=kind)
    except msgspec.MsgspecError as error:
        raise PackageError(f"{path}: {error}. Build the package again") from None


def _read(port: TextPort, value: Any, sizes: dict[str, int]) -> Array:
    """An input of texts. `sizes` holds the symbolic sizes of the inputs before it, and then of this
    input. Raises `InputError` if it holds no texts, or has another shape.
    """
    # numpy would write the numbers of a mixed list as texts
    array = value if isinstance(value, np.ndarray) else np.array(value, object)
    flat = array.reshape(-1).tolist()
    wrong = [type(text).__name__ for text in flat if not isinstance(text, str)]
    if wrong or array.dtype.kind not in "OTU":
        element = wrong[0] if array.dtype == object else array.dtype
        raise InputError(f"input {port.name!r} holds {element}, expected texts (str)")
    is_same = array.ndim == len(port.shape) and all(
        actual == (size if isinstance(size, int) else sizes.setdefault(size, actual))
        for size, actual in zip(port.shape, array.shape, strict=True)
        if not isinstance(size, list)
    )
    if not is_same:
        bound = ", ".join(f"{name} = {sizes[name]}" for name in port.shape if name in sizes)
        raise InputError(
            f"input {port.name!r} has shape {shape_text(array.shape)}, expected "
            f"{shape_text(port.shape)}" + (f" with {bound}" if bound else "")
        )
    return _texts(flat, array.shape)


def _normalise(step: Normalise, array: Array) -> Array:
    changes: dict[str, Callable[[str], str]] = {"lower": str.lower, "upper": str.upper, "none": str}
    change = changes[step.case]
    if not step.stop_words:
        return _texts(map(change, array.flat), array.shape)
    if prod(array.shape[:-1]) != 1:
        raise ValueError("stop words are removed from one row of texts")
    fold = changes["lower" if step.folds else "none"]
    stop_words = set(map(fold, step.stop_words))
    texts = [change(text) for text in array.flat if fold(text) not in stop_words] or [""]
    return _texts(texts, (*array.shape[:-1], len(texts)))


def _split(step: Split, array: Array) -> tuple[Array, Array]:
    parts = [_parts(text, step.delimiter, step.limit) for text in array.flat]
    counts = np.array([len(p) for p in parts], np.int64).reshape(array.shape)
    width = int(counts.max(initial=0))
    texts = [text for p in parts for text in (*p, *[""] * (width - len(p)))]
    return _texts(texts, (*array.shape, width)), counts


def _parts(text: str, delimiter: str, limit: int) -> list[str]:
    if delimiter:
        return text.split(delimiter, limit) if text else []
    text = text.strip(_SPACE)
    if not text or limit == 0:
        return [text] if text else []
    return re.split(f"[{_SPACE}]+", text, maxsplit=max(limit, 0))


def _tokens(step: Tokenise, text: str) -> list[str]:
    """The tokens of a text, which have at least `shortest` characters."""
    if step.pattern:
        tokens = [match[0] for match in compiled_pattern(step.pattern).finditer(text)]
    elif step.separators:
        tokens = [text]
        for separator in step.separators:
            pattern = compiled_pattern(separator)
            tokens = [piece for token in tokens for piece in _between(pattern, token)]
    else:
        tokens = list(text)
    return [token for token in tokens if len(token) >= max(step.shortest, 1)]


def _between(pattern: re.Pattern[str], text: str) -> list[str]:
    """The texts between the matches of a pattern that are not empty."""
    spans = [match.span() for match in pattern.finditer(text) if match[0]]
    edges = [(0, 0), *spans, (len(text), len(text))]
    return [text[left[1] : right[0]] for left, right in pairwise(edges)]


def _padded(lists: Sequence[list[str]], shape: Sequence[int], step: Tokenise) -> Array:
    """Lists of tokens as one tensor: all tokens of a text, and padding."""
    width = max(map(len, lists), default=0)
    before, after = ([MARKS[0]], [MARKS[1]]) if step.marks and width else ([], [])
    texts = [
        text
        for tokens in lists
        for text in (*before, *tokens, *after, *[step.padding] * (width - len(tokens)))
    ]
    return _texts(texts, (*shape, width + len(before) + len(after)))


class Counter:
    """A counter of the n-grams of a file."""

    def __init__(self, grams: Grams, step: CountGrams) -> None:
        needed = sum(length * count for length, count in enumerate(grams.counts, 1))
        if (
            min(grams.counts, default=0) < 0
            or needed != len(grams.texts)
            or sum(grams.counts) != len(grams.columns)
            or len(grams.weights) not in (0, len(grams.columns))
            or not all(0 <= column < step.width for column in grams.columns)
            or not 1 <= step.shortest <= step.longest <= len(grams.counts)
        ):
            raise PackageError(f"{step.grams}: its n-grams do not fit together")
        self._step = step
        self._numbers: dict[str, int] = {}
        self._columns = np.array(grams.columns, np.int64)
        weights = grams.weights or (1.0,) * len(grams.columns)
        self._weights = np.array(weights, np.float32)
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.texts = grams.texts
        numbers = [self._numbers.setdefault(t, len(self._numbers)) for t in grams.texts]
        start = gram = 0
        for length, count in enumerate(grams.counts, 1):
            for _ in range(count):
                items = tuple(numbers[start : start + length])
                if step.shortest <= length <= step.longest:
                    self._places.setdefault(items, []).append(gram)
                start, gram = start + length, gram + 1

    def count(self, array: Array) -> Array:
        """The weighted counts of each row, as float32 [..., width]."""
        step, rows = self._step, array.reshape(-1, array.shape[-1]) if array.size else array
        result = np.zeros((*array.shape[:-1], step.width), np.float32)
        flat = result.reshape(-1, step.width)
        for row, texts in zip(flat, rows, strict=False):
            counts: dict[int, int] = {}
            numbers = [self._numbers.get(text, -1) for text in texts]
            for gram in self._grams(numbers):
                counts[gram] = counts.get(gram, 0) + 1
            for gram, count in sorted(counts.items()):
                row[self._columns[gram]] += self._weights[gram] * np.float32(
                    1 if step.clips else count
                )
        return result

    def _grams(self, numbers: Sequence[int]) -> Iterable[int]:
        """The n-grams at each start, with each distance between their texts."""
        step, places = self._step, self._places
        for length in range(step.shortest, step.longest + 1):
            for distance in range(1, min(step.skips + 2, len(numbers)) if length > 1 else 2):
                span = (length - 1) * distance
                for start in range(len(numbers) - span):
                    yield from places.get(tuple(numbers[start : start + span + 1 : distance]), ())


def _parse(text: str, dtype: DType) -> float | int:
    """The number that a text spells. Raises `InputError` if it spells none of this type."""
    spelling = text.strip(_SPACE)
    if dtype.is_float and _FLOAT.fullmatch(spelling):
        return float(spelling)
    parts = None if dtype.is_float else _INTEGER.fullmatch(spelling)
    if parts is not None:
        number = int(parts[1] + parts[2])
        low, high = dtype.limits
        if low <= number <= high:
            return number
    raise InputError(f"the text {text!r} is not a number of type {dtype}")


def _print(number: Any) -> str:
    """The text of a number, as C prints it."""
    if not isinstance(number, float | np.floating):
        return str(int(number))
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "INF" if number > 0 else "-INF"
    return f"{float(number):.8g}"
