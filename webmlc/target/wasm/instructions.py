"""Folded instructions as data, which are printed once.

In: names, operands, and the locals that an instruction reads or sets. Out: WAT text, and the locals
in the order in which the text names them:

    >>> c, a = get_local("c"), get_local("a")
    >>> Instruction("f32.add", (c, Instruction("f32.neg", (a,)))).text()
    '(f32.add (local.get $c) (f32.neg (local.get $a)))'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from webmlc.core.errors import UserError


@dataclass(slots=True, eq=False)
class Instruction:
    """An instruction of this name, with its immediates, on operands. `reads` and `sets` are the
    local that it reads or sets itself, if any.
    """

    name: str
    operands: tuple[Instruction, ...] = ()
    reads: str = ""
    sets: str = ""

    def text(self) -> str:
        """The text of the instruction. Instructions may be deep."""
        parts: list[str] = []
        pending: list[Instruction | str] = [self]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                parts.append(item)
                continue
            parts.append(f" ({item.name}")
            pending.append(")")
            pending.extend(reversed(item.operands))
        return "".join(parts)[1:]

    def walk(self) -> Iterator[Instruction]:
        """Iterate over the instruction and all that it contains, in the order of the text."""
        pending = [self]
        while pending:
            item = pending.pop()
            yield item
            pending.extend(reversed(item.operands))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a function: text and instructions at a depth, and then the mark of a statement."""

    depth: int
    parts: tuple[str | Instruction, ...]
    mark: str = ""

    def text(self) -> str:
        """The text of the line."""
        texts = (part if isinstance(part, str) else part.text() for part in self.parts)
        return f"{'  ' * self.depth}{''.join(texts)}{self.mark}"


def get_local(name: str) -> Instruction:
    """The instruction that reads a local."""
    return Instruction(f"local.get ${name}", reads=name)


def set_local(name: str, value: Instruction) -> Instruction:
    """The instruction that sets a local."""
    return Instruction(f"local.set ${name}", (value,), sets=name)


def tee_local(name: str, value: Instruction) -> Instruction:
    """The instruction that sets a local, and leaves its value on the stack."""
    return Instruction(f"local.tee ${name}", (value,), sets=name)


def integer(value: int) -> Instruction:
    """The constant of an i32."""
    return Instruction(f"i32.const {value}")


_TOKEN = re.compile(r"[(){}]|[^\s(){}]+")


def from_text(text: str, operands: Mapping[str, Instruction]) -> Instruction:
    """The instruction of a folded text, in which `{A}` is the operand `A`.

    >>> from_text("(f32.add {A} (f32.const 1))", {"A": get_local("a")}).text()
    '(f32.add (local.get $a) (f32.const 1))'

    Raises `UserError` if the text is not one folded instruction.
    """
    tokens = _TOKEN.findall(text)
    words: list[list[str]] = [[]]
    parts: list[list[Instruction]] = [[]]
    position = 0
    while position < len(tokens):
        match tokens[position : position + 3]:
            case ["{", name, "}"] if name in operands:
                parts[-1].append(operands[name])
                position += 2
            case ["(", *_]:
                words.append([])
                parts.append([])
            case [")", *_] if len(words) > 1 and words[-1]:
                inner = Instruction(" ".join(words.pop()), tuple(parts.pop()))
                parts[-1].append(inner)
            case [word, *_] if word not in "{})" and len(words) > 1 and not parts[-1]:
                words[-1].append(word)
            case _:
                raise UserError(f"{text} is not one folded instruction of WebAssembly")
        position += 1
    if len(words) != 1 or len(parts[0]) != 1:
        raise UserError(f"{text} is not one folded instruction of WebAssembly")
    return parts[0][0]


def names_read(lines: Iterable[Line]) -> list[str]:
    """The locals that lines read before they set them, in order of first appearance. Within a line,
    operands come before the local that they set.
    """
    names: dict[str, None] = {}
    set_names: set[str] = set()
    for line in lines:
        roots = (part for part in line.parts if isinstance(part, Instruction))
        accesses = [i for root in roots for i in root.walk() if i.reads or i.sets]
        names |= dict.fromkeys(i.reads for i in accesses if i.reads and i.reads not in set_names)
        set_names.update(i.sets for i in accesses if i.sets)
    return list(names)
