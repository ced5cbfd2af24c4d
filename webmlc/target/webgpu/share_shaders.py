"""Let kernels whose texts differ in numbers only share one shader, which reads them from its
uniform.

In: printed kernels by name. Out: fewer shaders, and the numbers of each kernel as integers, which
follow its symbols in the uniform; those of floats are their bits. Kernels that share a shader also
share its pipeline: compiling one takes a software adapter a hundred milliseconds, and the
convolutions of a model often differ in sizes only, or in scales.

    let p = bx * 64 + tx;                     let n0 = symbols_0[0].x;
    out0_0[p] = in0_0[p + 8] * 0.5f;    ->    let n1 = symbols_0[0].y;
                                              let p = bx * n0 + tx;
                                              out0_0[p] = in0_0[p + 8] * bitcast<f32>(n1);

Here the other kernel has 96 instead of 64, and 0.25. Numbers that are the same in all kernels stay
in the text, and numbers that are equal in each kernel are one variable. An index without an addend
counts as one with an addend of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from webmlc.target.webgpu.declarations import uniform, word
from webmlc.target.webgpu.names import NAME
from webmlc.target.webgpu.printer import INDENT, Shader

_NUMBER = re.compile(
    r"""(?<![\w.#]) (?: 0x1 (?:\.[0-9a-f]+)? p [+-]? \d+ | \d+ (?:\.\d+)? (?:e[+-]?\d+)? ) f (?!\w)
    | (?<![\w.#]) (?<![\w#]\[) \d{1,9} u? (?! [\w.] )
    | (?<=[\w#]\[) (?P<index> [A-Za-z]\w* ) (?=\])""",
    re.VERBOSE,
)
"""A float or an integer that a variable may replace, or an index without an addend. An integer that
is an index by itself selects a register, a component or a word of the uniform.
"""

_VARIABLES = {"": "{}", "u": "u32({})", "f": "bitcast<f32>({})"}
"""What a number of each suffix becomes where a variable replaces it."""

ADDEND = " + "
"""The text before the addend of an index."""


@dataclass(frozen=True, slots=True)
class SharedShader:
    """A shader, and the numbers of each kernel that launches it, as integers."""

    shader: Shader
    integers: Mapping[str, tuple[int, ...]]

    @property
    def name(self) -> str:
        """The kernel whose name the entry point has: the first one."""
        return next(iter(self.integers))


def share_shaders(shaders: Mapping[str, Shader]) -> list[SharedShader]:
    """Join the kernels whose texts differ in numbers only, in the order of the first ones."""
    groups: dict[object, dict[str, _Parts]] = {}
    for name, shader in shaders.items():
        parts = _Parts.of(shader.text)
        form = (parts.head, parts.between, parts.suffixes, len(shader.symbols))
        groups.setdefault(form, {})[name] = parts
    return [_shared(shaders[next(iter(group))], group) for group in groups.values()]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The text of a shader, divided at its numbers.

    - `head`: the declarations and the attributes, whose numbers are constants.
    - `between`: the text before each number of the entry point, and that after the last one.
    - `numbers`: the numbers, with their suffixes. An implied addend of 0 is "".
    """

    head: str
    between: tuple[str, ...]
    numbers: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> _Parts:
        """Divide a text. The types of arrays keep their numbers, which are constants too."""
        start = end = text.index("{\n", text.index(f"fn {NAME}(")) + 2
        between: list[str] = []
        numbers: list[str] = []
        for match in _NUMBER.finditer(text, start):
            if "array<" in text[text.rindex("\n", 0, match.start()) : match.start()]:
                continue
            is_implied = match["index"] is not None
            before = text[end : match.end()] + ADDEND if is_implied else text[end : match.start()]
            between.append(before)
            numbers.append("" if is_implied else match[0])
            end = match.end()
        return cls(text[:start], (*between, text[end:]), tuple(numbers))

    @property
    def values(self) -> tuple[int, ...]:
        """The numbers as integers; those of floats are their bits."""
        return tuple(map(_integer, self.numbers))

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the numbers."""
        return tuple(map(_suffix, self.numbers))

    def text(self, variables: Sequence[str]) -> str:
        """The text of the entry point with variables in place of the numbers that have one."""
        text: list[str] = []
        *before, last = self.between
        for part, number, variable in zip(before, self.numbers, variables, strict=True):
            if variable:
                text += [part, _VARIABLES[_suffix(number)].format(variable)]
            else:
                text += [part if number else part.removesuffix(ADDEND), number]
        return "".join((*text, last))


def _suffix(number: str) -> str:
    """The suffix of a number, such as that of `1.0f`."""
    return number[-1] if number.endswith(("u", "f")) else ""


def _integer(number: str) -> int:
    """The value of an integer, or the bits of a float as a signed integer.

    >>> [_integer(number) for number in ("12u", "0x1.8p-1f", "")]
    [12, 1061158912, 0]
    """
    digits = number.rstrip("uf")
    if not number.endswith("f"):
        return int(digits or 0)
    value = float.fromhex(digits) if digits.startswith("0x") else float(digits)
    return int(np.float32(value).view(np.int32))


def _shared(first: Shader, group: Mapping[str, _Parts]) -> SharedShader:
    """The shader of a group of kernels, made from the text of the first one."""
    columns = list(zip(*(parts.values for parts in group.values()), strict=True))
    differing = list(dict.fromkeys(column for column in columns if len({*column}) > 1))
    if not differing:
        return SharedShader(first, dict.fromkeys(group, ()))
    prefix = "n"
    while re.search(rf"\b{prefix}\d", first.text):
        prefix += "_"
    variables = {column: f"{prefix}{i}" for i, column in enumerate(differing)}
    positions = enumerate(variables.values(), len(first.symbols))
    lets = "".join(f"{INDENT}let {name} = {word(position)};\n" for position, name in positions)
    parts = next(iter(group.values()))
    head = _with_uniform(parts.head, len(first.symbols) + len(differing))
    body = parts.text([variables.get(column, "") for column in columns])
    integers = {name: tuple(column[i] for column in differing) for i, name in enumerate(group)}
    return SharedShader(replace(first, text=f"{head}{lets}{body}"), integers)


def _with_uniform(head: str, words: int) -> str:
    """The declarations with a uniform of so many words, which is the last binding."""
    lines = [line for line in head.split("\n") if "var<uniform>" not in line]
    binding = sum("@binding(" in line for line in lines)
    lines.insert(binding, uniform(binding, words))
    return "\n".join(lines)
