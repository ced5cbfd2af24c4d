"""The tensors of pipelines and of the adapter, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.node import answer_once

SCRIPT = Path(__file__).parent / "tensors.mjs"
Array = Any
RNG = np.random.default_rng(0)
T = RNG.standard_normal((2, 3, 4)).astype(np.float32)
V = np.array([3, -1, 4, 1, -5], np.int64)
ROW = np.array([[1.5, -2.5, 0.5]], np.float32)
HALVES = np.array([0, 1.5, -2, 65504, 6e-8, np.inf, -np.inf], np.float16)
TENSORS: dict[str, Any] = {"t": T, "v": V, "row": ROW}

CASES: dict[str, Callable[[], Array]] = {
    "t[1]": lambda: T[1],
    "t[-1][0]": lambda: T[-1][0],
    "[...t][1].row(2)": lambda: T[1][2],
    "v[2]": lambda: V[2],
    "t.slice(1)": lambda: T[1],
    "t.slice(null, [1, 3])": lambda: T[:, 1:3],
    "t.slice([0, 1], null, -1)": lambda: T[0:1, :, -1],
    "t.slice(null, [-2, null], [null, -1])": lambda: T[:, -2:, :-1],
    "t.slice(0, 0, 0)": lambda: T[0, 0, 0],
    "t.view(6, -1)": lambda: T.reshape(6, -1),
    "t.reshape([4, 6])": lambda: T.reshape(4, 6),
    "t.flatten()": lambda: T.ravel(),
    "t.flatten(1)": lambda: T.reshape(2, 12),
    "t.flatten(0, 1)": lambda: T.reshape(6, 4),
    "row.squeeze()": lambda: ROW[0],
    "row.squeeze(-1)": lambda: ROW,
    "row.squeeze(0).unsqueeze(1)": lambda: ROW[0][:, None],
    "row.unsqueeze(-1)": lambda: ROW[..., None],
    "row.squeeze_()": lambda: ROW[0],
    "t.permute(2, 0, 1)": lambda: T.transpose(2, 0, 1),
    "t.transpose(0, -1, 1)": lambda: T.transpose(0, 2, 1),
    "row.repeat(2, 3)": lambda: np.tile(ROW, (2, 3)),
    "row.repeat(2, 1, 2)": lambda: np.tile(ROW, (2, 1, 2)),
    "t.tile(2)": lambda: np.tile(T, (1, 1, 2)),
    "t.sum()": lambda: T.sum(dtype=np.float64),
    "t.sum(1)": lambda: T.sum(1),
    "t.mean()": lambda: T.mean(dtype=np.float64),
    "t.mean(-1, true)": lambda: T.mean(-1, keepdims=True),
    "t.mean(0)": lambda: T.mean(0),
    "t.min()": lambda: T.min(),
    "t.max(1)": lambda: T.max(1),
    "v.max()": lambda: V.max(),
    "v.argmin()": lambda: V.argmin(),
    "t.argmax(2)": lambda: T.argmax(2),
    "t.norm()": lambda: np.linalg.norm(T),
    "t.norm(1, 2)": lambda: np.abs(T).sum(2),
    "t.norm(2, 1, true)": lambda: np.linalg.norm(T, axis=1, keepdims=True),
    "t.normalize()": lambda: T / np.linalg.norm(T, axis=1, keepdims=True),
    "t.normalize(2, -1)": lambda: T / np.linalg.norm(T, axis=-1, keepdims=True),
    "row.mul(0).normalize(2, -1)": lambda: ROW * 0,
    "t.add(1).mul(2).sub(3).div(4)": lambda: ((T + 1) * 2 - 3) / 4,
    "v.add(2).mul(3)": lambda: (V + 2) * 3,
    "v.neg()": lambda: -V,
    "t.clamp(-0.5, 0.5)": lambda: np.clip(T, -0.5, 0.5),
    "t.sigmoid()": lambda: 1 / (1 + np.exp(-T)),
    "t.gt(0)": lambda: T > 0,
    "v.lt(1)": lambda: V < 1,
    "t.map((x, i) => x + i)": lambda: T + np.arange(24).reshape(2, 3, 4),
    'v.to("float32")': lambda: V.astype(np.float32),
    'row.to("int64")': lambda: ROW.astype(np.int64),
    'row.to("int32")': lambda: ROW.astype(np.int32),
    'v.to("bool")': lambda: V.astype(bool),
    'new Tensor("float16", halves, [7]).to("float32")': lambda: HALVES.astype(np.float32),
    'new Tensor("bfloat16", new Uint16Array([0x3fc0, 0xc000]), [2]).to("int64")': lambda: np.array(
        [1, -2], np.int64
    ),
    'new Tensor("float32", [NaN, -Infinity, -1.5]).to("int64")': lambda: np.array(
        [0, 0, -1], np.int64
    ),
    'new Tensor("float32", [NaN, -Infinity, -1.5]).to("int32")': lambda: np.array(
        [0, 0, -1], np.int32
    ),
    'new Tensor("bfloat16", new Uint16Array([0x3fc0, 0xc000]), [2]).to("float32")': lambda: (
        np.array([1.5, -2], np.float32)
    ),
}
"""Expressions of JavaScript, and what numpy computes for them."""

VALUES = {
    "t.tolist()": T.astype(float).tolist(),
    "v.item === undefined || v[2].item()": 4,
    "v.indexOf(4)": 2,
    "t.stride()": [12, 4, 1],
    "[...v].map(Number)": V.tolist(),
    "new Tensor([true, false]).tolist()": [1, 0],
    'new Tensor("string", ["a", "b", "c", "d"], [2, 2])[1].tolist()': ["c", "d"],
    'new Tensor(["a", "b"]).slice([1, 2]).tolist()': ["b"],
}
ERRORS = {
    "t[2]": "InputError: 2 is no index of 2: there are -2 to 1",
    "t.item()": "InputError: a tensor of shape [2,3,4] is not one number",
    "t.view(5, -1)": "InputError: 24 elements do not fill the shape [5,-1]",
    "t.slice([0, 0]).view(-1, 0)": "InputError: 0 elements do not fill the shape [-1,0]",
    "t.view(-1, -1)": "InputError: a tensor of shape [24,24] has 576 elements, but its data has 24",
    "t.permute(0, 1, 2, 0)": "InputError: the axes 0,1,2,0 are no order of 3 dimensions",
    "t.permute(0, 1, 1)": "InputError: the axes 0,1,1 are no order of 3 dimensions",
    "t.add(row)": "InputError: an operator takes a number, not Tensor",
    "t.mul()": "InputError: an operator takes a number, not undefined",
    "t.slice([2, 1])": "InputError: a slice is an index, [begin, end] or null, not [2,1]",
    'new Tensor("float16", new Uint16Array(2)).add(1)': (
        'InputError: a tensor of float16 holds bits: convert it first, by to("float32")'
    ),
    'new Tensor("bfloat16", [1, 2])': (
        "InputError: this host makes no bfloat16 of numbers: pass a Uint16Array of their bits"
    ),
    'new Tensor("float32", { length: 3 })': (
        "InputError: a tensor holds a typed array or numbers, not Object"
    ),
    'new Tensor("string", [1])': (
        "InputError: a tensor of strings holds an array of strings, not Array"
    ),
}


def answers(expressions: list[str]) -> list[dict[str, Any]]:
    tensors = {
        name: {"type": str(a.dtype), "dims": list(a.shape), "data": a.ravel().tolist()}
        for name, a in TENSORS.items()
    }
    halves = f"new Uint16Array({HALVES.view(np.uint16).tolist()})"
    texts = [expression.replace("halves", halves) for expression in expressions]
    job = {"tensors": tensors, "expressions": texts}
    return list(answer_once(SCRIPT, job))


def test_methods_compute_what_numpy_computes() -> None:
    for (text, compute), answer in zip(CASES.items(), answers(list(CASES)), strict=True):
        want = np.asarray(compute())
        assert "error" not in answer, (text, answer)
        assert answer["dims"] == list(want.shape), text
        data = np.array([float(x) for x in answer["data"]]).reshape(want.shape)
        np.testing.assert_allclose(data, want.astype(float), rtol=1e-5, atol=1e-6, err_msg=text)


def test_values_of_tensors() -> None:
    values = [answer["value"] for answer in answers(list(VALUES))]
    assert values == list(VALUES.values())


def test_mistakes_are_explained() -> None:
    assert [answer["error"] for answer in answers(list(ERRORS))] == list(ERRORS.values())
