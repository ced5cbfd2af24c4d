"""`webmlc chat` over a model that computes nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command_line import run
from tests.generate.fakes import FakeModel, language_assets, tokenizer, tokenizer_size
from tests.packages import parts
from webmlc.host.load import Model
from webmlc.package.write import write_package

Lines = list[str | Callable[[], str]]


def echoing(model: FakeModel) -> None:
    """Let the model answer with the last message in capital letters."""
    tokens = tokenizer()
    begin, end = "<|im_start|>", "<|im_end|>"

    def logits(history: Any) -> Any:
        text = tokens.decode(list(history), skip_special_tokens=False)
        *_, question, answer = text.split(begin)
        said = answer.partition("\n")[2]
        whole = question.partition("\n")[2].partition(end)[0].upper()
        system = text.startswith(f"{begin}system")
        rest = (f"[{whole}]" if system else whole)[len(said) :]
        result = np.zeros(tokenizer_size(), np.float32)
        result[tokens.encode(rest[0]).ids[0] if rest else tokens.token_to_id(end)] = 9
        return result

    model.logits = logits


@pytest.fixture
def chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """A function that runs `webmlc chat` with options, over lines that somebody types."""
    write_package(tmp_path / "model", replace(parts(), assets=language_assets()))
    model = FakeModel()
    echoing(model)
    monkeypatch.setattr(
        Model, "session", lambda self, capacity: model.session(capacity), raising=False
    )

    def start(*options: str, lines: Lines | None = None) -> Any:
        typed = iter(lines or [])

        def read(_: str) -> str:
            line = next(typed, None)
            if line is None:
                raise EOFError
            return line() if callable(line) else line

        monkeypatch.setattr("builtins.input", read)
        return run(monkeypatch, capsys, "chat", tmp_path / "model", *options)

    start.model = model  # type: ignore[attr-defined]
    yield start


def test_a_prompt_is_answered_and_nothing_else_printed(chat: Any) -> None:
    result = chat("--prompt", "one two")
    assert (result.code, result.out) == (0, "ONE TWO\n")


def test_a_conversation(chat: Any) -> None:
    lines = ["hi", "", "/system be kind", "again", "/reset", "/what", "/quit", "unread"]
    result = chat("--context", "512", lines=lines)
    assert result.code == 0
    assert result.out.splitlines()[1] == "HI"
    assert "tokens/s" in result.out
    assert "context 23 of 512" in result.out.splitlines()[2]
    assert "[AGAIN]" in result.out
    assert "/system TEXT" in result.out
    assert "UNREAD" not in result.out


def test_options_reach_the_model(chat: Any) -> None:
    result = chat(
        "--max-new-tokens", "3", "--temperature", "0.5", "--seed", "1", "--prompt", "abcdef"
    )
    assert result.out == "ABC\n"


def test_ctrl_c_stops_an_answer_only(chat: Any) -> None:
    logits = chat.model.logits

    def press(history: Any) -> Any:
        result = logits(history)
        if len(chat.model.sessions[-1].runs) == 3:
            signal.raise_signal(signal.SIGINT)
        return result

    chat.model.logits = press
    result = chat(lines=["abcdef", "next"])
    assert result.out.splitlines()[1] == "ABC"
    assert "interrupted" in result.out
    assert "NEXT" in result.out


def test_answers_do_not_steer_the_terminal(chat: Any) -> None:
    assert chat("--prompt", "\x1b[2Jred\x071m").out == "[2JRED1M\n"


def test_a_full_context_does_not_end_the_conversation(chat: Any) -> None:
    result = chat("--context", "60", lines=["x" * 90, "hi"])
    assert result.code == 0
    assert "the context holds 60" in result.err.replace("\n", " ")
    assert "HI" in result.out


def test_what_is_no_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = partial(run, monkeypatch, capsys, "chat")
    write_package(tmp_path / "plain", parts())
    result = start(tmp_path / "plain")
    assert result.code == 2 and "is no language model" in result.err.replace("\n", " ")
    result = start(tmp_path / "missing.gguf")
    assert result.code == 2 and "no such file" in result.err.replace("\n", " ")


def test_a_model_is_built_into_the_cache_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = []

    def build(source: Path, folder: Path, device: str, **_: object) -> None:
        built.append((source.name, device))
        write_package(folder, replace(parts(), assets=language_assets()))

    model = FakeModel()
    echoing(model)
    monkeypatch.setattr("webmlc.pipeline.build", build)
    monkeypatch.setattr(
        Model, "session", lambda _, capacity: model.session(capacity), raising=False
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    for _ in range(2):
        result = run(monkeypatch, capsys, "chat", tmp_path / "tiny.gguf", "--prompt", "hi")
        assert result.out == "HI\n", result.err
    assert built == [("tiny.gguf", "wasm")]
