"""Resolve every name of a model: each value has one name, and calls of local functions are nodes.

In: a model whose nodes are sorted. Out: a model without local functions, in which no two values
share a name, also not in different scopes. before → after:

    y = local.scaled <factor = 3.0> (x)             y/k = Constant <value_float = 3.0> ()
    scaled <factor = 2.0> (a) => (c) {         →    y = Mul (x, y/k)
      k = Constant <value_float = @factor> ()
      c = Mul (a, k) }

Values of the main graph keep their names. A value of a function is named after the call. A value of
a sub-graph gets another name only if its name is taken, because an outer value or a value of
another sub-graph has it. Inner names shadow outer names, as in any language with blocks.

An attribute of a function has the value of the call, else its default. If it has neither, the
attributes that refer to it are left out. A function may import another opset than the model. Its
nodes then keep their versions (`protos.keep_version`), which later passes read.

Raises `ModelError` if an input or an output has no name, if a node reads a name that nothing
writes, or if a name is written twice in one scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, helper

from webmlc.core.errors import ModelError
from webmlc.frontend.protos import (
    keep_version,
    kept_version,
    key_of,
    name_of,
    plain_domain,
    versions_of,
)


def resolve_names(model: ModelProto) -> ModelProto:
    """Return the model itself if all its names are resolved, else a changed copy."""
    graph = model.graph
    if not all(info.name for info in (*graph.input, *graph.output)):
        raise ModelError("an input or an output of the model has no name: export the model again")
    scope = _Scope()
    for name in (*(i.name for i in graph.input), *_initialisers(graph)):
        scope.names[name] = name
    scope.targets = {o: o for node in graph.node for o in node.output if o}
    resolver = _Resolver(model, {*scope.names, *scope.targets})
    nodes = resolver.nodes(graph.node, scope)
    for output in graph.output:
        scope.read(output.name, "the model returns")
    inputs, outputs = _distinct(graph.input), _distinct(graph.output)
    is_resolved = len(nodes) == len(graph.node) and all(map(_is_same, nodes, graph.node))
    if is_resolved and (len(inputs), len(outputs)) == (len(graph.input), len(graph.output)):
        return model
    result = ModelProto()
    result.CopyFrom(model)
    del result.functions[:], result.graph.node[:], result.graph.input[:], result.graph.output[:]
    result.graph.node.extend(nodes)
    result.graph.input.extend(inputs)
    result.graph.output.extend(outputs)
    return result


def _is_same(node: NodeProto, other: NodeProto) -> bool:
    return node is other


def _distinct(infos: Iterable[Any]) -> list[Any]:
    """Keep the first declaration of each name, because some exporters declare an input twice."""
    return list({info.name: info for info in reversed(list(infos))}.values())[::-1]


def _initialisers(graph: GraphProto) -> Iterator[str]:
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)


@dataclass(slots=True)
class _Scope:
    """The values that a list of nodes can read, by their names in this list.

    `written` are the names that the scope itself defines. `targets` maps the outputs of a function
    to the names that they must get: the output names of the call. `attributes` are the attributes
    of the function, or `None` outside functions. `versions` are the versions of the operators.
    `prefix` begins new names.
    """

    names: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    targets: dict[str, str] = field(default_factory=dict)
    attributes: Mapping[str, AttributeProto] | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    prefix: str = ""

    def inner(self) -> _Scope:
        """The scope of a sub-graph."""
        return _Scope(
            dict(self.names),
            attributes=self.attributes,
            versions=self.versions,
            prefix=self.prefix,
        )

    def read(self, name: str, reader: str) -> str:
        """The value of a name. `reader` begins the message about a name without a value."""
        if not name:
            return ""
        if name not in self.names:
            raise ModelError(f"{reader} {name!r}, but no node writes a value of this name")
        return self.names[name]


@dataclass(slots=True)
class _Call:
    """The nodes that are being resolved. The nodes of a function have `results`: for each output,
    its name in the function, and the value that it becomes.
    """

    nodes: Iterator[NodeProto]
    scope: _Scope
    results: Sequence[tuple[str, str]] = ()
    function: str = ""


class _Resolver:
    """A resolver with the functions of a model, and the names that values have so far."""

    def __init__(self, model: ModelProto, value_names: set[str]) -> None:
        self.functions = {(plain_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.versions = versions_of(model.opset_import)
        self.value_names = value_names
        self.counts: dict[str, int] = {}

    def nodes(self, nodes: Iterable[NodeProto], scope: _Scope) -> list[NodeProto]:
        """Resolve nodes. A node that needs no change is the same object.

        An explicit stack permits calls of any depth.
        """
        result: list[NodeProto] = []
        calls = [_Call(iter(nodes), scope)]
        while calls:
            call = calls[-1]
            node = next(call.nodes, None)
            if node is None:
                calls.pop()
                result += self.results(call)
            elif (function := self.functions.get(key_of(node))) is not None:
                calls.append(self.call(node, function, call.scope))
            else:
                result.append(self.node(node, call.scope))
        return result

    def call(self, node: NodeProto, function: FunctionProto, scope: _Scope) -> _Call:
        """Begin the nodes of a function."""
        label = repr(name_of(node))
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise ModelError(
                f"node {label} calls {function.name!r} with {len(node.input)} inputs and "
                f"{len(node.output)} outputs; the function has {len(function.input)} and "
                f"{len(function.output)}"
            )
        inputs = [scope.read(name, f"node {label} reads") for name in node.input]
        inputs += [""] * (len(function.input) - len(inputs))
        attributes = {a.name: a for a in self.attributes(node, scope)}
        outputs = [self.write(name, scope, label) for name in node.output]
        results = [(f, o) for f, o in zip(function.output, outputs, strict=False) if o]
        body = _Scope(
            dict(zip(function.input, inputs, strict=True)),
            attributes={a.name: a for a in function.attribute_proto} | attributes,
            versions=self.versions | versions_of(function.opset_import),
            prefix=f"{scope.prefix}{name_of(node)}/",
        )
        for formal, value in results:
            if formal not in body.names:
                body.targets.setdefault(formal, value)
        return _Call(iter(function.node), body, results, function.name)

    def results(self, call: _Call) -> Iterator[NodeProto]:
        """End the nodes of a function: copy each output that is an input, or that occurs twice."""
        for formal, value in call.results:
            source = call.scope.read(formal, f"function {call.function!r} returns")
            if not source:
                raise ModelError(
                    f"function {call.function!r} returns its input {formal!r}, which a call omits"
                )
            if source != value:
                yield helper.make_node("Identity", [source], [value])

    def node(self, node: NodeProto, scope: _Scope) -> NodeProto:
        """Resolve one node that calls no function."""
        label = repr(name_of(node))
        inputs = [scope.read(name, f"node {label} reads") for name in node.input]
        attributes = self.attributes(node, scope)
        outputs = [self.write(name, scope, label) for name in node.output]
        domain = plain_domain(node.domain)
        version = scope.versions.get(domain)
        is_foreign = version is not None and version != self.versions.get(domain)
        is_same = inputs == list(node.input) and outputs == list(node.output)
        is_same &= len(attributes) == len(node.attribute)
        is_same &= all(a is b for a, b in zip(attributes, node.attribute, strict=False))
        if is_same and not is_foreign and not scope.prefix:
            return node
        result = NodeProto(
            op_type=node.op_type,
            domain=node.domain,
            name=f"{scope.prefix}{node.name}" if node.name else "",
            input=inputs,
            output=outputs,
            attribute=attributes,
        )
        if is_foreign and version is not None:
            keep_version(result, version)
        elif (kept := kept_version(node)) is not None:
            keep_version(result, kept)
        return result

    def attributes(self, node: NodeProto, scope: _Scope) -> list[AttributeProto]:
        """The attributes of a node, without references to attributes of a function."""
        attributes = (self.attribute(attribute, scope) for attribute in node.attribute)
        return [attribute for attribute in attributes if attribute is not None]

    def attribute(self, attribute: AttributeProto, scope: _Scope) -> AttributeProto | None:
        """An attribute without references; `None` if it refers to an attribute without a value."""
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        if not attribute.ref_attr_name and not graphs:
            return attribute
        result = AttributeProto()
        if attribute.ref_attr_name and scope.attributes is not None:
            value = scope.attributes.get(attribute.ref_attr_name)
            if value is None:
                return None
            result.CopyFrom(value)
            result.name = attribute.name
            return result
        resolved = [self.graph(graph, scope) for graph in graphs]
        is_same = all(a is b for a, b in zip(resolved, graphs, strict=True))
        if not attribute.ref_attr_name and is_same:
            return attribute
        result.CopyFrom(attribute)
        result.ClearField("ref_attr_name")  # outside functions, it refers to nothing
        if attribute.HasField("g"):
            result.g.CopyFrom(resolved[0])
        elif resolved:
            del result.graphs[:]
            result.graphs.extend(resolved)
        return result

    def graph(self, graph: GraphProto, outer: _Scope) -> GraphProto:
        """Resolve a sub-graph."""
        scope = outer.inner()
        inputs = [self.write(i.name, scope, "the graph") for i in graph.input]
        initialisers = list(_initialisers(graph))
        if not all(initialisers):
            raise ModelError(f"a constant of graph {graph.name!r} has no name: export it again")
        for name in dict.fromkeys(initialisers):
            if name not in scope.written:
                self.write(name, scope, "the graph")
        nodes = self.nodes(graph.node, scope)
        outputs: list[str] = []
        for output in graph.output:
            value = scope.read(output.name, f"graph {graph.name!r} returns")
            if output.name not in scope.written or value in outputs:
                source, value = value, self.unique(f"{output.name}/result")
                nodes.append(helper.make_node("Identity", [source], [value]))
            outputs.append(value)
        names = [scope.names[name] for name in initialisers]
        is_same = inputs == [i.name for i in graph.input] and names == initialisers
        is_same &= outputs == [o.name for o in graph.output] and len(nodes) == len(graph.node)
        if is_same and all(map(_is_same, nodes, graph.node)):
            return graph
        result = GraphProto()
        result.CopyFrom(graph)
        del result.node[:], result.value_info[:]
        result.node.extend(nodes)
        tensors = [*result.initializer, *(s.values for s in result.sparse_initializer)]
        for message, name in zip(
            (*result.input, *tensors, *result.output), (*inputs, *names, *outputs), strict=True
        ):
            message.name = name
        return result

    def write(self, name: str, scope: _Scope, writer: str) -> str:
        """Define a value that `writer` writes in a scope, and return its name."""
        if not name:
            return ""
        if name in scope.written:
            raise ModelError(f"the value {name!r} is written twice in one graph, also by {writer}")
        scope.written.add(name)
        value = scope.targets.pop(name, None) or self.unique(f"{scope.prefix}{name}")
        scope.names[name] = value
        return value

    def unique(self, name: str) -> str:
        """The name, or one derived from it if another value has this name."""
        unique, count = name, self.counts.get(name, 1)
        while unique in self.value_names:
            count += 1
            unique = f"{name}_{count}"
        self.counts[name] = count
        self.value_names.add(unique)
        return unique
