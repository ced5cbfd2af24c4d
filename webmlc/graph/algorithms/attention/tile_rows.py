"""Give the causal attention of many rows register tiles.

In: a function after layouts. Out: the same results. The number of new tokens is known only at run
time. So the attention of their rows is split in two. Whole tiles of rows read packed keys. The
remaining rows attend to one section of keys after the other.

    %y = CausalAttention(%q [T, H, D], %k, %v)
    ->  %s = CausalScores(%q, PackKeys(%k), %k) {rows=(0, T // 6 * 6)}
        %t = WeightedValues(Softmax(%s), %v)
        %a, %l = AttendSections(%q, %k, %v) {rows=(T // 6 * 6, T % 6), section=48}
        %r = MergeSections(Softmax(%l), %a)
        %y = Concat(%t, %r)

One new token fills no tile. It reads keys and values where they are, once for all heads of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from webmlc.core.expr import Expr
from webmlc.core.machine import Cpu
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.shapes import ZERO, canonical
from webmlc.graph.rewrite.rewriting import FunctionRewriter


def tile_rows(module: Module, machine: Cpu) -> Module:
    """Rewrite every function.

    needs: layouts chosen, inferred types. guarantees: inferred types.
    """
    return module.map_functions(lambda function: _Rewrite(function, machine=machine).run())


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and the machine whose tiles rows fill."""

    machine: Cpu = field(kw_only=True)

    def run(self) -> Function:
        for node in self.source.nodes:
            if (node.domain, node.op) == ("webmlc", "CausalAttention"):
                self.attention(node)
            else:
                self.keep(node)
        return self.written()

    def attention(self, node: Node) -> None:
        """Write the two attentions that replace a node."""
        build, (output,) = Builder(node, self), node.outputs
        tokens, height = self.types[node.inputs[0]].shape[0], self.machine.tile.rows
        tiled = canonical(tokens // height * height)
        parts = (
            self.tiles(node, build, (ZERO, tiled)),
            self.sections(node, build, (tiled, canonical(tokens - tiled))),
        )
        build("Concat", *parts, output=output, axis=0)

    def tiles(self, node: Node, build: Builder, rows: tuple[Expr, Expr]) -> str:
        """The attention of whole tiles of rows: packed keys, scores, softmax, values."""
        (queries, keys, values), (output,) = node.inputs, node.outputs

        def part(op: str, *inputs: str, domain: str = "webmlc", **attributes: Any) -> str:
            name = f"{output}.{op.lower()}"
            return build(op, *inputs, output=name, domain=domain, **attributes)

        packed = part("PackKeys", keys, rows=rows)
        attributes = {**node.attributes, "rows": rows}
        logits = part("CausalScores", queries, packed, keys, **attributes)
        weights = part("Softmax", logits, domain="", axis=-1)
        return part("WeightedValues", weights, values)

    def sections(self, node: Node, build: Builder, rows: tuple[Expr, Expr]) -> str:
        """The attention of the remaining rows: the average of each section of keys, and the sum of
        the averages by their weights.
        """
        (output,) = node.outputs
        attributes = {**node.attributes, "rows": rows, "section": self.machine.section_keys}
        averages, logarithms = build.many(
            "AttendSections", *node.inputs, outputs=(f"{output}.averages", f"{output}.logarithms"),
            domain="webmlc", **attributes,
        )  # fmt: skip
        weights = build("Softmax", logarithms, output=f"{output}.shares", axis=-1)
        return build("MergeSections", weights, averages, output=f"{output}.merged", domain="webmlc")
