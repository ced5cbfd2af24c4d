"""Element types: one table shared by the graph, the loops, the targets and the manifest.

A `DType` is a string (`"float32"`), so it prints, hashes and serialises as itself:

    >>> DType.float32.bytes, DType.int64.is_integer, DType("bool") is DType.bool
    (4, True, True)
"""

from __future__ import annotations

import builtins
from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike


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

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of one element."""
        return np.dtype(ml_dtypes.bfloat16 if self is DType.bfloat16 else str(self))

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory."""
        return 1 if self is DType.bool else int(self.lstrip("buintfloa")) // 8

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
        """The `DType` of a numpy dtype; raises `ValueError` where there is none."""
        return cls(np.dtype(dtype).name)


LANE_TYPES = frozenset(
    {
        DType.float32,
        DType.int32,
        DType.uint32,
        DType.int8,
        DType.uint8,
        DType.int16,
        DType.uint16,
    }
)
"""What a vector of 32-bit lanes holds: small integers are widened by the load, narrowed by the
store.
"""

INDEX = DType.int32
"""The type of loop variables, dimensions and addresses (memory32)."""
