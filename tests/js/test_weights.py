"""Weights arrive whole and in order, however the response is divided. Errors say what is wrong."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.node import script

SCRIPT = Path(__file__).parent / "stream_weights.mjs"
SIZE = 64
DATA = bytes(i * i % 251 for i in range(40 * SIZE - 7))
MOST_BUFFERS = 6
BACKLOG = 4


def download(
    byte_streams: bool,
    sent: bytes,
    piece: int,
    breaks: bool = False,
    slow: bool = False,
    backlog: int | None = None,
) -> dict[str, Any]:
    """Download `sent` in pieces, where `DATA` is expected."""
    hashes = [sha256(DATA[i : i + SIZE]).digest() for i in range(0, len(DATA), SIZE)]
    job = {
        "byteStreams": byte_streams,
        "pieces": [list(sent[i : i + piece]) for i in range(0, len(sent), piece)],
        "breaks": breaks,
        "slow": slow,
        "backlog": backlog,
        "bytes": len(DATA),
        "chunk_bytes": SIZE,
        "chunks_sha256": sha256(b"".join(hashes)).hexdigest(),
    }
    result: dict[str, Any] = script(SCRIPT).ask(job)
    return result


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("byte_streams", [True, False])
@pytest.mark.parametrize("piece", [1, 50, SIZE, 3 * SIZE + 1, 10_000])
def test_chunks_are_those_of_the_file(byte_streams: bool, piece: int, slow: bool) -> None:
    """If chunks are taken more slowly than they arrive, a limited number of them waits."""
    result = download(byte_streams, DATA, piece, slow=slow)
    assert result["error"] is None
    assert result["mostBuffers"] <= MOST_BUFFERS
    assert [start for start, _, _ in result["chunks"]] == list(range(0, len(DATA), SIZE))
    assert b"".join(bytes(chunk) for _, chunk, _ in result["chunks"]) == DATA
    assert result["progress"] == len(DATA)


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("byte_streams", [True, False])
@pytest.mark.parametrize(
    ("sent", "breaks", "message"),
    [
        (DATA[:-1], False, f"w: has {len(DATA) - 1} bytes, expected {len(DATA)}: incomplete"),
        (DATA + b"x", False, f"w: has {len(DATA) + 1} bytes, expected {len(DATA)}: incomplete"),
        (DATA[:70] + b"x" + DATA[71:], False, "w: its SHA-256 differs from the manifest's"),
        (DATA[:70], True, "w: the download broke off (reset)"),
    ],
    ids=["short", "long", "altered", "broken off"],
)
def test_errors_say_what_is_wrong(
    byte_streams: bool, sent: bytes, breaks: bool, message: str, slow: bool
) -> None:
    result = download(byte_streams, sent, 50, breaks, slow)
    assert result["error"].startswith(f"PackageError: {message}")
    for start, chunk, is_hashed in result["chunks"]:
        assert is_hashed
        assert bytes(chunk) == sent[start : start + SIZE]


@pytest.mark.parametrize("backlog", [BACKLOG - 1, BACKLOG])
def test_a_thread_without_backlog_hashes_chunks_itself(backlog: int) -> None:
    """It is told that nobody hashed them. A thread with a backlog gets hashed chunks only."""
    whole = download(True, DATA, 50, backlog=backlog)
    assert whole["error"] is None
    assert {is_hashed for _, _, is_hashed in whole["chunks"]} == {backlog == BACKLOG}
    altered = download(True, DATA[:70] + b"x" + DATA[71:], 50, backlog=backlog)
    assert altered["error"].startswith("PackageError: w: its SHA-256 differs from the manifest's")
