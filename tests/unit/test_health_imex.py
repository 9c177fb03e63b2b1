# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""IMEX of a tray: what its files and its tool say, and what is said of that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import systemd_files
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    driver_library,
    fabric_manager,
    imex,
    judge,
    page_size,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.imex import Domain, Have
from ansible_collections.busbar.fabric.plugins.module_utils.health.smi import Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import NvlinkDomain
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import put_all, tool

RACK, JOB = NvlinkDomain(3, "rack"), NvlinkDomain(3, "job")
NODES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
UUID = "0f1e2d3c-0000-4000-8000-aabbccddeeff"
READY = tuple((host, "READY", "580.95.05") for host in NODES)
GOOD = Have(True, True, True, "active (running)", NODES, Domain("UP", READY))


def bad(have: Have, domain: NvlinkDomain = RACK, driver: str | None = "580.95.05", **more: Any) -> list[str]:
    findings = imex.judge(have, domain, driver, **more)
    return [f"{f.check} {f.state}{' because' if f.because else ''}: {f.have}" for f in findings if not f.ok]


def changed(**values: Any) -> Have:
    return Have(**{**GOOD.__dict__, **values})


def test_a_tray_that_is_well_has_nothing() -> None:
    assert bad(GOOD) == []
    assert [f.check for f in imex.judge(GOOD, RACK, None)] == [
        *("imex.channel", "imex.service", "imex.nodes", "imex.state")
    ]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {
                "installed": False,
                "active": False,
                "enabled": False,
                "state": "not installed",
                "domain": None,
                "nodes": None,
            },
            [
                "imex.service drift: not installed",
                "imex.nodes drift because: absent",
                "imex.state unknown because: not checked: the service does not run",
            ],
        ),
        (
            {"active": False, "state": "failed (failed)", "domain": None},
            [
                "imex.service drift: failed (failed)",
                "imex.state unknown because: not checked: the service does not run",
            ],
        ),
        ({"enabled": False}, ["imex.service drift: active, not enabled: it does not come back after a reboot"]),
        ({"nodes": None}, ["imex.nodes drift: absent"]),
        ({"nodes": ()}, ["imex.nodes drift: no address"]),
        ({"nodes": (*NODES, "10.0.0.4")}, ["imex.nodes drift: 4 addresses"]),
        ({"nodes": (*NODES[:2], "10.0.0.1")}, ["imex.nodes drift: 10.0.0.1 is listed twice"]),
        (
            {"domain": Domain("DEGRADED", (*READY[:2], ("10.0.0.3", "UNAVAILABLE", "")))},
            ["imex.state drift: DEGRADED: 10.0.0.3 UNAVAILABLE"],
        ),
        ({"domain": Domain("DOWN", READY)}, ["imex.state drift: DOWN"]),
        ({"domain": Domain("UP", (*READY[:2], ("10.0.0.3", "", "")))}, ["imex.state drift: UP: 10.0.0.3 ?"]),
        ({"domain": Domain("UP", ())}, ["imex.state unknown: UP, and no node is listed"]),
        (
            {"domain": Domain("UP", (*READY[:2], ("10.0.0.3", "READY", "570.1")))},
            ["imex.state drift: versions 570.1, 580.95.05"],
        ),
        ({"channel": "there is no x"}, ["imex.channel drift: there is no x"]),
        (
            {"domain": None, "problems": {"state": Problem("t", "did not respond")}},
            ["imex.state unknown: t: did not respond"],
        ),
        ({"problems": {"nodes": Problem("f", "is odd")}}, ["imex.nodes unknown: f is odd"]),
        ({"problems": {"channel": Problem("f", "is odd")}}, ["imex.channel unknown: f is odd"]),
        ({"domain": None, "asked": False}, []),
    ],
)
def test_each_fault_is_its_finding(values: dict[str, Any], says: list[str]) -> None:
    assert [one.replace("t: gave", "t gave").replace("f: is", "f is") for one in bad(changed(**values))] == says


def test_a_service_that_cannot_be_asked_is_unknown() -> None:
    have = changed(active=None, domain=None, problems={"service": Problem("systemctl", "says nothing")})
    assert [one.split(":")[0] for one in bad(have)] == ["imex.service unknown", "imex.state unknown because"]


@pytest.mark.parametrize(
    ("mask", "running", "domain", "expected"),
    [
        ("/etc", False, RACK, ("unknown", "major")),
        ("/run", False, RACK, ("unknown", "major")),
        # A job has started it, or the mask came later.
        ("/etc", True, RACK, ("drift", "major")),
        ("/etc", False, JOB, ("ok", "critical")),
        ("", True, JOB, ("drift", "major")),
        ("", True, RACK, ("ok", "critical")),
    ],
)
def test_a_masked_service_is_never_started(
    tmp_path: Path, mask: str, running: bool, domain: NvlinkDomain, expected: tuple[str, str]
) -> None:
    for unit in (imex.UNIT, fabric_manager.UNIT):
        put_all(tmp_path, {f"/usr/lib/systemd/system/{unit}": "[Unit]\n"})
        put_all(tmp_path, {f"/etc/systemd/system/multi-user.target.wants/{unit}": "[Unit]\n"})
        if running:
            put_all(tmp_path, {f"/sys/fs/cgroup/system.slice/{unit}/cgroup.procs": "12\n"})
        if mask:
            link = tmp_path / mask[1:] / "systemd/system" / unit
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to("/dev/null")
    host = Host(str(tmp_path), str(tmp_path))
    have = imex.read(host, domain, ask=False)
    (service,) = (one for one in imex.judge(have, domain, None) if one.check == imex.SERVICE.id)
    assert (service.state, service.severity) == expected
    manager = judge._fabric_manager(replace(fabric_manager.read(host), version="1.2.3"), "1.2.3")
    assert manager.state == ("unknown" if mask and not running else "drift" if mask else "ok")
    for finding in (service, manager):
        at = finding.fix.find("enable")
        assert at < 0 or not mask or 0 <= finding.fix.find("systemctl unmask") < at
    assert systemd_files.wanted_at_boot(host, imex.UNIT) == (not mask)
    assert bool(systemd_files.unit_files(host, imex.UNIT)) == (not mask)


def test_where_jobs_start_their_own_only_the_channel_is_asked_for() -> None:
    assert bad(Have(), JOB) == []
    assert bad(Have(channel="there is none"), JOB) == ["imex.channel drift: there is none"]
    off = Have(channel="there is none", off=True)
    assert bad(off, JOB, options=["CreateImexChannel0"]) == ["imex.channel drift because: there is none"]
    assert bad(off, JOB, options=["Other"]) == ["imex.channel drift: there is none"]


def test_reads_of_a_tree(tmp_path: Path) -> None:
    files = {
        "/proc/devices": "Character devices:\n  1 mem\n234 nvidia-caps-imex-channels\n",
        "/dev/nvidia-caps-imex-channels/channel0": "",
        "/proc/driver/nvidia/params": "CreateImexChannel0: 1\n",
        imex.NODES: "# rack 1\n10.0.0.1\n10.0.0.2 # two\n\n10.0.0.3\n",
        f"/usr/lib/systemd/system/{imex.UNIT}": "[Unit]\n",
        f"/etc/systemd/system/multi-user.target.wants/{imex.UNIT}": "[Unit]\n",
        f"/sys/fs/cgroup/system.slice/{imex.UNIT}/cgroup.procs": "12\n",
        "/usr/bin/nvidia-imex-ctl": "#!/bin/sh\necho '"
        + json.dumps({"status": "UP", "nodes": {"0": {"host": "10.0.0.1", "status": "READY", "version": "580.95.05"}}})
        + "'\n",
    }
    put_all(tmp_path, files)
    (tmp_path / "usr/bin/nvidia-imex-ctl").chmod(0o755)
    host = Host(str(tmp_path), str(tmp_path))
    have = imex.read(host, RACK)
    assert (have.installed, have.active, have.enabled, have.nodes) == (True, True, True, NODES)
    assert have.domain == Domain("UP", (("10.0.0.1", "READY", "580.95.05"),))
    assert (have.channel, have.off, have.problems) == ("", False, {})
    assert imex.read(host, RACK, ask=False).domain is None
    assert imex.read(host, JOB) == Have(True, True, True, "active (running)")
    put_all(tmp_path, {imex.NODES: "node01\n", "/proc/driver/nvidia/params": "CreateImexChannel0: 0\n"})
    (tmp_path / "dev/nvidia-caps-imex-channels/channel0").unlink()
    have = imex.read(host, RACK)
    assert "line 1 is 'node01', expected one address" in str(have.problems["nodes"])
    assert (have.channel, have.off) == ("there is no /dev/nvidia-caps-imex-channels/channel0", True)
    put_all(tmp_path, {"/proc/devices": "Character devices:\n"})
    assert imex.read(host, JOB).channel == "the driver has no nvidia-caps-imex-channels"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"status": 1}', '{"status": "UP", "nodes": []}', '{"status": "UP", "nodes": {"0": 4}}'],
)
def test_an_answer_that_is_none(text: str) -> None:
    with pytest.raises(ParseError):
        imex.parse_domain(text)


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=9),
        lambda inner: st.dictionaries(st.sampled_from(["status", "nodes", "0", "host", "version"]), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_is_a_domain_or_an_error(said: Any) -> None:
    try:
        found = imex.parse_domain(json.dumps(said))
    except ParseError:
        return
    assert all(len(word) <= 60 for node in found.nodes for word in node)


def gpu(pci: str, cluster: str | None, clique: str | None, state: str = "Completed") -> Gpu:
    fabric = {"state": state, "clusterUuid": cluster, "cliqueId": clique}
    return Gpu(pci, "GPU-1", fabric={key: value for key, value in fabric.items() if value})


def membership(*gpus: Gpu) -> list[tuple[str, str, bool]]:
    found = imex.judge_membership({one.pci: one for one in gpus}, {})
    return [(one.subject, one.state, one.because is not None) for one in found if not one.ok]


def test_each_gpu_has_to_be_in_one_domain() -> None:
    assert membership(gpu("a", UUID, "32766"), gpu("b", UUID.upper(), "32766")) == []
    assert membership(gpu("a", UUID, "0")) == []
    assert membership(gpu("a", imex.ZEROS, "0")) == [("a", "drift", False)]
    assert membership(gpu("a", UUID, None)) == [("a", "unknown", False)]
    assert membership(gpu("a", "N/A", "N/A", "In Progress")) == [("a", "drift", True)]
    assert membership(gpu("a", None, None, "")) == [("a", "unknown", True)]
    assert membership(gpu("a", UUID, "1"), gpu("b", UUID, "2")) == [("gpus", "drift", False)]


def test_what_the_control_node_is_told() -> None:
    of = {"a": gpu("a", UUID, "7")}
    assert imex.told(GOOD, of) == {"domain": f"{UUID}.7", "nodes": list(NODES)}
    assert imex.told(None, of) is None
    assert imex.told(changed(nodes=None), of) is None
    assert imex.told(GOOD, {"a": gpu("a", imex.ZEROS, "0")}) is None
    assert imex.told(GOOD, {**of, "b": gpu("b", UUID, "8")}) is None


def smi(*gpus: tuple[str, str]) -> str:
    """An nvidia-smi that lists GPUs of these domains, UUID and clique of each."""
    listed = "".join(
        f'<gpu id="0000000{n}:01:00.0"><fabric><state>Completed</state><status>Success</status>'
        f"<cliqueId>{clique}</cliqueId><clusterUuid>{uuid}</clusterUuid></fabric></gpu>"
        for n, (uuid, clique) in enumerate(gpus)
    )
    return f"cat <<'E'\n<nvidia_smi_log>{listed}</nvidia_smi_log>\nE"


@pytest.mark.parametrize(
    ("script", "domain", "why"),
    [
        (smi((UUID, "7"), (UUID.upper(), "7")), f"{UUID}.7", ""),
        (smi((UUID, "7"), (imex.ZEROS, "0")), "", "1 of 2 GPUs have no UUID and clique of one (0001:01:00.0"),
        (smi((UUID, "7"), (UUID, "8")), "", "its GPUs are of 2 domains"),
        (smi(), "", "lists no GPU"),
        ("echo what", "", "nvidia-smi -q -x: "),
        ("exit 9", "", "nvidia-smi -q -x"),
    ],
)
def test_a_node_says_of_which_domain_it_is_or_why_it_cannot(tmp_path: Path, script: str, domain: str, why: str) -> None:
    tool(tmp_path, "usr/bin/nvidia-smi", script)
    said = imex.domain_of(Host(str(tmp_path), str(tmp_path)))
    assert said[0] == domain
    assert why in said[1]
    assert bool(said[0]) != bool(said[1])


@pytest.mark.parametrize(
    ("said", "asked", "state"),
    [
        ("65536", 65536, "ok"),
        ("4096", 65536, "drift"),
        ("what", 65536, "unknown"),
        (None, 65536, "unknown"),
        (None, None, None),
    ],
)
def test_page_size(tmp_path: Path, said: str | None, asked: int | None, state: str | None) -> None:
    if said is not None:
        put_all(tmp_path, {"/usr/bin/getconf": f"#!/bin/sh\necho {said}\n"})
        (tmp_path / "usr/bin/getconf").chmod(0o755)
    found = page_size.judge(Host(str(tmp_path), str(tmp_path)), asked)
    assert [one.state for one in found] == ([state] if state else [])


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"lib64/libcuda.so.570.124.06": "ELF", "lib64/libnvidia-ml.so.570.124.06": "ELF"}, "ok"),
        ({"lib64/libcuda.so.570.124.06": "ELF", "lib64/libnvidia-ml.so.570.124.06": ""}, "drift"),
        ({"lib/aarch64-linux-gnu/libcuda.so.570.124.06": ""}, "drift"),
        # An older driver's files that nobody loads; a driver from a container.
        ({"lib64/libcuda.so.570.124.06": "ELF", "lib64/libcuda.so.535.54.03": ""}, "ok"),
        ({"lib64/libcuda.so.5701124106": "", "lib64/libnccl.so.2": ""}, None),
    ],
)
def test_libraries_of_the_running_driver_are_not_empty(
    tmp_path: Path, files: dict[str, str], state: str | None
) -> None:
    put_all(tmp_path, {f"/usr/{path}": text for path, text in files.items()})
    host = Host(str(tmp_path), str(tmp_path))
    assert [one.state for one in driver_library.judge(host, "570.124.06")] == ([state] if state else [])
    assert driver_library.judge(host, None) == []
