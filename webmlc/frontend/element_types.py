"""Convert ONNX's numbers of element types to `DType`."""

from __future__ import annotations

from onnx import helper

from webmlc.core.dtypes import DType


def dtype_of(element_type: int) -> DType | None:
    """The `DType` for ONNX's number of an element type, or `None` if webmlc lacks the type."""
    try:
        return DType.of(helper.tensor_dtype_to_np_dtype(element_type))
    except (ValueError, TypeError, KeyError):
        return None
