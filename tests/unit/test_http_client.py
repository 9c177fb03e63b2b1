# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The HTTP client against servers that misbehave."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import http_client

SECRET = "hush-token"
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


class _Server(socketserver.ThreadingTCPServer):
    """Answer every request with the same pieces, each after a pause."""

    daemon_threads = True
    received = b""
    pieces: Callable[[], Iterator[bytes]]


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.received += self.request.recv(1 << 16)
        try:
            for piece in self.server.pieces():
                self.request.sendall(piece)
        except OSError:
            return


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def _drip(head: bytes) -> Iterator[bytes]:
    yield head
    for _ in range(600):
        yield b"x"
        time.sleep(0.02)


def _ask(server: _Server, **more: object) -> tuple[int, bytes]:
    address = f"http://127.0.0.1:{server.server_address[1]}/path?key={SECRET}"
    return http_client.request(address, **more)  # type: ignore[arg-type]


def test_a_response_is_its_status_and_body(server: _Server) -> None:
    server.pieces = lambda: iter([b"HTTP/1.1 418 Teapot\r\nContent-Length: 2\r\n\r\n", b"ab"])
    assert _ask(server, authorization=f"Bearer {SECRET}", headers={"X-A": "b"}) == (418, b"ab")
    assert b"Authorization: Bearer " + SECRET.encode() in server.received


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: ", OK])
def test_a_server_that_sends_a_byte_now_and_then_ends_with_the_deadline(server: _Server, head: bytes) -> None:
    server.pieces = lambda: _drip(head)
    with pytest.raises(http_client.HttpError):
        _ask(server, seconds=0.5)


@pytest.mark.parametrize(
    "pieces", [[], [b"nonsense\r\n\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"abc"], [OK, b"x" * 2000]]
)
def test_a_broken_or_too_long_response_is_an_error_without_the_address(server: _Server, pieces: list[bytes]) -> None:
    server.pieces = lambda: iter(pieces)
    with pytest.raises(http_client.HttpError) as raised:
        _ask(server, limit=1000)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("end", ["\n", "\r\nX: y", "\x00", "\u00e4", "\t", "  "])
def test_a_token_that_would_end_its_header_is_neither_sent_nor_quoted(server: _Server, end: str) -> None:
    server.pieces = lambda: iter([OK])
    with pytest.raises(http_client.HttpError) as raised:
        _ask(server, authorization=f"Bearer {SECRET}{end}")
    assert (SECRET in str(raised.value), server.received) == (False, b"")


@pytest.mark.parametrize(
    "address",
    ["http://10.0.0.1/s3", "ftp://h/s3", "https:///s3", "https://[s3", "https://h:port/s3", "s3", "https://h/ s3", ""],
)
def test_an_address_that_is_none_or_is_in_the_clear_is_refused_without_being_quoted(address: str) -> None:
    with pytest.raises(http_client.HttpError) as raised:
        http_client.request(address)
    assert "s3" not in str(raised.value)
