"""Split kernels that cannot be compiled as one into several.

In: a lowered module, and a test that a kernel must pass. Out: the same module, whose kernels pass
it. On the GPU, a dispatch cannot wait for all its workgroups. No rule schedules a kernel in which
one block needs the whole result of another, such as a mean over all elements. On the CPU, scratch
memory has a fixed size, so intermediates of symbolic size need a place in the memory plan. Such a
kernel is cut between blocks, and the buffers between the parts become values of the graph.

    call_kernel(norm; x -> y)   ->   call_kernel(norm_part0; x -> mean)
                                     call_kernel(norm_part1; x, mean -> y)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from webmlc.core.machine import Machine
from webmlc.core.rewrite import variables
from webmlc.graph.ir import Module, Node, TensorType
from webmlc.loops.ir import (
    LoopFunction,
    Seq,
    Stmt,
    blocks,
    expressions,
    loads,
    seq,
    stores,
    walk_statements,
)
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.schedule.analysis import overwrites_others, updates_others
from webmlc.schedule.rules import match_kernel
from webmlc.schedule.rules.rule import Match

M = TypeVar("M", bound=Machine)
Test = Callable[[LoopFunction, M], bool]
"""True for a kernel that needs no split on the machine."""


def fits_dispatch(function: LoopFunction, machine: Machine) -> bool:
    """True where one dispatch computes the kernel, under four conditions. Some rule schedules it.
    No reduction reduces the results of another reduction, because many workgroups compute them
    (`factor_reductions`). No other statement stands beside updates, and no statement writes the
    results of another. The threads take no more iterations than `machine` allows, unless a dispatch
    for each nest would not help.
    """
    if _reduces_results(function) or updates_others(function) or overwrites_others(function):
        return False
    match = match_kernel(name_dimensions(function).function, machine)
    if match is None or match.is_bounded or match.rule.is_product:
        return match is not None
    apart = [_nest_match(function, nest, machine) for nest in range(len(_nests(function)))]
    return any(other is None or other.iterations >= match.iterations for other in apart)


def _nest_match(function: LoopFunction, nest: int, machine: Machine) -> Match | None:
    """The rule for one nest of a kernel alone, by the position of the nest."""
    part = _part(function, [nest], _nests(function), _reads(function))
    return match_kernel(name_dimensions(part).function, machine)


def _nests(function: LoopFunction) -> tuple[Stmt, ...]:
    """The statements between which a kernel may be cut."""
    return function.body.statements if isinstance(function.body, Seq) else (function.body,)


def _reads(function: LoopFunction) -> list[set[str]]:
    """The names of the buffers that each nest of a kernel reads."""
    return [{load.buffer.name for load in loads(nest)} for nest in _nests(function)]


def _reduces_results(function: LoopFunction) -> bool:
    """True where a reduction of the kernel reduces the results of another."""
    reductions = [b for b in blocks(function.body) if any(a.kind == "reduce" for a in b.axes)]
    producers = {store.buffer.name: fold for fold in reductions for store in stores(fold.body)}
    for fold in reductions:
        reduce_variables = {axis.var for axis in fold.axes if axis.kind == "reduce"}
        for load in loads(fold.body):
            index_variables = {var for index in load.indices for var in variables(index)}
            if (
                producers.get(load.buffer.name, fold) is not fold
                and index_variables & reduce_variables
            ):
                return True
    return False


def split_kernels(module: Module, machine: M, passes: Test[M]) -> Module:
    """needs: `call_kernel` nodes. guarantees: the same results. Every kernel on `machine`'s device
    passes the test `passes`, or cannot be cut any further. A kernel with a schedule stays whole.
    """
    splitter = _Splitter(machine, passes, dict(module.kernels))
    functions = {}
    for name, function in module.functions.items():
        nodes: list[Node] = []
        types = dict(function.types)
        for node in function.nodes:
            if node.op != "call_kernel" or node.attributes["device"] != machine.device:
                nodes.append(node)
                continue
            nodes += splitter.calls(node, types, name)
        functions[name] = replace(function, nodes=tuple(nodes), types=types)
    return replace(module, functions=functions, kernels=splitter.kernels)


@dataclass(slots=True)
class _Splitter(Generic[M]):
    """The kernels so far, and the names of the parts of each kernel that was cut."""

    machine: M
    passes: Test[M]
    kernels: dict[str, LoopFunction]
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def calls(self, node: Node, types: dict[str, TensorType], where: str) -> list[Node]:
        """The calls that replace a call in the function named `where`. Adds the types of the values
        between them to `types`.
        """
        name = str(node.attributes["kernel"])
        if name not in self.parts:
            self.parts[name] = self.cut(self.kernels[name])
        names = self.parts[name]
        if names == (name,):
            return [node]
        function = self.kernels[name]
        arguments = zip(function.params, (*node.inputs, *node.outputs), strict=True)
        values = {buffer.name: value for buffer, value in arguments}
        for buffer in function.allocations:
            values[buffer.name] = f"{where}/{node.outputs[0]}/{buffer.name}"
        constants = set(node.attributes["constants"])
        result: list[Node] = []
        for part in names:
            kernel = self.kernels[part]
            split = len(kernel.params) - kernel.outputs
            inputs = tuple(values[b.name] for b in kernel.params[:split])
            outputs = tuple(values[b.name] for b in kernel.params[split:])
            for buffer in kernel.params[split:]:
                types.setdefault(values[buffer.name], TensorType(buffer.dtype, buffer.shape))
            part_constants = tuple(b.name for b in kernel.params[:split] if b.name in constants)
            attributes = {**node.attributes, "kernel": part, "constants": part_constants}
            result.append(replace(node, inputs=inputs, outputs=outputs, attributes=attributes))
        return result

    def cut(self, function: LoopFunction) -> tuple[str, ...]:
        """The names of the kernels that compute `function` in sequence: its own name if it needs no
        cut.
        """
        nests = _nests(function)
        is_whole = len(nests) == 1 or function.is_scheduled
        if is_whole or self.passes(function, self.machine):
            return (function.name,)
        reads = _reads(function)
        groups: list[list[int]] = []
        for position in range(len(nests)):
            if groups:
                larger_part = _part(function, [*groups[-1], position], nests, reads)
                if self.passes(larger_part, self.machine):
                    groups[-1].append(position)
                    continue
            groups.append([position])
        names = []
        for number, group in enumerate(groups):
            part = _part(function, group, nests, reads)
            part = replace(part, name=f"{function.name}_part{number}")
            self.kernels[part.name] = part
            names.append(part.name)
        return tuple(names)


def _part(
    function: LoopFunction,
    group: Sequence[int],
    nests: Sequence[Stmt],
    reads: Sequence[Set[str]],
) -> LoopFunction:
    """The kernel of a group of a function's nests, by their positions. Buffers that other nests
    write are its inputs, and buffers that other nests read are its outputs. `reads` names the
    buffers that each nest reads.
    """
    body = seq(*(nests[position] for position in group))
    names_written = {s.buffer.name for s in stores(body)}
    names_read = set[str]().union(*(reads[position] for position in group))
    read_elsewhere = set[str]().union(
        *(names for position, names in enumerate(reads) if position not in group)
    )
    results = {b.name for b in function.output_params()}
    buffers = (*function.params, *function.allocations)
    inputs = [b for b in buffers if b.name in names_read - names_written]
    outputs = [b for b in buffers if b.name in names_written and b.name in results | read_elsewhere]
    allocations = tuple(
        b for b in function.allocations if b.name in names_written and b not in outputs
    )
    part = replace(
        function,
        params=(*inputs, *outputs),
        outputs=len(outputs),
        allocations=allocations,
        body=body,
    )
    return replace(
        part, symbols=tuple(s for s in function.symbols if s.name in _variable_names(part))
    )


def _variable_names(function: LoopFunction) -> set[str]:
    """The names of all variables in a function."""
    roots = [d for b in (*function.params, *function.allocations) for d in b.shape]
    for stmt in walk_statements(function.body):
        roots += expressions(stmt)
    return {v.name for root in roots for v in variables(root)}
