"""How an operator is written over feature maps whose channels come last (NHWC): data of its row.

`layout.choose_layouts` reads it. For example, `Concat` joins feature maps, and its attribute `axis`
names one of their dimensions:

    Layout(("map",), axis=0)     %y = Concat(%a, %b) {axis=1}
                                 ->  %y.nhwc = Concat(%a.nhwc, %b.nhwc) {axis=3}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operand = Literal["map", "broadcast", "vector", "any", "none", "pads", "sizes", "axes"]
"""What an input of an operator is.

- map: a feature map of the output's rank, which is read in NHWC;
- broadcast: the same, or a scalar, or a constant that is stretched to the output's shape;
- vector: values of at most one dimension, which have no layout;
- any: values that are read as they are;
- none: an input that must be missing, or a constant without elements;
- pads: a constant: what is added before each dimension, then what is added after each;
- sizes: a constant of one number for each dimension, or a constant without elements, or missing;
- axes: a constant of at least one dimension's number.
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

    `inputs` says what each input is; a single entry holds for all inputs. A node with more inputs
    than entries does not follow, nor does one with the attribute `unless`. `axis` is the default of
    the attribute `axis`, where that names a dimension of the feature map. `per_dimension` is the
    attribute that has one element for each dimension. `form` is the form of its own that the
    operator takes where it can. `is_view` says that the output has the bytes of the first input,
    under another shape.
    """

    inputs: tuple[Operand, ...] = ()
    axis: int | None = None
    per_dimension: str = ""
    unless: str = ""
    form: Form | None = None
    is_view: bool = False

    def operands(self, count: int) -> tuple[Operand, ...] | None:
        """What each of `count` inputs is, and each input that is missing after them."""
        if len(self.inputs) == 1:
            return self.inputs * max(count, 1)
        return self.inputs if count <= len(self.inputs) else None


BROADCAST = Layout(("broadcast",))
"""The layout of operators whose output elements depend on one element of every input."""

QUANTISED = Layout(("map", "vector", "vector"), axis=1)
"""The layout of (de)quantisation: scales and zero points are numbers, or lie along `axis`."""

REDUCED = Layout(("map", "axes"))
"""The layout of reductions along constant axes that keep the rank."""

VIEW = Layout(is_view=True)
"""The layout of operators that only change the shape."""
