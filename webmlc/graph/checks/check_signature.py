"""Check that a row reads all inputs and attributes of its node, and knows the values of attributes.

In: a node and its row. Out: nothing, or a `NotSupportedError`. The frontend has checked nodes by
ONNX's schemas, which say neither which texts an attribute may be nor which attributes are flags.
"""

from __future__ import annotations

from webmlc.graph.ir import Node
from webmlc.graph.ops.operator import NotSupportedError, Operator

FLAGS = frozenset(
    {"align_corners", "allowzero", "antialias", "causal", "ceil_mode", "center_point_box"}
    | {"channels_last", "count_include_pad", "do_rotary", "exclude_outside", "exclusive", "fmod"}
    | {"interleaved", "largest", "reverse", "rotary_interleaved", "saturate", "select_last_index"}
    | {"sorted", "storage_order", "training_mode", "transA", "transB", "transBatchA"}
    | {"transBatchB", "unidirectional", "upper"}
)
"""Attributes that are 0 or 1. Runtimes differ on other numbers: they read them as 0 or as 1."""


def check_signature(node: Node, row: Operator) -> None:
    """Raise `NotSupportedError` for the first input or attribute that the row does not know."""
    if row.signature is not None:
        for name in sorted(node.attributes.keys() - row.signature.attributes):
            raise NotSupportedError(f"the attribute {name!r} is not supported")
        for index, value in enumerate(node.inputs[row.signature.inputs :], row.signature.inputs):
            if value:
                raise NotSupportedError(f"input {index}, {value!r}, is not supported")
    for name in sorted(node.attributes.keys() & FLAGS):
        if node.attributes[name] not in (0, 1):
            raise NotSupportedError(f"{name} is {node.attributes[name]!r}; it must be 0 or 1")
    for name, choices in row.choices.items():
        text = node.attributes.get(name, choices[0])
        if text not in choices:
            expected = ", ".join(repr(choice) for choice in choices if choice)
            raise NotSupportedError(f"{name} is {text!r}; it must be one of {expected}")
