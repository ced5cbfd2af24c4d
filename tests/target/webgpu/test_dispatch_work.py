"""The size of dispatches, what bounds them on classes of GPUs, and that layers of known networks
give every class enough to do.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.schedule.rules import kernels as k
from tests.schedule.test_cooperative_fetching import fetched
from webmlc.build_options import BuildOptions
from webmlc.core.adapters import ADAPTERS, H100, M2, Adapter
from webmlc.core.machine import SOFTWARE, WEBGPU, Machine
from webmlc.loops.count_work import count_work
from webmlc.loops.ir import LoopFunction
from webmlc.package.step_work import print_dispatches, step_work
from webmlc.pipeline import compile_model
from webmlc.schedule.rules import schedule_kernel
from webmlc.target.kernel_work import Kernel, KernelWork, kernel_work
from webmlc.target.targets import lower
from webmlc.target.webgpu.dispatch_work import DispatchWork, dispatch_work, estimate_time
from webmlc.target.webgpu.emit_shaders import emit_shaders

S = k.S
HEAD = '<ir_version: 8, opset_import: ["" : 18]> '


def compiled(function: LoopFunction, machine: Machine = WEBGPU) -> Kernel:
    """A kernel with its code."""
    lowered = lower(schedule_kernel(function, machine).function, machine)
    return Kernel(function, lambda: lowered)


@pytest.mark.parametrize(
    "function",
    [
        k.matmul(64, 64, 16),
        k.add(4, 16, 8),
        k.total(3, 1024, keep=1),
        k.convolution(9, 9, 3, 16, 3),
    ],
    ids=["matmul", "add", "row sums", "convolution"],
)
def test_invocations_are_those_that_the_shader_launches(function: LoopFunction) -> None:
    kernel = compiled(function)
    dispatch = dispatch_work(kernel.lowered(), {})
    shaders = emit_shaders({"kernel": kernel.lowered()})
    size = [int(n) for n in re.findall(r"@workgroup_size\(([^)]*)\)", shaders.text)[0].split(",")]
    counts = [int(str(count)) for count in shaders.entries["kernel"].workgroups]
    assert dispatch.workgroups == np.prod(counts)
    assert dispatch.invocations == np.prod(counts) * np.prod(size)
    shared = re.findall(r"var<workgroup> \w+: array<(?:f32|vec4f), ?(\d+)>", shaders.text)
    assert (dispatch.shared_bytes > 0) == bool(shared)


def test_threads_that_fetch_together_are_counted_once() -> None:
    lowered = lower(fetched_by_threads(), WEBGPU)
    work = count_work(lowered, {})
    written = {buffer.name: count for buffer, count in work.written.items()}
    assert written == {"A_shared": 4 * 4 * 64, "B": 4 * 4 * 64}
    assert work.flops == 4 * 64


def fetched_by_threads() -> LoopFunction:
    """A copy into workgroup memory that the threads of a workgroup share out."""
    schedule = fetched()
    schedule.bind(schedule.loops("A_shared")[-1], "threadIdx.x")
    return schedule.function


def test_bytes_are_divided_by_level() -> None:
    work = kernel_work(compiled(k.matmul(64, 64, 16, epilogue=False), SOFTWARE), {})
    steps = 64 * 64 * 16
    assert work.workgroup == 0
    assert work.registers > 4 * 2 * steps  # each multiply-add reads and writes its sum
    assert work.storage == work.moved < 4 * steps
    work = kernel_work(compiled(k.total(3, 1024, keep=1)), {})
    assert work.workgroup > 0


def dispatch(invocations: int) -> DispatchWork:
    return DispatchWork(-(-invocations // 64), invocations, 0, 32)


@pytest.mark.parametrize(
    ("work", "invocations", "adapter", "bound", "seconds"),
    [
        (KernelWork(executed=2**40), 2**20, M2, "compute", 2**40 / (2 * 1280 * 1.4e9)),
        (KernelWork(least=2**30), 2**20, M2, "memory", 2**30 / 100e9),
        (KernelWork(storage=2**36), 2**20, M2, "loads", 2**36 / (10 * 64 * 1.4e9)),
        (KernelWork(workgroup=2**36), 2**20, M2, "loads", 2**36 / (10 * 64 * 1.4e9)),
        (KernelWork(executed=2**20, least=2**16), 2**16, M2, "launch", 5e-6),
        (KernelWork(executed=2**40), 320, M2, "invocations", 2**42 / (2 * 1280 * 1.4e9)),
        (KernelWork(executed=2**40), 0, M2, "launch", 5e-6),
        (KernelWork(least=2**30), 2**20, H100, "memory", 2**30 / 3.35e12),
    ],
)
def test_the_slowest_resource_bounds_a_dispatch(
    work: KernelWork, invocations: int, adapter: Adapter, bound: str, seconds: float
) -> None:
    estimate = estimate_time(work, dispatch(invocations), adapter)
    assert (estimate.bound, estimate.seconds) == (bound, pytest.approx(seconds))


def test_published_rates_follow_from_the_figures() -> None:
    published = {"H100": 66.9, "M2": 3.6, "Adreno": 2.1, "Intel": 2.1}  # TFLOPS
    assert {a.name: a.flops / 1e12 for a in ADAPTERS} == pytest.approx(published, rel=0.02)


CONVOLUTIONS = {
    "3x3 of 64": (64, 64, 56, 3, 1, 1),
    "3x3 of 256": (256, 256, 14, 3, 1, 1),
    "3x3 of 512": (512, 512, 7, 3, 1, 1),
    "1x1 of 2048": (2048, 512, 7, 1, 1, 1),
    "depthwise of 960": (960, 960, 7, 3, 1, 960),
}
"""Layers of ResNet-50 and MobileNet-v2: channels in and out, size, kernel, stride,
groups."""
PRODUCTS = {"classes": (1, 2048, 1000), "down": (128, 1536, 384)}
"""Layers of ResNet-50 and MiniLM: rows, depth, columns."""


def layers() -> onnx.ModelProto:
    """A model whose outputs are the layers, each with an input of its own."""
    inputs, outputs, nodes, weights = [], [], [], {}
    rng = np.random.default_rng(0)

    def add(text: str, in_shape: list[int], out_shape: list[int], **constants: np.ndarray) -> None:
        number = len(nodes)
        names = {key: f"{key}{number}" for key in ("x", "y", *constants)}
        graph = parser.parse_graph(f"g (float{in_shape} x) => (float{out_shape} y) {{ {text} }}")
        for node in graph.node:
            node.name = f"layer{number}"
            node.input[:] = [names.get(i, f"{i}{number}") for i in node.input]
            node.output[:] = [names.get(o, f"{o}{number}") for o in node.output]
        nodes.extend(graph.node)
        weights.update({names[key]: array for key, array in constants.items()})
        kind = onnx.TensorProto.FLOAT
        inputs.append(helper.make_tensor_value_info(names["x"], kind, in_shape))
        outputs.append(helper.make_tensor_value_info(names["y"], kind, out_shape))

    for channels, filters, size, kernel, stride, groups in CONVOLUTIONS.values():
        pad, out = kernel // 2, size // stride
        add(
            f"y = Conv<pads=[{pad},{pad},{pad},{pad}], strides=[{stride},{stride}],"
            f" group={groups}>(x, w, b)",
            [1, channels, size, size],
            [1, filters, out, out],
            w=rng.standard_normal((filters, channels // groups, kernel, kernel), np.float32),
            b=rng.standard_normal(filters, np.float32),
        )
    for rows, depth, columns in PRODUCTS.values():
        w = rng.standard_normal((depth, columns), np.float32)
        add("y = MatMul(x, w)", [rows, depth], [rows, columns], w=w)
    add("y = GlobalAveragePool(x)", [1, 1280, 7, 7], [1, 1280, 1, 1])
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "layers", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_layers_have_enough_invocations_on_every_class() -> None:
    """No dispatch leaves half of a GPU idle unless it is too small for that to matter: the pause
    before the next dispatch is longer. The test takes some seconds, because it compiles layers of
    their real size.
    """
    parts = compile_model(layers(), BuildOptions("webgpu"))
    steps = step_work(parts, "webgpu", {})
    few = {
        (name, step.kernel, step.origin[-1:], step.dispatch)
        for step in steps
        for name, estimate in step.estimates.items()
        if estimate.bound == "invocations"
    }
    assert not few
    lines = print_dispatches(parts, {}).split("\n")
    assert len(lines) == len(steps) + 2 and lines[-1].strip().startswith("sum")
