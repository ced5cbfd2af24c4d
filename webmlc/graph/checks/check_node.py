"""Check a node: the element types of its inputs, and that its row reads all inputs and attributes.

In: a node, its row, and the types of its inputs. A model whose types do not fit ONNX's schemas is
malformed, so no row of the operator table has to check for it. The types fit if they fit the
operator's newest schema or the schema of the opset that the model imports: ReduceLogSum took
integers until opset 27. Inputs that a schema describes by one variable (`T`) must have the same
type. Rows may accept further types of a kind (float, integer, boolean). Operators without a schema
(our own, `com.microsoft`'s) accept the types that their rows accept. Schemas say neither which
texts an attribute may be nor which attributes are flags: rows do.

    check_node(node, row, types)    # raises: input 0 is int64; it takes bfloat16, float16, ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from onnx import TensorProto, defs

from webmlc.core.dtypes import DType
from webmlc.frontend.protos import dtype_of
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.operator import NotSupportedError, Operator

FLAGS = frozenset(
    {"align_corners", "allowzero", "antialias", "causal", "ceil_mode", "center_point_box"}
    | {"channels_last", "count_include_pad", "do_rotary", "exclude_outside", "exclusive", "fmod"}
    | {"interleaved", "largest", "reverse", "rotary_interleaved", "saturate", "select_last_index"}
    | {"sorted", "storage_order", "training_mode", "transA", "transB", "transBatchA"}
    | {"transBatchB", "unidirectional", "upper"}
)
"""Attributes that are 0 or 1. Runtimes differ on other numbers: they read them as 0 or as 1."""
_NUMBERS: dict[str, int] = dict(TensorProto.DataType.items())


@dataclass(frozen=True, slots=True)
class _Formal:
    """One entry of a schema's inputs: the types that it accepts, the type variable that it shares
    with other inputs (None if it shares no variable), and whether it is required.
    """

    types: frozenset[DType]
    variable: str | None
    is_needed: bool


@dataclass(frozen=True, slots=True)
class _Schema:
    """The inputs of an operator in one version, and whether the last input may repeat."""

    inputs: tuple[_Formal, ...]
    is_variadic: bool

    def formals(self, count: int) -> tuple[_Formal, ...]:
        """An entry for each of `count` inputs: the last entry of a variadic operator repeats."""
        repeats = count - len(self.inputs) if self.is_variadic else 0
        return self.inputs + self.inputs[-1:] * repeats


def check_node(node: Node, row: Operator, types: Sequence[TensorType | None]) -> None:
    """Raise `NotSupportedError` if the types of a node's inputs do not fit its operator, or for the
    first input or attribute that the row does not know. Nodes of an expansion are checked, too.
    """
    _check_types(node, types)
    _check_signature(node, row)


def _check_types(node: Node, types: Sequence[TensorType | None]) -> None:
    """An input has the wrong type if the operator does not accept the type, or if another input
    that shares its type variable has another type. A node must not leave out an input that the
    operator needs. Inputs without a type or without an entry in the schema are not checked.
    """
    misfit = _misfit(node, types, _schema(*node.operator))
    if misfit is None:
        return
    if node.version is not None:
        older = _schema(node.domain, node.op, node.version)
        if older.inputs and _misfit(node, types, older) is None:
            return
    raise NotSupportedError(misfit)


def _misfit(node: Node, types: Sequence[TensorType | None], schema: _Schema) -> str | None:
    """The reason why the types do not fit the schema; None if they fit."""
    bound: dict[str, int] = {}
    for index, (type_, formal) in enumerate(zip(types, schema.formals(len(types)), strict=False)):
        if formal.is_needed and not node.inputs[index]:
            return f"input {index} is left out, and the operator needs it"
        if type_ is None:
            continue
        if formal.types and _kind(type_.dtype) not in map(_kind, formal.types):
            names = ", ".join(sorted(dtype.name for dtype in formal.types))
            return f"input {index} is {type_.dtype.name}; it takes {names}"
        if formal.variable is not None:
            first = bound.setdefault(formal.variable, index)
            like = types[first]
            if like is not None and like.dtype != type_.dtype:
                return (
                    f"input {first} is {like.dtype.name}, input {index} is {type_.dtype.name}; "
                    "they must be of one type: cast one of them"
                )
    return None


def _kind(dtype: DType) -> tuple[bool, bool]:
    return dtype.is_float, dtype.is_integer


@cache
def _schema(domain: str, op: str, version: int | None = None) -> _Schema:
    """The schema of a version, by default of the newest opset. It is empty if ONNX has no such
    schema.
    """
    try:
        place = (domain,) if version is None else (version, domain)
        schema: Any = defs.get_schema(op, *place)
    except defs.SchemaError:
        return _Schema((), False)
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    single = defs.OpSchema.FormalParameterOption.Single
    is_variadic = bool(schema.inputs) and schema.inputs[-1].option == variadic
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    formals = tuple(
        _Formal(
            frozenset(d for t in i.types if (d := _dtype(t))),
            i.type_str if i.type_str in variables and i.is_homogeneous else None,
            i.option == single,
        )
        for i in schema.inputs
    )
    return _Schema(formals, is_variadic)


def _dtype(text: str) -> DType | None:
    """`tensor(float)` as a dtype; None for a sequence, an optional, or text."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    return dtype_of(_NUMBERS[name]) if name in _NUMBERS else None


def _check_signature(node: Node, row: Operator) -> None:
    """Raise `NotSupportedError` for the first input or attribute that the row does not know, or for
    an input that the row needs and the node leaves out.
    """
    # An expansion may add inputs.
    needed = 0 if row.compute is None or row.expand else _needed_inputs(row.compute)
    if len(node.inputs) < needed:
        raise NotSupportedError(
            f"input {len(node.inputs)} is left out; the operator needs {needed}"
        )
    if row.signature is not None:
        for name in sorted(node.attributes.keys() - row.signature.attributes):
            raise NotSupportedError(f"the attribute {name!r} is not supported")
        limit = len(node.inputs) if row.signature.inputs is None else row.signature.inputs
        for index, value in enumerate(node.inputs[limit:], limit):
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


@cache
def _needed_inputs(compute: Callable[..., Any]) -> int:
    """The number of inputs without which a row's function cannot be called."""
    _, *inputs = inspect.signature(compute).parameters.values()  # the first is the context
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(p.kind is plain and p.default is inspect.Parameter.empty for p in inputs)
