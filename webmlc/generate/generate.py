"""Generate text with a language model.

In: a model with sessions, and the files of its package. Out: an iterator over pieces of text.
`runtime_js/language/generate.js` is the twin.

    generation = model.generate([{"role": "user", "content": "Hello"}], max_new_tokens=64)
    for piece in generation:
        print(piece, end="", flush=True)
    print(generation.usage.tokens_per_second)

**Greedy decoding.** If the most likely token is the next one, the model itself finds it: a run
returns `next_token`, not the logits of the whole vocabulary. Models without this output are read
by their logits.

**Prompt cache.** The session keeps the tokens of the last generation. A prompt that begins with the
same tokens runs only the others: the next turn of a conversation, or the same question again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import InputError
from webmlc.core.machine import Device
from webmlc.generate.detokenise import Detokeniser
from webmlc.generate.options import Options, read_options
from webmlc.generate.prompt import Prompt, TextCodec
from webmlc.generate.random_numbers import RandomNumbers
from webmlc.generate.sampling import checked, sample
from webmlc.generate.stop_strings import StopStrings

CHUNK_TOKENS: Mapping[Device, int] = {"wasm": 72, "webgpu": 256}
"""The tokens of a prompt that one run processes, by device.

Between runs, a generation can be interrupted. More tokens hardly make a run more efficient, but its
memory grows with them. On the CPU, a multiple of 12 fills the register tiles of all machines
(measured with SmolLM2 on one and two threads: 72 and 96 tokens are as fast as 144, and 48 slower).
"""
FIRST_CAPACITY = 2048
"""The capacity of a first session, unless the caller or the model's context says otherwise."""


class Session(Protocol):
    """What generation needs of a session of `host`."""

    @property
    def capacity(self) -> int: ...
    @property
    def length(self) -> int: ...
    def run(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]: ...
    def truncate(self, length: int) -> None: ...
    def dispose(self) -> None: ...


class Output(Protocol):
    """What generation needs of an output of a model."""

    @property
    def name(self) -> str: ...


class Sessions(Protocol):
    """A model that opens sessions."""

    @property
    def device(self) -> Device: ...
    @property
    def outputs(self) -> Sequence[Output]: ...
    def session(self, capacity: int) -> Session: ...


@dataclass(slots=True)
class Usage:
    """What a generation used so far.

    - `prompt_tokens`, of which `cached_tokens` were in the session before.
    - `completion_tokens`: the tokens of the answer, with a token that ended it.
    - `prompt_seconds`: up to the first token. `completion_seconds`: from the first to the last.
    - `context_tokens`: the tokens in the session, of its `capacity`.
    - `finish_reason`: "stop" (the model or a stop string ended the answer), "length"
      (`max_new_tokens`), "context" (the session is full), "interrupted", or None until the end.
    """

    prompt_tokens: int
    cached_tokens: int
    seed: int
    capacity: int
    completion_tokens: int = 0
    context_tokens: int = 0
    prompt_seconds: float = 0.0
    completion_seconds: float = 0.0
    finish_reason: str | None = None

    @property
    def tokens_per_second(self) -> float:
        """The speed of the answer after its first token, or 0."""
        seconds = self.completion_seconds
        return (self.completion_tokens - 1) / seconds if seconds > 0 else 0.0


class Generation(Iterator[str]):
    """An answer while it is generated: iterate over its pieces.

    `usage` and `text` tell about the pieces so far.
    """

    def __init__(self, pieces: Iterator[str], usage: Usage) -> None:
        self._pieces = pieces
        self.usage = usage
        self.text = ""

    def __next__(self) -> str:
        piece = next(self._pieces)
        self.text += piece
        return piece

    def complete(self) -> str:
        """Generate to the end, and return the whole text."""
        for _ in self:
            pass
        return self.text


class TextGenerator:
    """The generations of one model, one at a time, over one session."""

    def __init__(
        self, sessions: Sessions, read: Callable[[str], bytes], has_template: bool = True
    ) -> None:
        """Read the package's files with `read`. Raises `UserError` if a library is missing."""
        self._sessions = sessions
        self._has_next_token = any(port.name == "next_token" for port in sessions.outputs)
        self.codec = TextCodec(read, has_template)
        self._session: Session | None = None
        self._tokens: list[int] = []  # the tokens in the session
        self._latest: Usage | None = None

    def generate(self, prompt: Prompt, arguments: Mapping[str, Any]) -> Generation:
        """Start a generation. It ends any other of this model.

        Raises `InputError` if an option is wrong, or if the prompt does not fit the context.
        """
        options = read_options(self.codec.config, arguments)
        tokens = self.codec.tokens_of(prompt, options.template_arguments)
        if not tokens:
            raise InputError("the prompt is empty: at least one token is needed")
        session = self._open(len(tokens), options)
        cached = min(_common_length(self._tokens, tokens), len(tokens) - 1)
        usage = Usage(len(tokens), cached, options.seed, session.capacity)
        self._latest = usage
        return Generation(self._pieces(session, tokens, options, usage), usage)

    def reset(self) -> None:
        """Forget the tokens of the session, and free its memory."""
        if self._session is not None:
            self._session.dispose()
        self._session, self._tokens, self._latest = None, [], None

    def _open(self, count: int, options: Options) -> Session:
        """Return a session for a prompt of `count` tokens.

        It is the last one, or a new one if that is too small.
        """
        limit = self.codec.config.get("max_length")
        needed = count + options.max_new_tokens
        capacity = options.capacity
        if capacity is None:
            capacity = max(FIRST_CAPACITY, 1 << (needed - 1).bit_length())
            capacity = min(capacity, limit or capacity)
        if count >= capacity:
            raise InputError(
                f"the prompt has {count} tokens, but the context holds {capacity}, the answer "
                "included. Shorten the prompt, or start a new conversation."
            )
        session = self._session
        is_fit = session is not None and (
            session.capacity == capacity
            if options.capacity is not None
            else session.capacity >= min(needed, capacity)
        )
        if session is None or not is_fit:
            self.reset()
            session = self._session = self._sessions.session(capacity)
        return session

    def _pieces(
        self, session: Session, tokens: list[int], options: Options, usage: Usage
    ) -> Iterator[str]:
        """Yield the pieces of an answer that are not empty, and keep the usage up to date."""
        random = RandomNumbers(options.seed)
        detokeniser, stops = Detokeniser(self.codec.decode), StopStrings(options.stop)
        history = list(tokens)
        is_greedy = not options.do_sample and options.repetition_penalty == 1.0
        output = "next_token" if is_greedy and self._has_next_token else "logits"
        fresh = tokens[usage.cached_tokens :]
        start = time.perf_counter()
        first: float | None = None

        def shown(text: str) -> Iterator[str]:
            if text:
                if options.streamer is not None:
                    options.streamer(text)
                yield text

        while usage.finish_reason is None:
            place = len(history) - len(fresh)
            result = self._run(session, place, fresh, output, options, usage)
            if result is None:
                usage.finish_reason = "interrupted"
                break
            is_token = output == "next_token"
            token = checked(result) if is_token else sample(result, history, options, random)
            now = time.perf_counter()
            first = now if first is None else first
            usage.completion_tokens += 1
            usage.prompt_seconds, usage.completion_seconds = first - start, now - first
            history.append(token)
            fresh = [token]
            if token in self.codec.end_tokens:
                usage.finish_reason = "stop"
                break
            yield from shown(stops.add(detokeniser.add(token)))
            if stops.is_found:
                usage.finish_reason = "stop"
            elif usage.completion_tokens >= options.max_new_tokens:
                usage.finish_reason = "length"
            elif len(history) > session.capacity:
                usage.finish_reason = "context"
        if not stops.is_found:
            yield from shown(stops.add(detokeniser.finish()))
        yield from shown("" if stops.is_found else stops.finish())

    def _run(
        self,
        session: Session,
        place: int,
        tokens: Sequence[int],
        output: str,
        options: Options,
        usage: Usage,
    ) -> NDArray[Any] | None:
        """Run tokens in chunks, with `place` tokens before them. Return the last row of an output,
        or None if the generation was interrupted.
        """
        outputs: dict[str, NDArray[Any]] = {}
        size = CHUNK_TOKENS[self._sessions.device]
        for begin in range(0, len(tokens), size):
            if usage is not self._latest:
                raise InputError("another generation of this model has started, and ended this one")
            if options.is_interrupted is not None and options.is_interrupted():
                return None
            chunk = tokens[begin : begin + size]
            position = place + begin
            del self._tokens[position:]
            if session.length != position:
                session.truncate(position)
            try:
                is_last = begin + size >= len(tokens)
                inputs = {"input_ids": np.array([chunk], np.int64)}
                outputs = session.run(inputs, [output] if is_last else [])
            except InputError:
                raise
            except Exception:  # the device is broken, and its states are lost
                self._session, self._tokens = None, []
                raise
            self._tokens += chunk
            usage.context_tokens = len(self._tokens)
        rows = outputs[output]
        return np.asarray(rows.reshape(-1, rows.shape[-1])[-1] if output == "logits" else rows[-1])


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens with which both begin."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
