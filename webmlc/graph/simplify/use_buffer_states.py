"""Keep the pasts of a decoder whose new rows a `TensorScatter` writes into a buffer.

In: a function after `use_states`. Out: the same function. `Module.state_ports` has pairs of a past
and a present, which is the past with new rows. `Module.capacity` is the number of rows of all
pasts. onnxruntime-genai exports such decoders, of GroupQueryAttention, and ONNX has them since
opset 24.

    %b = Pad(%past: float32[1, 2, past, 64])     up to max(past, total) rows
    %present = TensorScatter(%b, %k, %places) {axis=2}

Each element of the batch has its own number of rows, which the inputs say. So a session does not
count rows: the state is the whole buffer, of the session's capacity, and each run replaces it. A
requirement says that the rows must fit the capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from webmlc.core.expr import Call, Expr, Var
from webmlc.core.rewrite import variables
from webmlc.graph.ir import Function, Module, Node, Requirement, StatePort, consumers, producers
from webmlc.graph.ops.operator import Scope
from webmlc.graph.ops.shapes import ZERO
from webmlc.graph.ops.slice import pads_of
from webmlc.graph.simplify.use_states import source_of, symbols_of


def use_buffer_states(module: Module) -> Module:
    """Add the pairs of `main` whose pasts have the same number of rows, a symbol, and one present.

    needs: inferred types. guarantees: the functions are unchanged, but for requirements.
    `lower_module` replaces the states.
    """
    main = module.main
    every = list(_buffers(main))
    counts = Counter(buffer.past for buffer in every)
    buffers = [buffer for buffer in every if counts[buffer.past] == 1]
    if not buffers:
        return module
    pasts = {buffer.past for buffer in buffers}
    bound = symbols_of(main, set(main.inputs) - pasts)
    capacity = buffers[0].capacity
    chosen = [b for b in buffers if b.capacity == capacity and capacity.name not in bound]
    ports, requirements = list(module.state_ports), list(main.requirements)
    for buffer in chosen:
        type_ = main.type(buffer.past)
        if not symbols_of(main, (buffer.past,)) <= bound | {capacity.name}:
            return module
        port = StatePort(buffer.past, buffer.present, buffer.past, type_, buffer.rows, buffer.size)
        ports.append(port)
        node = buffer.node.name
        requirements += (Requirement("at most", r, capacity, node) for r in buffer.required)
    if not chosen:
        return module
    main = replace(main, requirements=tuple(dict.fromkeys(requirements)))
    functions = {**module.functions, "main": main}
    return replace(module, functions=functions, state_ports=tuple(ports), capacity=capacity.name)


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A past of `capacity` rows, into which `node` writes `rows`. The present has `size` rows. This
    is the capacity if the capacity is at least each of `required`.
    """

    past: str
    present: str
    node: Node
    capacity: Var
    rows: Expr
    size: Expr
    required: tuple[Expr, ...]


def _buffers(function: Function) -> Iterator[_Buffer]:
    """The pasts into which a TensorScatter writes rows that the function returns."""
    users, makers, scope = consumers(function), producers(function), Scope.of(function)
    for output in function.outputs:
        node = source_of(output, makers)
        if node is None or (node.domain, node.op) != ("", "TensorScatter"):
            continue
        past, reader = node.inputs[0], node
        context = scope.context(node)
        axis = context.axis(-2)
        maker = makers.get(past)
        if maker is not None and (maker.domain, maker.op) == ("", "Pad"):
            pads = pads_of(scope.context(maker))
            is_behind = all(before == ZERO for before, _ in pads)
            is_behind &= all(after == ZERO for a, (_, after) in enumerate(pads) if a != axis)
            if not is_behind or maker.attributes.get("mode", "constant") != "constant":
                continue
            past, reader = maker.inputs[0], maker
        if past not in function.inputs or past in function.outputs or users[past] != [reader]:
            continue
        capacity, size = function.type(past).shape[axis], context.shape(0)[axis]
        if not isinstance(capacity, Var) or any(
            capacity in variables(d) for a, d in enumerate(function.type(past).shape) if a != axis
        ):
            continue
        required = () if size == capacity else _besides(size, capacity)
        if required is not None:
            rows = context.shape(1)[axis]
            yield _Buffer(past, output, node, capacity, rows, size, required)


def _besides(size: Expr, capacity: Var) -> tuple[Expr, ...] | None:
    """The other operands of a maximum with the capacity. `None` for any other size."""
    if not isinstance(size, Call) or size.op != "max" or capacity not in size.args:
        return None
    operands = tuple(a for a in size.args if a != capacity)
    return None if any(capacity in variables(a) for a in operands) else operands
