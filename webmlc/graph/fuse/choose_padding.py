"""Decide which kernel pads a feature map: its own kernel, which computes it, or a separate kernel.

A kernel that pads its own result saves a copy. But its loops must leave out the borders, and no
kernel without padding shares its code.

    writes_padded(data, result, module.algorithms)   the answer of a search, else that of a threshold
    padding_alternatives(module)  ->  {"pad 1x56x56x64 to 1x58x58x64": ("in the kernel before", "apart")}
"""  # noqa: E501 (the example)

from __future__ import annotations

import math
from collections.abc import Mapping

from webmlc.core.expr import as_int
from webmlc.graph.ir import Function, Module, Node, TensorType, consumers, producers
from webmlc.graph.ops.operator import Scope
from webmlc.graph.rewrite.meaning import MAPS, kind_of

BEFORE, APART = "in the kernel before", "apart"
_MIN_SAVED_COPY = 1 << 18
"""A kernel pads its result by default if the result has at least this many bytes. Its code grows by
two hundred bytes, and no other kernel shares it (chosen by hand).
"""
_MIN_SEARCHED_COPY = 1 << 14
"""A search tries both places if the feature map has at least this many bytes: the time of a smaller
copy is lost in the noise (chosen by hand).
"""


def writes_padded(data: TensorType, result: TensorType, chosen: Mapping[str, str]) -> bool:
    """True if the kernel that computes `data` writes the padded `result`. `chosen` has the answers
    of a search.
    """
    return chosen.get(_name(data, result), _places(data)[0]) == BEFORE


def padding_alternatives(module: Module) -> dict[str, tuple[str, ...]]:
    """Both places for each padding that may go into the kernel before, the default one first.

    needs: layouts chosen, inferred types.
    """
    names: dict[str, tuple[str, ...]] = {}
    for function in module.functions.values():
        for data, result in _paddings(function):
            if _bytes(data) >= _MIN_SEARCHED_COPY:
                names[_name(data, result)] = _places(data)
    return names


def is_constant(pad: Node) -> bool:
    """True if the border of a `Pad` holds one value. Other borders repeat elements, which a kernel
    writes only once.
    """
    return pad.op == "Pad" and pad.attributes.get("mode", "constant") == "constant"


def _paddings(function: Function) -> list[tuple[TensorType, TensorType]]:
    """The types before and after each padding of the result of a contraction or reduction, or of
    maps that follow it.
    """
    scope, makers, users = Scope.of(function), producers(function), consumers(function)
    types: list[tuple[TensorType, TensorType]] = []
    for pad in filter(is_constant, function.nodes):
        data, result = scope.type_of(pad.inputs[0]), scope.type_of(pad.outputs[0])
        maker = makers.get(pad.inputs[0])
        while maker is not None and kind_of(maker) in MAPS:
            maker = next((makers[v] for v in maker.inputs if v in makers), None)
        has_anchor = maker is not None and kind_of(maker) in ("contraction", "reduction")
        is_read_once = len(users[pad.inputs[0]]) == 1 and pad.inputs[0] not in function.outputs
        if has_anchor and is_read_once and data is not None and result is not None:
            types.append((data, result))
    return types


def _places(data: TensorType) -> tuple[str, str]:
    """Both places of a padding, the default one first."""
    return (BEFORE, APART) if _bytes(data) >= _MIN_SAVED_COPY else (APART, BEFORE)


def _bytes(data: TensorType) -> float:
    """The bytes of one image; infinite where its size is a symbol."""
    sizes = [as_int(size) for size in data.shape[1:]]
    return math.inf if None in sizes else math.prod(filter(None, sizes)) * data.dtype.bytes


def _name(data: TensorType, result: TensorType) -> str:
    before, after = ("x".join(map(str, t.shape)) for t in (data, result))
    return f"pad {before} to {after}"
