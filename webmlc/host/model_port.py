"""The inputs and outputs of a loaded model, as Python programs read them.

In: a port of the manifest, whose sizes are expressions. Out: a record whose sizes are numbers and
texts:

    >>> from webmlc.core.expr import Var, const
    >>> ModelPort.of(Port("image", DType.float32, (Var("batch"), const(3), Var("h") * 2), "x"))
    image: float32[batch, 3, h * 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.package.manifest import Manifest, Port


@dataclass(frozen=True, slots=True, repr=False)
class ModelPort:
    """An input or output of a model. `dtype` is a text that numpy takes as a dtype. A size in
    `shape` is a number, the name of a symbolic dimension (`"batch"`), or what a run computes of
    these (`"batch * 2"`).
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]

    @classmethod
    def of(cls, port: Port) -> ModelPort:
        """The record of a port of the manifest."""
        sizes = [(as_int(size), str(size).replace("T.", "")) for size in port.shape]
        return cls(port.name, port.dtype, tuple(t if n is None else n for n, t in sizes))

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def inputs_without_session(manifest: Manifest) -> tuple[Port, ...]:
    """The inputs, and those that states replace, which only a run without a session takes."""
    return (*manifest.inputs, *(port.past for port in manifest.state_ports))


def signature_text(inputs: Sequence[ModelPort], outputs: Sequence[ModelPort]) -> str:
    """The ports of a model, each on a line of its own."""
    lines = [f"  input  {port}" for port in inputs] + [f"  output {port}" for port in outputs]
    return "\n".join(lines)
