"""The strategy: a random valid graph, with inputs.

@given(graphs())
def test(graph: FuzzGraph) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import onnx
from hypothesis import assume
from hypothesis import strategies as st
from onnx import helper

from tests.fuzz.graph import FuzzGraph, element_type
from tests.fuzz.operators import Describe, drawable
from tests.fuzz.sketch import Retry, Sketch

OPSETS = (21, 25, 18, 28)
TRIES = 4
"""Draws of another node before a place in the graph is given up."""


@st.composite
def graphs(
    draw: Callable[[st.SearchStrategy[Any]], Any], operators: tuple[str, ...] = (), most: int = 12
) -> FuzzGraph:
    """1 to `most` nodes; of these operators only, where any are named."""
    sketch = Sketch(draw, draw(st.sampled_from(OPSETS)))
    found = _drawable(sketch.opset)
    names = tuple(n for n in found if not operators or n in operators)
    assume(names)
    for _ in range(most):
        if not draw(_steps(sketch, found, names)):
            break
    assume(sketch.nodes)
    graph = sketch.finish()
    assume(graph.inputs)
    assume(_is_valid(graph))
    return graph


def _is_valid(graph: FuzzGraph) -> bool:
    """True where onnx checks and infers it. Its inference ends the process where it reads a window
    that is not there, or a type of what an operator of another domain makes: those it is told.
    """
    inferable = not any(n.op_type == "STFT" and "" in n.input for n in graph.nodes)
    others = [o for n in graph.nodes if n.domain for o in n.output if o]
    try:
        model = graph.to_model()
        model.graph.value_info.extend(
            helper.make_tensor_value_info(name, element_type(graph.values[name]), None)
            for name in others
            if name not in graph.outputs
        )
        onnx.checker.check_model(model, full_check=inferable)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


@cache
def _drawable(opset: int) -> dict[str, Describe]:
    return drawable(opset)


@st.composite
def _steps(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    sketch: Sketch,
    found: dict[str, Describe],
    names: tuple[str, ...],
) -> bool:
    """Add a node; False where it is the last. A strategy, so that hypothesis can leave it out."""
    more = draw(st.integers(0, 99)) >= 15
    for _ in range(TRIES):
        before = dict(sketch.values), list(sketch.inputs), list(sketch.constants)
        try:
            found[sketch.choose(names)](sketch)
            break
        except Retry:
            sketch.values, sketch.inputs, sketch.constants = before
    return bool(more)
