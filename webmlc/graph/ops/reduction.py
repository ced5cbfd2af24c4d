"""Reductions and scans over axes: ReduceX, ArgMax and ArgMin, Softmax and similar operators,
cumulative sums.

Floats of fewer than 32 bits are folded in float32 and rounded once at the end. `fold` and `scan`
serve other operators, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, as_int, call, const, minimum, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.compute import Tensor, compute, identity, reduce, scatter
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.axes import cumulate_along, reduce_along
from webmlc.graph.ops.operator import (
    REDUCED,
    Case,
    Context,
    Layout,
    NotSupportedError,
    Operator,
    case,
    same_type,
)
from webmlc.graph.ops.shapes import (
    ONE,
    ZERO,
    Shape,
    accumulator,
    axes_within,
    canonical,
    check_single,
    combination,
    keeps_axes,
    product,
    require,
    with_axis,
    without_folded,
)

Body = Callable[[Expr], Expr]

X = "float32[2, 3, 4]"


def axes_of(context: Context) -> tuple[int, ...]:
    """The reduced axes, in order. If the node names none, all axes are reduced, unless
    `noop_with_empty_axes` is set.
    """
    rank = context.rank(0)
    axes = context.integers("axes", 1)
    if not axes:
        return () if context.attribute("noop_with_empty_axes", 0) else tuple(range(rank))
    return axes_within(axes, rank)


def reduced_shape(shape: Shape, axes: Sequence[int], keep: bool) -> Shape:
    """The shape after folding `axes`. The axes keep size 1, or disappear."""
    if keep:
        return tuple(ONE if d in axes else size for d, size in enumerate(shape))
    return tuple(size for d, size in enumerate(shape) if d not in axes)


def fold(
    name: str,
    source: Tensor,
    axes: Sequence[int],
    combine: str,
    body: Callable[..., Expr],
    keep: bool = True,
) -> Tensor:
    """Reduce `body(*index)` over `axes`, where `index` runs over the shape of `source`.

    `reduce` passes the index of a result, then the index of the reduced axes, which replaces the
    kept axes of size 1.
    """
    shape = reduced_shape(source.shape, axes, keep)
    result_axes = [d for d in range(source.rank) if keep or d not in axes]

    def element(*index: Expr) -> Expr:
        index_of = dict(zip(result_axes, index, strict=False))
        index_of |= dict(zip(axes, index[len(shape) :], strict=True))
        return body(*(index_of[d] for d in range(source.rank)))

    return reduce(name, shape, [source.shape[a] for a in axes], combine, element)


def _reduce_type(context: Context) -> TensorType:
    keep = keeps_axes(context)
    return TensorType(context.dtype(0), reduced_shape(context.shape(0), axes_of(context), keep))


def _reduce(
    name: str,
    combine: str,
    before: Body | None = None,
    after: Body | None = None,
    layout: Layout | None = None,
) -> Operator:
    """An operator that folds `before(x)` and applies `after` to the result, both in the
    accumulator's dtype. The result of integers is a float64 for `after`, and truncated.
    """
    stage = name.removeprefix("Reduce").lower()

    def meaning(context: Context, x: Tensor, *_: Tensor) -> Tensor:
        axes = axes_of(context)
        keep = keeps_axes(context)
        wide_dtype = accumulator(x.dtype)

        def element(*i: Expr) -> Expr:
            value = x[i].astype(wide_dtype)
            return before(value) if before else value

        total = fold(stage, x, axes, combination(combine, wide_dtype), element, keep)
        if after is None and wide_dtype == x.dtype:
            return total

        def result(*i: Expr) -> Expr:
            value = total[i]
            if after is not None:
                value = after(value if value.dtype.is_float else value.astype(DType.float64))
            return value.astype(x.dtype)

        return compute(f"{stage}_out", context.outputs[0].shape, result)

    cases: tuple[Case, ...] = (
        case(X), case(X, np.array([1]), opset=18), case(X, np.array([-1, 0]), keepdims=0, opset=18),
        case(X, axes=(0, 2), opset=11), case(X, keepdims=0),
    )  # fmt: skip
    if name == "ReduceSum":
        cases = (case(X), case(X, np.array([1])), case(X, np.array([-1, 0]), keepdims=0))
    return Operator(
        name, _reduce_type, meaning, reduce_along, kind="reduction", cases=cases, layout=layout
    )


def _reduce_mean(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    axes = axes_of(context)
    wide_dtype = accumulator(x.dtype)
    keep = keeps_axes(context)
    total = fold("mean", x, axes, "add", lambda *i: x[i].astype(wide_dtype), keep)
    scale = mean_scale([x.shape[a] for a in axes], wide_dtype)
    shape = context.outputs[0].shape
    return compute("mean_out", shape, lambda *i: scale(total[i]).astype(x.dtype))


def mean_scale(extents: Sequence[Expr], dtype: DType) -> Body:
    """Return a function that divides a sum over these extents by the number of elements. A constant
    number becomes a factor.
    """
    count = product(extents)
    number = as_int(count)
    if not dtype.is_float:
        return lambda total: call("truncdiv", total, count.astype(dtype))
    if number is None:
        return lambda total: total / count.astype(dtype)
    return lambda total: total * (1.0 / number if number else float("nan"))


def _log_sum_exp(context: Context, x: Tensor, *_: Tensor) -> Tensor:
    axes = axes_of(context)
    wide_dtype = accumulator(x.dtype)
    wide_dtype = wide_dtype if wide_dtype.is_float else DType.float32
    top = fold("max", x, axes, "max", lambda *i: x[i].astype(wide_dtype))
    finite = compute("max_finite", top.shape, lambda *i: _finite(top[i]))
    total = fold(
        "sum_exp",
        x,
        axes,
        "add",
        lambda *i: call("exp", x[i].astype(wide_dtype) - finite[without_folded(i, axes)]),
    )

    def element(*i: Expr) -> Expr:
        places = iter(i)
        index = tuple(
            ZERO if d in axes and not keeps_axes(context) else next(places) for d in range(x.rank)
        )
        return (call("log", total[index]) + finite[index]).astype(x.dtype)

    return compute("log_sum_exp", context.outputs[0].shape, element)


def _finite(x: Expr) -> Expr:
    """Replace an infinite maximum by 0, so that differences from it are not NaN."""
    return select(call("isinf", x), Const(0, x.dtype), x)


def _arg_type(context: Context) -> TensorType:
    if not require(context, "at most", ONE, context.shape(0)[context.axis(0)]):
        raise NotSupportedError("the position of the best of no elements")
    keep = keeps_axes(context)
    return TensorType(DType.int64, reduced_shape(context.shape(0), (context.axis(0),), keep))


def best_index(x: Tensor, axis: int, combine: str, last: bool) -> Tensor:
    """The position along `axis` of the largest or smallest element. The axis keeps size 1.

    As in numpy, NaN counts as the best element. The result is the first position of the best
    element, or the last position if `last`.
    """
    best = fold("best", x, (axis,), combine, lambda *i: x[i])
    extent = x.shape[axis]
    nothing = const(-1) if last else extent

    def position(*i: Expr) -> Expr:
        value, top = x[i], best[with_axis(i, axis, ZERO)]
        is_best = call("eq", value, top)
        if x.dtype.is_float:
            is_best = is_best | call("isnan", value)
        return select(is_best, i[axis], nothing)

    return fold("position", x, (axis,), "max" if last else "min", position)


def _arg(combine: str) -> Callable[[Context, Tensor], Tensor]:
    def meaning(context: Context, x: Tensor, *_: Tensor) -> Tensor:
        axis = context.axis(0)
        last = bool(context.attribute("select_last_index", 0))
        position = best_index(x, axis, combine, last)
        keep = keeps_axes(context)

        def element(*i: Expr) -> Expr:
            index = i if keep else (*i[:axis], ZERO, *i[axis:])
            return position[index].astype(DType.int64)

        return compute("arg", context.outputs[0].shape, element)

    return meaning


def _coerce_softmax(node: Node, opset: int) -> Node:
    """Mark a Softmax before opset 13: its axis defaults to 1, and all axes from this axis on count
    as a single axis.
    """
    if opset >= 13:
        return node
    attributes = {"axis": 1, **node.attributes, "coerced": 1}
    return replace(node, attributes=attributes)


def softmax_axes(context: Context) -> tuple[int, ...]:
    """The axes over which one softmax runs."""
    axis = context.axis(-1)
    return tuple(range(axis, context.rank(0))) if context.attribute("coerced") else (axis,)


def _softmax(log: bool) -> Callable[[Context, Tensor], Tensor]:
    """A softmax in four stages: maximum, exponentials, their sum, result."""

    def meaning(context: Context, x: Tensor, *_: Tensor) -> Tensor:
        axes = softmax_axes(context)
        wide_dtype = accumulator(x.dtype)
        # The maximum may skip a NaN: its exponential makes the row NaN anyway.
        top = fold("max", x, axes, "relaxed_max", lambda *i: x[i].astype(wide_dtype))

        def shifted(*i: Expr) -> Expr:
            return x[i].astype(wide_dtype) - top[without_folded(i, axes)]

        exponential = compute("exponential", x.shape, lambda *i: call("exp", shifted(*i)))
        total = fold("sum_exp", x, axes, "add", lambda *i: exponential[i])

        def element(*i: Expr) -> Expr:
            if log:
                value = shifted(*i) - call("log", total[without_folded(i, axes)])
            else:
                value = exponential[i] * (1 / total[without_folded(i, axes)])
            return value.astype(x.dtype)

        return compute("log_softmax" if log else "softmax", x.shape, element)

    return meaning


def _hardmax(context: Context, x: Tensor) -> Tensor:
    """Write one at the first maximum, and zero elsewhere."""
    axis = context.axis(-1)
    position = best_index(x, axis, "max", last=False)

    def element(*i: Expr) -> Expr:
        is_best = call("eq", i[axis], position[with_axis(i, axis, ZERO)])
        return select(is_best, Const(1, x.dtype), Const(0, x.dtype))

    return compute("hardmax", x.shape, element)


def _coerced_hardmax(context: Context, build: Builder) -> Value | None:
    """Expand a Hardmax over several axes: flatten them to rows, and restore the shape."""
    x, axes = build.inputs[0], softmax_axes(context)
    if len(axes) == 1:
        return None
    rows = build("Hardmax", build("Flatten", x, axis=axes[0]), axis=1)
    return build("Reshape", rows, build("Shape", x))


def _cumulative_type(context: Context) -> TensorType:
    check_single(context, 1)
    _cumulative_axis(context)  # raises an error if the axis is unknown, or not one of the tensor
    return context.type(0)


def _cumulative_axis(context: Context) -> int:
    (axis,) = axes_within(context.integers("axis", 1) or (0,), context.rank(0))
    return axis


def _cumulative(combine: str) -> Callable[[Context, Tensor], Tensor]:
    def meaning(context: Context, x: Tensor, *_: Tensor) -> Tensor:
        axis = _cumulative_axis(context)
        size, wide_dtype = x.shape[axis], accumulator(x.dtype)
        backward = bool(context.attribute("reverse", 0))

        def source(*i: Expr) -> Expr:
            place = size - 1 - i[axis] if backward else i[axis]
            return x[with_axis(i, axis, place)].astype(wide_dtype)

        exclusive = bool(context.attribute("exclusive", 0))
        total = scan("cumulative", x.shape, axis, combine, source, exclusive)

        def element(*i: Expr) -> Expr:
            place = size - 1 - i[axis] if backward else i[axis]
            return total[with_axis(i, axis, place)].astype(x.dtype)

        if wide_dtype == x.dtype and not backward:
            return total
        return compute("cumulative_out", x.shape, element)

    return meaning


def _square(x: Expr) -> Expr:
    return x * x


_SOFTMAX_CASES = (case(X), case(X, axis=1), case(X, axis=1, opset=11), case(X, opset=11))
_ARG_CASES = (case(X), case(X, axis=-1, keepdims=0), case([[1.0, 2, 2], [3, 3, 0]], axis=1),
              case([[1.0, 2, 2], [3, 3, 0]], axis=1, select_last_index=1))  # fmt: skip
_AXIS_0, _AXIS_2 = np.array(0, np.int32), np.array(-1, np.int64)


BLOCK = 256
"""The elements of a block. It decides the levels of a scan, and the serial work of a GPU thread.
Derived: four levels of 256 elements cover 2^31 elements or more.
"""


def scan(
    name: str,
    shape: Shape,
    axis: int,
    combine: str,
    source: Callable[..., Expr],
    exclusive: bool,
) -> Tensor:
    """Fold `source(*index)` by `combine` over all elements before each element along `axis`. Unless
    `exclusive`, the fold includes the element itself.

    A scan runs in blocks of `BLOCK` elements. First, each full block is folded. Then a scan of
    these results gives the value before each block. Last, each block runs through its elements in
    order. Blocks are independent, so that threads share them. Rounding errors grow with the number
    of levels, not with the length.

        x: 0 1 2 3 | 4 5 6 7  ->  blocks: 6 22  ->  before: 0 6  ->  y: 0 1 3 6 | 10 15 21 28
    """
    size = shape[axis]
    level = _ScanLevel(name, shape, axis, combine, source)
    return level.scanned(size, as_int(size) or 1 << 31, exclusive)


@dataclass(frozen=True, slots=True)
class _ScanLevel:
    """One level of a scan: its source, and the shape of its result."""

    name: str
    shape: Shape
    axis: int
    combine: str
    source: Callable[..., Expr]

    def scanned(self, sources: Expr, most: int, exclusive: bool) -> Tensor:
        """Scan a source that has `sources` elements along the axis, at most `most`."""
        axis, source, combine, size = self.axis, self.source, self.combine, self.shape[self.axis]
        dtype = source(*(ZERO for _ in self.shape)).dtype
        neutral = identity(combine, dtype)
        before = self.before_blocks(sources, most) if most > BLOCK else None

        def update(state: Tensor, *index: Expr) -> tuple[tuple[Expr, ...], Expr]:
            *block, r = index
            place = block[axis] * BLOCK + r
            first = neutral if before is None else before[tuple(block)]
            last = state[with_axis(block, axis, place - 1)]
            target = with_axis(block, axis, place)
            if exclusive:
                total = call(combine, last, source(*with_axis(block, axis, place - 1)))
                return target, select(r.equals(0), first, total)
            return target, call(combine, select(r.equals(0), first, last), source(*target))

        count = ONE if before is None else canonical((size + (BLOCK - 1)) // BLOCK)
        length = canonical(minimum(size, BLOCK))
        return scatter(
            self.name, self.shape, with_axis(self.shape, axis, count), (length,), update, dtype
        )

    def before_blocks(self, sources: Expr, most: int) -> Tensor:
        """The fold of all elements before each block."""
        axis, blocks = self.axis, canonical(sources // BLOCK)

        def element(*index: Expr) -> Expr:
            *block, r = index
            return self.source(*with_axis(block, axis, block[axis] * BLOCK + r))

        shape = with_axis(self.shape, axis, blocks)
        totals = reduce(f"{self.name}_blocks", shape, (const(BLOCK),), self.combine, element)
        starts = with_axis(self.shape, axis, canonical(blocks + 1))
        level = _ScanLevel(f"{self.name}_before", starts, axis, self.combine, lambda *i: totals[i])
        return level.scanned(blocks, most // BLOCK, exclusive=True)


OPS: tuple[Operator, ...] = (
    _reduce("ReduceSum", "add", layout=REDUCED),
    _reduce("ReduceProd", "mul", layout=REDUCED),
    _reduce("ReduceMax", "max", layout=REDUCED),
    _reduce("ReduceMin", "min", layout=REDUCED),
    _reduce("ReduceL1", "add", before=lambda x: call("abs", x)),
    _reduce("ReduceL2", "add", _square, lambda x: call("sqrt", x), REDUCED),
    _reduce("ReduceSumSquare", "add", before=_square),
    Operator("ReduceLogSum", _reduce_type, _reduce(
        "ReduceLogSum", "add", after=lambda x: call("log", x)).compute, reduce_along,
        kind="reduction", cases=(
            case("float32[2, 3, 4] in 0.1..2"), case("float32[2, 3, 4] in 0.1..2", [1]))),
    Operator("ReduceMean", _reduce_type, _reduce_mean, reduce_along, kind="reduction",
             layout=REDUCED,
             cases=(case(X), case(X, axes=(1,), keepdims=0, opset=13), case(X, [0, -1]))),
    Operator("ReduceLogSumExp", _reduce_type, _log_sum_exp, reduce_along, kind="reduction",
             cases=(case(X), case(X, [1], keepdims=0))),
    Operator("ArgMax", _arg_type, _arg("max"), kind="reduction", cases=_ARG_CASES),
    Operator("ArgMin", _arg_type, _arg("min"), kind="reduction", cases=_ARG_CASES),
    Operator("Softmax", same_type, _softmax(log=False), kind="reduction",
             normalise=_coerce_softmax, cases=_SOFTMAX_CASES),
    Operator("LogSoftmax", same_type, _softmax(log=True), kind="reduction",
             normalise=_coerce_softmax, cases=_SOFTMAX_CASES),
    Operator("Hardmax", same_type, _hardmax, _coerced_hardmax, kind="reduction",
             normalise=_coerce_softmax,
             cases=(case(X), case(X, axis=1), case(X, opset=11))),
    Operator("CumSum", _cumulative_type, _cumulative("add"), cumulate_along, cases=(
        case(X, _AXIS_0), case(X, _AXIS_2, reverse=1), case(X, _AXIS_2, exclusive=1),
        case("int32[2, 600] in -9..9", _AXIS_2), case("int32[70000] in -9..9", _AXIS_0, reverse=1),
        case("int64[300, 3] in -9..9", _AXIS_0, exclusive=1))),
    Operator("CumProd", _cumulative_type, _cumulative("mul"), cumulate_along,
             cases=(case(X, _AXIS_0), case(X, _AXIS_2, reverse=1, exclusive=1))),
)  # fmt: skip
