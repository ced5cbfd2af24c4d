"""Control flow: an If of a known condition is one of its branches, a Loop of few iterations is
unrolled, a Scan is a Loop over slices. What a run decides is outlined (`graph.outline`) to rows of
domain `webmlc`, which name functions of the module.

    y = If(true) {then: y = Relu(x), else: y = Neg(x)}  ->  y = Relu(x)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import repeat, zip_longest

import numpy as np

from webmlc.core.expr import as_expr, as_int
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Attribute, Function, Node
from webmlc.graph.ops.operator import (
    Context,
    NotSupportedError,
    Operator,
    UnknownValueError,
    given_types,
)
from webmlc.graph.ops.shapes import check_shape

UNROLLED_NODES, UNROLLED_VALUES = 64, 4096
"""Nodes that unrolling a loop may make: what a run could do, and what only a build can (sequences).
"""

UNROLLED_COPIES = 1024
"""Nodes that unrolling a loop and all loops around it may make, those in sub-graphs counted: loops
that stand in each other would multiply without it.
"""

COPIES = "copies"
"""Of a Loop: how many copies of it the unrolled loops around it make."""

ASSUMED = "assumed"
"""Of an If whose condition is an equation of sizes, and decides ranks: the branch to take."""

COUNTED = "counted"
"""Of a Loop that scans until a condition that it computes: it counts its iterations."""

BOUNDED = "bounded"
"""Of a Loop whose iterations only a run knows: their number is not negative."""

CONTROL = frozenset({("webmlc", "If"), ("webmlc", "Loop")})
"""The nodes that run functions of the module."""

_PLACES = ("scan_output_axes", "scan_output_directions")


def _if(context: Context, builder: Builder) -> tuple[str, ...] | None:
    if ASSUMED in context.node.attributes:
        return _assumed(context, builder)
    known = context.value(0)
    condition = None if known is None else known.reshape(-1)[0]
    if not isinstance(condition, bool):
        return None
    branch = context.attribute("then_branch" if condition else "else_branch")
    return splice(branch, builder, {})


def _assumed(context: Context, builder: Builder) -> tuple[str, ...]:
    """The branch where an equation of sizes holds; NaN where it does not."""
    condition, branch = context.node.inputs[0], context.attribute(ASSUMED)
    if branch == "else_branch":
        condition = builder("Not", condition)
    nan = builder.constant(np.float32(np.nan))
    results = splice(context.attribute(branch), builder, {})
    return tuple(builder("Where", condition, r, builder("CastLike", nan, r)) for r in results)


def splice(function: Function, builder: Builder, given: Mapping[str, str]) -> tuple[str, ...]:
    """Add a sub-graph's nodes under new names; `given` names its inputs. Returns its outputs.

    Names that it does not define are the surrounding function's own.
    """
    names = dict(given)
    for name, array in function.constants.items():
        names[name] = builder.constant(array)
    for node in function.nodes:
        inputs = tuple(names.get(i, i) for i in node.inputs)
        outputs = tuple(builder.fresh(o) if o else "" for o in node.outputs)
        names.update(zip(node.outputs, outputs, strict=True))
        builder.append(replace(closed(node, names), inputs=inputs, outputs=outputs))
    return tuple(names.get(o, o) for o in function.outputs)


def closed(node: Node, names: Mapping[str, str]) -> Node:
    """The node; its own sub-graphs read the new names."""
    attributes = {
        key: _renamed(value, names) if isinstance(value, Function) else value
        for key, value in node.attributes.items()
    }
    return replace(node, attributes=attributes)


def reads(node: Node, value: str) -> bool:
    """True where a node, or a sub-graph of it, reads a value."""
    return value in node.inputs or any(
        value in f.outputs or any(reads(n, value) for n in f.nodes) for f in _inner(node).values()
    )


def names_in(function: Function) -> Iterator[str]:
    """The names of a function's values, and of those in its sub-graphs."""
    yield from (*function.inputs, *function.constants, *function.outputs)
    for node in function.nodes:
        yield from (*node.inputs, *node.outputs)
        for inner in _inner(node).values():
            yield from names_in(inner)


def _renamed(function: Function, names: Mapping[str, str]) -> Function:
    own = set(function.inputs) | set(function.constants)
    own |= {o for node in function.nodes for o in node.outputs}
    outer = {old: new for old, new in names.items() if old not in own}
    nodes = tuple(
        replace(closed(node, outer), inputs=tuple(outer.get(i, i) for i in node.inputs))
        for node in function.nodes
    )
    outputs = tuple(outer.get(o, o) for o in function.outputs)
    return replace(function, nodes=nodes, outputs=outputs)


def _loop(context: Context, builder: Builder) -> tuple[str, ...] | None:
    """Unrolled: a copy of the body for each iteration, over the values that the one before carries.

    None where the number of iterations is not known, or makes too much code.
    """
    if context.is_decided_by_run(0) and BOUNDED not in context.node.attributes:
        return _bounded(context, builder)
    body = context.attribute("body")
    carried = context.node.inputs[2:]
    trips = _trips(context, body)
    values = any(context.holds_values(i + 2) for i in range(len(carried)))
    limit = UNROLLED_VALUES if values else UNROLLED_NODES
    scanned = len(body.outputs) - 1 - len(carried)
    copies = trips and trips * context.attribute(COPIES, 1)
    fits = copies is not None and (values or copies * _size(body) <= UNROLLED_COPIES)
    if not fits or trips is None or trips * len(body.nodes) > limit or (trips == 0 and scanned):
        if values:
            deciding = 1 if context.has(1) and context.value(1) is None else 0
            what = "the length of a sequence from a loop"
            raise UnknownValueError(context.node.inputs[deciding], what)
        if scanned and _never_starts(context):
            return _without_condition(context, builder, builder.constant(np.int64(0)))
        if not scanned or not context.has(0) or COUNTED in context.node.attributes:
            return None
        if not goes_on(body):
            return _counted(context, builder)
        unknown = context.has(1) and context.value(1) is None
        if not unknown:
            return None
        count, condition, *_ = context.node.inputs
        chosen = builder("Where", condition, count, builder.constant(np.int64(0)))
        return _without_condition(context, builder, chosen)
    body = _copied(body, trips)
    slices: list[tuple[str, ...]] = []
    for trip in range(trips):
        given = (builder.constant(np.int64(trip)), builder.constant(np.bool_(True)), *carried)
        results = splice(body, builder, dict(zip(body.inputs, given, strict=True)))
        carried = results[1 : len(carried) + 1]
        slices.append(results[len(carried) + 1 :])
    stacks = [
        _stack(builder, parts[::-1] if backward else parts, axis)
        for parts, (axis, backward) in zip(zip(*slices, strict=True), places(context), strict=False)
    ]
    wanted = zip((*carried, *stacks), context.node.outputs, strict=True)
    return tuple(value for value, name in wanted if name)


def _inner(node: Node) -> dict[str, Function]:
    """The sub-graphs of a node, by attribute."""
    return {key: f for key, f in node.attributes.items() if isinstance(f, Function)}


def _size(function: Function) -> int:
    """The nodes of a function, those in its sub-graphs too."""
    inner = (f for node in function.nodes for f in _inner(node).values())
    return len(function.nodes) + sum(map(_size, inner))


def _copied(function: Function, count: int) -> Function:
    """The function, whose loops know that there are `count` times as many of them."""

    def copied(node: Node) -> Node:
        inner: dict[str, Attribute] = {k: _copied(f, count) for k, f in _inner(node).items()}
        if not inner:
            return node
        copies = count * node.attributes.get(COPIES, 1)
        return replace(node, attributes={**node.attributes, **inner, COPIES: copies})

    return replace(function, nodes=tuple(map(copied, function.nodes)))


def _counted(context: Context, builder: Builder) -> tuple[str, ...]:
    """A loop that scans until a condition that it computes, with a count of its iterations: what it
    scans has room for all that are allowed, and ends after those that there were.
    """
    body, node = context.attribute("body"), context.node
    states = len(node.inputs) - 2
    inner, expansion = builder.inner("counted")
    count = inner.fresh("count")
    more = inner("Add", count, inner.constant(np.int64(1)))
    counting = replace(
        body,
        inputs=(*body.inputs, count),
        outputs=(*body.outputs[: states + 1], more, *body.outputs[states + 1 :]),
        nodes=(*body.nodes, *expansion.nodes),
        constants={**body.constants, **expansion.constants},
    )
    attributes = {**node.attributes, "body": counting, COUNTED: 1}
    zero, outputs = builder.constant(np.int64(0)), len(node.outputs) + 1
    results = builder.many("Loop", *node.inputs, zero, outputs=outputs, **attributes)
    end = builder("Unsqueeze", results[states], axes=(0,))
    start = builder.constant(np.array([0]))
    scans = [builder("Slice", r, start, end, start) for r in results[states + 1 :]]
    wanted = zip((*results[:states], *scans), node.outputs, strict=True)
    return tuple(value for value, name in wanted if name)


def _bounded(context: Context, builder: Builder) -> tuple[str, ...]:
    """The loop of 0 iterations where an input asks for a negative number of them."""
    count, *inputs = context.node.inputs
    attributes = {**context.node.attributes, BOUNDED: 1}
    trips, outputs = builder("Max", count, builder.constant(np.int64(0))), len(context.node.outputs)
    results = builder.many("Loop", trips, *inputs, outputs=outputs, **attributes)
    return tuple(v for v, name in zip(results, context.node.outputs, strict=True) if name)


def _without_condition(context: Context, builder: Builder, trips: str) -> tuple[str, ...]:
    """The loop without its initial condition, all of whose `trips` iterations run."""
    carried = context.node.inputs[2:]
    outputs, attributes = len(context.node.outputs), dict(context.node.attributes)
    results = builder.many("Loop", trips, "", *carried, outputs=outputs, **attributes)
    return tuple(v for v, name in zip(results, context.node.outputs, strict=True) if name)


def _never_starts(context: Context) -> bool:
    """True where the initial condition is the constant false."""
    condition = context.value(1)
    return condition is not None and condition.reshape(-1)[0] is False


def _trips(context: Context, body: Function) -> int | None:
    """The number of iterations, where it is known."""
    if _never_starts(context):
        return 0
    count = context.value(0)
    if count is None or not goes_on(body) or context.is_decided_by_run(1):
        return None
    trips = as_int(as_expr(count.reshape(-1)[0]))
    return None if trips is None else max(trips, 0)


def goes_on(body: Function) -> bool:
    """True where the body's condition is always what it was before the first iteration, or true."""
    makers = {o: node for node in body.nodes for o in node.outputs}
    value = body.outputs[0]
    while value in makers and makers[value].op == "Identity":
        value = makers[value].inputs[0]
    return value == body.inputs[1] or bool(body.constants.get(value, False))


def places(context: Context) -> Iterator[tuple[int, bool]]:
    """Axis and direction of each scanned output: those of a Scan; of a Loop, 0 and forward."""
    for names in zip_longest(
        context.attribute("scan_output_axes", ()), context.attribute("scan_output_directions", ())
    ):
        yield int(names[0] or 0), bool(names[1])
    yield from repeat((0, False))


def _stack(builder: Builder, slices: tuple[str, ...], axis: int = 0) -> str:
    """Slices as one tensor, along a new axis."""
    rows = (builder("Unsqueeze", part, axes=(axis,)) for part in slices)
    return builder("Concat", *rows, axis=axis)


def _scan(context: Context, builder: Builder) -> tuple[str, ...]:
    """A Loop whose body takes its slices itself."""
    if "batched" in context.node.attributes:
        return _scan_batches(context, builder)
    count = context.count("num_scan_inputs")
    inputs = context.node.inputs
    states, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    for index, value in enumerate(context.attribute("body").inputs[: len(states)]):
        declared = context.attribute("body").types.get(value)
        if declared is not None and declared.static_shape is not None:
            check_shape(context, index, declared.shape)
    axes = context.attribute("scan_input_axes", (0,) * count)
    backward = context.attribute("scan_input_directions", (0,) * count)
    first = len(states)
    axis = axes[0] % context.rank(first)
    length = builder("Gather", builder("Shape", sequences[0]), builder.constant(np.int64(axis)))
    last = builder("Sub", length, builder.constant(np.int64(1)))
    body = _sliced(context.attribute("body"), builder, sequences, axes, backward, last)
    names = (*_PLACES, COPIES)
    attributes = {k: v for k, v in context.node.attributes.items() if k in names}
    results = builder.many(
        "Loop",
        length,
        "",
        *states,
        outputs=len(body.outputs) - 1,
        body=body,
        **attributes,
    )
    return tuple(v for v, name in zip(results, context.node.outputs, strict=True) if name)


def _sliced(
    body: Function,
    builder: Builder,
    sequences: tuple[str, ...],
    axes: tuple[int, ...],
    backward: tuple[int, ...],
    last: str,
) -> Function:
    """A Scan's body as a Loop's: it gathers its slices, and its condition is a constant."""
    inner, expansion = builder.inner("body")
    step, condition, *states = (
        inner.fresh(what)
        for what in ("step", "condition", *body.inputs[: len(body.inputs) - len(sequences)])
    )
    slices = []
    for sequence, axis, is_backward in zip(sequences, axes, backward, strict=True):
        place = inner("Sub", last, step) if is_backward else step
        slices.append(inner("Gather", sequence, place, axis=axis))
    results = splice(body, inner, dict(zip(body.inputs, (*states, *slices), strict=True)))
    going = inner.constant(np.bool_(True))
    inputs, outputs = (step, condition, *states), (going, *results)
    return Function(body.name, inputs, outputs, tuple(expansion.nodes), {}, expansion.constants)


def _scan_batches(context: Context, builder: Builder) -> tuple[str, ...]:
    """Opset 8: the first axis of everything is a batch, scanned one by one."""
    batch = as_int(context.shape(1)[0])
    if batch is None or context.has(0):
        raise NotSupportedError("a scan (opset 8) of a symbolic batch or of sequence lengths")
    attributes = {k: v for k, v in context.node.attributes.items() if k != "batched"}
    if directions := attributes.pop("directions", ()):
        attributes["scan_input_directions"] = directions
    rows: list[tuple[str, ...]] = []
    for b in range(batch):
        at = builder.constant(np.int64(b))
        inputs = (builder("Gather", i, at, axis=0) for i in context.node.inputs[1:])
        outputs = len(context.node.outputs)
        rows.append(builder.many("Scan", *inputs, outputs=outputs, **attributes))
    columns = zip(zip(*rows, strict=True), context.node.outputs, strict=True)
    return tuple(_stack(builder, column) for column, name in columns if name)


def _scan_form(node: Node, opset: int) -> Node:
    """Up to opset 8, inputs and outputs are batched."""
    return node if opset > 8 else replace(node, attributes={**node.attributes, "batched": 1})


OPS: tuple[Operator, ...] = (
    Operator("If", given_types, expand=_if),
    Operator("Loop", given_types, expand=_loop),
    Operator("Scan", given_types, expand=_scan, normalise=_scan_form),
    Operator("If", given_types, domain="webmlc"),
    Operator("Loop", given_types, domain="webmlc"),
)
