"""Compute the sine and the cosine of large float32 angles, exactly reduced.

In: WAT that calls a function of `NAMES`. Out: the text of these functions. `approximations.sin` and
`approximations.cos` call them where an angle is `LIMIT` or more, which a branch decides:

    sin(x)   ->   select(|x| >= LIMIT, call $f32.sin(x), polynomial of x - n·π/2)

A float32 is m·2^e with an integer m of 24 bits. Of the product with 2/π, only the bits below 4
matter: 2 bits of the quadrant, and 62 bits of the angle within it. No float32 is closer to a
multiple of π/2 than 2^-30 quadrants, so at least 32 of the 62 bits are significant. The functions
accept all angles, because the other lanes of a vector may hold small angles.

Source: Payne and Hanek, "Radian reduction for trigonometric functions" (SIGNUM Newsletter, 1983).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LIMIT = 2.0**15
"""The least large angle. Below it, n·π/2 in four parts has an exact first product."""
NAMES = {(op, kind): f"${kind}.{op}" for op in ("sin", "cos") for kind in ("f32", "f32x4")}
"""The functions, by operator and class of the operand. No kernel has a name with a dot."""

_WORDS = (0x00000000A2F9836E, 0x4E441529FC2757D1, 0xF534DDC0DB629599, 0x3C439041FE5163AB)
"""The bits of 2/π behind 32 zeros, in words of 64 bits."""
_FIRST_BIT = 120
"""The biased exponent of an angle whose product with 2/π starts at the first bit of `_WORDS`:
150 for the mantissa's last bit, minus the 32 zeros, plus 2 bits of the quadrant.
"""
_LARGE_EXPONENT = 127 + int(math.log2(LIMIT))
_HALF_PI_HIGH, _HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11
_SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(7))
"""The Taylor coefficients of sin(x)/x, in x²."""
_COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(8))
"""The Taylor coefficients of cos(x), in x²."""


def _polynomial(coefficients: Sequence[float]) -> str:
    """A polynomial in `$t`, by Horner's rule."""
    text = f"(f64.const {coefficients[-1]!r})"
    for coefficient in reversed(coefficients[:-1]):
        text = f"(f64.add (f64.const {coefficient!r}) (f64.mul (local.get $t) {text}))"
    return text


_WORD = f"""(func $f32.word_of_two_over_pi (param $i i32) (result i64)
  (select
    (select (i64.const {_WORDS[0]:#x}) (i64.const {_WORDS[1]:#x}) (i32.eqz (local.get $i)))
    (select (i64.const {_WORDS[2]:#x})
      (select (i64.const {_WORDS[3]:#x}) (i64.const 0) (i32.eq (local.get $i) (i32.const 3)))
      (i32.eq (local.get $i) (i32.const 2)))
    (i32.lt_u (local.get $i) (i32.const 2))))"""
_BITS = """(func $f32.bits_of_two_over_pi (param $first i32) (result i64)
  (local $i i32) (local $shift i64)
  (local.set $i (i32.shr_u (local.get $first) (i32.const 6)))
  (local.set $shift (i64.extend_i32_u (i32.and (local.get $first) (i32.const 63))))
  (i64.or
    (i64.shl (call $f32.word_of_two_over_pi (local.get $i)) (local.get $shift))
    (i64.shr_u
      (i64.shr_u (call $f32.word_of_two_over_pi
        (i32.add (local.get $i) (i32.const 1))) (i64.const 1))
      (i64.sub (i64.const 63) (local.get $shift)))))"""
_TURNED_SINE = f"""(func $f32.turned_sine (param $x f32) (param $turns i32) (result f32)
  (local $exponent i32) (local $first i32) (local $m i64) (local $angle i64)
  (local $quadrant i32) (local $r f64) (local $t f64)
  (local.set $exponent (i32.and (i32.const 255)
    (i32.shr_u (i32.reinterpret_f32 (local.get $x)) (i32.const 23))))
  (if (i32.eq (local.get $exponent) (i32.const 255)) (then (return (f32.const nan))))
  (local.set $r (f64.promote_f32 (f32.abs (local.get $x))))
  (if (i32.lt_u (local.get $exponent) (i32.const {_LARGE_EXPONENT}))
    (then
      (local.set $t (f64.nearest (f64.mul (local.get $r) (f64.const {2 / math.pi!r}))))
      (local.set $r (f64.sub
        (f64.sub (local.get $r) (f64.mul (local.get $t) (f64.const {_HALF_PI_HIGH!r})))
        (f64.mul (local.get $t) (f64.const {_HALF_PI_LOW!r}))))
      (local.set $quadrant (i32.trunc_sat_f64_s (local.get $t))))
    (else
      (local.set $m (i64.extend_i32_u (i32.or (i32.const 0x800000)
        (i32.and (i32.reinterpret_f32 (local.get $x)) (i32.const 0x7fffff)))))
      (local.set $first (i32.sub (local.get $exponent) (i32.const {_FIRST_BIT})))
      (local.set $angle (i64.add
        (i64.mul (local.get $m) (call $f32.bits_of_two_over_pi (local.get $first)))
        (i64.shr_u
          (i64.mul (local.get $m) (i64.shr_u (call $f32.bits_of_two_over_pi
            (i32.add (local.get $first) (i32.const 64))) (i64.const 32)))
          (i64.const 32))))
      (local.set $quadrant (i32.wrap_i64 (i64.shr_u
        (i64.add (local.get $angle) (i64.const 0x2000000000000000)) (i64.const 62))))
      (local.set $angle (i64.sub (local.get $angle)
        (i64.shl (i64.extend_i32_u (local.get $quadrant)) (i64.const 62))))
      (local.set $r (f64.mul (f64.convert_i64_s (local.get $angle))
        (f64.const {math.pi / 2 * 2.0**-62!r})))))
  (if (i32.lt_s (i32.reinterpret_f32 (local.get $x)) (i32.const 0))
    (then
      (local.set $r (f64.neg (local.get $r)))
      (local.set $quadrant (i32.sub (i32.const 0) (local.get $quadrant)))))
  (local.set $turns (i32.add (local.get $turns) (local.get $quadrant)))
  (local.set $t (f64.mul (local.get $r) (local.get $r)))
  (if (i32.and (local.get $turns) (i32.const 1))
    (then (local.set $r {_polynomial(_COS)}))
    (else (local.set $r (f64.mul (local.get $r) {_polynomial(_SIN)}))))
  (f32.demote_f64 (select (f64.neg (local.get $r)) (local.get $r)
    (i32.and (local.get $turns) (i32.const 2)))))"""


def _functions(op: str, turns: int) -> str:
    """The functions of an operator, for one number and for four numbers."""
    lanes = " ".join(f"(f32x4.replace_lane {lane}" for lane in (3, 2, 1))
    calls = [
        f"(call {NAMES[op, 'f32']} (f32x4.extract_lane {lane} (local.get $x)))" for lane in range(4)
    ]
    other_lanes = " ".join(f"{call})" for call in calls[1:])
    return f"""(func {NAMES[op, "f32"]} (param $x f32) (result f32)
  (call $f32.turned_sine (local.get $x) (i32.const {turns})))
(func {NAMES[op, "f32x4"]} (param $x v128) (result v128)
  {lanes} (f32x4.splat {calls[0]}) {other_lanes})"""


FUNCTIONS = "\n".join([_WORD, _BITS, _TURNED_SINE, _functions("sin", 0), _functions("cos", 1)])
"""The text of all functions."""
