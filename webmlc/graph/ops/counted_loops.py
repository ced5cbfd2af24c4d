"""Find the trip count of a Loop that counts up to a limit itself.

In: a Loop without a trip count. Out: its trip count, and its body without the condition. Exporters
of TensorFlow's `while_loop` write such loops.

    i, .. = Loop(, i < n, 0, n, ..) { i = i + 1; condition = i < n; .. }
    ->  i, .. = Loop(Max(n - 0, 1), i < n, 0, n, ..) { i = i + 1; condition = true; .. }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from webmlc.core.dtypes import DType
from webmlc.graph.builder import Builder, Value
from webmlc.graph.element_types import TYPE_NUMBERS
from webmlc.graph.ir import Function, Node
from webmlc.graph.ops.operator import Context

COMPARISONS = {
    "Less": (False, 0),
    "LessOrEqual": (False, 1),
    "Greater": (True, 0),
    "GreaterOrEqual": (True, 1),
}
"""By the operator that compares the counter with the limit: whether the limit comes first, and the
number of iterations beyond those of `Less`.
"""

WIDE = [TYPE_NUMBERS[t] for t in (DType.int32, DType.int64, DType.float32, DType.float64)]
"""The types in which a counter is compared as it is. Smaller types round the counter, or wrap
around.
"""


@dataclass(frozen=True, slots=True)
class Count:
    """The places of the counter and of the limit among the carried values. An iteration follows
    while the counter is less than the limit plus `extra`.
    """

    counter: int
    limit: int
    extra: int


def counted(context: Context, build: Builder) -> tuple[Value, Function] | None:
    """The trip count of a Loop that counts up to a limit itself, and its body without the
    condition. `None` if it has a trip count already, or does not count.

    The initial condition stays: if it is true, the first iteration runs, whatever the limit is.
    """
    body: Function = context.attribute("body")
    count = None if context.has(0) else _count(body)
    if count is None:
        return None
    places = (count.limit, count.counter)
    if not all(context.dtype(2 + place).is_integer for place in places):
        return None
    limit, first = (build.inputs[2 + place].cast(DType.int64) for place in places)
    if count.extra:
        limit = limit + count.extra
    trips = build("Max", limit - first, 1)
    return trips, replace(body, outputs=(body.inputs[1], *body.outputs[1:]))


def _count(body: Function) -> Count | None:
    """The counter of a body whose condition compares the counter with a limit; else `None`."""
    producers = {output: node for node in body.nodes for output in node.outputs}
    carried = body.inputs[2:]
    comparison = producers.get(_source(body.outputs[0], producers))
    if comparison is None or comparison.domain or comparison.op not in COMPARISONS:
        return None
    is_swapped, extra = COMPARISONS[comparison.op]
    counted, limit = (_source(value, producers) for value in comparison.inputs)
    if is_swapped:
        counted, limit = limit, counted
    sources = [_source(value, producers) for value in body.outputs[1 : 1 + len(carried)]]
    addition = producers.get(counted)
    if addition is None or addition.op != "Add" or limit not in carried:
        return None
    for counter, step in (addition.inputs, addition.inputs[::-1]):
        one = body.constants.get(step)
        if counter not in carried or one is None or one.size != 1 or one.item() != 1:
            continue
        places = (carried.index(counter), carried.index(limit))
        if sources[places[0]] == counted and sources[places[1]] == limit:
            return Count(*places, extra)
    return None


def _source(value: str, producers: Mapping[str, Node]) -> str:
    """The value that `value` is a copy of, perhaps in another type that holds counts."""
    while node := producers.get(value):
        if node.op != "Identity" and not (node.op == "Cast" and node.attributes["to"] in WIDE):
            break
        value = node.inputs[0]
    return value
