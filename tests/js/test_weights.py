"""Weights arrive whole and in order, however the response is divided. Errors say what is wrong."""

import json
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

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
    job = {
        "byteStreams": byte_streams,
        "pieces": [list(sent[i : i + piece]) for i in range(0, len(sent), piece)],
        "breaks": breaks,
        "slow": slow,
        "backlog": backlog,
        "bytes": len(DATA),
        "chunk_bytes": SIZE,
        "chunks": [sha256(DATA[i : i + SIZE]).hexdigest() for i in range(0, len(DATA), SIZE)],
    }
    process = subprocess.run(
        ["node", str(SCRIPT), json.dumps(job)], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(process.stdout)
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
    for start, chunk, verified in result["chunks"]:
        assert verified
        assert bytes(chunk) == DATA[start : start + SIZE]


def test_a_thread_without_backlog_verifies_chunks_itself() -> None:
    """It is told that nobody verified them. A thread with a backlog gets verified chunks only."""
    altered = DATA[:70] + b"x" + DATA[71:]
    unverified = download(True, altered, 50, backlog=BACKLOG - 1)
    assert unverified["error"] is None
    assert b"".join(bytes(chunk) for _, chunk, _ in unverified["chunks"]) == altered
    assert not any(verified for _, _, verified in unverified["chunks"])
    verified = download(True, altered, 50, backlog=BACKLOG)
    assert verified["error"].startswith("PackageError: w: its SHA-256 differs from the manifest's")
    assert verified["chunks"] == [[0, list(DATA[:SIZE]), True]]
