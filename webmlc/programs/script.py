"""Read a kernel from the source of a Python function. The function is parsed and never executed.

In: a function whose body is written in the vocabulary `T` (TVM's TensorIR script). Out: a
`Program`: the loop function, which prints itself, runs on numpy arrays, and can be scheduled.

    @kernel
    def relu(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = T.max(A[vi], T.float32(0))

`canonical` rewrites the liberties of a script to the loop text, `loops.parse_text` parses it, and
`check_program` refuses programs without a meaning. Each error underlines its place:

    relu.py:5: vk is not bound here
        B[vi] = T.max(A[vk], T.float32(0))
                        ^^
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from webmlc.core.errors import UserError
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.parse_text import Parser
from webmlc.loops.print_text import print_function
from webmlc.loops.verify import InvariantError, verify
from webmlc.programs.arrays import bind_arrays
from webmlc.programs.canonical import canonical
from webmlc.programs.check_program import check_program


class ScriptError(UserError):
    """A script is not a kernel. The message names the file and the line, and underlines the
    place.
    """


@dataclass(frozen=True, slots=True)
class Program:
    """A loop function. It prints as a script, and runs by the interpreter if it is called.

    `program(*arrays)` takes an array for each parameter, in order, and writes the outputs into
    theirs. Raises `InputError` if an array has another shape or dtype than its parameter.
    """

    function: LoopFunction

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.function.name

    @property
    def is_scheduled(self) -> bool:
        """True if the function comes from a schedule, and is compiled as it is. Otherwise the rules
        of the compiler schedule it.
        """
        return self.function.is_scheduled

    def script(self) -> str:
        """The program as text that `kernel` reads again."""
        return print_function(self.function)

    def show(self) -> None:
        """Print the program."""
        print(self.script())

    def __str__(self) -> str:
        return self.script()

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> None:
        bound = bind_arrays(self.function, arrays)
        run(self.function, dict(bound.arrays), bound.sizes)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a function: its text without the common indent, the name of its file, and the
    number of lines that the file has before the text.
    """

    text: str
    file: str
    line: int = 0

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Source:
        """The source of a function, with its decorators. Raises `ScriptError` if there is none."""
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError) as error:
            name = getattr(function, "__name__", "this function")
            raise ScriptError(
                f"the source of {name} cannot be read. Write the kernel in a file or in a "
                "notebook's cell, or pass its text to webmlc.from_source"
            ) from error
        file = Path(inspect.getsourcefile(function) or "<script>").name
        return cls(textwrap.dedent("".join(lines)), file, first - 1)

    def error(self, node: ast.AST | None, message: str, part: str = "") -> ScriptError:
        """The error at a node: the first line of the node is underlined, or `part` of the line."""
        lines = self.text.splitlines()
        first = getattr(node, "lineno", 1)
        start = getattr(node, "col_offset", 0)
        last = getattr(node, "end_lineno", first)
        shown = lines[first - 1] if first <= len(lines) else ""
        end = getattr(node, "end_col_offset", start + 1) if last == first else len(shown)
        if part and (place := shown.find(part, start)) >= 0:
            start, end = place, place + len(part)
        indent = len(shown) - len(shown.lstrip())
        start = max(start, indent)
        underline = " " * (start - indent) + "^" * max(1, end - start)
        where = f"{self.file}:{self.line + first}"
        return ScriptError(f"{where}: {message}\n    {shown.strip()}\n    {underline}")


def kernel(function: Callable[..., Any]) -> Program:
    """Read the kernel that a function's source describes (see the module). Raises `ScriptError`."""
    return parse(Source.of(function), names_of(function))


def from_source(text: str, names: Mapping[str, Any] | None = None) -> Program:
    """Read a kernel from text. `names` are the values of the names that the text does not define,
    as a module's globals. Raises `ScriptError`.
    """
    return parse(Source(textwrap.dedent(text), "script"), names or {})


def read_update(function: Callable[..., Any]) -> LoopFunction:
    """Read a kernel that may add to what its output holds, such as the description of an intrinsic.
    Raises `ScriptError`.
    """
    return parse(Source.of(function), names_of(function), updates=True).function


def names_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The values of names outside a function: its globals, the locals of the function that defines
    it, and its closure. Annotations see these locals, too, and are no part of the closure.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("webmlc."):
        frame = frame.f_back
    locals_around = {} if frame is None else frame.f_locals
    captured: dict[str, Any] = {}
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        with suppress(ValueError):  # assigned after the kernel
            captured[name] = cell.cell_contents
    outer = getattr(function, "__globals__", {})
    return {**vars(builtins), **outer, **locals_around, **captured}


def parse(source: Source, names: Mapping[str, Any], updates: bool = False) -> Program:
    """Parse, verify and check a script. If it `updates`, it may read an output before it writes the
    output. Raises `ScriptError`.
    """
    try:
        tree = ast.parse(source.text)
    except SyntaxError as error:
        start = ast.Pass(lineno=error.lineno or 1, col_offset=(error.offset or 1) - 1)
        raise source.error(start, str(error.msg)) from None
    parser = _ScriptParser(source, canonical(tree, names, source.error))
    try:
        function = parser.function()
    except RecursionError:
        raise source.error(tree.body[0], "the script nests too deep") from None
    try:
        verify(function)
    except InvariantError as error:
        place = parser.places.get(id(error.culprit))
        raise source.error(place, error.message, error.part) from None
    for culprit, message in check_program(function, updates):
        raise source.error(parser.places.get(id(culprit)), message)
    return Program(function)


class _ScriptParser(Parser):
    """The parser of loop text, whose errors show the place in a file."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        super().__init__(source.text, tree)
        self.source = source

    def error(self, node: ast.AST, message: str) -> Any:
        return self.source.error(node, message)
