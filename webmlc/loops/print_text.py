"""Print loop functions as Python text, and draw errors into that text.

In: a `LoopFunction`. Out: its text, which `parse_text` parses to an equal function.

    >>> print(print_function(relu))
    @T.kernel
    def relu(A: T.Buffer((n, 8), "float32"), B: T.Output((n, 8), "float32"), n: T.symbol):
        for i, j in T.grid(n, 8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = T.max(A[vi, vj], T.float32(0.0))

Serial loops whose extents do not depend on each other share one `T.grid`. Axes that are bound to
plain loop variables share one `T.axis.remap`. A let prints as `v = value` if it extends to the end
of its suite. If other statements follow, it prints as `with T.let(v, value):`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import variables
from webmlc.loops.ir import (
    Barrier,
    Block,
    Buffer,
    For,
    If,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    Store,
)

_WIDTH = 100
"""Print a function's head on one line if it has at most this many characters."""
_CONTEXT = 3
"""The number of lines shown on each side of the culprit. Chosen by hand."""
_SHORT = 24
"""Show a text of at most this many lines completely. Chosen by hand."""

Culprit = Stmt | Buffer | Var


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text, and the parts of the function whose head it shows."""

    indent: int
    text: str
    shows: tuple[Culprit, ...] = ()

    def __str__(self) -> str:
        return "    " * self.indent + self.text


def print_function(function: LoopFunction) -> str:
    """Print `function` as Python text, without a newline at the end."""
    return "\n".join(map(str, print_lines(function)))


def print_statement(stmt: Stmt) -> str:
    """Print one statement as Python text, for messages."""
    return "\n".join(map(str, _suite(stmt, 0, {})))


def print_lines(function: LoopFunction) -> list[Line]:
    """Print `function` line by line."""
    return [
        *_header(function),
        *(
            Line(1, f"{b.name} = T.alloc_buffer({_buffer_type(b)})", (b,))
            for b in function.allocations
        ),
        *_suite(function.body, 1, {}),
    ]


def draw(function: LoopFunction, culprit: Culprit | None, part: str = "") -> str:
    """Print `function` around `culprit`, and underline the culprit.

    The culprit is located by identity, else by equality. If its line contains `part`, only that
    part is underlined. Distant lines that do not enclose the culprit are omitted.
    """
    lines = print_lines(function)
    culprit_line = _find(lines, culprit)
    if culprit_line is None:
        return _indented(map(str, lines[:_SHORT]))
    line_numbers = _around(lines, culprit_line)
    drawn: list[str] = []
    previous = -1
    for index in line_numbers:
        if index != previous + 1:
            drawn.append("    " * lines[index].indent + "...")
        drawn.append(str(lines[index]))
        if index == culprit_line:
            drawn.append(_underline(str(lines[culprit_line]), part))
        previous = index
    if previous != len(lines) - 1:
        drawn.append("    " * lines[previous].indent + "...")
    return _indented(drawn)


def _find(lines: Sequence[Line], culprit: Culprit | None) -> int | None:
    for index, line in enumerate(lines):
        if any(shown is culprit for shown in line.shows):
            return index
    return next((i for i, line in enumerate(lines) if culprit in line.shows), None)


def _around(lines: Sequence[Line], at: int) -> list[int]:
    """The lines near `at`, and the heads of all suites around it; all lines of a short text."""
    if len(lines) <= _SHORT:
        return list(range(len(lines)))
    keep = set(range(max(0, at - _CONTEXT), min(len(lines), at + _CONTEXT + 1)))
    for start in sorted(keep):
        indent = lines[start].indent
        for index in range(start, -1, -1):
            if lines[index].indent < indent:
                indent = lines[index].indent
                keep.add(index)
    return sorted(keep)


def _underline(line: str, part: str) -> str:
    match = re.search(rf"(?<!\w){re.escape(part)}(?!\w)", line) if part else None
    start, end = match.span() if match else (len(line) - len(line.lstrip()), len(line))
    return " " * start + "^" * (end - start)


def _indented(lines: Sequence[str] | map[str]) -> str:
    return "\n".join("    " + line for line in lines)


# -- the function's head -----------------------------------


def _header(function: LoopFunction) -> list[Line]:
    first_output = len(function.params) - function.outputs
    params: list[tuple[str, Culprit]] = []
    for index, buffer in enumerate(function.params):
        kind = "Output" if index >= first_output else "Buffer"
        params.append((f"{buffer.name}: T.{kind}({_buffer_type(buffer)})", buffer))
    params += [(f"{symbol.name}: T.symbol", symbol) for symbol in function.symbols]
    origin = f"(origin={list(function.origin)!r})" if function.origin else ""
    lines = [Line(0, f"@T.kernel{origin}")]
    one_line = f"def {function.name}({', '.join(text for text, _ in params)}):"
    if len(one_line) <= _WIDTH:
        return [*lines, Line(0, one_line, tuple(shown for _, shown in params))]
    lines.append(Line(0, f"def {function.name}("))
    lines += [Line(1, f"{text},", (shown,)) for text, shown in params]
    return [*lines, Line(0, "):")]


def _buffer_type(buffer: Buffer) -> str:
    scope = "" if buffer.scope == "global" else f', scope="{buffer.scope}"'
    storage = "" if buffer.storage == "elements" else f', storage="{buffer.storage}"'
    vectors = ", in_vectors=True" if buffer.in_vectors else ""
    return f'{_tuple(buffer.shape)}, "{buffer.dtype}"{scope}{storage}{vectors}'


def _tuple(exprs: Sequence[Expr]) -> str:
    return f"({exprs[0]},)" if len(exprs) == 1 else f"({', '.join(map(str, exprs))})"


# -- statements --------------------------------------------

Extents = Mapping[Var, Expr]


def _suite(stmt: Stmt, indent: int, extents: Extents) -> list[Line]:
    """Print the statements of a suite. `extents` are the extents of the loops around it.

    The body of a let that ends the suite is not indented.
    """
    lines: list[Line] = []
    statements = list(stmt.statements) if isinstance(stmt, Seq) else [stmt]
    while statements:
        head = statements.pop(0)
        if isinstance(head, Let) and not statements:
            lines.append(Line(indent, f"{head.var.name} = {head.value}", (head, head.var)))
            body = head.body
            statements = list(body.statements) if isinstance(body, Seq) else [body]
        else:
            lines.extend(_statement(head, indent, extents))
    return lines or [Line(indent, "pass")]


def _statement(stmt: Stmt, indent: int, extents: Extents) -> list[Line]:
    match stmt:
        case Store(buffer=buffer, indices=indices, value=value):
            index = ", ".join(map(str, indices)) or "()"
            return [Line(indent, f"{buffer.name}[{index}] = {value}", (stmt,))]
        case For():
            return _loops(stmt, indent, extents)
        case If(condition=condition, then=then, otherwise=otherwise):
            lines = [Line(indent, f"if {condition}:", (stmt,)), *_suite(then, indent + 1, extents)]
            if otherwise is not None:
                lines += [Line(indent, "else:"), *_suite(otherwise, indent + 1, extents)]
            return lines
        case Let(var=var, value=value, body=body):
            head = Line(indent, f"with T.let({var.name}, {value}):", (stmt, var))
            return [head, *_suite(body, indent + 1, extents)]
        case Barrier():
            return [Line(indent, "T.barrier()", (stmt,))]
        case Block():
            return _block(stmt, indent, extents)
        case Seq():
            return _suite(stmt, indent, extents)


def _loops(loop: For, indent: int, extents: Extents) -> list[Line]:
    """Print a loop, or a grid of serial loops whose extents do not depend on each other."""
    group, body = [loop], loop.body
    if _is_serial(loop):
        bound = {loop.var}
        while isinstance(body, For) and _is_serial(body) and not variables(body.extent) & bound:
            group.append(body)
            bound.add(body.var)
            body = body.body
    names = ", ".join(f.var.name for f in group)
    bounds = ", ".join(str(f.extent) for f in group)
    if loop.kind == "thread_binding":
        bounds += f', "{loop.thread}"'
    callee = "T.grid" if len(group) > 1 else "range" if loop.kind == "serial" else f"T.{loop.kind}"
    shows = tuple(part for f in group for part in (f, f.var))
    inner = {**extents, **{f.var: f.extent for f in group}}
    return [
        Line(indent, f"for {names} in {callee}({bounds}):", shows),
        *_suite(body, indent + 1, inner),
    ]


def _is_serial(loop: For) -> bool:
    return loop.kind == "serial"


def _block(block: Block, indent: int, extents: Extents) -> list[Line]:
    lines = [Line(indent, f'with T.block("{block.name}"):', (block,))]
    inner = indent + 1
    is_plain = all(
        isinstance(b, Var) and extents.get(b) == a.extent
        for a, b in zip(block.axes, block.bindings, strict=False)
    )
    if block.axes and is_plain and len(block.axes) == len(block.bindings):
        names = ", ".join(a.var.name for a in block.axes)
        kinds = "".join("S" if a.kind == "spatial" else "R" for a in block.axes)
        bindings = ", ".join(map(str, block.bindings))
        shows = tuple(a.var for a in block.axes)
        lines.append(Line(inner, f'{names} = T.axis.remap("{kinds}", [{bindings}])', shows))
    else:
        for index, axis in enumerate(block.axes):
            binding = block.bindings[index] if index < len(block.bindings) else "?"
            text = f"{axis.var.name} = T.axis.{axis.kind}({axis.extent}, {binding})"
            lines.append(Line(inner, text, (axis.var,)))
    if block.predicate is not None:
        lines.append(Line(inner, f"T.where({block.predicate})"))
    if block.intrinsic is not None:
        lines.append(Line(inner, f'T.intrinsic("{block.intrinsic}")'))
    if block.init is not None:
        lines += [Line(inner, "with T.init():"), *_suite(block.init, inner + 1, {})]
    return lines + _suite(block.body, inner, {})
