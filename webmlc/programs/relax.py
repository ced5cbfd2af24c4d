"""`R` and `module`: graph functions that call kernels, beside the kernels that they call.

    @webmlc.module
    class Net:
        @T.prim_func
        def linear(x: T.Buffer((1, 4), "float32"), w: T.Buffer((3, 4), "float32"), y: ...): ...

        @R.function
        def main(x: R.Tensor((1, 4), "float32"), w: R.Tensor((3, 4), "float32")):
            with R.dataflow():
                y = R.call_tir(linear, (x, w), R.Tensor((1, 3), "float32"))
                R.output(y)
            return y

A graph function is a list of calls in order. `R.call_tir(kernel, inputs, type)` allocates a tensor
of the type, or one for each type of a list, and passes the inputs and then these to the kernel. The
function is parsed and never executed, and its errors underline their place.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from webmlc.core.dtypes import DType
from webmlc.core.errors import UserError
from webmlc.core.expr import Expr, Var, as_expr
from webmlc.core.simplify import simplify
from webmlc.core.symbol_names import is_name
from webmlc.graph.ir import Function, Node, TensorType
from webmlc.loops.parse_expr import dotted
from webmlc.programs.ir_module import IRModule
from webmlc.programs.script import Program, Source, names_of
from webmlc.programs.vocabulary import Annotation


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A decorated graph function, which `module` parses when it knows the kernels."""

    source: Source
    names: Mapping[str, Any]


class RelaxVocabulary:
    """The names of graph functions (see the module)."""

    Tensor = Annotation

    @staticmethod
    def function(definition: Callable[..., Any]) -> GraphSource:
        """Keep the source of a graph function for `webmlc.module`."""
        return GraphSource(Source.of(definition), names_of(definition))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(f"R.{name} is a word of graph functions, which stand under @R.function")


R = RelaxVocabulary()
"""The vocabulary of graph functions."""


def module(definition: type) -> IRModule:
    """Make a module of the kernels and of the graph function of a class. Raises `ScriptError` for a
    graph function that calls no kernel of the module.
    """
    members = vars(definition)
    kernels = {name: value for name, value in members.items() if isinstance(value, Program)}
    graphs = [value for value in members.values() if isinstance(value, GraphSource)]
    if len(graphs) > 1:
        raise UserError(f"{definition.__name__} has {len(graphs)} graph functions; one is enough")
    if not kernels:
        raise UserError(f"{definition.__name__} has no kernel: decorate one with @T.prim_func")
    main = _Parser(graphs[0], kernels).function() if graphs else None
    return IRModule(kernels, main)


class _Parser:
    """The parser of one graph function."""

    def __init__(self, graph: GraphSource, kernels: Mapping[str, Program]) -> None:
        self.graph = graph
        self.kernels = kernels
        self.types: dict[str, TensorType] = {}
        self.symbols: dict[str, Var] = {}
        self.nodes: list[Node] = []

    def error(self, node: ast.AST, message: str) -> Exception:
        return self.graph.source.error(node, message)

    def function(self) -> Function:
        (definition,) = ast.parse(self.graph.source.text).body
        assert isinstance(definition, ast.FunctionDef)
        for argument in definition.args.args:
            if argument.annotation is None:
                raise self.error(argument, f"{argument.arg} has no type: write R.Tensor(shape)")
            self.types[argument.arg] = self.type(argument.annotation)
        inputs = tuple(self.types)
        outputs = self.suite(definition.body)
        if not outputs:
            raise self.error(definition, "a graph function ends with return")
        return Function("main", inputs, outputs, tuple(self.nodes), self.types, {})

    def suite(self, statements: list[ast.stmt]) -> tuple[str, ...]:
        """Parse statements; returns the names after `return`, if it is among them."""
        for statement in statements:
            match statement:
                case ast.With(items=[item], body=body):
                    if ast.unparse(item) != "R.dataflow()":
                        raise self.error(statement, "a graph function has R.dataflow() only")
                    self.suite(body)
                case ast.Expr(value=ast.Constant()):
                    pass
                case ast.Expr(value=ast.Call(func=function)) if dotted(function) in (
                    "R.output",
                    "R.func_attr",
                ):
                    pass
                case ast.Assign(targets=[ast.Name(id="cls")]):
                    pass
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(func=function, args=[])
                ) if dotted(function) in ("T.int64", "T.int32"):
                    self.symbols[name] = Var(name)
                case ast.Assign(targets=[target], value=value):
                    self.assign(target, value)
                case ast.Return(value=ast.expr() as value):
                    names = value.elts if isinstance(value, ast.Tuple) else [value]
                    return tuple(self.value(name) for name in names)
                case _:
                    raise self.error(statement, "not a statement of a graph function")
        return ()

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        outputs = tuple(name.id for name in names if isinstance(name, ast.Name))
        if len(outputs) != len(names):
            raise self.error(target, "a graph function assigns to names")
        if isinstance(value, ast.Name) and len(outputs) == 1:
            raise self.error(value, f"{outputs[0]} is another name of {value.id}: use one name")
        if not isinstance(value, ast.Call) or dotted(value.func) != "R.call_tir":
            raise self.error(value, "a graph function calls kernels by R.call_tir")
        arguments = [*value.args, *(keyword.value for keyword in value.keywords)]
        if len(arguments) != 3:
            raise self.error(value, "R.call_tir takes a kernel, its inputs, and the output's type")
        kernel = dotted(arguments[0]).rsplit(".", 1)[-1]
        if kernel not in self.kernels:
            names_of_kernels = ", ".join(self.kernels)
            message = f"{kernel or 'this'} is no kernel of the module; they are: {names_of_kernels}"
            raise self.error(arguments[0], message)
        is_tuple = isinstance(arguments[1], ast.Tuple | ast.List)
        operands = arguments[1].elts if is_tuple else [arguments[1]]  # type: ignore[attr-defined]
        inputs = tuple(self.value(operand) for operand in operands)
        kinds = arguments[2].elts if isinstance(arguments[2], ast.List) else [arguments[2]]
        types = [self.type(kind) for kind in kinds]
        if len(types) != len(outputs):
            raise self.error(target, f"{len(outputs)} names for {len(types)} outputs")
        self.check(value, self.kernels[kernel], [*(self.types[i] for i in inputs), *types])
        for output, type_ in zip(outputs, types, strict=True):
            if output in self.types:
                raise self.error(target, f"{output} is bound already")
            self.types[output] = type_
        self.nodes.append(Node("call_kernel", inputs, outputs, {"kernel": kernel}, "webmlc"))

    def check(self, call: ast.Call, program: Program, types: list[TensorType]) -> None:
        """Check that the tensors of a call have the types of the kernel's parameters."""
        params = program.function.params
        if len(types) != len(params):
            names = ", ".join(buffer.name for buffer in params)
            raise self.error(call, f"{program.name} takes {names}; the call has {len(types)}")
        for buffer, type_ in zip(params, types, strict=True):
            fits = buffer.dtype is type_.dtype and len(buffer.shape) == type_.rank
            pairs = zip(buffer.shape, type_.shape, strict=True) if fits else ()
            if not fits or any(simplify(a) != simplify(b) for a, b in pairs):
                shape = ", ".join(map(str, buffer.shape))
                raise self.error(
                    call,
                    f"{program.name} takes {buffer.dtype}[{shape}] for {buffer.name}, not {type_}",
                )

    def value(self, node: ast.expr) -> str:
        name = dotted(node)
        if name not in self.types:
            raise self.error(node, f"{name or 'this'} is not bound here")
        return name

    def type(self, node: ast.expr) -> TensorType:
        """`R.Tensor((n, 4), "float32")`."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.copy_location(ast.parse(node.value, mode="eval").body, node)
        if not isinstance(node, ast.Call) or dotted(node.func) != "R.Tensor" or not node.args:
            raise self.error(node, 'expected R.Tensor((n, 4), "float32")')
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        dtype = "float32" if len(arguments) == 1 else self.evaluated(arguments[1])
        if dtype not in DType.__members__:
            raise self.error(arguments[1], f"unknown dtype {dtype!r}")
        shape = self.evaluated(arguments[0])
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        sizes = tuple(Var(s) if isinstance(s, str) and is_name(s) else s for s in sizes)
        if wrong := [size for size in sizes if not isinstance(size, int | Expr)]:
            raise self.error(arguments[0], f"{wrong[0]!r} is no size: use a number or a symbol")
        return TensorType(DType(dtype), tuple(as_expr(size) for size in sizes))

    def evaluated(self, node: ast.expr) -> Any:
        """The value of an expression of numbers, texts, and names around the function."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self.evaluated(part) for part in parts)
            case ast.Name(id=name) if name in self.symbols:
                return self.symbols[name]
            case ast.Name(id=name) if name in self.graph.names:
                value = self.graph.names[name]
                if isinstance(value, int | str | tuple | list | Var | DType):
                    return value
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.evaluated(left) + self.evaluated(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.evaluated(left) * self.evaluated(right)
        raise self.error(node, f"{ast.unparse(node)} is no number, text or symbol")
