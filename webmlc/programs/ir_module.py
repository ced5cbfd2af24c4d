"""`IRModule`: kernels side by side, and the graph function that calls them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from webmlc.core.errors import InputError, UserError
from webmlc.core.machine import Device
from webmlc.core.sizes import evaluate_size
from webmlc.graph.ir import Function, print_function
from webmlc.programs.arrays import sizes_of
from webmlc.programs.script import Program

if TYPE_CHECKING:
    from webmlc.programs.compiled import CompiledModule

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class IRModule:
    """Kernels by name, and the graph function `main` that calls them, if there is one. It prints as
    scripts.
    """

    functions: Mapping[str, Program]
    main: Function | None = None

    def __getitem__(self, name: str) -> Program:
        if name not in self.functions:
            names = ", ".join(self.functions)
            raise UserError(f"the module has no kernel {name!r}; its kernels are: {names}")
        return self.functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def with_kernel(self, name: str, program: Program) -> IRModule:
        """The module with another program for a kernel, such as `schedule.program`."""
        if not isinstance(program, Program):
            kind = type(program).__name__
            raise UserError(f"a module takes programs, not a {kind}: pass schedule.program")
        old = self[name].function
        if [(b.dtype, b.shape) for b in old.params] != [
            (b.dtype, b.shape) for b in program.function.params
        ]:
            raise UserError(f"the parameters of {program.name} are not those of {name}")
        return IRModule({**self.functions, name: program}, self.main)

    def only_kernel(self) -> Program:
        """The kernel of a module that has one. Raises `UserError` for another number."""
        if len(self.functions) != 1:
            names = ", ".join(self.functions)
            raise UserError(f"a schedule takes one kernel; choose one of {names}")
        return next(iter(self.functions.values()))

    def script(self) -> str:
        """The scripts of the kernels, and the calls of the graph function."""
        parts = [program.script() for program in self.functions.values()]
        return "\n\n".join([*parts, *([print_function(self.main)] if self.main else [])])

    def show(self) -> None:
        """Print the module."""
        print(self.script())

    def __str__(self) -> str:
        return self.script()

    def run(self, *inputs: Array) -> tuple[Array, ...]:
        """The outputs of the graph function by the interpreter, for an array for each input."""
        main = self.graph_function()
        declared = [main.type(name).shape for name in main.inputs]
        if [len(shape) for shape in declared] != [array.ndim for array in inputs]:
            types = ", ".join(f"{name}: {main.type(name)}" for name in main.inputs)
            raise InputError(f"the module takes {types}")
        values = dict(zip(main.inputs, inputs, strict=True))
        sizes = sizes_of((shape, a.shape) for shape, a in zip(declared, inputs, strict=True))
        for node in main.nodes:
            for output in node.outputs:
                type_ = main.type(output)
                shape = tuple(evaluate_size(extent, sizes) for extent in type_.shape)
                values[output] = np.empty(shape, type_.dtype.numpy)
            arrays = (values[name] for name in (*node.inputs, *node.outputs))
            self[node.attributes["kernel"]](*arrays)
        return tuple(values[name] for name in main.outputs)

    def build(self, target: Device = "wasm") -> CompiledModule:
        """Compile the kernels and the graph function for a target."""
        from webmlc.programs.compiled import compile_module

        return compile_module(self, target)

    def graph_function(self) -> Function:
        """The graph function. Raises `UserError` if the module has none."""
        if self.main is None:
            raise UserError("the module has no graph function: write one under @R.function")
        return self.main
