"""Instructions: operations that a target has and the scalar operators do not name.

An `Instruction` is a record: its meaning on one lane, and its text in the languages of targets. An
`InstructionCall` applies it to operands. The meaning defines the call: the interpreter and the
targets without the instruction write the call out. Only printers read the text.

    >>> from webmlc.core.dtypes import DType
    >>> from webmlc.core.expr import Var
    >>> a, b = Var("A", DType.float32), Var("B", DType.float32)
    >>> multiply = Instruction("f32x4.mul", (a, b), a * b, lanes=4)
    >>> product = InstructionCall(multiply, (b, a))
    >>> str(product), str(product.written_out)
    ('T.call_intrin("f32x4.mul", B, A)', 'B * A')
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from operator import attrgetter
from string import Formatter

from webmlc.core.dtypes import DType
from webmlc.core.expr import Broadcast, Const, Expr, Var, call, set_lanes, widest
from webmlc.core.interning import interned
from webmlc.core.rewrite import rewrite


@dataclass(frozen=True, slots=True)
class Text:
    """The text of an instruction in the language of a device. `{A}` is the operand of the parameter
    `A`. `feature` is the feature of a machine that the text needs (`Machine.features`).
    """

    device: str
    text: str
    feature: str | None = None

    def runs_with(self, features: Set[str]) -> bool:
        """True if a machine with some features runs the text."""
        return self.feature is None or self.feature in features


@dataclass(frozen=True, slots=True)
class Instruction:
    """A row: the `parameters`, and the `meaning`, an expression of them on one lane.

    - `lanes`: the lanes of the operands in the texts: 1, or the lanes of a vector.
    - `sum`: the name of an accumulator. Texts with `{sum}` add their result to it. A call returns
      the result without the accumulator, and a printer joins the call with the addition around it.
    - `folds`: the text folds the values of the threads of a subgroup, which then share the
      iterations of the loop around a call. The meaning is the operand, one term of the fold.
    """

    name: str
    parameters: tuple[Var, ...]
    meaning: Expr
    lanes: int
    texts: tuple[Text, ...] = ()
    sum: str | None = None
    folds: bool = False

    def text(self, device: str) -> Text | None:
        """The text for a device, or `None` if it has none."""
        return next((text for text in self.texts if text.device == device), None)

    def accumulates(self, device: str) -> bool:
        """True if the text for a device adds its result to the accumulator, so that the addition
        around a call is part of the text.
        """
        text = self.text(device)
        return text is not None and self.sum is not None and self.sum in fields_of(text.text)


def fields_of(text: str) -> frozenset[str]:
    """The names in braces in a text. Raises `ValueError` if the braces do not match."""
    return frozenset(name for _, name, _, _ in Formatter().parse(text) if name is not None)


def part_of_word(word: Expr, position: int, dtype: DType) -> Expr:
    """The integer of a type at a position in an int32 word, counted from the lowest bits."""
    bits = 8 * dtype.bytes
    if not dtype.is_signed:
        shifted = call("shift_right", word, bits * position) if position else word
        return shifted & (1 << bits) - 1
    above = 32 - bits * (position + 1)
    lifted = call("shift_left", word, above) if above else word
    return call("shift_right", lifted, 32 - bits)


@interned
@dataclass(frozen=True, slots=True, eq=False)
class InstructionCall(Expr):
    """An instruction applied to an operand for each of its parameters."""

    instruction: Instruction
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_lanes(self, widest(self.args))

    children = property(attrgetter("args"))

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.instruction.meaning.dtype

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return InstructionCall(self.instruction, children)

    def text(self, parts: list[str]) -> str:
        """`T.call_intrin("f32x4.mul", a, b)`."""
        return f'T.call_intrin("{self.instruction.name}", {", ".join(parts)})'

    @property
    def written_out(self) -> Expr:
        """The meaning of the call."""
        operands = dict(zip(self.instruction.parameters, self.args, strict=True))

        def rule(node: Expr) -> Expr | None:
            match node:
                case Var():
                    return operands[node]
                case Const() if self.lanes > 1:
                    return Broadcast(node, self.lanes)
            return None

        return rewrite(self.instruction.meaning, rule)


INSTRUCTIONS: dict[str, Instruction] = {}
"""Every instruction by name. `schedule.intrinsics` fills the table; the parser of loop text reads
it.
"""
