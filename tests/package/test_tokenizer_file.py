"""Tokenisers survive their form in a package, in Python and in JavaScript."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.generate.fakes import tokenizer
from webmlc.core.errors import PackageError
from webmlc.package.compression import deflate, inflate
from webmlc.package.tokenizer_file import LENGTH_BYTES, pack_tokenizer, unpack_tokenizer

SCRIPT = Path(__file__).parents[1] / "js" / "unpack_tokenizer.mjs"
MERGES = [["l", "o"], ["lo", "w"], ["é", "l"], ["__pro", "to__"]]
LISTED = ["l", "o", "w", "é", "__pro", "to__", "12"]


def bpe(vocabulary: dict[str, int], merges: Any, **fields: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, **fields}
    return {"version": "1.0", "added_tokens": [{"id": 0, "content": "l"}], "model": model}


def numbered(*tokens: str, start: int = 0) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens, start)}


MADE = ["".join(merge) for merge in MERGES]
PLAIN = bpe(numbered(*LISTED, *MADE), MERGES)
IMPLIED = {
    "plain": PLAIN,
    "an order of its own": bpe(numbered(*reversed(MADE), *LISTED, start=70_000), MERGES),
    "one token made twice": bpe(numbered("a", "aa", "aaa"), [["a", "a"], ["a", "aa"], ["aa", "a"]]),
    "used before it is made": bpe(numbered("a", "b", "ab", "aba"), [["ab", "a"], ["a", "b"]]),
    "of the library": json.loads(tokenizer().to_str()),
}
"""Tokenisers whose merges need not be listed."""
WHOLE = {
    "no merges": bpe(numbered("a", "b"), []),
    "a prefix inside words": bpe(numbered("a", "##b", "ab"), [["a", "##b"]]),
    "a merge of three parts": bpe(numbered("a", "b", "ab"), [["a", "b", ""]]),
    "another kind": {"model": {"type": "Unigram", "vocab": [["a", -1.5]]}},
}
"""Tokenisers that are kept whole."""


def packed(contents: dict[str, Any]) -> bytes:
    return b"".join(pack_tokenizer(json.dumps(contents, ensure_ascii=False).encode()))


@pytest.mark.parametrize("name", IMPLIED)
def test_merges_imply_the_vocabulary(name: str) -> None:
    data = packed(IMPLIED[name])
    assert unpack_tokenizer(data) == IMPLIED[name]
    size = int.from_bytes(data[:LENGTH_BYTES], "little")
    assert json.loads(data[LENGTH_BYTES : LENGTH_BYTES + size])["model"]["merges"] == []
    assert len(data) > LENGTH_BYTES + size


def test_merges_as_texts_become_pairs() -> None:
    vocabulary = numbered("a", "b", "ab")
    assert packed(bpe(vocabulary, ["a b"])) == packed(bpe(vocabulary, [["a", "b"]]))


@pytest.mark.parametrize("name", WHOLE)
def test_other_tokenisers_are_whole(name: str) -> None:
    data = packed(WHOLE[name])
    assert unpack_tokenizer(data) == json.loads(data[LENGTH_BYTES:]) == WHOLE[name]


def test_javascript_reads_the_same(tmp_path: Path) -> None:
    paths = []
    for index, contents in enumerate([*IMPLIED.values(), *WHOLE.values()]):
        paths.append(tmp_path / str(index))
        paths[-1].write_bytes(packed(contents))
    done = subprocess.run(
        ["node", str(SCRIPT), *map(str, paths)], capture_output=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == [*IMPLIED.values(), *WHOLE.values()]


def test_malformed_bytes_are_an_error() -> None:
    data = packed(PLAIN)
    unknown = data[:-13] + b"\xff" * 13
    for bad in (b"", data[:20], data[:-1], unknown):
        with pytest.raises(PackageError, match="malformed"):
            unpack_tokenizer(bad)


def test_compressed_files_are_small_and_checked() -> None:
    text = b"the same text " * 1000
    assert inflate("a.deflate", deflate(text)) == text
    assert inflate("a.deflate", deflate(text, b"", text[:5])) == text + text[:5]
    assert len(deflate(text)) < 100
    with pytest.raises(PackageError, match=r"a\.deflate: cannot be decompressed"):
        inflate("a.deflate", text)
