"""The glossary names files that exist and use the word, and defines no word twice."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.docs.prose import ROOT, code_spans, named_paths

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+) \| `(.+?)` \|$", GLOSSARY, re.MULTILINE)
ALIASES = {
    "cache block": "Blocks",
    "interpreter": "interpret",
    "register tile": "Tile",
    "remainder": "tail",
}
"""Terms whose file has them under a name of the code, or in another form."""


def test_every_line_of_the_tables_is_read() -> None:
    lines = [line for line in GLOSSARY.splitlines() if line.startswith("| ")]
    headings = [line for line in lines if line == "| term | meaning | file |"]
    assert len(ROWS) == len(lines) - len(headings) > 50


@pytest.mark.parametrize(("term", "file"), [(term, file) for term, _, file in ROWS])
def test_the_file_uses_the_term(term: str, file: str) -> None:
    text = (ROOT / file).read_text("utf-8").lower()
    for word in term.split(", "):
        name = ALIASES.get(word, word).lower()
        spellings = {name.replace(" ", between) for between in (" ", "_", "")}
        assert any(spelling in text for spelling in spellings), f"{word}: not in {file}"


def test_a_definition_is_one_or_two_sentences() -> None:
    for term, meaning, _ in ROWS:
        assert meaning[0].isupper(), term
        assert meaning.rstrip(")").endswith("."), term
        assert len(re.findall(r"\.(?= |\)|$)", meaning)) <= 2, term


def test_no_term_is_defined_twice() -> None:
    words = Counter(word for term, _, _ in ROWS for word in term.split(", "))
    assert [word for word, count in words.items() if count > 1] == []


def test_paths_exist() -> None:
    assert "docs/walkthrough.md" in set(code_spans(GLOSSARY))
    assert [path for path in named_paths(GLOSSARY) if not (ROOT / path).exists()] == []
