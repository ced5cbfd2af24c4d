"""Keep the pasts of a decoder in states.

In: a function after `simplify_graph`. Out: states in place of pairs of an input `past` and an
output `present`. `use_states` finds presents that are the past with more rows, and that the model
reads, too. Such a present becomes a state of the session, which `Append` extends by the new rows.
A state grows along its first axis, so the present is a transposition of the state. Consumers read
the present without a copy where they can.

    func main(%past: float32[1, 4, n, 64], ...)       func main(...)
      %y = Concat(%past, %k) {axis=2}            ->     %r = Transpose(%k) {perm=(2, 0, 1, 3)}
      return ..., %y                                    %s = Append(%r) {length=n}
                                                        %y = Transpose(%s) {perm=(1, 2, 0, 3)}
                                                        return ...

`use_buffer_states` finds pasts into which a `TensorScatter` writes new rows. onnxruntime-genai
exports such decoders, of GroupQueryAttention, and ONNX has them since opset 24. Each element of the
batch has its own number of rows, which the inputs say. So a session does not count rows: the state
is the whole buffer, of the session's capacity, and each run replaces it. A requirement says that
the rows must fit the capacity.

    %b = Pad(%past: float32[1, 2, past, 64])     up to max(past, total) rows
    %present = TensorScatter(%b, %k, %places) {axis=2}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from webmlc.core.expr import Call, Expr, Var
from webmlc.core.rewrite import variables
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function, Module, Node, Requirement, StatePort, consumers, producers
from webmlc.graph.ops.operator import Scope
from webmlc.graph.ops.shapes import ZERO
from webmlc.graph.ops.slice import pads_of
from webmlc.graph.rewrite.patterns import P, Rule, by_operator
from webmlc.graph.rewrite.rewriting import Rewriting


def use_states(module: Module) -> Module:
    """Rewrite `main`, if it has pairs with one symbol as the number of their rows. A run must know
    their other sizes without the past.

    needs: inferred types, a simplified graph. guarantees: inferred types; `Module.length` and
    `Module.state_ports`.
    """
    main, pairs = module.main, _pairs(module.main)
    bound = symbols_of(main, set(main.inputs) - {pair.past for pair in pairs.values()})
    pairs = {
        node: pair
        for node, pair in pairs.items()
        if symbols_of(main, {pair.past}) <= bound | {pair.length.name}
    }
    if module.length or not pairs:
        return module
    length = next(iter(pairs.values())).length
    chosen = {node: pair for node, pair in pairs.items() if pair.length == length}
    ports = tuple(
        StatePort(pair.past, pair.present, _state(node, pair.axis), main.type(pair.past))
        for node, pair in chosen.items()
    )
    main = _rewritten(main, chosen, length)
    return module.with_main(main, length=length.name, state_ports=ports)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The past of a Concat that returns the present, and the symbol of its rows along `axis`."""

    past: str
    present: str
    axis: int
    length: Var


def _pairs(function: Function) -> dict[Node, _Pair]:
    """The pairs of a function, by the Concat that extends the past."""
    users, makers = consumers(function), producers(function)
    pairs: dict[Node, _Pair] = {}
    for output in function.outputs:
        node = source_of(output, makers)
        if node is None or node.operator != ("", "Concat") or len(node.inputs) != 2:
            continue
        past = node.inputs[0]
        if all(user.op == "Identity" for user in users.get(node.outputs[0], ())):
            continue  # the model only returns it
        if past not in function.inputs or users[past] != [node] or past in function.outputs:
            continue
        type_ = function.type(past)
        axis = int(node.attributes["axis"]) % type_.rank
        length = type_.shape[axis]
        row_shape = [d for a, d in enumerate(type_.shape) if a != axis]
        if isinstance(length, Var) and length not in {v for d in row_shape for v in variables(d)}:
            pairs[node] = _Pair(past, output, axis, length)
    return pairs


def _rewritten(function: Function, pairs: Mapping[Node, _Pair], length: Var) -> Function:
    """The function whose `pairs` are states."""
    rules = by_operator([Rule(P("Concat"), partial(_append, pairs, length))])
    pasts = {pair.past for pair in pairs.values()}
    presents = {pair.present for pair in pairs.values()}
    return replace(
        Rewriting(function, rules).run(),
        inputs=tuple(value for value in function.inputs if value not in pasts),
        outputs=tuple(value for value in function.outputs if value not in presents),
    )


def _state(concat: Node, axis: int) -> str:
    """The name of the state in place of a Concat along `axis`."""
    return concat.outputs[0] if axis == 0 else f"{concat.outputs[0]}.state"


def _append(
    pairs: Mapping[Node, _Pair], length: Var, node: Node, build: Builder, y: Value
) -> Value | None:
    """The Concat of a pair  ->  the state, with its rows first, and a transposition of the state"""
    if node not in pairs:
        return None
    (_, rows), axis = node.inputs, pairs[node].axis
    if axis == 0:
        return build("Append", rows, domain="webmlc", length=length)
    to_front = (axis, *(a for a in range(y.type.rank) if a != axis))
    back = tuple(map(to_front.index, range(y.type.rank)))
    front = build("Transpose", rows, output=f"{y}.rows", perm=to_front)
    state = build("Append", front, output=_state(node, axis), domain="webmlc", length=length)
    return state.transpose(*back)


def source_of(output: str, makers: Mapping[str, Node]) -> Node | None:
    """The node that computes an output, before nodes that only rename it. None for an input."""
    node = makers.get(output)
    while node is not None and node.op == "Identity":
        node = makers.get(node.inputs[0])
    return node


def symbols_of(function: Function, values: Iterable[str]) -> set[str]:
    """The names of the symbols in the shapes of some values."""
    return {v.name for value in values for d in function.type(value).shape for v in variables(d)}


def use_buffer_states(module: Module) -> Module:
    """Add the pairs of `main` whose pasts have the same number of rows, a symbol, and one present.

    needs: inferred types. guarantees: the functions are unchanged, but for requirements.
    `lower_module` replaces the states.
    """
    main, every = module.main, list(_buffers(module.main))
    counts = Counter(buffer.port.past for buffer in every)
    buffers = [buffer for buffer in every if counts[buffer.port.past] == 1]
    if not buffers:
        return module
    bound = symbols_of(main, set(main.inputs) - {buffer.port.past for buffer in buffers})
    capacity = buffers[0].capacity
    chosen = [buffer for buffer in buffers if buffer.capacity == capacity]
    symbols = symbols_of(main, (buffer.port.past for buffer in chosen))
    if capacity.name in bound or not symbols <= bound | {capacity.name}:
        return module
    ports = (*module.state_ports, *(buffer.port for buffer in chosen))
    required = (r for buffer in chosen for r in buffer.requirements)
    main = replace(main, requirements=tuple(dict.fromkeys((*main.requirements, *required))))
    return module.with_main(main, state_ports=ports, capacity=capacity.name)


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A past of `capacity` rows. The present has the size of the port if the requirements hold."""

    port: StatePort
    capacity: Var
    requirements: tuple[Requirement, ...]


def _buffers(function: Function) -> Iterator[_Buffer]:
    """The pasts into which a TensorScatter writes rows that the function returns."""
    users, makers, scope = consumers(function), producers(function), Scope.of(function)
    for output in function.outputs:
        node = source_of(output, makers)
        if node is None or node.operator != ("", "TensorScatter"):
            continue
        past, reader, context = node.inputs[0], node, scope.context(node)
        axis = context.axis(-2)
        maker = makers.get(past)
        if maker is not None and maker.operator == ("", "Pad"):
            pads = pads_of(scope.context(maker))
            is_behind = all(before == ZERO for before, _ in pads)
            is_behind &= all(after == ZERO for a, (_, after) in enumerate(pads) if a != axis)
            if not is_behind or maker.attributes.get("mode", "constant") != "constant":
                continue
            past, reader = maker.inputs[0], maker
        if past not in function.inputs or past in function.outputs or users[past] != [reader]:
            continue
        type_, size = function.type(past), context.shape(0)[axis]
        capacity = type_.shape[axis]
        row_shape = (d for a, d in enumerate(type_.shape) if a != axis)
        if not isinstance(capacity, Var) or any(capacity in variables(d) for d in row_shape):
            continue
        operands = () if size == capacity else _besides(size, capacity)
        if operands is not None:
            port = StatePort(past, output, past, type_, rows=context.shape(1)[axis], size=size)
            required = (Requirement("at most", o, capacity, node.name) for o in operands)
            yield _Buffer(port, capacity, tuple(required))


def _besides(size: Expr, capacity: Var) -> tuple[Expr, ...] | None:
    """The other operands of a maximum with the capacity. `None` for any other size."""
    if not isinstance(size, Call) or size.op != "max" or capacity not in size.args:
        return None
    operands = tuple(a for a in size.args if a != capacity)
    return None if any(capacity in variables(a) for a in operands) else operands
