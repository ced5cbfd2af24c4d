"""Regions: values that kernels write into, and read from, their places in larger values."""

from __future__ import annotations

import numpy as np
import pytest

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, Var, as_int, const
from webmlc.graph.ir import Function, Module, Node, Region, TensorType, print_function
from webmlc.loops.interp import run
from webmlc.loops.ir import LoopFunction
from webmlc.loops.kernel_form import CPU_FORM, GPU_FORM, KernelForm
from webmlc.loops.lower_module import lower_module
from webmlc.loops.verify import verify

N = Var("n")
WHOLE = (8, 3)
PART = (2, 3)
FORMS = pytest.mark.parametrize("form", [CPU_FORM, GPU_FORM])


def _type(shape: tuple[int, ...]) -> TensorType:
    return TensorType(DType.float32, tuple(map(const, shape)))


def _kernel(op: str, value: str, output: str) -> Node:
    """A fused node that maps a part element by element."""
    types = {value: _type(PART), output: _type(PART)}
    nodes = (Node(op, (value,), (output,)),)
    body = Function(op.lower(), (value,), (output,), nodes, types, {})
    return Node("fused", (value,), (output,), {"body": body}, "webmlc")


def _module(*rows: Expr) -> Module:
    """A module that writes a part of %y at each of these rows, and reads the first part again."""
    parts = {f"a{k}": Region("y", (row, const(0))) for k, row in enumerate(rows)}
    nodes = (*(_kernel("Relu", "x", part) for part in parts), _kernel("Neg", "a0", "z"))
    types = {v: _type(PART) for v in ("x", "z", *parts)} | {"y": _type(WHOLE)}
    main = Function("main", ("x",), ("y", "z"), nodes, types, {}, regions=parts)
    return Module("regions", {"main": main})


def _run(lowered: Module, node: Node, arrays: dict[str, np.ndarray], n: int) -> None:
    """Run the kernel of a call on arrays by value; a region has the array of its whole."""
    kernel: LoopFunction = lowered.kernels[node.attributes["kernel"]]
    verify(kernel)
    regions = lowered.main.regions
    arguments = {}
    for buffer, value in zip(kernel.params, (*node.inputs, *node.outputs), strict=True):
        array = arrays[regions[value].whole if value in regions else value]
        start = node.attributes.get("displacements", {}).get(buffer.name, 0) // array.itemsize
        shape = tuple(as_int(size) or 0 for size in buffer.shape)
        flat = array.reshape(-1)
        window = np.zeros(shape, array.dtype)
        window.reshape(-1)[: flat.size - start] = flat[start:]
        arguments[buffer.name] = (window, flat, start)
    run(kernel, {name: w for name, (w, _, _) in arguments.items()}, {"n": n})
    for window, flat, start in arguments.values():
        flat[start:] = window.reshape(-1)[: flat.size - start]


@FORMS
def test_a_part_is_written_and_read_at_a_place_that_a_run_decides(form: KernelForm) -> None:
    """An append: a row of %y that depends on a symbol."""
    lowered = lower_module(_module(N + 1), form)
    assert [kernel.symbols for kernel in lowered.kernels.values()] == [(N,), (N,)]
    x = np.random.default_rng(0).standard_normal(PART).astype(np.float32)
    arrays = {"x": x, "y": np.full(WHOLE, 7, np.float32), "z": np.zeros(PART, np.float32)}
    for node in lowered.main.nodes:
        assert "displacements" not in node.attributes
        _run(lowered, node, arrays, 4)
    expected = np.full(WHOLE, 7, np.float32)
    expected[5:7] = np.maximum(x, 0)
    assert np.array_equal(arrays["y"], expected)
    assert np.array_equal(arrays["z"], -expected[5:7])


@FORMS
def test_places_that_are_numbers_are_pointers_where_a_device_allows_it(form: KernelForm) -> None:
    lowered = lower_module(_module(const(2), const(6)), form)
    calls = lowered.main.nodes
    writers = {node.attributes["kernel"] for node in calls[:2]}
    displacements = [node.attributes.get("displacements") for node in calls]
    if form is CPU_FORM:
        assert writers == {"relu_put"}
        assert displacements == [{"out0": 24}, {"out0": 72}, {"in0": 24}]
    else:
        assert len(writers) == 2
        assert displacements == [None] * 3
    x = np.random.default_rng(0).standard_normal(PART).astype(np.float32)
    arrays = {"x": x, "y": np.zeros(WHOLE, np.float32), "z": np.zeros(PART, np.float32)}
    for node in calls:
        _run(lowered, node, arrays, 0)
    expected = np.zeros(WHOLE, np.float32)
    expected[2:4] = expected[6:8] = np.maximum(x, 0)
    assert np.array_equal(arrays["y"], expected)
    assert np.array_equal(arrays["z"], -expected[2:4])


def test_a_region_of_a_region_is_a_region_of_the_larger_whole() -> None:
    outer = Region("z", (N, const(2)))
    inner = Region.along(1, const(3), "y", rank=2)
    assert inner.within(outer) == Region("z", (N, const(5)))
    assert str(inner.within(outer).start((const(9), const(8)))) == "n * 8 + 5"


def test_the_text_of_a_function_shows_the_regions() -> None:
    text = print_function(_module(const(2)).main)
    assert "%a0: float32[2, 3] in %y[2, 0] = webmlc.fused(%x) {body=@relu}" in text
