"""Lower a node whose operator is a kernel that people wrote or scheduled (`Operator.is_apart`).

In: the body of a `fused` node that holds this node alone. Out: its kernel, as people wrote it, with
the parameters where the values lie:

    kernel(A[4, 8], B[4, 8])             ->  kernel(A[4, 8], B[9, 8])
      B[i, j] = A[i, j]                        B[i + n, j] = A[i, j]
    with B in %y[n, 0] of 9 rows

The schedule of a kernel is applied last, and names the loops and blocks of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from webmlc.core.expr import Expr
from webmlc.core.rewrite import rewrite, substitute
from webmlc.graph.compute import Tensor
from webmlc.graph.ir import Function, Node, Region
from webmlc.graph.ops.operator import Scope
from webmlc.graph.rewrite.meaning import compute_node, reported, row_of
from webmlc.loops.from_graph import Lowered, scalar_constant, symbols_in
from webmlc.loops.ir import (
    Buffer,
    Load,
    LoopFunction,
    Stmt,
    Store,
    accessed_buffers,
    map_accesses,
    map_expressions,
    map_statements,
)
from webmlc.loops.kernel_form import KernelForm
from webmlc.loops.places import Place, place_of
from webmlc.loops.stages import origin_of


def node_apart(body: Function) -> Node | None:
    """The node of a body that is a kernel of people's own; `None` for other bodies."""
    return next((node for node in body.nodes if row_of(node).is_apart), None)


def from_program(body: Function, node: Node, form: KernelForm) -> Lowered:
    """Lower a body whose only kernel is `node`, without the schedule of people's own."""
    custom = row_of(node).custom
    assert custom is not None, node.op
    with reported(node):
        function = custom.program(Scope.of(body).context(node))
    return _Placing(body, node, form, function).run()


def with_schedule(lowered: Lowered, node: Node, form: KernelForm) -> Lowered:
    """The kernel of a node with the schedule that its operator has for the form's device, if it has
    one. Raises `UserError` for a step that is refused.
    """
    custom = row_of(node).custom
    assert custom is not None, node.op
    schedule = custom.schedules.get(form.device)
    return lowered if schedule is None else replace(lowered, function=schedule(lowered.function))


@dataclass(slots=True)
class _Placing:
    """The places of a kernel's parameters. `buffers` maps a parameter to its buffer, and `memories`
    the start of a place to its buffer: two inputs with one start are one parameter. `elements`
    maps the parameters whose elements a build knows to these elements.
    """

    body: Function
    node: Node
    form: KernelForm
    function: LoopFunction
    buffers: dict[Buffer, Buffer] = field(default_factory=dict)
    places: dict[Buffer, Place] = field(default_factory=dict)
    memories: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    elements: dict[Buffer, Tensor] = field(default_factory=dict)

    def run(self) -> Lowered:
        inputs, outputs = self.inputs(), self.outputs()
        body = map_accesses(self.with_elements(self.function.body), self.moved)
        accessed = accessed_buffers(body)
        inputs = {buffer: value for buffer, value in inputs.items() if buffer in accessed}
        unread = (b for b in self.function.output_params() if b not in self.buffers)
        function = replace(
            self.function,
            name=self.body.name,
            params=(*inputs, *outputs.values()),
            outputs=len(outputs),
            allocations=(*self.function.allocations, *unread),
            body=map_statements(body, _in_stage),
            origin=origin_of(self.body.nodes),
            stages=(origin_of(self.body.nodes),),
        )
        displacements = {
            self.buffers[b].name: p.displacement for b, p in self.places.items() if p.displacement
        }
        function = replace(function, symbols=symbols_in(function))
        return Lowered(function, tuple(inputs.values()), displacements)

    def inputs(self) -> dict[Buffer, str]:
        """The value of each input parameter, by its buffer."""
        tensors = self.constant_tensors()
        values: dict[Buffer, str] = {}
        present = filter(None, self.node.inputs)
        for buffer, value in zip(self.function.input_params(), present, strict=True):
            if value in tensors:
                self.elements[buffer] = tensors[value]
                continue
            place = self.place(buffer, value)
            region = self.body.regions.get(value)
            start = (value if region is None else region.whole), place.displacement
            self.buffers[buffer] = self.memories.setdefault(start, self.buffers[buffer])
            values.setdefault(self.buffers[buffer], value)
        return values

    def outputs(self) -> dict[str, Buffer]:
        """The buffers of the body's outputs, in their order."""
        params = dict(zip(self.node.outputs, self.function.output_params(), strict=False))
        for value in self.body.outputs:
            self.place(params[value], value)
        return {value: self.buffers[params[value]] for value in self.body.outputs}

    def place(self, buffer: Buffer, value: str) -> Place:
        """Find the place of a parameter, and the buffer that holds it."""
        place = self.places[buffer] = place_of(value, self.body, self.form)
        is_whole = place.region is None
        self.buffers[buffer] = buffer if is_whole else replace(buffer, shape=place.buffer.shape)
        return place

    def moved(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Load | None:
        """The place of an access to a parameter."""
        if buffer not in self.buffers:
            return None
        region: Region | None = self.places[buffer].region
        return Load(self.buffers[buffer], indices if region is None else region.index(indices))

    def constant_tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the inputs that are numbers, or that only depend on symbols."""
        tensors = {v: scalar_constant(v, a) for v, a in self.body.constants.items() if a.size == 1}
        for node in self.body.nodes:
            if node is not self.node:
                results = compute_node(node, Scope.of(self.body), ())
                tensors |= dict(zip(node.outputs, results, strict=True))
        return tensors

    def with_elements(self, body: Stmt) -> Stmt:
        """The statement with the elements of known inputs in place of their loads."""

        def rule(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.buffer not in self.elements:
                return None
            tensor = self.elements[node.buffer]
            assert isinstance(tensor.body, Expr), tensor.name
            return substitute(tensor.body, dict(zip(tensor.axes, node.indices, strict=True)))

        return map_expressions(body, lambda root: rewrite(root, rule)) if self.elements else body


def _in_stage(stmt: Stmt) -> Stmt | None:
    """The statement in the only stage of its kernel."""
    return replace(stmt, stage=0) if isinstance(stmt, Store) else None
