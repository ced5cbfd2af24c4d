"""Compute a quantised graph on its integers: a node between DequantizeLinear and QuantizeLinear
becomes an integer operator with a scaling after it.

needs: a simplified function. guarantees: no product of two operands that are dequantised by
constants is left. A node without an integer form stays between its DequantizeLinear and
QuantizeLinear, with which it is fused later. Small constants are dequantised. before → after:

    %a = DequantizeLinear(%x, 0.1, 128)          %p = ConvInteger(%x, %w, 128)
    %b = DequantizeLinear(%w, 0.02)              %f = Cast(%p)
    %c = Conv(%a, %b)                      →     %m = Mul(%f, 0.1 · 0.02 / 0.5)
    %d = Relu(%c)                                %r = Relu(%m)
    %y = QuantizeLinear(%d, 0.5, 3)              %y = QuantizeLinear(%r, 1, 3)

The scheme is that of Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference" (2018), with the multiplier in float32, as in native runtimes.
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.graph.ir import Function, Module
from webmlc.graph.quantise.integer_rules import RULES
from webmlc.graph.rewrite.rewriting import Rewriting
from webmlc.graph.simplify.fold_constants import fold_function
from webmlc.graph.simplify.simplify_graph import remove_dead_code

QUANTISED_CONSTANTS = frozenset({"DequantizeLinear"})
"""Operators that must not be folded before this pass, even if their inputs are constants."""


def compute_in_integers(module: Module) -> Module:
    """Rewrite every function."""
    functions = {name: compute_function(f) for name, f in module.functions.items()}
    return replace(module, functions=functions)


def compute_function(function: Function) -> Function:
    """Rewrite one function. A function without quantised values is returned unchanged."""
    if all(node.op not in QUANTISED_CONSTANTS for node in function.nodes):
        return function
    rewritten = Rewriting(function, RULES, counts_readers=True).run()
    return fold_function(remove_dead_code(rewritten))
