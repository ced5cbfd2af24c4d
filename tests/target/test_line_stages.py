"""Each line of a kernel leads to the nodes that it computes.

A node is replaced by another operator. Only lines that are said to compute it may change.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pytest

from tests.small_models import model_of, random
from webmlc.build_options import BuildOptions
from webmlc.core.stages import Stage
from webmlc.package.kernel_code import KernelLines, print_code
from webmlc.pipeline import compile_model

PRODUCT = """
g (float[24, 32] x) => (float[24, 16] y) {
  [product] a = MatMul(x, w)
  [sum] b = Add(a, c)
  [last] y = LAST(b, d)
}
"""
SOFTMAX = """
g (float[24, 32] x) => (float[24, 32] y) {
  [rows] a = Softmax(x)
  [last] y = LAST(a, e)
}
"""
CONVOLUTION = """
g (float[1, 8, 12, 12] x) => (float[1, 16, 10, 10] y) {
  [filters] a = Conv(x, f)
  [clip] b = Relu(a)
  [last] y = LAST(b, s)
}
"""
Lines = list[tuple[str, set[str]]]
"""The lines of a kernel, with the nodes that each computes."""


def kernels_of(text: str, operator: str) -> dict[tuple[str, str], Lines]:
    """The lines of all kernels of a model, by variant and by kernel without the operator's name."""
    rng = np.random.default_rng(0)
    shapes = {
        "w": (32, 16),
        "c": (16,),
        "d": (16,),
        "e": (32,),
        "f": (16, 8, 3, 3),
        "s": (16, 1, 1),
    }
    weights: dict[str, Any] = {name: random(rng, *shape) for name, shape in shapes.items()}
    kernels: dict[tuple[str, str], Lines] = {}

    def watch(stage: Stage) -> None:
        if isinstance(stage.result, KernelLines):
            kernel = stage.result
            code, stages = kernel.split()
            assert code == print_code(kernel.lowered, kernel.task).text
            origins = kernel.task.kernel.stages
            nodes = [{name for number in line for name in origins[number]} for line in stages]
            neutral = re.sub(rf"(?<=\$)(L_)?{operator.lower()}_", r"\1last_", code).split("\n")
            name = str(stage.kernel).replace(operator.lower(), "last")
            kernels[stage.title, name] = list(zip(neutral, nodes, strict=True))

    compile_model(model_of(text.replace("LAST", operator), weights), BuildOptions(on_stage=watch))
    return kernels


@pytest.mark.parametrize(
    "text", [PRODUCT, SOFTMAX, CONVOLUTION], ids=["product", "softmax", "convolution"]
)
def test_another_operator_changes_only_lines_of_its_node(text: str) -> None:
    one, other = kernels_of(text, "Sub"), kernels_of(text, "Min")
    assert one.keys() == other.keys()
    changed = 0
    for key, lines in one.items():
        matcher = SequenceMatcher(None, *([line for line, _ in k] for k in (lines, other[key])))
        for kind, first, end, *others in matcher.get_opcodes():
            if kind != "equal":
                different = [*lines[first:end], *other[key][slice(*others)]]
                code = [(line, nodes) for line, nodes in different if "(local $" not in line]
                assert all("last" in nodes for _, nodes in code), key
                changed += len(code)
    assert changed


def test_each_node_has_lines_of_its_own() -> None:
    for (title, kernel), lines in kernels_of(PRODUCT, "Sub").items():
        if "product" in set().union(*(nodes for _, nodes in lines)):
            multiplies = [nodes for line, nodes in lines if re.search(r"relaxed_madd|\+=", line)]
            assert all(nodes == {"product"} for nodes in multiplies), (title, kernel)
            assert any("sum" in nodes and "product" not in nodes for _, nodes in lines)
