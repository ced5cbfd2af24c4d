"""Shorten vector literals, which take 18 bytes each.

In: the text of a module's functions. Out: the globals, and the functions that read them. A repeated
literal becomes a global: reading it takes 2 or 3 bytes, and is a load. A vector of zeros becomes a
splat of 4 bytes, which engines compile to one instruction. A vector of set bits is also one
instruction, and stays.

before                                             after
    (f32x4.mul (...) (v128.const f32x4 4 4 4 4))       (global $c0 v128 (v128.const f32x4 4 4 4 4))
    (f32x4.add (...) (v128.const f32x4 4 4 4 4))       (f32x4.mul (...) (global.get $c0))
    (f32x4.max (...) (v128.const f32x4 0 0 0 0))       (f32x4.add (...) (global.get $c0))
                                                       (f32x4.max (...) (i32x4.splat (i32.const 0)))
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_LITERAL = re.compile(r"\(v128\.const \w+( [^ ()]+)+\)")
_ZEROS = re.compile(r"\(v128\.const \w+( 0)+\)")
_SET_BITS = re.compile(r"\(v128\.const i\w+( -1)+\)")


def share_constants(functions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the globals of repeated literals, in the order of their first use, and the
    functions.
    """
    functions = [_ZEROS.sub("(i32x4.splat (i32.const 0))", f) for f in functions]
    counts = Counter(m.group() for f in functions for m in _LITERAL.finditer(f))
    repeated_literals = [c for c, n in counts.items() if n > 1 and not _SET_BITS.fullmatch(c)]
    names = {constant: f"$c{i}" for i, constant in enumerate(repeated_literals)}

    def name(match: re.Match[str]) -> str:
        constant = match.group()
        return f"(global.get {names[constant]})" if constant in names else constant

    globals_ = [f"(global {names[c]} v128 {c})" for c in repeated_literals]
    return globals_, [_LITERAL.sub(name, f) for f in functions]
