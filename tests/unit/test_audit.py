# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node's side of the audit, as it is sent: one script, steps that answer, fail, hang and die."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle

from tests.trees import tool

from .test_bundle import run

ROOT = Path(__file__).resolve().parent.parent.parent
SPEC = "SPEC = {'a': {'default': 7}}\n"
WORK = "def work(host, given, check_mode):\n"
MODULES = {
    "good": f"{SPEC}{WORK}    return {{'a': given['a'], 'check': check_mode, 'diff': [1]}}\n",
    "typed": "SPEC = {'a': {'type': 'str'}, 'b': {'type': 'float'}, 'c': {'type': 'dict', 'no_log': True},"
    f" 'd': {{'type': 'path', 'default': '/opt'}}}}\n{WORK}"
    "    return dict(given=[given[name] for name in 'abd'], said={'log': ['token hunter22, on']})\n",
    "bad": f"from {bundle.PACKAGE}.core.host import ParseError\n{SPEC}{WORK}    raise ParseError('no such thing')\n",
    "hung": f"import time\n{SPEC}{WORK}    time.sleep(600)\n",
    "dead": f"{SPEC}{WORK}    raise RuntimeError('broken')\n",
    "chatty": f"{SPEC}{WORK}    print('hello')\n    return {{}}\n",
    "rooted": f"SPEC = {{'system_root': {{}}}}\n{WORK}    return {{}}\n",
    "large": f"{SPEC}{WORK}    return {{'a': 'x' * 500000}}\n",
    "dead_device": f"import os\n{SPEC}{WORK}    os.stat(given['a'])\n",
    "tool": f"from {bundle.PACKAGE}.core.host import ReadError\n"
    f"SPEC = {{'a': {{}}, 'system_root': {{'default': '/'}}}}\n{WORK}    host.timeout = 0.5\n"
    "    try:\n        host.run(['smi', '-L'])\n"
    "    except ReadError as error:\n        return {'a': str(error)}\n",
}


def source_of(name: str) -> str:
    package, _dot, module = name.rpartition(".")
    if package == bundle.LIBRARY:
        return MODULES[module]
    return bundle.source_of(name)


def audit(*steps: str, limit: float = 20, python: str = sys.executable, **arguments: Any) -> list[dict[str, Any]]:
    names = [f"{bundle.PACKAGE}.audit", *(f"{bundle.LIBRARY}.{step}" for step in steps)]
    sources = bundle.closure(names, source_of)
    given = json.dumps([{"module": step, "arguments": arguments} for step in steps])
    main = f"import json\nfrom {bundle.PACKAGE} import audit\naudit.main(json.loads({given!r}), {limit})\n"
    found: list[dict[str, Any]] = json.loads(run(bundle.script(sources, main), python))
    return found


def failed(said: str) -> dict[str, Any]:
    return {"failed": True, "msg": said}


ABANDONED = "smi -L: did not respond within 0.5 s and was abandoned"
NOT_QUERIED = "smi -L: was not queried: smi did not respond within 0.5 s"
GOOD = {"a": 7, "check": True}
DEAD = failed("ended without a result: RuntimeError: broken")
HUNG = failed("did not respond within 3 s and was abandoned")
TYPED: dict[str, Any] = {"a": 8388608, "b": 30, "c": {"token": "hunter22", "more": ["on", 1]}, "d": "/opt/x"}
MASKED = {"given": ["8388608", 30.0, "/opt/x"], "said": {"log": ["token [redacted], on"]}}


@pytest.mark.parametrize(
    ("steps", "arguments", "found"),
    [
        # Each in check mode, without bulk data.
        ("good", {}, [GOOD]),
        ("good good", {"a": 3}, [{**GOOD, "a": 3}] * 2),
        # Options have their type, and secrets are masked.
        ("typed", TYPED, [MASKED]),
        ("good", {"b": 1}, [failed("there is no option b")]),
        # What a module prints does not get into the result.
        ("chatty", {}, [{}]),
        ("bad good", {}, [failed("no such thing"), GOOD]),
        ("good dead good", {}, [GOOD, DEAD, GOOD]),
        ("good hung good", {}, [GOOD, HUNG, GOOD]),
        # After one that hangs the others do not wait for each other.
        ("good hung hung large dead hung good", {}, [GOOD, HUNG, HUNG, {"a": "x" * 500000}, DEAD, HUNG, GOOD]),
    ],
)
def test_each_step_answers_for_itself(steps: str, arguments: dict[str, Any], found: list[dict[str, Any]]) -> None:
    begin = time.monotonic()
    assert audit(*steps.split(), limit=3 if "hung" in steps else 20, **arguments) == found
    assert time.monotonic() - begin < 60 or "hung" not in steps


def test_the_nodes_oldest_python_runs_it(oldest_python: str) -> None:
    good, dead = audit("good", "dead", python=oldest_python)
    assert (good["a"], dead["msg"]) == (7, "ended without a result: RuntimeError: broken")


def test_a_tool_that_hangs_is_waited_for_once(tmp_path: Path) -> None:
    tool(tmp_path, "usr/bin/smi", f"echo asked >> {tmp_path}/asked; exec sleep 60")
    found = audit("tool", "tool", "tool", system_root=str(tmp_path))
    assert [step["a"] for step in found] == [ABANDONED, NOT_QUERIED, NOT_QUERIED]
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.fixture
def dead_device(tmp_path: Path) -> Iterator[Path]:
    """Whoever looks at this path sleeps uninterruptibly and dies of no signal: a file system whose server is silent."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs root and /dev/fuse")
    path = tmp_path / "dead"
    path.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
    argv = ["mount", "-i", "-t", "fuse", "-o", options, "none", str(path)]
    if subprocess.run(argv, pass_fds=[server], capture_output=True, check=False).returncode != 0:
        os.close(server)
        pytest.skip("this machine lets nobody mount FUSE")

    def serve() -> None:
        # ENODEV: it was unmounted.
        with suppress(OSError):
            while True:
                _length, operation, number = struct.unpack("<IIQ", os.read(server, 1 << 17)[:16])
                if operation == 26:  # FUSE_INIT, the only one that is answered
                    body = struct.pack("<IIIIHHII", 7, 31, 0, 0, 0, 0, 4096, 1).ljust(64, b"\0")
                    os.write(server, struct.pack("<IiQ", 16 + len(body), 0, number) + body)

    thread = threading.Thread(target=serve)
    thread.start()
    yield path
    # By force, which ends everybody who sleeps there.
    subprocess.run(["umount", "-f", str(path)], capture_output=True, check=False)
    subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
    thread.join()
    os.close(server)


def states() -> set[str]:
    """Of all processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found.add(path.read_text().rpartition(")")[2].split()[0])
    return found


def test_a_read_that_no_signal_ends_costs_its_step_and_nobody_waits_for_it(dead_device: Path) -> None:
    # run() waits for everybody who holds the pipes of the audit, as sshd does.
    first, *rest = audit("dead_device", "good", "chatty", limit=3, a=str(dead_device))
    assert first == HUNG
    assert [step.get("a", "") for step in rest] == [str(dead_device), ""]
    assert "D" in states(), "the stand-in can be killed and proves nothing"


def test_a_tool_that_no_signal_ends_is_an_unknown_like_any_other(dead_device: Path, tmp_path: Path) -> None:
    tool(tmp_path, "usr/bin/smi", f"exec stat {dead_device}")
    found = audit("tool", "rooted", "tool", limit=20, system_root=str(tmp_path))
    assert [step.get("a", "") for step in found] == [ABANDONED, "", NOT_QUERIED]
