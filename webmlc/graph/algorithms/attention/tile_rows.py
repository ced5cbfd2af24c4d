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

from functools import partial
from typing import Any

from webmlc.core.expr import Expr
from webmlc.core.machine import Cpu
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Module
from webmlc.graph.ops.shapes import ZERO, canonical
from webmlc.graph.rewrite.patterns import P, Rule, value
from webmlc.graph.rewrite.rewriting import rewritten

_ATTENTION = P("CausalAttention", value("queries"), *map(value, ("", "")), domain="webmlc")


def tile_rows(module: Module, machine: Cpu) -> Module:
    """Rewrite every function.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    rule = Rule(_ATTENTION, partial(_tile, machine))
    return module.map_functions(lambda function: rewritten(function, [rule]))


def _tile(machine: Cpu, queries: Value, build: Builder) -> Value:
    """Attention  ->  attention of whole tiles of rows, and of the remaining rows"""
    tokens, height = queries.shape[0], machine.tile.rows
    tiled = canonical(tokens // height * height)
    tiles = _tiles(build, (ZERO, tiled))
    sections = _sections(build, (tiled, canonical(tokens - tiled)), machine.section_keys)
    return build("Concat", tiles, sections, axis=0)


def _tiles(build: Builder, rows: tuple[Expr, Expr]) -> Value:
    """The attention of whole tiles of rows: packed keys, scores, softmax, values."""
    (queries, keys, values), (output,) = build.inputs, build.source.outputs

    def part(op: str, *inputs: str, domain: str = "webmlc", **attributes: Any) -> Value:
        return build(op, *inputs, output=f"{output}.{op.lower()}", domain=domain, **attributes)

    packed = part("PackKeys", keys, rows=rows)
    attributes = {**build.source.attributes, "rows": rows}
    logits = part("CausalScores", queries, packed, keys, **attributes)
    weights = part("Softmax", logits, domain="", axis=-1)
    return part("WeightedValues", weights, values)


def _sections(build: Builder, rows: tuple[Expr, Expr], section: int) -> Value:
    """The attention of the remaining rows: the average of each section of keys, and the sum of
    the averages by their weights.
    """
    (output,) = build.source.outputs
    attributes = {**build.source.attributes, "rows": rows, "section": section}
    averages, logarithms = build.many(
        "AttendSections", *build.inputs, outputs=(f"{output}.averages", f"{output}.logarithms"),
        domain="webmlc", **attributes,
    )  # fmt: skip
    weights = build("Softmax", logarithms, output=f"{output}.shares", axis=-1)
    return build("MergeSections", weights, averages, output=f"{output}.merged", domain="webmlc")
