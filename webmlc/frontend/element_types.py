"""ONNX's numbers of element types, as ours."""

from __future__ import annotations

from onnx import helper

from webmlc.core.dtypes import DType


def dtype_of(element_type: int) -> DType | None:
    """Of ONNX's number of an element type; None for one that we do not have."""
    try:
        return DType.of(helper.tensor_dtype_to_np_dtype(element_type))
    except (ValueError, TypeError, KeyError):
        return None
