"""Passes over constants: fold nodes into them, widen them, hand them down, and flush them.

%w2 = Transpose(%w)                          fold_constants        const %w2
%v = Cast(%w: float16[8])                    widen_constants       const %v: float32[8]
%y = webmlc.If(%c, %w)                       hand_down_constants   %y = webmlc.If(%c)
func y.then(%w1) {..}                                              func y.then() { const %w1 .. }
const %b = [1.5, 3e-41]; %y = Add(%x, %b)    flush_subnormals      const %b = [1.5, 0.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.infer.evaluate import evaluate_node
from webmlc.graph.ir import Array, Function, Module, Node, TensorType
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.ops.operator import Context, Scope, is_symbolic
from webmlc.graph.rewrite.meaning import row_of

GROWTH = 1 << 16
"""The most bytes by which a folded result may be larger than its inputs (chosen by hand)."""
HALVES = (DType.float16.numpy, DType.bfloat16.numpy)
"""The types of constants that are widened."""
_LEAST_NORMAL = np.finfo(np.float32).tiny
_PRODUCTS = {("webmlc", op) for op in ("Conv", "DepthwiseConv", "MatMul")}
_SUMS = frozenset(_PRODUCTS | {("", "Add"), ("", "Sub")})
"""Operators, by domain and name, whose constant operands may be flushed."""


def fold_constants(module: Module, keep: frozenset[str] = frozenset()) -> Module:
    """Replace nodes by constants if their inputs are all constants, or their results have no
    elements: in `main`, then in the functions that it runs, with the constants that it hands down.
    Operators in `keep` are not folded.

    needs: types (`infer_shapes`). guarantees: no node has only constant inputs, except a node whose
    result would be much larger than its inputs (such a constant would only enlarge the package).
    """
    return _handed_down(module, lambda function: fold_function(function, keep))


def fold_function(function: Function, keep: frozenset[str] = frozenset()) -> Function:
    """Fold one function, in one walk."""
    constants: dict[str, Array] = dict(function.constants)
    scope = replace(Scope.of(function), constants=constants)
    nodes: list[Node] = []
    for node in function.nodes:
        context = scope.context(node)
        arrays = [_constant_input(context, i) for i in range(len(node.inputs))]
        if all(_is_empty(type_) for type_ in context.outputs):
            results = [_empty(type_) for type_ in context.outputs]
        elif node.op not in keep and _is_foldable(node, context, arrays):
            results = evaluate_node(row_of(node), context, arrays, {})
        else:
            nodes.append(node)
            continue
        constants.update(zip(filter(None, node.outputs), results, strict=True))
    return replace(function, nodes=tuple(nodes), constants=constants)


def _constant_input(context: Context, index: int) -> Array | None:
    """The input's array: a constant, or a tensor without elements, which cannot vary."""
    array = context.constant(index)
    type_ = context.types[index]
    return _empty(type_) if array is None and type_ is not None and _is_empty(type_) else array


def _is_empty(type_: TensorType) -> bool:
    return type_.is_empty and type_.static_shape is not None


def _empty(type_: TensorType) -> Array:
    return np.zeros(type_.static_shape or (), type_.dtype.numpy)


def _is_foldable(node: Node, context: Context, arrays: Sequence[Array | None]) -> bool:
    if is_symbolic(node) or row_of(node).compute is None:  # a symbol counts its trips
        return False
    if any(name and array is None for name, array in zip(node.inputs, arrays, strict=True)):
        return False
    output_bytes = 0
    for type_ in context.outputs:
        if type_.static_shape is None:
            return False
        output_bytes += prod(type_.static_shape) * type_.dtype.bytes
    input_bytes = sum(array.nbytes for array in context.constants if array is not None)
    return output_bytes <= input_bytes + GROWTH


def widen_constants(module: Module, keep: frozenset[str] = frozenset()) -> Module:
    """Store constants of half precision as float32, in place of the Casts that widen them, and fold
    the nodes that depend only on constants. Operators in `keep` are not folded. A module without
    such Casts is returned unchanged.

    Programs keep such Casts otherwise: they run once, at load, and halve the download. A pass that
    reads the numbers of a constant needs them as float32.
    """
    widened = module.map_functions(_widened)
    return module if widened.functions == module.functions else fold_constants(widened, keep)


def _widened(function: Function) -> Function:
    casts = [node for node in function.nodes if _widens(node, function)]
    if not casts:
        return function
    nodes = tuple(node for node in function.nodes if node not in casts)
    used = {value for node in nodes for value in node.inputs} | set(function.outputs)
    unused = {node.inputs[0] for node in casts} - used
    constants = {v: array for v, array in function.constants.items() if v not in unused}
    for node in casts:
        constants[node.outputs[0]] = function.constants[node.inputs[0]].astype(np.float32)
    return replace(function, nodes=nodes, constants=constants)


def _widens(node: Node, function: Function) -> bool:
    """True for a Cast of a constant of half precision to float32."""
    if node.operator != ("", "Cast"):
        return False
    constant = function.constants.get(node.inputs[0])
    is_half = constant is not None and constant.dtype in HALVES
    return is_half and function.type(node.outputs[0]).dtype is DType.float32


def hand_down_constants(module: Module) -> Module:
    """Turn constants that control flow captures into constants of the functions that read them.

    needs: outlined control flow. guarantees: no function captures a constant, so that its weights
    can be packed, and a GPU binds them as constants.
    """
    return _handed_down(module, lambda function: function)


def _handed_down(module: Module, transform: Callable[[Function], Function]) -> Module:
    """Transform `main`, then the functions that it runs, which get the constants they capture."""
    functions: dict[str, Function] = {}
    pending = [module.main]
    while pending:
        function, inner = _hand_down(transform(pending.pop()), module)
        functions[function.name] = function
        pending += inner
    return replace(module, functions=functions)


def _hand_down(function: Function, module: Module) -> tuple[Function, list[Function]]:
    """Return the function with control flow that captures no constants, and the functions that it
    runs.
    """
    nodes: list[Node] = []
    inner: list[Function] = []
    for node in function.nodes:
        if node.operator not in CONTROL:
            nodes.append(node)
            continue
        carried = int(node.attributes.get("carried", 0))
        inputs, captures = list(node.inputs[: 1 + carried]), iter(node.inputs[1 + carried :])
        for body in (module.functions[name] for name in node.attributes["functions"]):
            states, locals_ = body.inputs[:carried], body.inputs[carried:]
            captured = {local: next(captures) for local in locals_}
            constants = {
                local: function.constants[value]
                for local, value in captured.items()
                if value in function.constants
            }
            still_captured = tuple(local for local in locals_ if local not in constants)
            inputs += (captured[local] for local in still_captured)
            inner.append(
                replace(
                    body,
                    inputs=(*states, *still_captured),
                    types={v: t for v, t in body.types.items() if v not in constants},
                    constants={**body.constants, **constants},
                )
            )
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(function, nodes=tuple(nodes)), inner


def flush_subnormals(module: Module) -> Module:
    """Replace subnormal numbers by zeros in constants that only operators of `_SUMS` read.

    needs: packed weights. guarantees: packed weights and constant summands have no subnormal
    numbers of float32.

    Channels that training switched off have subnormal weights. Some processors take many times as
    long for a multiply-add that reads a subnormal number. The products of such weights are
    subnormal, too, and reach the next layer. A product changes by less than 1.2e-38 of its other
    factor, a sum by less than 1.2e-38.
    """
    return module.map_functions(_flushed)


def _flushed(function: Function) -> Function:
    preserved_names = set(function.outputs)
    for node in function.nodes:
        if node.operator not in _SUMS:
            preserved_names.update(node.inputs)
    constants = {
        name: array if name in preserved_names or array.dtype != np.float32 else _without(array)
        for name, array in function.constants.items()
    }
    return replace(function, constants=constants)


def _without(array: Array) -> Array:
    subnormal = (np.abs(array) < _LEAST_NORMAL) & (array != 0)
    return np.where(subnormal, np.float32(0), array) if subnormal.any() else array
