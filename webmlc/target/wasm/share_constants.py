"""Vector literals that a module repeats become globals.

In: the text of its functions. Out: the globals, and the functions that read them. A literal takes
18 bytes wherever it stands; reading a global takes 2 or 3, and is a load. Vectors of zeros and of
set bits stay: each is one instruction.

before                                             after
    (f32x4.mul (...) (v128.const f32x4 4 4 4 4))       (global $c0 v128 (v128.const f32x4 4 4 4 4))
    (f32x4.add (...) (v128.const f32x4 4 4 4 4))       (f32x4.mul (...) (global.get $c0))
                                                       (f32x4.add (...) (global.get $c0))
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_LITERAL = re.compile(r"\(v128\.const \w+( [^ ()]+)+\)")
_IDIOM = re.compile(r"\(v128\.const (\w+( 0)+|i\w+( -1)+)\)")


def share_constants(functions: Sequence[str]) -> tuple[list[str], list[str]]:
    """The globals of what is repeated, in the order of their first use, and the functions."""
    found = Counter(m.group() for f in functions for m in _LITERAL.finditer(f))
    repeated = [c for c, n in found.items() if n > 1 and not _IDIOM.fullmatch(c)]
    names = {constant: f"$c{i}" for i, constant in enumerate(repeated)}

    def name(match: re.Match[str]) -> str:
        constant = match.group()
        return f"(global.get {names[constant]})" if constant in names else constant

    declared = [f"(global {names[c]} v128 {c})" for c in repeated]
    return declared, [_LITERAL.sub(name, f) for f in functions]
