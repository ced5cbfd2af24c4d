"""Turn constants that control flow captures into constants of the functions that read them.

needs: outlined control flow. guarantees: no function captures a constant, so that its weights can
be packed, and a GPU binds them as constants. before → after:

    %y = webmlc.If(%c, %w)   →   %y = webmlc.If(%c)
    func y.then(%w1) {..}        func y.then() { const %w1 .. }
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.control import CONTROL


def hand_down_constants(module: Module) -> Module:
    """Hand down the constants of every function to the functions that it runs."""
    functions: dict[str, Function] = {}
    pending = [module.main]
    while pending:
        function, inner = hand_down(pending.pop(), module)
        functions[function.name] = function
        pending += inner
    return replace(module, functions=functions)


def hand_down(function: Function, module: Module) -> tuple[Function, list[Function]]:
    """Return the function with control flow that captures no constants, and the functions that it
    runs.
    """
    nodes: list[Node] = []
    inner: list[Function] = []
    for node in function.nodes:
        if (node.domain, node.op) not in CONTROL:
            nodes.append(node)
            continue
        first = 1 + int(node.attributes.get("carried", 0))
        inputs = list(node.inputs[:first])
        position = first
        for name in node.attributes["functions"]:
            body = module.functions[name]
            states = body.inputs[: first - 1]
            captured = dict(zip(body.inputs[len(states) :], node.inputs[position:], strict=False))
            position += len(captured)
            constants = {
                local: function.constants[value]
                for local, value in captured.items()
                if value in function.constants
            }
            still_captured = tuple(local for local in captured if local not in constants)
            inputs += [captured[local] for local in still_captured]
            types = {v: t for v, t in body.types.items() if v not in constants}
            inner.append(
                replace(
                    body,
                    inputs=(*states, *still_captured),
                    types=types,
                    constants={**body.constants, **constants},
                )
            )
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(function, nodes=tuple(nodes)), inner
