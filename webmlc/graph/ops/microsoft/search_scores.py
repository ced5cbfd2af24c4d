"""Change the scores of the next tokens by the rules of a search, before the search chooses.

In: the scores of all tokens, [N, V], and the tokens before, [N, T]. Out: scores of the same shape.
The rules, in their order: a penalty for tokens that occurred before, no repeated n-grams, masks of
tokens, no end before a length, the temperature, and a penalty for tokens of a mask.

Source: the logits processors of Hugging Face's transformers, in the order of onnxruntime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.rows import int64_scalar
from webmlc.graph.ops.microsoft.search_timestamps import LOWEST, Timestamps
from webmlc.graph.ops.microsoft.tokens import repeated_tokens, tokens_in
from webmlc.graph.ops.operator import Context


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a search. A rule of `None` does not apply.

    - `end`: the token that ends a sequence;
    - `ngram_size`: the size of n-grams that may not repeat, or 0;
    - `penalty`: the divisor of positive scores of tokens that occurred, and the factor of others;
    - `masks`: integers that are 0 for forbidden tokens, each [V] or [N, V];
    - `first_mask`: a further mask for the first token only;
    - `least_length`: the length below which no sequence ends, as an int64 scalar;
    - `temperature`: the divisor of all scores;
    - `deductions`: numbers to subtract from the scores, [N, V];
    - `timestamps`: the rules of timestamps;
    - `has_timestamps`: true if these apply, a boolean; `None` if they always do.
    """

    end: int
    ngram_size: int
    penalty: Value | None
    masks: tuple[Value, ...]
    first_mask: Value | None
    least_length: Value | None
    temperature: Value | None
    deductions: Value | None
    timestamps: Timestamps | None = None
    has_timestamps: Value | None = None

    def without_first(self) -> Rules:
        """The rules for all tokens but the first."""
        return replace(self, first_mask=None)

    def apply(self, scores: Value, tokens: Value) -> Value:
        """The changed scores of the tokens that follow `tokens`, in the function of `scores`."""
        build = scores.build
        size = scores.size(1)
        if self.penalty is not None:
            changed = (scores.op("Less", 0)).where(scores * self.penalty, scores / self.penalty)
            scores = tokens_in(build, tokens, scores).where(changed, scores)
        if self.ngram_size:
            is_repeated = repeated_tokens(build, tokens, scores, self.ngram_size)
            scores = is_repeated.where(LOWEST, scores)
        masks = self.masks if self.first_mask is None else (*self.masks, self.first_mask)
        for mask in masks:
            scores = build("Equal", mask, 0).where(LOWEST, scores)
        if self.least_length is not None:
            is_end = build("Range", np.int64(0), size, np.int64(1)).op("Equal", self.end)
            is_early = tokens.size(1).op("Less", self.least_length)
            scores = (is_end & is_early).where(LOWEST, scores)
        if self.temperature is not None:
            scores = scores / self.temperature
        if self.deductions is not None:
            scores = scores - self.deductions
        if self.timestamps is None:
            return scores
        stamped = self.timestamps.apply(scores, tokens)
        has_timestamps = self.has_timestamps
        return stamped if has_timestamps is None else has_timestamps.where(stamped, scores)


@dataclass(frozen=True, slots=True)
class Places:
    """The inputs of a search that hold its rules, by position; `None` if it has none."""

    least_length: int
    penalty: int
    mask: int
    first_mask: int
    temperature: int | None = None
    presence: int | None = None


def rules_of(context: Context, build: Builder, places: Places, rows: Value | None) -> Rules:
    """The rules of a node. `rows` holds the batch of each row of the scores, [N]; `None` if rows
    are batches.
    """

    def factor_of(index: int | None, neutral: float, name: str = "") -> Value | None:
        """A number of an input or of an attribute, if it changes anything."""
        if name in context.node.attributes:
            number: Any = context.attribute(name)
            return None if number in (0, neutral) else build.constant(np.float32(number))
        if index is None or not context.has(index) or _is_number(context.value(index), neutral):
            return None
        return build.inputs[index].cast(DType.float32).reshape(1)

    def table(index: int | None) -> Value | None:
        value = None if index is None else build.optional(index)
        if value is None or index is None or rows is None or context.rank(index) == 1:
            return value
        return build("Gather", value, rows, axis=0)

    mask, presence = table(places.mask), table(places.presence)
    factor = context.attribute("presence_penalty", 0.0)
    least = build.optional(places.least_length)
    return Rules(
        end=int(context.attribute("eos_token_id")),
        ngram_size=int(context.attribute("no_repeat_ngram_size", 0)),
        penalty=factor_of(places.penalty, 1.0),
        masks=() if mask is None else (mask,),
        first_mask=table(places.first_mask),
        least_length=None if least is None else int64_scalar(least),
        temperature=factor_of(places.temperature, 1.0, "temperature"),
        deductions=None if presence is None else presence.cast(DType.float32) * factor,
    )


def _is_number(value: Any, number: float) -> bool:
    return value is not None and bool(value.reshape(-1)[0] == number)
