"""The loop IR: loop nests, buffers and blocks as in TensorIR, in about twenty node kinds.

A `LoopFunction` takes buffers and symbolic dimensions, and holds one statement. The caller
allocates all buffers (destination passing). Buffers and variables are equal by name, and names are
unique in a function, as `verify` checks. The `Block` is the unit that schedule primitives move: its
axes are bound to expressions of the loops around it, and its body sees only the axes. The IR prints
and parses as Python (`loops.text`), and `loops.interp` defines its meaning:

    @T.kernel
    def relu(A: T.Buffer((n, 8), "float32"), B: T.Buffer((n, 8), "float32"), n: T.symbol):
        for i, j in T.grid(n, 8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = T.max(A[vi, vj], T.float32(0))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from operator import attrgetter, is_
from typing import Literal

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, Leaf, Operand, Var, as_expr, set_lanes, widest
from webmlc.core.interning import interned, quick
from webmlc.core.rewrite import bottom_up, rewriter, substitution

Scope = Literal["global", "shared", "local"]
Storage = Literal["elements", "register", "halves", "words", "atomic words"]
LoopKind = Literal["serial", "parallel", "vectorized", "unrolled", "thread_binding"]
AxisKind = Literal["spatial", "reduce"]

THREAD_AXES = tuple(f"{index}.{axis}" for index in ("blockIdx", "threadIdx") for axis in "xyz")
"""The axes that a `thread_binding` loop may be bound to."""
NO_STAGE = -1
"""The stage of a statement that belongs to every stage which needs its result, such as an address.
"""


@interned
@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Buffer:
    """A dense row-major array. Equal buffers are one object (`core.interning`).

    A `global` buffer is in memory, a `shared` buffer belongs to one workgroup, and a `local` buffer
    belongs to one thread, in its registers.

    `storage` says how a target stores the elements (`target.webgpu.choose_storage`): as they are,
    in one variable, or as parts of words. `in_vectors`: memory is accessed by whole vectors. Until
    a target has chosen, both have their defaults.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    scope: Scope = "global"
    storage: Storage = "elements"
    in_vectors: bool = False

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Load:
        index = indices if isinstance(indices, tuple) else (indices,)
        return Load(self, tuple(as_expr(i) for i in index))


@interned
@dataclass(frozen=True, slots=True, eq=False)
class Load(Expr):
    """An element of a buffer, or several elements if the indices are vectors."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    def __post_init__(self) -> None:
        set_lanes(self, widest(self.indices))

    dtype = property(attrgetter("buffer.dtype"))
    children = property(attrgetter("indices"))

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Load(self.buffer, children)

    def text(self, parts: list[str]) -> str:
        """`A[i, j]`."""
        return f"{self.buffer.name}[{', '.join(parts) or '()'}]"


@quick
@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[indices] = value`. `stage` is the number of its stage in the function's `stages`, or
    `NO_STAGE`. The number does not take part in equality.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    stage: int = field(default=NO_STAGE, compare=False, repr=False)


@quick
@dataclass(frozen=True, slots=True)
class Seq:
    """Statements in order; an empty sequence does nothing.

    A sequence is never nested and never has length one, as `seq` ensures.
    """

    statements: tuple[Stmt, ...]


@quick
@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(extent)`, executed as `kind` says.

    `thread` names the GPU axis of a `thread_binding` loop.
    """

    var: Var
    extent: Expr
    body: Stmt
    kind: LoopKind = "serial"
    thread: str | None = None


@quick
@dataclass(frozen=True, slots=True)
class If:
    """`if condition: then` with an optional `otherwise`."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@quick
@dataclass(frozen=True, slots=True)
class Let:
    """`var = value` for the statements of `body`."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of a workgroup wait here, and see each other's writes to `shared` buffers."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A block axis of `extent` values.

    The values of a `spatial` axis write different elements. The values of a `reduce` axis
    accumulate into one element, or update elements in order.
    """

    var: Var
    extent: Expr
    kind: AxisKind


@quick
@dataclass(frozen=True, slots=True)
class Block:
    """The unit of scheduling: `body` over `axes`, which are bound to expressions of outer loops.

    `predicate` (over loop variables) guards instances outside the domain. `init` (over axes) runs
    before the first instance of the reduction, that is, when all reduce axes are zero. `intrinsic`
    names the intrinsic of a tensorized body.
    """

    name: str
    axes: tuple[Axis, ...]
    bindings: tuple[Expr, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr | None = None
    intrinsic: str | None = None

    def bound_axes(self) -> Iterator[tuple[Axis, Expr]]:
        """Each axis with its binding."""
        return zip(self.axes, self.bindings, strict=True)

    def axis_values(self) -> dict[Var, Expr]:
        """The binding of each axis variable."""
        return {axis.var: binding for axis, binding in self.bound_axes()}


Stmt = Store | Seq | For | If | Let | Barrier | Block
Binder = For | Let
"""The statements that bind a variable."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopFunction:
    """One kernel: parameters, symbols, allocated buffers and a body.

    The last `outputs` parameters are outputs, the others inputs. `origin` names the ONNX nodes that
    the kernel computes, and `stages` names the nodes of each stage (`loops.stages`). Equality
    ignores both; `key()` ignores `name` too. Statements are compared one by one: a chain of
    hundreds is too deep for Python's recursion.

    `is_scheduled`: people scheduled the function, which is lowered as it is. Otherwise the passes
    of a target may split the function, and its rules schedule it.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: int
    symbols: tuple[Var, ...]
    allocations: tuple[Buffer, ...]
    body: Stmt
    origin: tuple[str, ...] = ()
    stages: tuple[tuple[str, ...], ...] = ()
    is_scheduled: bool = False

    def __hash__(self) -> int:
        return hash((self._head(), *map(_shallow_key, walk_statements(self.body))))

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, LoopFunction):
            return self is other
        pairs = zip_longest(walk_statements(self.body), walk_statements(other.body))
        return self._head() == other._head() and all(
            a is b or (a and b and _shallow_key(a) == _shallow_key(b)) for a, b in pairs
        )

    def _head(self) -> tuple[object, ...]:
        """All that takes part in equality, but for the body."""
        head = (self.name, self.params, self.outputs, self.symbols, self.allocations)
        return *head, self.is_scheduled

    def used_names(self) -> set[str]:
        """The names of the buffers, symbols, loops, lets and axes; blocks have their own names."""
        buffers = (*self.params, *self.allocations)
        variables = (*self.symbols, *bound_variables(self.body))
        return {b.name for b in buffers} | {v.name for v in variables}

    def input_params(self) -> tuple[Buffer, ...]:
        """The parameters that the function only reads."""
        return self.params[: len(self.params) - self.outputs]

    def output_params(self) -> tuple[Buffer, ...]:
        """The parameters that hold the results."""
        return self.params[len(self.params) - self.outputs :]

    def key(self) -> LoopFunction:
        """This function under a fixed name: functions with equal keys are the same kernel."""
        return replace(self, name="kernel", origin=(), stages=())


def _shallow_key(stmt: Stmt) -> tuple[object, ...]:
    """The values that decide whether two statements with equal child statements are equal."""
    children = len(child_statements(stmt))
    match stmt:
        case Store(buffer=buffer, indices=indices, value=value):
            return Store, buffer, indices, value
        case For(var=var, extent=extent, kind=kind, thread=thread):
            return For, var, extent, kind, thread
        case Let(var=var, value=value):
            return Let, var, value
        case Block(name=name, axes=axes, bindings=bindings, predicate=predicate):
            return Block, name, axes, bindings, predicate, stmt.intrinsic, children
    return type(stmt), expressions(stmt), children


def seq(*statements: Stmt) -> Stmt:
    """Join statements in order. Nested sequences are flattened; a single statement stays itself."""
    flat: list[Stmt] = []
    for statement in statements:
        flat.extend(statement.statements if isinstance(statement, Seq) else (statement,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def child_statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `stmt`."""
    match stmt:
        case Store():  # first, since most statements are stores
            return ()
        case Seq(statements=statements):
            return statements
        case For(body=body) | Let(body=body):
            return (body,)
        case If(then=then, otherwise=otherwise):
            return (then,) if otherwise is None else (then, otherwise)
        case Block(body=body, init=init):
            return (body,) if init is None else (init, body)
    return ()


def walk_statements(root: Stmt) -> Iterator[Stmt]:
    """Yield every statement of `root` in program order, parents first.

    The init of a block comes before its body.
    """
    stack = [root]
    while stack:
        stmt = stack.pop()
        yield stmt
        if isinstance(stmt, Store):  # first, since most statements are stores
            continue
        if isinstance(stmt, For):
            stack.append(stmt.body)
        else:
            stack.extend(reversed(child_statements(stmt)))


def bound_variables(root: Stmt) -> Iterator[Var]:
    """Yield the variables of the loops, lets and block axes in `root`."""
    for stmt in walk_statements(root):
        match stmt:
            case Store():  # first, since most statements are stores
                pass
            case For(var=var) | Let(var=var):
                yield var
            case Block(axes=axes):
                yield from (axis.var for axis in axes)


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions directly in `stmt`, without the expressions of its child statements."""
    match stmt:
        case Store(indices=indices, value=value):
            return (*indices, value)
        case For(extent=extent):
            return (extent,)
        case If(condition=condition):
            return (condition,)
        case Let(value=value):
            return (value,)
        case Block(axes=axes, bindings=bindings, predicate=predicate):
            extents = tuple(axis.extent for axis in axes)
            return (*extents, *bindings) if predicate is None else (*extents, *bindings, predicate)
    return ()


def map_statements(root: Stmt, rule: Callable[[Stmt], Stmt | None]) -> Stmt:
    """Rewrite statements bottom-up.

    `rule` receives each statement with its rewritten children. It returns a replacement, or `None`
    to keep the statement. Sequences are flattened. A loop walks: lets may nest a thousand deep.
    """
    pending, results = [(root, False)], list[Stmt]()
    while pending:
        stmt, is_expanded = pending.pop()
        children = () if isinstance(stmt, Store) else child_statements(stmt)  # most are stores
        if not children:
            results.append(rule(stmt) or stmt)
            continue
        if not is_expanded:
            pending.append((stmt, True))
            pending.extend((child, False) for child in reversed(children))
            continue
        first = len(results) - len(children)
        new = _with_children(stmt, results[first:])
        results[first:] = [rule(new) or new]
    return results[0]


def map_children(stmt: Stmt, rule: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with each of its child statements rewritten."""
    return _with_children(stmt, [rule(child) for child in child_statements(stmt)])


def _with_children(stmt: Stmt, children: Sequence[Stmt]) -> Stmt:
    """The statement with other child statements, in the order of `child_statements`."""
    match stmt:
        case Seq(statements=statements):
            return stmt if all(map(is_, children, statements)) else seq(*children)
        case For(var=var, extent=extent, body=body, kind=kind, thread=thread):
            return stmt if children[0] is body else For(var, extent, children[0], kind, thread)
        case Let(var=var, value=value, body=body):
            return stmt if children[0] is body else Let(var, value, children[0])
        case If(condition=condition):
            return If(condition, *children)
        case Block(init=init, body=body):
            is_same = children[-1] is body and (init is None or children[0] is init)
            return stmt if is_same else replace(stmt, body=children[-1], init=init and children[0])
    return stmt


def map_expressions(root: Stmt, transform: Callable[[Expr], Expr]) -> Stmt:
    """Apply `transform` to every whole expression of `root`.

    These are the indices, values, extents, bindings and conditions. A statement whose expressions
    `transform` returns as they are stays the same object.
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store):  # first, since most statements are stores
            indices = tuple([transform(index) for index in stmt.indices])
            value = transform(stmt.value)
            is_same = value is stmt.value and all(map(is_, indices, stmt.indices))
            return None if is_same else Store(stmt.buffer, indices, value, stmt.stage)
        old = expressions(stmt)
        new = tuple([transform(expr) for expr in old])
        if all(map(is_, new, old)):
            return None
        match stmt:
            case For(var=var, body=body, kind=kind, thread=thread):
                return For(var, new[0], body, kind, thread)
            case If(then=then, otherwise=otherwise):
                return If(new[0], then, otherwise)
            case Let(var=var, body=body):
                return Let(var, new[0], body)
            case Block(axes=axes):
                bindings = new[len(axes) : 2 * len(axes)]
                predicate = None if stmt.predicate is None else new[-1]
                axes = tuple(replace(a, extent=n) for a, n in zip(axes, new, strict=False))
                return replace(stmt, axes=axes, bindings=bindings, predicate=predicate)
        return None

    return map_statements(root, rule)


def substitute_statement(root: Stmt, mapping: Mapping[Var, Expr]) -> Stmt:
    """Replace free variables in every expression of `root`."""
    return map_expressions(root, substitution(mapping)) if mapping else root


def rename_bound(stmt: Stmt, names: Mapping[Var, Var]) -> Stmt | None:
    """The statement with other variables for its loop, let or block axes; `None` if it binds no
    variable of `names`. `substitute_statement` renames the variables where they are read.
    """
    match stmt:
        case For(var=var) | Let(var=var) if var in names:
            return replace(stmt, var=names[var])
        case Block(axes=axes) if any(axis.var in names for axis in axes):
            axes = tuple(replace(axis, var=names.get(axis.var, axis.var)) for axis in axes)
            return replace(stmt, axes=axes)
    return None


def replace_buffers(root: Stmt, mapping: Mapping[Buffer, Buffer]) -> Stmt:
    """Replace buffers by others of the same rank in every load and store."""

    def rule(buffer: Buffer, indices: tuple[Expr, ...]) -> Load | None:
        return Load(mapping[buffer], indices) if buffer in mapping else None

    return map_accesses(root, rule)


def map_accesses(root: Stmt, rule: Callable[[Buffer, tuple[Expr, ...]], Load | None]) -> Stmt:
    """Move accesses to other places. `rule` receives the buffer and the indices of each access,
    whose own loads have moved. It returns the new place, or `None` to keep the access.
    """

    def load(node: Expr) -> Expr | None:
        return rule(node.buffer, node.indices) if isinstance(node, Load) else None

    def store(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Store) or (place := rule(stmt.buffer, stmt.indices)) is None:
            return None
        return Store(place.buffer, place.indices, stmt.value, stmt.stage)

    return map_statements(map_expressions(root, rewriter(load, loads_in)), store)


def grid(loops: Iterable[tuple[Var, Expr]], body: Stmt) -> Stmt:
    """Wrap `body` in nested serial loops, given outermost first."""
    for var, extent in reversed(tuple(loops)):
        body = For(var, extent, body)
    return body


def inside_loops(loops: Iterable[For], body: Stmt) -> Stmt:
    """Wrap `body` in nested loops like `loops`, given outermost first."""
    for loop in reversed(tuple(loops)):
        body = For(loop.var, loop.extent, body, loop.kind, loop.thread)
    return body


def loads(root: Stmt) -> Iterator[Load]:
    """Yield every load in `root` in any order; equal loads of one expression come once."""
    for stmt in walk_statements(root):
        yield from own_loads(stmt)


def own_loads(stmt: Stmt) -> Iterator[Load]:
    """The loads directly in `stmt`, without the loads of its child statements."""
    trees = (expr for expr in expressions(stmt) if not isinstance(expr, Leaf))
    return chain.from_iterable(map(loads_in, trees))


def own_accesses(stmt: Stmt) -> Iterator[Load | Store]:
    """The loads directly in `stmt`, and then `stmt` itself if it is a store."""
    yield from own_loads(stmt)
    if isinstance(stmt, Store):
        yield stmt


def accessed_buffers(root: Stmt) -> set[Buffer]:
    """The buffers that `root` loads from or stores to."""
    return {access.buffer for stmt in walk_statements(root) for access in own_accesses(stmt)}


def distinct_loads(root: Stmt) -> set[Load]:
    """Every different load in `root`, in much less time than `loads` yields them all."""
    roots = {expr for stmt in walk_statements(root) for expr in expressions(stmt)}
    return set[Load]().union(*map(loads_in, roots))


@bottom_up()
def loads_in(root: Expr) -> tuple[Load, ...]:
    """The distinct loads in one expression, parents first and operands from left to right."""
    parts: list[tuple[Load, ...]] = [(root,)] if isinstance(root, Load) else []
    parts += [inner for child in root.children if (inner := loads_in(child))]
    return tuple(dict.fromkeys(chain(*parts))) if len(parts) > 1 else sum(parts, ())


def stores(root: Stmt) -> Iterator[Store]:
    """Yield every store in `root`, in program order."""
    return (s for s in walk_statements(root) if isinstance(s, Store))


def blocks(root: Stmt) -> Iterator[Block]:
    """Yield every block in `root`, in program order."""
    return (s for s in walk_statements(root) if isinstance(s, Block))
