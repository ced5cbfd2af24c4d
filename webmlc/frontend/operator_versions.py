"""Look up the opset in which an operator first appeared, in ONNX's schemas.

>>> first_opset("", "Gelu"), first_opset("com.microsoft", "FastGelu")
(20, 1)
"""

from __future__ import annotations

from functools import cache

import onnx


@cache
def _first_opsets() -> dict[tuple[str, str], int]:
    opsets: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = schema.domain, schema.name
        opsets[key] = min(schema.since_version, opsets.get(key, schema.since_version))
    return opsets


def first_opset(domain: str, name: str) -> int:
    """The version of the domain that introduced the operator; 1 if ONNX does not define it."""
    return _first_opsets().get((domain, name), 1)
