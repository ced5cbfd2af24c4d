"""Check the invariants of the loop IR. Every pass takes and returns functions that fulfil them.

In: a `LoopFunction`. Out: nothing, or an `InternalError` that shows the text of the function with
the culprit underlined:

    verify: kernel relu: vk is not bound here
        @T.kernel
        def relu(A: T.Buffer((8,), "float32"), B: T.Output((8,), "float32")):
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.remap("S", [i])
                    B[vi] = T.max(A[vk], T.float32(0.0))
                                    ^^

The invariants:

- Names of variables and buffers are identifiers, and unique in the whole function: two loops that
  follow each other have different variables, too. Names of blocks are unique among blocks.
- A block's body sees only its axes, the symbols, and the variables that it binds itself.
- The ranks, dtypes and lanes of operands, buffers, indices and stored values agree.
- Inputs are not written. Parameters are global.
- No reduction axis is bound to a loop whose steps run in any order: a parallel loop, a vectorised
  loop, or a loop bound to threads.
- A sequence holds no sequence, and not exactly one statement, so that equal code has one form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, get_args

from webmlc.core.combination import Combination
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Call, Expr, Ramp, Var
from webmlc.core.instruction import InstructionCall
from webmlc.core.rewrite import variables, walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.core.symbol_names import is_name
from webmlc.loops.ir import (
    THREAD_AXES,
    Block,
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    LoopKind,
    Seq,
    Stmt,
    Store,
)
from webmlc.loops.print_text import Culprit, draw

Scope = frozenset[Var]
"""The variables that are visible at a place. (The scope of a buffer is where its memory is.)"""


class InvariantError(InternalError):
    """An invariant does not hold at `culprit`, a part of the function, for the reason `message`."""

    def __init__(
        self, function: LoopFunction, culprit: Culprit | None, message: str, part: str
    ) -> None:
        self.culprit, self.message, self.part = culprit, message, part
        drawing = draw(function, culprit, part)
        super().__init__(f"verify: kernel {function.name}: {message}\n{drawing}")


def verify(function: LoopFunction) -> None:
    """Raise `InvariantError` unless `function` fulfils every invariant of the loop IR."""
    _Verifier(function).verify()


class _Verifier:
    """The verifier of one function. All its rules share the names and buffers declared so far."""

    def __init__(self, function: LoopFunction) -> None:
        self.function = function
        self.names: set[str] = set()
        self.blocks: set[str] = set()
        self.buffers: dict[str, Buffer] = {}
        inputs = function.input_params()
        self.inputs = {buffer.name for buffer in inputs}
        self.unordered: set[Var] = set()  # variables of loops that do not run in order

    def fail(self, culprit: Culprit | None, message: str, part: str = "") -> NoReturn:
        """Raise the error, which shows the text of the node `culprit`, with `part` underlined."""
        raise InvariantError(self.function, culprit, message, part)

    def verify(self) -> None:
        function = self.function
        if not is_name(function.name):
            self.fail(None, f"{function.name!r} is not a name")
        if not 0 <= function.outputs <= len(function.params):
            self.fail(None, f"{function.outputs} outputs of {len(function.params)} parameters")
        for symbol in function.symbols:
            self.declare(symbol, symbol)
        symbols = frozenset(function.symbols)
        for buffer in (*function.params, *function.allocations):
            self.claim(buffer.name, buffer)
            self.buffers[buffer.name] = buffer
            for extent in buffer.shape:
                self.index(extent, symbols, buffer)
        if wrong := [b for b in function.params if b.scope != "global"]:
            self.fail(wrong[0], f"parameter {wrong[0].name} is not global", wrong[0].name)
        self.statement(function.body, symbols)

    # -- names --------------------------------------------------

    def claim(self, name: str, culprit: Culprit) -> None:
        """Take a name, which nothing else may have."""
        if not is_name(name):
            self.fail(culprit, f"{name!r} is not a name", name)
        if name in self.names:
            self.fail(culprit, f"the name {name} is taken", name)
        self.names.add(name)

    def declare(self, var: Var, culprit: Culprit, dtype: DType = INDEX) -> Var:
        """Take the name of a variable, check its type, and return it."""
        self.claim(var.name, culprit)
        if var.dtype != dtype:
            self.fail(culprit, f"{var.name} is {var.dtype}, not {dtype}", var.name)
        return var

    # -- statements ---------------------------------------------

    def statement(self, stmt: Stmt, scope: Scope) -> None:
        match stmt:
            case Seq(statements=statements):
                if len(statements) == 1 or any(isinstance(s, Seq) for s in statements):
                    self.fail(statements[0], "a sequence is nested, or of length one")
                for child in statements:
                    self.statement(child, scope)
            case Store():
                self.store(stmt, scope)
            case For():
                self.loop(stmt, scope)
            case If(condition=condition, then=then, otherwise=otherwise):
                self.check_type(condition, DType.bool, scope, stmt)
                self.statement(then, scope)
                if otherwise is not None:
                    self.statement(otherwise, scope)
            case Let(var=var, value=value, body=body):
                self.expr(value, scope, stmt)
                if value.lanes != 1:
                    self.fail(stmt, f"{var.name} is bound to a vector: use a buffer", str(value))
                self.declare(var, stmt, value.dtype)
                self.statement(body, scope | {var})
            case Block():
                self.block(stmt, scope)

    def loop(self, loop: For, scope: Scope) -> None:
        self.index(loop.extent, scope, loop)
        self.declare(loop.var, loop)
        if loop.kind not in get_args(LoopKind):
            self.fail(loop, f"unknown loop kind {loop.kind!r}")
        if (loop.kind == "thread_binding") != (loop.thread in THREAD_AXES):
            self.fail(loop, f"a {loop.kind} loop on thread axis {loop.thread}")
        if loop.kind in ("parallel", "vectorized", "thread_binding"):
            self.unordered.add(loop.var)
        self.statement(loop.body, scope | {loop.var})

    def store(self, store: Store, scope: Scope) -> None:
        buffer = store.buffer
        self.access(buffer, store.indices, store)
        if buffer.name in self.inputs:
            self.fail(store, f"the input {buffer.name} is written", buffer.name)
        for index in store.indices:
            self.index(index, scope, store, scalar=False)
        self.check_type(store.value, buffer.dtype, scope, store, scalar=False)
        lanes = max((i.lanes for i in store.indices), default=1)
        if any(i.lanes not in (1, lanes) for i in store.indices):
            self.fail(store, f"indices of {buffer.name} have different lanes", buffer.name)
        if store.value.lanes != lanes:
            self.fail(
                store,
                f"{store.value.lanes} lanes stored to {lanes} elements of {buffer.name}",
                str(store.value),
            )

    def block(self, block: Block, scope: Scope) -> None:
        if block.name in self.blocks:
            self.fail(block, f"the block name {block.name} is taken", block.name)
        self.blocks.add(block.name)
        if len(block.bindings) != len(block.axes):
            self.fail(block, f"{len(block.axes)} axes with {len(block.bindings)} bindings")
        for axis, binding in block.bound_axes():
            self.index(axis.extent, scope, axis.var)
            self.index(binding, scope, axis.var)
            if axis.kind == "reduce" and (shared := variables(binding) & self.unordered):
                names = ", ".join(sorted(v.name for v in shared))
                self.fail(
                    axis.var, f"{names} does not run in order, and {axis.var.name} reduces", names
                )
        if block.predicate is not None:
            self.check_type(block.predicate, DType.bool, scope, block)
        for axis in block.axes:
            self.declare(axis.var, axis.var)
        inner = frozenset(self.function.symbols) | {axis.var for axis in block.axes}
        if block.init is not None:
            self.statement(block.init, inner)
        self.statement(block.body, inner)

    # -- expressions --------------------------------------------

    def index(self, expr: Expr, scope: Scope, culprit: Culprit, scalar: bool = True) -> None:
        self.check_type(expr, INDEX, scope, culprit, scalar)

    def check_type(
        self, expr: Expr, dtype: DType, scope: Scope, culprit: Culprit, scalar: bool = True
    ) -> None:
        self.expr(expr, scope, culprit)
        if expr.dtype != dtype:
            self.fail(culprit, f"{expr} is {expr.dtype}, not {dtype}", str(expr))
        if scalar and expr.lanes != 1:
            self.fail(culprit, f"{expr} is a vector of {expr.lanes}, not a scalar", str(expr))

    def expr(self, root: Expr, scope: Scope, culprit: Culprit) -> None:
        for node in walk(root):
            match node:
                case Var():
                    if node not in scope:
                        self.unbound(node, scope, culprit)
                case Load(buffer=buffer, indices=indices):
                    self.access(buffer, indices, culprit)
                    if wrong := [i for i in indices if i.dtype != INDEX]:
                        self.fail(
                            culprit, f"{wrong[0]} is {wrong[0].dtype}, not {INDEX}", str(node)
                        )
                case Call():
                    self.call(node, culprit)
                case Combination():
                    self.combination(node, culprit)
                case InstructionCall():
                    self.instruction(node, culprit)
                case Ramp(base=base, stride=stride) if base.lanes != 1 or stride.lanes != 1:
                    self.fail(culprit, f"a ramp of vectors: {node}", str(node))

    def unbound(self, var: Var, scope: Scope, culprit: Culprit) -> NoReturn:
        if clash := [v for v in scope if v.name == var.name]:
            self.fail(culprit, f"{var.name} is {clash[0].dtype}, used as {var.dtype}", var.name)
        where = "not visible inside the block" if var.name in self.names else "not bound here"
        self.fail(culprit, f"{var.name} is {where}", var.name)

    def access(self, buffer: Buffer, indices: Sequence[Expr], culprit: Culprit) -> None:
        declared = self.buffers.get(buffer.name)
        if declared is None:
            self.fail(culprit, f"the buffer {buffer.name} is not declared", buffer.name)
        if declared != buffer:
            self.fail(culprit, f"{buffer.name} is not as it was declared: {buffer}", buffer.name)
        if len(indices) != len(buffer.shape):
            self.fail(
                culprit,
                f"{buffer.name} has {len(buffer.shape)} dimensions, indexed with {len(indices)}",
                buffer.name,
            )

    def call(self, node: Call, culprit: Culprit) -> None:
        row = SCALAR_OPERATORS.get(node.op)
        if row is None or len(node.args) != row.arity:
            self.fail(culprit, f"{node.op} of {len(node.args)} operands", str(node))
        operands = node.args[1:] if node.op == "select" else node.args
        dtypes = {a.dtype for a in operands}
        result = DType.bool if row.result == "bool" else operands[-1].dtype
        if len(dtypes) != 1 or node.dtype != result:
            kinds = ", ".join(a.dtype for a in node.args)
            self.fail(culprit, f"{node.op} of {kinds} is not {node.dtype}", str(node))
        if node.op == "select" and node.args[0].dtype is not DType.bool:
            self.fail(culprit, f"select on a {node.args[0].dtype}", str(node))
        widths = {a.lanes for a in operands}
        if node.op == "select" and node.args[0].lanes != 1:  # a scalar condition chooses for all
            widths.add(node.args[0].lanes)
        if len(widths) != 1:
            self.fail(culprit, f"{node.op} of vectors of {sorted(widths)} lanes", str(node))

    def combination(self, node: Combination, culprit: Culprit) -> None:
        widths = {len(row) for row in node.matrix}
        if widths != {len(node.values)}:
            self.fail(culprit, f"{len(node.values)} values for rows of {sorted(widths)}", str(node))
        if node.row.dtype != INDEX:
            self.fail(culprit, f"a combination's row is {node.row.dtype}, not {INDEX}", str(node))
        if len({value.dtype for value in node.values}) != 1:
            kinds = ", ".join(value.dtype for value in node.values)
            self.fail(culprit, f"a combination of {kinds}", str(node))
        if node.lanes != 1:
            self.fail(culprit, f"a combination of vectors of {node.lanes} lanes", str(node))

    def instruction(self, node: InstructionCall, culprit: Culprit) -> None:
        parameters = node.instruction.parameters
        if len(node.args) != len(parameters):
            self.fail(culprit, f"{len(node.args)} operands, not {len(parameters)}", str(node))
        for parameter, operand in zip(parameters, node.args, strict=True):
            if operand.dtype != parameter.dtype:
                kinds = f"{operand.dtype}, not {parameter.dtype}"
                self.fail(culprit, f"operand {parameter.name} is {kinds}", str(node))
        if len(widths := {operand.lanes for operand in node.args}) != 1:
            self.fail(culprit, f"operands of {sorted(widths)} lanes", str(node))
