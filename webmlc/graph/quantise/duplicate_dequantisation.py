"""Give every consumer of a dequantised value its own DequantizeLinear.

needs: inferred types; no later pass merges equal nodes. guarantees: the value of a DequantizeLinear
has one consumer, or is returned. Kernels then read small integers, a quarter of the bytes of
floats, and scale them in registers. before → after:

    %a = DequantizeLinear(%q)            %a = DequantizeLinear(%q)
    %b = Add(%a, %c)              →      %b = Add(%a, %c)
    %d = Sigmoid(%a)                     %a/1 = DequantizeLinear(%q)
                                         %d = Sigmoid(%a/1)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webmlc.graph.ir import Function, Module
from webmlc.graph.rewrite.rewriting import FunctionRewriter


def duplicate_dequantisation(module: Module) -> Module:
    """Duplicate in every function."""
    return module.map_functions(lambda function: _Rewrite(function).run())


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written."""

    def run(self) -> Function:
        dequantised = {n.outputs[0]: n for n in self.source.nodes if n.op == "DequantizeLinear"}
        readers = dict.fromkeys(self.source.outputs, 1)
        for node in self.source.nodes:
            inputs: list[str] = []
            for value in node.inputs:
                count = readers.get(value, 0)
                readers[value] = count + 1
                if count and value in dequantised:
                    copy = replace(dequantised[value], outputs=(f"{value}/{count}",))
                    (value,) = self.append(copy, (self.types[value],))
                inputs.append(value)
            self.keep(replace(node, inputs=tuple(inputs)))
        return self.written()
