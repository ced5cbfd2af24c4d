"""The records of texts: which texts a model knows, and what hosts compute with texts.

A program computes with numbers. In it, a text is a number: its place in the model's vocabulary, the
list `words`. A run numbers all other texts after the words. Programs therefore look up, compare and
move texts without reading their letters. Steps that read letters run in the host: before the
program if they depend on inputs only, and after it if nothing but outputs depends on them.

    text[n, 1] ── View ── Normalise ── Tokenise ── CountGrams ──► program ──► label ──► "spam"

`webmlc/host/texts.py` runs the steps in Python, and `runtime_js/texts.js` in pages.
"""

from __future__ import annotations

from typing import Literal

from webmlc.core.dtypes import DType
from webmlc.core.record import Record

WORDS = "words.json"
"""The file with the list of a model's words."""


class View(Record, tag_field="type", tag="view"):
    """Give texts another shape. A size of 0 is the size of the same axis of `value`, and -1 is the
    size that remains.
    """

    value: str
    result: str
    shape: tuple[int, ...]


class Take(Record, tag_field="type", tag="take"):
    """Take the elements `indices` along an axis."""

    value: str
    result: str
    axis: int
    indices: tuple[int, ...]


class Join(Record, tag_field="type", tag="join"):
    """Concatenate tensors of texts along an axis."""

    values: tuple[str, ...]
    result: str
    axis: int


class Normalise(Record, tag_field="type", tag="normalise"):
    """Change the case of texts, and remove stop words (ONNX's StringNormalizer).

    A stop word is a whole text. If no text remains, the result is one empty text. If `folds` is
    true, the case of a text does not matter for the comparison.
    """

    value: str
    result: str
    case: Literal["lower", "upper", "none"] = "none"
    stop_words: tuple[str, ...] = ()
    folds: bool = False


class Split(Record, tag_field="type", tag="split"):
    """Split texts at a delimiter, or at white space if the delimiter is empty (ONNX's StringSplit).

    `limit` is the largest number of splits of a text, or -1. Shorter lists are filled up with empty
    texts. `counts` is the number of parts of each text, as int64. An empty text has no parts.
    """

    value: str
    result: str
    counts: str
    delimiter: str = ""
    limit: int = -1


class Tokenise(Record, tag_field="type", tag="tokenise"):
    """Split texts into tokens (onnxruntime's Tokenizer).

    A token is a match of `pattern`; or if that is empty, a text between matches of `separators`; or
    if there are none, a character. Tokens of fewer than `shortest` characters are left out. Shorter
    lists are filled up with `padding`. If `marks` is true, U+0002 is before the tokens of a text,
    and U+0003 between them and the padding.
    """

    value: str
    result: str
    pattern: str = ""
    separators: tuple[str, ...] = ()
    shortest: int = 1
    padding: str = ""
    marks: bool = False


class Append(Record, tag_field="type", tag="append"):
    """Append to each text of `value` the text of `end` (ONNX's StringConcat)."""

    value: str
    end: str
    result: str


class Match(Record, tag_field="type", tag="match"):
    """Say whether a pattern matches a whole text, as bool (ONNX's RegexFullMatch)."""

    value: str
    result: str
    pattern: str


class CountGrams(Record, tag_field="type", tag="count_grams"):
    """Count the n-grams of each row of texts, as float32 (ONNX's TfIdfVectorizer).

    The file `grams` holds a `Grams`. N-grams have `shortest` to `longest` texts, whose distances
    are 1 to `skips` + 1. The result has `width` columns. If `clips` is true, a count is 1 at most.
    """

    value: str
    result: str
    grams: str
    shortest: int
    longest: int
    width: int
    skips: int = 0
    clips: bool = False


class Parse(Record, tag_field="type", tag="parse"):
    """Read numbers (ONNX's Cast)."""

    value: str
    result: str
    dtype: DType


class Print(Record, tag_field="type", tag="print"):
    """Write numbers as texts, floats as C's %.8g does (ONNX's Cast)."""

    value: str
    result: str


TextStep = (
    View | Take | Join | Normalise | Split | Tokenise | Append | Match | CountGrams | Parse | Print
)


class Grams(Record):
    """The n-grams of a `CountGrams`.

    The n-grams of one text come first in `texts`, then those of two, each of which has two texts in
    the list. `counts` holds the number of n-grams of each length. An n-gram has a column of the
    result, and a weight; no weights are weights of 1.
    """

    texts: tuple[str, ...]
    counts: tuple[int, ...]
    columns: tuple[int, ...]
    weights: tuple[float, ...] = ()


def sources(step: TextStep) -> tuple[str, ...]:
    """The values that a step reads."""
    match step:
        case Join(values=values):
            return values
        case Append(value=value, end=end):
            return value, end
    return (step.value,)


def results(step: TextStep) -> tuple[str, ...]:
    """The values that a step computes."""
    return (step.result, step.counts) if isinstance(step, Split) else (step.result,)
