"""Let kernels whose texts differ in numbers only share one shader, which reads the numbers from its
uniform.

In: printed kernels by name. Out: fewer shaders, and the numbers of each kernel as integers, which
follow its symbols in the uniform. The integer of a float is its bits. Kernels that share a shader
also share its pipeline. Compiling a pipeline takes a software adapter a hundred milliseconds, and
the convolutions of a model often differ in sizes only, or in scales.

    let p = bx * 64 + tx;                     let n0 = symbols_0[0].x;
    out0_0[p] = in0_0[p + 8] * 0.5f;    ->    let n1 = symbols_0[0].y;
                                              let p = bx * n0 + tx;
                                              out0_0[p] = in0_0[p + 8] * bitcast<f32>(n1);

Here another kernel has 96 instead of 64, and 0.25 instead of 0.5. A number that is the same in all
kernels stays in the text. Numbers that are equal in each kernel become one variable. An index
without an addend has the implied addend 0.
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
"""The text of a variable that replaces a number, by the suffix of the number."""

ADDEND = " + "
"""The text before the addend of an index."""


@dataclass(frozen=True, slots=True)
class SharedShader:
    """A shader, and the numbers of each kernel that launches it, as integers."""

    shader: Shader
    integers: Mapping[str, tuple[int, ...]]

    @property
    def name(self) -> str:
        """The name of the entry point, which is the first kernel's name."""
        return next(iter(self.integers))


def share_shaders(shaders: Mapping[str, Shader]) -> list[SharedShader]:
    """Join the kernels whose texts differ in numbers only, in the order of each group's first."""
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
    - `between`: the text before each number of the entry point, and the text after the last number.
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
        """The numbers as integers. The integer of a float is its bits."""
        return tuple(map(_integer, self.numbers))

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the numbers."""
        return tuple(map(_suffix, self.numbers))

    def text(self, variables: Sequence[str]) -> str:
        """The text of the entry point with `variables` in place of numbers. "" keeps a number."""
        text: list[str] = []
        *before, last = self.between
        for part, number, variable in zip(before, self.numbers, variables, strict=True):
            if variable:
                text += [part, _VARIABLES[_suffix(number)].format(variable)]
            else:
                text += [part if number else part.removesuffix(ADDEND), number]
        return "".join((*text, last))


def _suffix(number: str) -> str:
    """The suffix of a number, such as "f" in `1.0f`."""
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
    """The shader of a group of kernels, made from the text of the first kernel."""
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
    """The declarations with a uniform of `words` words, which is the last binding."""
    lines = [line for line in head.split("\n") if "var<uniform>" not in line]
    binding = sum("@binding(" in line for line in lines)
    lines.insert(binding, uniform(binding, words))
    return "\n".join(lines)
