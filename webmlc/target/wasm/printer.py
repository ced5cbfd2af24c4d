"""One kernel as a WAT function.

In: a strength-reduced function. Out: a function of the byte addresses of its buffers, its symbols,
the thread's number and the number of threads. Every thread calls it: `parallel` loops are split
among them, a barrier stands between phases, and what stores to memory outside a parallel loop runs
on thread 0.

    (func $relu (param $A i32) (param $B i32) (param $.tid i32) (param $.threads i32) ...)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from webmlc.core.affine import depends
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Const, Expr, Ramp, Var, as_int
from webmlc.loops.ir import (
    Barrier,
    Buffer,
    For,
    If,
    Let,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    expressions,
    loads,
    stores,
    walk_statements,
)
from webmlc.target import VECTOR_LANES
from webmlc.target.private_buffers import private_buffers
from webmlc.target.registers import register_lanes
from webmlc.target.wasm.outline import names_taken, worth_outlining
from webmlc.target.wasm.print_expr import ExprPrinter
from webmlc.target.wasm.reduce_strength import StrengthReduced
from webmlc.target.wasm.table import LANE_STORES, STORES, value_type

SCRATCH_ALIGNMENT = 64
SCRATCH_BASE, SCRATCH_STRIDE = 256, 260
"""Where the control area says how scratch memory is laid out (see `emit_module`)."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a kernel's allocations lie: `shared` ones once, at these offsets; `private` ones in
    each thread's part.
    """

    shared: dict[Buffer, int]
    private: dict[Buffer, int]
    bytes: int


def print_kernel(reduced: StrengthReduced, name: str, relaxed: bool) -> tuple[str, int]:
    """The text of function `name`, and the bytes of scratch memory it needs a thread."""
    function = replace(reduced.function, name=name)
    registers = register_lanes(function)
    scratch = plan_scratch(function, registers)
    expressions_ = ExprPrinter(function.name, registers, reduced.pointers, relaxed)
    printer = _KernelPrinter(function, expressions_, set(registers))
    printer.locals |= {b.name: "i32" for b in (*scratch.shared, *scratch.private)}
    printer.phases(function.body, 1)
    return printer.text(scratch), scratch.bytes


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


def is_parallel(stmt: Stmt) -> bool:
    """True where threads share the work of `stmt`."""
    return any(isinstance(s, For) and s.kind == "parallel" for s in walk_statements(stmt))


@dataclass(slots=True)
class _KernelPrinter:
    function: LoopFunction
    expr: ExprPrinter
    registers: set[Buffer]
    lines: list[str] = field(default_factory=list)
    locals: dict[str, str] = field(default_factory=dict)
    outlined: list[str] = field(default_factory=list)

    def text(self, scratch: Scratch) -> str:
        """The whole function around the printed body, after the functions of outlined bodies."""
        function = self.function
        params = " ".join(f"(param ${name} i32)" for name in self.parameters())
        head = [*self.outlined, f"(func ${function.name} {params}"]
        self.declare_unset(function.body)
        head.extend(f"  (local ${name} {kind})" for name, kind in self.locals.items())
        base = f"(i32.load offset={SCRATCH_BASE} (i32.const 0))"
        own = f"(i32.mul (local.get $.tid) (i32.load offset={SCRATCH_STRIDE} (i32.const 0)))"
        for buffers, where in (
            (scratch.shared, base),
            (scratch.private, f"(i32.add {base} {own})"),
        ):
            for buffer, start in buffers.items():
                address = f"(i32.add {where} (i32.const {start}))" if start else where
                head.append(f"  (local.set ${buffer.name} {address})")
        return "\n".join((*head, *self.lines)) + ")"

    def parameters(self) -> tuple[str, ...]:
        """The names of the function's parameters."""
        function = self.function
        names = [*(b.name for b in function.params), *(s.name for s in function.symbols)]
        return (*names, ".tid", ".threads")

    def declare_unset(self, body: Stmt) -> None:
        """Registers that are only read: the sum of nothing."""
        for load in loads(body):
            lanes = self.expr.registers.get(load.buffer)
            if lanes is not None:
                self.locals.setdefault(load.buffer.name, value_type(load.buffer.dtype, lanes))

    def line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    # -- threads ---------------------------------------------------------------------------------

    def phases(self, stmt: Stmt, depth: int) -> None:
        """Print a statement that every thread reaches."""
        if not is_parallel(stmt):
            self.serial(stmt, depth)
            return
        match stmt:
            case Seq(statements=statements):
                self.sequence(statements, depth)
            case Let(var=var, value=value, body=body):
                self.set_let(var, value, depth)
                self.phases(body, depth)
            case If(condition=condition, then=then, otherwise=otherwise):
                self.line(depth, f"(if {self.expr.value(condition)} (then")
                self.phases(then, depth + 1)
                if otherwise is not None:
                    self.line(depth, ") (else")
                    self.phases(otherwise, depth + 1)
                self.line(depth, "))")
            case For(kind="parallel"):
                self.parallel(stmt, depth)
            case For(body=body):
                self.loop(stmt, depth, lambda d: self.iteration(body, d))
            case _:
                raise InternalError(
                    f"wasm: kernel {self.function.name}: {stmt} around a parallel loop"
                )

    def iteration(self, body: Stmt, depth: int) -> None:
        """The body of a serial loop around a parallel one: a barrier ends every iteration."""
        self.phases(body, depth)
        self.barrier(depth)

    def sequence(self, statements: tuple[Stmt, ...], depth: int) -> None:
        """Phases one after the other: a barrier between those that touch memory."""
        pending: list[Stmt] = []
        groups: list[Stmt] = []
        for stmt in statements:
            if is_parallel(stmt) or self.is_private(stmt):
                if pending:
                    groups.append(Seq(tuple(pending)))
                    pending = []
                groups.append(stmt)
            else:
                pending.append(stmt)
        if pending:
            groups.append(Seq(tuple(pending)))
        touched = False
        for stmt in groups:
            shared = not self.is_private(stmt)
            if shared and touched:
                self.barrier(depth)
            touched = touched or shared
            self.phases(stmt, depth)

    def is_private(self, stmt: Stmt) -> bool:
        """True for what only sets registers: every thread does it for itself."""
        return all(s.buffer in self.registers for s in stores(stmt))

    def serial(self, stmt: Stmt, depth: int) -> None:
        """What is outside parallel loops: thread 0 does it, if it stores to memory."""
        if self.is_private(stmt):
            self.statement(stmt, depth)
            return
        self.line(depth, "(if (i32.eqz (local.get $.tid)) (then")
        self.statement(stmt, depth + 1)
        self.line(depth, "))")

    def barrier(self, depth: int) -> None:
        self.line(depth, "(call $barrier (local.get $.threads))")

    def parallel(self, loop: For, depth: int) -> None:
        """This thread's share of the iterations, [extent·tid/threads, extent·(tid + 1)/threads)."""
        name, end = loop.var.name, f"{loop.var.name}.end"
        self.locals[name] = self.locals[end] = "i32"
        extent = self.expr.value(loop.extent)
        first = f"(i32.mul {extent} (local.get $.tid))"
        last = f"(i32.mul {extent} (i32.add (local.get $.tid) (i32.const 1)))"
        self.line(depth, f"(local.set ${name} (i32.div_u {first} (local.get $.threads)))")
        self.line(depth, f"(local.set ${end} (i32.div_u {last} (local.get $.threads)))")
        self.line(depth, f"(if (i32.lt_s (local.get ${name}) (local.get ${end})) (then")
        self.line(depth, f"(loop $L_{name}")
        if worth_outlining(loop):
            self.line(depth + 1, self.outline(loop))
        else:
            self.statement(loop.body, depth + 1)
        next_ = f"(local.tee ${name} (i32.add (local.get ${name}) (i32.const 1)))"
        self.line(depth + 1, f"(br_if $L_{name} (i32.lt_s {next_} (local.get ${end})))")
        self.line(depth, ")))")

    def outline(self, loop: For) -> str:
        """Make the body of a parallel loop a function, and return the call of it. Iterations share
        no register: what the body sets is its own.
        """
        name = f"{self.function.name}.{len(self.outlined)}"
        inner = replace(self, lines=[], locals={}, outlined=[])
        inner.statement(loop.body, 1)
        outer = dict.fromkeys(self.parameters(), "i32") | self.locals
        taken = [n for n in names_taken(inner.lines) if n in outer]
        inner.declare_unset(loop.body)
        own = {n: kind for n, kind in inner.locals.items() if n not in taken}
        params = " ".join(f"(param ${n} {outer[n]})" for n in taken)
        declared = (f"  (local ${n} {kind})" for n, kind in own.items())
        self.outlined.append("\n".join((f"(func ${name} {params}", *declared, *inner.lines)) + ")")
        return f"(call ${name} {' '.join(f'(local.get ${n})' for n in taken)})"

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
        """A serial loop: counts down where nothing asks for the variable."""
        name = loop.var.name
        self.locals[name] = "i32"
        extent = as_int(loop.extent)
        guarded = extent is None or extent < 1
        count = self.expr.value(loop.extent)
        if guarded:
            self.line(depth, f"(if (i32.gt_s {count} (i32.const 0)) (then")
        counter = f"(local.get ${name})"
        up = uses(loop.body, loop.var)
        self.line(depth, f"(local.set ${name} {'(i32.const 0)' if up else count})")
        self.line(depth, f"(loop $L_{name}")
        body(depth + 1)
        if up:
            tee = f"(local.tee ${name} (i32.add {counter} (i32.const 1)))"
            self.line(depth + 1, f"(br_if $L_{name} (i32.lt_s {tee} {count}))")
        else:
            tee = f"(local.tee ${name} (i32.sub {counter} (i32.const 1)))"
            self.line(depth + 1, f"(br_if $L_{name} {tee})")
        self.line(depth, ")))" if guarded else ")")

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
