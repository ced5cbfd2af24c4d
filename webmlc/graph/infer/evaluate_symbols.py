"""Evaluate tensor expressions over values known at build time: shapes, and values computed from
them.

In: output tensors of a `compute`, and for its placeholders arrays of numbers and of expressions
over symbols. Out: arrays of the same kind, in which None stands for an unknown element. A symbolic
shape behind `Shape → Gather → Concat` becomes a handful of expressions, by the operators' own
definition:

    >>> from webmlc.core.expr import const
    >>> n = Var("n")
    >>> x = placeholder("x", (const(2),), DType.int64)
    >>> y = compute("y", (const(1),), lambda i: x[i + 1] * 2)
    >>> print(evaluate_symbols([y], {x: object_array([8, n], (2,))})[0])
    [n * 2]

Integers are exact, whatever their dtype is. A float is a numpy number, or an integer expression
that is cast to float. The expression may be scaled by a whole factor and rounded: `floor(n * 0.5)`
is `n // 2`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from webmlc.core.affine import terms
from webmlc.core.bounds import SYMBOL, bounds
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Var,
    as_expr,
    call,
    const,
    maximum,
    minimum,
    select,
)
from webmlc.core.rewrite import rewrite, variables, walk, written_out
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.simplify import simplify
from webmlc.core.sizes import is_size_operator
from webmlc.graph.compute import Read, Reduction, Scatter, Tensor, compute, placeholder
from webmlc.graph.infer.evaluate import stages
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import VALUE_LIMIT, KnownValue, object_array

__all__ = ["compute", "evaluate_symbols", "placeholder"]

MAX_SIZE = 1000
"""The most nodes that a size expression may have, where a shared node counts once for each use.
Sizes of real models have a few dozen; larger expressions are left to the run.
"""
MAX_STEPS = 1 << 18
"""The most expression nodes that are evaluated for one value: about a second of a build. A Concat
of n sizes takes about n².
"""
MAX_DEGREE = 8
"""The most factors that a product may have: the element count of a tensor of rank 8 has eight."""


class _UnknownError(Exception):
    """An element whose value only a run can tell."""


def evaluate_symbols(
    outputs: Sequence[Tensor], inputs: Mapping[Tensor, KnownValue]
) -> list[KnownValue] | None:
    """The values of `outputs`, with None for each unknown element. None if no element is known."""
    values = dict(inputs)
    try:
        for stage in stages(outputs):
            if stage not in values and stage.body is not None:
                values[stage] = _stage(stage, values)
        return [values[output] for output in outputs]
    except (_UnknownError, KeyError):
        return None


def _stage(stage: Tensor, values: Mapping[Tensor, KnownValue]) -> KnownValue:
    sizes = _numbers(stage.shape)
    if isinstance(stage.body, Scatter):
        return _scatter(stage, stage.body, sizes, values)
    body = stage.body.value if isinstance(stage.body, Reduction) else stage.body
    if body is None or math.prod(sizes) * sum(1 for _ in walk(body)) > MAX_STEPS:
        raise _UnknownError
    elements: list[Any] = []
    for position in np.ndindex(*sizes):
        try:
            place = dict(zip(stage.axes, position, strict=True))
            elements.append(_element(stage, place, values))
        except _UnknownError:
            elements.append(None)
    return object_array(elements, sizes)


def _numbers(sizes: Iterable[Expr]) -> tuple[int, ...]:
    """Sizes of few elements as numbers."""
    static = TensorType(INDEX, tuple(sizes)).static_shape
    if static is None or math.prod(static) > VALUE_LIMIT:
        raise _UnknownError
    return static


def _element(stage: Tensor, place: dict[Var, Any], values: Mapping[Tensor, KnownValue]) -> Any:
    match stage.body:
        case Reduction() as reduction:
            sizes = _numbers(axis.extent for axis in reduction.axes)
            total: Any = None  # `init` is neutral, and may exceed an index: the largest integer
            for step in np.ndindex(*sizes):
                inner = {a.var: i for a, i in zip(reduction.axes, step, strict=True)}
                value = _value(reduction.value, place | inner, values)
                both = [total, value]
                total = value if total is None else _apply(reduction.combine, both, stage.dtype)
            if total is None:
                return _typed(reduction.init.value, stage.dtype)  # type: ignore[attr-defined]
            return total
        case Expr() as body:
            return _value(body, place, values)
    raise _UnknownError


def _scatter(
    stage: Tensor, updates: Scatter, shape: Sequence[int], values: Mapping[Tensor, KnownValue]
) -> KnownValue:
    """Apply the updates one after the other. Each of their targets must be known."""
    result = object_array([None] * math.prod(shape), shape)
    if updates.initial is not None:
        for position in np.ndindex(*shape):
            place = dict(zip(stage.axes, position, strict=True))
            result[position] = _value(updates.initial, place, values)
    axes = (*updates.slices, *updates.axes)
    sizes = _numbers(axis.extent for axis in axes)
    with_result = {**values, updates.state: result}
    for step in np.ndindex(*sizes):
        place = {axis.var: i for axis, i in zip(axes, step, strict=True)}
        target = tuple(_value(index, place, with_result) for index in updates.target)
        if not all(isinstance(i, int) for i in target):
            raise _UnknownError
        if all(0 <= i < n for i, n in zip(target, shape, strict=True)):
            value = _value(updates.value, place, with_result)
            both = [result[target], value]
            combine = updates.combine
            result[target] = value if combine is None else _apply(combine, both, stage.dtype)
    return result


def _value(root: Expr, place: Mapping[Var, Any], values: Mapping[Tensor, KnownValue]) -> Any:
    done: dict[Expr, Any] = {}

    def rule(node: Expr) -> Expr | None:
        match node:
            case Const(value=value, dtype=dtype):
                done[node] = _typed(value, dtype)
            case Var():
                done[node] = place.get(node, node)
            case Read(tensor=tensor, indices=indices):
                done[node] = _read(values, tensor, [done[i] for i in indices])
            case Call(op=op, args=args, dtype=dtype):
                done[node] = _apply(op, [done[a] for a in args], dtype)
            case Cast(value=inner, dtype=dtype):
                done[node] = _cast(done[inner], inner.dtype, dtype)
            case _:
                raise _UnknownError
        return None

    rewrite(root, rule)
    result = done[root]
    if isinstance(result, _Undefined):
        raise _UnknownError
    return result


class _Undefined:
    """The result of a read that is out of bounds, or reads an unknown element. A select may discard
    it without an error.
    """


_UNDEFINED = _Undefined()


def _read(values: Mapping[Tensor, KnownValue], tensor: Tensor, indices: Sequence[Any]) -> Any:
    value = values.get(tensor)
    if value is None or not all(isinstance(i, int) for i in indices):
        return _UNDEFINED
    if all(0 <= i < n for i, n in zip(indices, value.shape, strict=True)):
        element = value[tuple(indices)]
        return _UNDEFINED if element is None else element
    return _UNDEFINED


def _typed(value: Any, dtype: DType) -> Any:
    return dtype.numpy.type(value) if dtype.is_float else value


def _apply(op: str, args: list[Any], dtype: DType) -> Any:
    """Apply a scalar operator to numbers and expressions."""
    if op == "select":
        condition, then, otherwise = args
        if isinstance(condition, bool | np.bool_):
            return then if condition else otherwise
    if any(isinstance(a, _Undefined) for a in args):
        return _UNDEFINED
    if not any(isinstance(a, Expr) for a in args):
        with np.errstate(all="ignore"):
            result = SCALAR_OPERATORS[op].meaning(*args)
        result = result.item() if isinstance(result, np.generic | np.ndarray) else result
        if dtype.is_float and SCALAR_OPERATORS[op].result == "same":
            return dtype.numpy.type(result)
        return result
    if any(isinstance(a, float | np.floating) for a in args) or any(
        isinstance(a, Expr) and a.dtype.is_float for a in args
    ):
        return _apply_float(op, args)
    return _apply_integer(op, args, dtype)


def _apply_integer(op: str, args: list[Any], dtype: DType) -> Any:
    """Apply an operator to integers or booleans, at least one of which is symbolic. Operators that
    a size expression may not hold are left to the run.
    """
    match op, args:
        case "select", [condition, then, otherwise]:
            like = dtype if dtype is DType.bool else INDEX
            args = [condition, as_expr(then, like), as_expr(otherwise, like)]
        case "sign", [x]:
            return _simplified(maximum(minimum(x, 1), -1))
        case (("truncdiv" | "truncmod"), [a, b]) if _is_size(a) and _is_size(b):
            op = op.replace("trunc", "floor")
    expr = call(op, *args)
    if isinstance(expr, Call) and not is_size_operator(expr.op, expr.args):
        raise _UnknownError
    return _simplified(expr)


def _is_size(value: Any) -> bool:
    """True if a value is never negative, like a symbol."""
    expr = as_expr(value)
    return bounds(expr, dict.fromkeys(variables(expr), SYMBOL)).low >= 0


def _apply_float(op: str, args: list[Any]) -> Any:
    """Apply an operator to integers that were cast to float: products, quotients and roundings
    whose results are integers or quotients of integers.
    """
    match op, args:
        case (("lt" | "ge"), [Cast() | Call(op="div"), limit]) if not isinstance(limit, Expr):
            if abs(float(limit)) > INDEX.limits[1]:  # every size fits the index type
                return (limit > 0) == (op == "lt")
        case "mul", [Cast() as x, factor] | [factor, Cast() as x] if not isinstance(factor, Expr):
            if float(factor).is_integer():
                return Cast(_simplified(x.value * int(factor)), x.dtype)
            if factor and (1 / float(factor)).is_integer():
                return _quotient(x, int(1 / float(factor)))
        case "div", [Cast() as x, divisor] if not isinstance(divisor, Expr):
            if float(divisor).is_integer():
                return _quotient(x, int(divisor))
        case ("add" | "sub") as op, [Cast() as x, term] if not isinstance(term, Expr):
            if float(term).is_integer():
                return Cast(_simplified(call(op, x.value, int(term))), x.dtype)
        case ("add" | "sub" | "mul") as op, [Cast() as x, Cast() as y]:
            return Cast(_simplified(call(op, x.value, y.value)), x.dtype)
        case (("floor" | "ceil" | "round" | "trunc"), [Cast() as x]):
            return x
        case "floor", [Call(op="div", args=(Cast() as x, Const(value=divisor)))]:
            return Cast(_simplified(x.value // int(divisor)), x.dtype)
        case "ceil", [Call(op="div", args=(Cast() as x, Const(value=divisor)))]:
            return Cast(_simplified((x.value + (int(divisor) - 1)) // int(divisor)), x.dtype)
    raise _UnknownError


def _quotient(x: Cast, divisor: int) -> Expr:
    if divisor > 0 and _simplified(x.value % divisor) == Const(0):
        return Cast(_simplified(x.value // divisor), x.dtype)
    if divisor <= 0:
        raise _UnknownError
    return Call("div", (x, Const(divisor, x.dtype)), x.dtype)


def _cast(value: Any, source: DType, target: DType) -> Any:
    match value:
        case _Undefined():
            return value
        case Cast(value=inner) if target.is_integer and value.dtype.is_float:
            return inner
        case Call(op="div", args=(Cast() as x, Const(value=divisor))) if target.is_integer:
            return _simplified(x.value // int(divisor))  # sizes are not negative
        case Expr():
            if target.is_integer and value.dtype == INDEX:
                return value
            if target.is_integer and value.dtype is DType.bool:
                return _simplified(select(value, const(1), const(0)))
            if target.is_float and value.dtype == INDEX:
                return Cast(value, target)
            raise _UnknownError
    if target is DType.bool:
        return bool(value)
    if target.is_float:
        return target.numpy.type(value)
    if source.is_float and not math.isfinite(value):
        raise _UnknownError
    number = int(value) % (1 << target.bits)  # integers wrap
    return number - (target.is_signed and number >> target.bits - 1) * (1 << target.bits)


def _simplified(expr: Expr) -> Any:
    """The canonical form of an expression; a number if it is constant. Raises `_UnknownError` for
    an expression that is no plausible size. Then the run computes the value from its integers.
    """
    result = simplify(expr, dict.fromkeys(variables(expr), SYMBOL))
    if isinstance(result, Const):
        return result.value
    if written_out(result) > MAX_SIZE or not _is_index(result):
        raise _UnknownError
    return result


def _is_index(expr: Expr) -> bool:
    """True if every number in an expression fits the index type, and no product has more factors
    than a tensor has dimensions.
    """
    low, high = INDEX.limits
    numbers = (node.value for node in walk(expr) if isinstance(node, Const))
    if not all(low <= number <= high for number in numbers):
        return False
    return max(map(len, terms(expr)), default=0) <= MAX_DEGREE
