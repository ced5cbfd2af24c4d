"""Name symbolic dimensions: turn ONNX's `dim_param` text into a unique identifier.

>>> symbols = Symbols()
>>> str(symbols.named("p2o.DynamicDimension.0")), str(symbols.named("unk__7"))
('p2o_DynamicDimension_0', 'unk__7')
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from webmlc.core.expr import Const, Expr, Var
from webmlc.core.symbol_names import symbol_name


class Symbols:
    """The symbols of one model.

    Equal texts are the same symbol, and different texts are different symbols. A text or a symbol's
    name that `sizes` contains is a number instead. `fixed` holds the keys of `sizes` that occurred.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self._sizes = dict(sizes or {})
        self._by_text: dict[str, Expr] = {}
        self._names: set[str] = set()
        self.fixed: set[str] = set()

    def dimension(self, dim: onnx.TensorShapeProto.Dimension, value: str, axis: int) -> Expr:
        """A dimension of `value`: a number, a named symbol, or a new symbol named by its axis."""
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return Const(dim.dim_value)
        if dim.dim_param not in ("", "?"):
            return self.named(dim.dim_param)
        return self._new(f"{value}_{axis}")

    def named(self, text: str) -> Expr:
        """The symbol of a `dim_param`, or its size if `sizes` has one."""
        if text not in self._by_text:
            self._by_text[text] = self._new(text)
        return self._by_text[text]

    def _new(self, text: str) -> Expr:
        base_name = symbol_name(text)
        name, count = base_name, 2
        while name in self._names:
            name, count = f"{base_name}_{count}", count + 1
        self._names.add(name)
        for key in (text, name):
            if key in self._sizes:
                self.fixed.add(key)
                return Const(self._sizes[key])
        return Var(name)
