"""Compute each value of straight-line code once, just before its first use.

Needs: the lowered form, legalised for the target. Guarantees: within a run of consecutive stores,
equal values that are used twice or more are bound. A scalar is bound by a `Let`, and a vector by a
vector register that is stored once. Values are operations, broadcasts, and loads from memory where
no store to that buffer intervenes. Index expressions stay in place (they are addresses). So do
literals, and values that only one arm of a `select` loads. If an arm of a `select` is long and
repeats values, the store becomes two stores under a condition, and each store binds its own values.

before                                                   after
    C_0[r] = C_0[r] + T.broadcast(A[k], 4) * B[...]          t[r] = T.broadcast(A[k], 4)
    C_4[r] = C_4[r] + T.broadcast(A[k], 4) * D[...]          C_0[r] = C_0[r] + t[r] * B[...]
                                                             C_4[r] = C_4[r] + t[r] * D[...]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain

from webmlc.core.dtypes import LANE_TYPES
from webmlc.core.expr import Broadcast, Call, Const, Expr, Ramp, Var
from webmlc.core.rewrite import bottom_up, rewrite, written_out
from webmlc.loops.ir import Buffer, If, Load, LoopFunction, Seq, Stmt, Store, map_children, seq
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import LANES, read_register, register_lanes
from webmlc.target.scoped import Item, Names, join_lets


def common_subexpressions(function: LoopFunction) -> LoopFunction:
    """Bind the values that each run of stores of `function` computes more than once."""
    pass_ = _Pass(Names.of(function), frozenset(register_lanes(function)))
    body = pass_.statement(function.body)
    return replace(function, body=body, allocations=(*function.allocations, *pass_.created))


Versions = dict[Buffer, int]
"""The number of stores to each buffer so far."""
Key = tuple[Expr, tuple[int | None, ...]]
"""An expression, and the versions of the buffers that it reads: `None` without a store so far."""


@dataclass(slots=True)
class _Pass:
    """One walk over a function, and the vector registers that it creates."""

    names: Names
    registers: frozenset[Buffer]
    created: list[Buffer] = field(default_factory=list)

    def statement(self, stmt: Stmt) -> Stmt:
        """Rewrite a statement, treating each run of stores in it on its own."""
        stmt = _split_store(stmt)
        match stmt:
            case Store():
                return self.run([stmt])
            case Seq(statements=statements):
                return self.sequence(statements)
        return map_children(stmt, self.statement)

    def sequence(self, statements: tuple[Stmt, ...]) -> Stmt:
        """Rewrite each maximal run of stores separately."""
        parts: list[Stmt] = []
        pending: list[Store] = []
        for stmt in map(_split_store, statements):
            if isinstance(stmt, Store):
                pending.append(stmt)
                continue
            if pending:
                parts.append(self.run(pending))
                pending = []
            parts.append(self.statement(stmt))
        if pending:
            parts.append(self.run(pending))
        return seq(*parts)

    def run(self, statements: list[Store]) -> Stmt:
        """Bind the values that a run of stores uses more than once."""
        counts: Counter[Key] = Counter()
        versions: Versions = {}
        for store in statements:
            self.count(store.value, versions, counts)
            versions[store.buffer] = versions.get(store.buffer, 0) + 1
        repeated = {key for key, n in counts.items() if n > 1}
        if not repeated:
            return seq(*statements)
        if len(statements) > 1 and sum(node.lanes == 1 for node, _ in repeated) > _MAX_LETS:
            middle = len(statements) // 2  # lets nest: limit the depth of the tree
            return seq(self.run(statements[:middle]), self.run(statements[middle:]))
        return _Binder(self, repeated).bind(statements)

    def count(self, root: Expr, versions: Versions, counts: Counter[Key]) -> None:
        """Count the values under `root`. The operands of a value that was counted before are not
        counted again.
        """
        always_read = certain_reads(root)
        stack = [root]
        while stack:
            node = stack.pop()
            if self.is_candidate(node):
                key = self.key(node, versions)
                counts[key] += 1
                if counts[key] > 1:
                    continue
            stack.extend(reversed(operands(node, always_read)))

    def is_candidate(self, node: Expr) -> bool:
        """True for a value that is worth binding: not a literal, variable, register, ramp, or
        broadcast of a literal.
        """
        match node:
            case Call():  # first, since most nodes are calls
                pass
            case Const() | Var() | Ramp():
                return False
            case Load(buffer=buffer) if buffer in self.registers:
                return False
            case Broadcast(value=Const()):
                return False
        return node.lanes == 1 or (node.lanes == VECTOR_LANES and node.dtype in LANE_TYPES)

    def key(self, node: Expr, versions: Versions) -> Key:
        """The key of a value. Equal keys hold equal values: the expression is the same, and the
        buffers it reads were stored to equally often.
        """
        return node, tuple(map(versions.get, buffers_read(node)))


@dataclass(slots=True)
class _Binder:
    """A rewriter of one run of stores, which binds the values whose keys are in `repeated`."""

    owner: _Pass
    repeated: set[Key]
    names_of: dict[Key, Expr] = field(default_factory=dict)
    versions: Versions = field(default_factory=dict)
    out: list[Item] = field(default_factory=list)

    def bind(self, statements: list[Store]) -> Stmt:
        """The statement that computes the repeated values once and performs the stores."""
        for store in statements:
            value = self.value(store.value)
            self.out.append(Store(store.buffer, store.indices, value, store.stage))
            self.versions[store.buffer] = self.versions.get(store.buffer, 0) + 1
        return join_lets(self.out)

    def value(self, root: Expr) -> Expr:
        """`root` with its repeated values replaced by their names. Operands are bound first."""
        results: dict[Expr, Expr] = {}
        always_read = certain_reads(root)
        stack: list[tuple[Expr, tuple[Expr, ...] | None]] = [(root, None)]
        while stack:
            node, node_operands = stack.pop()
            if node in results:
                continue
            candidate = self.owner.is_candidate(node)
            key = self.owner.key(node, self.versions) if candidate else None
            if key is not None and key in self.names_of:
                results[node] = self.names_of[key]
                continue
            if node_operands is None:
                node_operands = operands(node, always_read)
                if node_operands:
                    stack.append((node, node_operands))
                    stack.extend([(child, None) for child in reversed(node_operands)])
                    continue
            new = _with_operands(node, {child: results[child] for child in node_operands})
            if key is not None and key in self.repeated:
                new = self.name(new)
                self.names_of[key] = new
            results[node] = new
        return results[root]

    def name(self, value: Expr) -> Expr:
        """Bind a value to a fresh variable or vector register, and return the read of it."""
        if value.lanes == 1:
            var = Var(self.owner.names.fresh(_suggested_name(value)), value.dtype)
            self.out.append((var, value))
            return var
        name = self.owner.names.fresh(_suggested_name(value))
        register = Buffer(name, (Const(VECTOR_LANES),), value.dtype, "local")
        self.owner.created.append(register)
        self.out.append(Store(register, (LANES,), value))
        return read_register(register)


def operands(node: Expr, always_read: frozenset[Expr] = frozenset()) -> tuple[Expr, ...]:
    """The values that `node` is computed from.

    Excluded are indices, and the amount of a vector shift (targets want a literal there). A guarded
    `select` arm is excluded too if it performs a load that is not in `always_read`.
    """
    match node:
        case Call(op="shift_left" | "shift_right", args=(value, _)) if node.lanes > 1:
            return (value,)
        case Call(op="select", args=(condition, *arms)):
            available = certain_reads(condition) | always_read
            return (condition, *(arm for arm in arms if reads_only(arm, available)))
        case Call(args=args):
            return args
        case Load() | Ramp():
            return ()
    return node.children


def _split_store(stmt: Stmt) -> Stmt:
    """Split a store of a `select` whose guarded arm, written out in full, would be far longer than
    its shared form: `A[i] = f(select(c, long, b))` becomes `if c: A[i] = f(long)` `else: A[i] =
    f(b)`.
    """
    if not isinstance(stmt, Store) or stmt.value.lanes > 1:
        return stmt
    choice = _long_choice(stmt.value)
    if choice is None:
        return stmt
    condition, then, otherwise = choice.args

    def store(arm: Expr) -> Stmt:
        value = rewrite(stmt.value, lambda node: arm if node == choice else None)
        return _split_store(replace(stmt, value=value))

    return If(condition, store(then), store(otherwise))


def _long_choice(root: Expr) -> Call | None:
    """The first `select` under `root` with a long arm that may not be computed before it."""
    always_read = certain_reads(root)
    pending, visited = [root], {root}
    while pending:
        node = pending.pop()
        match node:
            case Call(op="select", lanes=1, args=(condition, *arms)):
                available = certain_reads(condition) | always_read
                guarded = [arm for arm in arms if not reads_only(arm, available)]
                if any(written_out(arm) > _MAX_WRITTEN_NODES for arm in guarded):
                    return node
        unvisited = [child for child in operands(node, always_read) if child not in visited]
        visited.update(unvisited)
        pending += unvisited
    return None


_MAX_LETS = 100
"""The scalars bound in one run of stores, at most. Lets nest, and later passes recurse over
statements, so a longer run is bound in two halves. Chosen by hand.
"""
_MAX_WRITTEN_NODES = 1000
"""The nodes of a guarded `select` arm, counting a shared node once per use, above which its store
is split. A power of a power would otherwise print as megabytes of text. Chosen by hand.
"""


def is_guarded(arm: Expr, condition: Expr) -> bool:
    """True where a `select` arm performs a load that its condition does not. Such a load may be out
    of bounds when the arm is not selected.
    """
    return not reads_only(arm, certain_reads(condition))


@bottom_up()
def certain_reads(root: Expr) -> frozenset[Expr]:
    """The loads from memory that the evaluation of an expression always performs, whatever its
    conditions are. A `select` between loads counts as one load.
    """
    match root:
        case Call(op="select", args=(condition, then, otherwise)):
            always = certain_reads(condition) | (certain_reads(then) & certain_reads(otherwise))
            return always | {root} if memory_loads(root) else always
    reads = frozenset[Expr]().union(*(certain_reads(child) for child in root.children))
    return reads | {root} if isinstance(root, Load) and root.buffer.scope != "local" else reads


def reads_only(root: Expr, available: frozenset[Expr]) -> bool:
    """True where evaluating an expression performs no load outside `available`."""
    if memory_loads(root) <= available:
        return True
    pending, visited = [root], {root}
    while pending:
        node = pending.pop()
        if node in available:
            continue
        if isinstance(node, Load) and node.buffer.scope != "local":
            return False
        unvisited = [child for child in node.children if child not in visited]
        visited.update(unvisited)
        pending += unvisited
    return True


@bottom_up()
def memory_loads(root: Expr) -> frozenset[Load]:
    """The loads of an expression from `global` and `shared` memory."""
    result: frozenset[Load] = frozenset()
    for child in root.children:
        result = (result | memory_loads(child)) if result else memory_loads(child)
    if isinstance(root, Load) and root.buffer.scope != "local":
        return result | {root}
    return result


def _with_operands(node: Expr, results: dict[Expr, Expr]) -> Expr:
    """`node` over the new forms of its children, where `results` has them."""
    children = node.children
    new = tuple([results.get(child, child) for child in children])
    return node if new == children else node.rebuild(new)


@bottom_up()
def buffers_read(node: Expr) -> tuple[Buffer, ...]:
    """The buffers that `node` loads from, without repetition."""
    children = node.children
    if isinstance(node, Load):
        return tuple(dict.fromkeys([node.buffer, *chain(*map(buffers_read, children))]))
    if len(children) == 1:
        return buffers_read(children[0])
    return tuple(dict.fromkeys(chain(*map(buffers_read, children))))


def _suggested_name(value: Expr) -> str:
    """A name that shows readers the origin of a value."""
    match value:
        case Load(buffer=buffer):
            return f"{buffer.name}_v"
        case Broadcast(value=Load(buffer=buffer)):
            return f"{buffer.name}_s"
        case Call(op=op):
            return f"t_{op}"
    return "t"
