"""Keep the pasts of a decoder in states.

In: a function after `simplify_graph`. Out: a function without pairs of an input `past` and an
output `present`, where the present is the past with more rows, and the model reads it, too. The
present becomes a state of the session, which `Append` extends by the new rows. A state grows along
its first axis. So the present is a transposition of the state. Consumers read the present without a
copy where they can.

    func main(%past: float32[1, 4, n, 64], ...)       func main(...)
      %y = Concat(%past, %k) {axis=2}            ->     %r = Transpose(%k) {perm=(2, 0, 1, 3)}
      return ..., %y                                    %s = Append(%r) {length=n}
                                                        %y = Transpose(%s) {perm=(1, 2, 0, 3)}
                                                        return ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from webmlc.core.expr import Var
from webmlc.core.rewrite import variables
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node, StatePort, consumers, producers
from webmlc.graph.rewrite.function_writer import FunctionRewriter


def use_states(module: Module) -> Module:
    """Rewrite `main`, if it has pairs with one symbol as the number of their rows. A run must know
    their other sizes without the past.

    needs: inferred types, a simplified graph. guarantees: inferred types; `Module.length` and
    `Module.state_ports`.
    """
    pairs = _bound_by_others(module.main, _pairs(module.main))
    if module.length or not pairs:
        return module
    length = next(iter(pairs.values())).length
    chosen = {node: pair for node, pair in pairs.items() if pair.length == length}
    main = _rewritten(module.main, chosen, length)
    ports = tuple(
        StatePort(pair.past, pair.present, _state(node, pair.axis), module.main.type(pair.past))
        for node, pair in chosen.items()
    )
    functions = {**module.functions, "main": main}
    return replace(module, functions=functions, length=length.name, state_ports=ports)


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
        if node is None or (node.domain, node.op) != ("", "Concat") or len(node.inputs) != 2:
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


def _bound_by_others(function: Function, pairs: Mapping[Node, _Pair]) -> dict[Node, _Pair]:
    """The pairs whose symbols, except the length, are all sizes of inputs that are no pasts."""
    pasts = {pair.past for pair in pairs.values()}
    bound = symbols_of(function, set(function.inputs) - pasts)
    return {
        node: pair
        for node, pair in pairs.items()
        if symbols_of(function, {pair.past}) <= bound | {pair.length.name}
    }


def _rewritten(function: Function, pairs: Mapping[Node, _Pair], length: Var) -> Function:
    """The function whose `pairs` are states."""
    writer = FunctionRewriter(function)
    for node in function.nodes:
        if node in pairs:
            _append(Builder(node, writer), pairs[node].axis, length, writer.rank(node.outputs[0]))
        else:
            writer.keep(node)
    pasts = {pair.past for pair in pairs.values()}
    presents = {pair.present for pair in pairs.values()}
    return replace(
        writer.written(),
        inputs=tuple(value for value in function.inputs if value not in pasts),
        outputs=tuple(value for value in function.outputs if value not in presents),
    )


def _state(concat: Node, axis: int) -> str:
    """The name of the state in place of a Concat along `axis`."""
    return concat.outputs[0] if axis == 0 else f"{concat.outputs[0]}.state"


def _append(build: Builder, axis: int, length: Var, rank: int) -> None:
    """Write the state in place of a Concat along `axis`."""
    (_, rows), (present,) = build.source.inputs, build.source.outputs
    if axis == 0:
        build("Append", rows, output=present, domain="webmlc", length=length)
        return
    to_front = (axis, *(a for a in range(rank) if a != axis))
    back = tuple(to_front.index(a) for a in range(rank))
    rows = build("Transpose", rows, output=f"{present}.rows", perm=to_front)
    state = _state(build.source, axis)
    build("Append", rows, output=state, domain="webmlc", length=length)
    build("Transpose", state, output=present, perm=back)


def source_of(output: str, makers: Mapping[str, Node]) -> Node | None:
    """The node that computes an output, before nodes that only rename it. None for an input."""
    node = makers.get(output)
    while node is not None and node.op == "Identity":
        node = makers.get(node.inputs[0])
    return node


def symbols_of(function: Function, values: Iterable[str]) -> set[str]:
    """The names of the symbols in the shapes of some values."""
    return {v.name for value in values for d in function.type(value).shape for v in variables(d)}
