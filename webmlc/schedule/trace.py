"""Traces: the steps of a schedule as plain JSON data, so that they can be stored and replayed.

    [{"primitive": "split", "arguments": ["i", [null, 8]]},
     {"primitive": "partition", "arguments": ["i_0", {"expr": ["floordiv", "n", 8]}]},
     {"primitive": "vectorize", "arguments": ["i_1"]}]

The arguments are those of the primitive: in `split`, `null` is the factor that follows from the
others. An expression, such as the place where `partition` cuts a loop, stands under the key `expr`:
a number, the name of a variable, or an operator with its operands. Variables are equal by name.
"""

from __future__ import annotations

from typing import Any

from webmlc.core.expr import Call, Const, Expr, Var, call

Step = dict[str, Any]
Trace = list[Step]


def step(primitive: str, arguments: tuple[Any, ...]) -> Step:
    """One step as JSON data."""
    return {"primitive": primitive, "arguments": [_to_json(argument) for argument in arguments]}


def arguments_of(recorded: Step) -> list[Any]:
    """The arguments of a recorded step. Tuples have become lists, which primitives take, too."""
    return [_from_json(argument) for argument in recorded["arguments"]]


def _to_json(argument: Any) -> Any:
    match argument:
        case Expr():
            return {"expr": _expr_to_json(argument)}
        case list() | tuple():
            return [_to_json(item) for item in argument]
        case None | bool() | int() | str():
            return argument
    raise TypeError(f"a trace cannot hold {argument!r}")


def _from_json(argument: Any) -> Any:
    match argument:
        case {"expr": expr}:
            return _expr_from_json(expr)
        case list():
            return [_from_json(item) for item in argument]
    return argument


def _expr_to_json(expr: Expr) -> Any:
    match expr:
        case Const(value=value):
            return value
        case Var(name=name):
            return name
        case Call(op=op, args=args):
            return [op, *(_expr_to_json(arg) for arg in args)]
    raise TypeError(f"a trace cannot hold {expr}")


def _expr_from_json(data: Any) -> Expr:
    match data:
        case str():
            return Var(data)
        case [str() as op, *args]:
            return call(op, *(_expr_from_json(arg) for arg in args))
    return Const(data)
