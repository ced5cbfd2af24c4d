"""One kernel as a WAT function.

In: a strength-reduced function. Out: a function of the byte addresses of its buffers and of its
symbols, which the leading thread calls; and one for each parallel loop, of the first of its
iterations and the one after the last, which all threads call (see `threads`). What a loop reads
from outside, the leader writes to the control area before it starts the loop.

    (func $relu.0 (param $i i32) (param $i.end i32) ...)
    (func $relu (param $A i32) (param $B i32) ...)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from webmlc.core.affine import depends
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Call, Const, Expr, Ramp, Var, as_int
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
from webmlc.target.private_buffers import private_buffers
from webmlc.target.registers import register_lanes
from webmlc.target.wasm.print_expr import ExprPrinter
from webmlc.target.wasm.reduce_strength import StrengthReduced
from webmlc.target.wasm.table import LANE_STORES, STORES, value_type
from webmlc.target.wasm.threads import ARGUMENTS, ARGUMENTS_END

SCRATCH_ALIGNMENT = 64
SCRATCH_BASE, SCRATCH_STRIDE = 256, 260
"""Where the control area says how scratch memory is laid out (see `emit_module`)."""

_ACCESS = re.compile(r"\(local\.(get|set|tee) \$([^\s()]+)")
_BYTES = {"i32": 4, "f32": 4, "i64": 8, "f64": 8, "v128": 16}


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a kernel's allocations lie: `shared` ones once, at these offsets; `private` ones in
    each thread's part.
    """

    shared: dict[Buffer, int]
    private: dict[Buffer, int]
    bytes: int


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel's functions, the names of those that are parallel loops, and the bytes of scratch
    memory it needs a thread.
    """

    text: str
    loops: tuple[str, ...]
    scratch_bytes: int


def print_kernel(reduced: StrengthReduced, name: str, relaxed: bool, table: int = 0) -> Printed:
    """The text of function `name`; its parallel loops come into the module's table at `table`."""
    function = replace(reduced.function, name=name)
    registers = register_lanes(function)
    expressions_ = ExprPrinter(function.name, registers, reduced.pointers, relaxed)
    scratch = plan_scratch(function, registers)
    printer = _KernelPrinter(function, expressions_, set(registers), scratch, table)
    printer.statement(function.body, 1)
    loops = tuple(f"{name}.{i}" for i in range(len(printer.loops)))
    return Printed(printer.text(), loops, scratch.bytes)


def plan_scratch(function: LoopFunction, registers: dict[Buffer, int]) -> Scratch:
    """Memory for allocations that are not registers, one after the other."""
    memory = [b for b in function.allocations if b not in registers]
    if not memory:
        return Scratch({}, {}, 0)
    mine = private_buffers(function)
    shared: dict[Buffer, int] = {}
    private: dict[Buffer, int] = {}
    total = 0
    for own, chosen in ((False, shared), (True, private)):
        for buffer in memory:
            if (buffer in mine) is not own:
                continue
            count = as_int(buffer.shape[0]) if buffer.shape else 1
            if count is None:
                raise InternalError(
                    f"wasm: kernel {function.name}: the intermediate buffer {buffer.name} has the "
                    f"symbolic size {buffer.shape[0]}; the schedule must bring its producer to its "
                    "consumer (compute_at)"
                )
            chosen[buffer] = total
            size = count * buffer.dtype.bytes
            total += (size + SCRATCH_ALIGNMENT - 1) // SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT
    return Scratch(shared, private, total)


@dataclass(slots=True)
class _KernelPrinter:
    """The function of a kernel, or of one of its parallel loops."""

    function: LoopFunction
    expr: ExprPrinter
    registers: set[Buffer]
    scratch: Scratch
    table: int
    inside: bool = False
    loops: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    locals: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The whole kernel, after its parallel loops."""
        function = self.function
        self.declare_unset(function.body)
        scratch = self.scratch_addresses()
        params = " ".join(f"(param ${name} i32)" for name in self.parameters())
        head = [*self.loops, f"(func ${function.name} {params}"]
        head.extend(f"  (local ${name} {kind})" for name, kind in self.locals.items())
        return "\n".join((*head, *scratch, *self.lines)) + ")"

    def scratch_addresses(self) -> list[str]:
        """What sets the addresses of the scratch buffers that are used here."""
        base = f"(i32.load offset={SCRATCH_BASE} (i32.const 0))"
        own = f"(i32.mul (global.get $tid) (i32.load offset={SCRATCH_STRIDE} (i32.const 0)))"
        used = set(names_taken(self.lines))
        lines = []
        for buffers, where in (
            (self.scratch.shared, base),
            (self.scratch.private, f"(i32.add {base} {own})"),
        ):
            for buffer, start in buffers.items():
                if buffer.name in used:
                    self.locals[buffer.name] = "i32"
                    address = f"(i32.add {where} (i32.const {start}))" if start else where
                    lines.append(f"  (local.set ${buffer.name} {address})")
        return lines

    def declare_unset(self, body: Stmt) -> None:
        """Registers that are only read: the sum of nothing."""
        taken = set(names_taken(self.lines))
        for load in loads(body):
            lanes = self.expr.registers.get(load.buffer)
            if lanes is not None and load.buffer.name in taken:
                self.locals.setdefault(load.buffer.name, value_type(load.buffer.dtype, lanes))

    def line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    # -- threads ---------------------------------------------------------------------------------

    def parallel(self, loop: For, depth: int) -> None:
        """A function of its iterations, which all threads call, each with others."""
        name = f"{self.function.name}.{len(self.loops)}"
        inner = replace(self, inside=True, lines=[], locals={})
        inner.statement(loop.body, 2)
        inner.declare_unset(loop.body)
        scratch = inner.scratch_addresses()
        own = {loop.var.name, *(b.name for b in (*self.scratch.shared, *self.scratch.private))}
        outer = dict.fromkeys(self.parameters(), "i32") | self.locals
        taken = [n for n in names_taken(inner.lines) if n in outer and n not in own]
        places = _places([outer[n] for n in taken])
        if places is None:  # too many to hand over
            self.loop(loop, depth, lambda d: self.statement(loop.body, d))
            return
        kinds = inner.locals | {n: outer[n] for n in taken}
        first, end = loop.var.name, f"{loop.var.name}.end"
        text = [f"(func ${name} (param ${first} i32) (param ${end} i32)"]
        text += [f"  (local ${n} {kind})" for n, kind in kinds.items()]
        for n, place in zip(taken, places, strict=True):
            text.append(f"  (local.set ${n} ({outer[n]}.load offset={place} (i32.const 0)))")
            value = f"(local.get ${n})"
            self.line(depth, f"({outer[n]}.store offset={place} (i32.const 0) {value})")
        some = f"(i32.lt_s (local.get ${first}) (local.get ${end}))"
        next_ = f"(local.set ${first} (i32.add (local.get ${first}) (i32.const 1)))"
        text += [*scratch, f"  (loop $L_{first} (if {some} (then", *inner.lines]
        text.append(f"    {next_} (br $L_{first})))))")
        self.line(
            depth,
            f"(call $parallel (i32.const {self.table + len(self.loops)}) "
            f"{self.expr.value(loop.extent)})",
        )
        self.loops.append("\n".join(text))

    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters."""
        function = self.function
        return (*(b.name for b in function.params), *(s.name for s in function.symbols))

    # -- statements ------------------------------------------------------------------------------

    def statement(self, stmt: Stmt, depth: int) -> None:
        match stmt:
            case Store():
                self.store(stmt, depth)
            case Seq(statements=statements):
                for child in statements:
                    self.statement(child, depth)
            case Let(var=var, value=value, body=body):
                self.set_let(var, value, depth)
                self.statement(body, depth)
            case If(condition=condition, then=then, otherwise=otherwise):
                self.line(depth, f"(if {self.expr.value(condition)} (then")
                self.statement(then, depth + 1)
                if otherwise is not None:
                    self.line(depth, ") (else")
                    self.statement(otherwise, depth + 1)
                self.line(depth, "))")
            case For(kind="parallel") if not self.inside:
                self.parallel(stmt, depth)
            case For(kind="serial" | "parallel", body=body):
                self.loop(stmt, depth, lambda d: self.statement(body, d))
            case Barrier():
                pass  # a workgroup is one thread here
            case _:
                raise InternalError(f"wasm: kernel {self.function.name}: cannot print {stmt}")

    def set_let(self, var: Var, value: Expr, depth: int) -> None:
        self.locals[var.name] = value_type(var.dtype, 1)
        self.line(depth, f"(local.set ${var.name} {self.expr.value(value)})")

    def loop(self, loop: For, depth: int, body: Callable[[int], None]) -> None:
        """A serial loop."""
        name = loop.var.name
        self.locals[name] = "i32"
        extent = as_int(loop.extent)
        guarded = extent is None or extent < 1
        if guarded:
            count = self.expr.value(loop.extent)
            self.line(depth, f"(if (i32.gt_s {count} (i32.const 0)) (then")
        start, more = self.steps(loop)
        self.line(depth, f"(local.set ${name} {start})")
        self.line(depth, f"(loop $L_{name}")
        body(depth + 1)
        self.line(depth + 1, f"(br_if $L_{name} {more})")
        self.line(depth, ")))" if guarded else ")")

    def steps(self, loop: For) -> tuple[str, str]:
        """What the loop's local starts with, and what is true after an iteration that is not the
        last.

        The local counts up where the body asks for it. Else it is the end of a pointer that each
        iteration moves by as much, or counts down. (V8 keeps an end, but not what changes, in
        memory when registers run short: a count there takes longer from one iteration to the next
        than a tile's multiply-adds.)
        """
        name, count = loop.var.name, self.expr.value(loop.extent)
        own = f"(local.get ${name})"
        if uses(loop.body, loop.var):
            next_ = f"(local.tee ${name} (i32.add {own} (i32.const 1)))"
            return "(i32.const 0)", f"(i32.lt_s {next_} {count})"
        last = loop.body.statements[-1] if isinstance(loop.body, Seq) else loop.body
        match last:
            case Store(buffer=at, value=Call(op="add", args=(Load() as before, Const() as stride))):
                if before.buffer == at in self.expr.pointers:
                    end = before + loop.extent * stride
                    address = self.expr.byte_address(self.expr.pointers[at], end)
                    return address, f"(i32.ne (local.get ${at.name}) {own})"
        return count, f"(local.tee ${name} (i32.sub {own} (i32.const 1)))"

    def store(self, store: Store, depth: int) -> None:
        buffer = store.buffer
        if buffer in self.registers:
            self.set_register(store, depth)
            return
        value = self.expr.value(store.value)
        match store.indices[0]:
            case Ramp(base=base, stride=Const(value=1)) if buffer.dtype in LANE_STORES:
                self.line(depth, self.expr.store_small(buffer, base, value))
            case Ramp(base=base, stride=Const(value=1)):
                self.line(depth, f"(v128.store{self.expr.address(buffer, base)} {value})")
            case Ramp(base=base, stride=stride):
                self.locals[".lanes"] = "v128"
                self.line(depth, f"(local.set $.lanes {value})")
                for lane in range(VECTOR_LANES):
                    where = self.expr.address(buffer, base + stride * lane)
                    if buffer.dtype in LANE_STORES:
                        element = f"(i32x4.extract_lane {lane} (local.get $.lanes))"
                        if buffer.dtype is DType.bool:
                            element = f"(i32.and {element} (i32.const 1))"
                        self.line(depth, f"({STORES[buffer.dtype]}{where} {element})")
                        continue
                    self.line(depth, self.expr.lane("store", lane, where, "(local.get $.lanes)"))
            case index:
                where = self.expr.address(buffer, index)
                self.line(depth, f"({STORES[buffer.dtype]}{where} {value})")

    def set_register(self, store: Store, depth: int) -> None:
        register = store.buffer
        target = self.expr.pointers.get(register)
        if target is None:
            self.locals[register.name] = value_type(register.dtype, store.value.lanes)
            value = self.expr.value(store.value)
        else:
            self.locals[register.name] = "i32"
            value = self.expr.byte_address(target, store.value)
        self.line(depth, f"(local.set ${register.name} {value})")


def uses(root: Stmt, var: Var) -> bool:
    """True where any expression of `root` depends on `var`."""
    return any(depends(e, var) for stmt in walk_statements(root) for e in expressions(stmt))


def names_taken(lines: list[str]) -> list[str]:
    """The locals that printed lines read before they set them, by first appearance. Within a line,
    operands come before what they set.
    """
    taken: dict[str, None] = {}
    own: set[str] = set()
    for line in lines:
        accesses = _ACCESS.findall(line)
        taken |= dict.fromkeys(name for how, name in accesses if how == "get" and name not in own)
        own |= {name for how, name in accesses if how != "get"}
    return list(taken)


def _places(kinds: list[str]) -> list[int] | None:
    """Addresses for values of these types, one after the other; none where they do not fit."""
    places = []
    top = ARGUMENTS
    for kind in kinds:
        size = _BYTES[kind]
        start = -(-top // size) * size
        places.append(start)
        top = start + size
    return places if top <= ARGUMENTS_END else None
