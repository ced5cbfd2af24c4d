"""A decoder by optimum's conventions: one `If` holds the decoder with a past and without. Greedy
steps on both devices give the tokens of onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import Device, parse

RNG = np.random.default_rng(5)
TOKENS, WIDTH, HEADS = 13, 8, 2
STEPS = {"wasm": 64, "webgpu": 12}
BRANCH = """NAME = b () => (
    float[b, s, 13] P_logits, float[b, 2, P_t, 4] P_k, float[b, 2, P_t, 4] P_v
) {
    P_e = Gather(embedding, input_ids)
    P_qf = MatMul(P_e, wq)
    P_kf = MatMul(P_e, wk)
    P_vf = MatMul(P_e, wv)
    P_q4 = Reshape(P_qf, heads)
    P_k4 = Reshape(P_kf, heads)
    P_v4 = Reshape(P_vf, heads)
    P_q = Transpose<perm = [0, 2, 1, 3]>(P_q4)
    P_kn = Transpose<perm = [0, 2, 1, 3]>(P_k4)
    P_vn = Transpose<perm = [0, 2, 1, 3]>(P_v4)
    JOIN
    P_kt = Transpose<perm = [0, 1, 3, 2]>(P_k)
    P_dots = MatMul(P_q, P_kt)
    P_ids = Shape<start = 2>(P_dots)
    P_zeros = ConstantOfShape(P_ids)
    P_ones = Add(P_zeros, big)
    P_mask = Trilu(P_ones, SHIFT)
    P_masked = Sub(P_dots, P_mask)
    P_weights = Softmax(P_masked)
    P_mixed = MatMul(P_weights, P_v)
    P_back = Transpose<perm = [0, 2, 1, 3]>(P_mixed)
    P_flat = Reshape(P_back, flat)
    P_part = Mul(P_e, share)
    P_h = Sub(P_flat, P_part)
    P_logits = MatMul(P_h, head)
}"""
MODEL = """g (int64[b, s] input_ids, float[b, 2, p, 4] past_key, float[b, 2, p, 4] past_value,
           bool[1] use_cache_branch)
    => (float[b, s, 13] logits, float[b, 2, t, 4] present_key, float[b, 2, t, 4] present_value)
    <int64[4] heads = {0, 0, 2, 4}, int64[3] flat = {0, 0, 8}, float big = {1e4},
     float share = {0.7},
     int64 after = {1}> {
    past_size = Shape<start = 2, end = 3>(past_key)
    past_length = Squeeze(past_size)
    shift = Add(past_length, after)
    logits, present_key, present_value = If(use_cache_branch) <THEN, ELSE>
}"""


def merged_decoder() -> onnx.ModelProto:
    with_past = BRANCH.replace("P_", "past_branch_").replace("NAME", "then_branch").replace(
        "JOIN",
        "past_branch_k = Concat<axis = 2>(past_key, past_branch_kn)\n"
        "    past_branch_v = Concat<axis = 2>(past_value, past_branch_vn)",
    ).replace("SHIFT", "shift")  # fmt: skip
    without = BRANCH.replace("P_", "first_").replace("NAME", "else_branch").replace(
        "JOIN", "first_k = Identity(first_kn)\n    first_v = Identity(first_vn)"
    ).replace("SHIFT", "after")  # fmt: skip
    model = parse(MODEL.replace("THEN", with_past).replace("ELSE", without))
    sizes = {"embedding": (TOKENS, WIDTH), "head": (WIDTH, TOKENS)}
    sizes |= dict.fromkeys(("wq", "wk", "wv"), (WIDTH, WIDTH))
    for name, size in sizes.items():
        weights = RNG.standard_normal(size).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


def greedy(run: Any, steps: int) -> list[int]:
    """The tokens of greedy steps, the first without a past."""
    tokens = [3, 5, 1, 7]
    feed, past = tokens, [np.zeros((1, HEADS, 0, 4), np.float32)] * 2
    for step in range(steps):
        logits, *past = run(
            {
                "input_ids": np.array([feed]),
                "past_key": past[0],
                "past_value": past[1],
                "use_cache_branch": np.array([step > 0]),
            }
        )
        feed = [int(logits[0, -1].argmax())]
        tokens = [*tokens, *feed]
    return tokens


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, Path]:
    model, folder = merged_decoder(), tmp_path_factory.mktemp("merged")
    webmlc.build(model, folder)
    return model, folder


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_merged_decoder_takes_greedy_steps(
    package: tuple[onnx.ModelProto, Path], device: Device
) -> None:
    model, folder = package
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = greedy(lambda feeds: session.run(None, feeds), STEPS[device])
    assert len(set(expected)) > 4  # the steps depend on each other
    loaded = webmlc.load(folder, device=device)
    assert greedy(lambda feeds: list(loaded.run(feeds).values()), STEPS[device]) == expected
    weights = sum(initializer.ByteSize() for initializer in model.graph.initializer)
    assert loaded.program.resources.weights < 1.5 * weights  # both branches read one copy
    loaded.dispose()
