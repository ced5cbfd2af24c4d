"""Types of elements that an operator takes, as ONNX's schemas list them.

In: a node and the types of its inputs. A model whose types do not fit is malformed; no row of the
operator table has to ask for it. What a schema names by one variable (`T`) is of one type. Rows may
take further types of a kind (float, integer, boolean); operators without a schema (our own,
`com.microsoft`'s) take what their rows take.

    check_types(node, types)    # raises: input 0 is int64; it takes bfloat16, float16, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from onnx import TensorProto, defs

from webmlc.core.dtypes import DType
from webmlc.frontend.element_types import dtype_of
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.operator import NotSupportedError

_NUMBERS: dict[str, int] = dict(TensorProto.DataType.items())


@dataclass(frozen=True, slots=True)
class _Formal:
    """A line of a schema's inputs: the types it takes; the variable that is bound to one of them,
    None where each input has its own.
    """

    taken: frozenset[DType]
    variable: str | None


def check_types(node: Node, types: Sequence[TensorType | None]) -> None:
    """Raises `NotSupportedError` where an input's elements are of a kind that the operator does not
    take, or of another type than those of an input that must be like it; an input without a type,
    or that the schema has no line for, is not looked at.
    """
    bound: dict[str, int] = {}
    for index, (known, formal) in enumerate(zip(types, _inputs(node, len(types)), strict=False)):
        if known is None:
            continue
        if formal.taken and _kind(known.dtype) not in map(_kind, formal.taken):
            names = ", ".join(sorted(dtype.name for dtype in formal.taken))
            raise NotSupportedError(f"input {index} is {known.dtype.name}; it takes {names}")
        if formal.variable is not None:
            first = bound.setdefault(formal.variable, index)
            like = types[first]
            if like is not None and like.dtype != known.dtype:
                raise NotSupportedError(
                    f"input {first} is {like.dtype.name}, input {index} is {known.dtype.name}; "
                    "they must be of one type: cast one of them"
                )


def _kind(dtype: DType) -> tuple[bool, bool]:
    return dtype.is_float, dtype.is_integer


def _inputs(node: Node, count: int) -> tuple[_Formal, ...]:
    """A line for each input, the last one of a variadic operator repeated."""
    formals, is_variadic = _schema(node.domain, node.op)
    return formals + formals[-1:] * (count - len(formals)) if is_variadic else formals


@cache
def _schema(domain: str, op: str) -> tuple[tuple[_Formal, ...], bool]:
    """The formal inputs in the newest opset; whether the last may repeat."""
    if not defs.has(op, domain):
        return (), False
    schema = defs.get_schema(op, domain)
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    is_variadic = bool(schema.inputs) and schema.inputs[-1].option == variadic
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    return tuple(
        _Formal(
            frozenset(d for t in i.types if (d := _dtype(t))),
            i.type_str if i.type_str in variables and i.is_homogeneous else None,
        )
        for i in schema.inputs
    ), is_variadic


def _dtype(text: str) -> DType | None:
    """`tensor(float)` as a dtype; None for a sequence, an optional, or text."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    return dtype_of(_NUMBERS[name]) if name in _NUMBERS else None
