"""Define the functions of a module that kernels call where no short expression computes a value.

In: WAT that calls a function of `CALLS`. Out: the text of these functions (`FUNCTIONS`).

`approximations` calls the sine and the cosine of angles of `LIMIT` or more, which are reduced
exactly:

    sin(x)   ->   select(|x| >= LIMIT, call $f32.sin(x), polynomial of x - n·π/2)

A float32 is m·2^e with an integer m of 24 bits. Of the product with 2/π, only the bits below 4
matter: 2 bits of the quadrant, and 62 bits of the angle within it. No float32 is closer to a
multiple of π/2 than 2^-30 quadrants, so at least 32 of the 62 bits are significant. The functions
accept all angles, because the other lanes of a vector may hold small angles. Source: Payne and
Hanek, "Radian reduction for trigonometric functions" (SIGNUM Newsletter, 1983).

The remainder is C's `fmod` of float64, exact for every quotient, which has up to 2,098 bits. The
function divides integers: the numbers are a·2^i and b·2^j, and the remainder is
(a·2^(i - j) mod b)·2^j. Source: fmod of musl, with 11 bits a step in place of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LIMIT = 2.0**15
"""The least large angle. Below it, n·π/2 in four parts has an exact first product."""
_REMAINDER = "$f64.remainder"
_ANGLES = {(op, kind): f"${kind}.{op}" for op in ("sin", "cos") for kind in ("f32", "f32x4")}
CALLS = {("truncmod", "f64"): _REMAINDER, **_ANGLES}
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
        f"(call {_ANGLES[op, 'f32']} (f32x4.extract_lane {lane} (local.get $x)))"
        for lane in range(4)
    ]
    other_lanes = " ".join(f"{call})" for call in calls[1:])
    return f"""(func {_ANGLES[op, "f32"]} (param $x f32) (result f32)
  (call $f32.turned_sine (local.get $x) (i32.const {turns})))
(func {_ANGLES[op, "f32x4"]} (param $x v128) (result v128)
  {lanes} (f32x4.splat {calls[0]}) {other_lanes})"""


_ANGLE_FUNCTIONS = (_WORD, _BITS, _TURNED_SINE, _functions("sin", 0), _functions("cos", 1))

_INFINITY = "(i64.const 0x7ff0000000000000)"
_STEP_BITS = 64 - 53
"""The bits that a remainder below a mantissa of 53 bits can be shifted by, in 64 bits."""


def _split(number: str, exponent: str) -> str:
    """The statements that split the bits of a positive float: `number` becomes its mantissa, as an
    integer, and `exponent` its biased exponent, which is 1 for subnormal numbers, too.
    """
    return f"""(local.set ${exponent} (i64.shr_u (local.get ${number}) (i64.const 52)))
  (local.set ${number} (i64.and (local.get ${number}) (i64.const 0xfffffffffffff)))
  (if (i64.eqz (local.get ${exponent}))
    (then (local.set ${exponent} (i64.const 1)))
    (else (local.set ${number} (i64.or (local.get ${number}) (i64.const 0x10000000000000)))))"""


_REMAINDER_FUNCTION = f"""(func {_REMAINDER} (param $x f64) (param $y f64) (result f64)
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

FUNCTIONS = (
    ((_REMAINDER,), _REMAINDER_FUNCTION),
    (tuple(_ANGLES.values()), "\n".join(_ANGLE_FUNCTIONS)),
)
"""The names of functions that kernels call, and the text that defines them."""
