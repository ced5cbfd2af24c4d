"""A package that writes a part of a value at a place which only a run knows, on all devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import SETTINGS, parse
from webmlc import pipeline
from webmlc.core.expr import Var, const
from webmlc.graph.ir import Function, Module, Node, Region
from webmlc.target.target import Target
from webmlc.target.targets import TARGETS


def _append(module: Module) -> Module:
    """Let a kernel overwrite rows of %y with those of %x, from row n on."""
    main = module.main
    types = {v: main.type("x") for v in ("x", "row")}
    body = Function("exp", ("x",), ("row",), (Node("Exp", ("x",), ("row",)),), types, {})
    node = Node("fused", ("x",), ("row",), {"body": body}, "webmlc")
    main = replace(
        main,
        nodes=(*main.nodes, node),
        types={**main.types, **types},
        regions={"row": Region("y", (Var("n"), const(0)))},
    )
    return replace(module, functions={**module.functions, "main": main})


def _with_append(target: Target) -> Target:
    """The target with `_append` before its kernels are lowered."""
    passes: list[tuple[str, Callable[[Module], Module]]] = []
    for title, transform in target.to_kernels:
        passes += [("append", _append)] if title == "lower" else []
        passes.append((title, transform))
    return replace(target, to_kernels=tuple(passes))


def test_rows_are_appended_at_a_length_that_a_run_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = {device: _with_append(target) for device, target in TARGETS.items()}
    monkeypatch.setattr(pipeline, "targets_of", lambda adapter: targets)
    model = parse(
        "g (float[2,5] x, float[n] p, float[8,5] s) => (float[8,5] y, float[n] z) "
        "{ y = Neg(s) z = Neg(p) }"
    )
    webmlc.build(model, tmp_path)
    rng = np.random.default_rng(0)
    x, s = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5), (8, 5)))
    for device, threads in SETTINGS:
        loaded = webmlc.load(tmp_path, device=device, threads=threads)
        for n in (1, 6, 3):
            results = loaded.run({"x": x, "p": np.ones(n, np.float32), "s": s})
            expected = -s
            expected[n : n + 2] = np.exp(x)
            np.testing.assert_allclose(results["y"], expected, rtol=1e-5)
        loaded.dispose()
