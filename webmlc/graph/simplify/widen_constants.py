"""Store constants of half precision as float32, in place of the Casts that widen them.

needs: types. guarantees: no Cast widens a constant of half precision to float32, and what depends
on constants only is folded. before → after (%w is float16):

    %v = Cast(%w)                  const %v, float32
    %y = MatMul(%x, %v)      →     %y = MatMul(%x, %v)

Programs keep such Casts otherwise: they run once, at load, and halve the download. A pass that
reads the numbers of a constant needs them as float32.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.simplify.fold_constants import fold_constants

HALVES = (DType.float16.numpy, DType.bfloat16.numpy)
"""The types of constants that are widened."""


def widen_constants(module: Module, keep: frozenset[str] = frozenset()) -> Module:
    """Rewrite every function. Operators in `keep` are not folded. A module without such Casts is
    returned unchanged.
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
