# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""UFM as ib_fabric_info asks it: a server of our own, with answers of our own. It is read and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import sweep, ufm
from ansible_collections.busbar.fabric.plugins.modules import ib_fabric_info

from .built_fabric import build

TOKEN = "Zm9yIG5vYm9keQ-tested"


class Ufm:
    """answers: resource -> code and body.   asked: method, path and whether the token was right."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, str, bool]] = []
        ufm = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                given = self.headers.get("Authorization")
                ufm.asked.append((self.command, self.path, given == f"Basic {TOKEN}"))
                code, body = ufm.answers.get(self.path.partition("?")[0].rpartition("/")[2], (404, ""))
                if given != f"Basic {TOKEN}":
                    # Some servers say what they did not like.
                    code, body = 401, f"{given} is not allowed"
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", body)
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/ufmRestV3"

    def sweep(self, token: str = TOKEN) -> sweep.Sweep:
        given = {"devices": [], "seconds": 20.0, "counters": True, "partitions": False, "known": [], "dumps": ""}
        given |= {"ufm": self.address + "/", "ufm_token": token, "ufm_ca": ""}
        [found] = ib_fabric_info.work(Host(), given, False)["sweeps"]
        return sweep.from_dict(json.loads(json.dumps(found)))


@pytest.fixture
def server() -> Iterator[Ufm]:
    made = Ufm()
    ports = []
    for one in build(hosts=2, rails=1).sweeps(0.0):
        for node in one.nodes:
            for port in node.ports:
                if port.peer is None:
                    continue
                ports.append(
                    {
                        "guid": port.guid or node.guid,
                        "name": f"{node.guid}_{port.number}",
                        "number": port.number,
                        "peer": f"{port.peer[0]}_{port.peer[1]}",
                        "logical_state": "Active",
                        "physical_state": "Link Up",
                        "active_speed": port.speed,
                        "active_width": f"{port.width}x",
                        "description": "Switch IB Port" if node.kind == "switch" else "Computer IB Port",
                        "node_description": node.description,
                    }
                )
    made.answers = {"systems": (200, "[]"), "ports": (200, json.dumps(ports)), "links": (200, "[]")}
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_ufm_is_read_and_nothing_is_written_to_it(server: Ufm) -> None:
    found = server.sweep()
    assert found.source == "ufm"
    assert {node.kind for node in found.nodes} == {"ca", "switch"}
    assert list(found.links())
    assert server.asked == [("GET", f"/ufmRestV3/{path}", True) for path in ufm.RESOURCES]


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (404, "", "404"),
        (500, "", "500"),
        # Another server would be handed the token.
        (302, "http://127.0.0.1:9/elsewhere", "302"),
        (204, "", "204"),
    ],
)
def test_what_is_no_answer_is_an_error_that_names_the_address(server: Ufm, code: int, body: str, said: str) -> None:
    server.answers["ports"] = (code, body)
    with pytest.raises(ReadError, match=f"resources/ports.*: .*{said}"):
        server.sweep()
    assert [path.rpartition("/")[2] for _method, path, _right in server.asked] == ["systems", ufm.RESOURCES[1][10:]]


@pytest.mark.parametrize("body", ["<html>log in</html>", "[", "[1]", '{"error": "busy"}', ""])
def test_an_answer_that_is_no_list_makes_the_sweep_a_part(server: Ufm, body: str) -> None:
    server.answers["ports"] = (200, body)
    found = server.sweep()
    assert not found.complete
    assert "resources/ports" in str(found.problems)


def test_a_token_that_is_refused_is_not_repeated(server: Ufm) -> None:
    with pytest.raises(ReadError, match="401") as raised:
        server.sweep("wr0ng-t0ken")
    assert "wr0ng-t0ken" not in str(raised.value)
