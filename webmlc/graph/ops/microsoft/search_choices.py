"""Choose the next tokens of a search from the scores of all tokens: greedily, at random, or for
beams.

In: the logits of a decoder and the tokens so far. Out: a `Choice`: the next tokens, the tokens
with them, and what the search carries into its next iteration.

A beam search follows K sequences of each batch. Its scores are sums of log-probabilities. A
sequence that ends becomes a hypothesis, whose score is divided by a power of its length. A batch
keeps its K best hypotheses, and is done if no sequence can become better than they are.

Source: transformers' BeamSearchScorer, with the order of onnxruntime for equal scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Operand, Value
from webmlc.graph.ops.microsoft.search_scores import Rules
from webmlc.graph.ops.microsoft.search_timestamps import LOWEST
from webmlc.graph.ops.microsoft.tokens import murmur

UNSEEN = -1e9
"""The score with which all beams but the first start, so that beams do not start alike."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The next tokens of N sequences.

    - `token`: int32 [N, 1];
    - `tokens`: all tokens with the next one, int32 [N, T + 1];
    - `follows`: true if another token follows, a boolean scalar;
    - `state`: the values that the chooser carries;
    - `rows`: the sequence that each sequence continues, [N]; `None` if each continues itself;
    - `scores`: the scores from which the tokens were chosen, [N, V].
    """

    token: Value
    tokens: Value
    follows: Value
    state: tuple[Value, ...]
    rows: Value | None
    scores: Value


class Chooser(Protocol):
    """A way to choose tokens."""

    def start(self) -> tuple[Value, ...]:
        """The state before the first token."""

    def choose(self, logits: Value, tokens: Value, state: Sequence[Value], rules: Rules) -> Choice:
        """Choose the tokens that follow `tokens` from their logits, [N, V]."""

    def results(self, tokens: Value, state: Sequence[Value]) -> tuple[Value, ...]:
        """The outputs of the search, after the last choice."""


def numbers_below(build: Builder, size: Operand) -> Value:
    """The numbers from 0 to before `size`, as int64."""
    return build("Range", np.int64(0), size, np.int64(1))


def sizes(build: Builder, *parts: int | Value) -> Value:
    """A shape of numbers and of scalars."""
    rows = (p.reshape(1) if isinstance(p, Value) else np.array([p]) for p in parts)
    return build("Concat", *rows, axis=0)


def padded(tokens: Value, length: Value, pad: int) -> Value:
    """The tokens, with `pad` after each sequence up to the length."""
    build, rank = tokens.build, 2
    missing = length - tokens.size(-1)
    pads = sizes(build, *[0] * (2 * rank - 1), missing)
    return build("Pad", tokens, pads, build.constant(pad, DType.int32))


def any_of(flags: Value) -> Value:
    """True if an element is true, as a scalar."""
    largest = flags.build("ReduceMax", flags.cast(DType.int32), keepdims=0)
    return largest.op("Greater", 0)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Choose the token of the highest score. The state holds which sequences have ended, [N, 1]."""

    build: Builder
    batch: Value
    length: Value
    pad: int

    def start(self) -> tuple[Value, ...]:
        false = np.zeros(1, np.bool_)
        return (self.build("ConstantOfShape", sizes(self.build, self.batch, 1), value=false),)

    def choose(self, logits: Value, tokens: Value, state: Sequence[Value], rules: Rules) -> Choice:
        build = logits.build
        scores = rules.apply(logits, tokens)
        token = self.token(scores, tokens).cast(DType.int32)
        has_ended = build.value(state[0]) | token.op("Equal", rules.end)
        token = has_ended.where(self.pad, token)
        tokens = build("Concat", tokens, token, axis=1)
        return Choice(token, tokens, any_of(~has_ended), (has_ended,), None, scores)

    def token(self, scores: Value, tokens: Value) -> Value:
        """The chosen token of each sequence, [N, 1]."""
        return scores.op("ArgMax", axis=1, keepdims=1)

    def results(self, tokens: Value, state: Sequence[Value]) -> tuple[Value, ...]:
        return (padded(tokens, self.length, self.pad),)


@dataclass(frozen=True, slots=True)
class Nucleus:
    """The tokens that a random choice may draw: the likeliest tokens whose probabilities add up to
    `share`. The scores of other tokens become `filtered`. If `descending`, the sum is over the
    likelier tokens; otherwise over the less likely tokens, and `least` tokens always stay.
    """

    share: float
    filtered: float
    least: int
    descending: bool

    def apply(self, scores: Value) -> Value:
        """The scores, [N, V], without the tokens that may not be drawn."""
        build, size = scores.build, scores.size(1)
        count = size.reshape(1)
        largest = int(self.descending)
        ordered, places = build.many("TopK", scores, count, outputs=2, axis=1, largest=largest)
        shares = ordered.op("Softmax", axis=1)
        below = build("CumSum", shares, np.int64(1), exclusive=largest)
        if self.descending:
            is_removed = below.op("Greater", self.share)
        else:
            is_early = numbers_below(build, size).op("Less", size - self.least)
            is_removed = is_early & ~below.op("Greater", 1 - self.share)
        ordered = is_removed.where(self.filtered, ordered)
        return build("ScatterElements", scores, places, ordered, axis=1)


@dataclass(frozen=True, slots=True)
class Sampling(Greedy):
    """Draw a token by its probability. The noise is a hash of the seed, of the number of tokens and
    of the place in the scores.
    """

    nucleus: Nucleus
    seed: Value

    def token(self, scores: Value, tokens: Value) -> Value:
        build = scores.build
        scores = self.nucleus.apply(scores)
        step = murmur(build("BitwiseXor", self.seed, tokens.size(1).cast(DType.uint32)), 1)
        places = numbers_below(build, scores.op("Size")).cast(DType.uint32)
        bits = murmur(build("BitwiseXor", places, step), 2)
        high = build("BitShift", bits, build.constant(9, DType.uint32), direction="RIGHT")
        uniform = (high.cast(DType.float32) + 0.5) * 2.0**-23  # neither 0 nor 1
        noise = -build("Log", -build("Log", uniform)).op("Reshape", scores.op("Shape"))
        return (scores + noise).op("ArgMax", axis=1, keepdims=1)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """The K best sequences of each batch that have ended, the best first: their scores, [B, K];
    their tokens, padded, [B, K, L]; and how many there are, int64 [B, 1].
    """

    scores: Value
    tokens: Value
    count: Value

    def with_candidates(self, scores: Value, tokens: Value, is_valid: Value) -> Hypotheses:
        """The hypotheses and the valid candidates among [B, K]. Of equal ones, the older are
        better.
        """
        build, beams = scores.build, scores.size(1)
        is_old = numbers_below(build, beams).op("Less", self.count)
        keys = [
            flags.where(build("Max", values, LOWEST), -np.inf)
            for flags, values in ((is_old, self.scores), (is_valid, scores))
        ]
        joined_keys = build("Concat", *keys, axis=1)
        _, places = build.many("TopK", joined_keys, beams.reshape(1), outputs=2, axis=1)
        all_scores = build("Concat", self.scores, scores, axis=1)
        all_tokens = build("Concat", self.tokens, tokens, axis=1)
        added = build("ReduceSum", is_valid.cast(DType.int64), [1], keepdims=1)
        return Hypotheses(
            build("GatherElements", all_scores, places, axis=1),
            build("GatherND", all_tokens, places.unsqueeze(2), batch_dims=1),
            build("Min", self.count + added, beams),
        )


@dataclass(frozen=True, slots=True)
class Beams:
    """Choose the best continuations of K beams in each of B batches, which are N rows.

    The state holds the scores of the beams, [N, 1]; the scores, the tokens and the count of the
    hypotheses; and which batches are done, [B, 1].
    """

    build: Builder
    batch: Value
    beams: Value
    returned: Value
    length: Value
    pad: int
    power: Value | None
    stops_early: bool

    def start(self) -> tuple[Value, ...]:
        build = self.build
        first = (
            numbers_below(build, self.beams).op("Equal", 0).where(np.float32(0), np.float32(UNSEEN))
        )
        shape = sizes(build, self.batch, self.beams)

        def filled(value: np.generic, *parts: int | Value) -> Value:
            shape = sizes(build, *parts)
            return build("ConstantOfShape", shape, value=np.array([value]))

        return (
            build("Expand", first, shape).reshape(-1, 1),
            filled(np.float32(0), self.batch, self.beams),
            filled(np.int32(self.pad), self.batch, self.beams, self.length),
            filled(np.int64(0), self.batch, 1),
            filled(np.bool_(False), self.batch, 1),
        )

    def choose(self, logits: Value, tokens: Value, state: Sequence[Value], rules: Rules) -> Choice:
        build = logits.build
        beam_scores, *hypotheses, is_done = map(build.value, state)
        scores = rules.apply(logits.op("LogSoftmax", axis=1), tokens) + beam_scores
        lines = build("Reshape", scores, sizes(build, self.batch, -1))
        count = (self.beams * 2).reshape(1)
        best, places = build.many("TopK", lines, count, outputs=2, axis=1)
        beam = places / scores.size(1)
        token = places - beam * scores.size(1)
        rows = beam + numbers_below(build, self.batch).unsqueeze(1) * self.beams
        is_end = token.op("Equal", rules.end)

        def head(value: Value) -> Value:
            return build("Gather", value, numbers_below(build, self.beams), axis=1)

        ended = Hypotheses(*hypotheses).with_candidates(
            self.normal(head(best), tokens),
            self.sequences(tokens, head(rows)),
            head(is_end) & ~is_done,
        )
        is_new_done = self.is_full(ended, best, tokens) | is_done
        # Tokens that end no sequence, in the order of their scores.
        order = numbers_below(build, self.beams * 2) + is_end.cast(DType.int64) * (self.beams * 2)
        _, chosen = build.many(
            "TopK", order.cast(DType.float32), self.beams.reshape(1), outputs=2, axis=1, largest=0
        )

        def continued(value: Value, done: Operand) -> Value:
            return is_done.where(done, build("GatherElements", value, chosen, axis=1))

        next_token = continued(token.cast(DType.int32), self.pad).reshape(-1, 1)
        next_rows = continued(rows, 0).reshape(-1)
        next_tokens = build("Gather", tokens, next_rows, axis=0)
        next_state = (continued(best, 0.0).reshape(-1, 1), ended.scores, ended.tokens, ended.count)
        return Choice(
            next_token,
            build("Concat", next_tokens, next_token, axis=1),
            any_of(~is_new_done),
            (*next_state, is_new_done),
            next_rows,
            scores,
        )

    def normal(self, scores: Value, tokens: Value) -> Value:
        """The sums of log-probabilities, divided by a power of the number of tokens."""
        length = tokens.size(1).cast(DType.float32)
        return scores / (length if self.power is None else length.op("Pow", self.power))

    def sequences(self, tokens: Value, rows: Value) -> Value:
        """The tokens of rows, [B, K], with padding: [B, K, L]."""
        build = tokens.build
        return build("Gather", padded(tokens, self.length, self.pad), rows, axis=0)

    def is_full(self, ended: Hypotheses, best: Value, tokens: Value) -> Value:
        """True for batches whose hypotheses no sequence can improve any more, [B, 1]."""
        build = best.build
        is_full = ended.count.op("Equal", self.beams)
        if self.stops_early:
            return is_full
        worst = build("Gather", ended.scores, np.array([-1]), axis=1)
        return is_full & ~worst.op("Less", self.normal(best.slice(0, 1, 1), tokens))

    def results(self, tokens: Value, state: Sequence[Value]) -> tuple[Value, ...]:
        build = self.build
        beam_scores, *hypotheses, is_done = state
        lines = build("Reshape", beam_scores, sizes(build, self.batch, self.beams))
        rows = build(
            "Reshape",
            numbers_below(build, self.batch * self.beams),
            sizes(build, self.batch, self.beams),
        )
        ended = Hypotheses(*hypotheses).with_candidates(
            self.normal(lines, tokens),
            self.sequences(tokens, rows),
            build("Expand", ~is_done, lines.op("Shape")),
        )
        returned = numbers_below(build, self.returned)
        return tuple(
            build("Gather", value, returned, axis=1) for value in (ended.tokens, ended.scores)
        )
