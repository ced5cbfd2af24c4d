"""Control flow of the host, run in every way: by onnxruntime, by packages on both devices, by the
meaning of the graph, and by the JavaScript runtime under Node.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import webmlc
from tests.against_onnxruntime import check, parse
from tests.graph.graphs import module
from tests.node import as_tensors, in_node
from webmlc.graph.infer.evaluate import evaluate_module


def check_everywhere(
    text: str, folder: Path, runs: Sequence[dict[str, Any]], in_javascript: bool
) -> None:
    """Check all runs of a model that the host decides about."""
    check(parse(text), folder, *runs)
    model, graph = webmlc.load(folder, device="wasm"), module(text)
    answers = in_node(folder, [as_tensors(feeds) for feeds in runs]) if in_javascript else ()
    for feeds in runs:
        meaning = evaluate_module(graph, feeds)
        for output, want in model.run(feeds).items():
            assert meaning[output].shape == want.shape
            np.testing.assert_allclose(meaning[output], want, rtol=1e-2, atol=1e-4)
    for feeds, answer in zip(runs, answers, strict=False):
        for output, want in model.run(feeds).items():
            assert answer[output]["shape"] == list(want.shape)
            got = np.array(answer[output]["data"], np.float64).reshape(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-5)
    model.dispose()
