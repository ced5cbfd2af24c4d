"""Read a language model from a GGUF file as a graph module.

In: the path of a file. Out: a `Module` with the function `main` (see `decoder.py`), and the files
of its tokeniser as assets (see `tokenizer.py`).

    >>> read_gguf("smollm2.gguf").main.inputs        # doctest: +SKIP
    ('input_ids',)

Every defect of the file raises a `ModelError` of one clear message.
"""

from __future__ import annotations

from pathlib import Path

from webmlc.core.errors import ModelError
from webmlc.core.package_files import model_name
from webmlc.frontend.gguf.architectures import architecture_of, check_settings, sizes_of
from webmlc.frontend.gguf.decoder import PAST, Decoder
from webmlc.frontend.gguf.file import open_gguf
from webmlc.frontend.gguf.tokenizer import assets_of
from webmlc.graph.ir import Module

OPSETS = {"": 24, "webmlc": 1}
"""The versions of the operators that the reader writes."""


def read_gguf(
    source: str | Path,
    *,
    context: int | None = None,
    every_row: bool = False,
    has_cache_inputs: bool = False,
) -> Module:
    """Read a model.

    `context` limits the positions of the model; the default is its training context. If
    `every_row`, the model outputs the logits of every token, [tokens, vocabulary]. If
    `has_cache_inputs`, the keys and values of earlier tokens are inputs and outputs instead of
    state.

    Raises `ModelError` if the file cannot be read.
    """
    path = Path(source)
    file = open_gguf(path)
    architecture = architecture_of(file)
    sizes = sizes_of(file, context)
    check_settings(file, sizes.positions)
    decoder = Decoder(file, architecture, sizes, every_row, has_cache_inputs)
    main = decoder.function()
    if unread := file.unread_names():
        raise ModelError(
            f"{path}: no decoder of the architecture {file.architecture!r} has the tensor "
            f"{unread[0]!r}. The model is of a variant that is not supported."
        )
    return Module(
        model_name(path),
        {"main": main},
        opsets=OPSETS,
        length="" if has_cache_inputs else PAST.name,
        assets=assets_of(file, sizes.positions),
    )
