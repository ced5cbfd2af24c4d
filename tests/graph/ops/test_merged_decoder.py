"""Decoders by optimum's conventions: one `If` holds the decoder with a past and without. Greedy
steps on both devices, in sessions and without, give the tokens of onnxruntime.
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
from tests.js.test_session import exercised
from webmlc.core.errors import InputError, UserError

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
    P_sum = Sub(P_flat, P_part)
    CROSS
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


CROSS = """P_mean = ReduceMean<axes = [2], keepdims = 0>(KEYS)
    P_row = Reshape(P_mean, row)
    P_h = Add(P_sum, P_row)"""
ENCODED = {
    "past_branch_": """past_branch_dummy = Constant<value_ints = [0, 2, 1, 4]>()
    past_branch_ek = ConstantOfShape(past_branch_dummy)""",
    "first_": """first_ef = MatMul(states, wk)
    first_e4 = Reshape(first_ef, heads)
    first_ek = Transpose<perm = [0, 2, 1, 3]>(first_e4)""",
}
"""The keys of the encoder's states: the branch with a past gives an empty tensor in their place, as
optimum's `merge_decoders` lets it.
"""


def encoder_decoder(branch: str, prefix: str, keys: str) -> str:
    """A branch that also reads the encoder's states."""
    cross = f"{ENCODED[prefix]}\n    {CROSS.replace('P_', prefix).replace('KEYS', keys)}"
    outputs = f"float[b, 2, {prefix}t, 4] {prefix}v"
    assert outputs in branch
    branch = branch.replace(outputs, f"{outputs}, float[be, 2, {prefix}e, 4] {prefix}ek")
    return branch.replace("CROSS", cross)


def merged_decoder(has_encoder: bool = False) -> onnx.ModelProto:
    """A merged decoder, alone or behind an encoder."""
    with_past = BRANCH.replace("P_", "past_branch_").replace("NAME", "then_branch").replace(
        "JOIN",
        "past_branch_k = Concat<axis = 2>(past_key, past_branch_kn)\n"
        "    past_branch_v = Concat<axis = 2>(past_value, past_branch_vn)",
    ).replace("SHIFT", "shift")  # fmt: skip
    without = BRANCH.replace("P_", "first_").replace("NAME", "else_branch").replace(
        "JOIN", "first_k = Identity(first_kn)\n    first_v = Identity(first_vn)"
    ).replace("SHIFT", "after")  # fmt: skip
    text = MODEL
    if has_encoder:
        with_past = encoder_decoder(with_past, "past_branch_", "past_keys_encoded")
        without = encoder_decoder(without, "first_", "first_ek")
        text = text.replace("(int64[b, s]", "(float[b, e, 8] states, int64[b, s]")
        text = text.replace("bool[1] use", "float[b, 2, pe, 4] past_keys_encoded, bool[1] use")
        text = text.replace(
            "present_value)\n", "present_value, float[q, 2, te, 4] present_keys_encoded)\n"
        ).replace("present_value =", "present_value, present_keys_encoded =")
        text = text.replace("int64 after", "int64[3] row = {0, 1, 8}, int64 after")
    else:
        with_past = with_past.replace("CROSS", "past_branch_h = Identity(past_branch_sum)")
        without = without.replace("CROSS", "first_h = Identity(first_sum)")
    model = parse(text.replace("THEN", with_past).replace("ELSE", without))
    rename_decoder(model.graph)
    sizes = {"embedding": (TOKENS, WIDTH), "head": (WIDTH, TOKENS)}
    sizes |= dict.fromkeys(("wq", "wk", "wv"), (WIDTH, WIDTH))
    for name, size in sizes.items():
        weights = RNG.standard_normal(size).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


NAMES = {
    "states": "encoder_hidden_states",
    **{f"{time}_{kind}": f"{prefix}.0.decoder.{kind}"
       for time, prefix in (("past", "past_key_values"), ("present", "present"))
       for kind in ("key", "value")},
    "past_keys_encoded": "past_key_values.0.encoder.key",
    "present_keys_encoded": "present.0.encoder.key",
}  # fmt: skip
"""The names that optimum gives the inputs and outputs, which ONNX's text form cannot have."""


def rename_decoder(graph: onnx.GraphProto) -> None:
    """Give the values of a graph and of its sub-graphs optimum's names."""
    for info in (*graph.input, *graph.output):
        info.name = NAMES.get(info.name, info.name)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [NAMES.get(value, value) for value in values]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename_decoder(attribute.g)


def greedy(run: Any, steps: int) -> list[int]:
    """The tokens of greedy steps, the first without a past."""
    tokens = [3, 5, 1, 7]
    feed, past = tokens, [np.zeros((1, HEADS, 0, 4), np.float32)] * 2
    for step in range(steps):
        logits, *past = run(
            {
                "input_ids": np.array([feed]),
                "past_key_values.0.decoder.key": past[0],
                "past_key_values.0.decoder.value": past[1],
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


def in_session(session: Any, steps: int, feeds: dict[str, Any]) -> list[int]:
    """The tokens of greedy steps of a session, which carries the past."""
    tokens = [3, 5, 1, 7]
    feed = tokens
    for step in range(steps):
        flags = {"input_ids": np.array([feed]), "use_cache_branch": np.array([step > 0])}
        (logits,) = session.run({**flags, **feeds}).values()
        feed = [int(logits[0, -1].argmax())]
        tokens = [*tokens, *feed]
    return tokens


def expected_behind_encoder(model: onnx.ModelProto, states: Any) -> list[int]:
    """The tokens by onnxruntime, whose caller keeps the encoder's keys of the first step."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    encoded = np.zeros((1, HEADS, 0, 4), np.float32)

    def run(feeds: dict[str, Any]) -> list[Any]:
        nonlocal encoded
        more = {"encoder_hidden_states": states, "past_key_values.0.encoder.key": encoded}
        *results, keys = session.run(None, {**feeds, **more})
        encoded = keys if keys.size else encoded
        return results

    return greedy(run, STEPS["wasm"])


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_session_carries_the_past_of_a_merged_decoder(
    package: tuple[onnx.ModelProto, Path], device: Device
) -> None:
    model, folder = package
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    expected = greedy(lambda feeds: reference.run(None, feeds), STEPS["wasm"])
    loaded = webmlc.load(folder, device=device)
    session, other = loaded.session(), loaded.session(capacity=10)
    assert in_session(session, STEPS["wasm"], {}) == expected
    assert session.length == len(expected) - 1
    saved = session.save()
    with pytest.raises(InputError, match="capacity is 10"):
        other.load(saved)
    tokens = {"input_ids": np.array([expected[:4]]), "use_cache_branch": np.array([False])}
    other.run(tokens)
    later = {"input_ids": np.array([expected[4:]]), "use_cache_branch": np.array([True])}
    with pytest.raises(InputError, match="capacity of 10"):
        other.run(later)
    assert other.length == 4
    session.truncate(4)
    final = session.run({**later, "input_ids": later["input_ids"][:, :-1]})["logits"][0, -1]
    assert final.argmax() == expected[-1]
    session.run(tokens)  # the branch without a past begins again
    assert session.length == 4
    session.load(saved)
    assert session.length == len(expected) - 1
    session.reset()
    assert session.length == 0
    with pytest.raises(InputError, match="no input is named 'past"):
        session.run({**tokens, "past_key_values.0.decoder.key": np.zeros((1, 2, 0, 4))})
    session.dispose()
    with pytest.raises(UserError, match="disposed"):
        session.run(tokens)
    loaded.dispose()


def test_a_session_carries_the_keys_of_an_encoder(tmp_path: Path) -> None:
    model = merged_decoder(has_encoder=True)
    states = RNG.standard_normal((1, 6, WIDTH)).astype(np.float32)
    webmlc.build(model, tmp_path)
    expected = expected_behind_encoder(model, states)
    assert len(set(expected)) > 4
    for device in ("wasm", "webgpu"):
        loaded = webmlc.load(tmp_path, device=device)
        feeds = {"encoder_hidden_states": states}
        assert in_session(loaded.session(), STEPS["wasm"], feeds) == expected
        loaded.dispose()
    answer = exercised(
        tmp_path, 1, "./decode.mjs", {"steps": STEPS["wasm"], "states": states.ravel().tolist()}
    )
    assert answer["tokens"] == expected


def test_a_session_of_javascript_carries_the_past(package: tuple[onnx.ModelProto, Path]) -> None:
    model, folder = package
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    expected = greedy(lambda feeds: reference.run(None, feeds), STEPS["wasm"])
    for threads in (1, 2):
        answer = exercised(folder, threads, "./decode.mjs", {"steps": STEPS["wasm"]})
        assert answer == {
            "tokens": expected,
            "lengths": [len(expected) - 1, 4, len(expected) - 1, 0],
            "restored": expected[-1],
            "errors": ["input", "input", "input", "disposed"],
        }
