"""Read an input once into registers, if several loops over threads read the same elements.

Needs: a lowered kernel. Guarantees an equal kernel. If a thread reads an element of an input in
several loops over the same threads, it reads the element once, at the start of its workgroup's
work. The numbers of the thread and of the workgroup must decide the indices. No kernel writes its
inputs, so the element stays the same.

for b in workgroups:                         for b in workgroups:
    for t in threads:                            for thread_x in threads:
        S[t] = x[b, t] * x[b, t]                     x_once[()] = x[b, thread_x]
    T.barrier()                                  for t in threads:
    for u in range(64):             ->               S[t] = x_once[()] * x_once[()]
        R[()] = R[()] + S[u]                     T.barrier()
    for t in threads:                            for u in range(64):
        y[b, t] = x[b, t] * R[()]                    R[()] = R[()] + S[u]
                                                 for t in threads:
                                                     y[b, t] = x_once[()] * R[()]

Measured on an H100: a softmax of 16384 rows of 1024 elements that reads the rows once takes as long
as a copy of the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from webmlc.core.expr import Const, Expr, Var, as_int
from webmlc.core.rewrite import rewriter, substitute, variables
from webmlc.core.simplify import simplify
from webmlc.loops.ir import (
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
    loads_in,
    map_children,
    map_expressions,
    seq,
    stores,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.common_subexpressions import certain_reads
from webmlc.target.registers import read_register, register_index
from webmlc.target.scoped import Names, statements_of
from webmlc.target.webgpu.threads import map_sections

MOST_ELEMENTS = 32
"""Elements that a thread keeps, at most, in its 128 to 255 registers (chosen by hand: a row of 8192
elements for 256 threads)."""


@dataclass(frozen=True, slots=True)
class Read:
    """A read of an input. In its indices, variables are the numbers of the thread on each axis;
    `threads` names these axes, with the number of threads on each.
    """

    load: Load
    threads: tuple[tuple[str, int], ...]


def read_once(function: LoopFunction) -> LoopFunction:
    """Return `function` with registers for elements of inputs that several thread loops read."""
    outputs = {store.buffer.name for store in stores(function.body)}
    inputs = frozenset(buffer.name for buffer in function.params) - outputs
    names = Names.of(function)
    registers: list[Buffer] = []

    def rewrite(body: Stmt, scope: frozenset[Var]) -> Stmt:
        section = _Section(inputs, scope)
        section.choose(body, names)
        registers.extend(section.registers.values())
        return seq(*section.first_reads(), section.replaced(body)) if section.registers else body

    body = map_sections(function, rewrite)
    return replace(function, body=body, allocations=(*function.allocations, *registers))


@dataclass(slots=True)
class _Section:
    """The work of a workgroup, which reads `inputs`, and the registers that hold their elements.
    The variables of `scope` have a value where the section starts.
    """

    inputs: Set[str]
    scope: Set[Var]
    registers: dict[Read, Buffer] = field(default_factory=dict)

    def choose(self, body: Stmt, names: Names) -> None:
        """Give a register to each element that several nests of loops read."""
        nests = Counter[Read]()
        for nest in _nests(body):
            nests.update(list(dict.fromkeys(self.reads(nest))))
        room = MOST_ELEMENTS
        for read, count in nests.items():
            load = read.load
            if count > 1 and load.lanes <= room:
                room -= load.lanes
                shape = () if load.lanes == 1 else (Const(load.lanes),)
                name = names.fresh(f"{load.buffer.name}_once")
                self.registers[read] = Buffer(name, shape, load.dtype, "local")

    def reads(self, nest: For) -> Iterator[Read]:
        """The reads of inputs that every thread of a nest performs, if their indices are known
        where the section starts.
        """
        axes, body = _threads(nest)
        for expr in _certain_expressions(body):
            certain = certain_reads(expr)
            for load in loads_in(expr):  # in their order, which the registers have, too
                read = self.read_of(load, axes) if load in certain else None
                if read is not None:
                    yield read

    def read_of(self, load: Expr, axes: Mapping[Var, tuple[str, int]]) -> Read | None:
        """A load as a read of an input; `None` for other loads."""
        if not isinstance(load, Load) or load.buffer.name not in self.inputs:
            return None
        used = {var for index in load.indices for var in variables(index)}
        if not used <= self.scope | axes.keys() or load.lanes not in (1, VECTOR_LANES):
            return None
        numbers: dict[Var, Expr] = {var: Var(axis) for var, (axis, _) in axes.items()}
        indices = tuple(simplify(substitute(index, numbers)) for index in load.indices)
        return Read(Load(load.buffer, indices), tuple(sorted(axes.values())))

    def first_reads(self) -> Iterator[Stmt]:
        """The loops over threads that read each element."""
        for threads in dict.fromkeys(read.threads for read in self.registers):
            numbers = {axis: Var(f"thread_{axis[-1]}") for axis, _ in threads}
            names: dict[Var, Expr] = {Var(axis): var for axis, var in numbers.items()}
            nest = seq(
                *(
                    Store(register, register_index(register), substitute(read.load, names))
                    for read, register in self.registers.items()
                    if read.threads == threads
                )
            )
            for axis, count in threads:
                nest = For(numbers[axis], Const(count), nest, "thread_binding", axis)
            yield nest

    def replaced(self, stmt: Stmt) -> Stmt:
        """The section with its registers in place of the reads."""
        match stmt:
            case Seq() | Let():
                return map_children(stmt, self.replaced)
            case For(thread=str()):
                axes, _ = _threads(stmt)

                def rule(node: Expr) -> Expr | None:
                    read = self.read_of(node, axes)
                    register = None if read is None else self.registers.get(read)
                    return None if register is None else read_register(register)

                return map_expressions(stmt, rewriter(rule))
        return stmt


def _nests(body: Stmt) -> Iterator[For]:
    """The nests of loops over threads of a section, in order."""
    for stmt in statements_of(body):
        if isinstance(stmt, For) and stmt.thread is not None:
            yield stmt


def _threads(nest: For) -> tuple[dict[Var, tuple[str, int]], Stmt]:
    """The axis and the count of each variable of a nest over threads, and the body."""
    axes: dict[Var, tuple[str, int]] = {}
    stmt: Stmt = nest
    while isinstance(stmt, For) and stmt.thread is not None:
        count = as_int(stmt.extent)
        if count is not None:
            axes[stmt.var] = stmt.thread, count
        stmt = stmt.body
    return axes, stmt


def _certain_expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions that a thread evaluates in any case, and once."""
    match stmt:
        case Seq(statements=statements):
            for child in statements:
                yield from _certain_expressions(child)
        case Let(body=body):
            yield from expressions(stmt)
            yield from _certain_expressions(body)
        case Store() | If():
            yield from expressions(stmt)
