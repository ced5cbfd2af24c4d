"""Write a Loop that carries sequences as a Loop that carries tensors.

In: a Loop over sequences whose lengths only a run knows. Out: a Loop over stacks of their elements,
or over no sequence at all, if its body only appends.

    s = Loop(n, , s0) { s = SequenceInsert(s, x) }  ->  t = Loop(n, ) { scan x }
                                                        s = s0 and the slices of t
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from webmlc.graph.builder import Builder
from webmlc.graph.ir import Function, Ragged, Stacked
from webmlc.graph.ops.operator import Context, Result
from webmlc.graph.ops.ragged import appended
from webmlc.graph.ops.subgraphs import reads, splice

RAGGED = "ragged"
"""An attribute of a Loop: the place among its scans of the elements of a sequence that differ in
size, their type and their rank.
"""

ELEMENTS = "elements"
"""An attribute of a Loop: how many of its last scans are the elements of a sequence, which have one
shape. The attribute `decided_by` names the value that decides the length.
"""


def with_stacks(context: Context, build: Builder) -> tuple[Result, ...]:
    """Make a loop carry tensors in place of sequences, whose lengths only a run knows. A sequence
    to which each iteration appends one element is a scan of these elements.
    """
    body: Function = context.attribute("body")
    count, condition, *carried = build.inputs
    held = {k for k in range(len(carried)) if context.holds_values(2 + k)}
    appends = {k: append for k in sorted(held) if (append := _append_of(body, k)) is not None}
    states = [k for k in range(len(carried)) if k not in appends]
    sequences = held - appends.keys()
    looping = _looping(build, body, states, sequences, list(appends.values()))
    decides = condition if context.is_decided_by_run(1) else count

    def stack(k: int) -> str:
        return build("AsTensor", carried[k], domain="webmlc", decided_by=decides)

    initial = (stack(k) if k in sequences else carried[k] for k in states)
    marks = {"decided_by": decides, ELEMENTS: len(appends)}
    attributes = {**context.node.attributes, **marks, "body": looping}
    outputs = len(looping.outputs) - 1
    values = build.many("Loop", count, condition, *initial, outputs=outputs, **attributes)
    first_append = len(values) - len(appends)
    results: dict[int, Result] = {
        k: Stacked(value) if k in sequences else value
        for k, value in zip(states, values, strict=False)
    }
    for k, scan in zip(appends, values[first_append:], strict=True):
        result = build("AsSequence", scan, domain="webmlc")
        if context.sequences[carried[k]] != ():
            first = build("AsOne", carried[k], domain="webmlc", decided_by=decides)
            result = build("JoinSequences", first, result, domain="webmlc", decided_by=decides)
        results[k] = result
    return (*(results[k] for k in range(len(carried))), *values[len(states) : first_append])


def with_ragged(context: Context, build: Builder) -> tuple[Result, ...]:
    """Make a loop of the host carry the numbers and the shapes of a scan whose slices, elements of
    a sequence, differ in size.
    """
    body: Function = context.attribute("body")
    place, dtype, rank = context.attribute(RAGGED)
    states = len(build.inputs) - 2
    inner, expansion = build.inner("ragged")
    inputs = [inner.fresh(name) for name in body.inputs]
    elements, sizes = inner.fresh("elements"), inner.fresh("sizes")
    condition, *results = splice(body, inner, dict(zip(body.inputs, inputs, strict=True)))
    scans = results[states:]
    slice_ = inner.value(scans.pop(place))
    grown = appended(inner, Ragged(elements, sizes), slice_)
    looping = Function(
        body.name,
        (*inputs, elements, sizes),
        (condition, *results[:states], grown.elements, grown.sizes, *scans),
        tuple(expansion.nodes),
        {},
        expansion.constants,
    )
    none = build.constant(np.zeros(0, dtype.numpy))
    no_sizes = build.constant(np.zeros((0, rank), np.int64))
    attributes = {k: v for k, v in context.node.attributes.items() if k != RAGGED}
    attributes |= {"body": looping, ELEMENTS: attributes[ELEMENTS] - 1}
    outputs = states + 2 + len(scans)
    values = build.many("Loop", *build.inputs, none, no_sizes, outputs=outputs, **attributes)
    slices = list[Result](values[states + 2 :])
    slices.insert(place, Ragged(*values[states : states + 2]))
    return (*values[:states], *slices)


def _looping(
    build: Builder,
    body: Function,
    states: Sequence[int],
    sequences: Set[int],
    appends: Sequence[_Append],
) -> Function:
    """The body that carries the values at the places `states`, some of them stacks of `sequences`.
    Its last scans are the elements of `appends`.
    """
    inner, expansion = build.inner("stacks")
    step, go = (inner.fresh(name) for name in body.inputs[:2])
    inputs = [inner.fresh(body.inputs[2 + k]) for k in states]
    arguments: dict[str, str] = dict(zip(body.inputs[:2], (step, go), strict=True))
    for k, value in zip(states, inputs, strict=True):
        is_sequence = k in sequences
        argument = value.op("AsSequence", domain="webmlc") if is_sequence else value
        arguments[body.inputs[2 + k]] = argument
    condition, *outputs = body.outputs
    selected = [outputs[k] for k in states] + outputs[len(body.inputs) - 2 :]
    selected += [append.element for append in appends]
    dropped = {name for append in appends for name in append.values}
    nodes = tuple(node for node in body.nodes if dropped.isdisjoint(node.outputs))
    without_appends = replace(body, nodes=nodes, outputs=(condition, *selected))
    results = list(splice(without_appends, inner, arguments))
    for number, k in enumerate(states, 1):
        if k in sequences:
            results[number] = inner("AsTensor", results[number], domain="webmlc")
    nodes = tuple(expansion.nodes)
    return Function(body.name, (step, go, *inputs), tuple(results), nodes, {}, expansion.constants)


@dataclass(frozen=True, slots=True)
class _Append:
    """The element that each iteration appends to a sequence, and the names of the new sequence."""

    element: str
    values: tuple[str, ...]


def _append_of(body: Function, number: int) -> _Append | None:
    """The element that a body appends to the sequence that it carries at a place. `None` if the
    body uses the sequence otherwise.
    """
    sequence, value = body.inputs[2 + number], body.outputs[1 + number]
    producer_of = {o: node for node in body.nodes for o in node.outputs}
    values = [value]
    while value in producer_of and producer_of[value].op == "Identity":
        value = producer_of[value].inputs[0]
        values.append(value)
    insert = producer_of.get(value)
    if insert is None or insert.op != "SequenceInsert" or insert.inputs[0] != sequence:
        return None
    readers = [n for n in body.nodes if any(reads(n, v) for v in (sequence, *values))]
    is_read_otherwise = any(n is not insert and n.outputs[0] not in values for n in readers)
    if len(insert.inputs) > 2 or is_read_otherwise or sum(o in values for o in body.outputs) > 1:
        return None
    return _Append(insert.inputs[1], tuple(values))
