"""`IRModule`: kernels side by side, and the graph functions that call them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from webmlc.core.errors import UserError
from webmlc.programs.script import Program


@dataclass(frozen=True, slots=True)
class IRModule:
    """Kernels by name. It prints as scripts."""

    functions: Mapping[str, Program]

    def __getitem__(self, name: str) -> Program:
        if name not in self.functions:
            names = ", ".join(self.functions)
            raise UserError(f"the module has no kernel {name!r}; its kernels are: {names}")
        return self.functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def only_kernel(self) -> Program:
        """The kernel of a module that has one. Raises `UserError` for another number."""
        if len(self.functions) != 1:
            names = ", ".join(self.functions)
            raise UserError(f"a schedule takes one kernel; choose one of {names}")
        return next(iter(self.functions.values()))

    def script(self) -> str:
        """The scripts of the kernels."""
        return "\n\n".join(program.script() for program in self.functions.values())

    def show(self) -> None:
        """Print the module."""
        print(self.script())

    def __str__(self) -> str:
        return self.script()
