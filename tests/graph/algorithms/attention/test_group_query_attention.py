"""GroupQueryAttention against onnxruntime: rows of different lengths, first prompts, later tokens,
a past that is a buffer of fixed capacity, and one that grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import webmlc
from tests.node import as_tensors, in_node

HEADS, GROUPS, SIZE, POSITIONS = 4, 2, 16, 32

Feeds = dict[str, np.ndarray]


def model_of(*, past: bool, rotary: bool, **attributes: Any) -> onnx.ModelProto:
    """One node; batch, tokens and the length of the past are symbols."""
    names = ["q", "k", "v", *(("past_k", "past_v") if past else ("", "")), "last", "total"]
    names += ["cos", "sin"] if rotary else []
    present = ["batch", GROUPS, "present", SIZE]
    cache = [POSITIONS, SIZE // 2]
    floats = {
        "q": ["batch", "tokens", HEADS * SIZE],
        **{name: ["batch", "tokens", GROUPS * SIZE] for name in ("k", "v")},
        **(
            {name: ["batch", GROUPS, "past", SIZE] for name in ("past_k", "past_v")} if past else {}
        ),
        **({"cos": cache, "sin": cache} if rotary else {}),
    }
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()]
    inputs += [info("last", TensorProto.INT32, ["batch"]), info("total", TensorProto.INT32, [])]
    outputs = [info("y", TensorProto.FLOAT, floats["q"])]
    outputs += [info(name, TensorProto.FLOAT, present) for name in ("present_k", "present_v")]
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "present_k", "present_v"], "attention",
        domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=int(rotary),
        **attributes,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def feeds_of(
    lengths: list[int], tokens: int, stored: int | None, total: int, rotary: bool
) -> Feeds:
    """`lengths` are those of the rows after this run; `stored` the length of the past's buffer."""
    rng = np.random.default_rng(7)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    batch = len(lengths)
    feeds = {"q": floats(batch, tokens, HEADS * SIZE)}
    feeds |= {name: floats(batch, tokens, GROUPS * SIZE) for name in ("k", "v")}
    if stored is not None:
        feeds |= {name: floats(batch, GROUPS, stored, SIZE) for name in ("past_k", "past_v")}
    if rotary:
        angles = rng.uniform(0, 6, (POSITIONS, SIZE // 2))
        feeds |= {
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
        }
    feeds["last"] = np.array(lengths, np.int32) - 1
    feeds["total"] = np.array(total, np.int32)
    return feeds


RUNS: Mapping[str, tuple[list[int], int, int | None, int]] = {
    "a first prompt": ([5, 5], 5, None, 5),
    "a first prompt of rows that differ": ([5, 3], 5, None, 5),
    "a token behind a past that grows": ([7, 7], 1, 6, 7),
    "a token behind pasts that differ": ([7, 4], 1, 6, 7),
    "a token in a buffer": ([7, 4], 1, 16, 7),
    "a prompt in an empty buffer": ([5, 5], 5, 16, 5),
    "tokens of one row in a buffer": ([9], 3, 16, 9),
}


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize(
    "attributes", [{}, {"local_window_size": 3}, {"softcap": 2.0}], ids=["plain", "window", "cap"]
)
@pytest.mark.parametrize("rotary", [False, True], ids=["", "rotary"])
def test_rows_have_lengths_of_their_own(
    tmp_path: Path, rotary: bool, attributes: dict[str, Any], device: Literal["wasm", "webgpu"]
) -> None:
    for past in (False, True):
        model = model_of(past=past, rotary=rotary, **attributes)
        webmlc.build(model, tmp_path / str(past), target=device)
        loaded = webmlc.load(tmp_path / str(past), device=device)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for name, (lengths, tokens, stored, total) in RUNS.items():
            if (stored is not None) != past:
                continue
            feeds = feeds_of(lengths, tokens, stored, total, rotary)
            want = dict(zip(("y", "present_k", "present_v"), session.run(None, feeds), strict=True))
            got = loaded.run(feeds)
            for row, length in enumerate(lengths):
                queries = min(tokens, length) if tokens == total else tokens
                for output, array in want.items():
                    valid = slice(0, queries) if output == "y" else slice(None)
                    part = (row, valid) if output == "y" else (row, slice(None), slice(0, length))
                    assert got[output].shape == array.shape, (name, output)
                    np.testing.assert_allclose(
                        got[output][part], array[part], rtol=2e-5, atol=2e-5, err_msg=name
                    )
        loaded.dispose()


def test_rows_have_lengths_of_their_own_in_node(tmp_path: Path) -> None:
    """Each length and the total change what comes out, as in onnxruntime."""
    model = model_of(past=True, rotary=False)
    webmlc.build(model, tmp_path, target="wasm")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    many = [feeds_of(lengths, 1, 16, 7, rotary=False) for lengths in ([7, 4], [7, 6], [5, 4])]
    for feeds, result in zip(many, in_node(tmp_path, list(map(as_tensors, many))), strict=True):
        want, *_ = session.run(None, feeds)
        got = np.array(result["y"]["data"], np.float32).reshape(result["y"]["shape"])
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
