"""Operators of one's own: nodes of ONNX models that a function of tensors or a kernel defines.

    @operator("com.example", "Smear")
    def smear(x: te.Tensor, *, width: int = 3) -> te.Tensor:
        n, m = x.shape
        k = te.reduce_axis((0, width), name="k")
        return te.compute(
            (n, m), lambda i, j: te.sum(x[i, te.min(j + k, m - 1)], axis=k), name="smear"
        )

    @smear.schedule("wasm")
    def rows_in_parallel(schedule: tir.Schedule) -> None:
        schedule.parallel(schedule.get_loops("smear")[0])

    webmlc.build("model.onnx", "build/model", operators=[smear])

The positional parameters are the node's inputs, in order; a parameter with the default None is an
input that a node may omit. Keyword parameters are attributes, with their defaults. The function
runs for each node, on placeholders of the inputs' types, so types and symbolic shapes of the
outputs follow from it. It returns a tensor, or a tuple of tensors for several outputs.

A kernel (`webmlc.kernel`) has the node's inputs as its first parameters, and the outputs as its
last parameters. The shapes of the inputs decide its symbols. A function that returns such a kernel
for a node, annotated as `-> tir.PrimFunc`, may have attributes.

A node whose operator is a kernel, or has a schedule, is a kernel of its own. All other nodes are
fused, as the nodes of our own operators are.

An installed package offers its operators to all builds by entry points of the group
`webmlc.operators`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from webmlc.core.dtypes import DType
from webmlc.core.errors import UserError, WebmlcError
from webmlc.core.expr import Expr, Var
from webmlc.core.machine import DEVICES, Device
from webmlc.core.rewrite import walk
from webmlc.graph.compute import Read, Reduction, Tensor, placeholder, stages_of
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import (
    Context,
    Custom,
    FusionKind,
    NotSupportedError,
    Operator,
    Signature,
)
from webmlc.graph.table import OWN_DOMAINS
from webmlc.loops.ir import LoopFunction
from webmlc.programs import te
from webmlc.programs.compiled import check_threads
from webmlc.programs.fit_program import check_symbols, fitted
from webmlc.programs.script import Program
from webmlc.programs.tir import Schedule

Function = Callable[..., Tensor | tuple[Tensor, ...] | Program]
ScheduleFunction = Callable[[Schedule], None]
Apply = Callable[[LoopFunction], LoopFunction]
"""The application of a schedule to a kernel."""
RANKS = (2, 4, 3, 1, 0)
"""The ranks of the placeholders that tell how an operator's outputs depend on its inputs. The first
rank that the operator's function takes decides.
"""


@dataclass(slots=True, eq=False)
class CustomOperator:
    """An operator and its function or kernel, which can be called as before."""

    row: Operator
    function: Function | Program

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        return self.function(*operands, **attributes)

    def schedule(self, target: Device) -> Callable[[ScheduleFunction], ScheduleFunction]:
        """Schedule the kernel of each node on a target by a function that applies primitives.

        Each node of the operator is then a kernel of its own, on all targets. A step that is
        refused is the `UserError` of a build. Raises `UserError` for an unknown target.
        """
        if target not in DEVICES:
            raise UserError(f"unknown target {target!r}: choose {' or '.join(DEVICES)}")

        def decorate(function: ScheduleFunction) -> ScheduleFunction:
            custom = self.row.custom
            assert custom is not None, self.row.name
            name = f"{self.row.domain}.{self.row.name}"
            apply: Apply = partial(_scheduled, function, name, target)
            schedules = {**custom.schedules, target: apply}
            self.row = replace(self.row, custom=replace(custom, schedules=schedules))
            return function

        return decorate


def _scheduled(
    schedule: ScheduleFunction, name: str, target: Device, function: LoopFunction
) -> LoopFunction:
    """The kernel with its schedule. Raises `UserError`, which names the operator."""
    scheduled = Schedule(function)
    try:
        schedule(scheduled)
        program = scheduled.program
        check_threads(program, target)
    except WebmlcError as error:
        raise UserError(f"the schedule of {name} for {target}: {error}") from error
    return program.function


def operator(domain: str, name: str) -> Callable[[Function | Program], CustomOperator]:
    """Make an operator of a function of tensors, or of a kernel (see the module).

    Raises `UserError` if the domain is one of ONNX's or webmlc's own, if a parameter is neither an
    input nor an attribute, or if no input decides a symbol of a kernel.
    """
    if domain in OWN_DOMAINS:
        raise UserError(f"the domain {domain!r} has its own operators: choose one of your own")
    full_name = f"{domain}.{name}"

    def decorate(function: Function | Program) -> CustomOperator:
        meaning: _Kernel | _Expression
        if isinstance(function, Program):
            inputs = [buffer.name for buffer in function.function.input_params()]
            defaults: dict[str, Any] = {}
            check_symbols(function.function, full_name)
            meaning = _Kernel(lambda *_: function, full_name, inputs, defaults)
        else:
            inputs, defaults = _parameters(function, full_name)
            of_class = _Kernel if _returns_kernel(function) else _Expression
            meaning = of_class(function, full_name, inputs, defaults)
        if not inputs:
            raise UserError(f"{full_name} has no input")
        row = Operator(
            name,
            infer=meaning.types,
            compute=meaning.compute if isinstance(meaning, _Expression) else None,
            kind=meaning.kind() if isinstance(meaning, _Expression) else "opaque",
            domain=domain,
            signature=Signature(len(inputs), frozenset(defaults)),
            custom=Custom(_origin(function), tuple(inputs), _shown(defaults), meaning.program),
        )
        return CustomOperator(row, function)

    return decorate


def _parameters(function: Function, name: str) -> tuple[list[str], dict[str, Any]]:
    """The names of the inputs, and the defaults of the attributes."""
    inputs: list[str] = []
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        match parameter.kind:
            case inspect.Parameter.POSITIONAL_ONLY | inspect.Parameter.POSITIONAL_OR_KEYWORD:
                inputs.append(parameter.name)
            case inspect.Parameter.KEYWORD_ONLY:
                defaults[parameter.name] = parameter.default
            case _:
                raise UserError(f"{name}: *{parameter.name} is neither an input nor an attribute")
    return inputs, defaults


def _shown(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of attributes; None for an attribute that a node needs."""
    return {n: None if d is inspect.Parameter.empty else d for n, d in defaults.items()}


def _returns_kernel(function: Function) -> bool:
    """True if a function says that it returns a kernel."""
    annotation = inspect.signature(function).return_annotation
    if isinstance(annotation, str):  # of a module with `from __future__ import annotations`
        return annotation.rpartition(".")[2] in ("PrimFunc", Program.__name__)
    return annotation is Program


def _origin(function: Function | Program) -> str:
    """The module and the name of a function, or of a kernel: it stands in the first module around
    this call that is not webmlc's.
    """
    if not isinstance(function, Program):
        return f"{function.__module__}:{function.__qualname__}"
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("webmlc."):
        frame = frame.f_back
    module = "" if frame is None else frame.f_globals.get("__name__", "")
    return f"{module}:{function.name}"


@dataclass(frozen=True, slots=True)
class _Meaning:
    """The meaning of the nodes of an operator: the results of its function."""

    function: Function
    name: str
    inputs: Sequence[str]
    defaults: Mapping[str, Any]

    def placeholders(self, context: Context) -> tuple[Tensor | None, ...]:
        """A tensor for each input of a node."""
        pairs = zip(self.inputs, context.types, strict=False)
        return tuple(
            None if type_ is None else placeholder(name, type_.shape, type_.dtype)
            for name, type_ in pairs
        )

    def attributes(self, context: Context) -> dict[str, Any]:
        """The attributes of a node. Raises `NotSupportedError` if one is missing."""
        values = {}
        for name, default in self.defaults.items():
            value = context.attribute(name, None if default is inspect.Parameter.empty else default)
            if value is None and default is inspect.Parameter.empty:
                raise NotSupportedError(f"the attribute {name} is missing")
            values[name] = value
        return values

    def called(self, context: Context, tensors: tuple[Tensor | None, ...]) -> Any:
        """The result of the function for a node. An error of the function becomes the reason why
        the node is refused.
        """
        try:
            return self.function(*tensors, **self.attributes(context))
        except WebmlcError as error:
            raise NotSupportedError(str(error)) from error
        except Exception as error:
            kind = type(error).__name__
            raise NotSupportedError(f"its function raises {kind}: {error}") from error

    def program(self, context: Context) -> LoopFunction:
        """The kernel of a node."""
        raise NotImplementedError

    def types(self, context: Context) -> tuple[TensorType, ...]:
        """The types of a node's outputs."""
        params = self.program(context).output_params()
        types = tuple(TensorType(buffer.dtype, buffer.shape) for buffer in params)
        return types[: context.output_count]


@dataclass(frozen=True, slots=True)
class _Kernel(_Meaning):
    """The meaning of an operator whose function returns a kernel for a node."""

    def program(self, context: Context) -> LoopFunction:
        """The kernel over the sizes of the node."""
        result = self.called(context, self.placeholders(context))
        if not isinstance(result, Program):
            raise NotSupportedError(f"its function returns {result!r}, no kernel")
        try:
            check_symbols(result.function, self.name)
        except UserError as error:
            raise NotSupportedError(str(error)) from error
        return fitted(result.function, context)


@dataclass(frozen=True, slots=True)
class _Expression(_Meaning):
    """The meaning of an operator whose function returns tensors."""

    def compute(self, context: Context, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """The results for a node."""
        return _tensors(self.called(context, tensors))

    def program(self, context: Context) -> LoopFunction:
        """The kernel that stores the result of each `compute`. Raises `NotSupportedError` if an
        index may be outside its tensor.
        """
        inputs = self.placeholders(context)
        results = self.compute(context, *inputs)
        present = [tensor for tensor in inputs if tensor is not None]
        distinct = [
            _copy(t) if t.body is None or t in results[:place] else t
            for place, t in enumerate(results)
        ]
        try:
            return te.create_prim_func([*present, *distinct], context.node.op.lower()).function
        except UserError as error:
            raise NotSupportedError(str(error)) from error

    def kind(self) -> FusionKind:
        """How the elements of the outputs depend on the inputs, found on placeholders."""
        attributes = {n: 1 if d is inspect.Parameter.empty else d for n, d in self.defaults.items()}
        for rank in RANKS:
            shape = tuple(Var(f"d{axis}") for axis in range(rank))
            tensors = tuple(placeholder(name, shape, DType.float32) for name in self.inputs)
            try:
                results = _tensors(self.function(*tensors, **attributes))
            except Exception:  # a function of tensors of another rank, or of constants
                continue
            return _kind(results, shape)
        return "opaque"


def _tensors(result: Any) -> tuple[Tensor, ...]:
    """The result of a function as a tuple. Raises `NotSupportedError` for another result."""
    results = result if isinstance(result, tuple) else (result,)
    if wrong := [part for part in results if not isinstance(part, Tensor)]:
        if isinstance(wrong[0], Program):
            raise NotSupportedError("its function returns a kernel: annotate it, -> tir.PrimFunc")
        raise NotSupportedError(f"its function returns {wrong[0]!r}, no tensor")
    return results


def _copy(tensor: Tensor) -> Tensor:
    return te.compute(tensor.shape, lambda *index: tensor[index], f"{tensor.name}_copy")


def _kind(results: tuple[Tensor, ...], shape: tuple[Expr, ...]) -> FusionKind:
    """The kind of an operator on inputs of this shape, by its results."""
    stages = [tensor for tensor in stages_of(results) if tensor.body is not None]
    if len(results) == 1 and all(_is_elementwise(stage, shape) for stage in stages):
        return "elementwise"
    is_fold = len(results) == 1 and isinstance(results[0].body, Reduction)
    if is_fold and all(source.body is None for source in results[0].sources):
        return "reduction"
    return "opaque"


def _is_elementwise(tensor: Tensor, shape: tuple[Expr, ...]) -> bool:
    """True if each element depends on the elements of other tensors at the same position only."""
    if tensor.shape != shape or not isinstance(tensor.body, Expr):
        return False
    reads = [node for node in walk(tensor.body) if isinstance(node, Read)]
    return all(read.indices == tensor.axes for read in reads)
