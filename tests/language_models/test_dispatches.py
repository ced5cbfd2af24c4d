"""How many dispatches a layer of a decoder takes on a GPU: six."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from gguf import GGMLQuantizationType as Type

import webmlc
from tests.language_models.small_models import LLAMA, write_model
from webmlc.core.machine import WEBGPU as MACHINE
from webmlc.core.stages import ignore
from webmlc.loops.name_dimensions import name_dimensions
from webmlc.pipeline import kernel_module, shared_graph
from webmlc.schedule.rules import match_kernel
from webmlc.target.webgpu.target import WEBGPU

PRODUCTS = 4
"""Queries, keys and values; the output of attention; gate and up; down."""


def test_a_layer_is_four_products_an_append_and_attention(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_model(path, replace(LLAMA, types=(Type.Q4_1,), width=128, hidden=1024))
    module = kernel_module(shared_graph(path, watch=ignore), WEBGPU, ignore)
    first = [n for n in module.main.nodes if any(o.startswith("blk.0.") for o in n.origin)]
    assert all(n.op == "View" or n.attributes["device"] == "webgpu" for n in first)
    products = [kernel for name, kernel in module.kernels.items() if "product" in name]
    matches = [match_kernel(name_dimensions(kernel).function, MACHINE) for kernel in products]
    assert {m.rule.name for m in matches if m is not None} == {"block product"}
    constants = set(module.main.constants)
    kernels = Counter(
        "product" if "product" in name else "attention" if "attention" in name else "append"
        for name in (
            n.attributes["kernel"]
            for n in first
            if n.op == "call_kernel" and not constants.issuperset(n.inputs)
        )
    )
    assert kernels == {"product": PRODUCTS, "append": 1, "attention": 1}


def test_the_manifest_states_the_dispatches_of_a_token(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_model(path, replace(LLAMA, types=(Type.Q4_1,), width=128, hidden=1024))
    program = webmlc.build(path, tmp_path / "package", target="webgpu").programs["webgpu"]
    each_run = [
        s for run in program.runs if not run.once for s in program.steps[run.first : run.last]
    ]
    layer = [step.kernel for step in each_run if any(o.startswith("blk.0.") for o in step.origin)]
    assert len(layer) == PRODUCTS + 2
    assert program.resources.row is not None
    assert program.resources.row.steps == len(each_run)
