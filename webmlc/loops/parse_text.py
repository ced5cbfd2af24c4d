"""Parse loop functions from Python text: the inverse of `print_text`, through Python's `ast`.

In: text as `print_function` prints it, or as a person writes it. Out: a `LoopFunction`. The text is
never executed. A person has three liberties. Without `T.Output`, the trailing parameters that the
body writes are the outputs. A name that is reused in a later nest gets a suffix. A plain number
takes the dtype of the other operand:

    @T.kernel
    def relu(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            B[i] = T.max(A[i], 0)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast, get_args

from webmlc.core.dtypes import INDEX, DType
from webmlc.core.errors import UserError
from webmlc.core.expr import Expr, Var
from webmlc.loops.ir import (
    THREAD_AXES,
    Axis,
    AxisKind,
    Barrier,
    Block,
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    LoopKind,
    Scope,
    Seq,
    Stmt,
    Storage,
    Store,
    seq,
    stores,
)
from webmlc.loops.parse_expr import (
    build_expr,
    dotted,
    is_call,
    literal_text,
    operands,
    typed_literal,
)

_LOOP_KINDS: Mapping[str, LoopKind] = {
    "range": "serial",
    "T.serial": "serial",
    "T.grid": "serial",
    **{f"T.{kind}": cast(LoopKind, kind) for kind in get_args(LoopKind)},
}
_AXIS_KINDS: Mapping[str, AxisKind] = {"S": "spatial", "R": "reduce"}


class LoopTextError(UserError):
    """The text is not a loop function. The message gives the line and points at the place."""


def parse_function(text: str) -> LoopFunction:
    """Parse the loop function in `text`. Raises `LoopTextError` with the line and a caret."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise LoopTextError(
            _point(text, error.lineno or 1, (error.offset or 1) - 1, error.msg)
        ) from error
    return Parser(text, tree).function()


def _point(text: str, line: int, column: int, message: str) -> str:
    lines = text.splitlines()
    source_line = lines[line - 1] if line <= len(lines) else ""
    return f"loop text, line {line}: {message}\n    {source_line}\n    {' ' * column}^"


@dataclass(slots=True)
class _Scope:
    """The variables visible in a suite, by their name in the text, and the extents of its loops."""

    variables: dict[str, Var] = field(default_factory=dict)
    extents: dict[Var, Expr] = field(default_factory=dict)

    def inner(self) -> _Scope:
        return _Scope(dict(self.variables), dict(self.extents))


class Parser:
    """The parser of one text. All its rules share the buffers and the names declared so far.

    `places` holds the node of the text for each statement, variable and buffer, by its identity.
    """

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text = text
        self.tree = tree
        self.buffers: dict[str, Buffer] = {}
        self.names: set[str] = set()
        self.places: dict[int, ast.AST] = {}
        self.mentioned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}

    def error(self, node: ast.AST, message: str) -> LoopTextError:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return LoopTextError(_point(self.text, line, column, message))

    # -- the function's head -----------------------------------

    def function(self) -> LoopFunction:
        if len(self.tree.body) != 1 or not isinstance(self.tree.body[0], ast.FunctionDef):
            raise self.error(self.tree, "expected one function, decorated with @T.kernel")
        definition = self.tree.body[0]
        arguments = definition.args.args
        scope = _Scope()
        symbols = tuple(
            self.declare(a, a.arg, INDEX, scope)
            for a in arguments
            if a.annotation is not None and dotted(a.annotation) == "T.symbol"
        )
        params, outputs = [], 0
        for argument in arguments:
            if argument.arg not in scope.variables:
                buffer, is_output = self.parameter(argument, scope)
                params.append(buffer)
                outputs += is_output
                if outputs and not is_output:
                    raise self.error(argument, "inputs come before outputs")
        allocations, statements = self.allocations(definition.body, scope)
        body = self.suite(statements, scope)
        if not outputs:
            outputs = _trailing_writes(params, body)
        origin = self.origin(definition)
        return LoopFunction(
            definition.name, tuple(params), outputs, symbols, allocations, body, origin
        )

    def origin(self, definition: ast.FunctionDef) -> tuple[str, ...]:
        match definition.decorator_list:
            case [ast.Attribute() as decorator] if dotted(decorator) == "T.kernel":
                return ()
            case [ast.Call(keywords=[ast.keyword(arg="origin", value=ast.List(elts=names))])]:
                return tuple(self.string(name) for name in names)
        raise self.error(definition, "a loop function is decorated with @T.kernel")

    def parameter(self, argument: ast.arg, scope: _Scope) -> tuple[Buffer, bool]:
        match argument.annotation:
            case ast.Call() as call if (kind := dotted(call.func)) in ("T.Buffer", "T.Output"):
                return self.buffer(argument.arg, call, scope), kind == "T.Output"
        raise self.error(argument, "a parameter is a T.Buffer, a T.Output or a T.symbol")

    def allocations(
        self, statements: Sequence[ast.stmt], scope: _Scope
    ) -> tuple[tuple[Buffer, ...], Sequence[ast.stmt]]:
        """Parse the allocations at the top of the function; return the statements after them."""
        buffers: list[Buffer] = []
        for index, statement in enumerate(statements):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if is_call(
                    call, "T.alloc_buffer"
                ):
                    buffers.append(self.buffer(name, call, scope))
                case _:
                    return tuple(buffers), statements[index:]
        return tuple(buffers), ()

    def buffer(self, name: str, call: ast.Call, scope: _Scope) -> Buffer:
        match call:
            case ast.Call(args=[ast.Tuple(elts=dims), dtype], keywords=keywords):
                shape = tuple(self.expr(d, scope) for d in dims)
                texts = {k.arg: self.string(k.value) for k in keywords if k.arg != "in_vectors"}
                scope_name, storage = texts.get("scope", "global"), texts.get("storage", "elements")
                if scope_name not in get_args(Scope):
                    raise self.error(call, f"unknown scope {scope_name!r}")
                if storage not in get_args(Storage):
                    raise self.error(call, f"unknown storage {storage!r}")
                buffer = Buffer(
                    name,
                    shape,
                    self.dtype(dtype),
                    cast(Scope, scope_name),
                    cast(Storage, storage),
                    in_vectors=any(k.arg == "in_vectors" for k in keywords),
                )
                self.claim(call, name)
                self.buffers[name] = buffer
                self.places[id(buffer)] = call
                return buffer
        raise self.error(call, 'expected (shape, "dtype"), the shape a tuple')

    # -- statements --------------------------------------------

    def suite(self, statements: Sequence[ast.stmt], scope: _Scope) -> Stmt:
        """Parse statements in order. A `name = value` is visible until the end of the suite."""
        scope = scope.inner()
        result: list[Stmt] = []
        for index, statement in enumerate(statements):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    bound_value = self.expr(value, scope)
                    var = self.declare(statement, name, bound_value.dtype, scope)
                    let = Let(var, bound_value, self.suite(statements[index + 1 :], scope))
                    result.append(self.place(let, statement))
                    break
                case ast.Pass():
                    pass
                case _:
                    result.append(self.place(self.statement(statement, scope), statement))
        return seq(*result)

    def place(self, statement: Stmt, node: ast.stmt) -> Stmt:
        """Note the node of a statement, which is returned."""
        self.places[id(statement)] = node
        return statement

    def statement(self, node: ast.stmt, scope: _Scope) -> Stmt:
        match node:
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                return self.store(target, value, scope)
            case ast.For():
                return self.loops(node, scope)
            case ast.If(test=test, body=then, orelse=otherwise):
                other = self.suite(otherwise, scope) if otherwise else None
                return If(self.expr(test, scope), self.suite(then, scope), other)
            case ast.Expr(value=ast.Call() as call) if is_call(call, "T.barrier"):
                return Barrier()
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)], body=body):
                if is_call(call, "T.block"):
                    return self.block(call, body, scope)
                if is_call(call, "T.let") and len(call.args) == 2:
                    return self.let(call, body, scope)
        raise self.error(node, "not a statement of the loop language")

    def let(self, call: ast.Call, body: Sequence[ast.stmt], scope: _Scope) -> Let:
        bound_value = self.expr(call.args[1], scope)
        inner = scope.inner()
        var = self.declare(call, dotted(call.args[0]), bound_value.dtype, inner)
        return Let(var, bound_value, self.suite(body, inner))

    def store(self, target: ast.Subscript, value: ast.expr, scope: _Scope) -> Store:
        element = self.expr(target, scope)
        assert isinstance(element, Load)  # a subscript is the element of a buffer
        buffer = element.buffer
        stored_value = self.expr(value, scope, buffer.dtype)
        if stored_value.dtype != buffer.dtype:
            holds = f"stored to {buffer.name}, which holds {buffer.dtype}"
            raise self.error(value, f"a {stored_value.dtype} {holds}")
        return Store(buffer, element.indices, stored_value)

    def loops(self, node: ast.For, scope: _Scope) -> Stmt:
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        call = node.iter
        if not isinstance(call, ast.Call) or dotted(call.func) not in _LOOP_KINDS:
            raise self.error(call, f"a loop runs over one of {', '.join(_LOOP_KINDS)}")
        callee = dotted(call.func)
        kind, arguments, thread = _LOOP_KINDS[callee], list(call.args), None
        if kind == "thread_binding":
            thread = self.string(arguments.pop()) if len(arguments) == 2 else ""
            if thread not in THREAD_AXES:
                raise self.error(
                    call, f"T.thread_binding(extent, axis), axis one of {', '.join(THREAD_AXES)}"
                )
        if len(arguments) != len(targets) or (len(targets) > 1 and callee != "T.grid"):
            raise self.error(call, f"{len(targets)} variables over {len(arguments)} extents")
        extents = [self.expr(a, scope) for a in arguments]
        inner = scope.inner()
        loops = []
        for target, extent in zip(targets, extents, strict=True):
            var = self.declare(target, dotted(target), INDEX, inner)
            inner.extents[var] = extent
            loops.append((var, extent))
        body = self.suite(node.body, inner)
        for var, extent in reversed(loops):
            body = self.place(For(var, extent, body, kind, thread), node)
        return body

    def block(self, call: ast.Call, statements: Sequence[ast.stmt], scope: _Scope) -> Block:
        """Parse a block: the axes, then `where`, `intrinsic` and `init`, then the body.

        Only the init and the body see the axes.
        """
        if len(call.args) != 1:
            raise self.error(call, 'expected T.block("name")')
        inner = scope.inner()
        axes: list[tuple[Axis, Expr]] = []
        predicate: Expr | None = None
        intrinsic: str | None = None
        init: Stmt | None = None
        for index, statement in enumerate(statements):
            match statement:
                case ast.Assign(targets=[target], value=ast.Call() as value) if dotted(
                    value.func
                ).startswith("T.axis."):
                    axes += self.axes(target, value, scope, inner)
                case ast.Expr(value=ast.Call(args=[argument]) as value) if is_call(
                    value, "T.where"
                ):
                    predicate = self.expr(argument, scope)
                case ast.Expr(value=ast.Call(args=[name]) as value) if is_call(
                    value, "T.intrinsic"
                ):
                    intrinsic = self.string(name)
                case ast.With(items=[ast.withitem(context_expr=ast.Call() as value)]) if is_call(
                    value, "T.init"
                ):
                    init = self.suite(statement.body, inner)
                case _:
                    body = self.suite(statements[index:], inner)
                    break
        else:
            body = Seq(())
        return Block(
            self.string(call.args[0]),
            tuple(axis for axis, _ in axes),
            tuple(binding for _, binding in axes),
            body,
            init,
            predicate,
            intrinsic,
        )

    def axes(
        self, target: ast.expr, call: ast.Call, outer: _Scope, inner: _Scope
    ) -> list[tuple[Axis, Expr]]:
        """Parse `vi = T.axis.spatial(extent, binding)` or `vi, vk = T.axis.remap("SR", [i, k])`."""
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        kind = dotted(call.func).removeprefix("T.axis.")
        pairs: list[tuple[AxisKind, Expr, Expr]] = []
        match kind, call.args:
            case (("spatial" | "reduce"), [extent, binding]) if len(targets) == 1:
                pairs.append((kind, self.expr(extent, outer), self.expr(binding, outer)))
            case "remap", [kinds, ast.List(elts=loops)] if len(loops) == len(targets):
                letters = self.string(kinds)
                if len(letters) != len(loops) or not set(letters) <= set(_AXIS_KINDS):
                    raise self.error(
                        kinds, f"expected {len(loops)} letters S (spatial) or R (reduce)"
                    )
                for letter, loop in zip(letters, loops, strict=True):
                    binding_expr = self.expr(loop, outer)
                    if (
                        not isinstance(binding_expr, Var)
                        or (loop_extent := outer.extents.get(binding_expr)) is None
                    ):
                        raise self.error(loop, "T.axis.remap takes loop variables")
                    pairs.append((_AXIS_KINDS[letter], loop_extent, binding_expr))
            case _:
                raise self.error(
                    call, 'expected T.axis.spatial, T.axis.reduce or T.axis.remap("SR", [i, k])'
                )
        return [
            (Axis(self.declare(t, dotted(t), INDEX, inner), extent, axis_kind), binding)
            for t, (axis_kind, extent, binding) in zip(targets, pairs, strict=True)
        ]

    # -- names and expressions ---------------------------------

    def declare(self, node: ast.AST, name: str, dtype: DType, scope: _Scope) -> Var:
        """Declare a new variable. A name that an earlier nest used gets a suffix."""
        if not name.isidentifier():
            raise self.error(node, f"{name} is not a name")
        if name in scope.variables:
            raise self.error(node, f"{name} is bound already")
        unique, count = name, 0
        while unique in self.names or (count and unique in self.mentioned):
            count += 1
            unique = f"{name}_{count}"
        self.claim(node, unique)
        var = scope.variables[name] = Var(unique, dtype)
        self.places[id(var)] = node
        return var

    def claim(self, node: ast.AST, name: str) -> None:
        if name in self.names:
            raise self.error(node, f"{name} is bound already")
        self.names.add(name)

    def string(self, node: ast.expr) -> str:
        text = literal_text(node)
        if text is None:
            raise self.error(node, "expected a string")
        return text

    def dtype(self, node: ast.expr) -> DType:
        name = self.string(node)
        if name not in DType.__members__:
            raise self.error(node, f"unknown dtype {name!r}")
        return DType(name)

    def expr(self, root: ast.expr, scope: _Scope, like: DType = INDEX) -> Expr:
        """Parse an expression of any depth, with an explicit stack.

        A bare number takes the dtype `like`.
        """
        results: dict[ast.expr, Expr | float] = {}
        stack: list[tuple[ast.expr, bool]] = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            inner = operands(node)
            if inner and not expanded:
                stack.append((node, True))
                stack.extend((child, False) for child in inner)
                continue
            parts = [results[child] for child in inner]
            results[node] = build_expr(node, parts, scope.variables, self.buffers, self.error)
        result = results[root]
        if isinstance(result, Expr):
            return result
        return typed_literal(root, result, like, self.error)


def _trailing_writes(params: Sequence[Buffer], body: Stmt) -> int:
    """The number of trailing parameters that the body writes."""
    written = {store.buffer for store in stores(body)}
    count = 0
    while count < len(params) and params[len(params) - 1 - count] in written:
        count += 1
    return count
