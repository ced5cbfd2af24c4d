"""Print one kernel as WAT functions.

In: a strength-reduced function. Out: one function that the leading thread calls, whose parameters
are the byte addresses of the buffers and the symbols. Each parallel loop becomes another function,
which all threads call with a first iteration and an end (see `threads`). Before the leader starts
such a loop, it writes the outer values that the loop reads to the control area.

    (func $relu.0 (param $i i32) (param $i.end i32) ...)
    (func $relu (param $A i32) (param $B i32) ...)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from webmlc.core.affine import depends
from webmlc.core.control_area import CONTROL
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError, printable
from webmlc.core.expr import Call, Const, Ramp, Var, as_int
from webmlc.loops.ir import (
    Barrier,
    Buffer,
    For,
    If,
    Let,
    Load,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
    loads,
    walk_statements,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.line_stages import stage_marks
from webmlc.target.registers import register_lanes
from webmlc.target.scalar_replacement import private_buffers
from webmlc.target.wasm.instructions import (
    Instruction,
    Line,
    get_local,
    integer,
    names_read,
    set_local,
    tee_local,
)
from webmlc.target.wasm.reduce_strength import StrengthReduced
from webmlc.target.wasm.table import LANE_STORES, store_instruction, value_type
from webmlc.target.wasm.threads import argument_addresses
from webmlc.target.wasm.translate_expr import Address, ExprTranslator

SCRATCH_ALIGNMENT = 64
"""The alignment of each scratch buffer, in bytes: one cache line."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """The places of a kernel's allocations in scratch memory, as byte offsets. `shared` allocations
    exist once, and `private` allocations exist in the part of each thread.
    """

    shared: dict[Buffer, int]
    private: dict[Buffer, int]
    bytes: int


@dataclass(frozen=True, slots=True)
class Printed:
    """The code of a kernel, before a module gives it a name and places.

    - `text`: the kernel's functions, with `MARK` in place of its name.
    - `loops`: the number of parallel loops. Each is a function of its own, and `MARK:i` stands for
      the place of loop i in the table of the module.
    - `parameters`: the number of buffers and symbols that the kernel takes.
    - `scratch_bytes`: the bytes of scratch memory that each thread needs.
    - `origin`: the ONNX nodes that the kernel computes.
    """

    text: str
    loops: int
    parameters: int
    scratch_bytes: int
    origin: tuple[str, ...] = ()

    def named(self, name: str, table: int = 0) -> str:
        """The text of the kernel `name`, after a comment with its origin. Its parallel loops have
        the places from `table` on in the table of the module.
        """
        text = _PLACE.sub(lambda place: str(table + int(place[1])), self.text)
        comment = "".join(f";; {printable(origin)}\n" for origin in self.origin)
        return comment + text.replace(f"${MARK}", f"${name}")


MARK = "kernel#"
"""The placeholder for a kernel's name in its text, so that equal kernels of all models have the
same text. No variable has such a name.
"""
_PLACE = re.compile(rf"\${MARK}:(\d+)")


def print_kernel(reduced: StrengthReduced, relaxed: bool, *, shows_stages: bool = False) -> Printed:
    """Print the functions of a kernel, with or without relaxed instructions. If the text shows its
    stages, its lines end with their marks (`line_stages`).
    """
    function = reduced.function
    registers = register_lanes(function)
    translator = ExprTranslator(function.name, registers, reduced.pointers, relaxed)
    scratch = plan_scratch(function, registers)
    marks = stage_marks(function.body) if shows_stages else {}
    printer = _KernelPrinter(function, translator, set(registers), scratch, marks)
    printer.statement(function.body, 1)
    return Printed(
        printer.text(),
        len(printer.loops),
        len(printer.parameters()),
        scratch.bytes,
        function.origin,
    )


class SymbolicScratchError(InternalError):
    """A schedule leaves a buffer of symbolic size in memory, which is planned before a run. The
    rules never do; a schedule by hand may.
    """


def plan_scratch(function: LoopFunction, registers: dict[Buffer, int]) -> Scratch:
    """Place the allocations that are not registers, one after the other."""
    memory = [b for b in function.allocations if b not in registers]
    if not memory:
        return Scratch({}, {}, 0)
    private_to_thread = private_buffers(function)
    shared: dict[Buffer, int] = {}
    private: dict[Buffer, int] = {}
    total = 0
    for is_private, offsets in ((False, shared), (True, private)):
        for buffer in memory:
            if (buffer in private_to_thread) is not is_private:
                continue
            count = as_int(buffer.shape[0]) if buffer.shape else 1
            if count is None:
                raise SymbolicScratchError(
                    f"wasm: kernel {function.name}: the intermediate buffer {buffer.name} has the "
                    f"symbolic size {buffer.shape[0]}; the schedule must bring its producer to its "
                    "consumer (compute_at)"
                )
            offsets[buffer] = total
            size = count * buffer.dtype.bytes
            total += (size + SCRATCH_ALIGNMENT - 1) // SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT
    return Scratch(shared, private, total)


@dataclass(slots=True)
class _KernelPrinter:
    """The printer of the function of a kernel, or of one of its parallel loops. `marks` are the
    marks of statements, by identity, and `mark` is the mark of the current statement.
    """

    function: LoopFunction
    expr: ExprTranslator
    registers: set[Buffer]
    scratch: Scratch
    marks: Mapping[int, str]
    mark: str = ""
    in_parallel_loop: bool = False
    loops: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    locals: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The text of the kernel, with its parallel loops first."""
        function = self.function
        names = frozenset(names_read(self.lines))
        self.declare_unset(function.body, names)
        scratch = self.scratch_addresses(names)
        params = " ".join(f"(param ${name} i32)" for name in self.parameters())
        head = [*self.loops, f"(func ${MARK} {params}"]
        head.extend(f"  (local ${name} {kind})" for name, kind in self.locals.items())
        return "\n".join((*head, *(line.text() for line in (*scratch, *self.lines)))) + ")"

    def scratch_addresses(self, names: Set[str]) -> list[Line]:
        """The lines that set the addresses of the scratch buffers among the locals that are read
        in this function.
        """
        base = _word(CONTROL.scratch)
        part = Instruction(
            "i32.mul", (Instruction("global.get $tid"), _word(CONTROL.scratch_stride))
        )
        lines = []
        for buffers, region in (
            (self.scratch.shared, base),
            (self.scratch.private, Instruction("i32.add", (base, part))),
        ):
            for buffer, start in buffers.items():
                if buffer.name in names:
                    self.locals[buffer.name] = "i32"
                    address = Instruction("i32.add", (region, integer(start))) if start else region
                    lines.append(Line(1, (set_local(buffer.name, address),)))
        return lines

    def declare_unset(self, body: Stmt, names: Set[str]) -> None:
        """Declare the registers among the locals that are read before they are set, such as the sum
        of no elements.
        """
        for load in loads(body):
            lanes = self.expr.registers.get(load.buffer)
            if lanes is not None and load.buffer.name in names:
                self.locals.setdefault(load.buffer.name, value_type(load.buffer.dtype, lanes))

    def line(self, depth: int, *parts: str | Instruction) -> None:
        self.lines.append(Line(depth, parts, self.mark))

    # -- threads ---------------------------------------------------------------------------------

    def parallel(self, loop: For, depth: int) -> None:
        """Print a parallel loop as a function of a range of iterations, and a call that
        shares it among threads.
        """
        name = f"{MARK}.{len(self.loops)}"
        inner = replace(self, in_parallel_loop=True, lines=[], locals={})
        inner.statement(loop.body, 2)
        names = names_read(inner.lines)
        inner.declare_unset(loop.body, frozenset(names))
        scratch = inner.scratch_addresses(frozenset(names))
        inner_names = {
            loop.var.name,
            *(b.name for b in (*self.scratch.shared, *self.scratch.private)),
        }
        outer_kinds = dict.fromkeys(self.parameters(), "i32") | self.locals
        passed = outer_kinds.keys() - inner_names
        arguments = [n for n in names if n in passed]
        addresses = argument_addresses([outer_kinds[n] for n in arguments])
        if addresses is None:  # too many values to pass
            self.loop(loop, depth)
            return
        kinds = inner.locals | {n: outer_kinds[n] for n in arguments}
        first, end = loop.var.name, f"{loop.var.name}.end"
        text = [f"(func ${name} (param ${first} i32) (param ${end} i32)"]
        text += [f"  (local ${n} {kind})" for n, kind in kinds.items()]
        lines = []
        for n, address in zip(arguments, addresses, strict=True):
            lines.append(Line(1, (set_local(n, _word(address, outer_kinds[n])),)))
            store = f"{outer_kinds[n]}.store offset={address}"
            self.line(depth, Instruction(store, (integer(0), get_local(n))))
        is_left = Instruction("i32.lt_s", (get_local(first), get_local(end)))
        next_ = set_local(first, _incremented(first))
        opening = Line(1, (f"(loop $L_{first} (if ", is_left, " (then"), self.mark)
        closing = Line(2, (next_, f" (br $L_{first})))))"), self.mark)
        text += [line.text() for line in (*lines, *scratch, opening, *inner.lines, closing)]
        place = Instruction(f"i32.const ${MARK}:{len(self.loops)}")
        self.line(depth, Instruction("call $parallel", (place, self.expr.value(loop.extent))))
        self.loops.append("\n".join(text))

    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters."""
        function = self.function
        return (*(b.name for b in function.params), *(s.name for s in function.symbols))

    # -- statements ------------------------------------------------------------------------------

    def statement(self, stmt: Stmt, depth: int) -> None:
        """Print a statement, with its mark at the end of its lines."""
        outer, self.mark = self.mark, self.marks.get(id(stmt), "")
        self.unmarked(stmt, depth)
        self.mark = outer

    def unmarked(self, stmt: Stmt, depth: int) -> None:
        """Print a statement at a depth."""
        match stmt:
            case Store():
                self.store(stmt, depth)
            case Seq(statements=statements):
                for child in statements:
                    self.statement(child, depth)
            case Let(var=var, value=value, body=body):
                self.locals[var.name] = value_type(var.dtype, 1)
                self.line(depth, set_local(var.name, self.expr.value(value)))
                self.statement(body, depth)
            case If(condition=condition, then=then, otherwise=otherwise):
                self.line(depth, "(if ", self.expr.value(condition), " (then")
                self.statement(then, depth + 1)
                if otherwise is not None:
                    self.line(depth, ") (else")
                    self.statement(otherwise, depth + 1)
                self.line(depth, "))")
            case For(kind="parallel") if not self.in_parallel_loop:
                self.parallel(stmt, depth)
            case For(kind="serial" | "parallel"):
                self.loop(stmt, depth)
            case Barrier():
                pass  # a workgroup is one thread here
            case _:
                raise InternalError(f"wasm: kernel {self.function.name}: cannot print {stmt}")

    def loop(self, loop: For, depth: int) -> None:
        """Print a serial loop."""
        name = loop.var.name
        self.locals[name] = "i32"
        extent = as_int(loop.extent)
        may_be_empty = extent is None or extent < 1
        if may_be_empty:
            count = self.expr.value(loop.extent)
            self.line(depth, "(if ", Instruction("i32.gt_s", (count, integer(0))), " (then")
        start, continues = self.steps(loop)
        self.line(depth, set_local(name, start))
        self.line(depth, f"(loop $L_{name}")
        self.statement(loop.body, depth + 1)
        self.line(depth + 1, Instruction(f"br_if $L_{name}", (continues,)))
        self.line(depth, ")))" if may_be_empty else ")")

    def steps(self, loop: For) -> tuple[Instruction, Instruction]:
        """The initial value of the loop's local, and the condition on which the loop continues
        after an iteration.

        The local counts up where the body uses the loop variable. Otherwise it is the end address
        of a pointer that every iteration advances by a constant, or it counts down. An end address
        is cheaper when registers run short: V8 then keeps the constant end in memory, and the
        changing pointer in a register. A counter in memory would take longer per iteration than the
        multiply-adds of a tile.
        """
        name, count = loop.var.name, self.expr.value(loop.extent)
        if uses(loop.body, loop.var):
            next_ = tee_local(name, _incremented(name))
            return integer(0), Instruction("i32.lt_s", (next_, count))
        last = loop.body.statements[-1] if isinstance(loop.body, Seq) else loop.body
        match last:
            case Store(
                buffer=pointer, value=Call(op="add", args=(Load() as previous, Const() as stride))
            ):
                if previous.buffer == pointer in self.expr.pointers:
                    end = previous + loop.extent * stride
                    address = self.expr.byte_address(self.expr.pointers[pointer], end)
                    compared = (get_local(pointer.name), get_local(name))
                    return address, Instruction("i32.ne", compared)
        return count, tee_local(name, Instruction("i32.sub", (get_local(name), integer(1))))

    def store(self, store: Store, depth: int) -> None:
        """Print a store to memory, or the setting of a register."""
        buffer = store.buffer
        if buffer in self.registers:
            self.set_register(store, depth)
            return
        value = self.expr.value(store.value)
        match store.indices[0]:
            case Ramp(base=base, stride=Const(value=1)) if buffer.dtype in LANE_STORES:
                self.line(depth, self.expr.store_small(buffer, base, value))
            case Ramp(base=base, stride=Const(value=1)):
                self.memory_store(depth, "v128.store", self.expr.address(buffer, base), value)
            case Ramp(base=base, stride=stride):
                self.locals[".lanes"] = "v128"
                lanes = get_local(".lanes")
                self.line(depth, set_local(".lanes", value))
                for lane in range(VECTOR_LANES):
                    address = self.expr.address(buffer, base + stride * lane)
                    if buffer.dtype not in LANE_STORES:
                        self.line(depth, self.expr.lane("store", lane, address, lanes))
                        continue
                    element = Instruction(f"i32x4.extract_lane {lane}", (lanes,))
                    if buffer.dtype is DType.bool:
                        element = Instruction("i32.and", (element, integer(1)))
                    self.memory_store(depth, store_instruction(buffer.dtype), address, element)
            case index:
                name = store_instruction(buffer.dtype)
                self.memory_store(depth, name, self.expr.address(buffer, index), value)

    def memory_store(self, depth: int, name: str, address: Address, value: Instruction) -> None:
        """Print a store of a value to memory."""
        offset, pointer = address
        self.line(depth, Instruction(f"{name}{offset}", (pointer, value)))

    def set_register(self, store: Store, depth: int) -> None:
        """Print the setting of a register, which holds a value or the byte address of a pointer."""
        register = store.buffer
        target = self.expr.pointers.get(register)
        if target is None:
            self.locals[register.name] = value_type(register.dtype, store.value.lanes)
            value = self.expr.value(store.value)
        else:
            self.locals[register.name] = "i32"
            value = self.expr.byte_address(target, store.value)
        self.line(depth, set_local(register.name, value))


def uses(root: Stmt, var: Var) -> bool:
    """True where any expression of `root` depends on `var`."""
    return any(depends(e, var) for stmt in walk_statements(root) for e in expressions(stmt))


def _incremented(name: str) -> Instruction:
    """The value of a local, plus 1."""
    return Instruction("i32.add", (get_local(name), integer(1)))


def _word(address: int, kind: str = "i32") -> Instruction:
    """The word of the control area at an address."""
    return Instruction(f"{kind}.load offset={address}", (integer(0),))
