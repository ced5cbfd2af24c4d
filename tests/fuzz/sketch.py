"""A graph while it is drawn: what an operator's description may ask for and add.

Every node is evaluated by the oracle as it is added, so all values are at hand: a description asks
for an input by what it must hold (`positive`, a rank, indices below a size), and gets one that the
graph computes already, or a new input or constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper

from tests.fuzz.graph import Array, FuzzGraph, captured
from tests.fuzz.oracle import run_node
from webmlc.graph.element_types import ELEMENT_TYPES

T = TypeVar("T")
SYMBOLS = {5: "n", 7: "m", 13: "k"}
"""Sizes that become symbolic where nothing constant holds them."""
SIZES = (2, 3, 1, 4, 5, 7, 6, 8, 13, 16, 17)
LARGE = (33, 64, 70)
LIMIT = 20_000
FLOATS = ("float32", "float16", "float64", "bfloat16")
INTEGERS = ("int64", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
DRAWN_DTYPES = ("float32",) * 8 + DTYPES
LARGEST = {"float16": 3e3, "float32": 1e6, "float64": 1e6, "bfloat16": 1e6}


class Retry(Exception):
    """This node cannot be drawn here: a domain or a limit is left; the graph stays as it was."""


class Sketch:
    """The graph so far, and the draws."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], opset: int) -> None:
        self._draw, self.opset = draw, opset
        self.nodes: list[onnx.NodeProto] = []
        self.values: dict[str, Array] = {}
        self.inputs: list[str] = []
        self.constants: list[str] = []

    def choose(self, options: Sequence[T]) -> T:
        """Draw one of the choices; the first is the simplest."""
        chosen: T = self._draw(st.sampled_from(options))
        return chosen

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self._draw(st.integers(low, high)))

    def chance(self, percent: int) -> bool:
        """True so many times in a hundred; False is simpler."""
        return self.integer(0, 99) >= 100 - percent

    def generator(self) -> np.random.Generator:
        """Random numbers for the elements of an array."""
        return np.random.default_rng(self.integer(0, 2**16))

    def size(self) -> int:
        """A dimension."""
        if self.chance(4):
            return self.choose(LARGE)
        return 0 if self.chance(2) else self.choose(SIZES)

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """A shape of so many dimensions."""
        ranks = [r for r in (2, 1, 3, 4, 0, 5) if low <= r <= high] or [low]
        shape = tuple(self.size() for _ in range(self.choose(ranks)))
        if np.prod(shape) > LIMIT:
            raise Retry
        return shape

    def find(
        self, dtypes: Sequence[str], accept: Callable[[Array], bool] = lambda a: True
    ) -> str | None:
        """A value that the graph computes or takes already."""
        names = [n for n, a in self.values.items() if a.dtype.name in dtypes and accept(a)]
        recent = [n for n in reversed(names) if n not in self.constants][:6]
        return self.choose(recent) if recent and not self.chance(20) else None

    def value(
        self,
        dtypes: Sequence[str],
        low: int = 0,
        high: int = 4,
        within: tuple[float, float] = (-3, 3),
        limits: tuple[float, float] | None = None,
    ) -> str:
        """A value of one of these types and so many dimensions.

        A new one is `within` this range, one that is there must be within the `limits`.
        """
        least, most = limits or (-np.inf, np.inf)

        def accept(array: Array) -> bool:
            if not low <= array.ndim <= high:
                return False
            return array.size == 0 or bool((array >= least).all() and (array <= most).all())

        wanted = [d for d in DRAWN_DTYPES if d in dtypes] or list(dtypes)
        found = self.find(dtypes, accept)
        return found or self.new(self.choose(wanted), self.shape(low, high), within)

    def new(self, dtype: str, shape: Sequence[int], within: tuple[float, float] = (-3, 3)) -> str:
        """A new input or, now and then, constant, of numbers from this range."""
        if np.prod(shape) > LIMIT:
            raise Retry
        low, high = within
        rng = self.generator()
        if dtype == "bool":
            array: Array = rng.integers(0, 2, shape).astype(bool)
        elif "int" in dtype:
            low = max(low, 0) if dtype.startswith("u") else low
            array = rng.integers(int(np.ceil(low)), int(high), shape, endpoint=True)
        else:
            array = rng.uniform(low, high, shape)
            if self.chance(30):  # exact numbers: ties, equal elements
                array = np.clip(np.round(array * 2) / 2, low, high)
        array = np.asarray(array, dtype)
        return self.constant(array) if self.chance(30) else self.input(array)

    def input(self, array: Array) -> str:
        """A new input that holds this array."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.values[name] = array
        return name

    def constant(self, array: Any, dtype: Any = None) -> str:
        """A new constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(name)
        self.values[name] = np.asarray(array, dtype)
        return name

    def parameter(self, value: Any) -> str:
        """Integers that a node is told: a constant or, now and then, what only a run knows."""
        array = np.asarray(value, np.int64)
        return self.input(array) if self.chance(25) else self.constant(array)

    def indices(self, shape: Sequence[int], size: int, lowest: int | None = None) -> str:
        """Indices into a dimension of this size, negative ones included."""
        if size == 0 and np.prod(shape) > 0:
            raise Retry
        low = -size if lowest is None else lowest
        array = self.generator().integers(low, max(size, low + 1), shape)
        dtype = self.choose(("int64", "int32"))
        return self.constant(array, dtype) if self.chance(50) else self.input(array.astype(dtype))

    def array(self, name: str) -> Array:
        """The contents of a value."""
        return self.values[name]

    def node(
        self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node; raises `Retry` where the oracle cannot compute it, or not to finite numbers.

        Attributes that are None are left out.
        """
        start = sum(len(n.output) for n in self.nodes)
        names = tuple(f"v{start + i}" for i in range(outputs))
        given = {k: v for k, v in attributes.items() if v is not None}
        node = helper.make_node(op, inputs, names, domain=domain, **given)
        try:
            results = run_node(node, self.opset, self.values)
        except Exception as error:  # the oracles raise whatever they meet
            raise Retry from error
        if not domain and not self._keeps_types(node, results):
            raise Retry
        for array in results:
            if array.dtype.name not in KNOWN or array.size > LIMIT:
                raise Retry
            if array.dtype.name in LARGEST and array.size:
                with np.errstate(all="ignore"):
                    if not (np.abs(array) <= LARGEST[array.dtype.name]).all():
                        raise Retry
        self.nodes.append(node)
        self.values |= zip(names, results, strict=True)
        return names

    def _keeps_types(self, node: onnx.NodeProto, results: Sequence[Array]) -> bool:
        """False where the oracle leaves the operator's types (onnx.reference, now and then)."""
        schema = onnx.defs.get_schema(node.op_type, self.opset)
        bound = {
            formal.type_str: self.values[name].dtype
            for formal, name in zip(schema.inputs, node.input, strict=False)
            if name
        }
        return all(
            bound.get(formal.type_str, array.dtype) == array.dtype
            for formal, array in zip(schema.outputs, results, strict=False)
        )

    def finish(self) -> FuzzGraph:
        """The graph: what nothing reads is an output, and some of the rest."""
        read = {name for node in self.nodes for name in (*node.input, *captured(node))}
        made = [name for node in self.nodes for name in node.output]
        outputs = [n for n in made if n not in read or self.chance(10)]
        inputs = tuple(n for n in self.inputs if n in read)
        constants = tuple(n for n in self.constants if n in read)
        fixed = {size for name in constants for size in self.values[name].shape}
        fixed |= {int(i) for name in constants for i in _integers(self.values[name])}
        fixed |= {i for node in self.nodes for a in node.attribute for i in (*a.ints, a.i)}
        symbols = {s: n for s, n in SYMBOLS.items() if s not in fixed and -s not in fixed}
        return FuzzGraph(
            self.opset, tuple(self.nodes), inputs, constants, tuple(outputs), self.values, symbols
        )


KNOWN = frozenset(str(dtype) for dtype in ELEMENT_TYPES.values())


def _integers(array: Array) -> Array:
    return array.reshape(-1) if array.dtype.kind in "iu" else np.zeros(0, np.int64)
