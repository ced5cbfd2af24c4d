"""Outline an If or Loop that a run decides: its sub-graphs become functions of the module.

In: a node whose row does not expand, and the scope around it. Out: a node of domain `webmlc`, whose
inputs are all values that its functions read. No two functions share a name. A function has its own
copy of each constant that it reads. Its inputs are the values that it carries, then the values that
it captures.

    %y = If(%c) {then: %t = Relu(%x), ..}  →  %y = webmlc.If(%c, %x) {functions=(y.then, y.else)}
                                              func y.then(%y.then/x) { %t = Relu(%y.then/x) .. }

A loop has one function, its body. The number of the iteration is a symbol, like a dimension. A run
counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import UnsupportedError
from webmlc.core.expr import Expr, Var, as_expr, maximum
from webmlc.core.rewrite import variables
from webmlc.core.symbol_names import symbol_name
from webmlc.graph.builder import Builder, Expansion
from webmlc.graph.infer.continuations import UnlikeBranchesError
from webmlc.graph.ir import Array, Attribute, Function, Node, TensorType
from webmlc.graph.ops.control import (
    RUNS_ON_HOST,
    never_stops_early,
    scan_places,
)
from webmlc.graph.ops.operator import (
    Context,
    KnownValue,
    NotSupportedError,
    Scope,
    UnknownValueError,
    check_size,
    numbers_of,
    object_array,
    symbolic_constant,
)
from webmlc.graph.ops.shapes import canonical, same
from webmlc.graph.ops.stacked_loops import ELEMENTS, RAGGED
from webmlc.graph.ops.subgraphs import splice

Infer = Callable[[Function, Scope, bool], Function]


@dataclass(frozen=True, slots=True)
class Outlines:
    """The functions that have been outlined so far, numbers for the symbols of loops, and the
    symbols of all functions.
    """

    functions: dict[str, Function] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    symbols: set[str] = field(default_factory=set)

    def symbol(self, text: str) -> str:
        """Return a new symbol's name, derived from `text`."""
        base_name = symbol_name(text)
        name, number = base_name, 2
        while name in self.symbols:
            name, number = f"{base_name}_{number}", number + 1
        self.symbols.add(name)
        return name

    def copy(self) -> Outlines:
        """Outlines for an inference that is only a trial."""
        return replace(self, functions=dict(self.functions), symbols=set(self.symbols))


@dataclass(frozen=True, slots=True)
class Outline:
    """One If or Loop that becomes functions. `infer` infers a function inside the outer scope, and
    may bind symbols in it if the host runs it.
    """

    context: Context
    scope: Scope
    infer: Infer
    outlines: Outlines

    def nodes(self) -> list[Node]:
        """The node that calls the functions, and nodes that make sequences of its results. Raises
        `NotSupportedError` if no run could follow it.
        """
        if self.context.node.op == "If":
            return self.branches()
        return self.host_loop() if self.is_on_host else [self.loop()]

    @property
    def is_on_host(self) -> bool:
        """True if the host executes the node."""
        return RUNS_ON_HOST in self.context.node.attributes

    def branches(self) -> list[Node]:
        """The node of an If, and the sequences among its results. The inputs of the node are the
        condition, then the captures of each branch.

        The branches of an If on a device have results of the same types. On the host, the results
        may differ in sizes, which a run binds to symbols.
        """
        condition = self.context.node.inputs[0]
        first, second = self.branch("then", frozenset()), self.branch("else", frozenset())
        sequences = first[2] | second[2]
        if sequences:
            try:
                first, second = self.branch("then", sequences), self.branch("else", sequences)
            except UnsupportedError as error:
                if not self.is_on_host:
                    raise  # the host may still join the elements
                raise UnlikeBranchesError(condition) from error
        functions, captures = [first[0], second[0]], first[1] + second[1]
        then_types, else_types = (tuple(_type(f, o) for o in f.outputs) for f in functions)
        pairs = tuple(zip(then_types, else_types, strict=True))
        if not all(_have_common_type(*pair) for pair in pairs):
            raise UnlikeBranchesError(condition)
        if all(_have_same_type(*pair) for pair in pairs) and not self.is_on_host:
            node = self.call((condition, *captures), functions, then_types)
        elif self.is_on_host:
            joined = tuple(map(self.join, self.context.node.outputs, then_types, else_types))
            symbols = tuple(
                s for j, t in zip(joined, then_types, strict=True) for s in _new_symbols(j, t)
            )
            node = self.call((condition, *captures), functions, joined, symbols=symbols)
        else:
            texts = (", ".join(map(str, types)) for types in (then_types, else_types))
            description = f"the condition of an If that gives {' or '.join(texts)}"
            raise UnknownValueError(condition, description)
        return self.with_sequences(node, sequences)

    def join(
        self, value: str, left: TensorType, right: TensorType, symbols: Sequence[str] = ()
    ) -> TensorType:
        """The type of a value that has one of two types. Sizes that differ become symbols. The
        `symbols` stand for any size already.
        """
        sizes = [
            size
            if same(size, other) or (isinstance(size, Var) and size.name in symbols)
            else Var(self.outlines.symbol(f"{value}_{axis}"))
            for axis, (size, other) in enumerate(zip(left.shape, right.shape, strict=True))
        ]
        return TensorType(left.dtype, tuple(sizes))

    def branch(
        self, key: str, stacked: frozenset[int]
    ) -> tuple[Function, list[str], frozenset[int]]:
        """The function of a branch, its captures, and the places of its results that are sequences.
        The results at the places `stacked` become tensors of their elements.
        """
        expansion = Expansion()
        builder = self.builder(key, expansion)
        outputs = splice(self.context.attribute(f"{key}_branch"), builder, {})
        scope = branch_scope(self.context, self.scope, key == "then")
        outputs = tuple(
            builder("AsTensor", output, domain="webmlc", decided_by=self.context.node.inputs[0])
            if k in stacked
            else output
            for k, output in enumerate(outputs)
        )
        function, captures = replace(self, scope=scope).function(
            builder, expansion, (), outputs, {}
        )
        places = frozenset(k for k, o in enumerate(outputs) if o in function.sequences)
        return function, captures, places

    def with_sequences(self, node: Node, places: frozenset[int]) -> list[Node]:
        """The node, whose results at some places are the elements of sequences."""
        outputs, sequences = list(node.outputs), list[Node]()
        for place in sorted(places):
            name, outputs[place] = outputs[place], f"{outputs[place]}/elements"
            sequences.append(
                Node("AsSequence", (outputs[place],), (name,), {}, "webmlc", node.origin)
            )
        return [replace(node, outputs=tuple(outputs)), *sequences]

    def loop(self) -> Node:
        """The node of a Loop. Its inputs are the condition, or "" if the trip count alone decides;
        the initial values that it carries; and the captures of its body.
        """
        source: Function = self.context.attribute("body")
        initial = self.context.node.inputs[2:]
        scan_count = len(source.outputs) - 1 - len(initial)
        has_condition = not never_stops_early(source) or (
            self.context.has(1) and self.context.value(1) is None
        )
        symbol = Var(f"iteration_{next(self.outlines.numbers)}")
        function, captures = self.body(source, symbol, has_condition)
        if has_condition and not _is_single_boolean(_type(function, function.outputs[0])):
            raise NotSupportedError(f"the condition {source.outputs[0]!r} is no boolean")
        results = [_type(function, o) for o in function.outputs[has_condition:]]
        for k, type_ in enumerate(results[: len(initial)]):
            if not _have_same_type(self.context.type(2 + k), type_):
                raise NotSupportedError(f"the type of {initial[k]!r} changes in an iteration")
        trips = self.trips()
        if scan_count and trips is None:
            raise NotSupportedError("a loop that scans needs a largest number of iterations")
        places_of_scans = tuple(islice(scan_places(self.context), scan_count))
        types = results[: len(initial)] + [
            _stacked(type_, axis, trips)
            for type_, (axis, _) in zip(results[len(initial) :], places_of_scans, strict=True)
            if trips is not None
        ]
        for type_ in types:
            check_size(type_)
        condition = self.context.node.inputs[1] if self.context.has(1) else ""
        return self.call(
            (condition if has_condition else "", *initial, *captures),
            [function],
            tuple(types),
            symbol=symbol,
            trips=trips,
            asks=has_condition,
            carried=len(initial),
            places=places_of_scans,
        )

    def host_loop(self) -> list[Node]:
        """The node of a Loop that the host executes. It reads no condition: the first value that it
        carries says if an iteration follows. Its inputs are the initial values and the captures.

        If the elements of a sequence differ in size, the result is a Loop that inference expands.
        """
        initial, names = self.context.node.inputs[2:], self.context.node.outputs
        outer_symbols = frozenset(self.outlines.symbols)
        function, captures, types, symbols = self.host_iterations()
        slices = [_type(function, output) for output in function.outputs[len(initial) :]]
        first_element = len(slices) - self.context.attribute(ELEMENTS, 0)
        places = tuple(islice(scan_places(self.context), len(slices)))
        for number, (type_, (axis, _)) in enumerate(zip(slices, places, strict=True)):
            name = names[len(initial) + number]
            count = Var(self.outlines.symbol(f"{name}_count"))
            slice_type = self.slice_type(name, type_, outer_symbols)
            if number >= first_element and slice_type != type_:
                ragged = (number, type_.dtype, type_.rank)
                attributes = {**self.context.node.attributes, RAGGED: ragged}
                return [replace(self.context.node, attributes=attributes)]
            symbols += (*_new_symbols(slice_type, type_), count.name)
            types.append(_stacked(slice_type, axis, count))
        node = self.call(
            ("", *initial, *captures),
            [function],
            tuple(types),
            symbols=tuple(symbols),
            carried=len(initial),
            places=places,
        )
        return [node]

    def host_iterations(self) -> tuple[Function, list[str], list[TensorType], list[str]]:
        """The body of a Loop that the host executes, and its captures; the types that the carried
        values have in all iterations, and the symbols of these types.

        A size that an iteration changes becomes a symbol. The body is inferred again until the
        types of its results are the types that it carries.
        """
        source: Function = self.context.attribute("body")
        initial, names = self.context.node.inputs[2:], self.context.node.outputs
        types = [self.context.type(2 + k) for k in range(len(initial))]
        symbols: list[str] = []
        while True:
            function, captures = self.host_body(source, types)
            joined_types: list[TensorType] = []
            for k, type_ in enumerate(types):
                result = _type(function, function.outputs[k])
                if not _have_common_type(type_, result):
                    reason = f"from {type_} to {result}"
                    raise NotSupportedError(f"a loop changes {initial[k]!r} {reason}")
                joined_types.append(self.join(names[k], type_, result, symbols))
                symbols += _new_symbols(joined_types[k], type_)
            if joined_types == types:
                return function, captures, types, symbols
            types = joined_types

    def slice_type(self, name: str, type_: TensorType, outer_symbols: frozenset[str]) -> TensorType:
        """The type of all slices of the scan `name`. A size that a symbol of the body determines
        becomes a symbol, which the host binds after the loop.
        """
        sizes = [
            size
            if outer_symbols.issuperset(v.name for v in variables(size))
            else Var(self.outlines.symbol(f"{name}_{axis}"))
            for axis, size in enumerate(type_.shape)
        ]
        return TensorType(type_.dtype, tuple(sizes))

    def host_body(
        self, source: Function, types: Sequence[TensorType]
    ) -> tuple[Function, list[str]]:
        """The body of a loop of the host, as a function of the values that it carries."""
        expansion = Expansion()
        builder = self.builder("body", expansion)
        inputs = tuple(builder.fresh(i) for i in source.inputs[2:])
        arguments = dict(zip(source.inputs[2:], inputs, strict=True))
        outputs = splice(source, builder, arguments)[1:]
        declared = dict(zip(map(str, inputs), types, strict=True))
        return self.function(builder, expansion, inputs, outputs, declared)

    def trips(self) -> Expr | None:
        """The greatest number of iterations, or None if there is no limit."""
        if not self.context.has(0):
            return None
        (trips,) = self.context.known_value(0, "the number of iterations").reshape(-1).tolist()
        return canonical(maximum(as_expr(trips), 0))

    def body(
        self, source: Function, symbol: Var, has_condition: bool
    ) -> tuple[Function, list[str]]:
        """The body as a function of the values that it carries. Its first output is the condition,
        if the loop has one.
        """
        expansion = Expansion()
        builder = self.builder("body", expansion)
        step, condition = builder.fresh("iteration"), builder.constant(np.bool_(True))
        value = object_array([symbol], ())
        builder.append(symbolic_constant(value, DType.int64, step, builder.source.origin))
        inputs = tuple(builder.fresh(i) for i in source.inputs[2:])
        types = {str(name): self.context.type(2 + i) for i, name in enumerate(inputs)}
        arguments = dict(zip(source.inputs, (step, condition, *inputs), strict=True))
        outputs = splice(source, builder, arguments)
        function, captures = self.function(
            builder, expansion, inputs, outputs[not has_condition :], types
        )
        for name, type_ in function.types.items():
            if any(symbol in variables(d) for d in type_.shape):
                raise NotSupportedError(f"the shape of {name!r} changes in an iteration")
        return function, captures

    def builder(self, part: str, expansion: Expansion) -> Builder:
        """Return a builder of the function for `part`, with names that no other function uses."""
        node = self.context.node
        return Builder(
            replace(node, outputs=(f"{self.context.node.outputs[0]}.{part}",)), expansion
        )

    def function(
        self,
        builder: Builder,
        expansion: Expansion,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        types: dict[str, TensorType],
    ) -> tuple[Function, list[str]]:
        """The function of the builder's expansion, and the outer values that it captures."""
        name = builder.source.outputs[0]
        nodes = tuple(expansion.nodes)
        draft = Function(name, inputs, outputs, nodes, types, expansion.constants)
        inferred = self.infer(draft, self.scope, self.is_on_host)
        local_values = {*inputs, *(o for node in inferred.nodes for o in node.outputs)}
        expansion.taken_names |= local_values
        read_values = dict.fromkeys(i for node in inferred.nodes for i in node.inputs if i)
        constants: dict[str, Array] = {}
        symbolic: list[Node] = []
        new_names: dict[str, str] = {}
        captures: list[str] = []
        for value in (
            v
            for v in (*read_values, *inferred.outputs)
            if v not in local_values and v not in new_names
        ):
            new_names[value] = builder.fresh(value)
            elements = self.scope.values.get(value)
            if value in inferred.constants:
                constants[new_names[value]] = inferred.constants[value]
            elif elements is not None and not any(_is_float(e) for e in elements.reshape(-1)):
                dtype, name_inside = self.scope.types[value].dtype, new_names[value]
                numbers = numbers_of(elements, dtype)
                if numbers is None:
                    symbolic.append(symbolic_constant(elements, dtype, name_inside, ()))
                else:  # a node that keeps quantised weights, whose value is known
                    constants[name_inside] = numbers
            else:
                captures.append(value)
        function = Function(
            name,
            (*inputs, *(new_names[c] for c in captures)),
            tuple(new_names.get(o, o) for o in inferred.outputs),
            (*symbolic, *(node.reading(new_names) for node in inferred.nodes)),
            {
                new_names.get(v, v): t
                for v, t in inferred.types.items()
                if v in local_values or v in new_names
            },
            constants,
            inferred.sequences,
            inferred.requirements,
        )
        self.outlines.functions[name] = function
        return function, captures

    def call(
        self,
        inputs: tuple[str, ...],
        functions: list[Function],
        types: tuple[TensorType, ...],
        **attributes: Attribute,
    ) -> Node:
        """The node that runs the functions."""
        node = self.context.node
        node_attributes = {
            "functions": tuple(f.name for f in functions),
            "types": types,
            **attributes,
        }
        if self.is_on_host:
            node_attributes[RUNS_ON_HOST] = 1
        return Node(
            node.op, inputs, self.context.node.outputs, node_attributes, "webmlc", node.origin
        )


def branch_scope(context: Context, scope: Scope, holds: bool) -> Scope:
    """The scope of a branch of an If, in which its condition holds, or does not hold."""
    name, value = context.node.inputs[0], context.value(0)
    type_ = scope.type_of(name)
    shape = () if type_ is None else type_.static_shape or ()
    values = {**scope.values, name: object_array([holds], shape)}
    condition = None if value is None else value.reshape(-1)[0]
    if not isinstance(condition, Expr):
        return replace(scope, values=values)
    facts = {**scope.facts, condition: holds}
    values = {name: with_facts(value, facts) for name, value in values.items()}
    return replace(scope, values=values, facts=facts)


def with_facts(value: KnownValue, facts: Mapping[Expr, bool]) -> KnownValue:
    """A value in which conditions that a branch decides are booleans."""
    elements = value.reshape(-1).tolist()
    if not any(isinstance(e, Expr) and e in facts for e in elements):
        return value
    elements = [facts.get(e, e) if isinstance(e, Expr) else e for e in elements]
    return object_array(elements, value.shape)


def _new_symbols(type_: TensorType, other: TensorType) -> Iterator[str]:
    """The symbols in a type that stand for sizes of another one."""
    for size, other_size in zip(type_.shape, other.shape, strict=True):
        if size is not other_size and isinstance(size, Var):
            yield size.name


def _have_common_type(left: TensorType, right: TensorType) -> bool:
    return left.dtype is right.dtype and left.rank == right.rank


def _type(function: Function, value: str) -> TensorType:
    type_ = Scope(function.types, function.constants, {}).type_of(value)
    assert type_ is not None
    return type_


def _stacked(type_: TensorType, axis: int, extent: Expr) -> TensorType:
    """The type of `extent` slices along a new axis."""
    position = axis + type_.rank + 1 if axis < 0 else axis
    return TensorType(type_.dtype, (*type_.shape[:position], extent, *type_.shape[position:]))


def _have_same_type(left: TensorType, right: TensorType) -> bool:
    return _have_common_type(left, right) and all(map(same, left.shape, right.shape))


def _is_single_boolean(type_: TensorType) -> bool:
    return type_.dtype is DType.bool and type_.static_shape in ((), (1,))


def _is_float(element: object) -> bool:
    return isinstance(element, Expr) and element.dtype.is_float
