"""Serve the page by which a device without Python joins a search.

    GET  /                 the page, and the files beside it
    POST /api/join         {engine, cpu, adapter, threads}            ->  {worker, device}
    POST /api/next         {worker}                                   ->  {id, trial, title} | {wait} | {done}
    POST /api/result       {worker, id, measurement | error}          ->  {}

`page/join.js` is the client. The server listens on the loopback interface, unless the user names
another address: then everyone who reaches that address may read the kernels that are measured, and
post times.
"""  # noqa: E501 (the table)

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from webmlc.core.errors import UserError
from webmlc.host.serve import HOST, NAMES, Handler, Server
from webmlc.tune.trial import Measurement, Trial, measurement_of, to_data

PAGE = Path(__file__).parent / "page"
"""The folder of the page."""
MAX_BODY_BYTES = 1 << 20
"""The largest request that is read: a measurement of hundreds of candidates has 100 KB."""
ANYWHERE = ("0.0.0.0", "::")
"""Addresses that stand for every interface of this machine."""


class Broker(Protocol):
    """What hands out trials (`pages.PageServer`)."""

    def join(self, platform: Mapping[str, Any]) -> str:
        """The name of a new worker. Raises `UserError` if it cannot measure anything."""

    def next(self, worker: str) -> tuple[int, Trial, str] | float | None:
        """A number, a trial and its title; or the seconds to wait; `None`: there is nothing left.

        Raises `KeyError` if there is no such worker.
        """

    def result(self, worker: str, id: int, measurement: Measurement | str) -> None:
        """Take in a measurement, or the text of an error. Raises `KeyError` as `next` does."""

    def trial_of(self, worker: str) -> Trial | None:
        """The trial that a worker has."""

    @property
    def device(self) -> str:
        """The device whose kernels are measured."""


class TuneServer(Server):
    """The server of one search."""

    def __init__(self, broker: Broker, address: str, port: int) -> None:
        self.broker, self.address = broker, address
        handler = partial(_PageHandler, directory=str(PAGE), quiet=True)
        super().__init__((address, port), handler)

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches the server."""
        return self.address in NAMES

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{HOST if self.address in ANYWHERE else self.address}:{self.server_port}/"

    def answers_as(self, host: str) -> bool:
        """See `Server.answers_as`. The user's address is answered to under any name."""
        return not self.is_local or super().answers_as(host)


class _PageHandler(Handler):
    """The handler of the page's files and of its calls."""

    server: TuneServer

    def do_POST(self) -> None:
        """Answer a call of the page."""
        calls: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/api/join": self._join,
            "/api/next": self._next,
            "/api/result": self._result,
        }
        if self.path not in calls:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            answer = calls[self.path](self._body())
        except (ValueError, TypeError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except KeyError:
            self._answer(HTTPStatus.GONE, {"error": "this worker was given up; join again"})
        except UserError as error:
            self._answer(HTTPStatus.FORBIDDEN, {"error": str(error)})
        else:
            self._answer(HTTPStatus.OK, answer)

    def _join(self, body: dict[str, Any]) -> dict[str, Any]:
        broker = self.server.broker
        return {"worker": broker.join(body), "device": broker.device}

    def _next(self, body: dict[str, Any]) -> dict[str, Any]:
        job = self.server.broker.next(str(body.get("worker")))
        if job is None:
            return {"done": True}
        if isinstance(job, float | int):
            return {"wait": 1000 * job}
        number, trial, title = job
        return {"id": number, "trial": to_data(trial), "title": title}

    def _result(self, body: dict[str, Any]) -> dict[str, Any]:
        broker, worker = self.server.broker, str(body.get("worker"))
        trial = broker.trial_of(worker)
        outcome: Measurement | str = str(body.get("error", ""))
        if "measurement" in body and trial is not None:
            outcome = measurement_of(body["measurement"], trial.candidates)
        broker.result(worker, int(body.get("id", -1)), outcome)
        return {}

    def _body(self) -> dict[str, Any]:
        """The JSON object of the request. Raises `ValueError`."""
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            raise ValueError(f"a request of {length} bytes; at most {MAX_BODY_BYTES} are read")
        body = json.loads(self.rfile.read(length))
        if not isinstance(body, dict):
            raise ValueError("a request is a JSON object")
        return body

    def _answer(self, status: HTTPStatus, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def listen(broker: Broker, address: str = HOST, port: int = 0) -> TuneServer:
    """Create the server of a search. Port 0 picks a free port.

    Raises `UserError` if the address or the port is not available.
    """
    try:
        return TuneServer(broker, address, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"--listen {address}:{port}: cannot listen there ({error})") from error
