"""An output need not be closer to the reference than that is to itself."""

from __future__ import annotations

import numpy as np

from webmlc.host.check import allow_spread, compare


def test_the_references_own_spread_is_allowed() -> None:
    one = np.array([1.0, 0.5], np.float32)
    near, far = one + np.float32(0.002), one + np.float32(0.02)
    error = compare("y", one, one + np.float32(0.01), 1e-3)
    assert not error.passed
    assert allow_spread(error, one, far).passed
    refused = allow_spread(error, one, near)
    assert not refused.passed
    assert refused.spread is not None and abs(refused.spread - 0.002) < 1e-6


def test_integers_are_exact_whatever_the_reference_does() -> None:
    one = np.array([1, 2])
    error = compare("y", one, one + 1, 1e-3)
    assert not allow_spread(error, one, one + 5).passed
