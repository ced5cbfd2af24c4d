"""Shape arithmetic that operators share: broadcasting, canonical dimensions, indices of reshapes.

A size is a number, or an expression of symbols, whose values only a run knows. If a build cannot
prove a rule about symbols, it adds the rule to `Context.requirements`. A run checks these
requirements before it starts a kernel.

>>> from webmlc.core.expr import Var, const
>>> from webmlc.graph.ir import Node
>>> context = Context(Node("Add", ("x", "y"), ("z",)), ())
>>> [str(d) for d in broadcast(context, (Var("n"), const(1)), (const(8),))]
['n', '8']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from functools import lru_cache, partial, reduce

from webmlc.core.bounds import SYMBOL, Interval, bounds
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import (
    Call,
    Const,
    Expr,
    Var,
    as_expr,
    as_int,
    call,
    const,
    maximum,
    minimum,
    select,
)
from webmlc.core.rewrite import variables, walk
from webmlc.core.simplify import prove_equal, simplify
from webmlc.core.sizes import Rule
from webmlc.graph.compute import Reduction, Scatter, Tensor, compute
from webmlc.graph.ir import Requirement
from webmlc.graph.ops.operator import Context, NotSupportedError

Shape = tuple[Expr, ...]
ONE: Expr = const(1)
ZERO: Expr = const(0)


def select_among(values: Sequence[Expr], index: Expr) -> Expr:
    """The expression `values[index]`, as a chain of selects."""
    result = values[-1]
    for position in reversed(range(len(values) - 1)):
        result = select(call("eq", index, position), values[position], result)
    return result


def accumulator(dtype: DType) -> DType:
    """The dtype in which a reduction adds elements of `dtype`: float32 for smaller floats."""
    return DType.float32 if dtype.is_float and dtype.bits < 32 else dtype


def combination(combine: str, dtype: DType) -> str:
    """The scalar operator that combines elements of this type. Of booleans, a sum and a maximum are
    a disjunction, a product and a minimum a conjunction.
    """
    if dtype is not DType.bool:
        return combine
    return {"add": "bit_or", "max": "bit_or", "mul": "bit_and", "min": "bit_and"}[combine]


def keeps_axes(context: Context) -> bool:
    """True if a reduction keeps the axes that it folds, with size 1. Only the number 1 means true,
    as in ONNX's reference and in onnxruntime.
    """
    return bool(context.attribute("keepdims", 1) == 1)


def product_type(dtype: DType) -> DType:
    """The dtype in which a product of matrices adds its terms: int32 for smaller integers, which
    are quantised numbers. Products of small floats are widened by `widen_halves`.
    """
    return DType.int32 if dtype.is_integer and dtype.bytes < 4 else dtype


def canonical(dimension: Expr | int) -> Expr:
    """A dimension in canonical form, on the assumption that its symbols are not negative."""
    expr = as_expr(dimension)
    if isinstance(expr, Const | Var):
        return expr
    return simplify(expr, dict.fromkeys(variables(expr), SYMBOL))


def product(dimensions: Iterable[Expr]) -> Expr:
    """The product of the dimensions: the number of elements. It is 1 for a scalar."""
    return canonical(reduce(lambda a, b: a * b, dimensions, ONE))


def same(a: Expr, b: Expr) -> bool:
    """True if two dimensions are provably equal."""
    return a == b or (
        not (isinstance(a, Const) and isinstance(b, Const))
        and prove_equal(a, b, dict.fromkeys(variables(a) | variables(b), SYMBOL))
    )


def require(context: Context, rule: Rule, left: Expr, right: Expr) -> bool:
    """Require that two sizes fulfil a rule of `Requirement`: "broadcast" (equal, or one size is 1),
    "stretch" (equal, or `left` is 1), "equal", "at most" or "unequal".

    Return False if both sizes are numbers that do not fulfil the rule. If symbols decide, and no
    proof is found, the context records the requirement.
    """
    a, b = as_int(left), as_int(right)
    if left == ONE and rule in ("broadcast", "stretch"):
        return True
    if right == ONE and rule == "broadcast":
        return True
    if rule in ("at most", "unequal"):
        slack = canonical(right - left)
        limits = bounds(slack, dict.fromkeys(variables(slack), SYMBOL))
        if limits.low > 0 or (limits.high < 0 and rule == "unequal"):
            return True
        if limits.low == 0 and rule == "at most":
            return True
    elif same(left, right):
        return True
    if a is not None and b is not None:
        return False
    context.requirements.append(Requirement(rule, left, right, context.node.name))
    return True


def broadcast(context: Context, *shapes: Shape) -> Shape:
    """The common shape of numpy's broadcasting. A run requires that different symbols are equal or
    1.
    """
    rank = max((len(s) for s in shapes), default=0)
    padded = [(ONE,) * (rank - len(s)) + tuple(s) for s in shapes]
    combine = partial(_broadcast_dimension, context)
    return tuple(reduce(combine, dims) for dims in zip(*padded, strict=True))


def _broadcast_dimension(context: Context, a: Expr, b: Expr) -> Expr:
    if broadcast_operands(b) < broadcast_operands(a):
        return a  # an earlier node required that `b` broadcasts to it
    if broadcast_operands(a) < broadcast_operands(b):
        return b
    if not require(context, "broadcast", a, b):
        raise NotSupportedError(f"dimensions {a} and {b} do not broadcast")
    if a == ONE or same(a, b):
        return b
    if b == ONE:
        return a
    match as_int(a), as_int(b):
        case int(), None:
            return a
        case None, int():
            return b
    for size, bound in ((a, b), (b, a)):
        match bound:  # a bound min(size, limit), as a slice has: a run refuses a longer size
            case Call(op="min", args=args) if size in args:
                return size
    return broadcast_size({*broadcast_operands(a), *broadcast_operands(b)})


def broadcast_size(sizes: Iterable[Expr]) -> Expr:
    """The size to which several sizes broadcast: the largest size, or 0 if a size is 0. Each size
    occurs once in it, even if a chain of operators broadcasts the same sizes again:
    `broadcast_operands` finds the sizes.
    """
    operands = sorted(sizes, key=str)
    is_not_empty = reduce(minimum, operands, ONE)
    return canonical(reduce(maximum, operands) * is_not_empty)


@lru_cache(maxsize=1 << 12)
def broadcast_operands(size: Expr) -> frozenset[Expr]:
    """The sizes from which `broadcast_size` computed a size. Such a size is the product of their
    maximum and of the minimum of 1 and the sizes. For any other size, the result is only the size
    itself.
    """
    match size:
        case Call(op="mul", args=(Call(op="max" | "min") as a, Call(op="max" | "min") as b)):
            if a.op == b.op:
                return frozenset({size})
            largest, least = (a, b) if a.op == "max" else (b, a)
            operands = _operands("max", largest)
            if _operands("min", least) == {*operands, ONE}:
                return operands
    return frozenset({size})


def _operands(op: str, root: Expr) -> frozenset[Expr]:
    """The operands of nested calls of an operator that is associative and commutative."""
    operands, pending = set[Expr](), [root]
    while pending:
        match pending.pop():
            case Call(op=inner, args=args) if inner == op:
                pending += args
            case leaf:
                operands.add(leaf)
    return frozenset(operands)


def with_axis(items: Sequence[Expr], axis: int, *replacements: Expr) -> tuple[Expr, ...]:
    """The sizes or indices of all axes, with these replacements for one axis (none: without it)."""
    return (*items[:axis], *replacements, *items[axis + 1 :])


def without_folded(index: Sequence[Expr], axes: Container[int]) -> tuple[Expr, ...]:
    """The index of the fold over `axes`, which keep size 1, that an element belongs to."""
    return tuple(ZERO if d in axes else i for d, i in enumerate(index))


def all_of(conditions: Iterable[Expr]) -> Expr:
    """The conjunction of one or more conditions."""
    return reduce(lambda a, b: a & b, conditions)


def aligned(index: Sequence[Expr], shape: Shape, within: Shape) -> tuple[Expr, ...]:
    """The index into a tensor of `shape` that is broadcast to `within`, for the `index` into
    `within`. Raises `NotSupportedError` if numbers of `shape` do not broadcast to `within`;
    `check_stretches` also records the requirements on symbols.
    """
    offset = len(within) - len(shape)
    sizes = zip(map(as_int, shape), map(as_int, within[max(offset, 0) :]), strict=False)
    if offset < 0 or any(None not in (n, m) and n not in (1, m) for n, m in sizes):
        raise _no_stretch(shape, within)
    return tuple(
        _aligned_axis(index[offset + d], size, within[offset + d]) for d, size in enumerate(shape)
    )


def check_stretches(context: Context, index: int, within: Shape | None = None) -> None:
    """Raise `NotSupportedError` if an input does not broadcast to the shape `within`, by default
    the shape of input 0.
    """
    if not context.has(index):
        return
    shape, within = context.shape(index), context.shape(0) if within is None else within
    pairs = zip(reversed(shape), reversed(within), strict=False)
    if len(shape) > len(within) or not all(require(context, "stretch", *pair) for pair in pairs):
        raise _no_stretch(shape, within)


def _no_stretch(shape: Shape, within: Shape) -> NotSupportedError:
    return NotSupportedError(
        f"an operand of shape {_listed(shape)} does not broadcast to {_listed(within)}"
    )


def _aligned_axis(index: Expr, size: Expr, within: Expr) -> Expr:
    if size == ONE:
        return ZERO
    if same(size, within):
        return index
    # The symbol may be 1 at run time. Then the only element is read at every index.
    return minimum(index, canonical(size - 1))


def pointwise(
    context: Context, name: str, inputs: Sequence[Tensor], body: Callable[..., Expr]
) -> Tensor:
    """The tensor of the first output's shape whose elements are `body` of the broadcast inputs."""
    shape = context.outputs[0].shape
    return compute(name, shape, lambda *i: body(*(t[aligned(i, t.shape, shape)] for t in inputs)))


def present(inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The inputs without those that the node leaves out."""
    return tuple(t for t in inputs if t is not None)


def axes_within(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """The axes counted from the front, sorted, without repetition. Raises `NotSupportedError` if a
    tensor of this rank does not have them.
    """
    axis_list = tuple(axes)
    if any(not -rank <= a < rank for a in axis_list):
        raise NotSupportedError(f"{list(axis_list)} are no axes of a tensor of rank {rank}")
    return tuple(sorted({a % rank for a in axis_list}))


def check_shapes(context: Context, *signatures: str, **sizes: Expr | int) -> None:
    """Raise `NotSupportedError` if an input's shape does not fit its signature.

    A signature has a word for each axis. Equal words stand for equal sizes; `sizes` holds the sizes
    that are already known. `4*hidden` or `groups*channels` is a multiple of a size: a new last name
    gets the quotient. With a new name among the factors, the axis is not checked. `...` stands for
    any number of axes, the same number in all inputs. An input with the signature "" is not
    checked. Requirements on symbols are recorded (`require`).

        check_shapes(context, "batch channels ...", "channels")     # of [2, 4, 5, 5] and [3]
        # raises: input 1 is of shape [3], not [channels], where channels = 4
    """
    size_of_name = {name: as_expr(size) for name, size in sizes.items()}
    repeats: int | None = None  # the number of axes that `...` stands for
    for index, signature in enumerate(signatures):
        if not signature or not context.has(index):
            continue
        shape, words = context.shape(index), signature.split()
        if "..." in words:
            position = words.index("...")
            if repeats is None:
                repeats = max(len(shape) - len(words) + 1, 0)
            words[position : position + 1] = ["..."] * repeats
        if len(words) == len(shape) and all(
            map(partial(_fits, context, size_of_name), words, shape)
        ):
            continue
        names = dict.fromkeys(re.findall(r"[a-z_]+", signature))
        listed_sizes = ", ".join(
            f"{name} = {size_of_name[name]}" for name in names if name in size_of_name
        )
        raise NotSupportedError(
            f"input {index} is of shape {_listed(shape)}, not "
            f"{_listed(signature.split())}{listed_sizes and f', where {listed_sizes}'}"
        )


def check_shape(context: Context, index: int, expected: Sequence[Expr]) -> None:
    """Raise `NotSupportedError` if an input cannot have this shape."""
    if not context.has(index):
        return
    shape = context.shape(index)
    equal = partial(require, context, "equal")
    if len(shape) != len(expected) or not all(map(equal, shape, expected)):
        raise NotSupportedError(
            f"input {index} is of shape {_listed(shape)}, not {_listed(expected)}"
        )


def check_single(context: Context, *indices: int) -> None:
    """Raise `NotSupportedError` if one of these inputs does not have exactly one element."""
    for index in indices:
        if context.has(index) and not require(context, "equal", product(context.shape(index)), ONE):
            raise NotSupportedError(
                f"input {index} is of shape {_listed(context.shape(index))}, not one element"
            )


def _listed(sizes: Sequence[Expr | str]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _fits(context: Context, size_of_name: dict[str, Expr], word: str, size: Expr) -> bool:
    """True if a size may fit a word of a signature. A name that is new is added to
    `size_of_name`.
    """
    *factors, name = word.split("*")
    if name == "..." or any(f not in size_of_name and not f.isdigit() for f in factors):
        return True
    multiple = product(const(int(f)) if f.isdigit() else size_of_name[f] for f in factors)
    if name.isdigit() or name in size_of_name:
        value = const(int(name)) if name.isdigit() else size_of_name[name]
        return require(context, "equal", size, canonical(multiple * value))
    if not require(context, "equal", canonical(size % multiple), ZERO):
        return False
    size_of_name[name] = canonical(size // multiple)
    return True


def dimensions(context: Context, index: int, description: str) -> list[Expr]:
    """The values of an input that lists sizes, such as the target of a Reshape."""
    return [as_expr(e if isinstance(e, Expr) else int(e))
            for e in context.known_value(index, description).reshape(-1).tolist()]  # fmt: skip


def reindex(source: Shape, target: Shape, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index into a row-major tensor of shape `source` that reads the same element as `index`
    reads from its reshape to `target`: (i, j) of [8, 6] is (i, j // 3, j % 3) of [8, 2, 3].

    Dimensions are matched in the smallest groups with equal products. So dimensions that the
    reshape does not change keep their index, and quotients stay simple.
    """
    ranges = {
        v: Interval(0, bounds(size, {}).high - 1)
        for v, size in zip(index, target, strict=True)
        if isinstance(v, Var)
    }
    result: list[Expr] = []
    for source_group, target_group in _groups(source, target):
        if len(source_group) == 1 and len(target_group) == 1:
            result.append(index[target_group[0]])
            continue
        flat: Expr = ZERO
        for axis in target_group:
            flat = flat * target[axis] + (ZERO if target[axis] == ONE else index[axis])
        result.extend(_unravel(flat, [source[axis] for axis in source_group]))
    return tuple(simplify(i, ranges) for i in result)


def _unravel(flat: Expr, shape: Sequence[Expr]) -> list[Expr]:
    result: list[Expr] = []
    inner: Expr = ONE
    sizes = [size for size in shape if size != ONE]
    for size in reversed(shape):
        if size == ONE:
            result.append(ZERO)
            continue
        sizes.pop()
        position = flat // inner
        result.append(position if not sizes else position % size)
        inner = canonical(inner * size)
    return result[::-1]


def _groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """Groups of consecutive axes with equal products, in order. A group is larger if symbols
    prevent a proof.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        start_i, start_j = i, j
        left, right = _size(source, i), _size(target, j)
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while not same(left, right):
            if i == len(source) and j == len(target):
                break
            grow_left = j == len(target) or (i < len(source) and _is_smaller(left, right))
            if grow_left:
                left, i = canonical(left * source[i]), i + 1
            else:
                right, j = canonical(right * target[j]), j + 1
        groups.append((list(range(start_i, i)), list(range(start_j, j))))
    if len(groups) > 1 and (not groups[-1][0] or not groups[-1][1]):
        last = groups.pop()  # sizes of 1 without a counterpart belong to the group before
        groups[-1] = (groups[-1][0] + last[0], groups[-1][1] + last[1])
    return groups


def _size(shape: Shape, axis: int) -> Expr:
    return shape[axis] if axis < len(shape) else ONE


def _is_smaller(left: Expr, right: Expr) -> bool:
    """True if the left product should grow: it is the smaller number, or looks like a factor of the
    right product. A factor has no further symbols and no longer text.
    """
    match as_int(left), as_int(right):
        case int(a), int(b):
            return a < b
        case int(), None:
            return True
        case None, int():
            return False
    return variables(left) <= variables(right) and len(str(left)) <= len(str(right))


def check_sizes(sizes: Iterable[Expr]) -> None:
    """Raise `NotSupportedError` for a size that a number beyond 32 bits is part of."""
    for size in sizes:
        for part in walk(size):
            if (
                isinstance(part, Const)
                and part.dtype is INDEX
                and not INDEX.limits[0] <= part.value <= INDEX.limits[1]
            ):
                raise NotSupportedError(
                    f"{part.value} in a size or a position; they are at most {INDEX.limits[1]}"
                )


def check_numbers(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Raise `NotSupportedError` for a number beyond 32 bits that computes a position in results, or
    in a tensor between the inputs and them.
    """
    pending, visited = list(results), {*inputs}
    while pending:
        tensor = pending.pop()
        if tensor in visited:
            continue
        visited.add(tensor)
        pending += tensor.sources
        check_sizes((*tensor.shape, *tensor.expressions))
        match tensor.body:
            case Reduction(axes=axes) | Scatter(axes=axes):
                check_sizes(axis.extent for axis in axes)
