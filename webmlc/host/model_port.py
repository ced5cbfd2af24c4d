"""The inputs and outputs of a loaded model, as Python programs read them.

In: a port of the manifest, whose sizes are expressions. Out: a record whose sizes are numbers and
texts:

    >>> ModelPort.of(Port("image", DType.float32, ("batch", 3, ["mul", "h", 2]), "x"))
    image: float32[batch, 3, h * 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webmlc.package.manifest import AnyPort, Manifest, Port
from webmlc.package.sizes import Size, size_text

ANY_SHAPE = ("...",)
"""The shape of an output that has another rank in each run."""


@dataclass(frozen=True, slots=True, repr=False)
class ModelPort:
    """An input or output of a model. `dtype` is a text that numpy takes as a dtype: "str" for
    texts. A size in
    `shape` is a number, the name of a symbolic dimension (`"batch"`), or an expression that a run
    computes (`"batch * 2"`).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @classmethod
    def of(cls, port: AnyPort) -> ModelPort:
        """The record of a port of the manifest."""
        dtype = port.dtype if isinstance(port, Port) else "str"
        return cls(port.name, dtype, tuple(map(_shown, port.shape)))

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def _shown(size: Size) -> int | str:
    """A number, or the text of a size that a run computes."""
    return size if isinstance(size, int) else size_text(size).replace("T.", "")


def inputs_without_session(manifest: Manifest) -> tuple[AnyPort, ...]:
    """The inputs, and the inputs that states replace, which only a run without a session takes."""
    return (*manifest.model_inputs, *(port.past for port in manifest.states))


def signature_text(inputs: Sequence[ModelPort], outputs: Sequence[ModelPort]) -> str:
    """The ports of a model, each on a line of its own."""
    lines = [f"  input  {port}" for port in inputs] + [f"  output {port}" for port in outputs]
    return "\n".join(lines)
