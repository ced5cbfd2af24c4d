"""The element types by ONNX's `TensorProto.DataType` numbers, which attributes hold (`Cast.to`).

>>> TYPE_NUMBERS[DType.int64]
7
"""

from webmlc.core.dtypes import DType

ELEMENT_TYPES: dict[int, DType] = {
    1: DType.float32,
    2: DType.uint8,
    3: DType.int8,
    4: DType.uint16,
    5: DType.int16,
    6: DType.int32,
    7: DType.int64,
    9: DType.bool,
    10: DType.float16,
    11: DType.float64,
    12: DType.uint32,
    13: DType.uint64,
    16: DType.bfloat16,
    17: DType.float8_e4m3fn,
    18: DType.float8_e4m3fnuz,
    19: DType.float8_e5m2,
    20: DType.float8_e5m2fnuz,
    21: DType.uint4,
    22: DType.int4,
    23: DType.float4_e2m1fn,
    24: DType.float8_e8m0fnu,
    25: DType.uint2,
    26: DType.int2,
    27: DType.float6_e2m3fn,
    28: DType.float6_e3m2fn,
}
"""The element types by their numbers."""
TYPE_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
"""The numbers of the element types."""
