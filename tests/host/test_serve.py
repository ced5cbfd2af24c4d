"""`webmlc serve`: loopback, isolation headers, its own address, nothing outside its folder."""

import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from socket import create_connection

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


def get(server: Server, path: str, host: str | None = None) -> HTTPResponse:
    """The response to a request, with the server's address as its host unless another is named."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost"])
def test_requests_to_its_own_address_are_answered(server: Server, host: str) -> None:
    response = get(server, "/", f"{host}:{server.server_port}")
    assert (response.status, response.read()) == (200, b"hello")


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "evil.example", "127.0.0.1", "", ":{port}"]
)
def test_requests_to_another_host_are_refused(server: Server, host: str) -> None:
    """A page whose name was pointed at 127.0.0.1 sends that name as its host."""
    response = get(server, "/", host.format(port=server.server_port))
    text = response.read().decode()
    assert response.status == 421
    assert f"This server answers as {server.url} only, not as " in text
    assert "hello" not in text


def test_a_request_without_a_host_is_refused(server: Server) -> None:
    with create_connection(server.server_address[:2], timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 421 " in connection.recv(100)


@pytest.mark.parametrize("path", ["/%00", "/index.html%00.js", "/%ed%a0%80"])
def test_a_path_that_no_file_can_have_is_a_bad_request(server: Server, path: str) -> None:
    response = get(server, path)
    assert response.status == 400
    assert "No file has this path" in response.read().decode()


def test_only_the_loopback_interface_listens(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_bad_places_are_user_errors(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        serve(tmp_path / "absent")
    with pytest.raises(UserError, match="cannot listen"):
        serve(tmp_path, server.server_port)
