"""`te`: tensor expressions with TVM's names, and the programs that compute them.

    n = T.symbol("n")
    A = te.placeholder((n, 64), "float32", name="A")
    B = te.placeholder((64, 32), "float32", name="B")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((n, 32), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    program = te.create_prim_func([A, B, C])

Each `compute` becomes a block, in the order in which they depend on each other. The sizes are
numbers or symbols. Elements combine by Python's operators and by the functions of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from webmlc.core import expr as core
from webmlc.core.dtypes import INDEX, DType
from webmlc.core.errors import UserError
from webmlc.core.expr import Cast, Const, Expr, Operand, Var, as_expr, set_lanes
from webmlc.core.rewrite import rewrite, substitute, variables, walk
from webmlc.core.scalar_operators import SCALAR_OPERATORS
from webmlc.graph.compute import Read, ReduceAxis, Reduction, Tensor, identity, stages_of
from webmlc.loops.ir import Buffer, Load, LoopFunction, Stmt, Store, seq
from webmlc.loops.stages import StageNest
from webmlc.loops.verify import verify
from webmlc.programs.check_program import check_program
from webmlc.programs.script import Program
from webmlc.programs.vocabulary import T
from webmlc.schedule.tree import fresh

__all__ = ["Tensor", "all", "any", "cast", "compute", "const", "create_prim_func", "if_then_else",
           "max", "min", "placeholder", "reduce_axis", "sigmoid", "sum", "var"]  # fmt: skip

Size = int | Expr
Shape = Size | Sequence[Size]


@dataclass(frozen=True, slots=True, eq=False)
class IterVar(Expr):
    """A reduce axis: an index in the body of a `compute`, from 0 to `extent`, excluded."""

    var: Var
    extent: Expr

    def __post_init__(self) -> None:
        set_lanes(self, 1)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return INDEX

    def text(self, parts: list[str]) -> str:
        """Its name."""
        return self.var.name


Axes = IterVar | Sequence[IterVar]


@dataclass(frozen=True, slots=True, eq=False)
class _Fold(Expr):
    """A reduction inside the body of `compute`, until `compute` makes a tensor of it."""

    combine: str
    axes: tuple[IterVar, ...]
    value: Expr

    def __post_init__(self) -> None:
        set_lanes(self, 1)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.value.dtype

    def reduction(self, name: str) -> Reduction:
        """The reduction of the tensor `name`, whose axes have names of their own."""
        variables = {axis.var: Var(f"{name}_{axis.var.name}") for axis in self.axes}

        def rule(node: Expr) -> Expr | None:
            return variables.get(node.var) if isinstance(node, IterVar) else None

        along = tuple(ReduceAxis(variables[a.var], a.extent) for a in self.axes)
        value = rewrite(self.value, rule)
        if strangers := [part for part in walk(value) if isinstance(part, IterVar)]:
            raise UserError(f"{name}: {strangers[0].var.name} is an axis of no reduction around it")
        return Reduction(self.combine, along, value, identity(self.combine, value.dtype))


def _shape(shape: Shape) -> tuple[Expr, ...]:
    sizes = shape if isinstance(shape, Sequence) else (shape,)
    return tuple(as_expr(size) for size in sizes)


def placeholder(shape: Shape, dtype: str = "float32", name: str = "placeholder") -> Tensor:
    """An input of this shape and dtype."""
    if dtype not in DType.__members__:
        raise UserError(f"unknown dtype {dtype!r}: choose one of {', '.join(DType.__members__)}")
    return Tensor(name, _shape(shape), DType(dtype))


def var(name: str = "n", dtype: str = "int64") -> Var:
    """A symbolic size: TVM's name of `T.symbol`. Sizes are of one type, so `dtype` is not read."""
    return T.symbol(name)


def reduce_axis(dom: Sequence[Size], name: str = "k") -> IterVar:
    """An axis to reduce along, from 0 to the end of `dom`, excluded."""
    start, end = dom
    if not isinstance(start, int) or start != 0:
        raise UserError("a reduce axis starts at 0: shift the indices instead")
    return IterVar(Var(name), as_expr(end))


def compute(shape: Shape, fcompute: Callable[..., Expr | float], name: str = "compute") -> Tensor:
    """The tensor whose element at the indices `i, j, ...` is `fcompute(i, j, ...)`."""
    sizes = _shape(shape)
    code = fcompute.__code__ if hasattr(fcompute, "__code__") else None
    names = code.co_varnames[: code.co_argcount] if code else ()
    if len(names) != len(sizes):
        names = tuple(f"i{d}" for d in range(len(sizes)))
    axes = tuple(Var(f"{name}_{axis}") for axis in names)
    body = fcompute(*axes)
    value = body if isinstance(body, Expr) else core.const(body, DType.float32)
    if isinstance(value, _Fold):
        return Tensor(name, sizes, value.dtype, axes, value.reduction(name))
    if [part for part in walk(value) if isinstance(part, _Fold)]:
        raise UserError(f"{name}: a reduction is the whole body of a compute; use two computes")
    return Tensor(name, sizes, value.dtype, axes, value)


# -- reductions ------------------------------------------------------------------------------------


def _reduced(combine: str, value: Expr, axis: Axes) -> Expr:
    return _Fold(combine, (axis,) if isinstance(axis, IterVar) else tuple(axis), value)


def sum(expr: Expr, axis: Axes) -> Expr:
    """The sum of an expression along reduce axes."""
    return _reduced("add", expr, axis)


def max(a: Expr, b: Operand | None = None, axis: Axes | None = None) -> Expr:
    """The maximum of two values, or of an expression along reduce axes."""
    return core.maximum(a, b) if axis is None else _reduced("max", a, axis)  # type: ignore[arg-type]


def min(a: Expr, b: Operand | None = None, axis: Axes | None = None) -> Expr:
    """The minimum of two values, or of an expression along reduce axes."""
    return core.minimum(a, b) if axis is None else _reduced("min", a, axis)  # type: ignore[arg-type]


# -- elements --------------------------------------------------------------------------------------


def if_then_else(condition: Expr, then: Operand, otherwise: Operand) -> Expr:
    """`then` where the condition holds, else `otherwise`, which is not evaluated there."""
    like = then if isinstance(then, Expr) else otherwise
    dtype = like.dtype if isinstance(like, Expr) else DType.float32
    parts = [p if isinstance(p, Expr) else core.const(p, dtype) for p in (then, otherwise)]
    return core.select(condition, *parts)


def all(*conditions: Expr) -> Expr:
    """True where all conditions hold."""
    total, *others = conditions
    for condition in others:
        total = core.call("bit_and", total, condition)
    return total


def any(*conditions: Expr) -> Expr:
    """True where one of the conditions holds."""
    total, *others = conditions
    for condition in others:
        total = core.call("bit_or", total, condition)
    return total


def cast(value: Expr, dtype: str) -> Expr:
    """A value as another dtype."""
    return Cast(value, DType(dtype))


def const(value: float, dtype: str = "float32") -> Expr:
    """A number of a dtype."""
    return Const(value, DType(dtype))


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + core.call("exp", -x))


def __getattr__(name: str) -> Callable[..., Expr]:
    """The other scalar operators, such as `te.exp` and `te.sqrt`, by their names."""
    spelled = {"power": "pow", "fabs": "abs"}.get(name, name)
    if spelled not in SCALAR_OPERATORS:
        raise AttributeError(f"module 'te' has no attribute {name!r}")

    def operator(*operands: Expr) -> Expr:
        return core.call(spelled, *operands)

    return operator


# -- programs --------------------------------------------------------------------------------------


def create_prim_func(tensors: Sequence[Tensor], name: str = "main") -> Program:
    """The program that computes the last tensors from the placeholders among `tensors`.

    The parameters are `tensors`, in order: first the placeholders, then the results. Tensors
    between them become allocations.
    """
    inputs = [tensor for tensor in tensors if tensor.body is None]
    results = list(tensors[len(inputs) :])
    if not results or [t for t in results if t.body is None]:
        raise UserError("the tensors of a program are its placeholders, and then its results")
    order = stages_of(results)
    if missing := [t for t in order if t.body is None and t not in inputs]:
        raise UserError(f"{missing[0].name} is read, and is not among the tensors of the program")
    symbols = tuple(dict.fromkeys(v for t in order for size in t.shape for v in variables(size)))
    names = {symbol.name for symbol in symbols}
    stages = [tensor for tensor in order if tensor.body is not None]
    buffers = {t: Buffer(fresh(t.name, names), t.shape, t.dtype) for t in (*inputs, *stages)}
    statements = [_nest(stage, buffers, names) for stage in stages]
    params = tuple(buffers[tensor] for tensor in (*inputs, *results))
    allocations = tuple(buffer for buffer in buffers.values() if buffer not in params)
    function = LoopFunction(name, params, len(results), symbols, allocations, seq(*statements))
    verify(function)
    for _, message in check_program(function):
        raise UserError(f"{name}: {message}")
    return Program(function)


def _nest(tensor: Tensor, buffers: Mapping[Tensor, Buffer], names: set[str]) -> Stmt:
    """The loops and the block that compute a tensor. The names of the loops are added to `names`,
    and so are the names of the block's axes.
    """
    spatial = tuple(map(ReduceAxis, tensor.axes, tensor.shape))
    along = tensor.body.axes if isinstance(tensor.body, Reduction) else ()
    short = (axis.var.name.removeprefix(f"{tensor.name}_") for axis in (*spatial, *along))
    labels = [_label(name, names) for name in short]
    buffer = buffers[tensor]
    nest = StageNest(buffer.name, spatial, along, labels)
    index = tuple(nest.axis_vars[axis] for axis in tensor.axes)

    def lowered(value: Expr) -> Expr:
        return rewrite(substitute(value, nest.axis_vars), read)

    def read(node: Expr) -> Expr | None:
        return Load(buffers[node.tensor], node.indices) if isinstance(node, Read) else None

    if isinstance(tensor.body, Reduction):
        total = core.call(tensor.body.combine, Load(buffer, index), lowered(tensor.body.value))
        return nest.around(Store(buffer, index, total), Store(buffer, index, tensor.body.init))
    assert isinstance(tensor.body, Expr), tensor.name
    return nest.around(Store(buffer, index, lowered(tensor.body)))


def _label(base: str, names: set[str]) -> str:
    """A name for a loop whose axis `v_...` has a free name, too. Both are added to `names`."""
    of_axes = {name.removeprefix("v_") for name in names if name.startswith("v_")}
    label = fresh(base, names | of_axes)
    names.update((label, f"v_{label}"))
    return label
