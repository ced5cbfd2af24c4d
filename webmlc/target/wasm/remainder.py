"""Compute remainders of floats, exactly for every quotient.

In: the operands of a remainder of floats. Out: a call of `HELPER`, a function of the module, which
is C's `fmod` of float64. No instruction computes it, and an expression of a fixed length cannot: a
quotient of float64 has up to 2,098 bits. The function divides integers instead: the numbers are
a·2^i and b·2^j, and the remainder is (a·2^(i - j) mod b)·2^j.

    floormod(a, b)   ->   select(sign of r differs from b's, r + b, r),   r = truncmod(a, b)

Source: fmod of musl, with 11 bits a step in place of one.
"""

from __future__ import annotations

from webmlc.core.dtypes import DType
from webmlc.core.expr import Const, Expr, call, select

HELPER = "$f64.remainder"
"""The name of the function. No kernel has it: names of kernels have no dots."""

_INFINITY = "(i64.const 0x7ff0000000000000)"
_STEP_BITS = 64 - 53
"""The bits that a remainder below a mantissa of 53 bits can be shifted by, in 64 bits."""


def remainder(a: Expr, b: Expr, rounds_down: bool) -> Expr:
    """The remainder of a division that rounds towards zero (C's `fmod`) or down (numpy's `mod`).
    A remainder of `mod` has the sign of the divisor, also for zero.
    """
    x, y = a.astype(DType.float64), b.astype(DType.float64)
    result = call("truncmod", x, y)
    if rounds_down:
        zero = Const(0.0, DType.float64)
        has_other_sign = call("bit_xor", result < zero, y < zero)
        signed_zero = select(y < zero, Const(-0.0, DType.float64), zero)
        moved = select(has_other_sign, result + y, result)
        result = select(call("eq", result, zero), signed_zero, moved)
    return result.astype(a.dtype)


def _split(number: str, exponent: str) -> str:
    """The statements that split the bits of a positive float: `number` becomes its mantissa, as an
    integer, and `exponent` its biased exponent, which is 1 for subnormal numbers, too.
    """
    return f"""(local.set ${exponent} (i64.shr_u (local.get ${number}) (i64.const 52)))
  (local.set ${number} (i64.and (local.get ${number}) (i64.const 0xfffffffffffff)))
  (if (i64.eqz (local.get ${exponent}))
    (then (local.set ${exponent} (i64.const 1)))
    (else (local.set ${number} (i64.or (local.get ${number}) (i64.const 0x10000000000000)))))"""


FUNCTION = f"""(func {HELPER} (param $x f64) (param $y f64) (result f64)
  (local $a i64) (local $b i64) (local $i i64) (local $j i64) (local $step i64)
  (local.set $a (i64.reinterpret_f64 (f64.abs (local.get $x))))
  (local.set $b (i64.reinterpret_f64 (f64.abs (local.get $y))))
  (if (i32.or (i64.eqz (local.get $b)) (i32.or
        (i64.ge_u (local.get $a) {_INFINITY}) (i64.gt_u (local.get $b) {_INFINITY})))
    (then (return (f64.const nan))))
  (if (i64.lt_u (local.get $a) (local.get $b)) (then (return (local.get $x))))
  {_split("a", "i")}
  {_split("b", "j")}
  (local.set $i (i64.sub (local.get $i) (local.get $j)))
  (local.set $a (i64.rem_u (local.get $a) (local.get $b)))
  (block $done (loop $again
    (br_if $done (i64.eqz (local.get $i)))
    (local.set $step (select (local.get $i) (i64.const {_STEP_BITS})
      (i64.lt_u (local.get $i) (i64.const {_STEP_BITS}))))
    (local.set $a (i64.rem_u
      (i64.shl (local.get $a) (local.get $step)) (local.get $b)))
    (local.set $i (i64.sub (local.get $i) (local.get $step)))
    (br $again)))
  (f64.copysign
    (f64.mul
      (f64.mul (f64.convert_i64_u (local.get $a)) (f64.const 0x1p-52))
      (f64.reinterpret_i64 (i64.shl (local.get $j) (i64.const 52))))
    (local.get $x)))"""
"""C's `fmod`. The products are exact: the first is 0 or a normal number, and the second is a
multiple of the least float64.
"""
