"""The Markdown of answers, at every stage of an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.node import answer_once

SCRIPT = Path(__file__).parent / "read_markdown.mjs"

REST = [" ", ["strong", "strong"], " ", ["code", "a*b*"]]

CASES: dict[str, list[Any]] = {
    "plain": [["p", "plain"]],
    "two\nlines\n\nnext": [["p", "two\nlines"], ["p", "next"]],
    "**bold** *it* _em_ __strong__ `a*b*`": [
        ["p", ["strong", "bold"], " ", ["em", "it"], " ", ["em", "em"], *REST]
    ],
    "***both***": [["p", ["strong", ["em", "both"]]]],
    "2 * 3 * 4, snake_case_name, a ** b": [["p", "2 * 3 * 4, snake_case_name, a ** b"]],
    "**not yet": [["p", "**not yet"]],
    "# one\n#### four #": [["h3", "one"], ["h6", "four"]],
    "```python\nif a:\n    b\n```\nend": [["pre", ["code", "if a:\n    b"]], ["p", "end"]],
    "```\nnot closed": [["pre", ["code", "not closed"]]],
    "1. a\n2. b\n   - c\n   - d\n\n3. e\n\nend": [
        ["ol", ["li", "a"], ["li", "b", ["ul", ["li", "c"], ["li", "d"]]], ["li", "e"]],
        ["p", "end"],
    ],
    "- a\n\n  more\n- b\n1. c": [
        ["ul", ["li", "a", ["p", "more"]], ["li", "b"]],
        ["ol", ["li", "c"]],
    ],
    "> said\n> so\n---\nx": [["blockquote", ["p", "said\nso"]], ["hr"], ["p", "x"]],
    "<b>x</b> [a](javascript:b) ![c](d)": [["p", "<b>x</b> [a](javascript:b) ![c](d)"]],
    "": [],
}
TAGS = {"p", "strong", "em", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "h3", "h4", "h6"}


def read(texts: list[str]) -> list[Any]:
    return list(answer_once(SCRIPT, texts))


def words(tree: Any) -> str:
    """The letters of a tree's texts. Only tags are not texts."""
    if isinstance(tree, str):
        return "".join(filter(str.isalpha, tree))
    assert tree[0] in TAGS
    return "".join(map(words, tree[1:]))


def test_what_models_write() -> None:
    for (text, expected), tree in zip(CASES.items(), read(list(CASES)), strict=True):
        assert tree == expected, text


def test_every_beginning_of_an_answer_keeps_its_words() -> None:
    """An answer is shown while it grows, so a text may end anywhere. The language of code is not
    shown.
    """
    whole = "\n\n".join(text for text in CASES if "python" not in text)
    beginnings = [whole[:end] for end in range(len(whole))]
    for text, trees in zip(beginnings, read(beginnings), strict=True):
        assert "".join(map(words, trees)) == "".join(filter(str.isalpha, text))


def test_deep_nesting_is_text() -> None:
    [tree] = read(["- " * 5000])
    assert len(json.dumps(tree)) < 20_000
