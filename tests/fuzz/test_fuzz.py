"""A few random graphs on each device, the same ones every time; `python -m tests.fuzz.run` runs
thousands.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fuzz.check_graph import check_graph
from tests.fuzz.graph import FuzzGraph
from tests.fuzz.operators import drawable
from tests.fuzz.run import Group, run_group
from tests.fuzz.worker import Device, Failure, Results, Runner, build_and_run
from tests.graph.ops.test_rows import FIRST_OPERATORS
from webmlc.frontend.read_model import NEWEST_OPSET
from webmlc.graph.ops import text
from webmlc.graph.table import OPS

GRAPHS = {"wasm": 8, "webgpu": 8}
FIXED = '<ir_version: 10, opset_import: ["" : 21]> g (float[2,3] x) => (float[2,3] y, int64[2] i) '
GRAPH = FuzzGraph.from_text(
    f"{FIXED} {{ y = Softmax (x) i = ArgMax <keepdims: int = 0, axis: int = 1> (x) }}", {}
)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_random_graphs(device: Device) -> None:
    runner = Runner(device, seconds=120)
    group = run_group(runner, f"{device} 1", GRAPHS[device], most=6)
    runner.close()
    if group.failure is not None:
        graph, verdict = group.failure
        pytest.fail(f"{verdict.kind}: {verdict.message}\n{graph.text()}")
    assert group.counts["passed"] >= GRAPHS[device] // 2


def test_every_operator_can_be_drawn() -> None:
    """Every operator of ONNX's own domain: from a description, or as the cases of its row say."""
    found = {name for opset in (18, 21, NEWEST_OPSET) for name in drawable(opset)}
    assert {op for domain, op in OPS if not domain} - found == NOT_DRAWN


SEQUENCES = {
    "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
    "SequenceMap", "SplitToSequence",
}  # fmt: skip
RANDOM = {
    "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip
NO_SCHEMA = {"Scatter", "SimplifiedLayerNormalization", "Upsample", *FIRST_OPERATORS}
OWN_TESTS = {"NonMaxSuppression", *(row.name for row in text.OPS if not row.domain)}
NOT_DRAWN = SEQUENCES | RANDOM | NO_SCHEMA | OWN_TESTS
"""What is left to other tests: values that are no tensors, results that are no function of the
inputs, operators that the opsets drawn from do not have, inputs that random numbers rarely make.
"""


@pytest.mark.parametrize("name", ["y", "i"])
def test_a_wrong_result_is_seen(name: str) -> None:
    def wrong(graph: FuzzGraph) -> Results:
        results = build_and_run(graph.to_model(), graph.feeds(), "wasm")
        assert not isinstance(results, Failure)
        for outputs in results.values():
            array = outputs[name]
            array[(0,) * array.ndim] += np.asarray(1e-5 if name == "y" else 1, array.dtype)
        return results

    verdict = check_graph(GRAPH, "wasm", wrong)
    assert verdict.kind == "mismatch"
    assert f"{name} 1 of" in verdict.message


def test_a_refused_graph_is_named() -> None:
    model = '<ir_version: 10, opset_import: ["" : 21]> g (float[40,40] x) => (float y)'
    runner = Runner("wasm", seconds=120)
    group = Group(runner)
    group.test(FuzzGraph.from_text(f"{model} {{ y = Det (x) }}", {}))
    runner.close()
    ((graph, verdict),) = group.refused
    assert [node.op_type for node in graph.nodes] == ["Det"]
    assert verdict.message == "Det (node 'y'): a determinant of more than 32 rows"
    assert group.counts == {"unsupported": 1} and not verdict.is_bug


def test_a_hang_and_a_crash_are_results() -> None:
    runner = Runner("wasm", seconds=0.01)
    assert runner.run(GRAPH) == Failure("hang", "no result after 0 s")
    runner.seconds = 120
    assert not isinstance(runner.run(GRAPH), Failure)
    assert runner.process is not None
    runner.process.kill()
    assert runner.run(GRAPH) == Failure("crash", "the process ended with exit code -9")
    assert not isinstance(runner.run(GRAPH), Failure)
    runner.close()
