"""Describe how an operator is written over feature maps whose channels come last (NHWC). A
description is part of the operator's row.

`layout.choose_layouts` reads it. For example, `Concat` joins feature maps, and its attribute `axis`
names one of their dimensions:

    Layout(("map",), axis=0)     %y = Concat(%a, %b) {axis=1}
                                 ->  %y.nhwc = Concat(%a.nhwc, %b.nhwc) {axis=3}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operand = Literal["map", "broadcast", "vector", "any", "none", "pads", "sizes", "axes"]
"""The role of an operator's input.

- map: a feature map of the output's rank, which is read in NHWC;
- broadcast: the same, or a scalar, or a constant that is stretched to the output's shape;
- vector: values of at most one dimension, which have no layout;
- any: values that are read as they are;
- none: an input that must be missing, or a constant without elements;
- pads: a constant of the elements added before each dimension, then those added after each;
- sizes: a constant of one number for each dimension, or a constant without elements, or missing;
- axes: a constant of the numbers of one or more dimensions.
"""

Form = Literal[
    "convolution",
    "transposed convolution",
    "pool",
    "global pool",
    "matrix product",
    "integer matrix product",
]
"""Operators that have a form of their own in domain `webmlc`; each has a rule in `layout/`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an operator follows its inputs into NHWC.

    `inputs` holds the role of each input; a single entry holds for all inputs. A node does not
    follow if it has more inputs than there are entries, or has the attribute `unless`. `axis` is
    the default of the attribute `axis`, if that names a dimension of the feature map.
    `per_dimension` is the attribute that has one element for each dimension. `form` is the operator
    of domain `webmlc` that replaces this one if possible. `is_view` says that the output has the
    bytes of the first input under another shape.
    """

    inputs: tuple[Operand, ...] = ()
    axis: int | None = None
    per_dimension: str = ""
    unless: str = ""
    form: Form | None = None
    is_view: bool = False

    def operands(self, count: int) -> tuple[Operand, ...] | None:
        """The roles of `count` inputs, and of the inputs that are missing after them. None if there
        are too many inputs.
        """
        if len(self.inputs) == 1:
            return self.inputs * max(count, 1)
        return self.inputs if count <= len(self.inputs) else None


BROADCAST = Layout(("broadcast",))
"""The layout of operators whose output elements depend on one element of every input."""

QUANTISED = Layout(("map", "vector", "vector"), axis=1)
"""The layout of (de)quantisation. Scales and zero points are single numbers, or lie along
`axis`.
"""

REDUCED = Layout(("map", "axes"))
"""The layout of reductions along constant axes that keep the rank."""

VIEW = Layout(is_view=True)
"""The layout of operators that only change the shape."""
