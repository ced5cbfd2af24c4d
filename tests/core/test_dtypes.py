"""Element types draw random numbers."""

import numpy as np
import pytest

from webmlc.core.dtypes import DType


@pytest.mark.parametrize("dtype", DType)
def test_random_numbers_fit_their_type(dtype: DType) -> None:
    generator = np.random.default_rng(0)
    numbers = dtype.random(generator, (4, 500))
    assert (numbers.shape, numbers.dtype) == ((4, 500), dtype.numpy)
    wide = numbers.astype(np.float64)
    if dtype.is_integer:
        low, high = dtype.limits
        assert wide.min() < low + (high - low) / 100 + 1
        assert wide.max() > high - (high - low) / 100 - 1
    elif dtype is DType.bool:
        assert set(wide.flat) == {0, 1}
    elif dtype is not DType.float8_e8m0fnu:  # which holds positive powers of two only
        assert np.isfinite(wide).mean() > 0.9
        assert wide.min() < 0 < wide.max()


@pytest.mark.parametrize("dtype", [DType.int8, DType.uint8, DType.int64, DType.bool])
def test_random_integers_stay_below_a_limit(dtype: DType) -> None:
    numbers = dtype.random(np.random.default_rng(0), (500,), below=4)
    assert set(numbers.tolist()) == ({0, 1} if dtype is DType.bool else {0, 1, 2, 3})
