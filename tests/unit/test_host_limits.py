from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import host_limits
from ansible_collections.busbar.fabric.plugins.module_utils.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.host_limits import Have, Want
from hypothesis import given
from hypothesis import strategies as st

WANT = Want(1048576, 8 << 30)
LOGIN = (("/etc/security/limits.conf", "# nothing\n"), (host_limits.LOGIN_FILE, host_limits.render_login(WANT)))
SERVICE = ((host_limits.SERVICE_FILE, host_limits.render_service(WANT)),)
GOOD = Have(LOGIN, SERVICE, {"slurmd": (("unlimited", "1048576"),)}, 64 << 30)


def not_ok(have: Have) -> dict[str, str]:
    plan = host_limits.plan(have, WANT).limit("none")
    return {f.check.partition(".")[2]: f.state for f in plan.findings if not f.ok}


def test_a_node_that_has_everything_is_left_alone() -> None:
    assert not_ok(GOOD) == {}
    assert not host_limits.plan(GOOD, WANT).changed


def test_a_fresh_node_gets_two_files() -> None:
    plan = host_limits.plan(replace(GOOD, login=LOGIN[:1], service=()), WANT)
    assert [change.path for change in plan.changes] == [host_limits.LOGIN_FILE, host_limits.SERVICE_FILE]


def test_what_others_say_already_is_not_written_again() -> None:
    theirs = "* - memlock unlimited\n* - nofile 2000000\nroot soft memlock -1\nroot hard memlock -1\n"
    theirs += "root - nofile 1048576\n"
    service = "[Manager]\nDefaultLimitMEMLOCK=infinity:infinity\nDefaultLimitNOFILE=1048576:2097152\n"
    have = replace(GOOD, login=(("/etc/security/limits.conf", theirs),))
    have = replace(have, service=(("/etc/systemd/system.conf", service),))
    assert (not_ok(have), host_limits.plan(have, WANT).changed) == ({}, False)


@pytest.mark.parametrize(
    "line", ["* hard memlock 64", "* soft nofile 1024", "root - memlock 0", "* - memlock x", "root hard nofile 4096"]
)
def test_a_later_file_that_takes_it_back_is_named_and_left_alone(line: str) -> None:
    have = replace(GOOD, login=(*LOGIN, ("/etc/security/limits.d/zz.conf", line)))
    plan = host_limits.plan(have, WANT)
    assert (not_ok(have), plan.changed) == ({"login": "not_owned"}, False)
    assert "zz.conf" in (plan.findings[0].have or "")


@pytest.mark.parametrize("limits", [("8388608", "1048576"), ("unlimited", "1024")])
def test_a_daemon_that_was_started_with_less_waits_for_a_drained_node(limits: tuple[str, str]) -> None:
    assert not_ok(replace(GOOD, daemons={"slurmd": (limits,)})) == {"daemon": "withheld"}


def test_several_processes_of_one_daemon_are_one_finding_and_the_worst_counts() -> None:
    limits = (("unlimited", "1048576"), ("8388608", "1048576"), ("65536", "1048576"), ("unlimited", "1024"))
    plan = host_limits.plan(replace(GOOD, daemons={"containerd": limits}), WANT)
    [found] = [finding for finding in plan.findings if finding.check == "host_limits.daemon"]
    assert (found.state, found.have) == ("drift", "memlock 65536, nofile 1048576 (3 of 4 processes have too little)")


def test_limits_that_cannot_be_read_are_unknown_and_say_nothing_of_shared_memory(tmp_path: Path) -> None:
    good = "Max open files 1048576 \nMax locked memory unlimited \n"
    for pid, limits in (("12", "nonsense"), ("13", good)):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "comm").write_text("containerd\n")
        (tmp_path / "proc" / pid / "limits").write_text(limits)
    have = host_limits.read(Host(str(tmp_path), str(tmp_path)))
    assert [problem.source for problem in have.problems] == ["/proc/mounts"]
    assert not_ok(replace(GOOD, daemons=have.daemons, unread=have.unread)) == {"daemon": "unknown"}
    assert not_ok(replace(GOOD, daemons={"containerd": (("0", "0"),)}, unread=have.unread)) == {"daemon": "withheld"}


def test_shared_memory_is_judged_by_its_size() -> None:
    assert not_ok(replace(GOOD, shm=64 << 20)) == {"shm": "drift"}
    assert not_ok(replace(GOOD, shm=None)) == {"shm": "drift"}
    assert not_ok(replace(GOOD, problems=(Problem("/proc/mounts", "is not there"),))) == {"shm": "unknown"}


@pytest.mark.parametrize(
    ("mounts", "size"),
    [
        ("tmpfs /dev/shm tmpfs rw,size=65536k 0 0\n", 64 << 20),
        ("tmpfs /dev/shm tmpfs rw,size=8g 0 0\n", 8 << 30),
        ("tmpfs /dev/shm tmpfs rw,nosuid 0 0\n", 1 << 30),
        ("tmpfs /run tmpfs rw,size=1k 0 0\n", None),
    ],
)
def test_the_size_of_shared_memory(mounts: str, size: int | None) -> None:
    assert host_limits.parse_shm(mounts, "MemTotal:        2097152 kB\n") == size


def test_limits_of_a_process() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 524288               files     \n"
        "Max locked memory         8388608              unlimited            bytes     \n"
    )
    assert host_limits.parse_proc_limits(text) == ("8388608", "1024")
    with pytest.raises(ParseError, match="Max locked memory"):
        host_limits.parse_proc_limits("Limit\n")


@given(st.text(max_size=200))
def test_any_text_is_settings_or_none(text: str) -> None:
    host_limits.parse_login(text)
    host_limits.parse_service("[Manager]\n" + text)
