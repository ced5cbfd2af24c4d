"""Operators of people's own that are kernels, or that have schedules of their own."""

# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import webmlc
from tests.programs.test_operators import (
    DOMAIN,
    TARGETS,
    bend,
    custom,
    extremes,
    model_of,
    run,
    smear,
    smeared,
)
from webmlc import T, operator, te, tir
from webmlc.core.errors import UnsupportedError, UserError
from webmlc.core.machine import Device
from webmlc.graph.compute import Tensor

Array = np.ndarray[Any, Any]
n, m = T.symbol("n"), T.symbol("m")


@operator(DOMAIN, "Mix")
@webmlc.kernel
def mix(
    A: T.Buffer((n, 8), "float32"),
    B: T.Buffer((n, 8), "float32"),
    S: T.Buffer((1,), "float32"),
    low: T.Buffer((n, 8), "float32"),
    total: T.Buffer((n,), "float32"),
):
    for i, j in T.grid(n, 8):
        with T.block("low"):
            vi, vj = T.axis.remap("SS", [i, j])
            low[vi, vj] = T.min(A[vi, vj], B[vi, 7 - vj]) * S[0]
    for i, k in T.grid(n, 8):
        with T.block("total"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                total[vi] = T.float32(0)
            total[vi] = total[vi] + low[vi, vk]


def mixed(a: Array, b: Array, s: float) -> tuple[Array, Array]:
    low = np.minimum(a, b[:, ::-1]) * np.float32(s)
    return low, low.sum(1)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_of_symbolic_sizes_between_nodes(target: Device, tmp_path: Path) -> None:
    """The rows of the model have the name of a loop of the kernel."""
    nodes = [
        helper.make_node("Neg", ["a"], ["x"]),
        custom("Mix", ["x", "b", "s"], ["low", "total"]),
        helper.make_node("Relu", ["low"], ["y"]),
    ]
    inputs = {"a": ["i", 8], "b": ["i", 8], "s": [1]}
    model = model_of(nodes, inputs, ["y", "total"])
    a, b = random(5, 8), random(5, 8, seed=1)
    outputs, _ = run(model, tmp_path, target, {"a": a, "b": b, "s": np.float32([2])}, mix)
    low, total = mixed(-a, b, 2)
    np.testing.assert_allclose(outputs["y"], np.maximum(low, 0), rtol=1e-6)
    np.testing.assert_allclose(outputs["total"], total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_takes_one_value_twice_and_a_number(target: Device, tmp_path: Path) -> None:
    """Nothing reads the first result, and the scale is a constant of the model."""
    model = model_of(
        [custom("Mix", ["a", "a", "s"], ["", "total"])],
        {"a": [3, 8]},
        ["total"],
        {"s": np.float32([0.5])},
    )
    a = random(3, 8)
    outputs, _ = run(model, tmp_path, target, {"a": a}, mix)
    np.testing.assert_allclose(outputs["total"], mixed(a, a, 0.5)[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_reads_and_writes_parts_of_values(target: Device, tmp_path: Path) -> None:
    """Concat is computed in place, so the results of the kernel are parts of a larger value."""
    nodes = [
        helper.make_node("Exp", ["a"], ["e"]),
        custom("Mix", ["e", "b", "s"], ["low", "total"]),
        helper.make_node("Concat", ["e", "low"], ["y"], axis=0),
    ]
    model = model_of(nodes, {"a": ["r", 8], "b": ["r", 8], "s": [1]}, ["y"])
    a, b = random(4, 8), random(4, 8, seed=1)
    outputs, _ = run(model, tmp_path, target, {"a": a, "b": b, "s": np.float32([2])}, mix)
    low, _ = mixed(np.exp(a), b, 2)
    np.testing.assert_allclose(outputs["y"], np.concatenate([np.exp(a), low]), rtol=1e-5)


@operator(DOMAIN, "Shifted")
def shifted(x: te.Tensor, *, by: int = 1) -> tir.PrimFunc:
    @webmlc.kernel
    def shifted(X: T.Buffer((n, m), "float32"), Y: T.Buffer((n, m), "float32")):
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[vi, T.max(vj - by, 0)]

    return shifted


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_returns_a_kernel_for_its_attributes(target: Device, tmp_path: Path) -> None:
    nodes = [custom("Shifted", ["x"], ["y"], by=2), custom("Shifted", ["y"], ["z"])]
    model = model_of(nodes, {"x": ["rows", 6]}, ["z"])
    x = random(3, 6)
    outputs, _ = run(model, tmp_path, target, {"x": x}, shifted)
    columns = np.maximum(np.maximum(np.arange(6) - 1, 0) - 2, 0)
    np.testing.assert_array_equal(outputs["z"], x[:, columns])


@operator(DOMAIN, "Scaled")
@webmlc.kernel
def scaled(X: T.Buffer((n,), "int64"), S: T.Buffer((2,), "int64"), Y: T.Buffer((n,), "int64")):
    for i in range(n):
        with T.block("Y"):
            vi = T.axis.spatial(n, i)
            Y[vi] = X[vi] * S[0] + S[1]


@operator(DOMAIN, "Next")
@webmlc.kernel
def following(X: T.Buffer((n,), "float16"), Y: T.Buffer((n,), "float16")):
    for i in range(n):
        with T.block("Y"):
            vi = T.axis.spatial(n, i)
            Y[vi] = X[vi] + T.float16(1)


def typed_model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], output: int
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, *type_) for name, type_ in inputs.items()]
    result = helper.make_tensor_value_info("y", output, None)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "typed", infos, [result])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_reads_the_sizes_of_a_tensor(target: Device, tmp_path: Path) -> None:
    """The sizes have no buffer: they are symbols."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), custom("Scaled", ["v", "s"], ["y"])]
    types = {"x": (TensorProto.FLOAT, ["a", "b"]), "v": (TensorProto.INT64, ["c"])}
    feeds = {"x": random(3, 4), "v": np.arange(5)}
    outputs, _ = run(typed_model(nodes, types, TensorProto.INT64), tmp_path, target, feeds, scaled)
    np.testing.assert_array_equal(outputs["y"], np.arange(5) * 3 + 4)


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_of_halves_between_floats(target: Device, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        custom("Next", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    model = typed_model(nodes, {"x": (TensorProto.FLOAT16, ["k"])}, TensorProto.FLOAT16)
    x = np.arange(5, dtype=np.float16)
    webmlc.build(model, tmp_path, target, operators=[following], adapter="all", progress=False)
    loaded = webmlc.load(tmp_path, device=target)
    np.testing.assert_array_equal(loaded.run({"x": x})["y"], x - 1)
    loaded.dispose()


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_in_the_body_of_a_loop(target: Device, tmp_path: Path) -> None:
    def info(name: str, kind: int, shape: Any = None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, [])]
    inputs.append(info("p", TensorProto.FLOAT))
    outputs = [info("d", TensorProto.BOOL, []), info("q", TensorProto.FLOAT)]
    inner = [custom("Shifted", ["p"], ["q"]), helper.make_node("Identity", ["c"], ["d"])]
    body = helper.make_graph(inner, "body", inputs, outputs)
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    types = {"x": (TensorProto.FLOAT, ["r", 6]), "trips": (TensorProto.INT64, [])}
    x = random(2, 6)
    feeds = {"x": x, "trips": np.array(2)}
    model = typed_model([node], types, TensorProto.FLOAT)
    results, _ = run(model, tmp_path, target, feeds, shifted)
    np.testing.assert_array_equal(results["y"], x[:, np.maximum(np.arange(6) - 2, 0)])


def test_a_kernel_has_no_gradient(tmp_path: Path) -> None:
    domain = "ai.onnx.preview.training"
    gradient = helper.make_node("Gradient", ["x"], ["dx"], domain=domain, xs=["x"], y="y")
    model = model_of([custom("Shifted", ["x"], ["y"]), gradient], {"x": [3, 4]}, ["dx"])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(UnsupportedError, match=r"Shifted .*does not know its derivative"):
        webmlc.build(model, tmp_path, operators=[shifted], progress=False)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": [4, 8], "b": [5, 8], "s": [1]}, r"takes float32\[n, 8\] for B, where n is 4, not"),
        ({"a": [4, 7], "b": [4, 7], "s": [1]}, r"takes float32\[n, 8\] for A, where n is 4, not"),
        ({"a": [4, 8, 1], "b": [4, 8], "s": [1]}, r"takes float32\[n, 8\] for A, not"),
    ],
)
def test_types_that_do_not_fit_a_kernel_are_one_message(
    inputs: dict[str, list[Any]], message: str, tmp_path: Path
) -> None:
    node = custom("Mix", ["a", "b", "s"], ["low", "total"], name="mixer")
    model = model_of([node], inputs, ["total"])
    with pytest.raises(UnsupportedError, match=rf"node 'mixer'\): its kernel {message}"):
        webmlc.build(model, tmp_path, operators=[mix], progress=False)


def test_sizes_that_a_run_decides_are_checked(tmp_path: Path) -> None:
    node = custom("Mix", ["a", "b", "s"], ["low", "total"])
    model = model_of([node], {"a": ["p", 8], "b": ["q", 8], "s": [1]}, ["total"])
    feeds = {"a": random(3, 8), "b": random(4, 8), "s": np.float32([1])}
    with pytest.raises(UserError, match=r"3.*4"):
        run(model, tmp_path, "wasm", feeds, mix)


def test_an_input_decides_each_symbol_of_a_kernel() -> None:
    @webmlc.kernel
    def halves(X: T.Buffer((n * 2,), "float32"), Y: T.Buffer((n,), "float32")):
        for i in range(n):
            with T.block("Y"):
                vi = T.axis.spatial(n, i)
                Y[vi] = X[vi]

    with pytest.raises(UserError, match=r"com\.example\.Halves: no dimension of an input is n"):
        operator(DOMAIN, "Halves")(halves)


def test_a_function_of_a_kernel_says_so(tmp_path: Path) -> None:
    silent = operator(DOMAIN, "Mix")(lambda a: mix.function)
    model = model_of([custom("Mix", ["a"], ["y"])], {"a": [4, 8]}, ["y"])
    with pytest.raises(UnsupportedError, match=r"annotate it, -> tir\.PrimFunc"):
        webmlc.build(model, tmp_path, operators=[silent], progress=False)


# -- schedules -------------------------------------------------------------------------------------


def fresh(original: Any) -> Any:
    """The same operator without schedules."""
    return operator(original.row.domain, original.row.name)(original.function)


def on_threads(block: str) -> Any:
    def schedule(schedule: tir.Schedule) -> None:
        first, *_ = schedule.get_loops(block)
        outer, inner = schedule.split(first, [None, 32])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")

    return schedule


@pytest.mark.parametrize("target", TARGETS)
def test_a_schedule_of_an_expression(target: Device, tmp_path: Path) -> None:
    """The kernel has the loops of its schedule, and is fused with no other node."""
    own = fresh(smear)
    calls: list[str] = []

    @own.schedule("wasm")
    def by_hand(schedule: tir.Schedule) -> None:
        calls.append(str(schedule))
        schedule.parallel(schedule.get_loops("smear")[0])

    own.schedule("webgpu")(on_threads("smear"))
    nodes = [custom("Smear", ["x"], ["s"], width=4), helper.make_node("Relu", ["s"], ["y"])]
    model = model_of(nodes, {"x": ["n", 7]}, ["y"])
    x = random(70, 7)
    outputs, loaded = run(model, tmp_path, target, {"x": x}, own)
    assert [step.kernel for step in loaded.program.steps] == ["smear", "relu"]
    assert {step.device for step in loaded.program.steps} == {target}
    assert (target == "wasm") == any("x[v_i" in text for text in calls)
    np.testing.assert_allclose(outputs["y"], np.maximum(smeared(x, 4), 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_a_schedule_of_a_kernel_with_a_long_sum(target: Device, tmp_path: Path) -> None:
    """Without its first values, a long sum looks as if its updates had to run in order."""

    @operator(DOMAIN, "Sums")
    @webmlc.kernel
    def sums(X: T.Buffer((n, 2048), "float32"), Y: T.Buffer((n,), "float32")):
        for i, k in T.grid(n, 2048):
            with T.block("Y"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    Y[vi] = T.float32(0)
                Y[vi] = Y[vi] + X[vi, vk]

    def schedule(schedule: tir.Schedule) -> None:
        on_threads("Y")(schedule)
        schedule.decompose_reduction("Y", schedule.get_loops("Y")[-1])

    sums.schedule("webgpu")(schedule)
    model = model_of([custom("Sums", ["x"], ["y"])], {"x": [40, 2048]}, ["y"])
    x = random(40, 2048)
    outputs, loaded = run(model, tmp_path, target, {"x": x}, sums)
    assert [step.device for step in loaded.program.steps] == [target]
    np.testing.assert_allclose(outputs["y"], x.sum(1), rtol=1e-4, atol=1e-3)


def test_an_operator_with_a_schedule_keeps_its_gradient(tmp_path: Path) -> None:
    own = fresh(bend)

    @own.schedule("wasm")
    def by_hand(schedule: tir.Schedule) -> None:
        schedule.parallel(schedule.get_loops("bend")[0])

    domain = "ai.onnx.preview.training"
    gradient = helper.make_node("Gradient", ["x"], ["dx"], domain=domain, xs=["x"], y="y")
    model = model_of([custom("Bend", ["x"], ["y"]), gradient], {"x": [4]}, ["y", "dx"])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    x = np.float32([-2, 0.25, 0.9, 3])
    outputs, _ = run(model, tmp_path, "wasm", {"x": x}, own)
    np.testing.assert_allclose(outputs["dx"], np.where(x > 1, 1, 0.5))
    np.testing.assert_allclose(outputs["y"], np.where(x > 1, x, 0.5 * x))


def test_a_refused_step_names_the_operator(tmp_path: Path) -> None:
    own = fresh(extremes)

    @own.schedule("wasm")
    def by_hand(schedule: tir.Schedule) -> None:
        schedule.parallel(schedule.get_loops("low")[-1])

    model = model_of([custom("Extremes", ["x"], ["low", "high"])], {"x": [4, 4]}, ["low"])
    with pytest.raises(UserError, match=r"the schedule of com\.example\.Extremes for wasm: "):
        webmlc.build(model, tmp_path, operators=[own], progress=False)


def test_a_schedule_for_a_gpu_binds_loops(tmp_path: Path) -> None:
    own = fresh(smear)

    @own.schedule("webgpu")
    def by_hand(schedule: tir.Schedule) -> None:
        schedule.unroll(schedule.get_loops("smear")[-1])

    model = model_of([custom("Smear", ["x"], ["y"])], {"x": [4, 4]}, ["y"])
    with pytest.raises(UserError, match=r"of com\.example\.Smear for webgpu: .*binds no loop"):
        webmlc.build(model, tmp_path, "webgpu", operators=[own], progress=False)
    with pytest.raises(UserError, match="unknown target 'cuda'"):
        own.schedule("cuda")


# -- indices ---------------------------------------------------------------------------------------


def test_an_index_outside_a_tensor_is_refused(tmp_path: Path) -> None:
    @operator(DOMAIN, "Next")
    def following(x: Tensor) -> Tensor:
        return te.compute(x.shape, lambda i: x[i + 1], name="following")

    @operator(DOMAIN, "Pick")
    def pick(x: Tensor, places: Tensor) -> Tensor:
        return te.compute(places.shape, lambda i: x[te.cast(places[i], "int32")], name="pick")

    model = model_of([custom("Next", ["x"], ["y"], name="after")], {"x": ["n"]}, ["y"])
    with pytest.raises(UnsupportedError, match=r"node 'after'\): .*may be outside x"):
        webmlc.build(model, tmp_path, operators=[following], progress=False)
    model = model_of([custom("Pick", ["x", "p"], ["y"])], {"x": [4], "p": [3]}, ["y"])
    with pytest.raises(UnsupportedError, match=r"may be outside x: dimension 0 has 4 elements"):
        webmlc.build(model, tmp_path, operators=[pick], progress=False)
