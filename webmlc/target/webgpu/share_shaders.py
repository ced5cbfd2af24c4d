"""Let kernels whose texts differ in integers only share one shader, which reads them from its
uniform.

In: printed kernels by name. Out: fewer shaders, and the integers of each kernel, which follow its
symbols in the uniform. Kernels that share a shader also share its pipeline: compiling one takes a
software adapter a hundred milliseconds, and the convolutions of a model often differ in sizes only.

    let p = bx * 64 + tx;                     let n0 = symbols_0[0].x;
    out0_0[p] = in0_0[p + 8] + 1.0f;    ->    let p = bx * n0 + tx;
                                              out0_0[p] = in0_0[p + 8] + 1.0f;

Here the other kernel has 96 instead of 64. Integers that are the same in all kernels stay in the
text, and integers that are equal in each kernel are one variable. An index without an addend counts
as one with an addend of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from webmlc.target.webgpu.declarations import uniform, word
from webmlc.target.webgpu.names import NAME
from webmlc.target.webgpu.printer import INDENT, Shader

_INTEGER = re.compile(
    r"""(?<![\w.#]) (?<![\w#]\[) (?P<digits> \d{1,9} ) (?P<suffix> u? ) (?! [\w.] )
    | (?<=[\w#]\[) (?P<index> [A-Za-z]\w* ) (?=\])""",
    re.VERBOSE,
)
"""An integer that a variable may replace, or an index without an addend. An integer that is an
index by itself selects a register, a component or a word of the uniform.
"""

ADDEND = " + "
"""The text before the addend of an index."""


@dataclass(frozen=True, slots=True)
class SharedShader:
    """A shader, and the integers of each kernel that launches it."""

    shader: Shader
    integers: Mapping[str, tuple[int, ...]]

    @property
    def name(self) -> str:
        """The kernel whose name the entry point has: the first one."""
        return next(iter(self.integers))


def share_shaders(shaders: Mapping[str, Shader]) -> list[SharedShader]:
    """Join the kernels whose texts differ in integers only, in the order of the first ones."""
    groups: dict[object, dict[str, _Parts]] = {}
    for name, shader in shaders.items():
        parts = _Parts.of(shader.text)
        form = (parts.head, parts.between, parts.suffixes, len(shader.symbols))
        groups.setdefault(form, {})[name] = parts
    return [_shared(shaders[next(iter(group))], group) for group in groups.values()]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The text of a shader, divided at its integers.

    - `head`: the declarations and the attributes, whose integers are constants.
    - `between`: the text before each integer of the entry point, and that after the last one.
    - `integers`: the integers, with their suffixes. An implied addend of 0 is "".
    """

    head: str
    between: tuple[str, ...]
    integers: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> _Parts:
        """Divide a text. The types of arrays keep their integers, which are constants too."""
        start = end = text.index("{\n", text.index(f"fn {NAME}(")) + 2
        between: list[str] = []
        integers: list[str] = []
        for match in _INTEGER.finditer(text, start):
            if "array<" in text[text.rindex("\n", 0, match.start()) : match.start()]:
                continue
            is_implied = match["index"] is not None
            before = text[end : match.end()] + ADDEND if is_implied else text[end : match.start()]
            between.append(before)
            integers.append("" if is_implied else match[0])
            end = match.end()
        return cls(text[:start], (*between, text[end:]), tuple(integers))

    @property
    def values(self) -> tuple[int, ...]:
        """The integers as values."""
        return tuple(int(integer.rstrip("u") or 0) for integer in self.integers)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the integers."""
        return tuple("u" if integer.endswith("u") else "" for integer in self.integers)

    def text(self, variables: Sequence[str]) -> str:
        """The text of the entry point with variables in place of the integers that have one."""
        text: list[str] = []
        *before, last = self.between
        for part, integer, variable in zip(before, self.integers, variables, strict=True):
            if variable:
                text += [part, f"u32({variable})" if integer.endswith("u") else variable]
            else:
                text += [part if integer else part.removesuffix(ADDEND), integer]
        return "".join((*text, last))


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
