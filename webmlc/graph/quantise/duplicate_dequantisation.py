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

from collections import Counter
from dataclasses import dataclass, field, replace

from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.rewrite.rewriting import Rewriting


def duplicate_dequantisation(module: Module) -> Module:
    """Duplicate in every function."""
    return module.map_functions(_duplicated)


def _duplicated(function: Function) -> Function:
    return _Duplication(function, readers=Counter(function.outputs)).run()


@dataclass(slots=True)
class _Duplication(Rewriting):
    """The function being written, and how often each value is read so far."""

    readers: Counter[str] = field(kw_only=True)

    def add(self, node: Node) -> None:
        """Write a node, which reads its own copies of dequantised values."""
        self.keep(replace(node, inputs=tuple(map(self.read, node.inputs))))

    def read(self, value: str) -> str:
        """The value, or the next copy of a dequantised value that has a reader."""
        count, maker = self.readers[value], self.producer(value)
        self.readers[value] += 1
        if not count or maker is None or maker.op != "DequantizeLinear":
            return value
        copy = replace(maker, outputs=(f"{value}/{count}",))
        return self.append(copy, (self.types[value],))[0]
