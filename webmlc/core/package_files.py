"""The mark of a package's folder, and the names and hashes of files. This module stands apart from
`manifest`, whose import takes longer than to write a package again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

FORMAT = "webmlc"
"""The value of the manifest's key `format`, which marks a folder as a package of webmlc."""
MANIFEST = "manifest.json"
"""The name of the manifest file in a package."""
TOKENIZER = "tokenizer.deflate"
"""The tokeniser of a language model, in the form of `package/tokenizer_file.py`."""
GENERATION_CONFIG = "generation_config.json"
"""The special tokens of a language model and its longest context, in Hugging Face's format."""
CHAT_TEMPLATE = "chat_template.jinja"
"""The template that makes a prompt of messages. Models that only complete texts have none."""
LANGUAGE_FILES = (TOKENIZER, GENERATION_CONFIG)
"""The files that mark a package of a language model."""


def model_name(path: Path) -> str:
    """The name of the model in a file: the file's name, whose bytes need not be a text."""
    return path.stem.encode("utf-8", "replace").decode()


def file_hash(path: Path) -> str:
    """The SHA-256 of a file; "", which equals no hash, if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
