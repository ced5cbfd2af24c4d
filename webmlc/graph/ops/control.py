"""Control flow: If, Loop and Scan.

An If with a known condition becomes one of its branches. A Loop with few iterations is unrolled. A
Scan becomes a Loop over slices. Control flow that only a run can decide is outlined
(`graph.infer.outline`): it becomes a node of domain `webmlc` that names functions of the module.

    y = If(true) {then: y = Relu(x), else: y = Neg(x)}  ->  y = Relu(x)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat, zip_longest

import numpy as np

from webmlc.core.expr import Call, Expr, as_expr, as_int, const, select
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Attribute, Function, Node
from webmlc.graph.ops.counted_loops import counted
from webmlc.graph.ops.operator import (
    Context,
    NotSupportedError,
    Operator,
    Result,
    given_types,
)
from webmlc.graph.ops.shapes import ONE, ZERO, check_shape, require
from webmlc.graph.ops.stacked_loops import RAGGED, with_ragged, with_stacks
from webmlc.graph.ops.subgraphs import functions_in, splice

MAX_UNROLLED_NODES, MAX_SEQUENCE_NODES = 64, 4096
"""The most nodes that unrolling one loop may create. The first limit is for a loop that a run could
execute. The second is for a loop that carries sequences, which exist only at build time. Chosen by
hand.
"""

MAX_COPIED_NODES = 1024
"""The most nodes, including those in sub-graphs, that unrolling a loop and all loops around it may
create. It bounds nested loops, whose copies multiply. Measured: without it, four nested loops of
three iterations took 4 s to build, and each further level 60 times as long.
"""

COPIES = "copies"
"""An attribute of a Loop: the number of its copies that the unrolled loops around it create."""

ONLY_BRANCH = "only"
"""An attribute of an If: the branch that every run must take, because the nodes behind the If
cannot read the results of the other branch.
"""

HAS_COUNT = "counted"
"""An attribute of a Loop that computes its own condition and scans outputs: the loop already counts
its iterations.
"""

HAS_BOUND = "bounded"
"""An attribute of a Loop whose trip count only a run knows: the count is already not negative."""

RUNS_ON_HOST = "host"
"""An attribute of control flow that the host executes, because a device cannot: the sizes of its
results or of its values are known only when its functions have run. The attribute `symbols` names
the sizes that such a node binds.
"""

IS_WHILE = "while"
"""An attribute of a Loop of the host whose first carried value says if an iteration follows."""

CONTROL = frozenset({("webmlc", "If"), ("webmlc", "Loop")})
"""The nodes that run functions of the module."""

_PLACES = ("scan_output_axes", "scan_output_directions")


def _if(context: Context, build: Builder) -> tuple[str, ...] | None:
    if ONLY_BRANCH in context.node.attributes:
        return _only_branch(context, build)
    value = context.value(0)
    condition = None if value is None else value.reshape(-1)[0]
    if not isinstance(condition, bool):
        return None
    branch = context.attribute("then_branch" if condition else "else_branch")
    return splice(branch, build, {})


def _only_branch(context: Context, build: Builder) -> tuple[str, ...]:
    """Take a branch, and require that the condition chooses it. If data decide the condition, a run
    counts a position out of range where the condition chooses the other branch.
    """
    branch, value = context.attribute(ONLY_BRANCH), context.value(0)
    results, must_hold = splice(context.attribute(branch), build, {}), branch == "then_branch"
    if value is not None:
        if not _require_condition(context, as_expr(value.reshape(-1)[0]), must_hold):
            raise NotSupportedError(f"the nodes behind it need its {branch}, which no run takes")
        return results
    condition = build.inputs[0].op("Reshape", SCALAR)
    position = condition.where(np.int64(not must_hold), np.int64(must_hold))
    return tuple(build("Gather", build.value(r).unsqueeze(0), position, axis=0) for r in results)


def _require_condition(context: Context, condition: Expr, holds: bool) -> bool:
    """Require that a condition on sizes holds, or that it does not hold. Return False if no sizes
    fulfil it.
    """
    match condition:
        case Call(op="bit_not", args=(inner,)):
            return _require_condition(context, inner, not holds)
        case Call(op="bit_and" | "bit_or" as op, args=args) if holds == (op == "bit_and"):
            return all(_require_condition(context, part, holds) for part in args)
        case Call(op="eq" | "ne" as op, args=(a, b)):
            return require(context, "equal" if holds == (op == "eq") else "unequal", a, b)
    return require(context, "equal", select(condition, ONE, ZERO), const(int(holds)))


def may_run_on_host(node: Node) -> bool:
    """True for control flow of ONNX that is not yet the host's to execute."""
    return node.operator in {("", "If"), ("", "Loop")} and RUNS_ON_HOST not in node.attributes


def _loop(context: Context, build: Builder) -> tuple[Result, ...] | None:
    """Unroll a loop: copy the body for each iteration, which reads what the iteration before
    carries.

    Return None if the number of iterations is unknown, or would create too many nodes.
    """
    if RAGGED in context.node.attributes:
        return with_ragged(context, build)
    carried = build.inputs[2:]
    carries_sequences = any(context.holds_values(i + 2) for i in range(len(carried)))
    if RUNS_ON_HOST in context.node.attributes and not carries_sequences:
        return None if IS_WHILE in context.node.attributes else _while(context, build)
    if loop := counted(context, build):
        count, endless = loop
        return _loop_with(context, build, count, *build.inputs[1:], body=endless)
    if context.is_decided_by_run(0) and HAS_BOUND not in context.node.attributes:
        return _with_bound(context, build)
    body = context.attribute("body")
    trips = _trips(context, body)
    limit = MAX_SEQUENCE_NODES if carries_sequences else MAX_UNROLLED_NODES
    scan_count = len(body.outputs) - 1 - len(carried)
    copies = trips and trips * context.attribute(COPIES, 1)
    fits = copies is not None and (carries_sequences or copies * _size(body) <= MAX_COPIED_NODES)
    if not fits or trips is None or trips * len(body.nodes) > limit or (trips == 0 and scan_count):
        if carries_sequences:
            return with_stacks(context, build)
        if scan_count and _never_starts(context):
            return _without_condition(context, build, build.constant(np.int64(0)))
        if not scan_count or not context.has(0) or HAS_COUNT in context.node.attributes:
            return None
        if not never_stops_early(body):
            return _with_count(context, build)
        has_unknown_condition = context.has(1) and context.value(1) is None
        if not has_unknown_condition:
            return None
        count, condition, *_ = build.inputs
        trip_count = condition.where(count, 0)
        return _without_condition(context, build, trip_count)
    body = _with_copies(body, trips)
    slices: list[tuple[str, ...]] = []
    values: tuple[str, ...] = carried
    for trip in range(trips):
        arguments = (build.constant(np.int64(trip)), build.constant(np.bool_(True)), *values)
        results = splice(body, build, dict(zip(body.inputs, arguments, strict=True)))
        values = results[1 : len(carried) + 1]
        slices.append(results[len(carried) + 1 :])
    stacks = [
        _stack(build, parts[::-1] if backward else parts, axis)
        for parts, (axis, backward) in zip(
            zip(*slices, strict=True), scan_places(context), strict=False
        )
    ]
    return (*values, *stacks)


def _while(context: Context, build: Builder) -> tuple[str, ...]:
    """Make a loop of the host compute in tensors if an iteration follows, and which one it is.

        y = Loop(n, c, x) { y = f(x, i); c = g(y) }
        ->  go, i, y = Loop( , , c and 0 < n, 0, x) { y = f(x, i); go = g(y) and i + 1 < n }

    Backward scans are turned around after the loop.
    """
    body: Function = context.attribute("body")
    count, condition, *carried = build.inputs
    limit = build.value(count).op("Reshape", SCALAR) if count else None
    stops_early = not never_stops_early(body)

    def follows(build: Builder, step: Value, condition: str) -> Value:
        """True if the iteration of this number runs, unless the condition is false."""
        is_below = build.constant(np.bool_(True)) if limit is None else step.op("Less", limit)
        return build.value(condition).op("Reshape", SCALAR) & is_below if condition else is_below

    inner, expansion = build.inner("while")
    go, step, *states = (inner.fresh(name) for name in ("go", "step", *body.inputs[2:]))
    arguments = dict(zip(body.inputs, (step, go, *states), strict=True))
    results = splice(body, inner, arguments)
    next_step = step + 1
    next_go = follows(inner, next_step, results[0] if stops_early else "")
    looping = replace(
        body,
        inputs=(*body.inputs[:2], go, step, *states),
        outputs=(inner.constant(np.bool_(True)), next_go, next_step, *results[1:]),
        nodes=tuple(expansion.nodes),
        types={},
        constants=expansion.constants,
    )
    start = build.constant(np.int64(0))
    first = follows(build, start, condition)
    attributes = {**context.node.attributes, "body": looping, IS_WHILE: 1}
    outputs = len(context.node.outputs) + 2
    values = build.many("Loop", "", "", first, start, *carried, outputs=outputs, **attributes)[2:]
    scans = [
        build("Slice", scan, [-1], [BEFORE_ALL], [axis], [-1]) if backward else scan
        for scan, (axis, backward) in zip(
            values[len(carried) :], scan_places(context), strict=False
        )
    ]
    return (*values[: len(carried)], *scans)


SCALAR: list[int] = []
"""The shape of a scalar."""
BEFORE_ALL = -(1 << 62)
"""The end of a Slice that goes backward through a whole axis."""


def _size(function: Function) -> int:
    """The number of nodes of a function, including those in its sub-graphs."""
    inner = (f for node in function.nodes for f in functions_in(node).values())
    return len(function.nodes) + sum(map(_size, inner))


def _with_copies(function: Function, count: int) -> Function:
    """The function, in which each loop records `count` times as many copies of itself."""

    def copied(node: Node) -> Node:
        inner: dict[str, Attribute] = {
            k: _with_copies(f, count) for k, f in functions_in(node).items()
        }
        if not inner:
            return node
        copies = count * node.attributes.get(COPIES, 1)
        return replace(node, attributes={**node.attributes, **inner, COPIES: copies})

    return replace(function, nodes=tuple(map(copied, function.nodes)))


def _with_count(context: Context, build: Builder) -> tuple[str, ...]:
    """Make a loop that computes its own condition count its iterations.

    A scanned output has room for all allowed iterations. The output is then cut after the last
    iteration of the run.
    """
    body, node = context.attribute("body"), context.node
    states = len(node.inputs) - 2
    inner, expansion = build.inner("counted")
    count = inner.fresh("count")
    next_count = count + 1
    counting_body = replace(
        body,
        inputs=(*body.inputs, count),
        outputs=(*body.outputs[: states + 1], next_count, *body.outputs[states + 1 :]),
        nodes=(*body.nodes, *expansion.nodes),
        constants={**body.constants, **expansion.constants},
    )
    attributes = {**node.attributes, "body": counting_body, HAS_COUNT: 1}
    outputs = len(node.outputs) + 1
    results = build.many("Loop", *node.inputs, np.int64(0), outputs=outputs, **attributes)
    end = results[states].unsqueeze(0)
    scans = [build("Slice", r, [0], end, [0]) for r in results[states + 1 :]]
    return (*results[:states], *scans)


def _with_bound(context: Context, build: Builder) -> tuple[str, ...]:
    """Replace a negative trip count by 0."""
    count, *inputs = build.inputs
    trips = build("Max", count, 0)
    return _loop_with(context, build, trips, *inputs, **{HAS_BOUND: 1})


def _without_condition(context: Context, build: Builder, trips: str) -> tuple[str, ...]:
    """The loop without its initial condition. All `trips` iterations run."""
    return _loop_with(context, build, trips, "", *build.inputs[2:])


def _loop_with(
    context: Context, build: Builder, *inputs: str, **attributes: Attribute
) -> tuple[str, ...]:
    """The results of the loop with other inputs, and with some other attributes."""
    outputs = len(context.node.outputs)
    return build.many("Loop", *inputs, outputs=outputs, **{**context.node.attributes, **attributes})


def _never_starts(context: Context) -> bool:
    """True if the initial condition is the constant false."""
    condition = context.value(1)
    return condition is not None and condition.reshape(-1)[0] is False


def _trips(context: Context, body: Function) -> int | None:
    """The number of iterations if it is known, else None."""
    if _never_starts(context):
        return 0
    count = context.value(0)
    if count is None or not never_stops_early(body) or context.is_decided_by_run(1):
        return None
    trips = as_int(as_expr(count.reshape(-1)[0]))
    return None if trips is None else max(trips, 0)


def never_stops_early(body: Function) -> bool:
    """True if the body's condition is always true, or the same as before the first iteration."""
    producer_of = {o: node for node in body.nodes for o in node.outputs}
    value = body.outputs[0]
    while value in producer_of and producer_of[value].op == "Identity":
        value = producer_of[value].inputs[0]
    return value == body.inputs[1] or bool(body.constants.get(value, False))


def scan_places(context: Context) -> Iterator[tuple[int, bool]]:
    """The axis of each scanned output, and whether it is filled backward. A Loop scans forward
    along axis 0.
    """
    for names in zip_longest(
        context.attribute("scan_output_axes", ()), context.attribute("scan_output_directions", ())
    ):
        yield int(names[0] or 0), bool(names[1])
    yield from repeat((0, False))


def _stack(build: Builder, slices: tuple[str, ...], axis: int = 0) -> Value:
    """Join slices to one tensor along a new axis."""
    rows = (build.value(part).unsqueeze(axis) for part in slices)
    return build("Concat", *rows, axis=axis)


def _scan(context: Context, build: Builder) -> tuple[str, ...]:
    """Write a Scan as a Loop whose body gathers its slices."""
    if "batched" in context.node.attributes:
        return _scan_batches(context, build)
    count = context.count("num_scan_inputs")
    inputs = build.inputs
    if count > len(inputs):
        raise NotSupportedError(f"num_scan_inputs is {count}, of {len(inputs)} inputs")
    states, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    for index, value in enumerate(context.attribute("body").inputs[: len(states)]):
        declared = context.attribute("body").types.get(value)
        if declared is not None and declared.static_shape is not None:
            check_shape(context, index, declared.shape)
    axes = context.attribute("scan_input_axes", (0,) * count)
    backward = context.attribute("scan_input_directions", (0,) * count)
    first = len(states)
    axis = axes[0] % context.rank(first)
    length = build("Gather", build("Shape", sequences[0]), np.int64(axis))
    last = length - 1
    body = _sliced(context.attribute("body"), build, sequences, axes, backward, last)
    names = (*_PLACES, COPIES)
    attributes = {k: v for k, v in context.node.attributes.items() if k in names}
    return build.many(
        "Loop",
        length,
        "",
        *states,
        outputs=len(body.outputs) - 1,
        body=body,
        **attributes,
    )


def _sliced(
    body: Function,
    build: Builder,
    sequences: tuple[str, ...],
    axes: tuple[int, ...],
    backward: tuple[int, ...],
    last: str,
) -> Function:
    """Write the body of a Scan as the body of a Loop: it gathers its slices, and its condition is
    true.
    """
    inner, expansion = build.inner("body")
    step, condition, *states = (
        inner.fresh(name)
        for name in ("step", "condition", *body.inputs[: len(body.inputs) - len(sequences)])
    )
    slices = []
    for sequence, axis, is_backward in zip(sequences, axes, backward, strict=True):
        position = last - step if is_backward else step
        slices.append(inner("Gather", sequence, position, axis=axis))
    results = splice(body, inner, dict(zip(body.inputs, (*states, *slices), strict=True)))
    condition_value = inner.constant(np.bool_(True))
    inputs, outputs = (step, condition, *states), (condition_value, *results)
    return Function(body.name, inputs, outputs, tuple(expansion.nodes), {}, expansion.constants)


def _scan_batches(context: Context, build: Builder) -> tuple[str, ...]:
    """Expand a Scan of opset 8: the first axis of all inputs is a batch, scanned one by one."""
    batch = as_int(context.shape(1)[0])
    if batch is None or context.has(0):
        raise NotSupportedError("a scan (opset 8) of a symbolic batch or of sequence lengths")
    attributes = {k: v for k, v in context.node.attributes.items() if k != "batched"}
    if directions := attributes.pop("directions", ()):
        attributes["scan_input_directions"] = directions
    rows: list[tuple[str, ...]] = []
    for b in range(batch):
        inputs = (build("Gather", i, np.int64(b), axis=0) for i in build.inputs[1:])
        outputs = len(context.node.outputs)
        rows.append(build.many("Scan", *inputs, outputs=outputs, **attributes))
    return tuple(_stack(build, column) for column in zip(*rows, strict=True))


def _scan_form(node: Node, opset: int) -> Node:
    """Mark a Scan of opset 8 or older: its inputs and outputs are batched."""
    return node if opset > 8 else replace(node, attributes={**node.attributes, "batched": 1})


OPS: tuple[Operator, ...] = (
    Operator("If", given_types, expand=_if),
    Operator("Loop", given_types, expand=_loop),
    Operator("Scan", given_types, expand=_scan, normalise=_scan_form),
    Operator("If", given_types, domain="webmlc"),
    Operator("Loop", given_types, domain="webmlc"),
)
