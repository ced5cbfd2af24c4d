"""Operators of one's own: nodes of ONNX models whose meaning is a function of tensor expressions.

    @operator("com.example", "Smear")
    def smear(x: te.Tensor, *, width: int = 3) -> te.Tensor:
        n, m = x.shape
        k = te.reduce_axis((0, width), name="k")
        return te.compute(
            (n, m), lambda i, j: te.sum(x[i, te.min(j + k, m - 1)], axis=k), name="smear"
        )

    webmlc.build("model.onnx", "build/model", operators=[smear])

The positional parameters are the node's inputs, in order; a parameter with the default None is an
input that a node may omit. Keyword parameters are attributes, with their defaults. The function
runs for each node, on placeholders of the inputs' types, so types and symbolic shapes of the
outputs follow from it. It returns a tensor, or a tuple of tensors for several outputs.

An installed package offers its operators to all builds by entry points of the group
`webmlc.operators`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from webmlc.core.dtypes import DType
from webmlc.core.errors import UserError, WebmlcError
from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import walk
from webmlc.graph.compute import Read, Reduction, Tensor, placeholder, stages_of
from webmlc.graph.ops.operator import (
    Context,
    FusionKind,
    NotSupportedError,
    Operator,
    Signature,
)
from webmlc.graph.table import OWN_DOMAINS

Function = Callable[..., Tensor | tuple[Tensor, ...]]
RANKS = (2, 4, 3, 1, 0)
"""The ranks of the placeholders that tell how an operator's outputs depend on its inputs. The first
rank that the operator's function takes decides.
"""


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """An operator and its function, which can be called on tensors like any other function."""

    row: Operator
    function: Function

    def __call__(self, *tensors: Tensor | None, **attributes: Any) -> Tensor | tuple[Tensor, ...]:
        return self.function(*tensors, **attributes)


def operator(domain: str, name: str) -> Callable[[Function], CustomOperator]:
    """Make an operator of a function of tensors (see the module).

    Raises `UserError` if the domain is one of ONNX's or webmlc's own, or if a parameter is neither
    an input nor an attribute.
    """
    if domain in OWN_DOMAINS:
        raise UserError(f"the domain {domain!r} has its own operators: choose one of your own")

    def decorate(function: Function) -> CustomOperator:
        inputs, defaults = _parameters(function, f"{domain}.{name}")
        meaning = _Meaning(function, len(inputs), defaults)
        row = Operator(
            name,
            compute=meaning.compute,
            kind=meaning.kind(),
            domain=domain,
            signature=Signature(len(inputs), frozenset(defaults)),
        )
        return CustomOperator(row, function)

    return decorate


def _parameters(function: Function, name: str) -> tuple[list[str], dict[str, Any]]:
    """The names of the inputs, and the defaults of the attributes."""
    inputs: list[str] = []
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        match parameter.kind:
            case inspect.Parameter.POSITIONAL_ONLY | inspect.Parameter.POSITIONAL_OR_KEYWORD:
                inputs.append(parameter.name)
            case inspect.Parameter.KEYWORD_ONLY:
                defaults[parameter.name] = parameter.default
            case _:
                raise UserError(f"{name}: *{parameter.name} is neither an input nor an attribute")
    if not inputs:
        raise UserError(f"{name} has no input")
    return inputs, defaults


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What the function of an operator says of a node."""

    function: Function
    inputs: int
    defaults: Mapping[str, Any]

    def results(
        self, tensors: tuple[Tensor | None, ...], attributes: Mapping[str, Any]
    ) -> tuple[Tensor, ...]:
        """What the function returns, as a tuple. Raises `NotSupportedError` for no tensors."""
        results = self.function(*tensors, **attributes)
        results = results if isinstance(results, tuple) else (results,)
        if wrong := [result for result in results if not isinstance(result, Tensor)]:
            raise NotSupportedError(f"its function returns {wrong[0]!r}, no tensor")
        return results

    def attributes(self, context: Context) -> dict[str, Any]:
        values = {}
        for name, default in self.defaults.items():
            value = context.attribute(name, None if default is inspect.Parameter.empty else default)
            if value is None and default is inspect.Parameter.empty:
                raise NotSupportedError(f"the attribute {name} is missing")
            values[name] = value
        return values

    def compute(self, context: Context, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """The results for a node. An error of the function becomes the reason why the node is
        refused.
        """
        try:
            return self.results(tensors, self.attributes(context))
        except WebmlcError as error:
            raise NotSupportedError(str(error)) from error
        except Exception as error:
            kind = type(error).__name__
            raise NotSupportedError(f"its function raises {kind}: {error}") from error

    def kind(self) -> FusionKind:
        """How the elements of the outputs depend on the inputs, found on placeholders."""
        attributes = {n: 1 if d is inspect.Parameter.empty else d for n, d in self.defaults.items()}
        for rank in RANKS:
            shape = tuple(Var(f"d{axis}") for axis in range(rank))
            tensors = tuple(placeholder(f"x{i}", shape, DType.float32) for i in range(self.inputs))
            try:
                results = self.results(tensors, attributes)
            except Exception:  # a function of tensors of another rank, or of constants
                continue
            return _kind(results, shape)
        return "opaque"


def _kind(results: tuple[Tensor, ...], shape: tuple[Expr, ...]) -> FusionKind:
    """The kind of an operator on inputs of this shape, by its results."""
    stages = [tensor for tensor in stages_of(results) if tensor.body is not None]
    if len(results) == 1 and all(_is_elementwise(stage, shape) for stage in stages):
        return "elementwise"
    is_fold = len(results) == 1 and isinstance(results[0].body, Reduction)
    if is_fold and all(source.body is None for source in results[0].sources):
        return "reduction"
    return "opaque"


def _is_elementwise(tensor: Tensor, shape: tuple[Expr, ...]) -> bool:
    """True if each element depends on the elements of other tensors at the same position only."""
    if tensor.shape != shape or not isinstance(tensor.body, Expr):
        return False
    reads = [node for node in walk(tensor.body) if isinstance(node, Read)]
    return all(read.indices == tensor.axes for read in reads)
