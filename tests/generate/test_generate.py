"""Generation over a model that computes nothing: the cache, the limits and the errors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.generate.fakes import FakeModel, language_files, reader, scripted
from tests.packages import scaled
from tests.users.concurrency.threads import at_once
from webmlc.core.errors import DeviceLostError, InputError, SessionLostError, UserError
from webmlc.core.machine import Device
from webmlc.generate.generate import CHUNK_TOKENS, Generation, TextGenerator
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


@pytest.mark.parametrize("error", [InputError, UserError, DeviceLostError, KeyboardInterrupt])
def test_the_next_generation_after_a_failed_run_is_right(error: type[BaseException]) -> None:
    """It has another session: the one that failed may be lost, or too large for the memory."""
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
    assert [s.is_disposed for s in model.sessions] == [True, False]


def test_a_session_that_was_lost_is_filled_again() -> None:
    """The device may have been opened again between two pieces of an answer."""
    model, text = saying("well, hello")
    generation = text.generate(HELLO, {})
    pieces = [next(generation)]

    def lost(*_: object) -> dict[str, np.ndarray]:
        raise SessionLostError("lost")

    model.sessions[0].run = lost  # type: ignore[method-assign]
    assert "".join([*pieces, *generation]) == "well, hello"
    assert [s.is_disposed for s in model.sessions] == [True, False]


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


def test_generations_go_on_beside_each_other() -> None:
    model, text = saying("well, hello")
    older, newer = text.generate(HELLO, {}), text.generate(HELLO, {})
    pairs = list(zip(older, newer, strict=True))
    assert ["".join(pieces) for pieces in zip(*pairs, strict=True)] == ["well, hello"] * 2
    assert len(model.sessions) == 2
    text.generate(HELLO, {}).complete()
    text.generate(HELLO, {}).complete()
    assert len(model.sessions) == 2, "sessions of answers that have ended are used again"


def test_a_generation_that_nobody_refers_to_leaves_its_session() -> None:
    model, text = saying("well, hello")
    older = text.generate(HELLO, {})
    next(older)
    text.generate(HELLO, {})  # never started
    del older
    assert text.generate(HELLO, {}).complete() == "well, hello"
    assert len(model.sessions) == 2


def test_a_prompt_continues_an_answer_that_has_not_ended() -> None:
    """It takes the session, with its tokens. The answer goes on in another session."""
    model, text = saying("well, hello")
    older = text.generate(HELLO, {})
    pieces = [next(older), next(older)]
    tokens = text.codec.tokens_of(HELLO) + text.codec._tokenizer.encode("".join(pieces)).ids
    newer = text.generate(tokens, {})
    assert newer.usage.cached_tokens == len(tokens) - 1
    assert len(model.sessions) == 1
    assert "".join([*pieces, *older]) == "well, hello"
    assert "".join([*pieces, *newer]) == "well, hello"
    assert len(model.sessions) == 2


def test_threads_generate_at_once() -> None:
    """From prompts of their own; or all from one generation, whose pieces they share."""
    _, text = saying("well, hello")
    assert at_once([lambda: text.generate(HELLO, {}).complete()] * 4) == ["well, hello"] * 4
    generation = text.generate(HELLO, {})
    parts = at_once([lambda: list(generation)] * 3)
    assert generation.text == "well, hello"
    assert sorted("".join(map("".join, parts))) == sorted("well, hello")


def test_a_streamer_cannot_advance_its_generation() -> None:
    _, text = saying("well")
    generations: list[Generation] = []
    generation = text.generate(HELLO, {"streamer": lambda _: next(generations[0])})
    generations.append(generation)
    with pytest.raises(InputError, match="cannot advance"):
        next(generation)
    inner = text.generate(HELLO, {"streamer": lambda _: text.generate(HELLO, {}).complete()})
    assert inner.complete() == "well"


@pytest.mark.parametrize("capacity", [41, 4096])
def test_a_capacity_above_the_context_is_refused(capacity: int) -> None:
    text = generator(FakeModel(), max_length=40)
    with pytest.raises(InputError, match=f"capacity is {capacity}, but the model's context hold"):
        text.generate([1], {"capacity": capacity})
    assert text.generate([1], {"capacity": 40, "max_new_tokens": 2}).complete()


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
