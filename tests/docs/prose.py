"""Find the code spans of documents, and the paths among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def prose_of(markdown: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)


def code_blocks(markdown: str) -> list[tuple[str, str]]:
    """The code blocks of a document, each with the language it is marked with ("": none)."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL)


def code_spans(markdown: str) -> Iterator[str]:
    """The code spans of a document's prose."""
    yield from re.findall(r"`([^`\n]+)`", prose_of(markdown))


def is_path(span: str) -> bool:
    """Whether a code span looks like the path of a file or folder of this repository."""
    return (
        re.fullmatch(r"[\w.-]+(/[\w.-]+)*\.(py|js|md|toml)|[\w.-]+(/[\w.-]+)*/", span) is not None
    )


def named_paths(markdown: str) -> list[str]:
    """The paths that a document names, in order."""
    return [span for span in code_spans(markdown) if is_path(span)]
