"""Replace nodes by constants if their inputs are all constants, or their results have no elements.

needs: types (`infer_shapes`). guarantees: no node has only constant inputs, except a node whose
result would be much larger than its inputs (such a constant would only enlarge the package).
before → after:

    %w2 = Transpose(%w)      →      const %w2
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.infer.evaluate import evaluate_node
from webmlc.graph.ir import Array, Function, Module, Node, TensorType
from webmlc.graph.ops.operator import Context, Scope, is_symbolic
from webmlc.graph.simplify.hand_down_constants import hand_down
from webmlc.graph.table import OPS

GROWTH = 1 << 16
"""The most bytes by which a folded result may be larger than its inputs (chosen by hand)."""


def fold_constants(module: Module, keep: frozenset[str] = frozenset()) -> Module:
    """Fold `main`, then the functions that it runs, with the constants that it hands down.
    Operators in `keep` are not folded.
    """
    functions: dict[str, Function] = {}
    pending = [module.main]
    while pending:
        function, inner = hand_down(fold_function(pending.pop(), keep), module)
        functions[function.name] = function
        pending += inner
    return replace(module, functions=functions)


def fold_function(function: Function, keep: frozenset[str] = frozenset()) -> Function:
    """Fold one function, in one walk."""
    constants: dict[str, Array] = dict(function.constants)
    base = Scope.of(function)
    scope = Scope(base.types, constants, base.values)
    nodes: list[Node] = []
    for node in function.nodes:
        context = scope.context(node)
        if all(_is_empty(type_) for type_ in context.outputs):
            constants.update(
                (name, _empty(type_))
                for name, type_ in zip(filter(None, node.outputs), context.outputs, strict=True)
            )
            continue
        if node.op in keep or not _is_foldable(node, context):
            nodes.append(node)
            continue
        arrays = [_constant_input(context, i) for i in range(len(node.inputs))]
        results = evaluate_node(OPS[node.domain, node.op], context, arrays, {})
        constants.update(zip((o for o in node.outputs if o), results, strict=True))
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


def _is_foldable(node: Node, context: Context) -> bool:
    if is_symbolic(node) or OPS[node.domain, node.op].compute is None:  # a symbol counts its trips
        return False
    if any(_constant_input(context, i) is None for i, name in enumerate(node.inputs) if name):
        return False
    output_bytes = 0
    for type_ in context.outputs:
        elements = type_.dtype.bytes
        for dimension in type_.shape:
            number = as_int(dimension)
            if number is None:
                return False
            elements *= number
        output_bytes += elements
    input_bytes = sum(array.nbytes for array in context.constants if array is not None)
    return output_bytes <= input_bytes + GROWTH


HALVES = (DType.float16.numpy, DType.bfloat16.numpy)
"""The types of constants that are widened."""


def widen_constants(module: Module, keep: frozenset[str] = frozenset()) -> Module:
    """Store constants of half precision as float32, in place of the Casts that widen them, and fold
    the nodes that depend only on constants. Operators in `keep` are not folded. A module without
    such Casts is returned unchanged.

        %v = Cast(%w)                  const %v, float32
        %y = MatMul(%x, %v)      →     %y = MatMul(%x, %v)

    Programs keep such Casts otherwise: they run once, at load, and halve the download. A pass that
    reads the numbers of a constant needs them as float32.
    """
    functions = {name: _widened(function) for name, function in module.functions.items()}
    if functions == module.functions:
        return module
    return fold_constants(replace(module, functions=functions), keep)


def _widened(function: Function) -> Function:
    casts = dict.fromkeys(node for node in function.nodes if _widens(node, function))
    if not casts:
        return function
    constants = dict(function.constants)
    for node in casts:
        constants[node.outputs[0]] = constants[node.inputs[0]].astype(DType.float32.numpy)
    nodes = tuple(node for node in function.nodes if node not in casts)
    used = {value for node in nodes for value in node.inputs} | set(function.outputs)
    for value in {node.inputs[0] for node in casts} - used:
        del constants[value]
    return replace(function, nodes=nodes, constants=constants)


def _widens(node: Node, function: Function) -> bool:
    """True for a Cast of a constant of half precision to float32."""
    if (node.domain, node.op) != ("", "Cast"):
        return False
    constant = function.constants.get(node.inputs[0])
    is_half = constant is not None and constant.dtype in HALVES
    return is_half and function.type(node.outputs[0]).dtype is DType.float32
