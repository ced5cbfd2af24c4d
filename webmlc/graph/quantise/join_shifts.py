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

from dataclasses import dataclass, field

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Array, Function, Module, Node
from webmlc.graph.rewrite.rewriting import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code


def join_shifts(module: Module) -> Module:
    """Rewrite every function.

    needs: inferred types. guarantees: inferred types, no dead code.
    """
    return module.map_functions(lambda function: remove_dead_code(_Rewrite(function).run()))


@dataclass(frozen=True, slots=True)
class _Shift:
    """A value, and the constants added to it: their sum, and their names with their signs."""

    value: str
    constant: Array
    names: str

    def after(self, earlier: _Shift) -> _Shift:
        """Both shifts, one after the other."""
        with np.errstate(over="ignore"):  # int32 wraps, as the additions do
            constant = np.asarray(earlier.constant + self.constant)
        return _Shift(earlier.value, constant, earlier.names + self.names)


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written. `shifts` has each value that is another value plus constants."""

    shifts: dict[str, _Shift] = field(default_factory=dict)

    def run(self) -> Function:
        for node in self.source.nodes:
            shift = self.shift(node)
            if shift is None:
                self.keep(node)
                continue
            (output,) = node.outputs
            if shift.value in self.shifts:
                shift = shift.after(self.shifts[shift.value])
                build = Builder(node, self)
                constant = build.constant(shift.constant, name=shift.names)
                build("Add", shift.value, constant, output=output)
            else:
                self.keep(node)
            self.shifts[output] = shift
        return self.written()

    def shift(self, node: Node) -> _Shift | None:
        """The shift of a node that adds a constant to a value in int32: one number, or a number for
        each column. `None` for other nodes.
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
        if node.op == "Add":
            return _Shift(left, constant, f"+{right}")
        with np.errstate(over="ignore"):
            return _Shift(left, np.asarray(-constant), f"-{right}")
