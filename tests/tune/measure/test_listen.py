"""The server of a search: its page, its calls, and what it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any

import pytest
from msgspec import to_builtins

from tests.tune.conftest import good_candidates, matmul_task, trial_of
from webmlc.core.errors import UserError
from webmlc.core.machine import Device
from webmlc.host.serve import Server
from webmlc.tune.measure.listen import MAX_BODY_BYTES, TuneServer, listen
from webmlc.tune.measure.trial import Measurement, Trial


class OneTrial:
    """A broker with one trial for one worker, which must wait once before it gets the trial."""

    device: Device = "wasm"

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.calls = 0
        self.results: list[tuple[int, Measurement | str]] = []

    def join(self, platform: Mapping[str, Any]) -> str:
        if "cpu" not in platform:
            raise UserError("this device has no CPU")
        return "worker 1"

    def next(self, worker: str) -> tuple[int, Trial, str] | float | None:
        {"worker 1": None}[worker]
        self.calls += 1
        return (0.25, (7, self.trial, "matmul"), None)[min(self.calls, 3) - 1]

    def trial_of(self, worker: str) -> Trial | None:
        return self.trial if worker == "worker 1" else {}[worker]

    def result(self, worker: str, id: int, measurement: Measurement | str) -> None:
        self.results.append((id, measurement))


@pytest.fixture(scope="module")
def trial() -> Trial:
    task = matmul_task()
    return trial_of(task, good_candidates(task, 2))


@pytest.fixture
def server(trial: Trial) -> Iterator[TuneServer]:
    with listen(OneTrial(trial)) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def request(
    server: Server, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}
) -> tuple[int, bytes]:
    """The status and the body of a response."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    return response.status, response.read()


def call(server: Server, name: str, body: Any) -> tuple[int, Any]:
    """The status of a call, and its answer."""
    status, answer = request(server, "POST", f"/api/{name}", json.dumps(body).encode())
    return status, json.loads(answer)


def test_the_page_and_nothing_else_is_served(server: TuneServer) -> None:
    status, page = request(server, "GET", "/")
    assert (status, b"webmlc tune" in page) == (200, True)
    assert request(server, "GET", "/measure.js")[0] == 200
    assert request(server, "GET", "/..%2ftrial.py")[0] == 404


def test_a_worker_joins_waits_measures_and_ends(server: TuneServer, trial: Trial) -> None:
    assert call(server, "join", {"cpu": {}}) == (200, {"worker": "worker 1", "device": "wasm"})
    assert call(server, "next", {"worker": "worker 1"}) == (200, {"wait": 250.0})
    answer = {"id": 7, "trial": json.loads(json.dumps(to_builtins(trial))), "title": "matmul"}
    assert call(server, "next", {"worker": "worker 1"}) == (200, answer)
    measurement = {"milliseconds": [[2.0, 1.5], []], "reasons": ["", "wrong: x"]}
    for outcome in ({"measurement": measurement}, {"error": "it crashed"}):
        assert call(server, "result", {"worker": "worker 1", "id": 7, **outcome}) == (200, {})
    assert call(server, "next", {"worker": "worker 1"}) == (200, {"done": True})
    measured = Measurement(((2.0, 1.5), ()), ("", "wrong: x"))
    assert server.broker.results == [(7, measured), (7, "it crashed")]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "body", "status", "reason"),
    [
        ("join", {}, 403, "this device has no CPU"),
        ("join", [], 400, "The body is not a JSON object."),
        ("next", {}, 400, "A call names its worker."),
        ("next", {"worker": "worker 2"}, 410, "There is no such worker; join again."),
        ("result", {"worker": "worker 2", "id": 7}, 410, "There is no such worker; join again."),
        ("result", {"worker": "worker 1"}, 400, "A result has the id of its trial."),
        ("stop", {"worker": "worker 1"}, 404, "There is no call /api/stop."),
    ],
)
def test_bad_calls_are_refused(
    server: TuneServer, name: str, body: Any, status: int, reason: str
) -> None:
    assert call(server, name, body) == (status, {"error": reason})


@pytest.mark.parametrize(
    "measurement",
    [
        None,
        {"milliseconds": [[1.0]], "reasons": [""]},
        {"milliseconds": [[0.0], [1.0]], "reasons": ["", ""]},
        {"milliseconds": [["x"], [1.0]], "reasons": ["", ""]},
    ],
)
def test_bad_measurements_are_refused(server: TuneServer, measurement: Any) -> None:
    body = {"worker": "worker 1", "id": 7, "measurement": measurement}
    status, answer = call(server, "result", body)
    assert status == 400
    assert answer["error"].startswith("The result cannot be read: ")
    assert server.broker.results == []  # type: ignore[attr-defined]


def test_bad_bodies_are_refused(server: TuneServer) -> None:
    assert request(server, "POST", "/api/join", b"{")[0] == 400
    assert request(server, "POST", "/api/join", b"[" * 100_000)[0] == 400
    assert request(server, "POST", "/api/join", b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert request(server, "POST", "/api/join", b"{}", {"Content-Length": "x"})[0] == 411
    too_many = {"Content-Length": str(MAX_BODY_BYTES + 1)}
    assert request(server, "POST", "/api/join", b"{}", too_many)[0] == 413
    assert request(server, "POST", "/api/join", b"{}", {"Host": "evil.example"})[0] == 421


def test_a_server_of_all_interfaces_answers_to_numbers_only(trial: Trial) -> None:
    """A name may have been pointed at this machine by a foreign page; a number cannot be."""
    with listen(OneTrial(trial), "0.0.0.0") as running:
        port = running.server_port
        assert running.url == f"http://127.0.0.1:{port}/"
        assert not running.is_local
        hosts = ("192.168.1.5", "localhost", "evil.example", "10.0.0.1.evil.example", "")
        answers = [running.answers_as(f"{host}:{port}") for host in hosts]
        assert answers == [True, True, False, False, False]
        assert not running.answers_as(f"192.168.1.5:{port + 1}")


def test_a_taken_port_is_a_user_error(server: TuneServer, trial: Trial) -> None:
    with pytest.raises(UserError, match="cannot listen"):
        listen(OneTrial(trial), port=server.server_port)
