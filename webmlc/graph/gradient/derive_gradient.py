"""Expand a `Gradient` node by reverse-mode differentiation of the nodes that compute `y` from `xs`.

In: a Gradient node of ai.onnx.preview.training and the nodes before it, all typed. Out: the nodes
that compute the derivative of the sum of `y`'s elements by each of `xs`.

    %c = Mul(%a, %a)                             %c = Mul(%a, %a)
    %d = Gradient(%a) {xs=(a), y=c}       →      %1 = Expand(1, Shape(%c))
                                                 %2 = webmlc.Derivative(%1, %a, %a) {Mul, 0}
                                                 %3 = webmlc.Derivative(%1, %a, %a) {Mul, 1}
                                                 %d = Add(%2, %3)

Elementwise operators are differentiated by their own expression (`ops/training.py`), the others
by `RULES`. An operator without a
derivative on a path from `xs` to `y` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from webmlc.core.errors import Unsupported, UnsupportedError
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Node, TensorType
from webmlc.graph.ops.linear_algebra import einsum_terms
from webmlc.graph.ops.operator import Context, NotSupportedError, Scope
from webmlc.graph.ops.reduction import axes_of, reduced_shape, softmax_axes
from webmlc.graph.ops.shapes import ONE, Shape, same
from webmlc.graph.ops.subgraphs import reads
from webmlc.graph.ops.training import DERIVATIVE, DIFFERENTIABLE, attributes_of, full_name
from webmlc.graph.ops.view import permutation

GRADIENT = ("ai.onnx.preview.training", "Gradient")


def targets_first(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in an order in which each Gradient, too, follows the node that makes its `y`."""
    if not any(node.operator == GRADIENT for node in nodes):
        return tuple(nodes)
    makers = {o: k for k, node in enumerate(nodes) for o in node.outputs if o}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for k, node in enumerate(nodes):
        target = node.attributes.get("y") if node.operator == GRADIENT else None
        sorter.add(k, *(m for v, m in makers.items() if v == target or reads(node, v)))
    try:
        return tuple(nodes[k] for k in sorter.static_order())
    except CycleError:
        return tuple(nodes)  # the Gradient whose y depends on itself is refused later


def derive_gradient(node: Node, nodes: Sequence[Node], scope: Scope, build: Builder) -> list[str]:
    """The names of the derivatives, one for each of `xs`; their nodes are in `build`.

    Raises `NotSupportedError`, and `UnsupportedError` for the nodes that have no derivative here.
    """
    xs = tuple(node.attributes.get("xs", ()))
    leaves = (*xs, *node.attributes.get("zs", ()))
    y = str(node.attributes.get("y", ""))
    if len(node.inputs) != len(leaves):
        raise NotSupportedError(f"{len(node.inputs)} inputs for the {len(leaves)} of xs and zs")
    for name in (*leaves, y):
        if scope.type_of(name) is None:
            raise NotSupportedError(f"{name!r} is no value that this graph computes before it")
    values = dict(zip(leaves, node.inputs, strict=True))
    types = dict(scope.types)
    derivation = _Derivation(replace(scope, types=types), types, build)
    path = _path(nodes, xs, frozenset(leaves), y)
    if any(name != value for name, value in values.items()):
        needed = _path(nodes, leaves, frozenset(leaves), y)
        names = derivation.copy(needed, values)
        path = [n.renamed(names) for n in path]
        y = names.get(y, y)
    adjoints = derivation.backward(path, y, [values[x] for x in xs], frozenset(values.values()))
    return [adjoints.get(values[x]) or derivation.filled(0, values[x]) for x in xs]


def _path(
    nodes: Sequence[Node], sources: Sequence[str], leaves: frozenset[str], y: str
) -> list[Node]:
    """The nodes between the sources and `y`. The nodes that compute a leaf are not followed."""
    reached, forward = set(sources), []
    for node in nodes:
        outputs = set(node.outputs) - leaves
        if outputs and not reached.isdisjoint(node.inputs):
            reached |= outputs
            forward.append(node)
    needed, path = {y}, []
    for node in reversed(forward):
        if not (needed - leaves).isdisjoint(node.outputs):
            needed.update(node.inputs)
            path.append(node)
    return path[::-1]


@dataclass(frozen=True, slots=True)
class _Derivation:
    """The types of the values (`types` belongs to the scope, and grows), and the nodes so far."""

    scope: Scope
    types: dict[str, TensorType]
    build: Builder

    def filled(self, number: int, name: str) -> str:
        """A tensor of the type and shape of `name` that is filled with one number."""
        like = self.scope.type_of(name)
        assert like is not None
        one = self.build.constant(number, like.dtype)
        return self.build("Expand", one, self.build("Shape", name))

    def copy(self, nodes: Sequence[Node], values: Mapping[str, str]) -> dict[str, str]:
        """Repeat the nodes for other values of the leaves; returns the new names of all values."""
        for name, value in values.items():
            if self.scope.type_of(name) != self.scope.type_of(value):
                raise NotSupportedError(f"{value!r} stands for {name!r}, but has another type")
        names = dict(values)
        for node in nodes:
            for output in filter(None, node.outputs):
                if output not in self.types:
                    raise NotSupportedError(f"{output!r} is no tensor")
                if output not in names:
                    names[output] = self.build.fresh(node.op)
                    self.types[names[output]] = self.types[output]
            self.build.append(node.renamed(names))
        return names

    def backward(
        self, path: Sequence[Node], y: str, xs: Sequence[str], leaves: frozenset[str]
    ) -> dict[str, str]:
        """The derivative of `y` by the values on the path, in reverse order of its nodes."""
        adjoints = {y: self.filled(1, y)}
        active = {*xs, *(o for node in path for o in node.outputs)}
        unknown: list[Unsupported] = []
        for node in reversed(path):
            if not any(o in adjoints and o not in leaves for o in node.outputs):
                continue
            context = self.scope.context(node)
            if not all(t.dtype.is_float for t in context.outputs):
                continue  # comparisons, indices, shapes: constant wherever they have a derivative
            rule = rule_of(*node.operator)
            if rule is None:
                reason = "webmlc does not know its derivative, which a Gradient needs"
                unknown.append(Unsupported(node.name, node.op, reason))
                continue
            node_backward = Backward(context, adjoints, self.build)
            for position, name in enumerate(node.inputs):
                kind = context.types[position] if name else None
                if name not in active or kind is None or not kind.dtype.is_float:
                    continue
                derivative = rule(node_backward, position)
                present = adjoints.get(name)
                adjoints[name] = derivative if present is None else present + derivative
        if unknown:
            raise UnsupportedError(tuple(unknown))
        return adjoints


@dataclass(frozen=True, slots=True)
class Backward:
    """A node to differentiate, as a rule sees it."""

    context: Context
    adjoints: dict[str, str]
    build: Builder

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The node's inputs."""
        return tuple(map(self.build.value, self.context.node.inputs))

    @property
    def output(self) -> Value:
        """The node's first output."""
        return self.build.value(self.context.node.outputs[0])

    @property
    def dy(self) -> Value:
        """The derivative by the node's first output."""
        return self.build.value(self.adjoints[self.output])

    @property
    def shape(self) -> Shape:
        """The shape of the first output."""
        return self.context.outputs[0].shape

    def number(self, value: float) -> Value:
        """A constant of the type of the node's numbers."""
        return self.build.constant(value, self.context.dtype(0))

    def like(self, value: Value, other: Value) -> Value:
        """The elements of `value` in the shape of `other`."""
        return value.op("Reshape", other.op("Shape"), allowzero=1)

    def summed(self, value: Value, shape: Shape, position: int) -> Value:
        """Sum `value`, of this shape, over the axes that input `position` was stretched along."""
        target = self.context.shape(position)
        extra = len(shape) - len(target)
        stretched = [
            d for d, n in enumerate(shape) if d < extra or (n != ONE and target[d - extra] == ONE)
        ]
        if stretched:
            value = value.op("ReduceSum", stretched, keepdims=1)
        summed = tuple(ONE if d in stretched else n for d, n in enumerate(shape))
        if not all(map(same, summed[extra:], target)):
            raise NotSupportedError(
                f"whether {self.context.node.name!r} stretches its input {position} of size "
                f"{', '.join(map(str, target))} is known at run time only"
            )
        return self.like(value, self.inputs[position]) if extra else value


Rule = Callable[[Backward, int], Value]
"""A function that writes the derivative by one input of a node, from the derivatives by its
outputs. It uses operators that have derivatives themselves.
"""


def _elementwise(to: Backward, position: int) -> Value:
    node = to.context.node
    attributes = attributes_of(node, position)
    product = to.build(DERIVATIVE[1], to.dy, *node.inputs, domain=DERIVATIVE[0], **attributes)
    return to.summed(product, to.shape, position)


def _sigmoid(to: Backward, position: int) -> Value:
    """The derivative by the result: y·(1 - y) has no infinities."""
    y = to.output
    return to.dy * (y * (1 - y))


def _swish(to: Backward, position: int) -> Value:
    """s + alpha·x·s·(1 - s) with s = sigmoid(alpha·x)."""
    x = to.inputs[0] * float(to.context.attribute("alpha", 1.0))
    s = x.op("Sigmoid")
    slope = s * (1 + x * (1 - s))
    return to.dy * slope


def _cast(to: Backward, position: int) -> Value:
    return to.dy.cast(to.context.dtype(0))


def _matmul(to: Backward, position: int) -> Value:
    """dA = dY·Bᵀ, dB = Aᵀ·dY; a vector is a row on the left, a column on the right."""
    other = to.inputs[1 - position]
    ranks = to.context.rank(0), to.context.rank(1)
    rows, columns = to.context.shape(0)[-2:-1], to.context.shape(1)[1:][-1:]
    batch = to.shape[: len(to.shape) - len(rows) - len(columns)]
    dy = to.dy
    if ranks[0] == 1:
        dy = dy.unsqueeze(-2 if columns else -1)
    if ranks[1] == 1:
        dy = dy.unsqueeze(-1)
    inner = to.context.shape(0)[-1]
    if position == 0:
        product = dy * other if ranks[1] == 1 else dy @ _transposed(other, ranks[1])
        return to.summed(product, (*batch, *(rows or (ONE,)), inner), 0)
    product = other.unsqueeze(-1) * dy if ranks[0] == 1 else _transposed(other, ranks[0]) @ dy
    if ranks[1] == 1:
        product = product.op("Squeeze", [-1])
    return to.summed(product, (*batch, inner, *columns), 1)


def _transposed(value: Value, rank: int) -> Value:
    return value.transpose(*range(rank - 2), rank - 1, rank - 2)


def _gemm(to: Backward, position: int) -> Value:
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
    dy = to.dy if beta == 1 else to.dy * beta
    return to.summed(dy, to.shape, 2)


def _einsum(to: Backward, position: int) -> Value:
    """The product of the derivative by the result and of the other inputs, with the labels of this
    input.
    """
    equation = str(to.context.attribute("equation")).replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms, inputs = operands.split(","), list(to.inputs)
    term, _ = terms.pop(position), inputs.pop(position)
    labels = term.replace("...", ".")
    are_single = bool(arrow) and len(set(labels)) == len(labels)
    names, _, extents = einsum_terms(to.context)
    sizes = zip(names[position], to.context.shape(position), strict=True)
    is_whole = all(same(size, extents[name]) for name, size in sizes)
    if not are_single or not is_whole or not set(labels) <= set("".join([result, *terms])):
        raise NotSupportedError(f"the derivative of {equation!r} by input {position}")
    return to.build("Einsum", to.dy, *inputs, equation=f"{','.join([result, *terms])}->{term}")


def _transpose(to: Backward, position: int) -> Value:
    axes = permutation(to.context)
    return to.dy.transpose(*map(axes.index, range(len(axes))))


def _view(to: Backward, position: int) -> Value:
    return to.like(to.dy, to.inputs[0])


def _expand(to: Backward, position: int) -> Value:
    return to.summed(to.dy, to.shape, 0)


def _spread(to: Backward) -> Value:
    """The derivative by a reduction's output, once for each element that it folds."""
    axes = axes_of(to.context)
    reduced = reduced_shape(to.context.shape(0), axes, keep=True)
    dy = to.dy
    if to.shape != reduced and axes:
        dy = dy.unsqueeze(*axes)
    return dy.op("Expand", to.inputs[0].op("Shape"))


def _reduce_sum(to: Backward, position: int) -> Value:
    return _spread(to)


def _reduce_mean(to: Backward, position: int) -> Value:
    values, dtype = (to.output, to.inputs[0]), to.context.dtype(0)
    size, folded = (value.op("Size").cast(dtype) for value in values)
    return _spread(to) * (size / folded)


def _reduce_sum_square(to: Backward, position: int) -> Value:
    twice = to.inputs[0] * 2
    return _spread(to) * twice


def _softmax(to: Backward, position: int) -> Value:
    """y·(dy - Σ y·dy)."""
    y = to.output
    weighted = to.dy * y
    return weighted - y * _total(to, weighted)


def _log_softmax(to: Backward, position: int) -> Value:
    """dy - exp(y)·Σ dy."""
    share = to.output.op("Exp")
    return to.dy - share * _total(to, to.dy)


def _total(to: Backward, value: Value) -> Value:
    """The sum over the axes along which a softmax has the sum 1."""
    return value.op("ReduceSum", softmax_axes(to.context), keepdims=1)


def _concat(to: Backward, position: int) -> Value:
    axis = to.context.axis(0)
    sizes = [
        to.build("Shape", name, start=axis, end=axis + 1 or to.context.rank(0))
        for name in to.inputs
    ]
    parts = to.build("Concat", *sizes, axis=0)
    return to.build.many("Split", to.dy, parts, outputs=len(sizes), axis=axis)[position]


def _split(to: Backward, position: int) -> Value:
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
    ("", "Einsum"): _einsum,
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
"""The rules of operators that are not elementwise, and of elementwise operators whose derivative is
better computed from their result than from their expression.
"""


def rule_of(domain: str, op: str) -> Rule | None:
    """The rule that differentiates an operator; None if webmlc has no rule for it."""
    if (domain, op) not in RULES and full_name(domain, op) in DIFFERENTIABLE:
        return _elementwise
    return RULES.get((domain, op))
