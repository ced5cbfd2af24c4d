"""Print a loop function as Python source over numpy arrays, for `loops.interp` to execute.

In: a `LoopFunction` and the value of each symbol. Out: the source of `kernel(buffers, ids)`, which
reads and writes the arrays in `buffers` by name. Symbols are literals in the source. Intervals
therefore decide at compile time which indices need a bounds check and which int32 results must
wrap. An index or int32 scalar is a Python `int`, and a bool is a Python `bool`. Any other scalar is
a numpy scalar of its dtype. A vector is a numpy array.

    for i in T.grid(8): B[i] = T.exp(A[i])    →    for v_i in range(8): b_B[v_i] = op_exp(b_A[v_i])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from webmlc.core.bounds import Interval, bounds
from webmlc.core.errors import InternalError
from webmlc.loops.ir import (
    THREAD_AXES,
    Barrier,
    Block,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    walk_statements,
)
from webmlc.loops.python_expressions import ExpressionPrinter, Value

_MAX_NESTED_LOOPS = 15
"""Put a loop into a separate function at this nesting depth.

CPython compiles at most 20 statically nested loops. The margin is chosen by hand.
"""


def is_lockstep(function: LoopFunction) -> bool:
    """True if the threads of a workgroup run in lock-step.

    They do in a kernel with a barrier, and in a lowered kernel with thread loops. Before lowering,
    a `thread_binding` loop runs as an ordinary loop, which is its meaning in a schedule.
    """
    kinds = [s for s in walk_statements(function.body) if isinstance(s, For | Barrier | Block)]
    if any(isinstance(s, Barrier) for s in kinds):
        return True
    threads = any(isinstance(s, For) and s.kind == "thread_binding" for s in kinds)
    return threads and not any(isinstance(s, Block) for s in kinds)


def launch_extents(function: LoopFunction, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The extents of the launch along `THREAD_AXES`.

    Each is the extent of the largest loop bound to the axis, or 1 if there is none.
    """
    ranges = {v: Interval(symbols[v.name], symbols[v.name]) for v in function.symbols}
    extents = dict.fromkeys(THREAD_AXES, 1)
    for stmt in walk_statements(function.body):
        if isinstance(stmt, For) and stmt.thread is not None:
            interval = bounds(stmt.extent, ranges)
            if not interval.is_point:
                raise InternalError(
                    f"interp: kernel {function.name}: loop {stmt.var.name} is bound to "
                    f"{stmt.thread} and its extent {stmt.extent} is not fixed at launch"
                )
            extents[stmt.thread] = max(extents[stmt.thread], int(interval.low))
    return tuple(extents.values())


def print_python(function: LoopFunction, symbols: Mapping[str, int]) -> str:
    """Print Python source that defines `kernel(buffers, ids)`.

    Raises `InternalError` for IR that has no meaning.
    """
    return _Printer(function, symbols).source()


class _Printer(ExpressionPrinter):
    """The printer of one function's statements."""

    def __init__(self, function: LoopFunction, symbols: Mapping[str, int]) -> None:
        super().__init__(function.name, {v: symbols[v.name] for v in function.symbols})
        self.function = function
        self.lockstep = is_lockstep(function)
        self.launch = dict(zip(THREAD_AXES, launch_extents(function, symbols), strict=True))
        self.nested = 0

    def source(self) -> str:
        for buffer in (*self.function.params, *self.function.allocations):
            self.emit(f"b_{buffer.name} = buffers[{buffer.name!r}]")
        self.statement(self.function.body)
        if self.lockstep:
            self.emit("yield from ()")
        return "\n".join(["def kernel(buffers, ids):", *self.lines, ""])

    @contextmanager
    def nest(self, head: str) -> Iterator[None]:
        self.emit(head)
        self.indent += 1
        yield
        self.indent -= 1

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(statements=()):
                self.emit("pass")
            case Seq(statements=statements):
                for child in statements:
                    self.statement(child)
            case Store():
                self.store(stmt)
            case For():
                self.loop(stmt)
            case If(condition=condition, then=then, otherwise=otherwise):
                with self.nest(f"if {self.expr(condition).text}:"):
                    self.statement(then)
                if otherwise is not None:
                    with self.nest("else:"):
                        self.statement(otherwise)
            case Let(var=var, value=value, body=body):
                bound_value = self.expr(value)
                if bound_value.lanes > 1:
                    raise InternalError(f"interp: kernel {self.name}: {var.name} is a vector")
                self.emit(f"v_{var.name} = {bound_value.text}")
                self.values[var] = Value(f"v_{var.name}", interval=bound_value.interval)
                self.statement(body)
            case Barrier():
                self.counter += 1
                self.emit(f"yield {self.counter}")
            case Block():
                self.block(stmt)

    def loop(self, loop: For) -> None:
        extent = self.expr(loop.extent)
        name = f"v_{loop.var.name}"
        last = max(extent.interval.high - 1, 0)
        self.values[loop.var] = Value(name, interval=Interval(0, last))
        if self.lockstep and loop.thread is not None:
            self.emit(f"{name} = ids[{THREAD_AXES.index(loop.thread)}]")
            if extent.interval.low >= self.launch[loop.thread]:
                self.statement(loop.body)
            else:
                with self.nest(f"if {name} < {extent.text}:"):
                    self.statement(loop.body)
            return
        self.nested += 1
        if self.nested == _MAX_NESTED_LOOPS:
            self.inner_function(loop, name, extent.text)
        else:
            with self.nest(f"for {name} in range({extent.text}):"):
                self.statement(loop.body)
        self.nested -= 1

    def inner_function(self, loop: For, name: str, extent: str) -> None:
        """Print a loop as a nested function, where the nesting depth starts again at zero.

        The function sees all variables around it.
        """
        inner, outer_nested, self.nested = self.fresh(), self.nested, 0
        with self.nest(f"def {inner}():"):
            with self.nest(f"for {name} in range({extent}):"):
                self.statement(loop.body)
            if self.lockstep:
                self.emit("yield from ()")
        self.emit(f"yield from {inner}()" if self.lockstep else f"{inner}()")
        self.nested = outer_nested

    def block(self, block: Block) -> None:
        """Print a block.

        It tests the predicate, binds the axes (each must stay in its domain), and runs the init if
        all reduce axes are zero.
        """
        binding_values = [self.expr(b) for b in block.bindings]
        is_guarded = block.predicate is not None
        if block.predicate is not None:
            self.emit(f"if {self.expr(block.predicate).text}:")
            self.indent += 1
        for axis, value in zip(block.axes, binding_values, strict=True):
            extent = self.expr(axis.extent)
            name, where = f"v_{axis.var.name}", f"block {block.name}, axis {axis.var.name}"
            if value.interval.within(0, extent.interval.low - 1):
                self.emit(f"{name} = {value.text}")
                interval = value.interval
            else:
                self.emit(f"{name} = at({value.text}, {extent.text}, {where!r})")
                interval = Interval(0, max(extent.interval.high - 1, 0))
            self.values[axis.var] = Value(name, interval=interval)
        if block.init is not None:
            first = " and ".join(f"v_{a.var.name} == 0" for a in block.axes if a.kind == "reduce")
            with self.nest(f"if {first or 'True'}:"):
                self.statement(block.init)
        self.statement(block.body)
        self.indent -= is_guarded

    def store(self, store: Store) -> None:
        indices = [self.expr(i) for i in store.indices]
        value = self.expr(store.value)
        lanes = max((i.lanes for i in indices), default=1)
        if value.lanes > lanes:
            raise InternalError(
                f"interp: kernel {self.function.name}: {value.lanes} lanes stored to {lanes} "
                f"elements of {store.buffer.name}"
            )
        target = self.element(Load(store.buffer, store.indices), indices)
        if lanes > 1 and target is None:
            texts = ", ".join(i.text for i in indices)
            self.emit(
                f"scatter(b_{store.buffer.name}, ({texts},), {value.text}, {store.buffer.name!r})"
            )
        else:
            self.emit(f"{target} = {value.text}")
