"""Build the expressions of the loop text from Python's `ast`, one node at a time.

In: an `ast` node, its parsed operands, and the variables and buffers in scope. Out: an `Expr`
exactly as the text spells it: nothing folds, so printing reproduces the text. A bare Python number
stays a number, and takes its dtype from the operation around it.

    T.max(Y[vi, vj] * 2, T.float32(0.0))
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from webmlc.core.combination import Combination
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.expr import Bitcast, Broadcast, Call, Cast, Const, Expr, Ramp, Var
from webmlc.core.instruction import INSTRUCTIONS, InstructionCall
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.loops.ir import Buffer, Load

Error = Callable[[ast.AST, str], Exception]
Part = Expr | float  # an expression, or a bare number

_SYMBOLS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_BY_SYMBOL = {row.symbol: row.name for row in SCALAR_OPERATORS.values() if row.symbol}


def dotted(node: ast.expr | None) -> str:
    """The text of a name or a chain of attributes; empty for any other node."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
    return ""


def is_call(node: ast.expr, name: str) -> bool:
    """True if the node is a call of the (dotted) `name`."""
    return isinstance(node, ast.Call) and dotted(node.func) == name


def literal_text(node: ast.expr) -> str | None:
    """The value of a string literal, or `None` for any other node."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def operands(node: ast.expr) -> list[ast.expr]:
    """The operands of a node that are expressions themselves."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, comparators=[right]):
            return [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Subscript(slice=ast.Tuple(elts=indices)):
            return indices
        case ast.Subscript(slice=index):
            return [index]
        case ast.Call(args=args):
            return [a for a in args if literal_text(a) is None and not isinstance(a, ast.List)]
    return []


def build_expr(
    node: ast.expr,
    parts: Sequence[Part],
    variables: Mapping[str, Var],
    buffers: Mapping[str, Buffer],
    error: Error,
) -> Part:
    """Build one node from its operands.

    `error(node, message)` builds the exception for a node that is not an expression.
    """
    match node:
        case ast.Constant(value=bool() as value):
            return Const(value, DType.bool)
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub()):
            return -parts[0]
        case ast.Name(id=name):
            if name in variables:
                return variables[name]
            reason = "is a buffer: index it" if name in buffers else "is not bound here"
            raise error(node, f"{name} {reason}")
        case ast.Subscript(value=ast.Name(id=name)):
            if name not in buffers:
                raise error(node, f"{name} is not a buffer")
            buffer = buffers[name]
            if len(parts) != len(buffer.shape):
                raise error(
                    node, f"{name} has {len(buffer.shape)} dimensions, indexed with {len(parts)}"
                )
            return Load(buffer, tuple(_as_expr(node, part, INDEX, error) for part in parts))
        case ast.BinOp(op=symbol) | ast.Compare(ops=[symbol]) if type(symbol) in _SYMBOLS:
            return operation(node, _BY_SYMBOL[_SYMBOLS[type(symbol)]], parts, error)
        case ast.Compare():
            raise error(node, "chained comparisons: write (a < b) & (b < c)")
        case ast.Call(func=ast.Attribute(value=ast.Name(id="T"), attr=name)):
            return _call(node, name, parts, error)
    raise error(node, "not an expression of the loop language")


def operation(node: ast.expr, name: str, parts: Sequence[Part], error: Error) -> Expr:
    """Build a scalar operator. Bare numbers take the dtype of the last operand that has one."""
    row = SCALAR_OPERATORS[name]
    if len(parts) != row.arity:
        raise error(node, f"T.{name} takes {row.arity} operands, not {len(parts)}")
    typed_parts = parts[1:] if name == "select" else parts
    like = next((p.dtype for p in reversed(typed_parts) if isinstance(p, Expr)), None)
    if like is None:
        like = DType.float32 if any(isinstance(p, float) for p in typed_parts) else INDEX
    args = tuple(_as_expr(node, part, like, error) for part in parts)
    typed_args = args[1:] if name == "select" else args
    if any(a.dtype != like for a in typed_args):
        raise error(node, f"T.{name} of {', '.join(a.dtype for a in args)}: cast them to one dtype")
    return Call(name, args, DType.bool if row.result == "bool" else like)


def typed_literal(node: ast.AST, value: float, dtype: DType, error: Error) -> Const:
    """Convert a number to a literal of `dtype`."""
    if not dtype.is_float and int(value) != value:
        raise error(node, f"{value} is not a {dtype}")
    return Const(value, dtype)


def _as_expr(node: ast.AST, part: Part, like: DType, error: Error) -> Expr:
    return part if isinstance(part, Expr) else typed_literal(node, part, like, error)


def _call(node: ast.Call, name: str, parts: Sequence[Part], error: Error) -> Expr:
    texts = [text for a in node.args if (text := literal_text(a)) is not None]
    match name, parts, texts:
        case (("cast" | "bitcast"), [value], [dtype]) if dtype in DType.__members__:
            conversion = Cast if name == "cast" else Bitcast
            return conversion(_as_expr(node, value, INDEX, error), DType(dtype))
        case "ramp", [base, stride, int() as width], []:
            start = _as_expr(node, base, INDEX, error)
            return Ramp(start, _as_expr(node, stride, INDEX, error), width)
        case "broadcast", [value, int() as width], []:
            return Broadcast(_as_expr(node, value, INDEX, error), width)
        case "combination", [row, *values], []:
            return _combination(node, row, values, error)
        case "call_intrin", _, [instruction]:
            return _instruction_call(node, instruction, parts, error)
        case _, [int() | float() as value], [] if name in DType.__members__:
            return typed_literal(node, value, DType(name), error)
        case "bool", [Const() as literal], []:
            return literal
        case _, [], [text] if name in DType.__members__ and DType(name).is_float:
            return Const(float(text), DType(name))
    if name not in SCALAR_OPERATORS or texts:
        raise error(node, f"T.{name} is not an operator, or not with these operands")
    return operation(node, name, parts, error)


def _combination(node: ast.Call, row: Part, values: Sequence[Part], error: Error) -> Expr:
    """Build `T.combination([[1, 0], [0.5, -1]], i, a, b)`. Numbers take the last value's dtype."""
    try:
        lines = ast.literal_eval(node.args[0])
        matrix = tuple(tuple(map(float, line)) for line in lines)
    except (ValueError, TypeError):
        raise error(node, "the first operand of T.combination is a matrix of numbers") from None
    if not values or any(len(line) != len(values) for line in matrix):
        raise error(node, f"T.combination of {len(values)} values has a row of other length")
    like = next((v.dtype for v in reversed(values) if isinstance(v, Expr)), DType.float32)
    index = _as_expr(node, row, INDEX, error)
    return Combination(matrix, index, tuple(_as_expr(node, v, like, error) for v in values))


def _instruction_call(
    node: ast.Call, name: str, parts: Sequence[Part], error: Error
) -> InstructionCall:
    """Build `T.call_intrin("f32x4.mul", a, b)`. Numbers take the dtypes of the parameters."""
    if name not in INSTRUCTIONS:
        raise error(node, f"there is no instruction {name!r}")
    instruction = INSTRUCTIONS[name]
    count = len(instruction.parameters)
    if len(parts) != count:
        raise error(node, f"{name} takes {count} operands, not {len(parts)}")
    pairs = zip(parts, instruction.parameters, strict=True)
    return InstructionCall(
        instruction, tuple(_as_expr(node, part, like.dtype, error) for part, like in pairs)
    )
