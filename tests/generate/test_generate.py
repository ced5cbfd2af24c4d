"""Generation over a model that computes nothing: the cache, the limits and the errors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.generate.fakes import FakeModel, language_files, reader, scripted
from tests.packages import scaled
from webmlc.core.errors import DeviceLostError, InputError, UserError
from webmlc.core.machine import Device
from webmlc.generate.generate import CHUNK_TOKENS, TextGenerator
from webmlc.host.load import load

HELLO = [{"role": "user", "content": "hello"}]


def generator(model: FakeModel, **config: object) -> TextGenerator:
    return TextGenerator(model, reader(language_files(**config)))


def saying(answer: str, config: dict[str, object] | None = None) -> tuple[FakeModel, TextGenerator]:
    """A model that gives this answer to HELLO."""
    model = FakeModel()
    result = generator(model, **(config or {}))
    model.logits = scripted(answer, len(result.codec.tokens_of(HELLO)))
    return model, result


def test_an_answer_ends_with_the_end_token() -> None:
    _, text = saying("well, hello 🙂")
    generation = text.generate(HELLO, {})
    assert list(generation)[-1] == "🙂"
    assert generation.text == "well, hello 🙂"
    assert generation.usage.finish_reason == "stop"
    assert generation.usage.tokens_per_second > 0


def test_a_stop_string_ends_an_answer() -> None:
    _, text = saying("one. two. three")
    streamed: list[str] = []
    generation = text.generate(HELLO, {"stop": ". t", "streamer": streamed.append})
    assert generation.complete() == "one" == "".join(streamed)
    assert generation.usage.finish_reason == "stop"


def test_the_next_turn_runs_only_what_is_new() -> None:
    model, text = saying("well")
    text.generate(HELLO, {}).complete()
    runs = list(model.sessions[0].runs)
    messages = [*HELLO, {"role": "assistant", "content": "well"}, {"role": "user", "content": "?"}]
    model.logits = scripted("so", len(text.codec.tokens_of(messages)))
    usage = (generation := text.generate(messages, {})).usage
    assert generation.complete() == "so"
    assert usage.cached_tokens == len(text.codec.tokens_of(HELLO)) + len("well") - 1  # "ll"
    assert sum(model.sessions[0].runs[len(runs) :]) == (
        usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens - 1
    )


def test_the_same_prompt_runs_its_last_token_again() -> None:
    _, text = saying("well")
    text.generate(HELLO, {}).complete()
    generation = text.generate(HELLO, {})
    assert generation.complete() == "well"
    assert generation.usage.cached_tokens == generation.usage.prompt_tokens - 1


@pytest.mark.parametrize(("error", "sessions"), [(InputError, 1), (DeviceLostError, 2)])
def test_the_next_generation_after_a_failed_run_is_right(
    error: type[Exception], sessions: int
) -> None:
    """A lost device also loses the states of its sessions."""
    model, text = saying("well")
    text.generate(HELLO, {}).complete()
    session = model.sessions[0]
    run = session.run

    def fail(inputs: object, outputs: object) -> dict[str, np.ndarray]:
        session.run = run  # type: ignore[method-assign]
        raise error("no")

    session.run = fail  # type: ignore[method-assign]
    with pytest.raises(error):
        text.generate(HELLO, {}).complete()
    assert text.generate(HELLO, {}).complete() == "well"
    assert len(model.sessions) == sessions


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_long_prompt_runs_in_chunks(device: Device) -> None:
    model = FakeModel()
    model.device = device
    text = generator(model)
    text.generate([7] * 600, {"max_new_tokens": 1}).complete()
    *whole, last = model.sessions[0].runs
    assert set(whole) == {CHUNK_TOKENS[device]}
    assert (sum(whole) + last, last) == (600, 600 % CHUNK_TOKENS[device])
    assert model.sessions[0].outputs == ["next_token"], "only the last chunk has results"


@pytest.mark.parametrize(
    ("options", "output"),
    [({}, "next_token"), ({"repetition_penalty": 1.1}, "logits"), ({"do_sample": True}, "logits")],
)
def test_logits_are_read_only_if_they_are_needed(options: dict[str, object], output: str) -> None:
    texts, read = [], set()
    for outputs in (("logits", "next_token"), ("logits",)):
        model = FakeModel(outputs=outputs)
        generation = generator(model).generate(
            [1, 2, 3], {"max_new_tokens": 9, "seed": 1, **options}
        )
        texts.append(generation.complete())
        read.add((len(outputs), *model.sessions[0].outputs))
    assert texts[0] == texts[1]
    assert read == {(2, *[output] * 9), (1, *["logits"] * 9)}


def test_logits_that_are_not_finite_are_an_error() -> None:
    model = FakeModel(lambda _: np.full(264, np.nan, np.float32))
    text = generator(model)
    with pytest.raises(InputError, match="the largest logit is not finite"):
        text.generate([1], {"do_sample": True}).complete()
    with pytest.raises(InputError, match="the largest logit is not finite"):
        text.generate([1], {}).complete()


def test_a_generation_can_be_interrupted() -> None:
    _, text = saying("a long answer")
    pieces: list[str] = []
    generation = text.generate(HELLO, {"is_interrupted": lambda: len(pieces) == 3})
    pieces.extend(generation)
    assert generation.usage.finish_reason == "interrupted"
    assert len(pieces) == 3


def test_the_context_has_an_end() -> None:
    _, text = saying("a long answer, and more", {"max_length": 40})
    generation = text.generate(HELLO, {"max_new_tokens": 1000})
    generation.complete()
    assert generation.usage.finish_reason == "context"
    assert generation.usage.context_tokens == generation.usage.capacity == 40
    with pytest.raises(InputError, match="has 60 tokens, but the context holds 40"):
        text.generate([1] * 60, {})


def test_a_session_grows() -> None:
    model = FakeModel()
    text = generator(model, max_length=8000)
    for count in (10, 3000, 10):
        text.generate([1] * count, {"max_new_tokens": 1}).complete()
    assert [session.capacity for session in model.sessions] == [2048, 4096]
    assert model.sessions[0].is_disposed
    text.generate([1] * 10, {"max_new_tokens": 1, "capacity": 64}).complete()
    assert [session.capacity for session in model.sessions] == [2048, 4096, 64]


def test_a_newer_generation_ends_an_older_one() -> None:
    _, text = saying("well")
    older = text.generate(HELLO, {})
    next(older)
    assert text.generate(HELLO, {}).complete() == "well"
    with pytest.raises(InputError, match="another generation"):
        next(older)


def test_a_model_without_a_tokenizer_generates_nothing(tmp_path: Path) -> None:
    scaled(tmp_path)
    model = load(tmp_path, device="wasm")
    with pytest.raises(InputError, match="no language model"):
        model.generate("hello")
    model.dispose()


@pytest.mark.parametrize("library", ["tokenizers", "jinja2"])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=r"pip install 'webmlc\[chat\]'"):
        TextGenerator(FakeModel(), reader(language_files()))
