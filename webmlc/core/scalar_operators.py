"""The table of scalar operators: arity, type rule, numpy meaning and identity element.

Every computation on scalars or vectors is a `Call` of one row. The tables of the targets only spell
the operators. Integer `floordiv` and `floormod` round towards minus infinity, as Python's `//` and
`%` do. `truncdiv` and `truncmod` round towards zero, as C does.

    >>> SCALAR_OPERATORS["add"].arity, SCALAR_OPERATORS["lt"].result
    (2, 'bool')
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

Result = Literal["same", "bool"]


@dataclass(frozen=True, slots=True)
class ScalarOperator:
    """One scalar operator.

    - `meaning`: the operator on numpy scalars and arrays.
    - `result`: `"same"` (the dtype of the last argument) or `"bool"`.
    - `symbol`: the infix spelling in the Python text of the IR, if there is one.
    - `identity`: the neutral element of a reduction.
    - `cost`: the approximate number of additions that take as long on a machine without an
      instruction for the operator. The costs are chosen by hand.
    """

    name: str
    arity: int
    meaning: Callable[..., Any]
    result: Result = "same"
    symbol: str | None = None
    identity: float | None = None
    commutative: bool = False
    cost: int = 1


def _truncdiv(a: Any, b: Any) -> Any:
    """Divide, rounding towards zero; dividing by 0 gives 0, as in numpy's other divisions."""
    quotient = np.floor_divide(a, b)
    inexact = (np.mod(a, b) != 0) & ((np.asarray(a) < 0) != (np.asarray(b) < 0))
    return np.asarray(quotient + inexact).astype(np.asarray(a).dtype)[()]


def _erf(x: Any) -> Any:
    x = np.asarray(x)
    return np.vectorize(math.erf, otypes=[x.dtype])(x)[()]


def _shift_right(a: Any, b: Any) -> Any:
    return np.right_shift(a, b)


def _pow(a: Any, b: Any) -> Any:
    """Raise `a` to the power `b`. Integers wrap; a negative power is 0 unless `a` is 1 or -1."""
    base, exponent = np.asarray(a), np.asarray(b)
    if base.dtype.kind not in "iu" or not (exponent < 0).any():
        return np.power(a, b)
    power = np.power(base, np.maximum(exponent, exponent % 2))
    return np.where((exponent < 0) & (np.abs(base) != 1), 0, power).astype(base.dtype)[()]


def _signed_byte(word: Any, position: int) -> Any:
    return np.asarray(word, np.int32) << (24 - 8 * position) >> 24


def _dot_u8_i8(a: Any, b: Any) -> Any:
    total = np.zeros(np.broadcast(a, b).shape, np.int32)
    for n in range(4):
        total += (np.asarray(a, np.int32) >> 8 * n & 255) * _signed_byte(b, n)
    return total[()]


def _dot_i8(a: Any, b: Any) -> Any:
    products = [_signed_byte(a, n) * _signed_byte(b, n) for n in range(4)]
    return (products[0] + products[1] + products[2] + products[3])[()]


def _dot_i16(a: Any, b: Any) -> Any:
    x, y = np.asarray(a, np.int32), np.asarray(b, np.int32)
    return ((x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16))[()]


def _add_i16(a: Any, b: Any) -> Any:
    x, y = np.asarray(a, np.int32), np.asarray(b, np.int32)
    return (x + y & 0xFFFF | (x >> 16) + (y >> 16) << 16)[()]


def _rounded_to(dtype: Any) -> Callable[[Any], Any]:
    """The operator that rounds to the nearest number of a smaller type, with ties to even."""

    def meaning(x: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.asarray(x).astype(dtype).astype(np.asarray(x).dtype)[()]

    return meaning


def _word_u8(*numbers: Any) -> Any:
    bytes_ = (np.asarray(number, np.int32) & 255 for number in numbers)
    return sum(byte << 8 * n for n, byte in enumerate(bytes_))


def _halves(word: Any, position: int) -> Any:
    low, high = (_signed_byte(word, position + half) for half in (0, 2))
    return (low & 0xFFFF | high << 16)[()]


_ROWS = (
    ScalarOperator("add", 2, np.add, symbol="+", identity=0, commutative=True),
    ScalarOperator("sub", 2, np.subtract, symbol="-"),
    ScalarOperator("mul", 2, np.multiply, symbol="*", identity=1, commutative=True),
    ScalarOperator("div", 2, np.divide, symbol="/", cost=4),
    ScalarOperator("floordiv", 2, np.floor_divide, symbol="//"),
    ScalarOperator("floormod", 2, np.mod, symbol="%"),
    ScalarOperator("truncdiv", 2, _truncdiv),
    ScalarOperator("truncmod", 2, np.fmod),
    ScalarOperator("min", 2, np.minimum, identity=math.inf, commutative=True),
    ScalarOperator("max", 2, np.maximum, identity=-math.inf, commutative=True),
    ScalarOperator("relaxed_max", 2, np.fmax, identity=-math.inf, commutative=True),
    ScalarOperator("pow", 2, _pow, cost=32),
    ScalarOperator("unsigned_pow", 2, _pow, cost=32),
    ScalarOperator("fma", 3, lambda a, b, c: a * b + c),
    ScalarOperator("neg", 1, np.negative),
    ScalarOperator("abs", 1, np.abs),
    ScalarOperator("sign", 1, np.sign),
    ScalarOperator("floor", 1, np.floor),
    ScalarOperator("ceil", 1, np.ceil),
    ScalarOperator("trunc", 1, np.trunc),
    ScalarOperator("round", 1, np.rint),
    ScalarOperator("sqrt", 1, np.sqrt, cost=4),
    ScalarOperator("exp", 1, np.exp, cost=16),
    ScalarOperator("log", 1, np.log, cost=16),
    ScalarOperator("log1p", 1, np.log1p, cost=16),
    ScalarOperator("erf", 1, _erf, cost=16),
    ScalarOperator("sin", 1, np.sin, cost=16),
    ScalarOperator("cos", 1, np.cos, cost=16),
    ScalarOperator("tan", 1, np.tan, cost=16),
    ScalarOperator("asin", 1, np.arcsin, cost=16),
    ScalarOperator("acos", 1, np.arccos, cost=16),
    ScalarOperator("atan", 1, np.arctan, cost=16),
    ScalarOperator("sinh", 1, np.sinh, cost=16),
    ScalarOperator("cosh", 1, np.cosh, cost=16),
    ScalarOperator("tanh", 1, np.tanh, cost=16),
    ScalarOperator("asinh", 1, np.arcsinh, cost=16),
    ScalarOperator("acosh", 1, np.arccosh, cost=16),
    ScalarOperator("atanh", 1, np.arctanh, cost=16),
    ScalarOperator("finite", 1, lambda x: x, cost=0),
    ScalarOperator("round_float16", 1, _rounded_to(np.float16), cost=8),
    ScalarOperator("round_bfloat16", 1, _rounded_to(ml_dtypes.bfloat16), cost=8),
    ScalarOperator("isnan", 1, np.isnan, "bool"),
    ScalarOperator("isinf", 1, np.isinf, "bool"),
    ScalarOperator("bit_and", 2, np.bitwise_and, symbol="&", identity=-1, commutative=True),
    ScalarOperator("bit_or", 2, np.bitwise_or, symbol="|", identity=0, commutative=True),
    ScalarOperator("bit_xor", 2, np.bitwise_xor, symbol="^", identity=0, commutative=True),
    ScalarOperator("bit_not", 1, np.invert),
    ScalarOperator("shift_left", 2, np.left_shift, symbol="<<"),
    ScalarOperator("shift_right", 2, _shift_right, symbol=">>"),
    ScalarOperator("eq", 2, np.equal, "bool", "==", commutative=True),
    ScalarOperator("ne", 2, np.not_equal, "bool", "!=", commutative=True),
    ScalarOperator("lt", 2, np.less, "bool", "<"),
    ScalarOperator("le", 2, np.less_equal, "bool", "<="),
    ScalarOperator("gt", 2, np.greater, "bool", ">"),
    ScalarOperator("ge", 2, np.greater_equal, "bool", ">="),
    ScalarOperator("select", 3, np.where),
    ScalarOperator("dot_u8_i8", 2, _dot_u8_i8, cost=8),
    ScalarOperator("dot_u7_i8", 2, _dot_u8_i8, cost=8),
    ScalarOperator("dot_i8", 2, _dot_i8, cost=8),
    ScalarOperator("dot_i16", 2, _dot_i16, cost=4),
    ScalarOperator("add_i16", 2, _add_i16),
    ScalarOperator("word_u8", 4, _word_u8, cost=4),
    ScalarOperator("even_i8", 1, lambda word: _halves(word, 0)),
    ScalarOperator("odd_i8", 1, lambda word: _halves(word, 1)),
    ScalarOperator("odd_u8", 1, lambda word: np.asarray(word, np.int32) >> 8 & 0x00FF00FF),
)

SCALAR_OPERATORS: dict[str, ScalarOperator] = {row.name: row for row in _ROWS}
"""Every scalar operator by name.

- `select(condition, then, otherwise)` chooses a value.
- `unsigned_pow` is `pow` of a float that is promised to have no sign: it is never negative nor -0.
- `fma(a, b, c)` is a·b + c, rounded once or twice.
- `relaxed_max` is `max` of floats. Of a number and a NaN it may return either, so that one
  instruction suffices.
- `round_float16` and `round_bfloat16` round a float32 to the nearest number of that type, with ties
  to even. The result is a float32.
- `finite(x)` is `x`, which is promised to be neither infinite nor a NaN.
- `bit_and`, `bit_or`, `bit_xor` and `bit_not` also combine booleans.

Nine operators use int32 words that pack small integers, the first in the lowest bits:

- `dot_u8_i8(a, b)` multiplies four unsigned bytes of `a` by four signed bytes of `b`, and adds the
  products.
- `dot_u7_i8(a, b)` does the same where no byte of `a` exceeds 127, as one relaxed instruction
  requires.
- `dot_i8(a, b)` does the same for signed bytes of both.
- `dot_i16(a, b)` does the same for two pairs of signed 16-bit halves.
- `add_i16(a, b)` adds 16-bit halves, which wrap.
- `word_u8(a, b, c, d)` packs the lowest byte of each operand into one word.
- `even_i8` and `odd_i8` extend bytes 0 and 2, or 1 and 3, to signed 16-bit halves.
- `odd_u8` extends bytes 1 and 3 to unsigned 16-bit halves.
"""
