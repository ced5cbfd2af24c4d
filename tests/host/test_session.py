"""Sessions: states that grow in place, on every device, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.decoders import DECODER, expected, rows
from webmlc.core.errors import InputError, UserError
from webmlc.host.load import Model

pytestmark = pytest.mark.xdist_group("session")  # one worker builds what the tests share


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    webmlc.build(DECODER, folder)
    return folder


def test_runs_append_to_the_state_of_their_session(model: Model) -> None:
    assert [port.name for port in model.inputs] == ["x", "w"]
    assert [port.name for port in model.outputs] == ["y"]
    session, other = model.session(capacity=16), model.session(capacity=9)
    past = np.zeros((1, 0, 4), np.float32)
    for count in (5, 1, 1, 1, 3, 1):
        feeds = rows(count)
        y, present = expected(feeds, past)
        np.testing.assert_allclose(session.run(feeds)["y"], y, rtol=1e-4, atol=1e-5)
        if not past.size:  # a session between the runs of another
            np.testing.assert_allclose(other.run(feeds)["y"], y, rtol=1e-4, atol=1e-5)
        past = present
        assert session.length == past.shape[1]
    assert other.length == 5


def test_without_a_session_the_past_is_an_input_and_an_output(model: Model) -> None:
    past = np.zeros((1, 0, 4), np.float32)
    for count in (3, 1, 2):
        feeds = rows(count)
        y, present = expected(feeds, past)
        results = model.run({**feeds, "past": past})
        np.testing.assert_allclose(results["y"], y, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(results["present"], present, rtol=1e-4, atol=1e-5)
        past = present
    with pytest.raises(InputError, match=r"'past' has dtype float64 and 3 dimensions, expected"):
        model.run({**rows(1), "past": np.zeros((1, 2, 4))})


def test_a_truncated_session_continues_as_a_new_one(model: Model) -> None:
    session, other = model.session(capacity=8), model.session(capacity=8)
    first, second, third = rows(3), rows(4), rows(2)
    session.run(first)
    session.run(second)
    session.truncate(3)
    other.run(first)
    assert session.length == 3
    np.testing.assert_array_equal(session.run(third)["y"], other.run(third)["y"])
    with pytest.raises(InputError, match="length is 6, expected a number from 0 to 5"):
        session.truncate(6)


def test_a_saved_session_continues_in_another(model: Model) -> None:
    session, other = model.session(capacity=8), model.session(capacity=20)
    session.run(rows(5))
    other.load(session.save())
    feeds = rows(2)
    np.testing.assert_array_equal(session.run(feeds)["y"], other.run(feeds)["y"])
    assert other.length == 7
    with pytest.raises(InputError, match="7 rows, but capacity is 4"):
        model.session(capacity=4).load(session.save())
    with pytest.raises(InputError, match="no saved session"):
        session.load(b"nothing")


def test_a_session_refuses_more_rows_than_its_capacity(model: Model) -> None:
    session = model.session(capacity=4)
    session.run(rows(3))
    with pytest.raises(InputError, match="holds 3 of 4 rows, so 2 more do not fit"):
        session.run(rows(2))
    assert session.length == 3
    session.dispose()
    with pytest.raises(UserError, match="disposed of"):
        session.run(rows(1))


def test_memory_is_planned_once_for_a_session(package: Path) -> None:
    model = webmlc.load(package, device="wasm")
    session = model.session(capacity=64)
    executor: Any = model._executors["wasm"]
    session.run(rows(1))
    memory, plans = executor.memory, len(executor.bindings.items)
    for _ in range(40):
        session.run(rows(1))
    assert executor.memory is memory
    assert len(executor.bindings.items) == plans
    session.dispose()
    model.session(capacity=60).run(rows(1))  # takes the memory of the other
    assert executor.memory is memory
    model.dispose()


def test_states_can_be_left_to_the_caller(tmp_path: Path) -> None:
    webmlc.build(DECODER, tmp_path, target="wasm", state="off")
    model = webmlc.load(tmp_path, device="wasm")
    assert [port.name for port in model.inputs] == ["x", "past", "w"]
    with pytest.raises(UserError, match="has no states"):
        model.session(capacity=4)
    model.dispose()


def test_a_concat_that_the_model_only_returns_is_no_state(tmp_path: Path) -> None:
    model = parse("g (float[n,4] x, float[m,4] z) => (float[k,4] y) { y = Concat<axis=0>(x, z) }")
    webmlc.build(model, tmp_path, target="wasm")
    loaded = webmlc.load(tmp_path, device="wasm")
    assert [port.name for port in loaded.inputs] == ["x", "z"]
    assert not loaded.manifest.length
    loaded.dispose()
