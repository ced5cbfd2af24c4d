"""Change the scores of the next tokens so that Whisper's timestamps come in order and in pairs.

In: the scores of all tokens, [N, V], and the tokens before, [N, T]. Out: scores of the same shape.
Timestamps are the tokens from `first` on. A text is between two of them: <0.0> text <2.4> <2.4> ..

Source: OpenAI's Whisper, `ApplyTimestampRules`, in the form of onnxruntime.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Value

LATEST_START = 50
"""The greatest first timestamp, in steps of 20 ms: a second. From onnxruntime."""
LOWEST = float(np.finfo(np.float32).min)
"""The score of a forbidden token."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The rules of timestamps.

    - `first`: the first timestamp's token;
    - `end`: the token that ends a sequence, after which no text tokens come;
    - `never`: tokens that are always forbidden;
    - `early`: tokens that are forbidden after the first timestamp.
    """

    first: int
    end: int
    never: tuple[int, ...]
    early: tuple[int, ...]

    def apply(self, scores: Value, tokens: Value) -> Value:
        """The changed scores of the tokens that follow `tokens`."""
        build = scores.build
        numbers = build("Range", np.int64(0), scores.size(1), np.int64(1)).cast(DType.int32)
        is_stamp = ~numbers.op("Less", self.first)
        scores = self.forbidden(tokens, numbers).where(LOWEST, scores)
        # If a timestamp is likelier than each text, no text follows.
        is_possible = is_stamp & scores.op("Greater", LOWEST)
        largest = _largest(is_possible.where(scores, LOWEST))
        terms = is_possible.where(build("Exp", scores - largest), 0.0)
        sum_of_stamps = build("ReduceSum", terms, [1], keepdims=1)
        likelihood = sum_of_stamps.op("Greater", 0).where(
            build("Log", sum_of_stamps) + largest, LOWEST
        )
        wins = likelihood.op("Greater", _largest(is_stamp.where(LOWEST, scores)))
        return (wins & ~is_stamp).where(LOWEST, scores)

    def forbidden(self, tokens: Value, numbers: Value) -> Value:
        """The tokens that the tokens before them forbid, [N, V]. `numbers` are all tokens."""
        build = numbers.build
        was_stamp = ~tokens.op("Less", self.first)
        # A column before the first, so that there are two.
        start = build("Expand", np.array(False), was_stamp.slice(0, 1, 1).op("Shape"))
        flags = build("Concat", start, was_stamp, axis=1)
        before_last, last = (build("Gather", flags, np.array([k]), axis=1) for k in (-2, -1))
        has_earlier = _largest(flags.slice(0, -1, 1).cast(DType.int32)).op("Greater", 0)
        is_paired = before_last | ~has_earlier
        place = build("ArgMax", flags.cast(DType.int32), axis=1, select_last_index=1)
        latest = build("GatherElements", tokens, build("Max", place - 1, 0), axis=1)
        limit = latest + (~(last & ~is_paired)).cast(DType.int32)
        is_stamp = ~numbers.op("Less", self.first)
        return (
            _is_one_of(numbers, self.never)
            | (has_earlier & _is_one_of(numbers, self.early))
            | (last & is_paired & is_stamp)
            | (last & ~is_paired & numbers.op("Less", self.end))
            | ((has_earlier | last) & is_stamp & build("Less", numbers, limit))
            | (~has_earlier & numbers.op("Greater", self.first + LATEST_START))
        )


def _largest(values: Value) -> Value:
    return values.build("ReduceMax", values, [1], keepdims=1)


def _is_one_of(numbers: Value, tokens: tuple[int, ...]) -> Value:
    """True for the numbers among some tokens."""
    result = numbers.op("Equal", -1)
    for token in tokens:
        result = result | numbers.op("Equal", token)
    return result
