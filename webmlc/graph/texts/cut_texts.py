"""Cut the steps on texts out of the graph, so that hosts compute them.

needs: inferred shapes. guarantees: `main` has no `webmlc.TextStep`, and computes with numbers only.
Steps that depend on inputs alone are `Texts.before`; their results become inputs of `main`. Steps
on which nothing but outputs depends are `Texts.after`. before → after:

    main(%x) -> %y                                   main(%t: int64[n, t_size]) -> %y
      %t: int64[n, t_size] = webmlc.TextStep(%x)     before: tokenise(x) -> t
      %y = LabelEncoder(%t)                            %y = LabelEncoder(%t)

Nodes that only move texts to such a step, as Reshape does, become steps, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from msgspec import structs

from webmlc.core.errors import Unsupported, UnsupportedError
from webmlc.core.expr import Expr, as_int, const
from webmlc.core.rewrite import variables
from webmlc.core.text_steps import (
    Append,
    CountGrams,
    Join,
    Match,
    Parse,
    Split,
    Take,
    TextStep,
    View,
    results,
    sources,
)
from webmlc.graph.ir import Array, Function, Module, Node, TextPort, Texts
from webmlc.graph.ops.operator import Context, Scope, symbols_bound_by
from webmlc.graph.ops.slice import slices
from webmlc.graph.ops.subgraphs import reads

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""The operators that change no more than the shape."""


def cut_texts(module: Module) -> Module:
    """Cut the steps out of `main`. A module without texts is unchanged.

    Raises `UnsupportedError` for texts that are computed from numbers, and computed with further.
    """
    if module.texts is None:
        return module
    cut = _Cut(module.main, module.texts)
    main, texts = cut.parts()
    return module.with_main(main, texts=texts)


@dataclass(slots=True)
class _Cut:
    """The values that hosts can compute, with the steps that compute each of them.

    `early` are the values that a host can compute before the program, and `late` those that it has
    to compute after the program. Of the early values, `texts` are no numbers.
    """

    function: Function
    record: Texts
    early: dict[str, tuple[TextStep, ...]] = field(default_factory=dict)
    late: dict[str, tuple[TextStep, ...]] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)

    def parts(self) -> tuple[Function, Texts]:
        """The function without the steps, and the record with them."""
        function, outputs = self.function, self.text_outputs()
        for port in self.record.inputs:
            self.early[port.name] = ()
            self.texts.add(port.name)
        nodes = [node for node in function.nodes if not self.hosts(node)]
        self.check(nodes)
        after = self.steps(self.late, [port.name for port in outputs] + list(self.late))
        names = {port.name for port in outputs}
        values = names - self.late.keys() - self.texts
        computed = {r for step in after for r in results(step)} | self.early.keys()
        for step in after:
            values |= {s for s in sources(step) if s not in computed}
        constants = {n: function.constants[n] for n in sorted(values) if n in function.constants}
        public = tuple(o for o in function.outputs if o not in names)
        hidden = tuple(sorted(values - constants.keys() - set(public)))
        main = replace(function, nodes=tuple(nodes), outputs=(*public, *hidden))
        main = self.with_inputs(main)
        feeds = tuple(i for i in main.inputs if i in self.early)
        needed = [*feeds, *names, *(s for step in after for s in sources(step))]
        before = self.steps(self.early, needed)
        for step in before:
            constants |= self.constants_of(step)
        record = replace(
            self.record, outputs=outputs, before=before, after=after, constants=constants,
            feeds=feeds, reads=hidden,
        )  # fmt: skip
        return main, record

    def text_outputs(self) -> tuple[TextPort, ...]:
        """The outputs that are texts, with one for each element of a sequence."""
        function = self.function
        names: list[str] = []
        for port in self.record.outputs:
            elements = function.sequences.get(port.name)
            names += elements if isinstance(elements, tuple) and elements else (port.name,)
        scope = Scope.of(function)
        types = [(name, scope.type_of(name)) for name in function.outputs]
        return tuple(
            TextPort(name, type_.shape, position)
            for position, (name, type_) in enumerate(types)
            if name in names and type_ is not None
        )

    def hosts(self, node: Node) -> bool:
        """Note the steps of a node that hosts can compute. True if the node leaves the graph."""
        is_step = node.op == "TextStep"
        values = [i for i in node.inputs if i and i not in self.function.constants]
        is_early = self.early.keys() >= set(values) and bool(values or is_step)
        is_late = not self.late.keys().isdisjoint(values) or (is_step and not is_early)
        if is_step:
            steps: tuple[TextStep, ...] | None = (_named(node),)
        else:
            steps = self.moves(node) if is_late or self.texts.intersection(values) else None
        if steps is None or not (is_early or is_late):
            return False
        computed = self.late if is_late else self.early
        for output in node.outputs:
            computed[output] = steps
        if is_early and not isinstance(steps[-1], Match | CountGrams | Parse):
            self.texts.update(node.outputs[:1])
        return is_step or is_late

    def moves(self, node: Node) -> tuple[TextStep, ...] | None:
        """The steps of a node that only moves texts; None for any other node."""
        function = self.function
        context = Scope.of(function).context(node)
        value, result = node.inputs[0], node.outputs[0]
        if node.op in VIEWS:
            shape = _view(context.shape(0), function.types[result].shape)
            return None if shape is None else (View(value, result, shape),)
        if node.op == "Concat":
            return (Join(node.inputs, result, context.axis(0)),)
        if node.op in ("Gather", "Split", "Slice"):
            return self.takes(context)
        return None

    def takes(self, context: Context) -> tuple[TextStep, ...] | None:
        """The steps of a node that takes parts of a tensor; None if only a run knows which."""
        node, shape = context.node, context.shape(0)
        value, result = node.inputs[0], node.outputs[0]
        if node.op == "Slice":
            parts = [(axis, *part) for axis, part in enumerate(slices(context))]
            whole = [(axis, const(0), size, 1) for axis, size in enumerate(shape)]
            cut = [p for p, axis in zip(parts, whole, strict=True) if p != axis] or whole[:1]
            names = [value, *(f"{result}.{axis}" for axis, *_ in cut[1:]), result]
            numbers = [(a, as_int(first), as_int(count), step) for a, first, count, step in cut]
            if any(None in part for part in numbers):
                return None
            return tuple(
                Take(names[i], names[i + 1], axis, tuple(first + step * k for k in range(count)))  # type: ignore[operator, arg-type]
                for i, (axis, first, count, step) in enumerate(numbers)
            )
        axis = context.axis(0)
        size = as_int(shape[axis])
        if node.op == "Split":
            if size is None:
                return None
            sizes = [as_int(self.function.types[o].shape[axis]) or 0 for o in node.outputs]
            return tuple(
                Take(value, output, axis, tuple(range(end - part, end)))
                for output, part, end in zip(node.outputs, sizes, accumulate(sizes), strict=True)
            )
        indices = self.function.constants.get(node.inputs[1])
        if indices is None:
            return None
        signed = [int(i) for i in indices.reshape(-1)]
        positions = tuple(i + size if i < 0 and size is not None else i for i in signed)
        if min(positions, default=0) < 0 or (
            size is not None and max(positions, default=0) >= size
        ):
            return None  # the program counts from the end, and reports an index out of range
        if indices.ndim == 1:
            return (Take(value, result, axis, positions),)
        view = _view(shape, self.function.types[result].shape)
        if view is None:
            return None
        middle = f"{result}.parts"
        return Take(value, middle, axis, positions), View(middle, result, view)

    def check(self, nodes: Iterable[Node]) -> None:
        """Raise `UnsupportedError` for nodes of the program that read late values, and for outputs
        that are numbers made of them.
        """
        refused = [
            Unsupported(
                node.name,
                node.op,
                f"it reads {value!r}, a text that is computed from numbers and then taken apart or "
                "joined. Texts of inputs can be taken apart before all other computation, and "
                "texts of results after it: compute this text outside of the model",
            )
            for node in nodes
            for value in sorted(self.late)
            if reads(node, value)
        ]
        names = {port.name for port in self.text_outputs()}
        refused += [
            Unsupported(o, "output", "it holds numbers that are made of texts of results")
            for o in self.function.outputs
            if o in self.late and o not in names
        ]
        if refused:
            raise UnsupportedError(tuple(refused))

    def steps(
        self, computed: dict[str, tuple[TextStep, ...]], needed: Iterable[str]
    ) -> tuple[TextStep, ...]:
        """The steps that compute the needed values, in order."""
        pending, live = list(needed), set[str]()
        while pending:
            name = pending.pop()
            if name in computed and name not in live:
                live.add(name)
                pending += [s for step in computed[name] for s in sources(step)]
        steps = (step for name in computed if name in live for step in computed[name])
        return tuple({id(step): step for step in steps}.values())

    def constants_of(self, step: TextStep) -> dict[str, Array]:
        constants = self.function.constants
        return {name: constants[name] for name in sources(step) if name in constants}

    def with_inputs(self, main: Function) -> Function:
        """Drop nodes without readers that bind no symbols, and make inputs of the values that hosts
        compute. A text stays an input if its shape alone binds a symbol.
        """
        live, nodes = set(main.outputs), list[Node]()
        for node in reversed(main.nodes):
            if symbols_bound_by(node) or not live.isdisjoint(node.outputs):
                nodes.insert(0, node)
                live |= {i for i in main.types.keys() | main.constants.keys() if reads(node, i)}
        produced = {o for node in nodes for o in node.outputs}
        fed = [v for v in self.early if v in live and v not in produced]
        texts = [port.name for port in self.record.inputs]
        inputs = [*fed, *(i for i in main.inputs if i not in texts)]
        types = {v: t for v, t in main.types.items() if v in live | produced | {*inputs}}
        bound = {v for name in inputs for d in types[name].shape for v in variables(d)}
        for name in texts:
            symbols = {v for d in main.types[name].shape for v in variables(d)}
            used = {v for t in types.values() for d in t.shape for v in variables(d)}
            if name not in inputs and symbols & used - bound:
                inputs.append(name)
                types[name] = main.types[name]
        return replace(main, inputs=tuple(inputs), nodes=tuple(nodes), types=types)


def _named(node: Node) -> TextStep:
    """The step of a node, with the names of its inputs and outputs."""
    step: TextStep = node.attributes["step"]
    match step:
        case Split():
            result, counts = node.outputs
            return structs.replace(step, value=node.inputs[0], result=result, counts=counts)
        case Append():
            value, end = node.inputs
            return structs.replace(step, value=value, end=end, result=node.outputs[0])
    return structs.replace(step, value=node.inputs[0], result=node.outputs[0])


def _view(source: Sequence[Expr], target: Sequence[Expr]) -> tuple[int, ...] | None:
    """A shape as a `View` gives it; None if more than one of its sizes is unknown."""
    sizes: list[int] = []
    for axis, size in enumerate(target):
        number = as_int(size)
        if number is not None:
            sizes.append(number)
        else:
            sizes.append(0 if axis < len(source) and source[axis] == size else -1)
    is_known = sizes.count(-1) <= 1 and all(as_int(size) != 0 for size in target)
    return tuple(sizes) if is_known else None
