"""`webmlc.TextStep`: a step that hosts compute, because it reads the letters of texts.

A text is an int64 here (`frontend.number_texts`). The attribute `step` holds the record of the step
(`core.text_steps`), and `size` the name of a symbol: the size of an axis that only a run knows,
such as the largest number of tokens. `texts.cut_texts` moves the nodes out of the graph.

`frontend.number_texts` makes these nodes of ONNX's operators, whose rows here are for a list of all
operators.
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.expr import Var, const
from webmlc.core.text_steps import (
    Append,
    CountGrams,
    Match,
    Normalise,
    Parse,
    Print,
    Split,
    TextStep,
    Tokenise,
)
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator
from webmlc.graph.ops.shapes import broadcast

SPELLED = frozenset(
    {DType.float32, DType.float64, DType.int8, DType.int16, DType.int32, DType.int64}
    | {DType.uint8, DType.uint16, DType.uint32, DType.uint64}
)
"""The types of numbers that hosts read and write as texts."""


def _types(context: Context) -> tuple[TensorType, ...]:
    step: TextStep = context.attribute("step")
    shape, size = context.shape(0), Var(str(context.attribute("size")))
    text = TensorType(DType.int64, shape)
    match step:
        case Normalise(stop_words=stop_words):
            if not stop_words:
                return (text,)
            if len(shape) not in (1, 2):
                raise NotSupportedError(f"stop words in texts of {len(shape)} dimensions")
            return (TensorType(DType.int64, (*shape[:-1], size)),)
        case Split():
            return TensorType(DType.int64, (*shape, size)), text
        case Tokenise():
            return (TensorType(DType.int64, (*shape, size)),)
        case Append():
            return (TensorType(DType.int64, broadcast(context, shape, context.shape(1))),)
        case Match():
            return (TensorType(DType.bool, shape),)
        case CountGrams(width=width):
            return (TensorType(DType.float32, (*shape[:-1], const(width))),)
        case Parse(dtype=dtype):
            _check_spelled(dtype)
            return (TensorType(dtype, shape),)
        case Print():
            if context.dtype(0) != DType.bool:
                _check_spelled(context.dtype(0))
            return (text,)
    raise NotSupportedError(f"a step {type(step).__name__} in a graph")


def _check_spelled(dtype: DType) -> None:
    """Raise `NotSupportedError` for numbers that hosts do not read and write as texts."""
    if dtype not in SPELLED:
        raise NotSupportedError(
            f"it reads or writes {dtype} numbers as texts: cast to float32 or int64 in between"
        )


def _without_texts(context: Context, build: Builder) -> Value:
    """Refuse a node that `frontend.number_texts` left, because its input holds no texts."""
    raise NotSupportedError("its input is no text")


OPS: tuple[Operator, ...] = (
    Operator("TextStep", _types, domain="webmlc"),
    *(
        Operator(name, domain=domain, expand=_without_texts)
        for domain, name in (
            ("", "RegexFullMatch"),
            ("", "StringConcat"),
            ("", "StringNormalizer"),
            ("", "StringSplit"),
            ("ai.onnx.ml", "CategoryMapper"),
            ("com.microsoft", "Tokenizer"),
        )
    ),
)
