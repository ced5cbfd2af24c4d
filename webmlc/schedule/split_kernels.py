"""Kernels that cannot be compiled as one become several.

In: a lowered module, and a test that a kernel must pass. Out: the same module, whose kernels pass
it. A GPU dispatch cannot wait for all its workgroups, so where blocks need whole results of others
(a mean over all elements, then a map over them) no rule schedules the kernel; on the CPU, scratch
memory has a fixed size, so intermediates of symbolic size need a place in the memory plan. Such a
kernel is cut between blocks, and the buffers in between become values of the graph.

    call_kernel(norm; x -> y)   ->   call_kernel(norm_part0; x -> mean)
                                     call_kernel(norm_part1; x, mean -> y)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
from webmlc.schedule.analysis import updates_others
from webmlc.schedule.rules import match_kernel

Test = Callable[[LoopFunction, Machine], bool]


def fits_dispatch(function: LoopFunction, machine: Machine) -> bool:
    """True where one dispatch computes the kernel: some rule schedules it, no reduction folds the
    results of another, which are many workgroups' work (`factor_reductions`), and nothing stands
    beside updates.
    """
    if _folds_results(function) or updates_others(function):
        return False
    return match_kernel(name_dimensions(function).function, machine) is not None


def _folds_results(function: LoopFunction) -> bool:
    folds = [b for b in blocks(function.body) if any(a.kind == "reduce" for a in b.axes)]
    makers = {store.buffer.name: fold for fold in folds for store in stores(fold.body)}
    for fold in folds:
        reduced = {axis.var for axis in fold.axes if axis.kind == "reduce"}
        for load in loads(fold.body):
            used = {var for index in load.indices for var in variables(index)}
            if makers.get(load.buffer.name, fold) is not fold and used & reduced:
                return True
    return False


def split_kernels(module: Module, machine: Machine, passes: Test) -> Module:
    """needs: `call_kernel` nodes. guarantees: the same results; every kernel on `machine`'s device
    that can be cut any further `passes`.
    """
    splitter = _Splitter(machine, passes, dict(module.kernels))
    functions = {}
    for name, function in module.functions.items():
        nodes: list[Node] = []
        types = dict(function.types)
        for node in function.nodes:
            if node.op != "call_kernel" or node.attributes["device"] != machine.name:
                nodes.append(node)
                continue
            nodes += splitter.calls(node, types, name)
        functions[name] = replace(function, nodes=tuple(nodes), types=types)
    return replace(module, functions=functions, kernels=splitter.kernels)


@dataclass(slots=True)
class _Splitter:
    """The kernels so far, and the parts of those that were cut."""

    machine: Machine
    passes: Test
    kernels: dict[str, LoopFunction]
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def calls(self, node: Node, types: dict[str, TensorType], where: str) -> list[Node]:
        """The calls that a call in function `where` stands for; adds the types of the values
        between them.
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
            own = tuple(b.name for b in kernel.params[:split] if b.name in constants)
            attributes = {**node.attributes, "kernel": part, "constants": own}
            result.append(replace(node, inputs=inputs, outputs=outputs, attributes=attributes))
        return result

    def cut(self, function: LoopFunction) -> tuple[str, ...]:
        """The names of the kernels that compute `function` in turn: itself where it can stay."""
        nests = function.body.statements if isinstance(function.body, Seq) else (function.body,)
        if len(nests) == 1 or self.passes(function, self.machine):
            return (function.name,)
        groups: list[list[Stmt]] = []
        for nest in nests:
            if groups:
                merged = _part(function, [*groups[-1], nest], nests)
                if self.passes(merged, self.machine):
                    groups[-1].append(nest)
                    continue
            groups.append([nest])
        names = []
        for number, group in enumerate(groups):
            part = replace(_part(function, group, nests), name=f"{function.name}_part{number}")
            self.kernels[part.name] = part
            names.append(part.name)
        return tuple(names)


def _part(function: LoopFunction, group: Sequence[Stmt], nests: Sequence[Stmt]) -> LoopFunction:
    """The kernel of some of a function's nests: what others made is its input, what others read is
    its output.
    """
    body = seq(*group)
    chosen = {id(nest) for nest in group}
    own = {s.buffer.name for s in stores(body)}
    read = {load.buffer.name for load in loads(body)}
    elsewhere = {
        load.buffer.name for nest in nests if id(nest) not in chosen for load in loads(nest)
    }
    results = {b.name for b in function.params[len(function.params) - function.outputs :]}
    every = (*function.params, *function.allocations)
    inputs = [b for b in every if b.name in read - own]
    outputs = [b for b in every if b.name in own and b.name in results | elsewhere]
    kept = tuple(b for b in function.allocations if b.name in own and b not in outputs)
    part = replace(
        function,
        params=(*inputs, *outputs),
        outputs=len(outputs),
        allocations=kept,
        body=body,
    )
    return replace(part, symbols=tuple(s for s in function.symbols if s.name in _used(part)))


def _used(function: LoopFunction) -> set[str]:
    """The names of all variables in a function."""
    roots = [d for b in (*function.params, *function.allocations) for d in b.shape]
    for stmt in walk_statements(function.body):
        roots += expressions(stmt)
    return {v.name for root in roots for v in variables(root)}
