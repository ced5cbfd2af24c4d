"""Translate operators that people register by `torch.library` to nodes of ONNX.

In: the operators of PyTorch in this process. Out: a translation for each, as torch.onnx takes it.
An operator becomes a node of its name in the domain of its namespace: tensors are inputs, and other
arguments are attributes. `programs.operators` defines the meaning of such nodes.

    example::smear(x, width=4)   ->   example.smear(x) {width=4}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

Value = Any
"""The type of a tensor of onnxscript."""
PYTORCH = frozenset(
    {"_native", "aten", "debug_mode_ops", "debugprims", "export", "higher_order", "inductor"}
    | {"onnx", "onnx_symbolic", "prims", "quantized_decomposed", "rngprims", "streams"}
)
"""The namespaces in which PyTorch itself registers operators in Python."""
_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("bfloat16", "float16", "float", "double"),
)
"""The element types of tensors, as schemas of ONNX name them."""
_NUMBERS: dict[str, type] = {
    "IntType": int,
    "SymIntType": int,
    "BoolType": bool,
    "FloatType": float,
    "StringType": str,
}
"""The types of Python by the kinds of arguments."""


def custom_translations() -> dict[Any, Callable[..., Any]]:
    """The translations of the operators that people registered by `torch.library`."""
    import torch

    table: dict[Any, Callable[..., Any]] = {}
    for name in getattr(torch.library, "_defs", ()):
        namespace, _, operator_name = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), operator_name.partition(".")[0], None)
        for overload in () if namespace in PYTORCH or packet is None else packet.overloads():
            operator = getattr(packet, overload)
            if (translation := _as_node(namespace, operator)) is not None:
                table[operator] = translation
    return table


def _as_node(namespace: str, operator: Any) -> Callable[..., Any] | None:
    """The translation of an operator to a node: tensors are inputs, and other arguments are
    attributes. `None` for an operator whose attributes ONNX does not have.
    """
    arguments = operator._schema.arguments
    types = {argument.name: _attribute_type(argument.real_type) for argument in arguments}
    if None in types.values():
        return None
    inputs = [argument.name for argument in arguments if types[argument.name] is Value]
    node = _node_maker(namespace, operator, inputs, len(operator._schema.returns))
    signature = inspect.Signature([_parameter(argument) for argument in arguments])

    def translation(*values: Any, **keywords: Any) -> Any:
        bound = signature.bind(*values, **keywords)
        bound.apply_defaults()
        tensors = [bound.arguments.pop(name) for name in inputs]
        return node(*tensors, **bound.arguments)

    translation.__name__ = operator._schema.name.rpartition("::")[2]
    translation.__signature__ = signature  # type: ignore[attr-defined]
    translation.__annotations__ = {n: t for n, t in types.items() if t is not Value}
    return translation


def _node_maker(namespace: str, operator: Any, inputs: list[str], outputs: int) -> Any:
    """The function that adds a node of an operator. Its tensors are of any type."""
    from onnx.defs import OpSchema
    from onnxscript.values import Op, Opset

    name = operator._schema.name.rpartition("::")[2]
    formal, optional = OpSchema.FormalParameter, OpSchema.FormalParameterOption.Optional
    single = OpSchema.FormalParameterOption.Single
    every = [f"tensor({dtype})" for dtype in _DTYPES]
    types = [(f"T{i}", every, "") for i in range(len(inputs) + outputs)]
    is_optional = {a.name: a.real_type.kind() == "OptionalType" for a in operator._schema.arguments}
    schema = OpSchema(
        name,
        namespace,
        1,
        inputs=[
            formal(n, f"T{i}", param_option=optional if is_optional[n] else single)
            for i, n in enumerate(inputs)
        ],
        outputs=[formal(f"result_{i}", f"T{len(inputs) + i}") for i in range(outputs)],
        type_constraints=types,
        attributes=[
            OpSchema.Attribute(a.name, _attribute_kind(a.real_type), required=False)
            for a in operator._schema.arguments
            if a.name not in inputs
        ],
    )
    return Op(Opset(namespace, 1), name, schema)


def _attribute_type(type_: Any) -> Any:
    """The type of Python for an attribute of ONNX, by the type of an argument: `Value` for a
    tensor, and `None` for a type that ONNX does not have.
    """
    kind = type_.kind()
    if kind == "OptionalType":
        return Value if type_.getElementType().kind() == "TensorType" else None
    if kind == "ListType":
        element = _NUMBERS.get(type_.getElementType().kind())
        return None if element is None else Sequence[element]  # type: ignore[valid-type]
    return Value if kind == "TensorType" else _NUMBERS.get(kind)


def _attribute_kind(type_: Any) -> Any:
    """The type of an attribute in a schema."""
    from onnx.defs import OpSchema

    is_list = type_.kind() == "ListType"
    number = _NUMBERS[type_.getElementType().kind() if is_list else type_.kind()]
    kind = {int: "INT", bool: "INT", float: "FLOAT", str: "STRING"}[number]
    return getattr(OpSchema.AttrType, f"{kind}S" if is_list else kind)


def _parameter(argument: Any) -> inspect.Parameter:
    """The parameter of a translation for an argument of an operator."""
    parameter = inspect.Parameter
    kind = parameter.KEYWORD_ONLY if argument.kwarg_only else parameter.POSITIONAL_OR_KEYWORD
    default = argument.default_value if argument.has_default_value() else parameter.empty
    return parameter(argument.name, kind, default=default)
