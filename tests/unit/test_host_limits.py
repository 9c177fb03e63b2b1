from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import mounts
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.limits import plan as host_limits
from ansible_collections.busbar.fabric.plugins.module_utils.limits import read as host_limits_read
from ansible_collections.busbar.fabric.plugins.module_utils.limits.plan import LimitsWanted
from ansible_collections.busbar.fabric.plugins.module_utils.limits.read import LimitsState
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens, readings
from tests.trees import put, put_all

WANT = LimitsWanted(1048576, 8 << 30)
LOGIN = (("/etc/security/limits.conf", "# nothing\n"), (host_limits_read.LOGIN_FILE, host_limits.render_login(WANT)))
SERVICE = ((host_limits_read.SERVICE_FILE, host_limits.render_service(WANT)),)


def processes(*limits: tuple[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"memlock": memlock, "nofile": nofile} for memlock, nofile in limits)


GOOD = LimitsState(LOGIN, SERVICE, {"slurmd": processes(("unlimited", "1048576"))}, 64 << 30)


ZZ = "/etc/security/limits.d/zz.conf"
OF_ROOT = "root soft memlock -1\nroot hard memlock -1\nroot - nofile 1048576\n"
OF_OTHERS = (("/etc/security/limits.conf", f"* - memlock unlimited\n* - nofile 2000000\n{OF_ROOT}"),)
THEIR_SERVICE = "[Manager]\nDefaultLimitMEMLOCK=infinity:infinity\nDefaultLimitNOFILE=1048576:2097152\n"
SEVERAL = (("unlimited", "1048576"), ("8388608", "1048576"), ("65536", "1048576"), ("unlimited", "1024"))
CASES: dict[str, LimitsState] = {
    "everything": GOOD,
    "fresh": replace(GOOD, login=LOGIN[:1], service=()),
    "limits of others": replace(GOOD, login=OF_OTHERS, service=(("/etc/systemd/system.conf", THEIR_SERVICE),)),
    # It was started with less, and waits for a drained node.
    "daemon with less memlock": replace(GOOD, daemons={"slurmd": processes(("8388608", "1048576"))}),
    "daemon with fewer files": replace(GOOD, daemons={"slurmd": processes(("unlimited", "1024"))}),
    # One finding, and the worst of them counts.
    "several processes of a daemon": replace(GOOD, daemons={"containerd": processes(*SEVERAL)}),
    "shm of 64 MiB": replace(GOOD, shm=64 << 20),
    "no shm": replace(GOOD, shm=None),
    "shm of 1 GiB planned": replace(GOOD, planned_shm=1 << 30),
    "mounts unread": replace(GOOD, problems=(Problem("/proc/mounts", "is not there"),)),
}
for line in ("* hard memlock 64", "* soft nofile 1024", "root - memlock 0", "* - memlock x", "root hard nofile 4096"):
    CASES[f"later file: {line}"] = replace(GOOD, login=(*LOGIN, (ZZ, line)))


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_planned(case: str) -> None:
    plan = host_limits.plan(CASES[case], WANT).limit("none")
    wrong = [one for one in plan.findings if one.check == "host_limits.daemon" and not one.ok]
    daemons = [golden_rows.values(one.have) for one in wrong]
    goldens.check("host_limits", case, golden_rows.plan(plan) + daemons)
    if case.startswith("later file"):
        assert ZZ in (plan.findings[0].have or "")
        assert plan.findings[0].fix == f"correct its limits in {ZZ}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node that Busbar has been on, with stock units."""
    units = "usr/lib/systemd/system"
    put_all(tmp_path, dict((*LOGIN, *SERVICE)))
    put_all(tmp_path, {"proc/mounts": "tmpfs /dev/shm tmpfs rw,size=64g 0 0\n", "proc/meminfo": "MemTotal: 1 kB\n"})
    put(tmp_path, f"{units}/slurmd.service", STOCK)
    put(tmp_path, f"{units}/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    put(tmp_path, f"{units}/user@.service", "[Service]\nExecStart=/lib/systemd/systemd --user\n")
    put(tmp_path, "etc/systemd/user.conf", "[Manager]\n#DefaultLimitMEMLOCK=\n")
    return tmp_path


def found(root: Path) -> dict[str, tuple[str, str, bool]]:
    """Subject -> state, aspect and whether it follows from another, of all that is not ok."""
    plan = host_limits.plan(host_limits_read.read(Host(str(root), str(root))), WANT)
    return {f.subject: (f.state, f.aspect, f.because is not None) for f in plan.findings if not f.ok}


@pytest.mark.parametrize(("files", "expected"), readings.cases("host_limits"))
def test_limits_of_units_daemons_sessions_and_groups(
    root: Path, files: dict[str, str], expected: dict[str, Any]
) -> None:
    put_all(root, files)
    assert {subject: list(row) for subject, row in found(root).items()} == expected


STOCK = "[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=1048576\n"


def test_without_mounts_nothing_is_known_of_shared_memory(tmp_path: Path) -> None:
    problems = host_limits_read.read(Host(str(tmp_path), str(tmp_path))).problems
    assert [problem.source for problem in problems] == ["/proc/mounts"]


@pytest.mark.parametrize(("text", "size"), readings.cases("shm_size"))
def test_the_size_of_shared_memory(text: str, size: int | None) -> None:
    assert host_limits_read.size_of_shm(mounts.parse_fstab(text), "MemTotal:        2097152 kB\n") == size


@given(st.text(max_size=200))
def test_any_text_is_settings_or_none(text: str) -> None:
    host_limits_read.parse_login(text)
