# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import datetime
import http.server
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busbar.drift import notify, output, text
from busbar.drift.notify import NotifyError

from .test_kubernetes import certified, serving

SECRET = "T000-secret-of-the-hook"


class Hook(http.server.BaseHTTPRequestHandler):
    """Answers as the path asks, and keeps what came."""

    got: list[Any]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        code = int(self.path.split("/")[1])
        self.send_response(code)
        self.send_header("Location", f"http://{self.headers['Host']}/200/")
        self.end_headers()

    def do_GET(self) -> None:
        self.got.append("a redirect was followed")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    Hook.got = []
    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    with serving(server):
        yield server


def test_a_webhook_gets_the_text_without_markup(server: http.server.HTTPServer, tmp_path: Path) -> None:
    (file := tmp_path / "hook").write_text(f"http://127.0.0.1:{server.server_port}/200/{SECRET}\n")
    notify.post(file, "<!channel> 1 differs & more", 2, 1)
    assert Hook.got == [{"text": "&lt;!channel&gt; 1 differs &amp; more", "exit_code": 2, "new": 1}]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *((f"http://127.0.0.1:{{port}}/{code}/{{secret}}", f" returned {code}") for code in (403, 302)),
        ("http://127.0.0.1:9/{secret}", "Connection refused"),
        ("http://127.0.0.1:{port}/200/{secret} with a blank", "not a URL"),
        ("http://hooks.example.org/{secret}", "https://"),
        ("https://h\u00e4.example.org/{secret}", "holds no address"),
        ("", "not a URL"),
    ],
)
def test_a_webhook_that_fails(server: http.server.HTTPServer, tmp_path: Path, given: str, says: str) -> None:
    (file := tmp_path / "hook").write_text(given.format(port=server.server_port, secret=SECRET))
    with pytest.raises(NotifyError) as raised:
        notify.post(file, "x", 2, 0)
    assert says in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "a redirect was followed" not in Hook.got


def test_a_webhook_whose_file_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotifyError, match="none cannot be read: No such file"):
        notify.post(tmp_path / "none", "x", 2, 0)


def test_a_host_that_proves_nothing_gets_nothing(server: http.server.HTTPServer, tmp_path: Path) -> None:
    server.socket = certified(tmp_path).wrap_socket(server.socket, server_side=True)
    (file := tmp_path / "hook").write_text(f"https://localhost:{server.server_port}/200/")
    with pytest.raises(NotifyError, match="certificate"):
        notify.post(file, "x", 2, 0)
    assert Hook.got == []


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_gets_the_text_and_no_shell_reads_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "told"
    code = "import os,sys; open(sys.argv[1],'w').write(sys.stdin.read()+os.environ['BUSBAR_EXIT_CODE']"
    notify.run([*python(f"{code}+os.environ['BUSBAR_NEW']+sys.argv[2])"), str(file), "$(id)"], "said\n", 3, 7)
    assert file.read_text() == "said\n37$(id)"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (python("import sys; sys.exit('no relay')"), "ended with 1 and printed: no relay"),
        (["/no/such/mail"], "/no/such/mail cannot be run: No such file"),
        (python("import sys,time; sys.stdin.close(); time.sleep(60)"), "did not end within 0.5 s and was killed"),
        (["false"], "ended with 1 and printed: nothing"),
    ],
)
def test_a_program_that_fails_is_named(argv: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "0.5 s" in says:
        monkeypatch.setattr(notify, "TIMEOUT", 0.5)
    with pytest.raises(NotifyError, match=says):
        notify.run(argv, "x" * 200_000, 2, 0)


def group(number: int) -> dict[str, Any]:
    said = {"severity": "critical", "state": "drift", "check": f"a.c{number}", "nodes": "n[1-9]", "have": SECRET}
    return {**said, "new": "n[1-9]", "standing": "", "origins": {"corrective": 9}, "flapping": "", "follows": 0}


def test_a_message_names_checks_and_nodes_and_repeats_no_tool() -> None:
    data = {"headline": "9 differ", "open": {"timed_out": "n0"}, "groups": [group(n) for n in range(17)]}
    lines = text.brief(data, ["busbar", "report", "--history", "/var/my h", "--run", "41"]).splitlines()
    assert lines[:3] == ["9 differ", "timed out: n0", "critical drift a.c0 on n[1-9] (new, corrective)"]
    assert lines[-2:] == ["and 2 more groups", "busbar report --history '/var/my h' --run 41"]
    assert shlex.split(lines[-1])[3] == "/var/my h"
    assert SECRET not in "\n".join(lines)


def test_a_file_of_each_day_is_kept_as_long_as_asked_and_no_other_is_touched(tmp_path: Path) -> None:
    target = str(tmp_path / "drift+{date}.html")
    for day in (1, 2, 3):
        output.write(output.dated(target, datetime.date(2026, 11, day)), "x")
    others = ["drift+2026-10-01.html.bak", "drift+{date}.html", "driftt2026-10-01.html", "drift+latest.html", "x"]
    for name in others:
        (tmp_path / name).write_text("")
    output.prune(target, datetime.date(2026, 11, 3))
    output.prune(str(tmp_path / "x"), datetime.date(2099, 1, 1))
    output.prune("-", datetime.date(2099, 1, 1))
    assert {path.name for path in tmp_path.iterdir()} == {"drift+2026-11-03.html", *others}
    assert output.dated("-", datetime.date(2026, 11, 3)) == "-"
