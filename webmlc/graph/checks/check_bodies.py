"""Count, where a run reaches them, the sizes and indices inside control flow that do not fit.

In: a module in which functions that control flow runs have `requirements`. Out: the same module, in
which each such node of `main` has a further output: the number of requirements that did not hold,
for each node inside. The hosts read it after a run, like the counts of `check_indices`.

    %y = webmlc.If(%c, %x)            ->  %y, %y.unfit: int32[1] = webmlc.If(%c, %x)
    func y.then requires n == m           func y.then {.. %u: int32[1] = SymbolicConstant()}
                                          func y.else {.. const [0]}

The branch that a run takes, and the number of iterations of a loop, may depend on data. So an If
counts in the branch that runs, and a loop adds up the counts of its iterations. A requirement needs
no counter if all iterations decide it alike, and if sizes alone decide whether the loop has a first
iteration. Such a requirement is decided around the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.core.bounds import Interval, bounds
from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Expr, Var, as_int, call, const, maximum, select
from webmlc.core.rewrite import rewrite, substitute, variables
from webmlc.core.simplify import simplify
from webmlc.core.sizes import Rule
from webmlc.graph.checks.check_indices import count_outside, counts_type
from webmlc.graph.checks.requirements import MAX_ELEMENTS, factors
from webmlc.graph.ir import Check, Function, Module, Node, Requirement, TensorType
from webmlc.graph.ops.control import CONTROL, RUNS_ON_HOST
from webmlc.graph.ops.operator import object_array, symbolic_constant
from webmlc.graph.ops.shapes import canonical


def check_bodies(module: Module) -> Module:
    """Count the requirements that fail in functions that control flow runs.

    needs: inferred types. guarantees: `module.checks` names an output of these counts.
    """
    counting = _Counting(dict(module.functions))
    body = _Body(module.main)
    counting.fill(body)
    counts = body.counts()
    if not counts:
        return module
    main = body.finished(tuple(count.value for count in counts))
    functions = {**counting.functions, "main": main}
    return replace(module, functions=functions, checks=(*module.checks, *counts))


@dataclass(frozen=True, slots=True)
class _Failure:
    """The condition under which a requirement of a node fails."""

    condition: Expr
    node: str


@dataclass(slots=True)
class _Body:
    """A function as it grows: its nodes, the counts of control flow in it, and the conditions that
    decide further counts without any data.
    """

    function: Function
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inner: list[Check] = field(default_factory=list)
    failures: list[_Failure] = field(default_factory=list)

    def fresh(self, what: str) -> str:
        """A name that no other value of the module has."""
        number = len(self.types) + len(self.constants)
        return f"webmlc.{self.function.name}.{what}.{number}"

    def append(self, node: Node, size: int) -> str:
        """Append a node that counts; returns its output."""
        self.nodes.append(node)
        self.types[node.outputs[0]] = counts_type(size)
        return node.outputs[0]

    def zeros(self, size: int) -> str:
        """A constant of counts."""
        name = self.fresh("zeros")
        self.constants[name] = np.zeros(size, np.int32)
        return name

    def counts(self) -> list[Check]:
        """All counts: first of control flow, then the counts that symbols decide, in one value."""
        if not self.failures:
            return self.inner
        nodes = tuple(dict.fromkeys(failure.node for failure in self.failures))
        sums: dict[str, Expr] = dict.fromkeys(nodes, const(0))
        for failure in self.failures:
            sums[failure.node] = sums[failure.node] + select(failure.condition, const(1), const(0))
        value = object_array([sums[node] for node in nodes], (len(nodes),))
        name = self.fresh("unfit")
        self.append(symbolic_constant(value, DType.int32, name, nodes), len(nodes))
        return [*self.inner, Check(name, nodes)]

    def total(self, before: int = 0, after: int = 0) -> Check | None:
        """All counts as one value, with zeros around it; None where there are none."""
        counts = self.counts()
        nodes = tuple(node for count in counts for node in count.nodes)
        parts = [count.value for count in counts]
        parts = [*([self.zeros(before)] if before else []), *parts]
        parts = [*parts, *([self.zeros(after)] if after else [])]
        if len(parts) < 2:
            return Check(parts[0], nodes) if parts else None
        join = Node("Concat", tuple(parts), (self.fresh("unfit"),), {"axis": 0}, origin=nodes)
        return Check(self.append(join, before + len(nodes) + after), nodes)

    def finished(self, outputs: Sequence[str], at: int | None = None) -> Function:
        """The function with further outputs, after its own or before its output `at`."""
        function = self.function
        at = len(function.outputs) if at is None else at
        return replace(
            function,
            outputs=(*function.outputs[:at], *outputs, *function.outputs[at:]),
            nodes=tuple(self.nodes),
            types={**function.types, **self.types},
            constants={**function.constants, **self.constants},
        )


@dataclass(slots=True)
class _Counting:
    """The functions of the module, changed one by one."""

    functions: dict[str, Function]

    def body(self, name: str) -> _Body:
        """A function that control flow runs, with the counts of its own requirements."""
        body = _Body(self.functions[name])
        body.failures = [
            _Failure(_fails(requirement), requirement.node)
            for requirement in body.function.requirements
        ]
        self.fill(body)
        nodes, checks = count_outside(body.function)
        for node, check in zip(nodes, checks, strict=True):
            body.append(node, len(check.nodes))
        body.inner += checks
        return body

    def fill(self, body: _Body) -> None:
        """Copy the nodes of a function. Its nodes of control flow get counts."""
        for node in body.function.nodes:
            if node.operator not in CONTROL:
                body.nodes.append(node)
            elif node.op == "If":
                self.branches(body, node)
            else:
                self.loop(body, node)

    def branches(self, around: _Body, node: Node) -> None:
        """Append an If. Each branch counts for its own nodes, and gives zeros for the other
        branch's.
        """
        then, other = map(self.body, node.attributes["functions"])
        sizes = [_size(branch) for branch in (then, other)]
        if not any(sizes):
            around.nodes.append(node)
            return
        ends = (then.total(after=sizes[1]), other.total(before=sizes[0]))
        nodes: tuple[str, ...] = ()
        for branch, end in zip((then, other), ends, strict=True):
            assert end is not None
            self.functions[branch.function.name] = branch.finished((end.value,))
            nodes += end.nodes
        self.extend(around, node, nodes, len(node.outputs))

    def loop(self, around: _Body, node: Node) -> None:
        """Append a Loop. Requirements with one answer for all iterations are decided around it. The
        counts of the others add up in a counter that the loop carries, after its other states.
        """
        (name,) = node.attributes["functions"]
        body = self.body(name)
        symbol, trips = node.attributes.get("symbol"), node.attributes.get("trips")
        carried, asks = node.attributes["carried"], node.attributes.get("asks", False)
        starts = const(True) if trips is None else const(0) < trips
        failures, body.failures = body.failures, []
        for failure in failures:
            fails = failure.condition
            if symbol is not None and trips is not None and not asks:
                fails = _somewhere(fails, symbol, trips)
            if node.inputs[0] or RUNS_ON_HOST in node.attributes or symbol in variables(fails):
                body.failures.append(failure)
            elif fails != const(False):
                around.failures.append(_Failure(fails & starts, failure.node))
        total = body.total()
        if total is None:
            around.nodes.append(node)
            return
        counter = body.fresh("counter")
        size = len(total.nodes)
        body.types[counter] = counts_type(size)
        add = Node("Add", (counter, total.value), (body.fresh("unfit"),), origin=total.nodes)
        value = body.append(add, size)
        function = body.finished((value,), asks + carried)
        inputs = (*function.inputs[:carried], counter, *function.inputs[carried:])
        self.functions[name] = replace(function, inputs=inputs)
        places = (*node.inputs[: 1 + carried], around.zeros(size), *node.inputs[1 + carried :])
        attributes = {**node.attributes, "carried": carried + 1}
        self.extend(
            around, replace(node, inputs=places, attributes=attributes), total.nodes, carried
        )

    def extend(self, around: _Body, node: Node, nodes: tuple[str, ...], at: int) -> None:
        """Append the node with an output of counts at a position."""
        name, types = around.fresh("unfit"), node.attributes["types"]
        around.types[name] = counts_type(len(nodes))
        types = (*types[:at], around.types[name], *types[at:])
        outputs = (*node.outputs[:at], name, *node.outputs[at:])
        attributes = {**node.attributes, "types": types}
        around.nodes.append(replace(node, outputs=outputs, attributes=attributes))
        around.inner.append(Check(name, nodes))


def _size(body: _Body) -> int:
    """The number of counts of a body."""
    node_count = len({failure.node for failure in body.failures})
    return node_count + sum(len(count.nodes) for count in body.inner)


def _fails(requirement: Requirement) -> Expr:
    """The condition under which a requirement does not hold, in 32-bit integers. It is right also
    for counts of more bits, and for divisors that are 0.
    """
    if requirement.right == MAX_ELEMENTS:
        return _is_too_large(requirement.left)
    divisors: list[Expr] = []

    def guarded(node: Expr) -> Expr | None:
        match node:
            case Call(op="floordiv" | "floormod" as op, args=(a, b)) if as_int(b) is None:
                divisors.append(b)
                return call(op, a, maximum(b, 1))
        return None

    left, right = rewrite(requirement.left, guarded), rewrite(requirement.right, guarded)
    fails = _breaks(requirement.rule, left, right)
    for divisor in divisors:
        fails = fails | (divisor < const(1))
    return fails


def _breaks(rule: Rule, left: Expr, right: Expr) -> Expr:
    """The condition under which two sizes break a rule."""
    match rule:
        case "at most":
            return right < left
        case "unequal":
            return call("eq", left, right)
    breaks = call("ne", left, right)
    if rule in ("broadcast", "stretch"):
        breaks = breaks & call("ne", left, const(1))
    return breaks & call("ne", right, const(1)) if rule == "broadcast" else breaks


def _is_too_large(count: Expr) -> Expr:
    """The condition under which a product of sizes exceeds `MAX_ELEMENTS`: this limit divided by
    all factors but the first is less than the first factor.
    """
    number, powers = factors(count)
    if not number:
        return const(False)
    first, *others = powers.elements()
    limit: Expr = const(MAX_ELEMENTS.value // number)
    for factor in others:
        limit = limit // maximum(factor, 1)
    exceeds = limit < first
    for factor in others:
        exceeds = exceeds & (const(0) < factor)
    return exceeds


def _somewhere(fails: Expr, symbol: Var, trips: Expr) -> Expr:
    """The condition that `fails` holds in some iteration. In `right < left` the difference right -
    left is linear in the iteration, so it is smallest in the first or the last iteration.
    """
    if not (isinstance(fails, Call) and fails.op == "lt") or symbol not in variables(fails):
        return fails
    slack = canonical(fails.args[0] - fails.args[1])
    first, second, third = (substitute(slack, {symbol: const(n)}) for n in range(3))
    slope = as_int(canonical(second - first))
    if slope is None or slope != as_int(canonical(third - second)):
        return fails
    smallest = first if slope > 0 else substitute(slack, {symbol: trips - const(1)})
    ranges = {v: Interval(0, MAX_ELEMENTS.value) for v in variables(slack) | variables(trips)}
    smallest = simplify(canonical(smallest), ranges)
    return const(False) if bounds(smallest, ranges).low >= 0 else smallest < const(0)
