"""Draw the random numbers of sampling: xoshiro128** (Blackman and Vigna, 2018).

In: a seed of 32 bits. Out: numbers from 0 to below 1. `runtime_js/language/random_numbers.js` is
the twin, and draws the same numbers: both use only integers of 32 bits.

    random = RandomNumbers(7)
    random.next()   # 0.0490095...

splitmix32 turns the seed into the four words of the state, because a state of few bits would draw
similar numbers for similar seeds.
"""

from __future__ import annotations

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
"""The increment of splitmix's state: 2³² divided by the golden ratio, rounded to an odd number."""
SEED_LIMIT = 1 << 32
"""The first seed that is too large."""


class RandomNumbers:
    """A generator of random numbers. The same seed draws the same numbers."""

    def __init__(self, seed: int) -> None:
        self._state = [_mixed(seed + _GOLDEN * i) for i in range(1, 5)]

    def next(self) -> float:
        """Draw a number from 0 to below 1, of 53 random bits: 27 of one word, 26 of the next."""
        high = self._word() >> 5
        low = self._word() >> 6
        return (high * (1 << 26) + low) / (1 << 53)

    def _word(self) -> int:
        """Draw 32 bits."""
        a, b, c, d = self._state
        result = _rotated((b * 5) & _WORD, 7) * 9 & _WORD
        c ^= a
        d ^= b
        self._state = [a ^ d, b ^ c, c ^ (b << 9) & _WORD, _rotated(d, 11)]
        return result


def _rotated(word: int, bits: int) -> int:
    """Rotate a word to the left."""
    return (word << bits | word >> (32 - bits)) & _WORD


def _mixed(state: int) -> int:
    """The output of splitmix32 for a state."""
    word = state & _WORD
    word = ((word ^ word >> 16) * 0x21F0AAAD) & _WORD
    word = ((word ^ word >> 15) * 0x735A2D97) & _WORD
    return word ^ word >> 15
