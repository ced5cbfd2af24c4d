"""Random models with symbolic sizes, and inputs that fit them and that do not.

In: a seed. Out: a `Subject`: forms of one graph, the most general one first, and the inputs of
several runs. In the most general form every dimension of every input is a symbol of its own, and
some constants (indices, shapes, axes) are inputs; a compiler may refuse that, so others follow.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.graph import FuzzGraph, element_type
from tests.fuzz.operators import Describe, drawable
from tests.fuzz.sizes.inputs import Feeds, runs_of
from tests.fuzz.sketch import Retry, Sketch

T = TypeVar("T")
OPSETS = (21, 18, 23)
RUNS = 16
"""Runs of one model: a case of the fuzzer is one run."""
MOST_NODES = 3
TRIES = 30
LONG_CONSTANT = re.compile(r"\{[^{}]{200,}\}")


class RandomSketch(Sketch):
    """A sketch that draws from a random number generator: a seed gives the same graph each time."""

    def __init__(self, choice: random.Random, opset: int) -> None:
        super().__init__(_no_strategy, opset)
        self.random = choice

    def choose(self, options: Sequence[T]) -> T:
        """Draw one of the choices."""
        return self.random.choice(options)

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.random.randint(low, high)


def _no_strategy(_: Any) -> Any:
    raise AssertionError("a random sketch draws from no strategy")


@dataclass(frozen=True, slots=True)
class Form:
    """A graph as a model: `inputs` and the symbol of each of their dimensions."""

    graph: FuzzGraph
    inputs: tuple[str, ...]
    symbols: dict[tuple[str, int], str]

    def to_model(self) -> onnx.ModelProto:
        """The ONNX model; raises `onnx.checker.ValidationError` where the checker refuses it."""
        graph = self.graph
        constants = [n for n in (*graph.inputs, *graph.constants) if n not in self.inputs]
        model = graph.to_model()
        del model.graph.input[:], model.graph.initializer[:]
        model.graph.initializer.extend(
            numpy_helper.from_array(graph.values[name], name) for name in constants
        )
        for name in self.inputs:
            array = graph.values[name]
            shape = [self.symbols.get((name, axis), n) for axis, n in enumerate(array.shape)]
            info = helper.make_tensor_value_info(name, element_type(array), shape)
            model.graph.input.append(info)
        if self.symbols:
            _forget_sizes(model.graph.node)
        onnx.checker.check_model(model)
        return model


def _forget_sizes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Remove the sizes that bodies declare: those of a run may be others."""
    for body in (a.g for node in nodes for a in node.attribute if a.HasField("g")):
        for info in (*body.input, *body.output):
            for dimension in info.type.tensor_type.shape.dim:
                dimension.Clear()
        _forget_sizes(body.node)


@dataclass(frozen=True, slots=True)
class Subject:
    """A graph under test: its forms, and a seed for the inputs of its runs."""

    name: str
    forms: tuple[Form, ...]

    def runs(self, form: Form) -> list[Feeds]:
        """The inputs of each run: the first and the last are those that the graph was drawn for."""
        drawn = {name: form.graph.values[name] for name in form.inputs}
        middle = runs_of(drawn, form.symbols, random.Random(f"{self.name} inputs"), RUNS - 2)
        return [drawn, *middle, drawn]


@cache
def _drawable(opset: int) -> dict[str, Describe]:
    return drawable(opset)


def operators() -> list[str]:
    """Every operator that can be drawn."""
    return sorted({name for opset in OPSETS for name in _drawable(opset)})


def draw_subject(seed: int, number: int, only: Sequence[str] = ()) -> Subject | None:
    """The graph of this number: of the operators in turn, each with others before or after it.

    None where no try gave a valid graph.
    """
    name = f"{seed}:{number}"
    choice = random.Random(name)
    names = [o for o in operators() if not only or o in only]
    order = random.Random(f"{seed} {number // len(names)}").sample(names, len(names))
    target = order[number % len(names)]
    for _ in range(TRIES):
        graph = _draw_graph(choice, target)
        if graph is not None and (forms := tuple(_forms(graph, choice))):
            return Subject(name, forms)
    return None


def _draw_graph(choice: random.Random, target: str) -> FuzzGraph | None:
    """The target, and now and then nodes before and after it."""
    opset = choice.choice([o for o in OPSETS if target in _drawable(o)])
    described = _drawable(opset)
    others = [choice.choice(list(described)) for _ in range(MOST_NODES - 1)]
    count = choice.choice((0, 0, 0, 1, 1, 2))
    place = choice.randint(0, count)
    sketch = RandomSketch(choice, opset)
    for name in (*others[:place], target, *others[place:count]):
        before = dict(sketch.values), list(sketch.inputs), list(sketch.constants)
        try:
            described[name](sketch)
        except Retry:
            sketch.values, sketch.inputs, sketch.constants = before
            if name == target:
                return None
    graph = sketch.finish()
    return graph if graph.inputs or graph.constants else None


def _forms(graph: FuzzGraph, choice: random.Random) -> Iterator[Form]:
    """Forms of a graph, from the one that runs decide most about."""
    promoted = tuple(c for c in graph.constants if choice.random() < 0.6)
    everything = (*graph.inputs, *promoted)
    own = {place: f"d{i}" for i, place in enumerate(_places(graph, everything))}
    some = {place: name for place, name in own.items() if choice.random() < 0.5}
    shared = {p: graph.symbols[n] for p, n in _sizes(graph) if n in graph.symbols}
    for inputs, symbols in (
        (everything, own),
        (everything, some),
        (graph.inputs, own),
        (graph.inputs, some),
        (graph.inputs, shared),
        (graph.inputs, {}),
    ):
        kept = {place: name for place, name in symbols.items() if place[0] in inputs}
        form = Form(graph, inputs, kept)
        if inputs and _is_valid(form):
            yield form


def _is_valid(form: Form) -> bool:
    try:
        form.to_model()
    except (onnx.checker.ValidationError, ValueError):
        return False
    return True


def _places(graph: FuzzGraph, inputs: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, axis) for name in inputs for axis in range(graph.values[name].ndim)]


def _sizes(graph: FuzzGraph) -> list[tuple[tuple[str, int], int]]:
    places = _places(graph, graph.inputs)
    return [((name, axis), graph.values[name].shape[axis]) for name, axis in places]


def text_of(model: onnx.ModelProto, feeds: Feeds) -> str:
    """A model and the inputs of a run, as text; the numbers of long constants are left out."""
    lines = [LONG_CONSTANT.sub("{...}", onnx.printer.to_text(model))]
    with np.printoptions(threshold=24, edgeitems=10, floatmode="unique", linewidth=100):
        lines += [f"{name} = {a.reshape(-1)!r}.reshape{a.shape}" for name, a in feeds.items()]
    return "\n".join(lines)
