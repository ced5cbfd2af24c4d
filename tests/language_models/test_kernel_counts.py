"""How many kernels a layer of a small language model has on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gguf import GGMLQuantizationType as Type

from tests.language_models.small_models import LLAMA, write_model
from webmlc.core.stages import watcher
from webmlc.graph.fuse.kernels import constant_values
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.target.targets import TARGETS


def test_kernels_of_a_layer(tmp_path: Path) -> None:
    """Norm and quantise, QKV, rotate and append, eight of attention, quantise, output and sum, norm
    and quantise, gate and up, SiLU and quantise, down and sum.

    Of those of attention, four are for rows that fill tiles, three for the rows left over, and one
    puts both together: in a step of one token, five have nothing to do.
    """
    path = tmp_path / "small.gguf"
    write_model(path, replace(LLAMA, types=(Type.Q4_1,)))
    watch = watcher(None)
    module = kernel_module(shared_graph(path, watch=watch), TARGETS["wasm"], watch)
    constants = constant_values(module.main)
    kernels = []
    for node in module.main.nodes:
        if node.op == "call_kernel" and constants.issuperset(node.inputs):
            constants.update(node.outputs)  # it runs once, at load
        elif node.op == "call_kernel" and "blk.0." in node.outputs[0]:
            kernels.append(node.attributes["kernel"])
    assert len(kernels) == 17
    assert sum(name.startswith("packedblockproduct") for name in kernels) == 4
