"""Run a module with numpy, node by node, control flow included.

In: a module after `infer_shapes`, and an array for each input. Out: the outputs' arrays by name.

    evaluate_module(infer_shapes(normalise(read_model(path))), {"x": x})["y"]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from webmlc.core.expr import Var
from webmlc.core.rewrite import evaluate as evaluate_expr
from webmlc.graph.infer.evaluate import evaluate_node
from webmlc.graph.ir import Array, Function, Module, Node
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.ops.operator import Scope, is_bind
from webmlc.graph.table import OPS


def evaluate_module(module: Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run `main`."""
    evaluation = _Evaluation(module, bind_symbols(module.main, inputs))
    return dict(zip(module.main.outputs, evaluation.function(module.main, inputs), strict=True))


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
            if (node.domain, node.op) in CONTROL:
                results = self.control(node, arrays)
            else:
                if is_bind(node):
                    self.bind(node, values[node.inputs[0]].reshape(-1))
                context = scope.context(node)
                results = evaluate_node(OPS[node.domain, node.op], context, arrays, self.symbols)
            values.update(zip((o for o in node.outputs if o), results, strict=True))
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
        if operands[0].reshape(-1)[0]:
            return self.function(then, dict(zip(then.inputs, operands[1:split], strict=True)))
        return self.function(other, dict(zip(other.inputs, operands[split:], strict=True)))

    def loop(self, node: Node, body: Function, arrays: Sequence[Array | None]) -> list[Array]:
        """The values that the loop carries at its end, then the values that it scanned."""
        asks, carried = int(node.attributes["asks"]), node.attributes["carried"]
        operands = [a for a in arrays[1:] if a is not None]
        state, captured = operands[:carried], operands[carried:]
        going = arrays[0] is None or bool(arrays[0].reshape(-1)[0])
        trips, symbol = node.attributes["trips"], node.attributes["symbol"].name
        limit = None if trips is None else int(evaluate_expr(trips, self.symbols))
        rows: list[list[Array]] = []
        while going and (limit is None or len(rows) < limit):
            self.symbols[symbol] = len(rows)
            feeds = dict(zip(body.inputs, (*state, *captured), strict=True))
            results = self.function(body, feeds)
            going = not asks or bool(results[0].reshape(-1)[0])
            state = results[asks : asks + carried]
            rows.append(results[asks + carried :])
        types = node.attributes["types"][carried:]
        scans = []
        for k, (axis, backward) in enumerate(node.attributes["places"]):
            parts = [row[k] for row in (reversed(rows) if backward else rows)]
            shape = [int(evaluate_expr(d, self.symbols)) for d in types[k].shape]
            empty = np.zeros(shape, types[k].dtype.numpy)
            scans.append(np.stack(parts, axis) if parts else empty)
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
