"""Sampling: each option keeps the right tokens, and draws them as often as it should."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

from webmlc.core.errors import InputError
from webmlc.generate.random_numbers import RandomNumbers
from webmlc.generate.sampling import exponential, sample

LOGITS = np.log(np.array([0.5, 0.02, 0.3, 0.08, 0.1], np.float32))
"""The probabilities of five tokens."""


@dataclass(frozen=True)
class Sampling:
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def drawn(options: Sampling, count: int = 2000) -> Counter[int]:
    random = RandomNumbers(1)
    return Counter(sample(LOGITS, [], options, random) for _ in range(count))


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (Sampling(), {0, 1, 2, 3, 4}),
        (Sampling(do_sample=False), {0}),
        (Sampling(top_k=2), {0, 2}),
        (Sampling(top_p=0.79), {0, 2}),
        (Sampling(top_p=0.81), {0, 2, 4}),
        (Sampling(top_p=0.1), {0}),
        (Sampling(min_p=0.19), {0, 2, 4}),
        (Sampling(top_k=3, top_p=0.6), {0, 2}),
        (Sampling(temperature=0.05), {0}),
    ],
)
def test_an_option_keeps_the_likeliest(options: Sampling, tokens: set[int]) -> None:
    assert set(drawn(options)) == tokens


def test_tokens_are_drawn_as_often_as_their_probabilities_say() -> None:
    counts = drawn(Sampling(temperature=2), 8000)
    expected = np.sqrt(np.exp(LOGITS)) / np.sqrt(np.exp(LOGITS)).sum()
    np.testing.assert_allclose([counts[i] / 8000 for i in range(5)], expected, atol=0.02)


def test_the_penalty_makes_used_tokens_less_likely() -> None:
    greedy = Sampling(do_sample=False, repetition_penalty=3)
    random = RandomNumbers(0)
    assert sample(LOGITS, [0, 0], greedy, random) == 2
    assert sample(-LOGITS, [1], replace(greedy, repetition_penalty=9), random) == 3


def test_the_first_of_equal_logits_wins() -> None:
    equal = np.array([0, 2, 2, 2], np.float32)
    assert sample(equal, [], Sampling(do_sample=False), RandomNumbers(0)) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    with pytest.raises(InputError, match="cannot be sampled"):
        sample(np.full(3, bad, np.float32), [], Sampling(), RandomNumbers(0))


def test_the_exponential_function_is_exact_to_the_last_bit_but_one() -> None:
    x = np.linspace(-690, 0, 20_001)
    np.testing.assert_allclose(exponential(x), np.exp(x), rtol=2.3e-16)
    assert exponential(np.array([-1e9, -np.inf])).tolist() == [0, 0]


def test_random_numbers_stay_as_they_are() -> None:
    """A seed draws the same numbers in every version: people note seeds."""
    random = RandomNumbers(7)
    numbers = [random.next() for _ in range(3)]
    assert numbers == [0.049009592574554284, 0.9298532154569821, 0.3972365680289133]
