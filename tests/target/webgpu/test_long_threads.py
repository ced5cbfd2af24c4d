"""No thread of a GPU kernel takes more loop iterations than its machine allows, however long rows
are: in operators along rows of 200,000 elements, and in the models that are measured.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import webmlc
from benchmarks.models import SHARED, named
from webmlc.core.machine import SOFTWARE
from webmlc.core.machine import WEBGPU as GPU
from webmlc.core.stages import ignore
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.loops.thread_iterations import longest_thread
from webmlc.package.emit_code import called_kernels
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.schedule.rules import find_match
from webmlc.target.bind_dimensions import bind_dimensions
from webmlc.target.targets import machine_of
from webmlc.target.webgpu.target import WEBGPU

LONG = 200_000
PRODUCTS_OF_SYMBOLIC_DEPTH = ("attention", "block product", "contraction")
"""The rules whose threads loop over a depth that is a symbol (`Rule.is_product`)."""

X, Y = "float[n,w] x", "float[n,w] y"
ROWS = {
    "Softmax": f"({X}) => ({Y}) {{ y = Softmax (x) }}",
    "LogSoftmax": f"({X}) => ({Y}) {{ y = LogSoftmax (x) }}",
    "Hardmax": f"({X}) => ({Y}) {{ y = Hardmax (x) }}",
    "Softmax of many rows": "(float[a,b,c,n,w] x) => (float[a,b,c,n,w] y) { y = Softmax (x) }",
    "rows between static axes": "(float[4,a,2,n,w] x) => (float[4,a,2,n,w] y) { y = Softmax (x) }",
    "planes": "(float[a,n,w,v] x) => (float[a,n,1,1] y) { y = GlobalLpPool <p = 2> (x) }",
    "norms of planes": "(float[a,n,h,w] x) => (float[a,n] y) "
    "{ y = ReduceL1 <keepdims = 0> (x, planes) }",
    "softmax of columns": "(float[w,n] x) => (float[w,n] y) { y = Softmax <axis = 0> (x) }",
    "softmax between": "(float[n,w,3] x) => (float[n,w,3] y) { y = Softmax <axis = 1> (x) }",
    "ArgMax": f"({X}) => (int64[n,1] y) {{ y = ArgMax <axis = 1> (x) }}",
    "ArgMin of columns": "(float[w,n] x) => (int64[1,n] y) { y = ArgMin <axis = 0> (x) }",
    "ReduceL2": f"({X}) => (float[n,1] y) {{ y = ReduceL2 (x, last) }}",
    "ReduceProd": f"({X}) => (float[n,1] y) {{ y = ReduceProd (x, last) }}",
    "ReduceLogSumExp": f"({X}) => (float[n,1] y) {{ y = ReduceLogSumExp (x, last) }}",
    "CumSum": f"({X}) => ({Y}) {{ y = CumSum (x, one) }}",
    "LayerNormalization": f"({X}, float[w] s) => ({Y}, float[n,1] m, float[n,1] d) "
    "{ y, m, d = LayerNormalization (x, s) }",
    "RMSNormalization": f"({X}, float[w] s) => ({Y}) {{ y = RMSNormalization (x, s) }}",
    "InstanceNormalization": "(float[1,n,w] x, float[n] s, float[n] b) => (float[1,n,w] y) "
    "{ y = InstanceNormalization (x, s, b) }",
    "GroupNormalization": "(float[n,4,w] x, float[4] s, float[4] b) => (float[n,4,w] y) "
    "{ y = GroupNormalization <num_groups = 2> (x, s, b) }",
    "MeanVarianceNormalization": "(float[n,2,w,3] x) => (float[n,2,w,3] y) "
    "{ y = MeanVarianceNormalization (x) }",
    "LpNormalization": f"({X}) => ({Y}) {{ y = LpNormalization <axis = 1> (x) }}",
    "LRN": "(float[n,w,2,2] x) => (float[n,w,2,2] y) { y = LRN <size = 5> (x) }",
    "DynamicQuantizeLinear": f"({X}) => (uint8[n,w] y, float s, uint8 z) "
    "{ y, s, z = DynamicQuantizeLinear (x) }",
    "GlobalMaxPool": "(float[n,2,w,3] x) => (float[n,2,1,1] y) { y = GlobalMaxPool (x) }",
    "Unique": "(float[w] x) => (float[k] y) { y = Unique (x) }",
    "Compress": f"({X}, bool[w] c) => (float[n,k] y) {{ y = Compress <axis = 1> (x, c) }}",
    "ScatterElements": f"({X}, int64[n,w] i, float[n,w] u) => ({Y}) "
    "{ y = ScatterElements <axis = 1> (x, i, u) }",
    "MatMul": f"({X}, float[w,8] z) => (float[n,8] y) {{ y = MatMul (x, z) }}",
    "a product and softmax": "(float[n,64] x, float[64,w] z) => (float[n,w] y) "
    "{ h = MatMul (x, z) y = Softmax (h) }",
    "a long convolution": "(float[1,2,w] x, float[3,2,70000] k) => (float[1,3,q] y) "
    "{ y = Conv (x, k) }",
    "a window of 262,144": "(float[1,2,512,512] x) => (float[1,2,1,1] y) "
    "{ y = MaxPool <kernel_shape = [512, 512]> (x) }",
}
"""Graphs whose rows, or windows, are long."""
FORMS = {"static": ("3", str(LONG)), "symbolic rows": ("n", str(LONG)), "symbolic": ("n", "w")}


def model_of(graph: str, n: str, w: str) -> onnx.ModelProto:
    """A model of rows with these sizes."""
    signature, _, body = graph.partition("{")
    sized = signature.replace("[n", f"[{n}").replace(",n", f",{n}").replace("[w", f"[{w}")
    sized = sized.replace(",w", f",{w}")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> g {sized}{{{body}')
    for name, value in (("last", [1]), ("one", 1), ("planes", [2, 3])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return model


def assert_bounded(model: onnx.ModelProto) -> None:
    """Check the threads of all kernels of a model that run on the GPU, on two kinds of adapters."""
    module = kernel_module(shared_graph(model, watch=ignore), WEBGPU, ignore)
    for kernel in called_kernels(module, WEBGPU)[0].values():
        named = name_dimensions(kernel)
        for adapter in (GPU, SOFTWARE):
            match = find_match(named.function, machine_of(named.function, adapter))
            if match.rule.name in PRODUCTS_OF_SYMBOLIC_DEPTH and kernel.symbols:
                continue
            scheduled = bind_dimensions(match.default_schedule().function, named.values)
            limit = match.machine.thread_iterations
            assert limit is not None
            assert longest_thread(scheduled) <= limit, (kernel.name, match.rule.name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ROWS)
def test_long_rows_are_shared(name: str, form: str) -> None:
    assert_bounded(model_of(ROWS[name], *FORMS[form]))


LIGHT = ["squeezenet", "shufflenet"] if (SHARED / "materialise.py").is_file() else []
"""Light models, for which that script makes weights."""


@pytest.mark.parametrize("name", ["digits", *LIGHT])
def test_measured_models_share_long_rows(name: str) -> None:
    """`python -m tests.target.webgpu.test_long_threads` checks all models that are measured."""
    assert_bounded(named()[name].make())


RNG = np.random.default_rng(0)
RUN = {
    "Softmax": {"x": RNG.standard_normal((2, LONG), np.float32)},
    "ArgMax": {"x": RNG.standard_normal((2, LONG), np.float32)},
    "LayerNormalization": {
        "x": RNG.standard_normal((2, LONG), np.float32),
        "s": RNG.standard_normal(LONG, np.float32),
    },
    "InstanceNormalization": {
        "x": RNG.standard_normal((1, 2, LONG), np.float32),
        "s": RNG.standard_normal(2, np.float32),
        "b": RNG.standard_normal(2, np.float32),
    },
}
"""Inputs of some of the graphs."""


@pytest.mark.parametrize("adapter", ["gpu", "software"])
@pytest.mark.parametrize("n, w", [("2", str(LONG)), ("n", "w")], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", RUN)
def test_long_rows_are_right(
    name: str, n: str, w: str, adapter: Literal["gpu", "software"], tmp_path: Path
) -> None:
    """The software GPU of the tests, llvmpipe, ends all loops of a thread after 65,535 iterations
    together: a thread that wrote a row would leave its end as it was.
    """
    model = model_of(ROWS[name], n, w)
    webmlc.build(model, tmp_path, target="webgpu", adapter=adapter)
    loaded = webmlc.load(tmp_path, device="webgpu")
    results = loaded.run(RUN[name])
    loaded.dispose()
    wanted = ReferenceEvaluator(model).run(None, RUN[name])
    for result, want in zip(results.values(), wanted, strict=True):
        np.testing.assert_allclose(result, want, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("rows, length", [(1, 40_000), (9, 33), (70, 700), (12, 20_000), (0, 5)])
def test_rows_of_any_number_and_length_in_one_package(rows: int, length: int) -> None:
    """On software adapters, each of many short rows has a thread; other rows have workgroups."""
    x = RNG.standard_normal((rows, length), np.float32)
    result = software_softmax().run({"x": x})["y"]
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True, initial=-np.inf))
    np.testing.assert_allclose(result, wide / wide.sum(1, keepdims=True), rtol=1e-4, atol=1e-9)


@cache
def software_softmax() -> webmlc.Model:
    """A softmax along rows whose number and length a run decides, for software adapters."""
    with TemporaryDirectory() as folder:
        model = model_of(ROWS["Softmax"], "n", "w")
        webmlc.build(model, folder, target="webgpu", adapter="software")
        return webmlc.load(folder, device="webgpu")


if __name__ == "__main__":
    for name, source in named().items():
        print(name, flush=True)
        assert_bounded(source.make())
