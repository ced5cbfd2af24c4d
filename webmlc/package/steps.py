"""Write the nodes of a lowered module as steps of devices and segments of the host, in order.

In: `main` and the functions that it runs. Out: `Steps.body`, in which control flow of a device is
control steps, and control flow of the host is jumps.

    %y = call_kernel add(%x, %x)    ->  Step(wasm, add, (x, x, y))
    %y/bound = webmlc.Bind(%y) {k}      Bind(y, (k,), (0,))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from webmlc.core.expr import Var
from webmlc.core.machine import Device
from webmlc.graph.ir import Function, Module, Node
from webmlc.graph.ops.control import RUNS_ON_HOST
from webmlc.loops.kernels import value_type
from webmlc.package.manifest import (
    BeginList,
    Bind,
    Collect,
    Control,
    Jump,
    JumpUnless,
    Measure,
    Move,
    Stack,
    Step,
    read_by_host,
    written_by_host,
)
from webmlc.package.sizes import to_shape, to_size
from webmlc.package.transfers import HostSegment


@dataclass(slots=True)
class Steps:
    """The steps so far.

    - `body`: the steps, with the segments of the host between them.
    - `places`: the position in `body` of each step.
    - `roots`: the buffers of views and of the inputs of functions.
    - `wholes`: the value that contains each region.
    - `displacements`, `stages`: as in `ProgramParts`, by the number of the step.
    """

    module: Module
    body: list[Step | HostSegment] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    wholes: dict[str, str] = field(default_factory=dict)
    displacements: dict[int, tuple[int, ...]] = field(default_factory=dict)
    stages: dict[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def root(self, value: str) -> str:
        """The buffer that holds a value."""
        value = self.roots.get(value, value)
        return self.root(self.wholes[value]) if value in self.wholes else value

    def function(self, function: Function) -> None:
        """Append the steps of a function."""
        self.wholes |= {part: region.whole for part, region in function.regions.items()}
        for node in function.nodes:
            match node.op:
                case "View":
                    self.roots[node.outputs[0]] = self.root(node.inputs[0])
                case "call_kernel":
                    self.append(self.call(node))
                case "Bind":
                    self.body.append(self.bind(node))
                case "If" if RUNS_ON_HOST in node.attributes:
                    self.host_branches(node)
                case "Loop" if RUNS_ON_HOST in node.attributes:
                    self.host_loop(node, function)
                case "If":
                    self.branches(node)
                case "Loop":
                    self.loop(node)

    @property
    def steps(self) -> list[Step]:
        """The steps, in order."""
        return [item for item in self.body if isinstance(item, Step)]

    def append(self, step: Step) -> int:
        """Append a step; returns its number."""
        self.places.append(len(self.body))
        self.body.append(step)
        return len(self.places) - 1

    def bind(self, node: Node) -> Bind:
        """Build the `Bind` of a node: the symbols that a run reads from memory."""
        symbols, elements = node.attributes["symbols"], node.attributes["positions"]
        return Bind(self.root(node.inputs[0]), symbols, elements, node.origin)

    def call(self, node: Node) -> Step:
        """Build the step of a kernel call."""
        kernel = self.module.kernels[str(node.attributes["kernel"])]
        arguments = (*node.inputs, *node.outputs)
        by_name: Mapping[str, int] = node.attributes.get("displacements", {})
        displacements = tuple(by_name.get(buffer.name, 0) for buffer in kernel.params)
        if any(displacements):
            self.displacements[len(self.places)] = displacements
        self.stages[len(self.places)] = node.stages
        return Step(
            device_of(node),
            kernel.name,
            tuple(map(self.root, arguments)),
            len(node.outputs),
            tuple(s.name for s in kernel.symbols),
            reason=str(node.attributes.get("reason", "")),
            origin=node.origin,
        )

    def branches(self, node: Node) -> None:
        """Append the steps of an `If`: `if`, the first branch, `else`, the second branch."""
        then, otherwise = (self.module.functions[name] for name in node.attributes["functions"])
        split = 1 + len(then.inputs)
        start = self.control(node, node.inputs[:1])
        self.enter(then, node.inputs[1:split])
        middle = self.control(node, ())
        self.enter(otherwise, node.inputs[split:])
        self.decide(start, Control("if", middle + 1))
        self.decide(middle, Control("else", len(self.places)))

    def host_branches(self, node: Node) -> None:
        """Append an `If` that the host executes:

        jump else, unless the condition; the first branch; move its results; jump end
        else: the second branch; move its results
        end: measure the results
        """
        then, otherwise = (self.module.functions[name] for name in node.attributes["functions"])
        split = 1 + len(then.inputs)
        start = self.reserve()
        self.enter(then, node.inputs[1:split])
        self.move(then, then.outputs, node.outputs)
        middle = self.reserve()
        self.body[start] = JumpUnless(len(self.body), self.root(node.inputs[0]))
        self.enter(otherwise, node.inputs[split:])
        self.move(otherwise, otherwise.outputs, node.outputs)
        self.body[middle] = Jump(len(self.body))
        self.measure(node, 0, len(node.outputs))

    def host_loop(self, node: Node, outer: Function) -> None:
        """Append a `Loop` of `outer` that the host executes. Its first value says if an iteration
        follows:

        move the initial values; make the lists of the scans empty
        head: measure the values; jump end, unless the first is true
        the body; collect its slices; move its results; jump head
        end: stack the lists, and measure them
        """
        (body,) = (self.module.functions[name] for name in node.attributes["functions"])
        carried, places = int(node.attributes["carried"]), node.attributes["places"]
        states, scans = node.outputs[:carried], node.outputs[carried:]
        self.move(outer, node.inputs[1 : 1 + carried], states)
        self.body += map(BeginList, scans)
        head = len(self.body)
        self.measure(node, 0, carried)
        exit_ = self.reserve()
        self.enter(body, (*states, *node.inputs[1 + carried :]))
        slices = body.outputs[carried:]
        shapes = [to_shape(value_type(body, value).shape) for value in slices]
        for scan, value, shape in zip(scans, slices, shapes, strict=True):
            self.body.append(Collect(scan, self.root(value), shape))
        self.move(body, body.outputs[:carried], states)
        self.body.append(Jump(head))
        self.body[exit_] = JumpUnless(len(self.body), states[0])
        for scan, shape, (axis, _) in zip(scans, shapes, places, strict=True):
            self.body.append(Stack(scan, axis % (len(shape) + 1), shape))
        self.measure(node, carried, len(node.outputs))

    def reserve(self) -> int:
        """Append a jump whose target is not known yet; returns its position in the body."""
        self.body.append(Jump(len(self.body)))
        return len(self.body) - 1

    def move(self, function: Function, values: Sequence[str], targets: Sequence[str]) -> None:
        """Append a `Move` of the values of a function."""
        shapes = tuple(to_shape(value_type(function, value).shape) for value in values)
        self.body.append(Move(tuple(map(self.root, values)), tuple(targets), shapes))

    def measure(self, node: Node, first: int, last: int) -> None:
        """Append the segments that bind symbols of a control node, from the sizes of some of its
        results.
        """
        symbols, types = set(node.attributes["symbols"]), node.attributes["types"]
        for value, type_ in zip(node.outputs[first:last], types[first:last], strict=True):
            axes = {s.name: axis for axis, s in enumerate(type_.shape) if isinstance(s, Var)}
            new = {name: axis for name, axis in axes.items() if name in symbols}
            symbols -= new.keys()
            if new:
                self.body.append(Measure(value, tuple(new), tuple(new.values())))

    def loop(self, node: Node) -> None:
        """Append the steps of a `Loop`: `loop`, the body, `next`.

        Carried values are in the buffers of the loop's outputs.
        """
        (body,) = (self.module.functions[name] for name in node.attributes["functions"])
        symbol, trips = node.attributes["symbol"].name, node.attributes["trips"]
        trips = None if trips is None else to_size(trips)
        carried = node.attributes["carried"]
        condition = node.inputs[:1] if node.inputs[0] else ()
        start = self.control(node, condition)
        self.enter(body, (*node.outputs[:carried], *node.inputs[1 + carried :]))
        end = self.control(node, condition)
        self.decide(start, Control("loop", end + 1, symbol, trips))
        self.decide(end, Control("next", start + 1, symbol, trips))

    def enter(self, function: Function, values: Sequence[str]) -> None:
        """Append the steps of a function, with these values as its inputs."""
        self.roots |= {n: self.root(v) for n, v in zip(function.inputs, values, strict=True)}
        self.function(function)

    def control(self, node: Node, condition: Sequence[str]) -> int:
        """Append a step that `decide` completes; returns its number."""
        arguments = tuple(self.root(v) for v in condition)
        return self.append(Step(device_of(node), "", arguments, 0, origin=node.origin))

    def decide(self, number: int, control: Control) -> None:
        """Complete the control step of this number."""
        step = self.body[self.places[number]]
        assert isinstance(step, Step)
        step = structs.replace(step, kernel=control.kind, control=control)
        self.body[self.places[number]] = step


def buffers_of(item: Step | HostSegment) -> tuple[str, ...]:
    """The buffers that an item of a body uses."""
    if isinstance(item, Step):
        return item.arguments
    return (*read_by_host(item), *written_by_host(item))


def device_of(node: Node) -> Device:
    device: Device = node.attributes["device"]
    return device
