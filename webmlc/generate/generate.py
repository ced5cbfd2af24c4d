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

**Prompt cache.** A session keeps the tokens of its last generation. A prompt that begins with the
same tokens runs only its other tokens. Such a prompt is the next turn of a conversation, or the
same question again.

**Several generations.** Each generation has a session until it ends, so that generations may be
advanced by turns, or by several threads. A prompt that continues a conversation takes the session
of the answer before it, even if that answer has not ended. If the caller then iterates over that
answer again, it runs its tokens again, in another session.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import InputError, SessionLostError
from webmlc.core.machine import Device
from webmlc.core.turns import Turns
from webmlc.generate.detokenise import Detokeniser, StopStrings
from webmlc.generate.options import Options, read_options
from webmlc.generate.prompt import Prompt, TextCodec
from webmlc.generate.random_numbers import RandomNumbers
from webmlc.generate.sampling import checked, sample

CHUNK_TOKENS: Mapping[Device, int] = {"wasm": 72, "webgpu": 256}
"""The tokens of a prompt that one run processes, by device.

Between runs, a generation can be interrupted. More tokens hardly make a run more efficient, but its
memory grows with them. On the CPU, a multiple of 12 fills the register tiles of all machines
(measured with SmolLM2 on one and two threads: 72 and 96 tokens are as fast as 144, and 48 slower).
"""
FIRST_CAPACITY = 2048
"""The capacity of a first session, unless the caller or the model's context says otherwise."""
IDLE_SESSIONS = 1
"""The sessions that stay open for later prompts, beside those of unfinished generations. A session
of SmolLM2 takes 94 MB. Chosen by hand.
"""


class Session(Protocol):
    """The part of a session of `host` that generation needs."""

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
    """The part of a model's output that generation needs."""

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
    """The resources that a generation used so far.

    - `prompt_tokens`: the tokens of the prompt; `cached_tokens` of them were in the session before.
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

    `usage` and `text` tell about the pieces so far. Several threads may iterate over a generation:
    each piece goes to one thread.
    """

    def __init__(self, pieces: Iterator[str], usage: Usage) -> None:
        self._pieces = pieces
        self._lock = threading.RLock()
        self._is_advancing = False
        self.usage = usage
        self.text = ""

    def __next__(self) -> str:
        with self._lock:
            if self._is_advancing:
                raise InputError("a callback of a generation cannot advance this generation")
            try:
                self._is_advancing = True
                piece = next(self._pieces)
                self.text += piece
                return piece
            finally:
                self._is_advancing = False

    def complete(self) -> str:
        """Generate to the end, and return the whole text."""
        for _ in self:
            pass
        return self.text


class TextGenerator:
    """The generations of one model. Any number of threads may use it."""

    def __init__(
        self, sessions: Sessions, read: Callable[[str], bytes], has_template: bool = True
    ) -> None:
        """Read the package's files with `read`. Raises `UserError` if a library is missing."""
        self._sessions = sessions
        self._has_next_token = any(port.name == "next_token" for port in sessions.outputs)
        self.codec = TextCodec(read, has_template)
        self._slots: list[_Slot] = []  # the last slot was given last
        self._turns = Turns()

    def generate(self, prompt: Prompt, arguments: Mapping[str, Any]) -> Generation:
        """Start a generation.

        Raises `InputError` if an option is wrong, or if the prompt does not fit the context.
        """
        options = read_options(self.codec.config, arguments)
        tokens = self.codec.tokens_of(prompt, options.template_arguments)
        if not tokens:
            raise InputError("the prompt is empty: at least one token is needed")
        answer = _Answer(tokens, *self._capacities(len(tokens), options))
        usage = Usage(len(tokens), 0, options.seed, 0)
        self._give_slot(answer, usage)
        usage.cached_tokens = len(answer.slot.tokens)
        return Generation(self._pieces(answer, options, usage), usage)

    def _capacities(self, count: int, options: Options) -> tuple[int, range]:
        """The capacity of a new session for a prompt of `count` tokens, and the capacities of other
        sessions that will do.
        """
        limit = self.codec.config.get("max_length")
        capacity, needed = options.capacity, count + options.max_new_tokens
        if capacity is None:
            capacity = max(FIRST_CAPACITY, 1 << (needed - 1).bit_length())
            capacity = min(capacity, limit or capacity)
            fitting = range(min(needed, capacity), sys.maxsize)
        elif limit and capacity > limit:
            raise InputError(
                f"capacity is {capacity}, but the model's context holds {limit} tokens; give at "
                "most as many"
            )
        else:
            fitting = range(capacity, capacity + 1)
        if count >= capacity:
            raise InputError(
                f"the prompt has {count} tokens, but the context holds {capacity}, the answer "
                "included. Shorten the prompt, or start a new conversation."
            )
        return capacity, fitting

    def _give_slot(self, answer: _Answer, usage: Usage) -> None:
        """Give an answer the session that shares the most first tokens with its history. The
        session must be unused, or the history must continue its answer. If there is no such
        session, open a session.
        """
        slot = answer.slot = self._turns.take(partial(self._own_slot, answer))
        cached = min(_common_length(slot.tokens, answer.history), len(answer.history) - 1)
        del slot.tokens[cached:]
        usage.capacity = slot.session.capacity

    def _own_slot(self, answer: _Answer) -> _Slot:
        history = answer.history
        free = [s for s in self._slots if s.is_free or s.is_continued_by(history)]
        fitting = [s for s in free if s.session.capacity in answer.fitting]
        slot = max(fitting, key=lambda s: _common_length(s.tokens, history), default=None)
        idle = [s for s in self._slots if s.is_free and s is not slot]
        for other in idle if slot is None else idle[:-IDLE_SESSIONS]:
            self._slots.remove(other)
            other.session.dispose()
        if slot is None:
            slot = _Slot(self._sessions.session(answer.capacity))
        else:
            self._slots.remove(slot)
        self._slots.append(slot)
        slot.owner = ref(answer)
        return slot

    def _has_slot(self, answer: _Answer) -> bool:
        """True if no other answer has taken this answer's slot. No other answer can take it until
        this answer waits.
        """
        return self._turns.take(lambda: answer.slot.owner() is answer)

    def _discard(self, slot: _Slot) -> None:
        """Dispose of a session that cannot be used again."""
        self._turns.take(lambda: self._slots.remove(slot))
        slot.session.dispose()

    def _pieces(self, answer: _Answer, options: Options, usage: Usage) -> Iterator[str]:
        """Yield the pieces of an answer that are not empty, and keep the usage up to date."""
        random = RandomNumbers(options.seed)
        detokeniser, stops = Detokeniser(self.codec.decode), StopStrings(options.stop)
        is_greedy = not options.do_sample and options.repetition_penalty == 1.0
        output = "next_token" if is_greedy and self._has_next_token else "logits"
        history = answer.history
        start = time.perf_counter()
        first: float | None = None

        def shown(text: str) -> Iterator[str]:
            if text:
                if options.streamer is not None:
                    options.streamer(text)
                answer.is_waiting = True
                yield text
                answer.is_waiting = False

        try:
            while usage.finish_reason is None:
                result = self._run(answer, output, options, usage)
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
                if token in self.codec.end_tokens:
                    usage.finish_reason = "stop"
                    break
                yield from shown(stops.add(detokeniser.add(token)))
                if stops.is_found:
                    usage.finish_reason = "stop"
                elif usage.completion_tokens >= options.max_new_tokens:
                    usage.finish_reason = "length"
                elif len(history) > usage.capacity:
                    usage.finish_reason = "context"
            if not stops.is_found:
                yield from shown(stops.add(detokeniser.finish()))
            yield from shown("" if stops.is_found else stops.finish())
        finally:
            answer.is_over = True

    def _run(
        self, answer: _Answer, output: str, options: Options, usage: Usage
    ) -> NDArray[Any] | None:
        """Run the tokens of an answer that are not in its session, in chunks. Return the last row
        of an output, or None if the generation was interrupted.
        """
        history, size = answer.history, CHUNK_TOKENS[self._sessions.device]
        outputs: dict[str, NDArray[Any]] = {}
        if not self._has_slot(answer):
            self._give_slot(answer, usage)
        while (begin := len(answer.slot.tokens)) < len(history):
            if options.is_interrupted is not None and options.is_interrupted():
                return None
            is_last = begin + size >= len(history)
            try:
                chunk = history[begin : begin + size]
                outputs = answer.slot.run(chunk, [output] if is_last else [])
            except SessionLostError:  # the device was opened again since the last run
                self._discard(answer.slot)
                self._give_slot(answer, usage)
            except BaseException:  # the session may be too large for the memory, or broken
                self._discard(answer.slot)
                raise
            usage.context_tokens = len(answer.slot.tokens)
        rows = outputs[output]
        return np.asarray(rows.reshape(-1, rows.shape[-1])[-1] if output == "logits" else rows[-1])


class _Answer:
    """An answer that is being generated.

    - `history`: the tokens of the prompt and of the answer.
    - `capacity`: the capacity of a new session. Sessions whose capacity is in `fitting` will do as
      well.
    - `is_waiting`: the caller has a piece, and may ask for the next one.
    """

    slot: _Slot

    def __init__(self, history: list[int], capacity: int, fitting: range) -> None:
        self.history = list(history)
        self.capacity = capacity
        self.fitting = fitting
        self.is_waiting = False
        self.is_over = False


class _Slot:
    """A session, the tokens in it, and the answer that uses it, unless its generation is gone."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tokens: list[int] = []
        self.owner: Callable[[], _Answer | None] = lambda: None

    @property
    def is_free(self) -> bool:
        """True if no answer goes on in this session."""
        owner = self.owner()
        return owner is None or owner.is_over

    def is_continued_by(self, tokens: Sequence[int]) -> bool:
        """True if these tokens begin with the session's prompt and its answer so far, and that
        answer waits.
        """
        owner = self.owner()
        if owner is None or not owner.is_waiting:
            return False
        return _common_length(owner.history, tokens) == len(owner.history)

    def run(self, tokens: list[int], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Run tokens behind the tokens that are in the session."""
        if self.session.length != len(self.tokens):
            self.session.truncate(len(self.tokens))
        results = self.session.run({"input_ids": np.array([tokens], np.int64)}, outputs)
        self.tokens += tokens
        return results


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens with which both sequences begin."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
