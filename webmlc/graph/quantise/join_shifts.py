"""Add the constants of an integer product to its sums at once.

A quantised product adds a bias, subtracts the product of a zero point, and may subtract the excess
of shifted bytes (`use_byte_products`). Each of these terms is one int32 constant for each column,
and sums of int32 are exact: they wrap. The name of the sum joins the names of the constants.
Devices that shift bytes by different numbers have different sums, and a package has one constant of
each name.

    %a = Sub(%sums, %excess)
    %b = Add(%zero_point, %a)        →        %y = Add(%sums, %"-excess+zero_point+bias")
    %y = Add(%b, %bias)
"""

from __future__ import annotations

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Value
from webmlc.graph.ir import Module, Node
from webmlc.graph.rewrite.patterns import P, Rule, constant, value
from webmlc.graph.rewrite.rewriting import Rewriting, rewritten


def join_shifts(module: Module) -> Module:
    """Rewrite every function.

    needs: inferred types. guarantees: inferred types, no dead code.
    """
    return module.map_functions(lambda function: rewritten(function, [RULE]))


def _join(
    x: Value, a: Value, earlier: Node, b: Value, node: Node, rewriting: Rewriting
) -> Value | None:
    """(x ± a) ± b  ->  x + (±a ± b), for int32 numbers, or a number for each column."""
    if x.type.dtype is not DType.int32 or x in rewriting.constants:
        return None
    if any(c.array.size != (c.array.shape[-1] if c.array.ndim else 1) for c in (a, b)):
        return None
    with np.errstate(over="ignore"):  # int32 wraps, as the additions do
        shift = sum(c.array if n.op == "Add" else -c.array for c, n in ((a, earlier), (b, node)))
    names = (_name(c, n, rewriting) for c, n in ((a, earlier), (b, node)))
    return x + x.build.constant(shift, name="".join(names))


def _name(constant: Value, node: Node, rewriting: Rewriting) -> str:
    """The name of a constant behind its sign. The name of an earlier sum has its signs already."""
    sign = "+" if node.op == "Add" else "-"
    return f"{sign}{constant}" if constant in rewriting.source.constants else constant


_SHIFTS = ("Add", "Sub")
RULE = Rule(P(_SHIFTS, P(_SHIFTS, value("x"), constant("a"), name="earlier"), constant("b")), _join)
"""The rule of this pass."""
