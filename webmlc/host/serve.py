"""Serve packages to browsers on this machine, with the headers that let pages use threads.

In: a folder. Out: a server on the loopback interface. `serve_forever` runs it, and `shutdown` stops
it. `webmlc/tune/measure/listen.py` adds calls to the handler, and may listen at another address.

    with serve(Path("build/digits")) as server:
        print(server.url)
        server.serve_forever()

Cross-Origin-Opener-Policy and Cross-Origin-Embedder-Policy make a page cross-origin isolated, which
shared memory needs (HTML Standard, "cross-origin isolation").

The server answers only requests to its address. Otherwise, a foreign page could make its host name
resolve to 127.0.0.1 (DNS rebinding) and read the folder. Its requests carry that name in their Host
header. A server of all interfaces answers to every numeric address, because a number is never
resolved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from webmlc.core.errors import UserError

HOST = "127.0.0.1"
"""The address that the server binds to by default."""
ANY_ADDRESS = "0.0.0.0"
"""The address that stands for every interface of this machine."""
NAMES = (HOST, "localhost")
"""The names by which a browser on this machine reaches the server."""
HTTP_PORT = 80
"""The port of an address without a port."""
HEADERS: Mapping[str, str] = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """A server at an address of this machine."""

    daemon_threads = True

    def __init__(self, address: str, port: int, handler: Callable[..., FileHandler]) -> None:
        """Listen at an address. Port 0 picks a free port.

        Raises `UserError` if the address or the port is not available.
        """
        self.address = address
        try:
            super().__init__((address, port), handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"cannot listen on {address}:{port} ({error}); choose another port, or 0"
            ) from error

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches the server."""
        return self.address in NAMES

    @property
    def url(self) -> str:
        """The URL of the folder, with a final slash."""
        return f"http://{HOST if self.address == ANY_ADDRESS else self.address}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error of a handler, but not that a client left in the middle of a request."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answers_as(self, host: str) -> bool:
        """True for the Host header of a valid request to this server."""
        name, _, port = host.lower().partition(":")
        if (port or str(HTTP_PORT)) != str(self.server_port):
            return False
        if self.address == ANY_ADDRESS:
            return name in NAMES or _is_number(name)
        return name in (NAMES if self.is_local else (self.address.lower(),))


def _is_number(name: str) -> bool:
    """True if a host is an IPv4 address and not a name."""
    try:
        IPv4Address(name)
    except ValueError:
        return False
    return True


class FileHandler(SimpleHTTPRequestHandler):
    """A handler that serves the files of one folder.

    It lists no folders, and follows no links that leave the folder.
    """

    server: Server

    extensions_map = {  # noqa: RUF012 (the base class declares it so)
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".json": "application/json",
        ".mjs": "text/javascript; charset=utf-8",
        ".png": "image/png",
        ".svg": "image/svg+xml",
        ".ts": "text/plain; charset=utf-8",
        ".wasm": "application/wasm",
        ".wat": "text/plain; charset=utf-8",
        ".wgsl": "text/plain; charset=utf-8",
        "": "application/octet-stream",
    }
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, quiet: bool, **options: Any) -> None:
        self.quiet = quiet
        super().__init__(*arguments, **options)

    def parse_request(self) -> bool:
        """Refuse all requests to another host."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "")
        if self.server.answers_as(host):
            return True
        reason = f"This server answers as {self.server.url} only, not as {host or 'no host'}."
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=reason)
        return False

    def end_headers(self) -> None:
        """Add the isolation headers to every response."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def translate_path(self, path: str) -> str:
        """The file of a URL, or a path that does not exist if it is outside the folder."""
        place = Path(super().translate_path(path))
        root = Path(self.directory).resolve()
        return str(place if place.resolve().is_relative_to(root) else root / "\0outside")

    def send_head(self) -> Any:
        """Refuse a path that no file can have. A path outside the folder is not found."""
        try:
            path = self.translate_path(self.path)
        except ValueError as error:  # a NUL byte, or a surrogate
            self.send_error(HTTPStatus.BAD_REQUEST, explain=f"No file has this path: {error}.")
            return None
        if "\0" in path:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        """Refuse to list a folder."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log to standard error unless quiet."""
        if not self.quiet:
            super().log_message(format, *arguments)


def serve(folder: Path, port: int = 0, quiet: bool = False) -> Server:
    """Create a server of `folder` on 127.0.0.1. Port 0 picks a free port.

    Raises `UserError` if there is no such folder, or if the port is not available.
    """
    if folder.is_file():
        raise UserError(f"{folder}: this is a file. Name the folder of a package, or of a page.")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder to serve")
    handler = partial(FileHandler, directory=str(folder), quiet=quiet)
    return Server(HOST, port, handler)
