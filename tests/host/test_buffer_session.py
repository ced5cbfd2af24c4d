"""Sessions of a decoder whose pasts are buffers: GroupQueryAttention against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import webmlc
from tests.against_onnxruntime import parse
from tests.graph.algorithms.attention.test_group_query_attention import (
    GROUPS,
    SIZE,
    Feeds,
    feeds_of,
    model_of,
)
from webmlc.core.errors import InputError
from webmlc.core.stages import watcher
from webmlc.host.load import Model
from webmlc.pipeline import shared_graph

pytestmark = pytest.mark.xdist_group("buffer_session")  # one worker builds what the tests share

MODEL = model_of(past=True, rotary=True)
PASTS = ("past_k", "past_v")
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buffers")
    webmlc.build(MODEL, folder)
    return folder


def test_runs_write_to_the_buffers_of_their_session(model: Model) -> None:
    reference = onnxruntime.InferenceSession(MODEL.SerializeToString())
    assert not {*PASTS} & {port.name for port in model.inputs}
    session, other = model.session(capacity=16), model.session(capacity=12)
    pasts = {name: np.zeros((2, GROUPS, 16, SIZE), np.float32) for name in PASTS}
    lengths = [5, 3]
    for number in range(8):  # a prompt of rows that differ, then tokens
        tokens = 1 if number else 5
        feeds = feeds_of(lengths, tokens, None, max(lengths), True)
        y, *presents = reference.run(None, feeds | pasts)
        pasts = dict(zip(PASTS, presents, strict=True))
        got = session.run(feeds)["y"]
        for row, length in enumerate(lengths):
            valid = slice(0, tokens if number else length)
            np.testing.assert_allclose(got[row, valid], y[row, valid], **TOLERANCE)
        if not number:  # a session of another capacity
            np.testing.assert_allclose(other.run(feeds)["y"][0], got[0], **TOLERANCE)
        lengths = [length + 1 for length in lengths]
    copy = model.session(capacity=16)
    copy.load(session.save())
    feeds = feeds_of(lengths, 1, None, max(lengths), True)
    np.testing.assert_array_equal(copy.run(feeds)["y"], session.run(feeds)["y"])
    with pytest.raises(InputError, match="has capacity 16, not 12"):
        other.load(session.save())


def test_more_rows_than_the_capacity_are_refused(model: Model) -> None:
    session = model.session(capacity=6)
    session.run(feeds_of([5, 5], 5, None, 5, True))
    session.run(feeds_of([6, 6], 1, None, 6, True))
    with pytest.raises(InputError, match="the first must not be larger"):
        session.run(feeds_of([7, 7], 1, None, 7, True))
    with pytest.raises(InputError, match="capacity is missing"):
        model.session()


@pytest.mark.parametrize(("stored", "total"), [(16, 7), (6, 7), (7, 7)])
def test_without_a_session_pasts_are_inputs(model: Model, stored: int, total: int) -> None:
    reference = onnxruntime.InferenceSession(MODEL.SerializeToString())
    feeds: Feeds = feeds_of([7, 4], 1, stored, total, True)
    got = model.run(feeds)
    wanted = dict(zip(("y", "present_k", "present_v"), reference.run(None, feeds), strict=True))
    np.testing.assert_allclose(got["y"], wanted["y"], **TOLERANCE)
    for name in ("present_k", "present_v"):
        assert got[name].shape == wanted[name].shape
        for row, length in enumerate((7, 4)):
            valid = (row, slice(None), slice(0, length))
            np.testing.assert_allclose(got[name][valid], wanted[name][valid], **TOLERANCE)


@pytest.mark.parametrize(
    ("past", "pads", "pairs"),
    [
        ("[b,2,past,4]", "0,0,0,0,0,0,3,0", 0),  # more rows after each run
        ("[b,2,past,4]", "", 1),
        ("[b,2,n,4]", "", 0),  # another input has the number of rows
        ("[m,2,past,4]", "", 0),  # no other input has the batch
    ],
)
def test_pasts_of_the_capacity_are_states(past: str, pads: str, pairs: int) -> None:
    padded = f"pads = Constant<value_ints=[{pads}]>() b = Pad(cache, pads)" if pads else ""
    model = parse(
        f"g (float[b,2,n,4] x, int64[b] places, float{past} cache)"
        " => (float[b,2,n,4] y, float[b,2,t,4] out)"
        f" {{ {padded} out = TensorScatter<axis=2>({'b' if pads else 'cache'}, x, places)"
        " y = Sin(x) }",
        opset=24,
    )
    module = shared_graph(model, watch=watcher(None))
    assert [port.past for port in module.state_ports] == ["cache"] * pairs
    assert module.capacity == ("past" if pairs else "")
