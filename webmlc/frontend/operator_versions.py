"""The opset in which an operator first appeared, as ONNX has it.

>>> first_opset("", "Gelu"), first_opset("com.microsoft", "FastGelu")
(20, 1)
"""

from __future__ import annotations

from functools import cache

import onnx


@cache
def _first_opsets() -> dict[tuple[str, str], int]:
    first: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = schema.domain, schema.name
        first[key] = min(schema.since_version, first.get(key, schema.since_version))
    return first


def first_opset(domain: str, name: str) -> int:
    """The domain's version that introduced the operator; 1 of operators that are not ONNX's own."""
    return _first_opsets().get((domain, name), 1)
