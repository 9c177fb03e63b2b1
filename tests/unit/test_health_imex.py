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
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    imex,
    service,
    system,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.imex import Domain, ImexState
from ansible_collections.busbar.fabric.plugins.module_utils.health.smi import Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import NvlinkDomain
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens, readings
from tests.trees import put_all, tool
from tests.unit import finding_rows

RACK, JOB, PODS = (NvlinkDomain(3, mode) for mode in ("rack", "job", "compute_domain"))
NODES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
UUID = "0f1e2d3c-0000-4000-8000-aabbccddeeff"
READY = tuple((host, "READY", "580.95.05") for host in NODES)
GOOD = ImexState(True, True, True, "active (running)", nodes=NODES, domain=Domain("UP", READY))


def changed(**values: Any) -> ImexState:
    return ImexState(**{**GOOD.__dict__, **values})


def gpu(pci: str, cluster: str | None, clique: str | None, state: str = "Completed") -> Gpu:
    fabric = {"state": state, "clusterUuid": cluster, "cliqueId": clique}
    return Gpu(pci, "GPU-1", fabric={key: value for key, value in fabric.items() if value})


@pytest.mark.golden
def test_each_fault_is_its_finding() -> None:
    good = [f"imex.{name}" for name in ("channel", "service", "nodes", "state")]
    assert [f.check for f in imex.judge(GOOD, RACK, None)] == good
    for name, have in readings.cases("imex_trays"):
        goldens.check("imex", name, finding_rows.rows(imex.judge(have, RACK, "580.95.05"), "imex."))
    for name, (have, options) in readings.cases("imex_jobs"):
        found = imex.judge(have, JOB, "580.95.05", options=list(options))
        goldens.check("imex", f"jobs: {name}", finding_rows.rows(found, "imex."))
    for name, (have, driver) in readings.cases("imex_compute_domain"):
        goldens.check("imex", f"ComputeDomains: {name}", finding_rows.rows(imex.judge(have, PODS, driver), "imex."))
    for name, gpus in readings.cases("imex_gpus"):
        found = imex.judge_membership({one.pci: one for one in gpus}, {})
        goldens.check("imex", f"GPUs: {name}", finding_rows.rows(found, "imex."))


@pytest.mark.parametrize(("mask", "running", "domain", "expected"), readings.cases("imex_masked"))
def test_a_masked_service_is_never_started(
    tmp_path: Path, mask: str, running: bool, domain: NvlinkDomain, expected: list[str]
) -> None:
    for name in (imex.UNIT, service.FABRIC_MANAGER_UNIT):
        for folder in ("/usr/lib/systemd/system", "/etc/systemd/system/multi-user.target.wants"):
            put_all(tmp_path, {f"{folder}/{name}": "[Unit]\n"})
        if running:
            put_all(tmp_path, {f"/sys/fs/cgroup/system.slice/{name}/cgroup.procs": "12\n"})
        if mask:
            unit_file = tmp_path / mask[1:] / "systemd/system" / name
            unit_file.parent.mkdir(parents=True, exist_ok=True)
            unit_file.symlink_to("/dev/null")
    host = Host(str(tmp_path), str(tmp_path))
    have = imex.read(host, domain, ask=False)
    (unit,) = (one for one in imex.judge(have, domain, None) if one.check == imex.SERVICE.id)
    assert [unit.state, unit.severity] == expected
    manager = service.judge_fabric_manager(replace(service.read_fabric_manager(host), version="1.2.3"), "1.2.3")
    assert manager.state == ("unknown" if mask and not running else "drift" if mask else "ok")
    for finding in (unit, manager):
        at = finding.fix.find("enable")
        assert at < 0 or not mask or 0 <= finding.fix.find("systemctl unmask") < at
    assert systemd_files.wanted_at_boot(host, imex.UNIT) == (not mask)
    assert bool(systemd_files.unit_files(host, imex.UNIT)) == (not mask)


def test_reads_of_a_tree(tmp_path: Path) -> None:
    answer = {"status": "UP", "nodes": {"0": {"host": "10.0.0.1", "status": "READY", "version": "580.95.05"}}}
    tool(tmp_path, "usr/bin/nvidia-imex-ctl", f"echo '{json.dumps(answer)}'")
    channel = "/dev/nvidia-caps-imex-channels/channel0"
    files = {
        "/proc/devices": "Character devices:\n  1 mem\n234 nvidia-caps-imex-channels\n",
        channel: "",
        "/proc/driver/nvidia/params": "CreateImexChannel0: 1\n",
        imex.NODES: "# rack 1\n10.0.0.1\n10.0.0.2 # two\n\n10.0.0.3\n",
        f"/usr/lib/systemd/system/{imex.UNIT}": "[Unit]\n",
        f"/etc/systemd/system/multi-user.target.wants/{imex.UNIT}": "[Unit]\n",
        f"/sys/fs/cgroup/system.slice/{imex.UNIT}/cgroup.procs": "12\n",
    }
    put_all(tmp_path, files)
    host = Host(str(tmp_path), str(tmp_path))
    have, active = imex.read(host, RACK), "active (running)"
    seen = Domain("UP", (("10.0.0.1", "READY", "580.95.05"),))
    assert have == ImexState(True, True, True, active, nodes=NODES, domain=seen)
    assert imex.read(host, RACK, ask=False).domain is None
    assert imex.read(host, JOB) == ImexState(True, True, True, active)
    put_all(tmp_path, {imex.NODES: "node 01\n", "/proc/driver/nvidia/params": "CreateImexChannel0: 0\n"})
    (tmp_path / channel[1:]).unlink()
    have = imex.read(host, RACK)
    assert "line 1 is 'node 01', expected one address or name" in str(have.problems["nodes"])
    assert (have.channel, have.off) == (f"there is no {channel}", True)
    put_all(tmp_path, {"/proc/devices": "Character devices:\n"})
    assert imex.read(host, JOB).channel == "the driver has no nvidia-caps-imex-channels"


def test_reads_of_a_tree_with_compute_domains(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    put_all(tmp_path, {"/proc/devices": "Character devices:\n234 nvidia-caps-imex-channels\n"})
    have = imex.read(host, PODS)
    assert (have.channel, have.registered, have.nodes, imex.read(host, JOB).registered) == ("", False, None, None)
    put_all(tmp_path, {f"{imex.SOCKETS}/{imex.SOCKET}": ""})
    assert imex.read(host, PODS).registered


LEAF = st.none() | st.integers() | st.text(max_size=9)
KEY = st.sampled_from(["status", "nodes", "0", "host", "version"])


@given(st.recursive(LEAF, lambda inner: st.dictionaries(KEY, inner, max_size=4), max_leaves=12))
def test_any_json_is_a_domain_or_an_error(said: Any) -> None:
    try:
        found = imex.parse_domain(json.dumps(said))
    except ParseError:
        return
    assert all(len(word) <= 60 for node in found.nodes for word in node)


def test_what_the_control_node_is_told() -> None:
    of = {"a": gpu("a", UUID, "7")}
    assert imex.fleet_facts(GOOD, of) == {"domain": f"{UUID}.7", "nodes": list(NODES)}
    assert imex.fleet_facts(None, of) is None
    assert imex.fleet_facts(changed(nodes=None), of) is None
    assert imex.fleet_facts(GOOD, {"a": gpu("a", imex.ZEROS, "0")}) is None
    assert imex.fleet_facts(GOOD, {**of, "b": gpu("b", UUID, "8")}) is None


@pytest.mark.parametrize(("script", "domain", "why"), readings.cases("imex_domain"))
def test_a_node_says_of_which_domain_it_is_or_why_it_cannot(tmp_path: Path, script: str, domain: str, why: str) -> None:
    tool(tmp_path, "usr/bin/nvidia-smi", script)
    said = imex.domain_of(Host(str(tmp_path), str(tmp_path)))
    assert said[0] == domain
    assert why in said[1]
    assert bool(said[0]) != bool(said[1])


@pytest.mark.parametrize(("said", "asked", "state"), readings.cases("page_size"))
def test_page_size(tmp_path: Path, said: str | None, asked: int | None, state: str | None) -> None:
    if said is not None:
        tool(tmp_path, "usr/bin/getconf", f"echo {said}")
    found = system.judge_page_size(Host(str(tmp_path), str(tmp_path)), asked)
    assert [one.state for one in found] == ([state] if state else [])


@pytest.mark.parametrize(("files", "state"), readings.cases("driver_library"))
def test_libraries_of_the_running_driver_are_not_empty(
    tmp_path: Path, files: dict[str, str], state: str | None
) -> None:
    put_all(tmp_path, {f"/usr/{path}": text for path, text in files.items()})
    host = Host(str(tmp_path), str(tmp_path))
    assert [one.state for one in system.judge_libraries(host, "570.124.06")] == ([state] if state else [])
    assert system.judge_libraries(host, None) == []
