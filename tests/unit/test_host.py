from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import host as host_module
from ansible_collections.busbar.fabric.plugins.module_utils.core import orphans
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    Host,
    Problem,
    ReadError,
    ToolHung,
    attempt,
)
from ansible_collections.busbar.fabric.plugins.module_utils.machine import pci

from tests import trees


def tool(tmp_path: Path, body: str, name: str = "nvidia-smi") -> Host:
    trees.tool(tmp_path, f"usr/bin/{name}", body)
    return Host(str(tmp_path), str(tmp_path), timeout=5)


def test_the_two_roots_are_apart_and_absent_is_none(tmp_path: Path) -> None:
    trees.put_all(tmp_path, {"hw/a": "hardware", "sys/a": "system\n"})
    host = Host(str(tmp_path / "hw"), str(tmp_path / "sys"))
    assert (host.read("/a"), host.read_system("/a"), host.read("/b")) == ("hardware", "system\n", None)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"\n", "/x: is empty"), (b"\xff\xfe", "not text"), (b"1\x002", "zero byte"), (b"x" * 11, "larger")],
)
def test_what_cannot_be_read_is_named_and_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    monkeypatch.setattr(host_module, "FILE_LIMIT", 10)
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ReadError, match=message):
        Host(str(tmp_path)).read("/x")
    with pytest.raises(ReadError, match="cannot be read"):
        Host(str(tmp_path)).read("/")


@pytest.mark.parametrize(
    ("folder", "mode", "link", "is_readable"),
    [
        *((0o755, 0o644, False, True), (0o755, 0o600, False, False), (0o700, 0o644, False, False)),
        *((0o700, 0o644, True, False), (0o755, 0o644, True, True)),
    ],
)
def test_what_others_than_root_may_read(tmp_path: Path, folder: int, mode: int, link: bool, is_readable: bool) -> None:
    trees.put(tmp_path, "/a/f", "x", mode)
    (tmp_path / "a").chmod(folder)
    (tmp_path / "l").symlink_to("a/f")
    node, path = Host(str(tmp_path), str(tmp_path)), "/l" if link else "/a/f"
    assert [node.readable_by_others(path, group=group) for group in (False, True)] == [is_readable] * 2
    assert not node.readable_by_others("/a/none")


def test_realpath_stays_inside_the_hardware_root(tmp_path: Path) -> None:
    (tmp_path / "sys" / "devices" / "a").mkdir(parents=True)
    (tmp_path / "sys" / "link").symlink_to("devices/a")
    (tmp_path / "sys" / "out").symlink_to("/etc")
    host = Host(str(tmp_path))
    assert host.realpath("/sys/link") == "/sys/devices/a"
    assert host.realpath("/sys/none") is None
    with pytest.raises(ReadError, match="leaves the hardware root"):
        host.realpath("/sys/out")


def test_what_a_tool_says_counts_only_where_it_ends_with_0(tmp_path: Path) -> None:
    assert tool(tmp_path, "echo hello").query(["nvidia-smi", "-L"]) == "hello\n"
    assert [Host(system_root=str(tmp_path)).has(name) for name in ("nvidia-smi", "nvidia-smj")] == [True, False]
    for body, said in (
        ("echo out; echo first >&2; echo 'the last line' >&2; exit 3", "the last line"),
        ("echo out; exit 3", "out"),
        ("exit 3", "nothing"),
    ):
        with pytest.raises(ReadError, match=rf"^nvidia-smi -L: exited with 3: {said}$"):
            tool(tmp_path, body).query(["nvidia-smi", "-L"])


def test_an_attempt_that_fails_is_a_problem(tmp_path: Path) -> None:
    problems: list[Problem] = []
    host = tool(tmp_path, "echo x; exit 1")
    assert attempt(lambda: int("1"), "the text", problems) == 1
    assert attempt(lambda: host.query(["nvidia-smi"]), "the tool", problems) is None
    assert attempt(lambda: pci.parse_decimal("x"), "the text", problems) is None
    assert [problem.source for problem in problems] == ["nvidia-smi", "the text"]


def test_a_tool_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    host = tool(tmp_path, "")
    (tmp_path / "usr/bin/nvidia-smi").write_text("#!/no/such/interpreter\n")
    with pytest.raises(ReadError, match="could not be started"):
        host.run(["nvidia-smi"])


@pytest.mark.parametrize(
    "body",
    [
        "exec sleep 60",
        "sleep 60 & exec sleep 60",
        "trap '' TERM INT; exec sleep 60",
        "exec >&- 2>&-; exec sleep 60",  # closes its output and goes on
        "setsid sleep 60 & echo started",  # a child that left the group and keeps the pipe
    ],
)
def test_a_hanging_tool_is_abandoned_in_time(tmp_path: Path, body: str) -> None:
    host = tool(tmp_path, body)
    start = time.monotonic()
    with pytest.raises(ToolHung, match="abandoned"):
        host.run(["nvidia-smi"], timeout=0.3)
    assert time.monotonic() - start < 30


STARTED = "; while ! [ -s {pid} ]; do sleep 0.01; done"
FLED = {
    "by itself": "setsid sh -c 'exec >&- 2>&-; echo $$ > {pid}; exec sleep 60' &" + STARTED[1:],
    "as a daemon": "(setsid sh -c 'exec >/dev/null 2>&1; sleep 60 & echo $! > {pid}' &)" + STARTED,
    "and hangs": "setsid sh -c 'echo $$ > {pid}; exec sleep 60' & exec sleep 60",
}


@pytest.mark.parametrize("how", FLED)
def test_what_a_tool_started_ends_with_it_whatever_session_it_fled_to(tmp_path: Path, how: str) -> None:
    pid = tmp_path / "pid"
    host = tool(tmp_path, FLED[how].format(pid=pid))
    for leaves in (False, True):
        with contextlib.suppress(ToolHung):
            host.run(["nvidia-smi"], timeout=3 if how == "and hangs" else 300, leaves=leaves)
        stays = os.path.exists(f"/proc/{int(pid.read_text())}")
        assert stays is leaves
        # None is left as a zombie of ours, either: it would be taken for a child of ours by who looks for one.
        assert not orphans.has_children() or leaves
        if stays:
            os.kill(int(pid.read_text()), signal.SIGKILL)
        pid.unlink()


def test_tools_side_by_side_end_only_what_is_their_own(tmp_path: Path) -> None:
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    for folder, body in ((quick, "echo quick"), (slow, "setsid sleep 0.3; echo slow")):
        folder.mkdir()
        tool(folder, body)
    with ThreadPoolExecutor(4) as pool:
        those = [pool.submit(Host(str(slow), str(slow)).run, ["nvidia-smi"], 300) for _ in range(2)]
        while not all(one.done() for one in those):
            assert Host(str(quick), str(quick)).run(["nvidia-smi"], 300).stdout == "quick\n"
        assert [(one.result().rc, one.result().stdout) for one in those] == [(0, "slow\n")] * 2


def test_an_orphan_of_one_tool_that_ends_while_another_runs_is_no_zombie(tmp_path: Path) -> None:
    """It was there when the other began, and is gone before any of them ends."""
    for name, body in (
        ("first", f"(setsid sleep 0.6 >/dev/null 2>&1 &); sleep 0.2; : >{tmp_path}/orphaned; sleep 1"),
        ("second", "sleep 1.5"),
    ):
        (tmp_path / name).mkdir()
        tool(tmp_path / name, body)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Host(str(tmp_path / "first"), str(tmp_path / "first")).run, ["nvidia-smi"], 300)
        while not (tmp_path / "orphaned").exists():
            time.sleep(0.01)
        second = pool.submit(Host(str(tmp_path / "second"), str(tmp_path / "second")).run, ["nvidia-smi"], 300)
        assert [one.result().rc for one in (first, second)] == [0, 0]
    assert not orphans.has_children()


def test_what_dies_after_nobody_waited_any_longer_is_taken_in_by_the_next_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = os.kill
    pid = tmp_path / "pid"
    host = tool(tmp_path, FLED["as a daemon"].format(pid=pid))
    with monkeypatch.context() as patch:
        # Stands for a task in uninterruptible sleep: it dies when that ends, and not by us.
        patch.setattr("os.kill", lambda number, signal: None)
        host.run(["nvidia-smi"], timeout=300)
    fled = int(pid.read_text())
    kill(fled, signal.SIGKILL)
    os.waitid(os.P_PID, fled, os.WEXITED | os.WNOWAIT)
    tool(tmp_path, "exit 0").run(["nvidia-smi"])
    assert not orphans.has_children()


def test_a_process_that_cannot_be_killed_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands for a task in uninterruptible sleep: the kill has no effect, and nothing may wait for it.
    monkeypatch.setattr("os.killpg", lambda pid, signal: None)
    host = tool(tmp_path, "echo $$ >&2; exec sleep 60")
    start = time.monotonic()
    with pytest.raises(ToolHung):
        host.run(["nvidia-smi"], timeout=0.3)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("body", "message"), [(r"printf '\377\376'", "nvidia-smi -L: is not text"), ("exec yes", "printed more than")]
)
def test_output_that_is_no_text_or_has_no_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    monkeypatch.setattr(host_module, "OUTPUT_LIMIT", 1000)
    with pytest.raises(ReadError, match=message):
        tool(tmp_path, body).run(["nvidia-smi", "-L"])


def test_tools_do_not_inherit_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    output = tool(tmp_path, "env").run(["nvidia-smi"])
    assert "hunter2" not in output.stdout
    assert "LC_ALL=C" in output.stdout


def test_no_descriptors_leak(tmp_path: Path) -> None:
    host = tool(tmp_path, "exec sleep 60")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ToolHung):
        host.run(["nvidia-smi"], timeout=0.2)
    assert len(os.listdir("/proc/self/fd")) == before
