"""Element types: one table that the graph, the loops, the targets and the manifest share.

A `DType` is a string (`"float32"`). It therefore prints, hashes and serialises as that string:

    >>> DType.float32.bytes, DType.int64.is_integer, DType("bool") is DType.bool
    (4, True, True)

A number of fewer than 8 bits occupies the lowest bits of one byte in memory, as in `ml_dtypes`:

    >>> DType.int4.bits, DType.int4.bytes, DType.int4.limits
    (4, 1, (-8, 7))
"""

from __future__ import annotations

import builtins
import re
from enum import StrEnum
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray


class DType(StrEnum):
    """An element type, spelled as numpy spells it."""

    bool = "bool"
    int8 = "int8"
    uint8 = "uint8"
    int16 = "int16"
    uint16 = "uint16"
    int32 = "int32"
    uint32 = "uint32"
    int64 = "int64"
    uint64 = "uint64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"
    int4 = "int4"
    uint4 = "uint4"
    int2 = "int2"
    uint2 = "uint2"
    float8_e4m3fn = "float8_e4m3fn"
    float8_e4m3fnuz = "float8_e4m3fnuz"
    float8_e5m2 = "float8_e5m2"
    float8_e5m2fnuz = "float8_e5m2fnuz"
    float8_e8m0fnu = "float8_e8m0fnu"
    float6_e2m3fn = "float6_e2m3fn"
    float6_e3m2fn = "float6_e3m2fn"
    float4_e2m1fn = "float4_e2m1fn"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of one element."""
        return _numpy(self)

    @property
    def is_numpy_own(self) -> builtins.bool:
        """True if numpy itself defines the type; `ml_dtypes` defines the others."""
        return not hasattr(ml_dtypes, self)

    @property
    def bits(self) -> int:
        """The bits of one number; a bool occupies 8."""
        return 8 if self is DType.bool else _bits(self)

    @property
    def bytes(self) -> int:
        """The bytes of one element in memory."""
        return max(1, self.bits // 8)

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest finite number; both are `int` for integer types."""
        return _limits(self)

    @property
    def has_infinity(self) -> builtins.bool:
        """True for the floating-point types that have an infinity."""
        return self.is_float and np.isinf(np.array(np.inf).astype(self.numpy)).item()

    @property
    def is_float(self) -> builtins.bool:
        """True for the floating-point types."""
        return "float" in self

    @property
    def is_integer(self) -> builtins.bool:
        """True for the signed and unsigned integers; bool is not an integer."""
        return "int" in self

    @property
    def is_signed(self) -> builtins.bool:
        """True for signed integers and floats."""
        return self.is_float or self.startswith("int")

    @classmethod
    def of(cls, dtype: DTypeLike) -> DType:
        """The `DType` of a numpy dtype. Raises `ValueError` if there is none."""
        return cls(np.dtype(dtype).name)

    def random(
        self, generator: np.random.Generator, shape: tuple[int, ...], below: int | None = None
    ) -> NDArray[Any]:
        """Random numbers of the type. Floats are normally distributed. Integers and booleans are
        uniform from 0 to `below`, without it, or over all values of the type.
        """
        if self.is_float:
            return generator.standard_normal(shape).astype(self.numpy)
        end = 2 if self is DType.bool else below
        if end is not None:
            return generator.integers(0, end, shape).astype(self.numpy)
        low, high = map(int, self.limits)
        wide: Any = np.uint64 if low == 0 else np.int64
        return generator.integers(low, high, shape, wide, endpoint=True).astype(self.numpy)


@cache
def _numpy(dtype: DType) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype, str(dtype)))


@cache
def _bits(dtype: DType) -> int:
    digits = re.search(r"\d+", dtype)
    assert digits is not None
    return int(digits[0])


@cache
def _limits(dtype: DType) -> tuple[float, float]:
    info: Any = ml_dtypes.iinfo if dtype.is_integer else ml_dtypes.finfo
    number = int if dtype.is_integer else float
    return number(info(dtype.numpy).min), number(info(dtype.numpy).max)


LANE_TYPES = frozenset(d for d in DType if d.bits < 64)
"""The types that a vector of 32-bit lanes can hold. Loads widen small types; stores narrow them."""


INDEX = DType.int32
"""The type of loop variables, dimensions and addresses (memory32)."""
