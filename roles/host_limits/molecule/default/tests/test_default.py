# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role

ROLE = Role(__file__)
LOGIN, SERVICE = "/etc/security/limits.d/99-busbar.conf", "/etc/systemd/system.conf.d/99-busbar.conf"
DAEMON_JSON, DROPIN = "/etc/docker/daemon.json", "/etc/systemd/system/containerd.service.d/99-busbar.conf"
CAP_SYS_RESOURCE = 1 << 24


def test_a_login_gets_the_limits(host: Host) -> None:
    for user in ("root", "nobody"):
        words = f"runuser -u {user} -- prlimit --memlock --nofile --noheadings --output RESOURCE,HARD"
        assert host.file(LOGIN).mode == 0o644
        assert host.run(words).rc == 0


def test_systemd_takes_its_file(host: Host) -> None:
    host.check_output("systemctl daemon-reexec")
    assert host.check_output("systemctl show --value -p DefaultLimitNOFILE") == "1048576"
    assert host.check_output("systemctl show --value -p DefaultLimitMEMLOCK") == "infinity"


def test_dockers_file_has_the_limits_beside_what_was_there(host: Host) -> None:
    data = json.loads(host.file(DAEMON_JSON).content_string)
    assert list(data) == [
        *("exec-opts", "log-driver", "log-opts", "storage-driver"),
        *("default-ulimits", "default-shm-size"),
    ]
    assert data["default-ulimits"]["memlock"] == {"Name": "memlock", "Hard": -1, "Soft": -1}
    assert (data["storage-driver"], data["default-shm-size"]) == ("overlay2", "8G")


# -- what systemd and the kernel make of it --------------------------------------------------------------------------


@pytest.fixture
def started(host: Host) -> Iterator[Host]:
    """The stand-ins run as units of the node's own systemd."""
    host.check_output("systemctl daemon-reload")
    restart(host, docker="dockerd", containerd="containerd")
    yield host
    host.check_output("systemctl stop docker containerd")


def restart(host: Host, **programs: str) -> None:
    """systemd says that a simple service is up before its program is there."""
    host.check_output(f"systemctl restart {' '.join(programs)}")
    for program in programs.values():
        host.check_output(f"timeout 30 sh -c 'until pgrep -x {program}; do sleep 0.1; done'")


def live(host: Host) -> dict[str, str]:
    """Id -> state of what is not ok and of what is, read from the node's real /proc. No id comes twice."""
    answer = host.ansible("busbar.fabric.host_limits", "container_runtimes=docker,containerd shm=", check=True)
    found = [(finding["id"], finding["state"]) for finding in answer["findings"]]
    found += [(passed, "ok") for passed in answer["passed"]]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_containerd_gets_the_limits_of_the_drop_in(started: Host) -> None:
    shown = started.check_output("systemctl show --value -p LimitMEMLOCK -p LimitNOFILE containerd").split()
    assert sorted(shown) == ["1048576", "infinity"]
    pid = started.check_output("systemctl show --value -p MainPID containerd")
    limits = "prlimit --memlock --nofile --noheadings --output SOFT,HARD --pid"
    capable = int(started.check_output("sed -n 's/^CapBnd:\\s*//p' /proc/1/status"), 16) & CAP_SYS_RESOURCE
    # Where nobody may raise a limit systemd gives as much as it has itself.
    most = {row.split()[1] for row in started.check_output(f"{limits} 1").splitlines()}
    wanted = {"unlimited", "1048576"} if capable else most
    assert {word for row in started.check_output(f"{limits} {pid}").splitlines() for word in row.split()} == wanted
    assert live(started)["host_limits.daemon[live]@containerd"] == ("ok" if capable else "withheld")


def test_a_dockerd_that_was_started_before_the_file_was_changed_is_found(started: Host) -> None:
    # Boot times are told in whole seconds.
    started.check_output("sleep 2")
    restart(started, docker="dockerd")
    assert live(started)["host_limits.docker_loaded[live]@dockerd"] == "ok"
    started.check_output(f"sleep 1; touch {DAEMON_JSON}")
    assert live(started)["host_limits.docker_loaded[live]@dockerd"] == "withheld"
    started.check_output("sleep 2")
    restart(started, docker="dockerd")
    assert live(started)["host_limits.docker_loaded[live]@dockerd"] == "ok"
