"""The chains whose build is timed are valid models of one chain each."""

from __future__ import annotations

import onnx
import onnx.checker

from benchmarks.build_time import PERIOD, chain


def test_each_node_of_a_chain_leads_to_the_output() -> None:
    model = chain(2 * PERIOD)
    onnx.checker.check_model(model, full_check=True)
    read = {name for node in model.graph.node for name in node.input}
    written = {name for node in model.graph.node for name in node.output}
    (output,) = (value.name for value in model.graph.output)
    assert written - read == {output}
