"""The names of symbols: identifiers, made from the names of a model's dimensions.

In: a `dim_param` of ONNX, or sizes by such names. Out: an identifier, or sizes by symbol.

A symbol stands in the text of kernels beside names that the compiler writes. It is no keyword of
Python, no word of the loop IR, and no name of a kernel's parameter. It begins with a letter, as
names in WGSL do. All other names of a kernel are chosen when its symbols are known, and differ from
the symbols (`loops.from_graph`, `schedule.tree.fresh`).

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

IR_WORDS = frozenset({"T", "range"})
"""The names that mean something in the text of the loop IR."""

_PARAMETER = re.compile(r"(in|out)\d+(_\w*)?")
"""The names of a kernel's parameters, and the names that are derived from them: of copies in shared
memory, and of a shader's bindings.
"""


def is_name(text: str) -> bool:
    """True if the text of the loop IR can use this name for a symbol, a buffer or a loop."""
    return text.isidentifier() and not keyword.iskeyword(text) and text not in IR_WORDS


def symbol_name(text: str) -> str:
    """The identifier of a dimension that a model calls `text`, if no other dimension has it."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    is_free = is_name(name) and not _PARAMETER.fullmatch(name) and not name.startswith("_")
    return name if is_free else f"dim_{name}"


def symbol_sizes(sizes: Mapping[str, int], symbols: Collection[str]) -> dict[str, int]:
    """Sizes by the names of symbols. A key of `sizes` is a symbol, or the model's name for it.

    Raises `InputError` if there is no such symbol.
    """
    symbol_of = {text: text if text in symbols else symbol_name(text) for text in sizes}
    if strangers := sorted(text for text, symbol in symbol_of.items() if symbol not in symbols):
        names = ", ".join(sorted(symbols)) or "none"
        raise InputError(f"no dimension is named {strangers[0]!r}; the model's are: {names}")
    return {symbol_of[text]: size for text, size in sizes.items()}
