"""Serve the page by which devices join a search, and hand out trials to them.

In: a `Broker`, which has the trials. Out: a server, which `serve_forever` runs and `shutdown` stops.

    with listen(broker) as server:
        print(server.url)                      # a browser that opens this page joins
        server.serve_forever()

| Request            | Body                                 | Answer                                |
|--------------------|--------------------------------------|---------------------------------------|
| `GET /`            |                                      | the page, and the files beside it     |
| `POST /api/join`   | `{engine, cpu, adapter, threads}`    | `{worker, device}`                    |
| `POST /api/next`   | `{worker}`                           | `{id, trial, title}`, `{wait}`: milliseconds, or `{done}` |
| `POST /api/result` | `{worker, id, measurement}` or `{worker, id, error}` | `{}`                  |

Bodies and answers are JSON. A refusal is `{error}`, one sentence, with a status of 400 or more. 410
says that there is no such worker: the page joins again. `page/join.js` is the client.

A page of another origin cannot call the server: JSON bodies need a preflight request, which the
server does not answer. On an address other than the loopback interface, everyone who reaches it may
read the trials and post results. Browsers then offer neither WebGPU nor threads, because plain HTTP
to another machine is not a secure context.
"""  # noqa: E501 (the table)

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from msgspec import to_builtins

from webmlc.core.errors import UserError
from webmlc.core.machine import Device
from webmlc.host.serve import HOST, FileHandler, Server
from webmlc.tune.measure.trial import Measurement, Trial, measurement_of

PAGE = Path(__file__).parent / "page"
"""The folder of the page."""
MAX_BODY_BYTES = 1 << 20
"""The bytes of the largest request that is read. A measurement of 300 candidates has 100 KB."""
JSON = "application/json"
"""The type of bodies and answers."""


class Broker(Protocol):
    """The source of trials. Several threads call it at the same time."""

    @property
    def device(self) -> Device:
        """The device whose kernels are measured."""

    def join(self, platform: Mapping[str, Any]) -> str:
        """The name of a new worker. Raises `UserError` if it can measure nothing."""

    def next(self, worker: str) -> tuple[int, Trial, str] | float | None:
        """A number, a trial and its title; the seconds to wait; or `None` if the search is done.

        Raises `KeyError` if there is no such worker.
        """

    def trial_of(self, worker: str) -> Trial | None:
        """The trial that a worker has now. Raises `KeyError` as `next` does."""

    def result(self, worker: str, id: int, measurement: Measurement | str) -> None:
        """Take in a measurement, or the text of an error. Raises `KeyError` as `next` does."""


class _Refusal(Exception):
    """A request that cannot be answered: the status, and why in one sentence."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class TuneServer(Server):
    """The server of one search."""

    def __init__(self, broker: Broker, address: str, port: int, quiet: bool) -> None:
        self.broker = broker
        super().__init__(address, port, partial(_Handler, directory=str(PAGE), quiet=quiet))


class _Handler(FileHandler):
    """A handler that serves the files of the page, and answers its calls."""

    server: TuneServer

    def do_POST(self) -> None:
        """Answer a call."""
        try:
            status, answer = HTTPStatus.OK, self._call(self._body())
        except _Refusal as refusal:
            status, answer = refusal.status, {"error": str(refusal)}
        except UserError as error:
            status, answer = HTTPStatus.FORBIDDEN, {"error": str(error)}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> dict[str, Any]:
        """The JSON object that the request holds."""
        self.close_connection = True  # unless the whole body is read
        if self.headers.get_content_type() != JSON:
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"A call has a body of type {JSON}.")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "A call says how long its body is.")
        if int(length) > MAX_BODY_BYTES:
            reason = f"A call has at most {MAX_BODY_BYTES} bytes, not {length}."
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        data = self.rfile.read(int(length))
        self.close_connection = False
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, f"The body is not JSON: {error}.") from error
        if not isinstance(body, dict):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "The body is not a JSON object.")
        return body

    def _call(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a call."""
        if self.path == "/api/join":
            broker = self.server.broker
            return {"worker": broker.join(body), "device": broker.device}
        worker = body.get("worker")
        if not isinstance(worker, str):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "A call names its worker.")
        try:
            match self.path:
                case "/api/next":
                    return self._next(worker)
                case "/api/result":
                    return self._result(worker, body)
        except KeyError as error:
            raise _Refusal(HTTPStatus.GONE, "There is no such worker; join again.") from error
        raise _Refusal(HTTPStatus.NOT_FOUND, f"There is no call {self.path}.")

    def _next(self, worker: str) -> dict[str, Any]:
        """The next trial of a worker."""
        match self.server.broker.next(worker):
            case None:
                return {"done": True}
            case (number, trial, title):
                return {"id": number, "trial": to_builtins(trial), "title": title}
            case seconds:
                return {"wait": 1e3 * seconds}

    def _result(self, worker: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Pass on a result."""
        broker = self.server.broker
        trial, number = broker.trial_of(worker), body.get("id")
        if not isinstance(number, int):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "A result has the id of its trial.")
        if trial is None:  # it was given up
            return {}
        outcome: Measurement | str
        try:
            if "error" in body:
                outcome = str(body["error"])
            else:
                outcome = measurement_of(body["measurement"], trial.candidates)
        except (ValueError, KeyError) as error:
            reason = f"The result cannot be read: {error}."
            raise _Refusal(HTTPStatus.BAD_REQUEST, reason) from error
        broker.result(worker, number, outcome)
        return {}


def listen(broker: Broker, address: str = HOST, port: int = 0, quiet: bool = True) -> TuneServer:
    """Create the server of a search. Port 0 picks a free port.

    Raises `UserError` if the address or the port is not available.
    """
    return TuneServer(broker, address, port, quiet)
