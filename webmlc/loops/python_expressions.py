"""Print expressions as Python over numpy, for the statements that `to_python` prints.

In: an expression, and the `Value` of each variable in scope. Out: a `Value`, which holds the Python
text, the vector width and the nesting depth. Large sub-expressions become assignments to
temporaries. For int32 scalars, a `Value` also holds an interval, which decides whether an index is
checked (`at`) and whether arithmetic wraps (`wrap`). With i in 0..7 and a buffer A of 8 elements:

    A[i + 1] * 2.0    →    (b_A[at((v_i + (1)), 8, 'A, axis 0')] * float32(2.0))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from webmlc.core.bounds import Interval, bounds
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.ir import Load

INT32_RANGE = Interval(-(2**31), 2**31 - 1)
"""All values of an int32."""

_MAX_DEPTH = 25
"""Store an expression in a temporary if its parentheses nest deeper than this.

Chosen by hand, below the limits of CPython's parser.
"""
_MAX_LENGTH = 600
"""Store an expression in a temporary if its text has more characters than this.

Without this limit, repeated sub-expressions could make the text grow exponentially. Chosen by hand.
"""

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
class Value:
    """The Python text of an expression, with its vector width and nesting depth.

    Of an int32 scalar, `interval` contains every possible value. It means nothing for other types.
    """

    text: str
    lanes: int = 1
    depth: int = 0
    interval: Interval = INT32_RANGE


@dataclass(frozen=True, slots=True)
class _Context:
    """The context in which an expression is evaluated.

    `masked`: under a vector condition. `hoistable`: evaluated unconditionally, so that a statement
    before it may compute it.
    """

    masked: bool = False
    hoistable: bool = True


_EVERYWHERE = _Context()
"""The context of a whole statement."""


class ExpressionPrinter:
    """The printer of one kernel's expressions. Temporaries become statements in `lines`."""

    def __init__(self, name: str, symbols: Mapping[Var, int]) -> None:
        self.name = name
        self.symbols = {var: Interval(value, value) for var, value in symbols.items()}
        self.values = {
            var: Value(f"({value})", interval=Interval(value, value))
            for var, value in symbols.items()
        }
        self.lines: list[str] = []
        self.indent = 1
        self.counter = 0

    def emit(self, line: str) -> None:
        """Append one line at the current indentation."""
        self.lines.append("    " * self.indent + line)

    def fresh(self) -> str:
        """Create a new name."""
        self.counter += 1
        return f"t{self.counter}"

    def size(self, extent: Expr) -> int:
        """The value of a buffer dimension, for the given symbols."""
        interval = bounds(extent, self.symbols)
        if not interval.is_point:
            raise InternalError(f"interp: kernel {self.name}: dimension {extent} is not fixed")
        return int(interval.low)

    def expr(self, root: Expr, root_context: _Context = _EVERYWHERE) -> Value:
        """Print an expression of any depth, with an explicit stack.

        Sub-expressions that become too large are stored in temporaries, except inside a `select`.
        """
        results: dict[tuple[Expr, _Context], Value] = {}
        stack: list[tuple[Expr, _Context, bool]] = [(root, root_context, False)]
        while stack:
            node, context, expanded = stack.pop()
            if (node, context) in results:
                continue
            children = node.children
            contexts = [context] * len(children)
            if isinstance(node, Call) and node.op == "select":
                # A branch may not run, so nothing in it may be computed earlier.
                masked = context.masked or node.args[0].lanes > 1
                contexts[1:] = [_Context(masked, hoistable=False)] * 2
            pairs = list(zip(children, contexts, strict=True))
            if children and not expanded:
                stack.append((node, context, True))
                stack.extend((child, inner, False) for child, inner in pairs)
                continue
            parts = [results[pair] for pair in pairs]
            value = self.node(node, parts, context)
            depth = 1 + max((p.depth for p in parts), default=0)
            if context.hoistable and (depth > _MAX_DEPTH or len(value.text) > _MAX_LENGTH):
                name = self.fresh()
                self.emit(f"{name} = {value.text}")
                value, depth = Value(name, value.lanes, 0, value.interval), 0
            results[node, context] = Value(value.text, value.lanes, depth, value.interval)
        return results[root, root_context]

    def node(self, node: Expr, parts: list[Value], context: _Context) -> Value:
        lanes = max((p.lanes for p in parts), default=1)
        texts = [p.text for p in parts]
        match node:
            case Const(value=value, dtype=dtype) if dtype == INDEX:
                return Value(f"({value})", interval=Interval(int(value), int(value)))
            case Const(value=value, dtype=DType.bool):
                return Value(str(value))
            case Const(value=value, dtype=dtype):
                literal = str(value) if math.isfinite(value) else f"float({str(value)!r})"
                return Value(f"{dtype}({literal})")
            case Var():
                if node not in self.values:
                    raise InternalError(f"interp: kernel {self.name}: {node.name} is not bound")
                return self.values[node]
            case Load():
                return self.load(node, parts, context)
            case Call():
                return self.call(node, parts, context)
            case Cast(value=inner, dtype=dtype):
                return Value(
                    _cast(texts[0], inner.dtype, dtype, lanes),
                    lanes,
                    interval=_interval_of(inner.dtype),
                )
            case Bitcast(value=inner, dtype=dtype):
                name = "bitcast_int" if dtype == INDEX and lanes == 1 else "bitcast"
                return Value(f"{name}({texts[0]}, {inner.dtype}, {dtype})", lanes)
            case Ramp(width=width):
                return Value(f"ramp({texts[0]}, {texts[1]}, {width})", width)
            case Broadcast(dtype=dtype, width=width):
                return Value(f"full({width}, {texts[0]}, {dtype})", width)
        raise InternalError(f"interp: no meaning for {type(node).__name__}")

    def element(
        self, load: Load, indices: list[Value], context: _Context = _EVERYWHERE
    ) -> str | None:
        """Print `b_A[i, j]` with the necessary bounds checks.

        The result is `None` if an index is a vector, unless the vector is contiguous along the last
        axis.
        """
        name, parts = load.buffer.name, []
        if len(indices) != len(load.buffer.shape):
            raise InternalError(f"interp: kernel {self.name}: {load} has {len(indices)} indices")
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
                    parts.append(
                        f"span({self.expr(base, context).text}, {width}, {extent}, {where!r})"
                    )
                case _:
                    return None
        return f"b_{name}[{', '.join(parts) or '()'}]"

    def load(self, load: Load, indices: list[Value], context: _Context) -> Value:
        lanes = max((i.lanes for i in indices), default=1)
        name = load.buffer.name
        if lanes > 1:
            text = None if context.masked else self.element(load, indices, context)
            if text is None:
                mask = "mask" if context.masked else "None"
                text = (
                    f"gather(b_{name}, ({', '.join(i.text for i in indices)},), {mask}, {name!r})"
                )
            return Value(text, lanes)
        text = self.element(load, indices, context)
        if load.dtype == INDEX:
            return Value(f"int({text})")
        return Value(f"bool({text})" if load.dtype is DType.bool else str(text))

    def call(self, node: Call, parts: list[Value], context: _Context) -> Value:
        lanes = max(p.lanes for p in parts)
        texts = [p.text for p in parts]
        operand = node.args[-1].dtype
        if node.op == "div" and not operand.is_float:
            raise InternalError(f"interp: div of {operand}: use floordiv or truncdiv")
        if node.op == "select":
            return self.select(node, parts, context)
        if lanes > 1:
            return Value(_generic(node.op, texts), lanes)
        if operand == INDEX:
            return self.integer(node, parts)
        special = (_BOOL_SCALAR if operand is DType.bool else _NUMPY_SCALAR).get(node.op)
        if special is not None:
            return Value(special.format(*texts))
        if operand is DType.bool and SCALAR_OPERATORS[node.op].result == "same":
            texts = [f"bool_({t})" for t in texts]
        return Value(_generic(node.op, texts))

    def integer(self, node: Call, parts: list[Value]) -> Value:
        """Print an int32 scalar operation on Python integers.

        The result wraps, unless its interval proves that it cannot overflow.
        """
        texts = [p.text for p in parts]
        if node.op in _PYTHON_INT:
            text = _PYTHON_INT[node.op].format(*texts)
        elif SCALAR_OPERATORS[node.op].symbol is not None:
            text = _generic(node.op, texts)
        else:
            text = f"int({_generic(node.op, [f'int32({t})' for t in texts])})"
        if node.dtype is DType.bool:
            return Value(text)
        stand_ins = tuple(Var(f"_{i}") for i in range(len(parts)))
        ranges = {v: p.interval for v, p in zip(stand_ins, parts, strict=True)}
        interval = bounds(Call(node.op, stand_ins, node.dtype), ranges)
        if interval.within(INT32_RANGE.low, INT32_RANGE.high):
            return Value(text, interval=interval)
        return Value(f"wrap({text})")

    def select(self, node: Call, parts: list[Value], context: _Context) -> Value:
        """Print a select that evaluates only the chosen side; chosen lanes only, for vectors."""
        condition, then, otherwise = parts
        lanes = max(p.lanes for p in parts)
        interval = Interval(
            min(then.interval.low, otherwise.interval.low),
            max(then.interval.high, otherwise.interval.high),
        )
        if condition.lanes == 1:
            text = f"({then.text} if {condition.text} else {otherwise.text})"
            return Value(text, lanes, interval=interval)
        mask = "mask" if context.masked else "None"
        sides = f"lambda mask: {then.text}, lambda mask: {otherwise.text}"
        return Value(f"choose({condition.text}, {mask}, {sides})", lanes)


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


def _interval_of(dtype: DType) -> Interval:
    return Interval(0, 1) if dtype is DType.bool else INT32_RANGE
