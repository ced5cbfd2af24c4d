"""Describe how an operator reads and writes feature maps whose channels come last: `[N, *, C]`
instead of ONNX's `[N, C, *]`.

A description is a field of the operator's row in the table of operators. `layout.choose_layouts`
reads it, and permutes inputs and attributes. For example, all inputs of `Concat` are feature maps,
and its attribute `axis` is the number of one of their dimensions. The description holds the default
of that attribute:

    Layout(("map",), axis=0)     %y = Concat(%a, %b) {axis=1}
                                 ->  %y.nhwc = Concat(%a.nhwc, %b.nhwc) {axis=3}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operand = Literal["map", "broadcast", "vector", "any", "none", "pads", "sizes", "axes"]
"""The role of an operator's input.

- map: a feature map of the output's rank, which is read in its NHWC form;
- broadcast: a map, or a scalar, or a constant that is stretched to the output's shape, whose
  dimensions are permuted;
- vector: values of at most one dimension, which permuting would not change;
- any: values of any rank that are not permuted;
- none: an input that must be missing. In ONNX a constant without elements also means that;
- pads: a constant of the numbers of elements added before each dimension, then after each;
- sizes: a constant of one number for each dimension, or a missing input, as for none;
- axes: a constant that lists dimensions by their indices.
"""

Form = Literal[
    "convolution",
    "transposed convolution",
    "pool",
    "global pool",
    "matrix product",
    "integer matrix product",
]
"""The kinds of operators that become another operator, of domain `webmlc`, over NHWC. Each has a
rule in `layout/`.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an operator follows its inputs into NHWC.

    - `inputs` holds the role of each input. A single entry holds for all inputs. If there are
      several entries, a node with more inputs stays as it is.
    - `axis` is the default of the attribute `axis`, which is the index of a dimension; `None` if
      the operator has no such attribute.
    - `per_dimension` names the attribute that has one element for each dimension.
    - `unless` names an attribute with which a node stays as it is, because its meaning depends on
      the order of dimensions.
    - `form` is the kind of operator that replaces this operator, if its rule accepts the node.
    - `is_view` says that the output has the bytes of the first input under another shape. Then
      `inputs` is not used.
    """

    inputs: tuple[Operand, ...] = ()
    axis: int | None = None
    per_dimension: str = ""
    unless: str = ""
    form: Form | None = None
    is_view: bool = False

    def operands(self, count: int) -> tuple[Operand, ...] | None:
        """The roles of at least `count` inputs: several entries also say what the missing inputs at
        the end are. None if there are too many inputs.
        """
        if len(self.inputs) == 1:
            return self.inputs * max(count, 1)
        return self.inputs if count <= len(self.inputs) else None


BROADCAST = Layout(("broadcast",))
"""The layout of elementwise operators."""

QUANTISED = Layout(("map", "vector", "vector"), axis=1)
"""The layout of QuantizeLinear and DequantizeLinear. Scales and zero points are single numbers, or
have a number for each element along `axis`, such as each channel.
"""

REDUCED = Layout(("map", "axes"))
"""The layout of reductions whose axes are a constant input, and which keep the rank."""

VIEW = Layout(is_view=True)
"""The layout of operators that only change the shape."""
