"""Every reader of a dequantised value has a DequantizeLinear of its own.

needs: inferred types; nothing after it merges equal nodes. guarantees: the value of a
DequantizeLinear has one reader, or is returned. Kernels then read small integers, which are a
quarter of the bytes, and scale them in registers.
before → after:

    %a = DequantizeLinear(%q)            %a = DequantizeLinear(%q)
    %b = Add(%a, %c)              →      %b = Add(%a, %c)
    %d = Sigmoid(%a)                     %a/1 = DequantizeLinear(%q)
                                         %d = Sigmoid(%a/1)
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.graph.ir import Function, Module, Node, TensorType


def duplicate_dequantisation(module: Module) -> Module:
    """Duplicate in every function."""
    functions = {name: _duplicate(f) for name, f in module.functions.items()}
    return replace(module, functions=functions)


def _duplicate(function: Function) -> Function:
    makers = {n.outputs[0]: n for n in function.nodes if n.op == "DequantizeLinear"}
    types: dict[str, TensorType] = dict(function.types)
    readers = dict.fromkeys(function.outputs, 1)
    nodes: list[Node] = []
    for node in function.nodes:
        inputs: list[str] = []
        for value in node.inputs:
            count = readers.get(value, 0)
            readers[value] = count + 1
            if count and value in makers:
                copy = f"{value}/{count}"
                types[copy] = types[value]
                nodes.append(replace(makers[value], outputs=(copy,)))
                value = copy
            inputs.append(value)
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(function, nodes=tuple(nodes), types=types)
