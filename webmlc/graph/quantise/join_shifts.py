"""Add the constants of an integer product to its sums at once.

A quantised product adds a bias, subtracts the product of a zero point, and may subtract what its
bytes were shifted by (`use_byte_products`). Each is a constant for each column, in int32, where
sums of constants are exact and wrap.

    %a = Sub(%sums, %excess)
    %b = Add(%zero_point, %a)        →        %y = Add(%sums, %y.shift)
    %y = Add(%b, %bias)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array, Function, Module, Node
from webmlc.graph.rewrite.function_writer import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code


def join_shifts(module: Module) -> Module:
    """Rewrite every function.

    needs: inferred types. guarantees: inferred types, no dead code.
    """
    functions = {n: remove_dead_code(_Rewrite(f).run()) for n, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written. `shifts` has the values that are another value plus a constant,
    as both of them.
    """

    shifts: dict[str, tuple[str, Array]] = field(default_factory=dict)

    def run(self) -> Function:
        for node in self.source.nodes:
            shift = self.shift(node)
            if shift is None:
                self.keep(node)
                continue
            value, constant = shift
            (output,) = node.outputs
            if value in self.shifts:
                value, earlier = self.shifts[value]
                with np.errstate(over="ignore"):  # int32 wraps, as the additions do
                    constant = np.asarray(constant + earlier)
                build = Builder(node, self)
                build("Add", value, build.constant(constant, name=f"{output}.shift"), output=output)
            else:
                self.keep(node)
            self.shifts[output] = value, constant
        return self.written()

    def shift(self, node: Node) -> tuple[str, Array] | None:
        """The value and the constant whose sum a node is, if the constant is a number or one for
        each column, in int32; `None` for other nodes.
        """
        if node.domain or node.op not in ("Add", "Sub"):
            return None
        if self.types[node.outputs[0]].dtype is not DType.int32:
            return None
        left, right = node.inputs
        if node.op == "Add" and left in self.constants:
            left, right = right, left
        constant = self.constants.get(right)
        if constant is None or left in self.constants:
            return None
        if constant.size != (constant.shape[-1] if constant.ndim else 1):
            return None
        with np.errstate(over="ignore"):
            return left, np.asarray(-constant if node.op == "Sub" else constant)
