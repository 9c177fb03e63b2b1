from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import mounts
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.limits import plan as host_limits
from ansible_collections.busbar.fabric.plugins.module_utils.limits.plan import LimitsState, LimitsWanted
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens
from tests.trees import put, put_all

WANT = LimitsWanted(1048576, 8 << 30)
LOGIN = (("/etc/security/limits.conf", "# nothing\n"), (host_limits.LOGIN_FILE, host_limits.render_login(WANT)))
SERVICE = ((host_limits.SERVICE_FILE, host_limits.render_service(WANT)),)
GOOD = LimitsState(LOGIN, SERVICE, {"slurmd": (("unlimited", "1048576"),)}, 64 << 30)


ZZ = "/etc/security/limits.d/zz.conf"
THEIRS = (
    "* - memlock unlimited\n* - nofile 2000000\nroot soft memlock -1\nroot hard memlock -1\nroot - nofile 1048576\n"
)
THEIR_SERVICE = "[Manager]\nDefaultLimitMEMLOCK=infinity:infinity\nDefaultLimitNOFILE=1048576:2097152\n"
SEVERAL = (("unlimited", "1048576"), ("8388608", "1048576"), ("65536", "1048576"), ("unlimited", "1024"))
CASES: dict[str, LimitsState] = {
    "everything": GOOD,
    "fresh": replace(GOOD, login=LOGIN[:1], service=()),
    "limits of others": replace(
        GOOD,
        login=(("/etc/security/limits.conf", THEIRS + "root - nofile 1048576\n"),),
        service=(("/etc/systemd/system.conf", THEIR_SERVICE),),
    ),
    # It was started with less, and waits for a drained node.
    "daemon with less memlock": replace(GOOD, daemons={"slurmd": (("8388608", "1048576"),)}),
    "daemon with fewer files": replace(GOOD, daemons={"slurmd": (("unlimited", "1024"),)}),
    # One finding, and the worst of them counts.
    "several processes of a daemon": replace(GOOD, daemons={"containerd": SEVERAL}),
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
    daemons = [
        golden_rows.values(one.have) for one in plan.findings if one.check == "host_limits.daemon" and not one.ok
    ]
    goldens.check("host_limits", case, golden_rows.plan(plan) + daemons)
    if case.startswith("later file"):
        assert ZZ in (plan.findings[0].have or "")
        assert plan.findings[0].fix == f"correct its limits in {ZZ}"


def not_ok(have: LimitsState) -> dict[str, str]:
    plan = host_limits.plan(have, WANT).limit("none")
    return {f.check.partition(".")[2]: f.state for f in plan.findings if not f.ok}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node that Busbar has been on, with stock units."""
    for path, text in (*LOGIN, *SERVICE):
        put(tmp_path, path, text)
    put(tmp_path, "proc/mounts", "tmpfs /dev/shm tmpfs rw,size=64g 0 0\n")
    put(tmp_path, "proc/meminfo", "MemTotal: 1 kB\n")
    put(tmp_path, "usr/lib/systemd/system/slurmd.service", STOCK)
    put(tmp_path, "usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
    put(tmp_path, "usr/lib/systemd/system/user@.service", "[Service]\nExecStart=/lib/systemd/systemd --user\n")
    put(tmp_path, "etc/systemd/user.conf", "[Manager]\n#DefaultLimitMEMLOCK=\n")
    return tmp_path


def found(root: Path) -> dict[str, tuple[str, str, bool]]:
    """Subject -> state, aspect and whether it follows from another, of all that is not ok."""
    plan = host_limits.plan(host_limits.read(Host(str(root), str(root))), WANT)
    return {f.subject: (f.state, f.aspect, f.because is not None) for f in plan.findings if not f.ok}


STOCK = "[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=1M\n"
LOW = "[Service]\nLimitMEMLOCK=8M\n"


RUN_LOW = {"run/systemd/system/slurmd.service.d/10-site.conf": LOW}
DROPIN = "etc/systemd/system/slurmd.service.d/a.conf"
USER = "[Manager]\nDefaultLimitMEMLOCK=64M\n"


@pytest.mark.parametrize(
    ("files", "subject"),
    [
        ({}, None),
        ({"etc/systemd/system/slurmd.service.d/10-site.conf": LOW}, "slurmd.service"),
        (RUN_LOW, "slurmd.service"),
        ({"etc/systemd/system/slurmd.service": LOW}, "slurmd.service"),
        ({DROPIN: "[Service]\nLimitMEMLOCK=64K:infinity\n"}, "slurmd.service"),
        ({DROPIN: "[Service]\nLimitNOFILE=131072\n"}, "slurmd.service"),
        ({"etc/systemd/system/kubelet.service.d/a.conf": LOW}, "kubelet.service"),
        ({"etc/systemd/system/docker.service.d/a.conf": LOW}, "docker.service"),
        ({"etc/systemd/system/user@.service.d/a.conf": LOW}, "user@.service"),
        ({"etc/systemd/system/user@1000.service.d/a.conf": LOW}, "user@1000.service"),
        ({"etc/systemd/user.conf.d/a.conf": USER}, "user.conf"),
        ({"usr/lib/systemd/user.conf.d/a.conf": USER}, "user.conf"),
        # A folder that counts, too.
        (
            {"usr/lib/systemd/system.conf.d/zz-vendor.conf": "[Manager]\nDefaultLimitMEMLOCK=64K\n"},
            host_limits.SERVICE_FILE,
        ),
        # A later name takes it back, an empty value goes back to systemd's defaults, /etc hides /run.
        ({**RUN_LOW, "etc/systemd/system/slurmd.service.d/zz.conf": STOCK}, None),
        ({**RUN_LOW, "etc/systemd/system/slurmd.service.d/zz.conf": "[Service]\nLimitMEMLOCK=\n"}, None),
        ({**RUN_LOW, "etc/systemd/system/slurmd.service.d/10-site.conf": "[Service]\n"}, None),
    ],
)
def test_what_a_unit_will_have_is_said_before_it_is_started(
    root: Path, files: dict[str, str], subject: str | None
) -> None:
    put_all(root, files)
    assert found(root) == ({subject: ("not_owned", "persisted", False)} if subject else {})


def test_one_drop_in_for_all_services_is_one_cause_and_says_nothing_of_units_that_are_not_there(root: Path) -> None:
    put(root, "usr/lib/systemd/system/slurmd.service", "[Service]\nExecStart=/usr/sbin/slurmd\n")
    put(root, "etc/systemd/system/service.d/site.conf", LOW)
    said = found(root)
    assert set(said) == {"slurmd.service", "kubelet.service", "user@.service"}
    assert sorted(follows for _state, _aspect, follows in said.values()) == [False, True, True]


SSHD = "../ssh/sshd_config"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sshd": "session    required     pam_limits.so\n"}, {}),
        ({"sshd": "auth required pam_unix.so\n@include common\n", "common": "session optional pam_limits.so\n"}, {}),
        ({"sshd": "session include password-auth\n", "password-auth": "-session [default=1] pam_limits.so\n"}, {}),
        ({"slurm": "session substack a\n", "a": "session required /lib/security/pam_limits.so noaudit\n"}, {}),
        ({"sshd": "session required \\\n pam_limits.so\n", "login": "#\nsession required pam_limits.so"}, {}),
        ({"cron": "session required pam_unix.so\n"}, {}),
        ({"sshd": "session required pam_unix.so\n# session required pam_limits.so\n"}, {"sshd": "not_owned"}),
        ({"sshd": "auth required pam_limits.so\n"}, {"sshd": "not_owned"}),
        ({"slurm": "@include absent\n@include slurm\n"}, {"slurm": "not_owned"}),
        ({"login": "session required pam_limits.so conf=/etc/site.conf\n"}, {"login": "not_owned"}),
        ({SSHD: "UsePAM no\n"}, {f"/etc/{SSHD[3:]}": "not_owned"}),
        ({SSHD: "usepam YES\nUsePAM no\n", f"{SSHD}.d/a": "UsePAM no\n"}, {}),
        (
            {SSHD: "#UsePAM no\nUsePAM yes\n", f"{SSHD}.d/a.conf": "UsePAM No\n"},
            {f"/etc/{SSHD[3:]}.d/a.conf": "not_owned"},
        ),
    ],
)
def test_a_session_without_pam_limits_has_no_limits_of_ours(
    root: Path, files: dict[str, str], expected: dict[str, str]
) -> None:
    for name, text in files.items():
        put(root, f"etc/pam.d/{name}", text)
    assert {subject: state for subject, (state, _aspect, _follows) in found(root).items()} == expected


@pytest.mark.parametrize(
    ("unit", "nofile", "memlock", "follows"),
    [
        ("LimitMEMLOCK=infinity\nLimitNOFILE=131072", 1048576, "8388608", False),
        ("LimitNOFILE=131072", 131072, "8388608", False),
        ("LimitNOFILE=131072", 131072, "unlimited", True),
        ("LimitMEMLOCK=8M\nLimitNOFILE=131072", 131072, "8388608", True),
        ("LimitMEMLOCK=8M", 131072, "unlimited", False),
    ],
)
def test_a_daemon_follows_from_its_unit_in_the_same_limits_alone(
    root: Path, unit: str, nofile: int, memlock: str, follows: bool
) -> None:
    put(root, "etc/systemd/system/slurmd.service.d/site.conf", f"[Service]\n{unit}\n")
    put(root, "proc/7/comm", "slurmd\n")
    put(root, "proc/7/limits", f"Max open files {nofile} files\nMax locked memory {memlock} bytes\n")
    assert found(root)["slurmd"][2] == follows


def test_a_daemon_that_has_what_its_unit_says_follows_from_it(root: Path) -> None:
    put(root, "proc/7/comm", "slurmd\n")
    put(root, "proc/7/limits", "Max open files 1048576 files\nMax locked memory 8388608 bytes\n")
    assert found(root) == {"slurmd": ("drift", "live", False)}
    put(root, "etc/systemd/system/slurmd.service.d/10-site.conf", LOW)
    assert found(root) == {"slurmd": ("drift", "live", True), "slurmd.service": ("not_owned", "persisted", False)}


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("@students - memlock 65536", "@students"),
        ("@students hard memlock 65536", "@students"),
        ("alice soft memlock 64", "alice"),
        ("@1000:2000 - memlock 64", "@1000:2000"),
        ("@students - memlock unlimited", ""),
        ("% - maxlogins 4", ""),
        ("@students - nofile 1024", ""),
        ("#@students - memlock 64", ""),
    ],
)
def test_a_group_or_user_with_less_is_told_whatever_file_it_is_in(root: Path, line: str, subject: str) -> None:
    # Before ours: it counts all the same.
    path = "etc/security/limits.d/20-site.conf"
    put(root, path, line + "\n")
    assert found(root) == ({f"/{path} {subject}": ("not_owned", "persisted", False)} if subject else {})


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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("tmpfs /dev/shm tmpfs rw,size=65536k 0 0\n", 64 << 20),
        ("tmpfs /dev/shm tmpfs rw,size=8g 0 0\n", 8 << 30),
        ("tmpfs /dev/shm tmpfs rw,nosuid 0 0\n", 1 << 30),
        ("tmpfs /run tmpfs rw,size=1k 0 0\n", None),
        ("# tmpfs /dev/shm tmpfs size=1k\ntmpfs /dev/shm tmpfs size=25% 0 0\n/swap none swap\n", 1 << 29),
    ],
)
def test_the_size_of_shared_memory(text: str, size: int | None) -> None:
    assert host_limits.size_of_shm(mounts.parse_fstab(text), "MemTotal:        2097152 kB\n") == size


@given(st.text(max_size=200))
def test_any_text_is_settings_or_none(text: str) -> None:
    host_limits.parse_login(text)
    host_limits.parse_service("[Manager]\n" + text)
