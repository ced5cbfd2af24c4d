"""Kinds of elements that an operator takes, as ONNX's schemas list them: float, integer, boolean.

In: a node and the types of its inputs. A model whose types do not fit is malformed; no row of the
operator table has to ask for it. Rows may take further types of a kind; operators without a schema
(our own, `com.microsoft`'s) take what their rows take.

    check_types(node, types)    # raises: input 0 is int64; Softmax takes bfloat16, float16, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from onnx import TensorProto, defs

from webmlc.core.dtypes import DType
from webmlc.frontend.read_model import dtype_of
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.operator import NotSupportedError

Taken = tuple[frozenset[DType], ...]

_NUMBERS: dict[str, int] = dict(TensorProto.DataType.items())


def check_types(node: Node, types: Sequence[TensorType | None]) -> None:
    """Raises `NotSupportedError` where an input's elements are of a kind that the operator does not
    take; an input without a type, or that the schema has no line for, is not looked at.
    """
    for index, (known, taken) in enumerate(zip(types, _inputs(node, len(types)), strict=False)):
        if known is not None and taken and _kind(known.dtype) not in map(_kind, taken):
            names = ", ".join(sorted(dtype.name for dtype in taken))
            raise NotSupportedError(f"input {index} is {known.dtype.name}; it takes {names}")


def _kind(dtype: DType) -> tuple[bool, bool]:
    return dtype.is_float, dtype.is_integer


def _inputs(node: Node, count: int) -> Taken:
    """The types that each input may have, the last line of a variadic operator repeated."""
    taken, is_variadic = _schema(node.domain, node.op)
    return taken + taken[-1:] * (count - len(taken)) if is_variadic else taken


@cache
def _schema(domain: str, op: str) -> tuple[Taken, bool]:
    """The types of each formal input in the newest opset; whether the last may repeat."""
    if not defs.has(op, domain):
        return (), False
    schema = defs.get_schema(op, domain)
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    is_variadic = bool(schema.inputs) and schema.inputs[-1].option == variadic
    return tuple(
        frozenset(d for t in i.types if (d := _dtype(t))) for i in schema.inputs
    ), is_variadic


def _dtype(text: str) -> DType | None:
    """`tensor(float)` as a dtype; None for a sequence, an optional, or text."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    return dtype_of(_NUMBERS[name]) if name in _NUMBERS else None
