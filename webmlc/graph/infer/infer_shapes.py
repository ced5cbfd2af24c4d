"""Infer the types of all values, and the values that are computed from shapes.

needs: a normalised module. guarantees: every value has a type. Operators whose rows expand are
expanded. A value known at build time is a constant, or a `SymbolicConstant` if it contains symbols.
before → after:

    %s = Shape(%x)                        const %d = [-1]
    %r = Reshape(%y, %s)        →         %s: int64[2] = webmlc.SymbolicConstant() {(batch, 64)}
                                          %r: float32[batch, 64] = Reshape(%y, %s)

A size may depend on data: a run computes it in a small integer tensor. Such a size becomes a
symbol, and so does a size that takes more than `MAX_SIZE` operations on symbols. A `Bind` node
reads it from memory, and the node that needs the value sees the symbols.

    %y = Expand(%x, %s)         →         %s/bound: int64[2] = webmlc.Bind(%s) {(s_0, s_1)}
                                          %y: float32[s_0, s_1] = Expand(%x, %s/bound)

The pass walks over the nodes once, in order, so that its time is linear in their number. It reports
all nodes that cannot be compiled at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.errors import ADVICE, ModelError, Unsupported, UnsupportedError
from webmlc.core.expr import Expr, Var, as_int, const
from webmlc.core.rewrite import variables, written_out
from webmlc.graph.builder import Builder, Expansion, type_numbers
from webmlc.graph.checks.check_node import check_node
from webmlc.graph.checks.requirements import (
    count_requirements,
    live_requirements,
    require_indices,
)
from webmlc.graph.gradient.derive_gradient import GRADIENT, derive_gradient, targets_first
from webmlc.graph.infer.continuations import (
    BRANCHES,
    DEPTH,
    IS_POSTPONED,
    MAX_DEPTH,
    Continuation,
    TooManyBranchesError,
    Trial,
    Types,
    UnlikeBranchesError,
    continue_branches,
    postponed,
)
from webmlc.graph.infer.evaluate import evaluate_node, stages
from webmlc.graph.infer.evaluate_symbols import MAX_SIZE, evaluate_symbols
from webmlc.graph.infer.outline import (
    Outline,
    Outlines,
    branch_scope,
    with_facts,
)
from webmlc.graph.ir import (
    Array,
    Elements,
    Function,
    Module,
    Node,
    Ragged,
    Requirement,
    Shaped,
    Stacked,
    TensorType,
    producers,
)
from webmlc.graph.ops.control import (
    RUNS_ON_HOST,
    may_run_on_host,
)
from webmlc.graph.ops.operator import (
    SYMBOLIC_CONSTANT,
    VALUE_LIMIT,
    Context,
    KnownValue,
    Missing,
    NotSupportedError,
    Operator,
    Result,
    Scope,
    UnknownValueError,
    bind,
    check_size,
    is_addressable,
    numbers_of,
    object_array,
    symbolic_constant,
    symbolic_value,
)
from webmlc.graph.ops.shapes import check_sizes
from webmlc.graph.ops.subgraphs import names_in, reads, rename_captures, splice
from webmlc.graph.rewrite.meaning import row_of

UNFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""The errors of rows whose operator has inputs, outputs or attributes that no valid model has. A
row checks the needs of its mathematics, not each number and form of its inputs, outputs and
attributes.
"""

MAX_BOUND_ELEMENTS = 64
"""The most elements of one tensor that become symbols. Larger tensors are not bound. Chosen by
hand: shapes have few elements, and each symbol is a field of the manifest.
"""

MAX_SYMBOLIC_ELEMENTS = 64
"""The most symbolic elements of a value that later passes know. A kernel takes each of these
elements as a parameter and selects among them. A larger value is read from memory. Chosen by hand.
"""


DEQUANTISED_LIMIT = 8
"""The most elements of a quantised constant whose value inference knows: a number that a shape may
depend on, such as a Range's step or the scales of a Resize, not a layer's bias. Chosen by hand: two
numbers for each of four axes.
"""


class UnknownShapeError(UnsupportedError):
    """Shapes depend on values known only at run time. `values` names these values, and `inputs` the
    inputs of the model from which they are computed.
    """

    def __init__(
        self,
        nodes: tuple[Unsupported, ...],
        values: tuple[str, ...],
        inputs: tuple[str, ...] = (),
    ) -> None:
        options = " ".join(f"--constant {name}=..." for name in inputs)
        advice = f"If they never change, build these inputs in: {options}"
        super().__init__(nodes, advice if inputs else ADVICE)
        self.values = values
        self.inputs = inputs


def infer_shapes(module: Module) -> Module:
    """Infer all functions. Raises `UnsupportedError` with all nodes that have no type."""
    outlines = Outlines()
    inference = _Inference(module.main, Scope({}, {}, {}), outlines)
    try:
        main = inference.run()
    except UnknownShapeError as error:
        inputs = _deciding_inputs(module.main, error.values)
        raise UnknownShapeError(error.nodes, error.values, inputs) from None
    functions = {"main": main, **outlines.functions}
    called = _called(functions)
    return replace(module, functions={n: f for n, f in functions.items() if n in called})


def _elements(value: str) -> str:
    """The name of the elements of a value of several ranks."""
    return f"{value}/elements"


def _called(functions: Mapping[str, Function]) -> list[str]:
    """The names of `main` and of the functions that it runs. Trials leave others."""
    names = ["main"]
    for name in names:
        for node in functions[name].nodes:
            names += (f for f in node.attributes.get("functions", ()) if f not in names)
    return names


def _deciding_inputs(function: Function, values: Sequence[str]) -> tuple[str, ...]:
    """The inputs from which these values are computed, for advice to the user.

    Axes, scales and rates have at most one dimension. A larger input is data, which users do not
    make constant.
    """
    producer_of = producers(function)
    pending, ancestors = list(values), set(values)
    while pending:
        node = producer_of.get(pending.pop())
        if node is not None:
            new_values = {
                *filter(None, node.inputs),
                *(i for i in function.inputs if reads(node, i)),
            }
            new_values -= ancestors
            ancestors |= new_values
            pending += new_values
    types = function.types
    return tuple(
        i for i in function.inputs if i in ancestors and (i not in types or types[i].rank < 2)
    )


class _Inference:
    """The state of the walk: the facts known so far about the function's values, and the `outer`
    scope.

    A function that a device runs inside another one binds no symbols, because its shapes hold for
    every iteration. A trial leaves outputs without types if they have several ranks.
    """

    def __init__(
        self,
        function: Function,
        outer: Scope,
        outlines: Outlines,
        binds_symbols: bool = True,
        is_trial: bool = False,
    ) -> None:
        self.is_trial = is_trial
        self.function = function
        self.outlines = outlines
        self.binds_symbols = binds_symbols
        self.types: dict[str, TensorType] = dict(outer.types)
        self.types |= {i: function.types[i] for i in function.inputs if i in function.types}
        self.constants: dict[str, Array] = {**outer.constants, **function.constants}
        self.values: dict[str, KnownValue] = dict(outer.values)
        self.sequences: dict[str, Elements] = {**outer.sequences, **function.sequences}
        self.nodes: list[Node] = []
        self.typed_nodes: list[Node] = []  # for Gradient: also the nodes that became constants
        self.requirements: dict[Node, list[Requirement]] = {}  # of typed and expanded nodes
        self.failed_values: set[str] = set(function.inputs) - set(self.types)
        self.unsupported: list[Unsupported] = []
        self.unknown_sources: list[tuple[str, ...]] = []
        self.partial_values: dict[str, KnownValue] = {}  # None: an element known only at run time
        self.value_names = {*names_in(function), *outer.types, *outer.constants, *outer.sequences}
        self.bound_names: dict[str, str] = {}
        self.size_symbols: dict[Expr, Expr] = {}
        shapes = (t.shape for t in function.types.values())
        self.outlines.symbols.update(v.name for s in shapes for d in s for v in variables(d))
        self.scope = Scope(self.types, self.constants, self.values, self.sequences, outer.facts)
        self.pending: list[Node] = []  # the last is next

    def run(self) -> Function:
        """Infer all nodes and return the typed function."""
        for name, type_ in self.types.items():
            if not is_addressable(type_):
                reason = f"{type_} is larger than 32-bit memory"
                raise UnsupportedError((Unsupported(name, "input", reason),))
        for name in sorted(self.failed_values):
            reason = "its type is not a tensor of known rank and a supported element type"
            self.unsupported.append(Unsupported(name, "input", reason))
        self.pending = list(reversed(targets_first(self.function.nodes)))
        while self.pending:
            node = self.pending.pop()
            if self.failed_values.isdisjoint(node.inputs):
                self.pending.extend(reversed(self.infer_or_report(node)))
            else:
                self.failed_values.update(node.outputs)
        if len(self.unknown_sources) == len(self.unsupported) > 0:
            sources = dict.fromkeys(value for group in self.unknown_sources for value in group)
            raise UnknownShapeError(tuple(self.unsupported), tuple(sources))
        if self.unsupported:
            raise UnsupportedError(tuple(self.unsupported))
        outputs, sequences = self.outputs()
        return replace(
            self.function,
            outputs=outputs,
            nodes=tuple(self.nodes),
            types=self.types,
            constants=self.constants,
            sequences=sequences,
            requirements=live_requirements(outputs, self.requirements),
        )

    def infer_or_report(self, node: Node) -> list[Node]:
        """Infer a node, and return the nodes to infer in its place. A node that cannot be compiled
        becomes an entry of `unsupported`.
        """
        values: tuple[str, ...] = ()
        try:
            return self.infer(node)
        except TooManyBranchesError:
            raise  # a trial has not failed: it gives up
        except UnlikeBranchesError as error:
            if self.function.name != "main":
                raise
            is_inner, reason, values = False, str(error), (error.name,)
        except NotSupportedError as error:
            is_inner, reason = False, str(error)
            if isinstance(error, UnknownValueError):
                values = (error.name,)
        except UnsupportedError as error:  # raised by a function inside this one
            is_inner, nodes = True, error.nodes
            if isinstance(error, UnknownShapeError):
                values = error.values
        except UNFIT as error:
            raise ModelError(
                f"{node.op} (node {node.name!r}): its inputs, outputs and attributes do not "
                f"fit the operator ({type(error).__name__}: {error})"
            ) from error
        if values and all(self.bind(value, node) for value in values):
            names = {value: self.bound_names[value] for value in values}
            return [rename_captures(node, names) if is_inner else node.reading(names)]
        if self.binds_symbols and may_run_on_host(node):
            return [replace(node, attributes={**node.attributes, RUNS_ON_HOST: 1})]
        if not is_inner:
            for value, name in self.bound_names.items():  # report the model's names
                reason = reason.replace(repr(name), repr(value))
            nodes = (Unsupported(node.name, node.op, reason),)
        self.failed_values.update(node.outputs)
        self.unsupported += nodes
        if values:
            deciding = tuple(source for value in values for source in self.sources_of(value))
            self.unknown_sources += [deciding] * len(nodes)
        return []

    def bind(self, value: str, node: Node) -> bool:
        """Make the elements of `value` symbols that a run reads from memory. Return False if
        `value` does not hold a small number of integers.
        """
        if value in self.bound_names:
            return reads(node, value)
        type_ = self.types.get(value)
        shape = None if type_ is None else type_.static_shape
        if type_ is None or shape is None or not type_.dtype.is_integer:
            return False
        if not self.binds_symbols or not reads(node, value) or value in self.values:
            return False  # the node needs a number, and already has a symbol
        count = prod(shape)
        if not 0 < count <= MAX_BOUND_ELEMENTS:
            return False
        partial = self.partial_values.get(value)
        partial_elements = [None] * count if partial is None else partial.reshape(-1).tolist()
        names = {
            i: self.outlines.symbol(value if count == 1 else f"{value}_{i}")
            for i, element in enumerate(partial_elements)
            if element is None
        }
        elements = object_array(
            [Var(names[i]) if i in names else e for i, e in enumerate(partial_elements)], shape
        )
        prefix = "" if self.function.name == "main" else f"{self.function.name}/"
        self.bound_names[value] = self.fresh(f"{prefix}{value}/bound")
        reader = bind(elements, names, type_.dtype, value, self.bound_names[value], node.name)
        self.types[self.bound_names[value]] = type_
        self.values[self.bound_names[value]] = elements
        self.nodes.append(reader)
        self.requirements[reader] = []  # live requirements follow its input to the producer
        return True

    def fresh(self, name: str) -> str:
        """The name, or a name derived from it if a value already has this name."""
        while name in self.value_names:
            name += "_"
        self.value_names.add(name)
        return name

    def sources_of(self, value: str) -> tuple[str, ...]:
        """The values of the model from which a value is computed, if the value comes from an
        expansion or a bind. Otherwise the value itself.
        """
        values = {*self.function.inputs, *(o for n in self.function.nodes for o in n.outputs)}
        producer_of = {o: node for node in self.nodes for o in node.outputs}
        pending, sources = [value], dict[str, None]()
        while pending:
            name = pending.pop()
            if name in values or name not in producer_of:
                sources[name] = None
            else:
                pending += [i for i in producer_of[name].inputs if i and i not in self.constants]
        return tuple(sources)

    def outputs(self) -> tuple[tuple[str, ...], dict[str, Elements]]:
        """The function's outputs, with one value for each tensor of a sequence; and the
        sequences.
        """
        outputs: list[str] = []
        sequences: dict[str, Elements] = dict(self.function.sequences)
        for output in self.function.outputs:
            if output not in self.sequences:
                outputs.append(output)
                continue
            values, names = self.sequences[output], tuple[str, ...]()
            if isinstance(values, Shaped | Ragged):
                self.infer(Node("Identity", (values.elements,), (output,), origin=(output,)))
                outputs += [output, values.sizes]
                sequences[output] = replace(values, elements=output)
                continue
            if isinstance(values, Stacked):
                values, names, sequences[output] = (values.value,), (output,), Stacked(output)
            elif values is None:
                values, sequences[output] = (), None
            else:
                names = tuple(f"{output}/{i}" for i in range(len(values)))
                sequences[output] = names
            for value, name in zip(values, names, strict=True):
                if value != name:
                    self.infer(Node("Identity", (value,), (name,), origin=(output,)))
                outputs.append(name)
        return tuple(outputs), sequences

    def infer(self, node: Node) -> list[Node]:
        """Infer the node's types and append it, or return the nodes that it expands to."""
        row = row_of(node)
        type_numbers(node, self.constants, self.scope.type_of)
        context = self.scope.context(node)
        check_node(node, row, context.types)
        expansion = Expansion(self.value_names)
        results = row.expansion(context, Builder(node, expansion))
        if results is not None:
            self.requirements[node] = context.requirements
            return self.expansion_nodes(node, expansion, results)
        if node.operator == GRADIENT:
            build = Builder(node, expansion)
            derivatives = derive_gradient(node, self.typed_nodes, self.scope, build)
            return self.expansion_nodes(node, expansion, derivatives[: len(node.outputs)])
        if not node.domain and node.op in ("If", "Loop"):
            return self.outlined(node, context)
        outputs = row.types(context)
        if row.indices is not None:
            require_indices(context, row.indices(context))
        outputs = tuple(
            TensorType(type_.dtype, tuple(self.named_size(d, node) for d in type_.shape))
            for type_ in outputs
        )
        for type_ in outputs:
            if any((as_int(d) or 0) < 0 for d in type_.shape):
                raise NotSupportedError(f"its result, {type_}, has a negative size")
            check_size(type_)
            check_sizes(type_.shape)
        names = node.outputs
        for name, type_ in zip(names, outputs, strict=True):
            self.types[name] = type_
        self.typed_nodes.append(node)
        self.requirements[node] = [
            *context.requirements,
            *count_requirements(node, context.types, outputs),
        ]
        if node.operator == SYMBOLIC_CONSTANT:
            self.values[node.outputs[0]] = symbolic_value(node)
        elif self.evaluate(node, row, replace(context, outputs=outputs)):
            return []
        self.nodes.append(node)
        return []

    def outlined(self, node: Node, context: Context) -> list[Node]:
        """The nodes that run an If or a Loop. They replace all pending nodes, too, if the branches
        are unlike.
        """
        try:
            return Outline(context, self.scope, self.infer_inner, self.outlines).nodes()
        except UnlikeBranchesError as error:
            if node.op == "Loop":
                description = "the condition of an If in a loop whose branches give unlike results"
                raise UnknownValueError(error.name, description) from error
        nodes = self.continued(node)
        self.pending.clear()
        return nodes

    def continued(self, node: Node) -> list[Node]:
        """The nodes in place of an If with unlike branches and of all pending nodes.

        Followers of the If become part of its branches, until all results are alike. If one branch
        cannot compute the followers, a run must take the other branch.
        """
        if node.attributes.get(DEPTH, 0) >= MAX_DEPTH:
            raise TooManyBranchesError(node)
        pending = self.pending[::-1]
        if IS_POSTPONED not in node.attributes:
            return postponed(node, pending)
        continuation = Continuation(node, pending, self.function.outputs)
        return continue_branches(continuation, self.trial, self.end)

    def trial(self, continuation: Continuation, key: str, count: int) -> Trial:
        """Infer a branch with the first `count` followers, and forget the functions."""
        followers, values = continuation.followers[:count], continuation.values(count)
        branch = continuation.branch(key, followers, values)
        context, expansion = self.scope.context(continuation.node), Expansion(set(self.value_names))
        outputs = splice(branch, Builder(continuation.node, expansion), {})
        nodes = tuple(expansion.nodes)
        draft = Function(branch.name, (), outputs, nodes, {}, expansion.constants)
        scope = branch_scope(context, self.scope, key == BRANCHES[0])
        outlines = self.outlines.copy()
        inference = _Inference(draft, scope, outlines, self.binds_symbols, is_trial=True)
        error: UnsupportedError | ModelError | None = None
        try:
            inference.run()
        except TooManyBranchesError:
            raise
        except (UnsupportedError, ModelError) as reason:
            error = reason
        types = map(inference.scope.type_of, outputs)
        return Trial(dict(zip(values, types, strict=True)), error)

    def end(self, continuation: Continuation, types: Sequence[Types]) -> Continuation:
        """The continuation in which two tensors of rank 1, its elements and its sizes, stand for
        each result of several ranks that the model returns. A trial does not return the result.
        """
        unlike = continuation.unlike(types)
        if self.is_trial:
            outputs = [value for value in continuation.outputs if value not in unlike]
            return replace(continuation, outputs=outputs)
        are_tensors = all(branch[value] is not None for branch in types for value in unlike)
        is_joined = not unlike.isdisjoint(map(_elements, self.sequences))
        if self.function.name != "main" or not are_tensors or is_joined:
            raise UnlikeBranchesError(continuation.node.inputs[0])
        followers, outputs = list(continuation.followers), list[str]()
        for value in dict.fromkeys(continuation.outputs):
            if value not in unlike:
                outputs.append(value)
                continue
            elements, flat = self.fresh(_elements(value)), self.fresh(f"{value}/flat")
            sizes = self.fresh(f"{value}/sizes")
            self.constants[flat] = np.array([-1], np.int64)
            origin = (continuation.node.name,)
            followers.append(Node("Reshape", (value, flat), (elements,), origin=origin))
            followers.append(Node("Shape", (value,), (sizes,), origin=origin))
            self.sequences[value] = Shaped(elements, sizes)
            outputs += [elements, sizes]
        return replace(continuation, followers=followers, outputs=outputs)

    def named_size(self, size: Expr, node: Node) -> Expr:
        """The size itself, or a symbol in place of a size that takes long to write: a run computes
        it before the node, and binds the symbol to it. So no chain of nodes makes sizes longer and
        longer.

        Raises `NotSupportedError` for a long size inside another function.
        """
        if written_out(size) <= MAX_SIZE:
            return size
        if not self.binds_symbols:
            raise NotSupportedError(
                "its result has a size that takes more than a thousand operations on symbols, "
                "inside a loop or a branch; make the sizes of the model's inputs constant"
            )
        if size not in self.size_symbols:
            value = self.fresh(f"{node.outputs[0]}/size")
            self.types[value] = TensorType(DType.int64, (const(1),))
            self.store_value(value, self.types[value], object_array([size], (1,)), node)
            del self.values[value]  # a symbol takes its place
            self.bind(value, Node("Shape", (value,), (value,)))
            (self.size_symbols[size],) = self.values[self.bound_names[value]].tolist()
        return self.size_symbols[size]

    def infer_inner(self, function: Function, outer: Scope, binds_symbols: bool) -> Function:
        """Infer a function inside this one."""
        return _Inference(function, outer, self.outlines, binds_symbols).run()

    def expansion_nodes(
        self, node: Node, expansion: Expansion, results: Sequence[Result]
    ) -> list[Node]:
        """The nodes of an expansion, renamed so that they produce the outputs of `node`."""
        self.constants.update(expansion.constants)
        new_values = {o for n in expansion.nodes for o in n.outputs}
        names: dict[str, str] = {}
        copies: list[Node] = []
        for result, output in zip(results, node.outputs, strict=True):
            if isinstance(result, Missing):
                if self.is_read(output):
                    raise NotSupportedError(f"the output {output!r} is not supported")
            elif not isinstance(result, str):
                self.sequences[output] = result
            elif result in new_values and result not in names:
                names[result] = output
            else:
                copies.append(Node("Identity", (result,), (output,), origin=(node.name,)))
        return [n.renamed(names) for n in (*expansion.nodes, *copies)]

    def is_read(self, value: str) -> bool:
        """True if the function returns a value, or if a node reads it."""
        nodes = self.function.nodes
        return value in self.function.outputs or any(reads(node, value) for node in nodes)

    def evaluate(self, node: Node, row: Operator, context: Context) -> bool:
        """Replace the node by the values of its outputs. Return False if they are unknown."""
        if row.compute is None or not _may_be_shape(node, context):
            return False
        tensors = context.placeholders
        arrays = [context.constant(i) for i in range(len(tensors))]
        if all(a is not None or not name for a, name in zip(arrays, node.inputs, strict=True)):
            results = evaluate_node(row, context, arrays, {})
            if node.op == "DequantizeLinear":  # `compute_in_integers` looks for the node
                self.values.update(zip(node.outputs, results, strict=True))
                return False
            self.constants.update(zip(node.outputs, results, strict=True))
            return True
        outputs = row.tensors(context, tensors)
        read = {t for stage in stages(outputs) for t in stage.sources}
        inputs: dict[Any, KnownValue] = {}
        for i, tensor in enumerate(tensors):
            if tensor in read:
                value = context.value(i)
                value = self.partial_values.get(node.inputs[i]) if value is None else value
                if value is not None:
                    inputs[tensor] = value
        values = evaluate_symbols(outputs, inputs) if inputs or not read else None
        if values is None:
            return False
        if self.scope.facts:
            values = [with_facts(value, self.scope.facts) for value in values]
        names = node.outputs
        if any(e is None for value in values for e in value.reshape(-1)):
            self.partial_values.update(zip(names, values, strict=True))
            return False
        symbolic = [e for v in values for e in v.reshape(-1) if isinstance(e, Expr)]
        if len(symbolic) > MAX_SYMBOLIC_ELEMENTS or any(e.dtype.is_float for e in symbolic):
            for name, value in zip(names, values, strict=True):
                self.values[name] = value  # only for the rest of this inference
            return False
        for name, type_, value in zip(names, context.outputs, values, strict=True):
            self.store_value(name, type_, value, node)
        return True

    def store_value(self, name: str, type_: TensorType, value: KnownValue, node: Node) -> None:
        """Store a known value as a constant, or as a `SymbolicConstant` node if it has symbols."""
        numbers = numbers_of(value, type_.dtype)
        if numbers is None:
            self.values[name] = value
            self.nodes.append(symbolic_constant(value, type_.dtype, name, node.origin))
        else:
            self.constants[name] = numbers


def _may_be_shape(node: Node, context: Context) -> bool:
    """True if a node may compute a shape: its outputs are small, and they are integers or all
    inputs are known. This cheap test rules out most nodes.
    """
    if node.op == "DequantizeLinear":
        sizes = [as_int(d) for d in context.shape(0)]
        if any(n is None for n in sizes) or prod(n or 0 for n in sizes) > DEQUANTISED_LIMIT:
            return False
        return all(context.constant(i) is not None for i, name in enumerate(node.inputs) if name)
    for type_ in context.outputs:
        sizes = [as_int(d) for d in type_.shape]
        if any(n is None for n in sizes) or prod(n or 0 for n in sizes) > VALUE_LIMIT:
            return False
    if all(t.dtype.is_integer or t.dtype is DType.bool for t in context.outputs):
        return True
    return all(context.value(i) is not None for i, name in enumerate(node.inputs) if name)
