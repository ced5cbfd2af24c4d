"""A static server for packages: loopback only, with the headers that let pages use threads.

In: a folder. Out: a server; `serve_forever` runs it, `shutdown` stops it.

    with serve(Path("build/digits")) as server:
        print(server.url)
        server.serve_forever()

Cross-Origin-Opener-Policy and Cross-Origin-Embedder-Policy make a page cross-origin isolated, which
shared memory needs (HTML Standard, "cross-origin isolation").
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from webmlc.core.errors import UserError

HOST = "127.0.0.1"
HEADERS: Mapping[str, str] = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """A server on the loopback interface that knows its address."""

    daemon_threads = True

    @property
    def url(self) -> str:
        """Where the folder is, with a final slash."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(SimpleHTTPRequestHandler):
    """Files of one folder; no listing, nothing through links that lead out of it."""

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

    def end_headers(self) -> None:
        """Add the isolation headers to every response."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def translate_path(self, path: str) -> str:
        """The file of a URL; a path that does not exist for one that leads out of the folder."""
        place = Path(super().translate_path(path))
        root = Path(self.directory).resolve()
        return str(place if place.resolve().is_relative_to(root) else root / "\0outside")

    def send_head(self) -> Any:
        """A name with a NUL byte, as `translate_path` makes, is not found."""
        if "\0" in self.translate_path(self.path):
            self.send_error(404)
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        """Folders are not listed."""
        self.send_error(404)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log to standard error unless quiet."""
        if not self.quiet:
            super().log_message(format, *arguments)


def serve(folder: Path, port: int = 0, quiet: bool = False) -> Server:
    """A server of `folder` on 127.0.0.1; port 0 takes a free one. Raises `UserError`."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder to serve")
    handler = partial(_Handler, directory=str(folder), quiet=quiet)
    try:
        return Server((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {HOST}:{port} ({error}); try --port 0") from error
