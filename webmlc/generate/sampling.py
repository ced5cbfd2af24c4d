"""Choose the next token from its logits.

In: the logits of one position, and the tokens before it. Out: a token. The steps are the same as in
Hugging Face's transformers, in the same order: repetition penalty, temperature, top-k, top-p,
min-p, draw. `runtime_js/language/sampling.js` is the twin.

Both languages choose the same tokens for the same logits and seed. So every step is defined to the
last bit. Numbers are float64, and sums run in the order of the token ids. The exponential function
is our own (numpy's and V8's differ in the last bit), and the random numbers are those of
`random_numbers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from webmlc.core.errors import InputError
from webmlc.generate.random_numbers import RandomNumbers

Floats = NDArray[np.float64]

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.6931471803691238
"""The first 32 bits of ln 2: its product with a small integer is exact (Cody and Waite, 1980)."""
LN2_LOW = 1.9082149292705877e-10
"""The rest of ln 2."""
SMALLEST_EXPONENT = -700.0
"""Below this, `exponential` is 0, so that it has no subnormal results."""
COEFFICIENTS = tuple(1 / factorial(n) for n in range(14))
"""The coefficients of the Taylor polynomial. Its error for |x| < ln 2 / 2 is below 1e-17."""


class SamplingOptions(Protocol):
    """The options that sampling reads. `options.Options` documents them."""

    @property
    def do_sample(self) -> bool: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...


def sample(
    logits: NDArray[Any], history: Sequence[int], options: SamplingOptions, random: RandomNumbers
) -> int:
    """Choose a token: draw a token if `do_sample`, else take the most likely token.

    `logits` has one element per token of the vocabulary. `history` holds the tokens of the prompt
    and of the answer so far. Of equal logits, the first wins. Raises `InputError` if the largest
    logit is not finite.
    """
    scores = logits.astype(np.float64)
    if options.repetition_penalty != 1.0:
        _penalise(scores, history, options.repetition_penalty)
    best = int(scores.argmax())
    largest = scores[best]
    if not np.isfinite(largest):
        raise _not_finite()
    if not options.do_sample:
        return best
    tokens = np.arange(scores.size)
    if 0 < options.top_k < scores.size:
        # Tokens with the same logit as the last one stay, as in transformers.
        limit = np.partition(scores, -options.top_k)[-options.top_k]
        tokens = np.flatnonzero(scores >= limit)
    weights = exponential((scores[tokens] - largest) / options.temperature)
    if options.top_p < 1.0:
        indices = _nucleus(weights, options.top_p)
        tokens, weights = tokens[indices], weights[indices]
    if options.min_p > 0.0:  # the largest weight is 1
        indices = np.flatnonzero(weights >= options.min_p)
        tokens, weights = tokens[indices], weights[indices]
    sums = np.cumsum(weights)
    chosen = int(np.searchsorted(sums, random.next() * sums[-1], side="right"))
    return int(tokens[min(chosen, tokens.size - 1)])


def checked(token: NDArray[np.int64]) -> int:
    """The most likely token, which the model has found. `token` is -1 if the largest logit is not
    finite.

    Raises `InputError` in that case, as `sample` does.
    """
    if token < 0:
        raise _not_finite()
    return int(token)


def _not_finite() -> InputError:
    return InputError("the largest logit is not finite: the model's result cannot be sampled")


def _penalise(scores: Floats, history: Sequence[int], penalty: float) -> None:
    """Make the tokens of the history less likely: divide positive scores, multiply others."""
    used = np.unique(np.asarray(history, np.int64))
    score = scores[used]
    scores[used] = np.where(score > 0, score / penalty, score * penalty)


def _nucleus(weights: Floats, top_p: float) -> NDArray[np.int64]:
    """The indices, in order, of the fewest largest weights whose sum is `top_p` of the total.

    Weights below `floor` need no sorting: all of them together are less than the rest of the total.
    """
    total = np.cumsum(weights)[-1]
    floor = (1.0 - top_p) * total / weights.size
    large = np.flatnonzero(weights >= floor)
    order = large[np.argsort(-weights[large], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order]), top_p * total, side="left")) + 1
    return np.sort(order[:count])


def exponential(x: Floats) -> Floats:
    """e to the power of each x ≤ 0, by operations that have the same result in every language.

    x = n ln 2 + r, so exp(x) = 2ⁿ exp(r). A Taylor polynomial computes exp(r).
    """
    clamped = np.maximum(x, SMALLEST_EXPONENT)
    n = np.floor(clamped * LOG2_E + 0.5)
    r = clamped - n * LN2_HIGH - n * LN2_LOW
    result = np.zeros_like(r)
    for coefficient in reversed(COEFFICIENTS):
        result = result * r + coefficient
    return np.where(x < SMALLEST_EXPONENT, 0.0, np.ldexp(result, n.astype(np.int32)))
