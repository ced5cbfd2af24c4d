"""`T`: the names that a kernel's script is written in.

A script is parsed and never executed, so most names of `T` exist in the parser only. Three names
have values, because Python evaluates them: the decorator, the annotations of parameters, and the
symbols that sizes share.

    n = T.symbol("n")

    @T.prim_func
    def double(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webmlc.core.errors import UserError
from webmlc.core.expr import Var
from webmlc.core.symbol_names import is_name


class Annotation:
    """The type of a parameter, which the parser reads from the source."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    def __class_getitem__(cls, _arguments: Any) -> Annotation:
        return cls()


class Vocabulary:
    """The names of a script (see the module)."""

    Buffer = Output = Tensor = Annotation
    handle = Annotation

    @staticmethod
    def symbol(name: str) -> Var:
        """A size that is known when a kernel runs. Buffers that use it share the size."""
        if not is_name(name):
            raise UserError(f"{name!r} cannot be the name of a symbol: use an identifier")
        return Var(name)

    @staticmethod
    def prim_func(function: Callable[..., Any]) -> Any:
        """Read a kernel from the source of a function: see `webmlc.kernel`."""
        from webmlc.programs.script import kernel

        return kernel(function)

    kernel = prim_func

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f"T.{name} is a word of scripts: it stands in a function under @webmlc.kernel, which "
            "is parsed and never executed"
        )


T = Vocabulary()
"""The vocabulary of scripts."""
