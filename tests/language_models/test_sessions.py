"""Sessions of a small language model, on both devices: a prompt at once or token by token, a
conversation that is cut and continued, and many tokens in the same memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import webmlc
from tests.language_models.reference import logits_of
from tests.language_models.small_models import LLAMA, write_model
from webmlc.core.dtypes import DType
from webmlc.core.machine import Device
from webmlc.frontend.gguf.read_gguf import read_gguf
from webmlc.host.load import Model
from webmlc.host.session import Session

MANY = 1000
FEW = 100
"""The tokens on a software GPU, where a token of this model takes 10 ms."""
SMALL = replace(LLAMA, tied=True, layers=1, hidden=64, positions=MANY + 64, types=(Type.F32,))
IDS = [int(i) for i in np.random.default_rng(1).integers(0, SMALL.vocabulary, 20)]
CLOSE = {"atol": 2e-5, "rtol": 0}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """The package of the model, and the logits of `IDS`."""
    folder = tmp_path_factory.mktemp("sessions")
    tensors = write_model(folder / "small.gguf", SMALL)
    webmlc.build(read_gguf(folder / "small.gguf", every_row=True), folder / "package")
    return folder / "package", logits_of(SMALL, tensors, IDS)


@pytest.fixture(params=["wasm", "webgpu"])
def model(request: pytest.FixtureRequest, small: tuple[Path, np.ndarray]) -> Iterator[Model]:
    loaded = webmlc.load(small[0], device=request.param)
    yield loaded
    loaded.dispose()


def run(session: Session, *tokens: int) -> np.ndarray:
    return session.run({"input_ids": np.array([tokens], np.int64)})["logits"]


def test_a_prompt_at_once_equals_single_tokens(
    model: Model, small: tuple[Path, np.ndarray]
) -> None:
    expected = small[1]
    at_once, single = model.session(capacity=32), model.session(capacity=32)
    np.testing.assert_allclose(run(at_once, *IDS), expected, **CLOSE)
    for token, row in zip(IDS, expected, strict=True):
        np.testing.assert_allclose(run(single, token), row[None], **CLOSE)
    other_states, _ = model.read_states(single.states)
    for name, rows in model.read_states(at_once.states)[0].items():
        other = other_states[name]
        np.testing.assert_allclose(rows.view(np.float32), other.view(np.float32), **CLOSE)


def test_a_truncated_session_grows_again_like_a_new_one(model: Model) -> None:
    check_truncated(model)


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_session_of_halves_is_truncated_and_saved(tmp_path: Path, device: Device) -> None:
    """A model of block-quantised weights rounds its keys and values to bfloat16."""
    write_model(tmp_path / "rounded.gguf", replace(SMALL, types=(Type.Q8_0,)))
    webmlc.build(tmp_path / "rounded.gguf", tmp_path / "package", target=device)
    model = webmlc.load(tmp_path / "package", device=device)
    states = (b for b in model.manifest.programs[device].buffers if b.kind == "state")
    assert {buffer.dtype for buffer in states} == {DType.bfloat16}
    check_truncated(model)
    model.dispose()


def check_truncated(model: Model) -> None:
    """Compare a session that was truncated with a new one, and with a copy of what it saves."""
    session, fresh = model.session(capacity=32), model.session(capacity=32)
    run(session, *IDS)
    session.truncate(6)
    run(fresh, *IDS[:6])
    other = IDS[::-1][:9]
    np.testing.assert_allclose(run(session, *other), run(fresh, *other), **CLOSE)
    copy = model.session(capacity=40)
    copy.load(session.save())
    np.testing.assert_array_equal(run(copy, 3), run(session, 3))


def test_many_tokens_take_no_new_memory(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    session = model.session(capacity=MANY + 16)
    calls: Counter[str] = Counter()
    executor: Any = model._executors[model.device]
    for token in IDS[:4]:  # the first runs plan, allocate and bind
        run(session, token)
    plans = len(executor.bindings.items)
    if model.device == "wasm":
        memory = executor.memory
    else:
        for name in ("create_buffer", "create_buffer_with_data", "create_bind_group"):
            monkeypatch.setattr(executor.device, name, forbidden(name))
        for owner, name in (
            (executor, "_begin"),
            (executor, "_read"),
            (executor.staging, "map_sync"),
        ):
            monkeypatch.setattr(owner, name, counted(getattr(owner, name), calls))
    count = MANY if model.device == "wasm" else FEW
    for index in range(count):
        ids = np.array([[index % SMALL.vocabulary]])
        assert list(session.run({"input_ids": ids}, ["next_token"])) == ["next_token"]
    assert session.length == count + 4
    assert len(executor.bindings.items) == plans
    if model.device == "wasm":
        assert executor.memory is memory
    else:  # a token is one pass, one submission and one readback
        assert calls == {"_begin": count, "_read": count, "map_sync": count}


def counted(function: Any, calls: Counter[str]) -> Any:
    """The same function, whose calls are counted by its name."""

    def call(*values: object, **named: Any) -> Any:
        calls[function.__name__] += 1
        return function(*values, **named)

    return call


def forbidden(name: str) -> Any:
    def call(*_: object, **named: Any) -> Any:
        raise AssertionError(f"{name}({named}) while tokens are generated")

    return call
