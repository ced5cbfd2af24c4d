"""The names of symbols: identifiers, made of what a model calls its dimensions.

In: a `dim_param` of ONNX, or sizes by such names. Out: an identifier, or sizes by symbol.

    >>> symbol_name("p2o.DynamicDimension.0"), symbol_name("1st"), symbol_name("lambda")
    ('p2o_DynamicDimension_0', 'dim_1st', 'dim_lambda')
    >>> symbol_sizes({"audio.length": 512}, ["batch", "audio_length"])
    {'audio_length': 512}
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Mapping

from webmlc.core.errors import InputError


def symbol_name(text: str) -> str:
    """The identifier of a dimension that a model calls `text`, if no other dimension has it."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"dim_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name


def symbol_sizes(sizes: Mapping[str, int], symbols: Collection[str]) -> dict[str, int]:
    """Sizes by the names of symbols. A key of `sizes` is a symbol, or what the model calls it.

    Raises `InputError` if there is no such symbol.
    """
    symbol_of = {text: text if text in symbols else symbol_name(text) for text in sizes}
    if strangers := sorted(text for text, symbol in symbol_of.items() if symbol not in symbols):
        names = ", ".join(sorted(symbols)) or "none"
        raise InputError(f"no dimension is named {strangers[0]!r}; the model's are: {names}")
    return {symbol_of[text]: size for text, size in sizes.items()}
