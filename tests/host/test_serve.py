"""`webmlc serve`: loopback, isolation headers, nothing outside its folder."""

import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from webmlc.core.errors import UserError
from webmlc.host.serve import Server, serve


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    site = tmp_path / "site"
    (site / "sub").mkdir(parents=True)
    (site / "index.html").write_text("hello")
    (site / "model.wasm").write_bytes(b"\0asm")
    (site / "out").symlink_to(tmp_path)
    (tmp_path / "secret.txt").write_text("secret")
    with serve(site, quiet=True) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def get(server: Server, path: str) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path)
    return connection.getresponse()


def test_pages_are_isolated(server: Server) -> None:
    response = get(server, "/")
    assert (response.status, response.read()) == (200, b"hello")
    assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert get(server, "/model.wasm").headers["Content-Type"] == "application/wasm"


@pytest.mark.parametrize("path", ["/absent", "/sub/", "/out/secret.txt", "/..%2fsecret.txt"])
def test_nothing_else_is_found(server: Server, path: str) -> None:
    response = get(server, path)
    assert response.status == 404
    assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert response.read() != b"secret"


def test_only_the_loopback_interface_listens(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_bad_places_are_user_errors(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        serve(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot listen"):
        serve(tmp_path, server.server_port)
