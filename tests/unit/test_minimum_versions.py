# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Minimum versions: only a version at or above the minimum of its line is good. The lines: readings, and the lab."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import installed_versions, minimum_versions
from ansible_collections.busbar.fabric.plugins.module_utils.machine.minimum_versions import BULLETINS, Installed, judge
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent

from lab import store
from lab.machines import hgx_h100
from tests.trees import tool

OLD = {
    "driver": "580.95.05",
    "nic_firmware": "28.43.2026",
    "container_toolkit": "1.17.8",
    "runc": "1.3.3",
    "dcgm": "4.5.2",
    "cuda": "13.0.1",
}


@pytest.mark.parametrize("component", OLD)
def test_only_what_reaches_a_minimum_is_good_and_the_advice_ends_it(component: str) -> None:
    one = Installed(component, "x", OLD[component], "/proc/x")
    assert judge([one], []) == []
    for version, state in ((OLD[component], "drift"), ("1000.999.9999", "ok"), (None, "unknown"), ("x", "unknown")):
        found = judge([one._replace(version=version)], [BULLETINS])
        lines = component in ("driver", "runc", "nic_firmware")
        wanted = "unknown" if lines and state == "ok" else state
        left_out = component == "runc" and version in (None, "x")
        assert [(each.state, each.severity) for each in found] == ([] if left_out else [(wanted, "minor")])
    [old] = judge([one], [BULLETINS])
    [words] = re.findall(r"busbar_minimum_versions: \[(.*)\]", old.fix or "")
    assert all(minimum_versions.FORM.fullmatch(word) for word in words.split(", "))
    assert [each.state for each in judge([one], words.split(", "))] == ["ok"]


def test_a_branch_that_no_bulletin_names_is_unknown_until_the_site_accepts_it() -> None:
    one = Installed("driver", "NVIDIA driver", "620.10.01", "/proc/driver/nvidia/version")
    [found] = judge([one], [BULLETINS])
    assert (found.state, "615.71.09" in (found.want or "")) == ("unknown", True)
    assert [each.state for each in judge([one], [BULLETINS, "driver 620.10.01"])] == ["ok"]


def test_firmware_that_is_declared_and_old_is_found_without_the_variable_and_warned_of_at_once() -> None:
    one = Installed("nic_firmware", "0000:18:00.0 mlx5_0", "28.43.2026", "/sys", declared=True)
    assert [each.state for each in judge([one], [])] == ["drift"]
    assert judge([one._replace(version="28.43.8002")], []) == judge([one._replace(version="99.1.1")], []) == []
    values = {"busbar_firmware": {"MT_1": "28.43.2026", "MT_2": "28.47.1088"}, "busbar_minimum_versions": []}
    doubts = intent.summarise_doubts({"n1": values, "n2": values, "n3": {**values, "busbar_firmware": {}}})
    assert [(doubt.split(": ")[0], "MT_1" in doubt, "28.43.8002" in doubt) for doubt in doubts] == [
        ("n[1-2]", True, True)
    ]
    accepted = {**values, "busbar_minimum_versions": ["nic_firmware 28.43.2026"]}
    assert intent.summarise_doubts({"n1": accepted}) == []


def test_a_newer_table_is_another_intent_and_only_for_those_who_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def digests() -> list[str]:
        given = [{"values": {"busbar_minimum_versions": words}} for words in ([], [BULLETINS])]
        return [intent.digest({**one, "profile": {}, "benchmark_runs": []}) for one in given]

    before = digests()
    monkeypatch.setattr(minimum_versions, "DATE", "2027-01-01")
    after = digests()
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, Topology]:
    from ansible_collections.busbar.fabric.plugins.module_utils.machine import topology

    folder = tmp_path_factory.mktemp("versions")
    store.create(folder / "lab", {"node01": hgx_h100})
    top = folder / "lab/node01"
    host = Host(str(top / "hw"), str(top / "sys"))
    return host, topology.read(host, ask_nvidia_smi=False)


def checked(node: tuple[Host, Topology], *words: str, **changes: Any) -> dict[str, str]:
    host, machine = node
    found = installed_versions.judge(host, replace(machine, **changes), words, {}, [])
    return {one.check.removeprefix("platform."): one.state for one in found}


def test_what_is_not_installed_and_the_nics_of_a_guest_are_not_judged(node: tuple[Host, Topology]) -> None:
    assert checked(node, BULLETINS) == {"firmware_minimum": "ok", "driver_minimum": "ok"}
    assert checked(node, BULLETINS, virtualization=Virtualization(True, "kvm", "x")) == {"driver_minimum": "ok"}
    assert checked(node, BULLETINS, driver=None)["driver_minimum"] == "unknown"
    assert checked(node, "runc 1.3.6", gpus=()) == checked(node) == {}


def test_a_tool_that_prints_no_version_is_unknown(node: tuple[Host, Topology]) -> None:
    tool(Path(node[0].system_root), "usr/bin/nvidia-ctk", "echo none")
    tool(Path(node[0].system_root), "usr/bin/dcgmi", "exit 1")
    assert checked(node, "container_toolkit 1.0", "dcgm 1.0") == {
        "container_toolkit_minimum": "unknown",
        "dcgm_minimum": "unknown",
    }
