"""The rules that differentiate operators: from the derivative by an output to that by an input.

In: a node with its types (`Backward`). Out: the name of the derivative by one of its inputs. A rule
uses operators that have derivatives themselves.

    >>> rule_of("", "MatMul").__name__, rule_of("", "Exp").__name__
    ('_matmul', '_elementwise')
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder
from webmlc.graph.ops.derivative import DERIVATIVE, DIFFERENTIABLE, attributes_of
from webmlc.graph.ops.operator import ELEMENT_TYPES, Context, NotSupportedError
from webmlc.graph.ops.reduction import axes_of, reduced_shape, softmax_axes
from webmlc.graph.ops.shapes import ONE, Shape, same
from webmlc.graph.ops.view import permutation


@dataclass(frozen=True, slots=True)
class Backward:
    """A node that is differentiated: what a rule sees of it."""

    context: Context
    adjoints: dict[str, str]
    build: Builder

    @property
    def inputs(self) -> tuple[str, ...]:
        """The node's inputs."""
        return self.context.node.inputs

    @property
    def dy(self) -> str:
        """The derivative by the node's first output."""
        return self.adjoints[self.context.node.outputs[0]]

    @property
    def shape(self) -> Shape:
        """The shape of the first output."""
        return self.context.outputs[0].shape

    def number(self, value: float) -> str:
        """A constant of the type of the node's numbers."""
        return self.build.constant(value, self.context.dtype(0))

    def axes(self, *axes: int) -> str:
        """Axes as an input."""
        return self.build.constant(np.array(axes, np.int64))

    def like(self, value: str, name: str) -> str:
        """The elements of `value` in the shape of `name`."""
        return self.build("Reshape", value, self.build("Shape", name), allowzero=1)

    def summed(self, value: str, shape: Shape, position: int) -> str:
        """Sum `value`, of this shape, over the axes that input `position` was stretched along."""
        target = self.context.shape(position)
        extra = len(shape) - len(target)
        stretched = [
            d for d, n in enumerate(shape) if d < extra or (n != ONE and target[d - extra] == ONE)
        ]
        if stretched:
            value = self.build("ReduceSum", value, self.axes(*stretched), keepdims=1)
        summed = tuple(ONE if d in stretched else n for d, n in enumerate(shape))
        if not all(map(same, summed[extra:], target)):
            raise NotSupportedError(
                f"whether {self.context.node.name!r} stretches its input {position} of size "
                f"{', '.join(map(str, target))} is known at run time only"
            )
        return self.like(value, self.inputs[position]) if extra else value


Rule = Callable[[Backward, int], str]
"""The derivative by one input of a node, from those by its outputs."""


def _elementwise(to: Backward, position: int) -> str:
    node = to.context.node
    attributes = attributes_of(node, position)
    product = to.build(DERIVATIVE[1], to.dy, *node.inputs, domain=DERIVATIVE[0], **attributes)
    return to.summed(product, to.shape, position)


def _sigmoid(to: Backward, position: int) -> str:
    """By the result: y·(1 - y) has no infinities."""
    y = to.context.node.outputs[0]
    slope = to.build("Mul", y, to.build("Sub", to.number(1), y))
    return to.build("Mul", to.dy, slope)


def _swish(to: Backward, position: int) -> str:
    """s + alpha·x·s·(1 - s) with s = sigmoid(alpha·x)."""
    x = to.build("Mul", to.inputs[0], to.number(to.context.attribute("alpha", 1.0)))
    s = to.build("Sigmoid", x)
    inner = to.build("Mul", x, to.build("Sub", to.number(1), s))
    slope = to.build("Mul", s, to.build("Add", to.number(1), inner))
    return to.build("Mul", to.dy, slope)


def _cast(to: Backward, position: int) -> str:
    return to.build("Cast", to.dy, to=_number(to.context.dtype(0)))


def _number(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return next(number for number, one in ELEMENT_TYPES.items() if one is dtype)


def _matmul(to: Backward, position: int) -> str:
    """dA = dY·Bᵀ, dB = Aᵀ·dY; a vector is a row on the left, a column on the right."""
    other = to.inputs[1 - position]
    ranks = to.context.rank(0), to.context.rank(1)
    rows, columns = to.context.shape(0)[-2:-1], to.context.shape(1)[1:][-1:]
    batch = to.shape[: len(to.shape) - len(rows) - len(columns)]
    dy = to.dy
    if ranks[0] == 1:
        dy = to.build("Unsqueeze", dy, to.axes(-2 if columns else -1))
    if ranks[1] == 1:
        dy = to.build("Unsqueeze", dy, to.axes(-1))
    inner = to.context.shape(0)[-1]
    if position == 0:
        if ranks[1] == 1:
            product = to.build("Mul", dy, other)
        else:
            product = to.build("MatMul", dy, _transposed(to, other, ranks[1]))
        return to.summed(product, (*batch, *(rows or (ONE,)), inner), 0)
    if ranks[0] == 1:
        product = to.build("Mul", to.build("Unsqueeze", other, to.axes(-1)), dy)
    else:
        product = to.build("MatMul", _transposed(to, other, ranks[0]), dy)
    if ranks[1] == 1:
        product = to.build("Squeeze", product, to.axes(-1))
    return to.summed(product, (*batch, inner, *columns), 1)


def _transposed(to: Backward, name: str, rank: int) -> str:
    return to.build("Transpose", name, perm=(*range(rank - 2), rank - 1, rank - 2))


def _gemm(to: Backward, position: int) -> str:
    a, b = to.inputs[:2]
    left, right = (int(to.context.attribute(name, 0)) for name in ("transA", "transB"))
    alpha, beta = (float(to.context.attribute(name, 1.0)) for name in ("alpha", "beta"))
    match position, left, right:
        case 0, 0, _:
            return to.build("Gemm", to.dy, b, alpha=alpha, transB=1 - right)
        case 0, _, _:
            return to.build("Gemm", b, to.dy, alpha=alpha, transA=right, transB=1)
        case 1, _, 0:
            return to.build("Gemm", a, to.dy, alpha=alpha, transA=1 - left)
        case 1, _, _:
            return to.build("Gemm", to.dy, a, alpha=alpha, transA=1, transB=left)
    dy = to.dy if beta == 1 else to.build("Mul", to.dy, to.number(beta))
    return to.summed(dy, to.shape, 2)


def _transpose(to: Backward, position: int) -> str:
    axes = permutation(to.context)
    return to.build("Transpose", to.dy, perm=tuple(axes.index(d) for d in range(len(axes))))


def _view(to: Backward, position: int) -> str:
    return to.like(to.dy, to.inputs[0])


def _expand(to: Backward, position: int) -> str:
    return to.summed(to.dy, to.shape, 0)


def _spread(to: Backward) -> str:
    """The derivative by a reduction's output, once for each element that it folds."""
    axes = axes_of(to.context)
    reduced = reduced_shape(to.context.shape(0), axes, keep=True)
    dy = to.dy
    if to.shape != reduced and axes:
        dy = to.build("Unsqueeze", dy, to.axes(*axes))
    return to.build("Expand", dy, to.build("Shape", to.inputs[0]))


def _reduce_sum(to: Backward, position: int) -> str:
    return _spread(to)


def _reduce_mean(to: Backward, position: int) -> str:
    names = (to.context.node.outputs[0], to.inputs[0])
    number = _number(to.context.dtype(0))
    sizes = [to.build("Cast", to.build("Size", name), to=number) for name in names]
    return to.build("Mul", _spread(to), to.build("Div", *sizes))


def _reduce_sum_square(to: Backward, position: int) -> str:
    twice = to.build("Mul", to.inputs[0], to.number(2))
    return to.build("Mul", _spread(to), twice)


def _softmax(to: Backward, position: int) -> str:
    """y·(dy - Σ y·dy)."""
    y = to.context.node.outputs[0]
    weighted = to.build("Mul", to.dy, y)
    return to.build("Sub", weighted, to.build("Mul", y, _total(to, weighted)))


def _log_softmax(to: Backward, position: int) -> str:
    """dy - exp(y)·Σ dy."""
    share = to.build("Exp", to.context.node.outputs[0])
    return to.build("Sub", to.dy, to.build("Mul", share, _total(to, to.dy)))


def _total(to: Backward, value: str) -> str:
    """The sum over what a softmax makes 1 of."""
    return to.build("ReduceSum", value, to.axes(*softmax_axes(to.context)), keepdims=1)


def _concat(to: Backward, position: int) -> str:
    axis = to.context.axis(0)
    sizes = [
        to.build("Shape", name, start=axis, end=axis + 1 or to.context.rank(0))
        for name in to.inputs
    ]
    parts = to.build("Concat", *sizes, axis=0)
    return to.build.many("Split", to.dy, parts, outputs=len(sizes), axis=axis)[position]


def _split(to: Backward, position: int) -> str:
    parts = [
        to.adjoints.get(o) or to.build("Expand", to.number(0), to.build("Shape", o))
        for o in filter(None, to.context.node.outputs)
    ]
    return to.build("Concat", *parts, axis=to.context.axis(0))


RULES: dict[tuple[str, str], Rule] = {
    ("", "Sigmoid"): _sigmoid,
    ("", "Swish"): _swish,
    ("", "Cast"): _cast,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Transpose"): _transpose,
    ("", "Reshape"): _view,
    ("", "Flatten"): _view,
    ("", "Squeeze"): _view,
    ("", "Unsqueeze"): _view,
    ("", "Expand"): _expand,
    ("", "ReduceSum"): _reduce_sum,
    ("", "ReduceMean"): _reduce_mean,
    ("", "ReduceSumSquare"): _reduce_sum_square,
    ("", "Softmax"): _softmax,
    ("", "LogSoftmax"): _log_softmax,
    ("", "Concat"): _concat,
    ("", "Split"): _split,
}
"""How operators other than elementwise ones are differentiated (and those whose result is better
at hand than their expression).
"""


def rule_of(domain: str, op: str) -> Rule | None:
    """How an operator is differentiated; None where webmlc does not know."""
    if (domain, op) not in RULES and op in DIFFERENTIABLE and domain in ("", DERIVATIVE[0]):
        return _elementwise
    return RULES.get((domain, op))
