"""Sessions of a recurrent model: states that each run replaces, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.recurrent import RECURRENT, TOLERANCE, expected, inputs, zeros
from webmlc.core.errors import InputError, UserError
from webmlc.core.stages import watcher
from webmlc.host.load import Model
from webmlc.pipeline import shared_graph

pytestmark = pytest.mark.xdist_group("recurrent_session")  # one worker builds what the tests share


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent")
    webmlc.build(RECURRENT, folder)
    return folder


def test_runs_replace_the_states_of_their_session(model: Model) -> None:
    assert [port.name for port in model.inputs] == ["x", "w"]
    assert [port.name for port in model.outputs] == ["y"]
    session, other = model.session(), model.session()
    states = zeros(3)
    for number in range(12):
        feeds = inputs(3)
        y, states = expected(feeds, states)
        np.testing.assert_allclose(session.run(feeds)["y"], y, **TOLERANCE)
        if not number:  # a session between the runs of another
            np.testing.assert_allclose(other.run(feeds)["y"], y, **TOLERANCE)
    with pytest.raises(InputError, match="began with other sizes"):
        session.run(inputs(2))
    with pytest.raises(InputError, match="states that do not grow: call reset, or load"):
        session.truncate(0)


def test_new_and_reset_sessions_begin_with_zeros(model: Model) -> None:
    session, feeds = model.session(), inputs(2)
    first = session.run(feeds)["y"]
    assert not np.array_equal(session.run(feeds)["y"], first)
    session.reset()
    np.testing.assert_array_equal(session.run(feeds)["y"], first)
    session.dispose()
    np.testing.assert_array_equal(model.session().run(feeds)["y"], first)  # in the same memory


def test_a_saved_session_continues_in_another(model: Model) -> None:
    session, other, feeds = model.session(), model.session(), inputs(2)
    new = session.save()
    first = session.run(feeds)["y"]
    other.load(session.save())
    np.testing.assert_array_equal(session.run(feeds)["y"], other.run(feeds)["y"])
    other.load(new)
    np.testing.assert_array_equal(other.run(feeds)["y"], first)


def test_without_a_session_states_are_inputs_and_outputs(model: Model) -> None:
    feeds = inputs(2)
    states = {name: np.full((2, 4), 0.5, np.float32) for name in zeros(2)}
    y, after = expected(feeds, states)
    results = model.run(feeds | states)
    np.testing.assert_allclose(results["y"], y, **TOLERANCE)
    np.testing.assert_allclose(results["stateN"], after["state"], **TOLERANCE)
    np.testing.assert_array_equal(results["cache_out"], after["cache_in"])
    np.testing.assert_array_equal(model.run(feeds)["y"], model.run(feeds | zeros(2))["y"])
    with pytest.raises(InputError, match=r"'state' has shape \[3, 4\], expected \[2, 4\]"):
        model.run(feeds | states | {"state": np.zeros((3, 4), np.float32)})
    with pytest.raises(InputError, match="'cache_in' is missing, but other pasts are there"):
        model.run(feeds | {"state": states["state"]})


def test_states_can_be_left_to_the_caller(tmp_path: Path) -> None:
    webmlc.build(RECURRENT, tmp_path, target="wasm", state="off")
    model = webmlc.load(tmp_path, device="wasm")
    assert [port.name for port in model.inputs] == ["x", "state", "cache_in", "w"]
    with pytest.raises(UserError, match="has no states"):
        model.session()


@pytest.mark.parametrize(
    ("past", "present", "pairs"),
    [
        ("state", "stateN", 1),
        ("h0", "hn", 1),
        ("hx", "new_hx", 1),
        ("hidden_in", "hidden_out", 1),
        ("past_cell", "present_cell", 1),
        ("prev_state", "next_state", 1),
        ("gru_cache", "gru_cache_out", 1),
        ("image", "image_out", 0),  # no word for a state
        ("state", "other_out", 0),
        ("state", "result", 0),
    ],
)
def test_names_say_which_pairs_are_states(past: str, present: str, pairs: int) -> None:
    model = parse(
        f"g (float[b,4] x, float[b,4] {past}) => (float[b,4] y, float[b,4] {present})"
        f" {{ {present} = Add(x, {past}) y = Sin({present}) }}"
    )
    module = shared_graph(model, watch=watcher(None))
    assert [port.past for port in module.state_ports] == [past] * pairs


@pytest.mark.parametrize(
    "text",
    [
        "(float[b,4] x, float[b,4] state) => (float[b,4] y, float[b,4] state_out)"
        " { y = Sin(x) state_out = Identity(state) }",  # only returned
        "(float[b,4] x, float[b,4] state) => (float[b,4] y, float[b,8] state_out)"
        " { y = Add(x, state) state_out = Concat<axis=1>(x, state) }",  # another size
        "(float[b,4] state) => (float[b,4] y, float[b,4] state_out)"
        " { y = Sin(state) state_out = Sin(y) }",  # no other input
        "(float[4] x, float[b,4] state) => (float[b,4] y, float[b,4] state_out)"
        " { y = Add(x, state) state_out = Sin(y) }",  # no other input has its size
    ],
)
def test_other_pairs_are_no_states(text: str) -> None:
    assert not shared_graph(parse(f"g {text}"), watch=watcher(None)).state_ports


@pytest.mark.parametrize(
    "text",
    [
        # the GPU has no float64: the state is read on both devices, or on the CPU
        "(float[b,4] x, float[b,4] state) => (float[b,4] y, float[b,4] state_out)"
        " { wide = Cast<to=11>(state) root = Sin(wide) narrow = Cast<to=1>(root)"
        " sum = Add(x, state) y = Add(sum, narrow) state_out = Sin(y) }",
        "(float[b,4] x, double[b,4] state) => (float[b,4] y, double[b,4] state_out)"
        " { root = Sin(state) narrow = Cast<to=1>(root) sum = Add(x, narrow) y = Sin(sum)"
        " state_out = Cast<to=11>(y) }",
    ],
)
def test_states_of_kernels_on_the_cpu(text: str, tmp_path: Path) -> None:
    model = parse(f"g {text}")
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    webmlc.build(model, tmp_path, target="webgpu")
    loaded = webmlc.load(tmp_path, device="webgpu")
    assert "wasm" in {step.device for step in loaded.program.steps}
    session = loaded.session()
    state = np.zeros((2, 4), loaded.all_inputs[1].dtype)
    for _ in range(5):
        x = inputs(2)["x"]
        y, state = reference.run(None, {"x": x, "state": state})
        np.testing.assert_allclose(session.run({"x": x})["y"], y, **TOLERANCE)
    other = loaded.session()
    other.load(session.save())
    np.testing.assert_array_equal(other.run({"x": x})["y"], session.run({"x": x})["y"])
