"""Test that kernels that one dispatch cannot compute are cut between blocks, with the same
results.
"""

from __future__ import annotations

import numpy as np

from tests.graph.graphs import module
from webmlc.core.machine import WEBGPU
from webmlc.graph.fuse.fuse import fuse
from webmlc.graph.fuse.fusion_limits import FusionLimits
from webmlc.graph.ir import Module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.loops.interp import run
from webmlc.loops.kernel_form import GPU_FORM
from webmlc.loops.lower_module import lower_module
from webmlc.loops.verify import verify
from webmlc.schedule.rules import choose_rule
from webmlc.target.split_kernels import fits_dispatch, split_kernels

CENTRED = """g (float[3,4] x) => (float[3,4] y) {
    m = ReduceMean<axes = [0, 1], keepdims = 1>(x)
    y = Sub(x, m)
}"""
NORMALISED = """g (float[5,8] x, float[5,8] s, float[5,8] b) => (float[5,8] y) {
    y = LayerNormalization<axis = 0>(x, s, b)
}"""


def _lowered(text: str) -> Module:
    """The kernels of a model, lowered for the GPU."""
    return lower_module(fuse(choose_layouts(module(text)), FusionLimits(buffers=8)), GPU_FORM)


def _evaluate(module_: Module, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values of the graph, after the interpreter has run every call."""
    values = {**values, **module_.main.constants}
    for node in module_.main.nodes:
        if node.op == "View":
            shape = module_.main.type(node.outputs[0]).static_shape
            values[node.outputs[0]] = values[node.inputs[0]].reshape(shape)
            continue
        kernel = module_.kernels[node.attributes["kernel"]]
        verify(kernel)
        for value in node.outputs:
            value_type = module_.main.type(value)
            values[value] = np.zeros(value_type.static_shape, value_type.dtype.numpy)
        names = (*node.inputs, *node.outputs)
        run(kernel, {b.name: values[n] for b, n in zip(kernel.params, names, strict=True)}, {})
    return values


def test_a_kernel_that_needs_whole_results_is_cut() -> None:
    whole = _lowered(NORMALISED)
    assert not fits_dispatch(next(iter(whole.kernels.values())), WEBGPU)
    cut = split_kernels(whole, WEBGPU, fits_dispatch)
    names = [node.attributes["kernel"] for node in cut.main.nodes]
    assert len(names) > 1
    assert names == [f"layernormalization_part{n}" for n in range(len(names))]
    for name in names:
        choose_rule(cut.kernels[name], WEBGPU)
    rng = np.random.default_rng(0)
    inputs = {name: rng.random((5, 8), np.float32) for name in "xsb"}
    result = _evaluate(whole, inputs)["y"]
    np.testing.assert_allclose(_evaluate(cut, inputs)["y"], result, rtol=1e-6)
    centred = inputs["x"] - inputs["x"].mean()
    expected = centred / np.sqrt((centred**2).mean() + 1e-5) * inputs["s"] + inputs["b"]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_a_block_that_writes_what_another_has_written_is_cut_off() -> None:
    """Indices of a ScatterND that are constants are places known at build time."""
    scattered = """g (float[6,8] x, float[2,8] u) => (float[6,8] y)
    <int64[2,1] i = {3, 4}> { y = ScatterND(x, i, u) }"""
    joined = "g (float[6,8] x, float[2,8] u) => (float[8,8] y) { y = Concat<axis = 0>(x, u) }"
    counts = []
    for text in (scattered, joined):
        cut = split_kernels(_lowered(text), WEBGPU, fits_dispatch)
        counts.append(len(cut.main.nodes))
    assert counts == [2, 1]


def test_a_kernel_of_one_dispatch_is_not_cut() -> None:
    whole = _lowered(CENTRED)
    cut = split_kernels(whole, WEBGPU, fits_dispatch)
    assert [n.attributes["kernel"] for n in cut.main.nodes] == [
        n.attributes["kernel"] for n in whole.main.nodes
    ]


def test_equal_kernels_are_cut_once() -> None:
    text = NORMALISED.replace("y = ", "t = ").replace("(x, s, b)\n", "(x, s, b)\n SECOND\n")
    second = "y = LayerNormalization<axis = 0>(t, s, b)"
    cut = split_kernels(_lowered(text.replace("SECOND", second)), WEBGPU, fits_dispatch)
    names = [node.attributes["kernel"] for node in cut.main.nodes]
    assert len(names) == 2 * len(set(names))
