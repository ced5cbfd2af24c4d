"""Evaluate tensor expressions with numpy, to test the operators' rows and to fold constants; and
run a module node by node, control flow included (`evaluate_module`).

In: output tensors of a `compute`, arrays for its placeholders, integers for its symbols. Out: the
outputs' arrays. Each stage is evaluated at once over broadcast index arrays; a large reduction is
evaluated in slices.

    >>> from webmlc.core.expr import const
    >>> x = placeholder("x", (const(3),), DType.float32)
    >>> y = compute("y", x.shape, lambda i: x[i] * 2.0)
    >>> evaluate([y], {x: np.array([1, 2, 3], np.float32)})[0].tolist()
    [2.0, 4.0, 6.0]

A read whose index is out of bounds takes the nearest element; the expression contains a `select`
that discards it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from webmlc.core.combination import write_out
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Bitcast, Call, Cast, Const, Expr, Var
from webmlc.core.rewrite import evaluate as evaluate_expr
from webmlc.core.rewrite import rewrite
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.shaped_values import with_shape
from webmlc.graph.compute import Read, Reduction, Scatter, Tensor, compute, placeholder
from webmlc.graph.ir import Array, Function, Module, Node, Ragged, Shaped
from webmlc.graph.ops.control import CONTROL, RUNS_ON_HOST
from webmlc.graph.ops.operator import Context, Operator, Scope, is_bind, symbols_bound_by
from webmlc.graph.rewrite.meaning import row_of

__all__ = ["compute", "evaluate", "evaluate_node", "placeholder"]

SLICE = 1 << 22
"""The largest number of elements that a reduction evaluates at once. It bounds the memory of a
build (chosen by hand).
"""


def evaluate(
    outputs: Sequence[Tensor],
    inputs: Mapping[Tensor, Array],
    symbols: Mapping[str, int] | None = None,
) -> list[Array]:
    """The arrays of `outputs`."""
    arrays: dict[Tensor, Array] = dict(inputs)
    sizes: dict[str, int] = dict(symbols or {})
    with np.errstate(all="ignore"):
        for stage in stages(outputs):
            if stage not in arrays:
                arrays[stage] = _stage(stage, arrays, sizes)
    return [arrays[output] for output in outputs]


def stages(outputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """Iterate over every tensor that `outputs` read, placeholders included, producers first."""
    done: set[Tensor] = set()
    stack = [(output, False) for output in outputs][::-1]
    while stack:
        tensor, expanded = stack.pop()
        if tensor in done:
            continue
        if expanded:
            done.add(tensor)
            yield tensor
            continue
        stack.append((tensor, True))
        stack.extend((t, False) for t in tensor.sources if t not in done)


def _stage(stage: Tensor, arrays: Mapping[Tensor, Array], symbols: Mapping[str, int]) -> Array:
    shape = tuple(int(evaluate_expr(d, symbols)) for d in stage.shape)
    dtype = stage.dtype.numpy
    match stage.body:
        case Reduction() as reduction:
            return _reduction(stage, reduction, shape, arrays, symbols)
        case Scatter() as updates:
            return _scatter(stage, updates, shape, arrays, symbols)
        case Expr() as body:
            grid = _Grid(dict(zip(stage.axes, shape, strict=True)), arrays, symbols)
            return np.array(np.broadcast_to(grid.value(body), shape), dtype=dtype)
    raise KeyError(f"no array is given for {stage.name}")


def _reduction(
    stage: Tensor,
    reduction: Reduction,
    shape: tuple[int, ...],
    arrays: Mapping[Tensor, Array],
    symbols: Mapping[str, int],
) -> Array:
    """Fold over the reduce axes. Where all elements would exceed `SLICE`, step through the leading
    axes.
    """
    extents = [int(evaluate_expr(axis.extent, symbols)) for axis in reduction.axes]
    fold: Any = SCALAR_OPERATORS[reduction.combine].meaning
    result = np.full(shape, reduction.init.value, stage.dtype.numpy)  # type: ignore[attr-defined]
    serial = 0
    while serial < len(extents) and math.prod(shape) * math.prod(extents[serial:]) > SLICE:
        serial += 1
    trailing = tuple(range(len(shape), len(shape) + len(extents) - serial))
    for step in np.ndindex(*extents[:serial]):
        axes = dict(zip(stage.axes, shape, strict=True))
        axes |= {a.var: e for a, e in zip(reduction.axes[serial:], extents[serial:], strict=True)}
        fixed = {a.var: i for a, i in zip(reduction.axes[:serial], step, strict=True)}
        grid = _Grid(axes, arrays, symbols, fixed)
        value = np.broadcast_to(grid.value(reduction.value), tuple(axes.values()))
        value = value.astype(result.dtype, copy=False)
        if trailing and value.size:
            value = fold.reduce(value, axis=trailing, dtype=result.dtype)
        if value.size:
            result = fold(result, value.reshape(shape))
    return np.asarray(result, dtype=stage.dtype.numpy)


def _scatter(
    stage: Tensor,
    updates: Scatter,
    shape: tuple[int, ...],
    arrays: Mapping[Tensor, Array],
    symbols: Mapping[str, int],
) -> Array:
    """Apply all slices at once, and all updates of a slice at once unless one reads the result."""
    result = np.zeros(shape, stage.dtype.numpy)
    if updates.initial is not None:
        grid = _Grid(dict(zip(stage.axes, shape, strict=True)), arrays, symbols)
        result[...] = grid.value(updates.initial)
    with_result = {**arrays, updates.state: result}
    slices, axes = (
        {a.var: int(evaluate_expr(a.extent, symbols)) for a in group}
        for group in (updates.slices, updates.axes)
    )
    in_order = updates.is_ordered and updates.combine is None
    steps = np.ndindex(*axes.values()) if in_order else iter([()])
    for step in steps:
        fixed = dict(zip(axes, step, strict=True)) if in_order else {}
        grid = _Grid(slices if in_order else slices | axes, with_result, symbols, fixed)
        *target, value = (
            np.broadcast_to(grid.value(e), tuple(grid.axes.values())).reshape(-1)
            for e in (*updates.target, updates.value)
        )
        places = [(i >= 0) & (i < n) for i, n in zip(target, shape, strict=True)]
        inside = np.logical_and.reduce(places) if places else np.ones(value.shape, bool)
        index = tuple(i[inside] for i in target)
        if updates.combine is None:
            result[index] = value[inside]
        else:
            fold: Any = SCALAR_OPERATORS[updates.combine].meaning
            fold.at(result, index, value[inside].astype(result.dtype))
    return result


@lru_cache(maxsize=4096)
def _in_order(root: Expr) -> tuple[Expr, ...]:
    """The nodes of an expression, operands first. Combinations are written out."""
    order: list[Expr] = []
    rewrite(write_out(root), order.append)
    return tuple(order)


class _Grid:
    """Evaluate expressions over all combinations of the axes' values at once."""

    def __init__(
        self,
        axes: Mapping[Var, int],
        arrays: Mapping[Tensor, Array],
        symbols: Mapping[str, int],
        fixed: Mapping[Var, int] | None = None,
    ) -> None:
        self.axes = axes
        self.arrays = arrays
        rank = len(axes)
        self.places = {axis: d for d, axis in enumerate(axes)}
        self.variables: dict[Var, Any] = dict(fixed or {})
        for d, (axis, extent) in enumerate(axes.items()):
            self.variables[axis] = np.arange(extent).reshape((extent,) + (1,) * (rank - d - 1))
        self.symbols = symbols

    def value(self, root: Expr) -> Any:
        done: dict[Expr, Any] = {}
        order = _in_order(root)
        for node in order:
            done[node] = self.node(node, done)
        return done[order[-1]]

    def node(self, node: Expr, done: Mapping[Expr, Any]) -> Any:
        match node:
            case Const(value=value, dtype=dtype):
                # An index literal stays a Python number: numpy then takes the other operand's type.
                return value if dtype == INDEX else dtype.numpy.type(value)
            case Var(name=name):
                return self.variables[node] if node in self.variables else self.symbols[name]
            case Read(tensor=tensor, indices=indices):
                return self.read(self.arrays[tensor], indices, done)
            case Call(op="select", args=args, dtype=dtype):
                return np.where(*(done[a] for a in args)).astype(_wide(dtype), copy=False)
            case Call(op=op, args=args):
                return SCALAR_OPERATORS[op].meaning(*(done[a] for a in args))
            case Cast(value=inner, dtype=dtype):
                return np.asarray(done[inner]).astype(_wide(dtype))
            case Bitcast(value=inner, dtype=dtype):
                return np.asarray(done[inner], dtype=inner.dtype.numpy).view(dtype.numpy)
        raise TypeError(f"no numpy meaning for {type(node).__name__}: {node}")

    def read(self, array: Array, indices: Sequence[Expr], done: Mapping[Expr, Any]) -> Any:
        view = self.view(array, indices)
        if view is not None:
            return view
        if any(n == 0 for n in array.shape):  # the read is guarded, so its value is discarded
            return np.zeros((), array.dtype)
        clipped = [np.clip(done[i], 0, n - 1) for i, n in zip(indices, array.shape, strict=True)]
        return array[tuple(clipped)] if clipped else array[()]

    def view(self, array: Array, indices: Sequence[Expr]) -> Array | None:
        """The array with its axes where the grid has them. None unless each index is a whole axis,
        or 0 of an axis of size 1.
        """
        rank = len(self.axes)
        order: list[int] = []
        shape = [1] * rank
        for place, (index, size) in enumerate(zip(indices, array.shape, strict=True)):
            match index:
                case Var() if self.axes.get(index) == size and self.places[index] not in order:
                    order.append(self.places[index])
                    shape[self.places[index]] = size
                case Const(value=0) if size == 1:
                    order.append(rank + place)
                case _:
                    return None
        return array.transpose(np.argsort(order)).reshape(shape)


def _wide(dtype: DType) -> Any:
    """The type to compute in. Index arithmetic uses int64, so that it is exact until a stage's
    result is stored.
    """
    return np.dtype(np.int64) if dtype == INDEX else dtype.numpy


def evaluate_node(
    row: Operator, context: Context, inputs: Sequence[Array | None], symbols: Mapping[str, int]
) -> list[Array]:
    """The outputs of one node whose output types are inferred."""
    tensors = tuple(
        None if array is None else placeholder(f"x{i}", context.shape(i), context.dtype(i))
        for i, array in enumerate(inputs)
    )
    pairs = zip(tensors, inputs, strict=True)
    arrays = {t: a for t, a in pairs if t is not None and a is not None}
    return evaluate(row.tensors(context, tensors), arrays, symbols)


def evaluate_module(module: Module, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """Run `main` of a module after `infer_shapes`. Returns the arrays of its outputs by name."""
    evaluation = _Evaluation(module, bind_symbols(module.main, inputs))
    results = evaluation.function(module.main, inputs)
    outputs = dict(zip(module.main.outputs, results, strict=True))
    for name, value in module.main.sequences.items():
        if isinstance(value, Shaped | Ragged):
            outputs[name] = with_shape(outputs[name], outputs.pop(value.sizes))
    return outputs


@dataclass(slots=True)
class _Evaluation:
    module: Module
    symbols: dict[str, int]

    def function(self, function: Function, inputs: Mapping[str, Array]) -> list[Array]:
        """The function's outputs. A value is dropped after the last node that reads it."""
        scope = Scope.of(function)
        values: dict[str, Array] = {**function.constants, **inputs}
        last = last_uses(function)
        for position, node in enumerate(function.nodes):
            arrays = [values[i] if i else None for i in node.inputs]
            if node.operator in CONTROL:
                results = self.control(node, arrays)
            else:
                if is_bind(node):
                    self.bind(node, values[node.inputs[0]].reshape(-1))
                context = scope.context(node)
                results = evaluate_node(row_of(node), context, arrays, self.symbols)
            values.update(zip(filter(None, node.outputs), results, strict=True))
            for name in filter(None, node.inputs):
                if last[name] == position:
                    values.pop(name, None)
        return [values[name] for name in function.outputs]

    def bind(self, node: Node, read: Array) -> None:
        """Set symbols to elements of a tensor."""
        places = zip(node.attributes["symbols"], node.attributes["positions"], strict=True)
        self.symbols |= {symbol: int(read[place]) for symbol, place in places}

    def control(self, node: Node, arrays: Sequence[Array | None]) -> list[Array]:
        """The results of an If or a Loop."""
        functions = [self.module.functions[name] for name in node.attributes["functions"]]
        if node.op == "Loop":
            return self.loop(node, functions[0], arrays)
        then, other = functions
        operands = [a for a in arrays if a is not None]
        split = 1 + len(then.inputs)
        is_then = operands[0].reshape(-1)[0]
        branch, captured = (then, operands[1:split]) if is_then else (other, operands[split:])
        results = self.function(branch, dict(zip(branch.inputs, captured, strict=True)))
        self.measure(node, results)
        return results

    def measure(self, node: Node, results: Sequence[Array]) -> None:
        """Bind the symbols of control flow of the host to the sizes of its first results."""
        new_symbols = symbols_bound_by(node)
        for type_, array in zip(node.attributes["types"], results, strict=False):
            for dimension, size in zip(type_.shape, array.shape, strict=True):
                if isinstance(dimension, Var) and dimension.name in new_symbols:
                    self.symbols[dimension.name] = size

    def loop(self, node: Node, body: Function, arrays: Sequence[Array | None]) -> list[Array]:
        """The values that the loop carries at its end, then the values that it scanned."""
        asks, carried = int(node.attributes.get("asks", False)), node.attributes["carried"]
        operands = [a for a in arrays[1:] if a is not None]
        state, captured = operands[:carried], operands[carried:]
        is_on_host = RUNS_ON_HOST in node.attributes
        condition = state[0] if is_on_host else arrays[0]
        going = condition is None or bool(condition.reshape(-1)[0])
        trips, symbol = node.attributes.get("trips"), node.attributes.get("symbol")
        limit = None if trips is None else int(evaluate_expr(trips, self.symbols))
        rows: list[list[Array]] = []
        while going and (limit is None or len(rows) < limit):
            if symbol is not None:
                self.symbols[symbol.name] = len(rows)
            self.measure(node, state)
            feeds = dict(zip(body.inputs, (*state, *captured), strict=True))
            results = self.function(body, feeds)
            going = not (asks or is_on_host) or bool(results[0].reshape(-1)[0])
            state = results[asks : asks + carried]
            rows.append(results[asks + carried :])
        self.measure(node, state)
        types = node.attributes["types"][carried:]
        scans: list[Array] = []
        for k, (axis, backward) in enumerate(node.attributes["places"]):
            parts = [row[k] for row in (reversed(rows) if backward else rows)]
            unbound = dict.fromkeys(symbols_bound_by(node), 0)
            sizes = {**unbound, **self.symbols}
            shape = [int(evaluate_expr(d, sizes)) for d in types[k].shape]
            empty = np.zeros(shape, types[k].dtype.numpy)
            scans.append(np.stack(parts, axis) if parts else empty)
        self.measure(node, [*state, *scans])
        return [*state, *scans]


def last_uses(function: Function) -> dict[str, int]:
    """The position of the last node that reads each value; for an output, the number of nodes."""
    last = {name: i for i, node in enumerate(function.nodes) for name in node.inputs}
    return last | {name: len(function.nodes) for name in function.outputs}


def bind_symbols(function: Function, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The values of the symbolic dimensions, from the inputs' shapes."""
    symbols: dict[str, int] = {}
    for name in function.inputs:
        for dimension, size in zip(function.type(name).shape, inputs[name].shape, strict=True):
            if isinstance(dimension, Var):
                symbols.setdefault(dimension.name, size)
    return symbols
