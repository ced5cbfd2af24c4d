"""Local response normalisation between convolutions and pools, where channels come last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.against_onnxruntime import check, parse


@pytest.mark.parametrize(("channels", "size"), [(24, 5), (22, 9), (10, 3), (96, 29)])
def test_neighbouring_channels_are_as_in_onnxruntime(
    channels: int, size: int, tmp_path: Path
) -> None:
    """Ends of whole vectors and not, too few channels, and more neighbours than are unrolled."""
    rng = np.random.default_rng(size)
    weights = rng.standard_normal((channels, 3)).astype(np.float32)
    values = ", ".join(map(str, weights.reshape(-1).tolist()))
    text = f"""
    g (float[n,3,9,7] x) => (float[n,{channels},4,3] y)
    <float[{channels},3,1,1] w = {{{values}}}> {{
      a = Conv (x, w)
      b = LRN <size = {size}, alpha = 0.3, beta = 0.75, bias = 1.5> (a)
      y = MaxPool <kernel_shape = [3,3], strides = [2,2]> (b)
    }}
    """
    feeds = ({"x": rng.standard_normal((n, 3, 9, 7)).astype(np.float32)} for n in (1, 2))
    check(parse(text), tmp_path / "package", *feeds)


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.25, 0.6])
@pytest.mark.parametrize(("alpha", "bias"), [(0.3, 1.5), (0.3, 0.01), (0.3, -0.05)])
def test_bases_with_and_without_a_sign(
    alpha: float, bias: float, beta: float, tmp_path: Path
) -> None:
    """With a negative bias, a base may be negative. A sum may be 0."""
    text = f"""
    g (float[2,6,4,5] x) => (float[2,6,4,5] y)
    {{ y = LRN <size = 3, alpha = {alpha}, beta = {beta}, bias = {bias}> (x) }}
    """
    x = np.random.default_rng(0).standard_normal((2, 6, 4, 5)).astype(np.float32)
    x[0, :, 0, 0] = 0
    check(parse(text), tmp_path / "package", {"x": x})
