"""Rewrite a script to the loop text: resolve the names around it, and spell each form in one way.

In: the `ast` of a decorated function, and the values of the names around it. Out: the `ast` that
`loops.parse_text` reads. Every node keeps its place in the source.

    C[vi] += A[vi + PAD] ** 2      →      C[vi] = C[vi] + T.pow(A[vi + 1], 2)

The liberties are those of TVM's script: values and symbols from outside, `match_buffer`, a root
block, allocations anywhere, loops that start above 0, `T.reads` and `T.writes` (ignored: the
compiler infers regions), `and`, `or`, `not`, `if else`, chained comparisons, and builtin `min`,
`max` and `abs`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NoReturn, TypeVar

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Var
from webmlc.loops.parse_expr import dotted
from webmlc.programs.vocabulary import T

N = TypeVar("N", bound=ast.AST)
Error = Callable[[ast.AST, str], Exception]

_SPELLINGS = {
    "T.axis.S": "T.axis.spatial",
    "T.axis.R": "T.axis.reduce",
    "T.sblock": "T.block",
    "T.sblock_alloc_buffer": "T.alloc_buffer",
    "T.if_then_else": "T.select",
    "T.Select": "T.select",
    "T.power": "T.pow",
    "T.fabs": "T.abs",
    "T.bitwise_and": "T.bit_and",
    "T.bitwise_or": "T.bit_or",
    "T.bitwise_xor": "T.bit_xor",
    "T.bitwise_not": "T.bit_not",
    "T.nearbyint": "T.round",
    "T.indexdiv": "T.floordiv",
    "T.indexmod": "T.floormod",
    "T.tvm_storage_sync": "T.barrier",
    "max": "T.max",
    "min": "T.min",
    "abs": "T.abs",
}
"""Other spellings of the vocabulary: of TVM, and of Python's builtin functions."""
_IGNORED = frozenset(
    {"T.reads", "T.writes", "T.func_attr", "T.block_attr", "T.sblock_attr", "T.evaluate"}
)
"""Statements that say what the compiler infers."""
_LOOPS = frozenset({"range", "T.thread_binding"}) | {
    f"T.{kind}" for kind in ("serial", "parallel", "vectorized", "unroll", "unrolled")
}
_BUFFER_KEYWORDS = frozenset({"scope", "storage", "in_vectors"})
_PROMISES = frozenset({"align", "offset_factor"})
"""Keywords of a buffer that a compiler may rely on. Ours needs no such promise."""
_SYMBOL_TYPES = frozenset({"T.int32", "T.int64", "T.var"})


def canonical(tree: ast.Module, names: Mapping[str, Any], error: Error) -> ast.Module:
    """Rewrite the one function of a module (see above). `error(node, message)` builds an error."""
    match tree.body:
        case [ast.FunctionDef() as definition]:
            rewriter = _Rewriter(names, error, _bound_names(definition))
            rewriter.function(definition)
            return ast.fix_missing_locations(ast.Module([definition], []))
    raise error(tree.body[0] if tree.body else tree, "a kernel is one function")


def _bound_names(definition: ast.FunctionDef) -> frozenset[str]:
    """The names that a function defines."""
    arguments = {argument.arg for argument in definition.args.args}
    stores = (n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and _is_stored(n))
    return frozenset(arguments | set(stores))


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _at(node: N, place: ast.AST) -> N:
    """A new node at the place of another one, and so its parts that have no place yet."""
    ast.copy_location(node, place)
    for child in ast.walk(node):
        if not hasattr(child, "lineno") and isinstance(child, ast.expr | ast.stmt):
            ast.copy_location(child, place)
    return node


def _call(name: str, arguments: Sequence[ast.expr], place: ast.AST) -> ast.Call:
    """`T.name(*arguments)`."""
    return _at(ast.Call(_word(name), list(arguments), []), place)


class _Rewriter(ast.NodeTransformer):
    """The rewriter of one function. `starts` are the loop variables that do not start at 0."""

    def __init__(self, names: Mapping[str, Any], error: Error, bound: frozenset[str]) -> None:
        self.names = names
        self.error = error
        self.bound = bound
        self.symbols: dict[str, ast.AST] = {}
        self.parameters: frozenset[str] = frozenset()
        self.matched: dict[str, tuple[str, ast.expr]] = {}
        self.allocations: list[ast.stmt] = []
        self.starts: dict[str, ast.expr] = {}
        self.blocks = 0

    def fail(self, node: ast.AST, message: str) -> NoReturn:
        raise self.error(node, message)

    # -- the function's head -----------------------------------

    def function(self, definition: ast.FunctionDef) -> None:
        arguments = definition.args
        special = (arguments.posonlyargs, arguments.kwonlyargs, arguments.defaults)
        if any(special) or arguments.vararg or arguments.kwarg:
            self.fail(definition, "parameters of a kernel are plain: no defaults, * or **")
        definition.decorator_list = [_at(_word("kernel"), definition)]
        definition.returns = None
        self.parameters = frozenset(argument.arg for argument in arguments.args)
        definition.body = self.suite(_without_root(definition.body, self))
        for argument in arguments.args:
            argument.annotation = self.annotation(argument)
            if argument.arg in self.matched:
                argument.arg, _ = self.matched[argument.arg]
        definition.body[:0] = self.allocations
        symbols = (
            _at(ast.arg(name, _word("symbol")), place) for name, place in self.symbols.items()
        )
        arguments.args += symbols

    def annotation(self, argument: ast.arg) -> ast.expr:
        if argument.arg in self.matched:
            return self.matched[argument.arg][1]
        if argument.annotation is None:
            self.fail(
                argument, f'{argument.arg} has no type: write T.Buffer((128, 128), "float32")'
            )
        node = argument.annotation
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = _at(ast.parse(node.value, mode="eval").body, node)
        if dotted(node) in ("T.handle", "T.Ptr"):
            self.fail(argument, f"no T.match_buffer says what {argument.arg} is")
        if dotted(node) in _SYMBOL_TYPES or dotted(node) == "T.symbol":
            return _at(_word("symbol"), node)
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            node = _at(ast.Call(node.value, list(parts), []), node)
        if not isinstance(node, ast.Call):
            self.fail(argument, f"{ast.unparse(node)} is not the type of a parameter: use T.Buffer")
        return self.buffer(node)

    def buffer(self, call: ast.Call) -> ast.Call:
        """`T.Buffer(n)` → `T.Buffer((n,), "float32")`, and so for allocations and outputs."""
        keywords = {str(keyword.arg): keyword.value for keyword in call.keywords}
        arguments = list(call.args)
        arguments += [keywords.pop(name) for name in ("shape", "dtype") if name in keywords]
        if len(arguments) not in (1, 2):
            self.fail(call, "a buffer has a shape and a dtype")
        if unknown := keywords.keys() - _BUFFER_KEYWORDS - _PROMISES:
            self.fail(call, f"a buffer takes no {min(unknown)}: its elements lie row by row")
        shape = self.resolved(arguments[0])
        if not isinstance(shape, ast.Tuple):
            dimensions = shape.elts if isinstance(shape, ast.List) else [shape]
            shape = _at(ast.Tuple(dimensions, ast.Load()), arguments[0])
        dtype = self.resolved(arguments[1]) if len(arguments) > 1 else ast.Constant("float32")
        storage = [
            ast.keyword(name, self.resolved(value))
            for name, value in keywords.items()
            if name in _BUFFER_KEYWORDS
        ]
        function = self.spelled(call.func)
        return _at(ast.Call(function, [shape, _at(dtype, call)], storage), call)

    # -- statements --------------------------------------------

    def suite(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            result += self.statements(statement)
        return result or [_at(ast.Pass(), statements[0])]

    def statements(self, node: ast.stmt) -> list[ast.stmt]:
        """The statements that a statement stands for."""
        match node:
            case ast.Expr(value=ast.Constant()):
                return []
            case ast.Expr(value=ast.Call() as call) if self.callee(call) in _IGNORED:
                return []
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                callee = self.callee(call)
                if callee == "T.match_buffer" and call.args:
                    self.match(name, call)
                    return []
                if callee in _SYMBOL_TYPES and not _operands(call):
                    self.symbols.setdefault(name, node)
                    return []
                if callee == "T.alloc_buffer":
                    value = self.buffer(call)
                    self.allocations.append(_at(ast.Assign(node.targets, value), node))
                    return []
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(
                names
            ) == len(values) and all(self.is_declaration(value) for value in values):
                pairs = zip(names, values, strict=True)
                parts = [_at(ast.Assign([name], value), node) for name, value in pairs]
                return [statement for part in parts for statement in self.statements(part)]
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return self.statements(_at(ast.Assign([target], value), node))
            case ast.AugAssign(target=target, op=op, value=value):
                total = _at(ast.BinOp(deepcopy(target), op, value), node)
                return self.statements(_at(ast.Assign([target], total), node))
            case ast.While():
                self.fail(node, "a loop has a number of iterations before it starts: use range")
            case ast.Return():
                self.fail(node, "a kernel writes its outputs, and returns nothing")
            case ast.For():
                return [self.loop(node)]
            case ast.With():
                return [self.block(node)]
            case ast.If():
                node.test = self.resolved(node.test)
                node.body = self.suite(node.body)
                node.orelse = self.suite(node.orelse) if node.orelse else []
                return [node]
        return [self.visit(node)]

    def match(self, name: str, call: ast.Call) -> None:
        """`A = T.match_buffer(a, (n,), "float32")`: the parameter `a` is the buffer `A`, and is
        called `A` from here on.
        """
        if not isinstance(call.args[0], ast.Name) or call.args[0].id not in self.parameters:
            self.fail(call, "T.match_buffer takes a parameter: a part of a buffer has no name here")
        if name in self.parameters and name != call.args[0].id:
            self.fail(call, f"{name} is another parameter")
        typed = _at(ast.Call(_word("Buffer"), call.args[1:], call.keywords), call)
        self.matched[call.args[0].id] = (name, self.buffer(typed))

    def is_declaration(self, node: ast.expr) -> bool:
        """True for the value of a declaration: of a buffer, or of a symbol."""
        declarations = _SYMBOL_TYPES | {"T.match_buffer", "T.alloc_buffer"}
        return isinstance(node, ast.Call) and self.callee(node) in declarations

    def loop(self, node: ast.For) -> ast.For:
        """A loop over `T.grid`, or over one range: `range(a, b)` → `range(b - a)`."""
        if node.orelse:
            self.fail(node, "a loop has no else")
        call = node.iter
        callee = self.callee(call) if isinstance(call, ast.Call) else ""
        if not isinstance(call, ast.Call) or callee not in _LOOPS | {"T.grid"}:
            names = ", ".join(sorted(_LOOPS | {"T.grid"}))
            self.fail(call, f"a loop runs over one of {names}")
        keywords = {str(keyword.arg): keyword.value for keyword in call.keywords}
        if unknown := keywords.keys() - {"thread"}:
            self.fail(call, f"a loop takes no {min(unknown)}")
        thread = [self.resolved(keywords["thread"])] if "thread" in keywords else []
        arguments = [self.resolved(argument) for argument in call.args]
        if callee == "T.thread_binding" and not thread and isinstance(arguments[-1], ast.Constant):
            thread = [arguments.pop()]
        if callee != "T.grid" and len(arguments) == 2:
            start, end = arguments
            if not isinstance(node.target, ast.Name):
                self.fail(node.target, "a range has one variable")
            if not _is_zero(start):
                end = _at(ast.BinOp(end, ast.Sub(), start), call)
                self.starts[node.target.id] = start
            arguments = [end]
        if callee != "T.grid" and len(arguments) != 1:
            self.fail(call, "a loop has one extent, or a start and an end; its step is 1")
        for argument in arguments:
            if reads := [n for n in ast.walk(argument) if isinstance(n, ast.Subscript)]:
                self.fail(reads[0], "the extent of a loop is a number or a symbol, not an element")
        function = self.spelled(call.func)
        if callee == "T.unroll":
            function = _at(_word("unrolled"), call.func)
        node.iter = _at(ast.Call(function, [*arguments, *thread], []), call)
        node.body = self.suite(node.body)
        inner = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        self.starts = {name: start for name, start in self.starts.items() if name not in inner}
        return node

    def block(self, node: ast.With) -> ast.With:
        if len(node.items) == 1 and isinstance(node.items[0].context_expr, ast.Call):
            call = node.items[0].context_expr
            if self.callee(call) == "T.block" and not call.args:
                self.blocks += 1
                call.args = [_at(ast.Constant(f"block_{self.blocks}"), call)]
            node.items[0].context_expr = self.resolved(call)
        node.items[0].optional_vars = None
        node.body = self.suite(node.body)
        return node

    # -- expressions -------------------------------------------

    def resolved(self, node: ast.expr) -> ast.expr:
        result = self.visit(node)
        assert isinstance(result, ast.expr)
        return result

    def callee(self, call: ast.Call) -> str:
        """The dotted name of what a call calls, as the loop text spells it."""
        return dotted(self.spelled(call.func))

    def spelled(self, function: ast.expr) -> ast.expr:
        """The name of a function of the vocabulary, as the loop text spells it."""
        text = dotted(function)
        root, _, rest = text.partition(".")
        if root not in self.bound and self.names.get(root) is T:
            text = f"T.{rest}"
        text = _SPELLINGS.get(text, text)
        if not text:
            return function
        return _at(ast.parse(text, mode="eval").body, function)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.starts:
            return _at(ast.BinOp(node, ast.Add(), self.starts[node.id]), node)
        if _is_stored(node) or node.id in self.bound or node.id in self.symbols:
            return node
        if node.id in self.names:
            return self.constant(node, node.id, self.names[node.id])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        root = node
        while isinstance(root.value, ast.Attribute):
            root = root.value
        name = root.value.id if isinstance(root.value, ast.Name) else ""
        if not name or name in self.bound or name not in self.names or self.names[name] is T:
            return node
        value = self.names[name]
        for part in dotted(node).split(".")[1:]:
            if not hasattr(value, part):
                self.fail(node, f"{ast.unparse(node)} has no value")
            value = getattr(value, part)
        return self.constant(node, ast.unparse(node), value)

    def constant(self, node: ast.expr, name: str, value: Any) -> ast.expr:
        """The value of a name outside the kernel, as a literal or a symbol."""
        match value:
            case Var():
                self.symbols.setdefault(value.name, node)
                return _at(ast.Name(value.name, ast.Load()), node)
            case DType():
                return _at(ast.Constant(str(value.value)), node)
            case bool() | int() | float() | str():
                return _literal(value, node)
            case np.generic():
                return _literal(value.item(), node)
            case np.dtype():
                return _at(ast.Constant(value.name), node)
            case tuple() | list():
                parts = [self.constant(node, name, part) for part in value]
                return _at(ast.Tuple(parts, ast.Load()), node)
        if isinstance(value, type) and issubclass(value, np.generic):
            return _at(ast.Constant(np.dtype(value).name), node)
        kind = type(value).__name__
        message = f"{name} is of type {kind}; a kernel can use numbers, texts and symbols"
        raise self.error(node, message)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        callee = self.callee(node)
        if not callee.startswith("T."):
            self.fail(
                node, f"a kernel calls only functions of T, and {callee or 'this'} is not one"
            )
        if callee in ("T.Cast", "T.cast", "T.reinterpret", "T.bitcast"):
            return self.conversion(node, callee)
        arguments = [self.resolved(argument) for argument in node.args]
        name = callee.removeprefix("T.")
        if name in ("max", "min") and len(arguments) > 2:
            total = arguments[0]
            for argument in arguments[1:]:
                total = _call(name, [total, argument], node)
            return total
        if name in ("min_value", "max_value", "infinity"):
            return self.limit(node, name, arguments)
        if name == "sigmoid" and len(arguments) == 1:
            return self.resolved_text("1.0 / (1.0 + T.exp(-X))", arguments, node)
        if name == "rsqrt" and len(arguments) == 1:
            return self.resolved_text("1.0 / T.sqrt(X)", arguments, node)
        if name in ("div", "truediv") and len(arguments) == 2:
            return _at(ast.BinOp(arguments[0], ast.Div(), arguments[1]), node)
        if name in DType.__members__ and len(arguments) == 1:
            operand = arguments[0]
            number = operand.operand if isinstance(operand, ast.UnaryOp) else operand
            if not isinstance(number, ast.Constant):
                dtype = _at(ast.Constant(name), node)
                return _call("cast", [operand, dtype], node)
        if node.keywords and name != "block":
            self.fail(node.keywords[0].value, f"T.{name} takes no keywords")
        return _at(ast.Call(self.spelled(node.func), arguments, []), node)

    def conversion(self, node: ast.Call, callee: str) -> ast.expr:
        """TVM's `T.Cast("int32", x)` and `T.cast(x, "int32")` are one conversion."""
        arguments = [self.resolved(argument) for argument in node.args]
        arguments += [self.resolved(keyword.value) for keyword in node.keywords]
        if len(arguments) != 2:
            self.fail(node, f'{callee} takes a value and a dtype, as in T.cast(x, "float32")')
        arguments.sort(key=lambda a: isinstance(a, ast.Constant) and isinstance(a.value, str))
        name = "cast" if callee in ("T.Cast", "T.cast") else "bitcast"
        match arguments:
            case [ast.Call() as literal, ast.Constant(value=str(dtype))] if (
                name == "cast" and dotted(literal.func) == f"T.{dtype}"
            ):
                return literal  # it has the dtype already
        return _call(name, arguments, node)

    def limit(self, node: ast.Call, name: str, arguments: Sequence[ast.expr]) -> ast.expr:
        """`T.min_value("float32")`, and its like, as literals."""
        operand = arguments[0] if arguments else None
        dtype = str(operand.value) if isinstance(operand, ast.Constant) else ""
        if dtype not in DType.__members__:
            self.fail(node, f'T.{name} takes a dtype, as in T.{name}("float32")')
        kind = DType(dtype)
        if name == "infinity":
            return _call(dtype, [_at(ast.Constant("inf"), node)], node)
        if kind.is_float:
            largest = float(np.finfo(kind.numpy).max)
            low, high = -largest, largest
        else:
            low, high = kind.limits
        return _call(dtype, [_literal(low if name == "min_value" else high, node)], node)

    def resolved_text(self, text: str, arguments: list[ast.expr], node: ast.AST) -> ast.expr:
        """An expression over `X`, which stands for the argument."""

        class Insert(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.expr:
                return arguments[0] if name.id == "X" else name

        body: ast.expr = Insert().visit(ast.parse(text, mode="eval").body)
        return _at(body, node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        total, *others = (self.resolved(value) for value in node.values)
        for other in others:
            total = _at(ast.BinOp(total, operator, other), node)
        return total

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.resolved(node.operand)
        match node.op:
            case ast.Not() | ast.Invert():
                return _call("bit_not", [operand], node)
            case ast.UAdd():
                return operand
        if isinstance(operand, ast.Constant | ast.UnaryOp):
            return _at(ast.UnaryOp(node.op, operand), node)
        return _call("neg", [operand], node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.resolved(node.left), self.resolved(node.right)
        if isinstance(node.op, ast.Pow):
            return _call("pow", [left, right], node)
        if isinstance(node.op, ast.MatMult):
            self.fail(node, "@ multiplies tensors; a kernel computes elements")
        return _at(ast.BinOp(left, node.op, right), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operands = [self.resolved(operand) for operand in (node.left, *node.comparators)]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        total, *others = [_at(ast.Compare(a, [op], [b]), node) for a, op, b in pairs]
        result: ast.expr = total
        for other in others:
            result = _at(ast.BinOp(result, ast.BitAnd(), other), node)
        return result

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        parts = [self.resolved(part) for part in (node.test, node.body, node.orelse)]
        return _call("select", parts, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if slices := [index for index in indices if isinstance(index, ast.Slice)]:
            self.fail(slices[0], "an element has one index in each dimension; use a loop")
        node.slice = self.resolved(node.slice)
        if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 1:
            node.slice = node.slice.elts[0]
        return node


def _without_root(statements: list[ast.stmt], rewriter: _Rewriter) -> list[ast.stmt]:
    """The statements inside `with T.block("root"):`, if this is the whole body."""
    is_text = [isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in statements]
    match [s for s, text in zip(statements, is_text, strict=True) if not text]:
        case [ast.With(items=[ast.withitem(context_expr=ast.Call() as call)], body=body)] if (
            rewriter.callee(call) == "T.block"
            and [a.value for a in call.args if isinstance(a, ast.Constant)] == ["root"]
        ):
            return body
    return statements


def _operands(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that are not texts."""
    return [a for a in call.args if not (isinstance(a, ast.Constant) and isinstance(a.value, str))]


def _word(name: str) -> ast.Attribute:
    """`T.name`."""
    return ast.Attribute(ast.Name("T", ast.Load()), name, ast.Load())


def _literal(value: float | str, place: ast.AST) -> ast.expr:
    """A literal. Python has no negative literals: they are negated ones."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return _at(ast.UnaryOp(ast.USub(), _at(ast.Constant(-value), place)), place)
    return _at(ast.Constant(value), place)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
