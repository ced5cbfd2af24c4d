"""Tensors of which all elements are one value, known at build time, and the rules that use them.

Attention without a mask, as ONNX defines it, adds zeros of one element for each query and key, and
asks which of their rows are -inf:

    %bias = ConstantOfShape(%shape)
    %masked = Equal(ReduceMax(%bias), -inf)                  (false everywhere)
    %y = Where(%masked, 0, %p)                         ->    %y = %p
"""

from __future__ import annotations

import numpy as np

from webmlc.graph.ir import Array, Node
from webmlc.graph.ops.operator import Context
from webmlc.graph.rewrite.rewriting import Rewriting
from webmlc.graph.simplify.rearrangement_rules import same_type

COPIES = frozenset(
    {"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators whose results have elements of their first input only."""
FOLDS = frozenset({"ReduceMax", "ReduceMin"})
"""Operators that fold one value, as often as they like, to itself."""


def single_value(rewriting: Rewriting, name: str) -> Array | None:
    """An array of the one value that every element of `name` has; `None` where there is none, or
    where it is not known at build time.
    """
    array = rewriting.constants.get(name)
    if array is not None:
        is_single = array.size > 0 and bool(np.all(array == array.flat[0]))
        return array.reshape(-1)[:1] if is_single else None
    node = rewriting.producer(name)
    if node is None or node.domain:
        return None
    match node.op:
        case "ConstantOfShape":
            context = rewriting.scope.context(node)
            value = context.attribute("value", np.zeros(1, np.float32))
            return np.asarray(value).reshape(-1)[:1]
        case "Equal":
            a, b = (single_value(rewriting, side) for side in node.inputs)
            return None if a is None or b is None else a == b
        case op if op in COPIES or (op in FOLDS and _has_elements(rewriting, node.inputs[0])):
            return single_value(rewriting, node.inputs[0])
    return None


def _has_elements(rewriting: Rewriting, name: str) -> bool:
    """True where it is known at build time that a tensor has elements."""
    type_ = rewriting.types.get(name)
    shape = None if type_ is None else type_.static_shape
    return shape is not None and 0 not in shape


def choose_branch(rewriting: Rewriting, node: Node, context: Context) -> str | None:
    """Replace a Where whose condition is the same everywhere by what it takes, if that has its
    shape.
    """
    if (node.domain, node.op) != ("", "Where"):
        return None
    condition = single_value(rewriting, node.inputs[0])
    if condition is None:
        return None
    branch = 1 if condition[0] else 2
    return node.inputs[branch] if same_type(context.types[branch], context.outputs[0]) else None
