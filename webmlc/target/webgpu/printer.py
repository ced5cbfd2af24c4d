"""Print one kernel as WGSL.

In: a lowered function, and which of its buffers are constants. Out: its declarations and entry
point, its grid, and the helper functions that it calls.

    @group(0) @binding(0) var<storage, read_write> relu_in0: array<vec4<f32>>;
    @compute @workgroup_size(64)
    fn relu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) thread:
    vec3<u32>) { ... }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError, printable
from webmlc.core.expr import Cast, Const, Expr, Ramp, Var, as_int
from webmlc.core.simplify import simplify
from webmlc.loops.ir import Barrier, Buffer, For, If, Let, LoopFunction, Seq, Stmt, Store, stores
from webmlc.loops.kernel_form import gpu_obstacle
from webmlc.target.insert_barriers import differs
from webmlc.target.line_stages import stage_marks
from webmlc.target.registers import added_value
from webmlc.target.target import run_passes
from webmlc.target.webgpu.choose_storage import HALVES, vector_index
from webmlc.target.webgpu.declarations import (
    array_type,
    declarations,
    declared_in_place,
    section_name,
    word,
)
from webmlc.target.webgpu.join_updates import matrix_product
from webmlc.target.webgpu.lowering import passes_to_print
from webmlc.target.webgpu.names import NAME, NUMBER, memory_name, wgsl_name
from webmlc.target.webgpu.print_expression import ExpressionPrinter, lane_indices
from webmlc.target.webgpu.quad_loads import LANE, QUADS, exchanges, lane_lines, quad_loads
from webmlc.target.webgpu.storage import PARTS, WORDS, store_lines
from webmlc.target.webgpu.subgroup_folds import FEATURE, LANES_LINES, fold_lines, subgroup_fold
from webmlc.target.webgpu.table import half_type, type_name
from webmlc.target.webgpu.threads import Grid, Section, grid_of

_BUILTINS = (
    ("workgroup_id", "workgroup"),
    ("local_invocation_id", "thread"),
    ("num_workgroups", "workgroups"),
)
"""The built-in values that an entry point may take, and the names of its parameters."""
_AXES = "xyz"
"""The axes of a grid, in the order of its dimensions."""
INDENT = " "
"""The indentation per level: one space, because shaders are downloaded."""


@dataclass(frozen=True, slots=True)
class Shader:
    """The code of a kernel, before a module gives it a name and a number.

    - `text`: the bindings and the entry point, with `NAME` in place of the kernel's name and
      `NUMBER` in the names of its bindings.
    - `workgroups`: the size of the dispatch, over the `symbols` of the uniform buffer.
    - `helpers`: the functions that the module must have.
    - `origin`: the ONNX nodes that the kernel computes.
    - `features`: the features of WebGPU that it needs.
    - `sections`: the workgroups of each optional section.
    """

    text: str
    workgroups: tuple[Expr, Expr, Expr]
    symbols: tuple[str, ...]
    helpers: tuple[str, ...]
    origin: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    sections: tuple[Expr, ...] = ()

    def named(self, name: str, number: int) -> str:
        """The text of the kernel `name`, after a comment with its origin. `number` distinguishes
        its bindings from the bindings of other kernels.
        """
        origin = ", ".join(self.origin)
        comment = f"// {name}{': ' if origin else ''}{printable(origin)}"
        text = self.text.replace(NAME, wgsl_name(name)).replace(NUMBER, str(number))
        return f"{comment}\n{text}"


def emit_shader(
    function: LoopFunction,
    constants: frozenset[str],
    features: frozenset[str] = frozenset(),
    *,
    is_software: bool = False,
    shows_stages: bool = False,
) -> Shader:
    """Print a lowered kernel after its last passes. It may use some `features` of WebGPU. The
    pipelines of a software adapter may leave out sections. If the text shows its stages, its lines
    end with their marks (`line_stages`).

    Raises InternalError, with the kernel's name, where WGSL has no spelling.
    """
    if reason := gpu_obstacle(function):
        raise InternalError(f"webgpu: kernel {function.name}: {reason}")
    dispatched = grid_of(function)  # with divisions, as hosts evaluate them
    optional = dispatched.optional if is_software else {}
    function = run_passes(function, passes_to_print(features, is_software))
    grid = grid_of(function)
    stored = {store.buffer for store in stores(function.body)}
    inputs = frozenset(b.name for b in function.params if b.in_vectors and b not in stored)
    has_halves = any(b.storage == "halves" for b in (*function.params, *function.allocations))
    quads = quad_loads(function, inputs, grid.workgroup_size[0]) if QUADS in features else {}
    swapped = exchanges(function, quads, inputs)
    expressions = ExpressionPrinter(function.name, quads, swapped, has_halves)
    declared = declared_in_place(function)
    marks = stage_marks(function.body) if shows_stages else {}
    printer = _Printer(function, grid, expressions, declared, features, marks, tuple(optional))
    body = printer.entry()
    head = declarations(function, constants, len(optional))
    return Shader(
        "\n".join([*head, *body, ""]),
        dispatched.workgroups,
        tuple(symbol.name for symbol in function.symbols),
        tuple(expressions.helpers),
        function.origin,
        tuple(
            sorted(
                {
                    *printer.used_features,
                    *expressions.features,
                    *([HALVES] if has_halves else []),
                }
            )
        ),
        tuple(optional.values()),
    )


@dataclass(slots=True)
class _Printer:
    """The printer of one kernel's entry point, line by line."""

    function: LoopFunction
    grid: Grid
    expressions: ExpressionPrinter
    declared: dict[int, str]  # `let` or `var`, by the identity of the declaring store
    features: frozenset[str]
    marks: Mapping[int, str]
    optional: tuple[int, ...] = ()  # the positions of the sections with an override
    mark: str = ""  # the mark of the current statement
    used_features: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    block: str = ""  # the workgroup's number within the section, where the grid is linear
    section: Section | None = None
    guards: int = 0  # conditions around the current statement that may differ between threads
    uneven_loops: int = 0  # loops around it whose iterations may differ between threads
    differing: set[Var] = field(default_factory=set)  # variables that may differ between threads
    constants: set[Buffer] = field(default_factory=set)  # registers that `let` declared
    matrices: set[str] = field(default_factory=set)  # the names of matrices in scope

    def write(self, line: str) -> None:
        """Append a line at the current depth, with the mark of its statement."""
        self.lines.append(f"{INDENT * self.depth}{line}{self.mark}")

    def text(self, expr: Expr) -> str:
        return self.expressions.text(expr)

    def entry(self) -> list[str]:
        """Print the entry point: attributes, symbols, registers, then the sections."""
        function, grid = self.function, self.grid
        sizes = list(grid.workgroup_size)
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        for position, symbol in enumerate(function.symbols):
            self.write(f"let {wgsl_name(symbol.name)} = {word(position)};")
        in_place = {s.buffer.name for s in stores(function.body) if id(s) in self.declared}
        for buffer in function.allocations:
            if buffer.scope == "local" and buffer.name not in in_place:
                self.declare(buffer)
        if grid.is_linear:
            rows = "" if grid.workgroups[1] == Const(1) else " + workgroup.y * workgroups.x"
            self.write(f"let group = i32(workgroup.x{rows});")
        for position, section in enumerate(grid.sections):
            if position in self.optional:
                name = section_name(self.optional.index(position))
                with self.braces(f"if ({name})"):
                    self.print_section(section)
            else:
                self.print_section(section)
        if FEATURE in self.used_features:
            self.lines[:0] = [f"{INDENT}{line}" for line in LANES_LINES]
        text = "\n".join(self.lines)
        if LANE in text or self.expressions.offsets:
            self.used_features.add(FEATURE)
            lines = lane_lines(text, self.expressions.offsets)
            self.lines[:0] = [f"{INDENT}{line}" for line in lines]
            text = "\n".join(self.lines)
        builtins = ", ".join(
            f"@builtin({builtin}) {name}: vec3u"
            for builtin, name in _BUILTINS
            if f"{name}." in text
        )
        return [
            f"@compute @workgroup_size({', '.join(map(str, sizes))})",
            f"fn {NAME}({builtins}) {{",
            *self.lines,
            "}",
        ]

    def declare(self, buffer: Buffer) -> None:
        """Print the declaration of a register or a local array."""
        name = wgsl_name(buffer.name)
        if buffer.storage == "register":
            lanes = as_int(buffer.shape[0]) if buffer.shape else 1
            self.write(f"var {name}: {type_name(buffer.dtype, lanes or 1)};")
        else:
            self.write(f"var {name}: {array_type(buffer, self.function)};")

    def print_section(self, section: Section) -> None:
        """Print one section. Its condition depends only on the workgroup, so control flow
        inside stays uniform.
        """
        self.section = section
        if not self.grid.is_linear:
            self.statement(section.body)
            return
        first = self.expressions.operand(section.first)
        last = self.expressions.operand(simplify(section.first + section.count))
        self.block = "group" if section.first == Const(0) else f"(group - {first})"
        lower = "" if section.first == Const(0) else f"group >= {first} && "
        with self.braces(f"if ({lower}group < {last})"):
            self.statement(section.body)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """Print braces after `head` around the lines that are printed inside."""
        self.write(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.write("}")

    def statement(self, root: Stmt) -> None:
        """Print a statement, with its mark at the end of its lines."""
        outer = self.mark
        self.lets(root)
        self.mark = outer

    def lets(self, root: Stmt) -> None:
        """Print a chain of lets, and the statement in it."""
        while isinstance(root, Let):  # a loop: Python's recursion is too shallow for long chains
            self.mark = self.marks.get(id(root), "")
            self.write(f"let {wgsl_name(root.var.name)} = {self.text(root.value)};")
            if differs(root.value, self.differing):
                self.differing.add(root.var)
            root = root.body
        self.mark = self.marks.get(id(root), "")
        self.single(root)

    def single(self, root: Stmt) -> None:
        """Print a statement that is no let."""
        match root:
            case Seq(statements=statements):
                for child in statements:
                    self.statement(child)
            case For(kind="thread_binding"):
                self.thread_loop(root)
            case For(var=var, extent=extent, body=body, kind="serial"):
                if self.can_use_subgroups() and (fold := subgroup_fold(root, self.differing)):
                    self.used_features.add(FEATURE)
                    for line in fold_lines(fold, self.expressions):
                        self.write(line)
                    return
                name = wgsl_name(var.name)
                end = self.expressions.operand(extent)
                if is_uneven := differs(extent, self.differing):
                    self.differing.add(var)
                self.uneven_loops += is_uneven
                self.braced(f"for (var {name} = 0; {name} < {end}; {name}++)", body)
                self.uneven_loops -= is_uneven
            case For(kind=kind):
                raise self.expressions.unsayable(f"{kind} loop")
            case If(condition=condition, then=then, otherwise=otherwise):
                is_guard = differs(condition, self.differing)
                self.guards += is_guard
                head = f"if ({self.text(condition)})"
                self.braced(head, then)
                if otherwise is not None:
                    self.braced("else", otherwise)
                self.guards -= is_guard
            case Store():
                self.store(root)
            case Barrier():
                if self.guards:
                    raise InternalError(
                        f"webgpu: kernel {self.function.name}: a barrier under a condition that "
                        "may differ between threads"
                    )
                self.write("workgroupBarrier();")
            case _:
                raise self.expressions.unsayable(type(root).__name__)

    def can_use_subgroups(self) -> bool:
        """True where the kernel may use subgroups, and all threads run the same statement."""
        return FEATURE in self.features and not self.guards and not self.uneven_loops

    def braced(self, head: str, body: Stmt) -> None:
        """Print a body in braces after `head`."""
        outer_matrices = set(self.matrices)
        with self.braces(head):
            self.statement(body)
        self.matrices = outer_matrices

    def thread_loop(self, loop: For) -> None:
        """Bind the loop's variable to the number of a workgroup or a thread. A condition guards the
        body where there are more threads than iterations.
        """
        assert loop.thread is not None and self.section is not None
        name = wgsl_name(loop.var.name)
        kind, axis = loop.thread.split(".")
        position = _AXES.index(axis)
        if kind == "blockIdx":
            self.write(f"let {name} = {self.block_index(position)};")
            self.statement(loop.body)
            return
        self.differing.add(loop.var)
        self.write(f"let {name} = i32(thread.{axis});")
        if as_int(loop.extent) == self.grid.workgroup_size[position]:
            self.statement(loop.body)
            return
        self.guards += 1
        self.braced(f"if ({name} < {self.expressions.operand(loop.extent)})", loop.body)
        self.guards -= 1

    def block_index(self, position: int) -> str:
        """The value of blockIdx.x, blockIdx.y or blockIdx.z."""
        assert self.section is not None
        if not self.grid.is_linear:
            return f"i32(workgroup.{_AXES[position]})"
        text = self.block
        for extent in self.section.blocks[:position]:
            text = f"{text} / {self.expressions.operand(extent)}"
        if any(as_int(extent) != 1 for extent in self.section.blocks[position + 1 :]):
            text = f"{text} % {self.expressions.operand(self.section.blocks[position])}"
        return text

    def store(self, stmt: Store) -> None:
        """Print an assignment. A vector goes to a scalar view element by element."""
        buffer = stmt.buffer
        addend = added_value(stmt)
        if addend is not None and buffer.dtype.bytes == 4 and buffer.storage == "register":
            addend_text = self.matrix_text(addend) or self.text(addend)
            self.write(f"{wgsl_name(buffer.name)} += {addend_text};")
            return
        value = self.text(stmt.value)
        if id(stmt) in self.declared:
            if self.declared[id(stmt)] == "let":
                self.constants.add(buffer)
            self.write(f"{self.declared[id(stmt)]} {wgsl_name(buffer.name)} = {value};")
            return
        if buffer.storage in WORDS:
            self.store_part(buffer, stmt.indices, stmt.value)
            return
        is_half = buffer.storage == "halves"
        if is_half:
            value = self.half(stmt.value)
        is_spread = (
            stmt.indices
            and stmt.indices[0].lanes > 1
            and buffer.storage != "register"
            and not buffer.in_vectors
        )
        if not is_spread:
            self.write(f"{self.expressions.reference(buffer, stmt.indices)} = {value};")
            return
        (ramp,) = stmt.indices
        if not isinstance(ramp, Ramp):
            raise self.expressions.unsayable(f"a store at {ramp}")
        with self.braces(""):
            self.write(f"let vector = {value};")
            for index, component in zip(lane_indices(ramp), "xyzw", strict=True):
                self.write(f"{self.expressions.element(buffer, index)} = vector.{component};")

    def matrix_text(self, value: Expr) -> str | None:
        """The text of a sum as the product of a matrix and a vector. The matrix is declared before
        its first use, if its columns do not change. None for other sums.
        """
        product = matrix_product(value)
        if product is None or not self.constants.issuperset(product.columns):
            return None
        columns = [wgsl_name(column.name) for column in product.columns]
        matrix = "_".join(columns)
        if matrix not in self.matrices:
            self.write(f"let {matrix} = mat4x4f({', '.join(columns)});")
            self.matrices.add(matrix)
        return f"{matrix} * {wgsl_name(product.vector.name)}"

    def half(self, value: Expr) -> str:
        """The text of a value as float16 in memory."""
        match value:
            case Cast(value=wide, dtype=DType.float16) if wide.dtype is DType.float32:
                value = wide
        return f"{half_type(value.lanes)}({self.text(value)})"

    def store_part(self, buffer: Buffer, indices: tuple[Expr, ...], value: Expr) -> None:
        """Print an assignment to parts of words."""
        expressions = self.expressions
        part, name = PARTS[buffer.dtype], memory_name(buffer)
        bits = expressions.spelled(part.bits, expressions.printed(value), lanes=value.lanes)
        match indices:
            case (Ramp(base=base),) if buffer.in_vectors:
                packed, _ = expressions.spelled(part.packed, bits)
                self.write(f"{name}[{self.text(vector_index(base))}] = {packed};")
                return
            case (Ramp() as ramp,):
                with self.braces(""):
                    self.write(f"let vector = {bits[0]};")
                    for index, component in zip(lane_indices(ramp), "xyzw", strict=True):
                        self.store_in_word(buffer, index, f"vector.{component}")
            case (index,):
                self.store_in_word(buffer, index, bits[0])

    def store_in_word(self, buffer: Buffer, index: Expr, bits: str) -> None:
        """Print the store of one element into its word. Other threads may write the word's
        other elements.
        """
        with self.braces(""):
            for line in store_lines(memory_name(buffer), buffer.dtype, self.text(index), bits):
                self.write(line)
