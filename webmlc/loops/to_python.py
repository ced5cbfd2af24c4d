"""A loop function as Python source over numpy arrays: what `loops.interp` executes.

In: a `LoopFunction` and the value of each symbol. Out: the source of `kernel(buffers, ids)`, which
reads and writes the arrays in `buffers` by name. Symbols are literals in it, so intervals decide at
compile time which indices need a bounds check and which int32 results need wrapping. An index or
int32 scalar is a Python `int`, a bool a truth value, any other scalar a numpy scalar of its dtype,
a vector a numpy array.

    for i in T.grid(8): B[i] = T.exp(A[i])    →    for v_i in range(8): b_B[v_i] = op_exp(b_A[v_i])
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from webmlc.core.bounds import Interval, bounds
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var
from webmlc.core.scalar_operators import SCALAR_OPERATORS
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

INT32 = Interval(-(2**31), 2**31 - 1)

_MAX_NESTED_LOOPS = 15  # CPython compiles at most 20 statically nested loops
_MAX_DEPTH = 25  # of parentheses in one Python expression
_MAX_LENGTH = 600  # of one Python expression, so that shared sub-expressions do not multiply

_PYTHON_INT = {
    "abs": "abs({0})",
    "neg": "(-{0})",
    "sign": "(({0} > 0) - ({0} < 0))",
    "min": "min({0}, {1})",
    "max": "max({0}, {1})",
    "truncdiv": "truncdiv({0}, {1})",
    "truncmod": "truncmod({0}, {1})",
    "bit_not": "(~{0})",
    "fma": "({0} * {1} + {2})",
}
_NUMPY_SCALAR = {"min": "minimum({0}, {1})", "max": "maximum({0}, {1})", "neg": "(-{0})"}
_BOOL_SCALAR = {"bit_not": "(not {0})", "min": "({0} & {1})", "max": "({0} | {1})"}


@dataclass(frozen=True, slots=True)
class _Value:
    """Python text of an expression: vector width, nesting depth, and (for int32 scalars) the
    interval it lies in.
    """

    text: str
    lanes: int = 1
    depth: int = 0
    interval: Interval = INT32


@dataclass(frozen=True, slots=True)
class _Context:
    """Where an expression is evaluated: under a vector condition (`masked`), or only sometimes (not
    `hoistable`).
    """

    masked: bool = False
    hoistable: bool = True


def is_lockstep(function: LoopFunction) -> bool:
    """True where the threads of a workgroup run together: lowered kernels with thread loops, or any
    with a barrier.

    Before lowering, a `thread_binding` loop is still a loop: schedules are judged by what their
    loop nests mean.
    """
    kinds = [s for s in walk_statements(function.body) if isinstance(s, For | Barrier | Block)]
    if any(isinstance(s, Barrier) for s in kinds):
        return True
    threads = any(isinstance(s, For) and s.kind == "thread_binding" for s in kinds)
    return threads and not any(isinstance(s, Block) for s in kinds)


def launch_extents(function: LoopFunction, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Extents of the launch along `THREAD_AXES`: the largest loop bound to each axis, 1 where there
    is none.
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
    """Python source that defines `kernel(buffers, ids)`; raises `InternalError` for what has no
    meaning.
    """
    return _Printer(function, symbols).source()


class _Printer:
    """One function being printed. A class because every rule needs the ranges, widths and lines so
    far.
    """

    def __init__(self, function: LoopFunction, symbols: Mapping[str, int]) -> None:
        self.function = function
        self.lockstep = is_lockstep(function)
        self.launch = dict(zip(THREAD_AXES, launch_extents(function, symbols), strict=True))
        self.values: dict[Var, _Value] = {}
        for symbol in function.symbols:
            value = symbols[symbol.name]
            self.values[symbol] = _Value(f"({value})", interval=Interval(value, value))
        self.lines: list[str] = []
        self.indent = 1
        self.nested = 0
        self.counter = 0

    def source(self) -> str:
        for buffer in (*self.function.params, *self.function.allocations):
            self.emit(f"b_{buffer.name} = buffers[{buffer.name!r}]")
        self.statement(self.function.body)
        if self.lockstep:
            self.emit("yield from ()")
        return "\n".join(["def kernel(buffers, ids):", *self.lines, ""])

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    @contextmanager
    def nest(self, head: str) -> Iterator[None]:
        self.emit(head)
        self.indent += 1
        yield
        self.indent -= 1

    def fresh(self) -> str:
        self.counter += 1
        return f"t{self.counter}"

    def size(self, extent: Expr) -> int:
        """The value of a buffer dimension; symbols are known."""
        interval = self.interval(extent)
        if not interval.is_point:
            raise InternalError(
                f"interp: kernel {self.function.name}: dimension {extent} is not fixed"
            )
        return int(interval.low)

    def interval(self, expr: Expr) -> Interval:
        return bounds(expr, {var: value.interval for var, value in self.values.items()})

    # -- statements ----------------------------------------------------

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
                bound = self.expr(value)
                text = f"array({bound.text})" if bound.lanes > 1 else bound.text
                self.emit(f"v_{var.name} = {text}")
                self.values[var] = _Value(f"v_{var.name}", bound.lanes, 0, bound.interval)
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
        self.values[loop.var] = _Value(name, interval=Interval(0, last))
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
        """The loop in a function of its own: it sees every variable around it, and nesting starts
        again at zero.
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
        """Bind the axes (each must stay in its domain), test the predicate, run init where all
        reduce axes are zero.
        """
        bound = [self.expr(b) for b in block.bindings]
        guarded = block.predicate is not None
        if block.predicate is not None:
            self.emit(f"if {self.expr(block.predicate).text}:")
            self.indent += 1
        for axis, value in zip(block.axes, bound, strict=True):
            extent = self.expr(axis.extent)
            name, where = f"v_{axis.var.name}", f"block {block.name}, axis {axis.var.name}"
            if value.interval.within(0, extent.interval.low - 1):
                self.emit(f"{name} = {value.text}")
                interval = value.interval
            else:
                self.emit(f"{name} = at({value.text}, {extent.text}, {where!r})")
                interval = Interval(0, max(extent.interval.high - 1, 0))
            self.values[axis.var] = _Value(name, interval=interval)
        if block.init is not None:
            first = " and ".join(f"v_{a.var.name} == 0" for a in block.axes if a.kind == "reduce")
            with self.nest(f"if {first or 'True'}:"):
                self.statement(block.init)
        self.statement(block.body)
        self.indent -= guarded

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

    # -- expressions ----------------------------------------------------

    def expr(self, root: Expr) -> _Value:
        """The text of an expression; an explicit stack. Sub-expressions that grow too large become
        temporaries.
        """
        done: dict[tuple[Expr, _Context], _Value] = {}
        stack: list[tuple[Expr, _Context, bool]] = [(root, _Context(), False)]
        while stack:
            node, context, expanded = stack.pop()
            if (node, context) in done:
                continue
            children = node.children()
            contexts = [context] * len(children)
            if isinstance(node, Call) and node.op == "select":
                masked = context.masked or self.lanes(node.args[0]) > 1
                contexts[1:] = [_Context(masked, hoistable=False)] * 2
            pairs = list(zip(children, contexts, strict=True))
            if children and not expanded:
                stack.append((node, context, True))
                stack.extend((child, inner, False) for child, inner in pairs)
                continue
            parts = [done[pair] for pair in pairs]
            value = self.node(node, parts, context)
            depth = 1 + max((p.depth for p in parts), default=0)
            if context.hoistable and (depth > _MAX_DEPTH or len(value.text) > _MAX_LENGTH):
                name = self.fresh()
                self.emit(f"{name} = {value.text}")
                value, depth = _Value(name, value.lanes, 0, value.interval), 0
            done[node, context] = _Value(value.text, value.lanes, depth, value.interval)
        return done[root, _Context()]

    def lanes(self, expr: Expr) -> int:
        """Vector width, counting variables that a `Let` bound to a vector."""
        bound = [self.values[v].lanes for v in _free_variables(expr) if v in self.values]
        return max(expr.lanes, *bound) if bound else expr.lanes

    def node(self, node: Expr, parts: list[_Value], context: _Context) -> _Value:
        lanes = max((p.lanes for p in parts), default=1)
        texts = [p.text for p in parts]
        match node:
            case Const(value=value, dtype=dtype) if dtype == INDEX:
                return _Value(f"({value})", interval=Interval(int(value), int(value)))
            case Const(value=value, dtype=DType.bool):
                return _Value(str(value))
            case Const(value=value, dtype=dtype):
                literal = str(value) if math.isfinite(value) else f"float({str(value)!r})"
                return _Value(f"{dtype}({literal})")
            case Var():
                if node not in self.values:
                    raise InternalError(
                        f"interp: kernel {self.function.name}: {node.name} is not bound"
                    )
                return self.values[node]
            case Load():
                return self.load(node, parts, context)
            case Call():
                return self.call(node, parts, context)
            case Cast(value=inner, dtype=dtype):
                return _Value(
                    _cast(texts[0], inner.dtype, dtype, lanes), lanes, interval=_of(dtype)
                )
            case Bitcast(value=inner, dtype=dtype):
                name = "bitcast_int" if dtype == INDEX and lanes == 1 else "bitcast"
                return _Value(f"{name}({texts[0]}, {inner.dtype}, {dtype})", lanes)
            case Ramp(width=width):
                return _Value(f"ramp({texts[0]}, {texts[1]}, {width})", width)
            case Broadcast(dtype=dtype, width=width):
                return _Value(f"full({width}, {texts[0]}, {dtype})", width)
        raise InternalError(f"interp: no meaning for {type(node).__name__}")

    def element(self, load: Load, indices: list[_Value]) -> str | None:
        """`b_A[i, j]` with bounds checks where needed; `None` where the indices are not a plain
        element or slice.
        """
        name, parts = load.buffer.name, []
        if len(indices) != len(load.buffer.shape):
            raise InternalError(f"interp: kernel {self.function.name}: rank of {load}")
        for axis, (index, expr) in enumerate(zip(indices, load.indices, strict=True)):
            extent = self.size(load.buffer.shape[axis])
            where = f"{name}, axis {axis}"
            match expr:
                case _ if index.lanes == 1:
                    safe = index.interval.within(0, extent - 1)
                    parts.append(index.text if safe else f"at({index.text}, {extent}, {where!r})")
                case Ramp(base=base, stride=Const(value=1), width=width) if (
                    axis == len(indices) - 1
                ):
                    parts.append(f"span({self.expr(base).text}, {width}, {extent}, {where!r})")
                case _:
                    return None
        return f"b_{name}[{', '.join(parts) or '()'}]"

    def load(self, load: Load, indices: list[_Value], context: _Context) -> _Value:
        lanes = max((i.lanes for i in indices), default=1)
        name = load.buffer.name
        if lanes > 1:
            text = None if context.masked else self.element(load, indices)
            if text is None:
                mask = "mask" if context.masked else "None"
                text = (
                    f"gather(b_{name}, ({', '.join(i.text for i in indices)},), {mask}, {name!r})"
                )
            return _Value(text, lanes)
        text = self.element(load, indices)
        if load.dtype == INDEX:
            return _Value(f"int({text})")
        return _Value(f"bool({text})" if load.dtype is DType.bool else str(text))

    def call(self, node: Call, parts: list[_Value], context: _Context) -> _Value:
        lanes = max(p.lanes for p in parts)
        texts = [p.text for p in parts]
        operand = node.args[-1].dtype
        if node.op == "div" and not operand.is_float:
            raise InternalError(f"interp: div of {operand}: use floordiv or truncdiv")
        if node.op == "select":
            return self.select(node, parts, context)
        if lanes > 1:
            return _Value(_generic(node.op, texts), lanes)
        if operand == INDEX:
            return self.integer(node, parts)
        special = (_BOOL_SCALAR if operand is DType.bool else _NUMPY_SCALAR).get(node.op)
        if special is not None:
            return _Value(special.format(*texts))
        if operand is DType.bool and SCALAR_OPERATORS[node.op].result == "same":
            texts = [f"bool_({t})" for t in texts]
        return _Value(_generic(node.op, texts))

    def integer(self, node: Call, parts: list[_Value]) -> _Value:
        """An int32 scalar operation on Python integers: wraps unless the interval shows that it
        cannot overflow.
        """
        texts = [p.text for p in parts]
        if node.op in _PYTHON_INT:
            text = _PYTHON_INT[node.op].format(*texts)
        elif SCALAR_OPERATORS[node.op].symbol is not None:
            text = _generic(node.op, texts)
        else:
            text = f"int({_generic(node.op, [f'int32({t})' for t in texts])})"
        if node.dtype is DType.bool:
            return _Value(text)
        stand_ins = tuple(Var(f"_{i}") for i in range(len(parts)))
        ranges = {v: p.interval for v, p in zip(stand_ins, parts, strict=True)}
        interval = bounds(Call(node.op, stand_ins, node.dtype), ranges)
        if interval.within(INT32.low, INT32.high):
            return _Value(text, interval=interval)
        return _Value(f"wrap({text})")

    def select(self, node: Call, parts: list[_Value], context: _Context) -> _Value:
        """Only the chosen side is evaluated; of vectors, only the chosen lanes load."""
        condition, then, otherwise = parts
        lanes = max(p.lanes for p in parts)
        interval = Interval(
            min(then.interval.low, otherwise.interval.low),
            max(then.interval.high, otherwise.interval.high),
        )
        if condition.lanes == 1:
            text = f"({then.text} if {condition.text} else {otherwise.text})"
            return _Value(text, lanes, interval=interval)
        mask = "mask" if context.masked else "None"
        sides = f"lambda mask: {then.text}, lambda mask: {otherwise.text}"
        return _Value(f"choose({condition.text}, {mask}, {sides})", lanes)


def _generic(op: str, texts: list[str]) -> str:
    symbol = SCALAR_OPERATORS[op].symbol
    if symbol is not None:
        return f"({texts[0]} {symbol} {texts[1]})"
    return f"op_{op}({', '.join(texts)})"


def _cast(text: str, source: DType, target: DType, lanes: int) -> str:
    if lanes > 1:
        return f"({text} != 0)" if target is DType.bool else f"{text}.astype({target})"
    if target is DType.bool:
        return f"bool({text} != 0)"
    if target == INDEX:
        return f"cast_int({text}, int32)" if source.is_float else f"wrap(int({text}))"
    return f"cast({text}, {source}, {target})"


def _of(dtype: DType) -> Interval:
    return Interval(0, 1) if dtype is DType.bool else INT32


def _free_variables(root: Expr) -> Iterator[Var]:
    """Variables outside load indices' buffers: every `Var` in `root`."""
    seen: set[Expr] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Var):
            yield node
        stack.extend(node.children())
