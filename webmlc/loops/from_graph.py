"""Lower a fused graph function to one naive loop function.

In: the body of a `fused` node, a graph `Function` with inferred types. Out: a `LoopFunction`. It
has a block for each stage that needs a buffer: reductions, outputs, and values too expensive to
compute twice. A scatter has two blocks: one writes its initial value, the other updates it. Every
other pointwise stage is inlined into its readers. There is no schedule: loops are serial, in the
order of the axes.

    %y = Relu(Conv(%x, %w))  ->  block "conv" (reduction into a temporary), block "relu" (writes %y)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from operator import and_

import numpy as np

from webmlc.core.bounds import Interval
from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Cast, Const, Expr, Var, as_int, const
from webmlc.core.machine import EXPENSIVE_COST
from webmlc.core.rewrite import substitute, unfold, variables, walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.simplify import simplify
from webmlc.graph.compute import (
    Read,
    ReduceAxis,
    Reduction,
    Scatter,
    Tensor,
    compute,
    placeholder,
    stages_of,
)
from webmlc.graph.fuse.choose_padding import is_constant
from webmlc.graph.ir import Function, Node, Region, TensorType
from webmlc.graph.ops.operator import Scope
from webmlc.graph.rewrite.meaning import MAPS, compute_node, kind_of, parts_of_node
from webmlc.graph.rewrite.parts import Part, part_of
from webmlc.loops.ir import (
    Axis,
    Buffer,
    LoopFunction,
    Stmt,
    Store,
    bound_variables,
    expressions,
    loads,
    seq,
    stores,
    walk_statements,
)
from webmlc.loops.kernel_form import CPU_FORM, KernelForm
from webmlc.loops.places import Place, place_of
from webmlc.loops.stages import StageNest, StageNodes, origin_of

_HALVES = (DType.float16, DType.bfloat16)
_MAX_PARTS = 8
"""Write the elementwise consumer of a value part by part only if it has at most this many parts.

Each part adds a block, but removes a test from the innermost loop. Chosen by hand.
"""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A loop function, and the inputs of the body that its input parameters stand for, in order.

    `displacements` are the bytes from the start of the memory of a parameter's buffer to the
    address that the parameter needs, by the parameter's name. A missing displacement is 0.
    """

    function: LoopFunction
    inputs: tuple[str, ...]
    displacements: Mapping[str, int]


def from_graph(body: Function, name: str, form: KernelForm = CPU_FORM) -> Lowered:
    """Lower one fused function.

    The parameters are `in0, in1, ...` (the inputs that are read at run time, in order), then
    `out0, ...`. Their names do not depend on the model, so equal kernels are equal functions. An
    input that only shapes the code (axes, pads) is not a parameter.

    On the CPU, operators that join parts (Concat, Pad) write each part in a separate block, and so
    do elementwise consumers of their results. Expensive values that several stages read are stored.
    A GPU dispatch cannot wait for all its threads between blocks, so a GPU kernel computes each
    value where it is read. If an input or output is a region of a larger value, the parameter is a
    buffer that holds the whole larger value (`webmlc/loops/places.py`). Two parts of one value are
    one parameter, because a GPU binds a buffer once.
    """
    return _Lowering(body, name, form, symbols=_symbol_names(body)).run()


@dataclass(slots=True)
class _Lowering:
    """The state of one lowering: the tensor of each value, and the buffers of tensors. `symbols`
    are names that no stage may have.
    """

    body: Function
    name: str
    form: KernelForm
    tensors: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[Tensor, Buffer] = field(default_factory=dict)
    stage_names: dict[Tensor, str] = field(default_factory=dict)
    allocations: list[Buffer] = field(default_factory=list)
    symbols: frozenset[str] = frozenset()
    stages: StageNodes = field(init=False)

    def __post_init__(self) -> None:
        self.stages = StageNodes(self.body.nodes)

    def run(self) -> Lowered:
        values = (*self.body.inputs, *self.body.outputs)
        places = {v: place_of(v, self.body, self.form) for v in values}
        placeholders: dict[str, Tensor] = {}
        memories: dict[tuple[str, int], Tensor] = {}
        for value in self.body.inputs:
            place = places[value]
            memory = placeholder(value, place.buffer.shape, place.buffer.dtype)
            placeholders[value] = memories.setdefault(self.start(value, place), memory)
            self.tensors[value] = place.part(placeholders[value], self.body.type(value))
        for value, array in self.body.constants.items():
            if array.size == 1:
                self.tensors[value] = placeholders[value] = scalar_constant(value, array)
        if all(self.body.type(v).is_empty for v in self.body.outputs):
            self.tensors |= {v: _empty(self.body.type(v)) for v in self.body.outputs}
            parts: dict[str, tuple[Part, ...]] = {}
        else:
            parts = self.compute_nodes()
        for value in self.body.outputs:
            if places[value].region is not None:
                parts[value] = places[value].parts(self.tensors.get(value), parts.get(value, ()))
        roots = [self.tensors[v] for v in self.body.outputs if v not in parts]
        order = stages_of((*roots, *(part.tensor for group in parts.values() for part in group)))
        distinct = {placeholders[v]: v for v in reversed(self.body.inputs)}
        read_inputs = [
            v for v in self.body.inputs if v in distinct.values() and placeholders[v] in order
        ]
        inputs = _parameters("in", [places[v] for v in read_inputs])
        self.buffers.update(zip((placeholders[v] for v in read_inputs), inputs, strict=True))
        outputs = _parameters("out", [places[v] for v in self.body.outputs])
        statements, needed = _remove_unread(self.emit_stages(order, outputs, parts), outputs)
        function = LoopFunction(
            self.name,
            (*inputs, *outputs),
            len(outputs),
            (),
            tuple(buffer for buffer in self.allocations if buffer in needed),
            seq(*statements),
            origin_of(self.body.nodes),
            self.stages.origins(),
        )
        arguments = zip(function.params, (*read_inputs, *self.body.outputs), strict=True)
        displacements = {b.name: n for b, v in arguments if (n := places[v].displacement)}
        function = replace(function, symbols=symbols_in(function))
        return Lowered(function, tuple(read_inputs), displacements)

    def start(self, value: str, place: Place) -> tuple[str, int]:
        """The start of an input's parameter: the value that has the memory, and an offset in bytes.
        Inputs with the same start are one parameter.
        """
        region = self.body.regions.get(value)
        return (value if region is None else region.whole), place.displacement

    def compute_nodes(self) -> dict[str, tuple[Part, ...]]:
        """Compute the tensors of every node's outputs.

        Returns the parts of each output of the function that is written part by part.
        """
        parts: dict[str, tuple[Part, ...]] = {}
        scope = Scope.of(self.body)
        for position, node in enumerate(self.body.nodes):
            inputs = tuple(self.tensors.get(i) for i in node.inputs)
            output = node.outputs[0]
            in_parts = self.form.runs_blocks_in_order or self.pads_results(node, inputs)
            node_parts = parts_of_node(node, scope, inputs) if in_parts else None
            if node_parts is not None:
                parts[output] = node_parts
                self.stages.own(position, [part.tensor for part in node_parts])
                if output in self.body.outputs:
                    continue
            results = compute_node(node, scope, inputs)
            self.stages.own(position, results)
            for value, tensor in zip(node.outputs, results, strict=False):
                if value:
                    self.tensors[value] = tensor
            source = next((i for i in node.inputs if self.is_map_of(node, i, parts)), None)
            if source is not None:
                whole = self.tensors[output]
                parts[output] = tuple(
                    Part(part_of(whole.name, whole, p.region, p.tensor.shape), p.region)
                    for p in parts[source]
                )
                self.stages.own(position, [part.tensor for part in parts[output]])
        return {value: group for value, group in parts.items() if value in self.body.outputs}

    def pads_results(self, node: Node, inputs: Sequence[Tensor | None]) -> bool:
        """True if the node pads the results of a stage of this kernel, such as a reduction, with a
        constant: then the slabs around them need no other thread's results.
        """
        is_last = node.outputs[0] in self.body.outputs
        if not is_last or not is_constant(node) or inputs[0] is None:
            return False
        stages = stages_of((inputs[0],))
        return any(isinstance(stage.body, Reduction) or stage.is_stored for stage in stages)

    def is_map_of(self, node: Node, value: str, parts: Mapping[str, tuple[Part, ...]]) -> bool:
        """True if the node maps `value` element by element, and it has at most `_MAX_PARTS`."""
        if kind_of(node) not in MAPS or not 0 < len(parts.get(value, ())) <= _MAX_PARTS:
            return False
        return self.body.type(value).shape == self.body.type(node.outputs[0]).shape

    def emit_stages(
        self,
        order: list[Tensor],
        outputs: tuple[Buffer, ...],
        parts: Mapping[str, tuple[Part, ...]],
    ) -> list[Stmt]:
        """Emit blocks for stages with a buffer, producers first, then for outputs in parts."""
        for value, buffer in zip(self.body.outputs, outputs, strict=True):
            if value not in parts:
                self.buffers.setdefault(self.tensors[value], buffer)
        readers = _count_readers(order)
        statements: list[Stmt] = []
        for tensor in order:
            if tensor not in self.buffers and self.must_exist(tensor, readers):
                self.buffers[tensor] = Buffer(self.stage_name(tensor), tensor.shape, tensor.dtype)
                self.allocations.append(self.buffers[tensor])
            if tensor in self.buffers and tensor.body is not None:
                statements += self.emit_tensor(tensor, self.buffers[tensor])
        for value, buffer in zip(self.body.outputs, outputs, strict=True):
            if value in parts:
                for part in parts[value]:
                    statements += self.emit_tensor(part.tensor, buffer, part.region)
            elif (
                self.buffers[self.tensors[value]] is not buffer
            ):  # an input, or one value returned twice
                statements += self.emit_tensor(_copy(self.tensors[value]), buffer)
        return statements

    def must_exist(self, tensor: Tensor, readers: Mapping[Tensor, list[Tensor]]) -> bool:
        """True if a stage needs a buffer.

        A reduction or a scatter does, a stage whose operator asks for a buffer (`is_stored`), and
        an expensive stage that would be computed repeatedly.
        """
        if isinstance(tensor.body, Reduction | Scatter) or tensor.is_stored:
            return True
        if not self.form.runs_blocks_in_order:
            return False
        if tensor.body is None or not _is_expensive(tensor.body):
            return False
        users = readers.get(tensor, [])
        reductions = [u.body for u in users if isinstance(u.body, Reduction)]
        return bool(reductions) and len(users) > 1

    def stage_name(self, tensor: Tensor) -> str:
        """The name of a tensor's block and buffer: the tensor's name, unique in this function. No
        symbol has this name, or the name of a loop or an axis of the stage.
        """
        if tensor not in self.stage_names:
            names = set(self.stage_names.values())
            candidates = (f"{tensor.name}{n}" if n > 1 else tensor.name for n in count(1))
            self.stage_names[tensor] = next(
                name
                for name in candidates
                if name not in names and not any(_is_of_stage(s, name) for s in self.symbols)
            )
        return self.stage_names[tensor]

    def emit_tensor(
        self, tensor: Tensor, buffer: Buffer, region: Region | None = None
    ) -> list[Stmt]:
        """Emit the loop nests that write `tensor` into `buffer`, or into a region of it."""
        spatial = tuple(map(ReduceAxis, tensor.axes, tensor.shape))
        name = self.stage_name(tensor)
        stage = self.stages.begin(tensor, self.buffers)
        match tensor.body:
            case Scatter() as updates:
                assert region is None, tensor.name
                nests = [self.emit_updates(f"{name}_updates", updates, buffer, stage)]
                if updates.initial is not None:
                    initial = replace(tensor, body=updates.initial)
                    self.stage_names[initial] = name
                    self.stages.own_as(tensor, initial)
                    nests = [*self.emit_tensor(initial, buffer), *nests]
                return nests
            case Reduction() as reduction:
                nest = StageNest(name, spatial, reduction.axes)
            case _:
                nest = StageNest(name, spatial, ())
        target: tuple[Expr, ...] = tuple(nest.axis_vars[var] for var in tensor.axes)
        ranges: dict[Var, Interval] = {}
        if region is not None:
            target = region.index(target)
            ranges = _ranges(nest.axes)
        if isinstance(tensor.body, Reduction):
            value = self.lower(tensor.body.value, nest.axis_vars)
            combined = Call(tensor.body.combine, (buffer[target], value), tensor.dtype)
            init = Store(buffer, target, tensor.body.init, stage)
            return [nest.around(Store(buffer, target, combined, stage), init)]
        assert isinstance(tensor.body, Expr)
        value = simplify(self.lower(tensor.body, nest.axis_vars), ranges)
        return [nest.around(Store(buffer, target, value, stage))]

    def emit_updates(self, name: str, updates: Scatter, buffer: Buffer, stage: int) -> Stmt:
        """Emit the loop nest of a scatter's updates; a predicate guards targets outside the buffer.

        The axes of the updates are reduce axes, because the updates run in order. A GPU runs them
        in parallel if their order matters only for equal targets.
        """
        in_order = self.form.runs_blocks_in_order or updates.is_ordered
        slices = updates.slices if in_order else (*updates.slices, *updates.axes)
        nest = StageNest(name, slices, updates.axes if in_order else ())
        self.buffers[updates.state] = buffer
        target = tuple(self.lower(index, nest.axis_vars) for index in updates.target)
        value = self.lower(updates.value, nest.axis_vars)
        if updates.combine is not None:
            value = Call(updates.combine, (buffer[target], value), buffer.dtype)
        full_ranges = {(axis.var, axis.extent) for axis in nest.axes}
        limits = zip(target, buffer.shape, strict=True)
        conditions = [c for i, n in limits if (i, n) not in full_ranges for c in (i >= 0, i < n)]
        always = const(True, DType.bool)
        condition = simplify(reduce(and_, conditions, always), _ranges(nest.axes))
        return nest.around(
            Store(buffer, target, value, stage),
            predicate=None if condition == always else condition,
        )

    def lower(self, value: Expr, axis_vars: Mapping[Var, Expr]) -> Expr:
        """Rewrite `value` over block axes.

        A read of a stage with a buffer becomes a load. A read of any other stage becomes its body.
        """

        def rule(node: Expr) -> Expr | None:
            match node:
                case Var():
                    return axis_vars.get(node)
                case Read(tensor=tensor, indices=indices):
                    return self.buffers[tensor][indices]
                case Cast(value=Cast(value=inner, dtype=small), dtype=DType.float32) if (
                    small in _HALVES and inner.dtype is DType.float32
                ):
                    return inner  # values inside a kernel are not rounded to half precision
            return None

        def definition(node: Expr) -> Expr | None:
            match node:
                case Read(tensor=tensor, indices=indices) if tensor not in self.buffers:
                    assert isinstance(tensor.body, Expr), tensor.name
                    return substitute(tensor.body, dict(zip(tensor.axes, indices, strict=True)))
            return None

        return simplify(unfold(value, rule, definition, simplify))


def _remove_unread(
    statements: Sequence[Stmt], outputs: Sequence[Buffer]
) -> tuple[list[Stmt], set[Buffer]]:
    """Remove the blocks whose results nothing reads. Returns the remaining blocks, and the buffers
    in use.

    Simplification removes reads (x ≥ x is true), after which a block may have no reader.
    """
    buffers, used = set(outputs), list[Stmt]()
    for stmt in reversed(statements):
        if any(store.buffer in buffers for store in stores(stmt)):
            buffers.update(load.buffer for load in loads(stmt))
            used.append(stmt)
    return used[::-1], buffers


def _parameters(prefix: str, places: Sequence[Place]) -> tuple[Buffer, ...]:
    """The parameters of a kernel that are the buffers of these places."""
    types = (place.buffer for place in places)
    return tuple(Buffer(f"{prefix}{p}", t.shape, t.dtype) for p, t in enumerate(types))


def _empty(tensor_type: TensorType) -> Tensor:
    """A tensor without elements, which needs no computation."""
    zero = Const(tensor_type.dtype.numpy.type(0).item(), tensor_type.dtype)
    return compute("nothing", tensor_type.shape, lambda *_: zero)


def scalar_constant(value: str, array: np.ndarray) -> Tensor:
    """Convert a one-element constant to a pointwise tensor, which becomes a literal in the code."""
    dtype = DType.of(array.dtype)
    axes = tuple(Var(f"constant_{d}") for d in range(array.ndim))
    return Tensor(
        "constant", tuple(Const(s) for s in array.shape), dtype, axes, Const(array.item(), dtype)
    )


def _ranges(axes: Sequence[Axis]) -> dict[Var, Interval]:
    """The interval of every axis whose extent is a number."""
    sizes = ((axis.var, as_int(axis.extent)) for axis in axes)
    return {var: Interval(0, size - 1) for var, size in sizes if size}


def _copy(tensor: Tensor) -> Tensor:
    axes = tuple(Var(f"copy_{d}") for d in range(tensor.rank))
    return Tensor("copy", tensor.shape, tensor.dtype, axes, tensor[axes])


def _symbol_names(body: Function) -> frozenset[str]:
    """The names of the symbols that a kernel of this body may have."""
    shapes = (type_.shape for type_ in body.types.values())
    values = Scope.of(body).values.values()
    elements = (e for value in values for e in value.reshape(-1).tolist() if isinstance(e, Expr))
    sizes = (*(size for shape in shapes for size in shape), *elements)
    return frozenset(var.name for size in sizes for var in variables(size))


def _is_of_stage(symbol: str, stage: str) -> bool:
    """True if a symbol has the name of a stage, or a name that begins like its loops and axes."""
    return symbol == stage or symbol.startswith((f"{stage}_", f"v_{stage}_"))


def _count_readers(order: list[Tensor]) -> dict[Tensor, list[Tensor]]:
    readers: dict[Tensor, list[Tensor]] = {}
    for tensor in order:
        for source in tensor.sources:
            readers.setdefault(source, []).append(tensor)
    return readers


def _is_expensive(value: Expr) -> bool:
    return any(
        isinstance(node, Call) and SCALAR_OPERATORS[node.op].cost >= EXPENSIVE_COST
        for node in walk(value)
    )


def symbols_in(function: LoopFunction) -> tuple[Var, ...]:
    """The symbolic dimensions of the function, by name: the free variables of its shapes."""
    shapes = [d for b in (*function.params, *function.allocations) for d in b.shape]
    free = {v for d in shapes for v in variables(d)}
    for stmt in walk_statements(function.body):
        free.update(v for e in expressions(stmt) for v in variables(e))
    return tuple(sorted(free.difference(bound_variables(function.body)), key=lambda v: v.name))
