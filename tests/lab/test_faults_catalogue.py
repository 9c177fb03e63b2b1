# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every fault of the catalogue shows on a node and can be taken back, alone and in company."""

import contextlib
import difflib
import json
import random
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab import nvidia_smi, store, tree
from lab.fault import ALL, CommandFault, FileFault
from lab.faults import FAULTS, compatible, draw, expected
from lab.machine import LabError, Machine, from_dict, to_dict
from lab.machines import h200_vm, hgx_b200, hgx_h100, hgx_h200_roce
from lab.roce import LLDPAD_PID
from tests import goldens, series
from tests.lab.conftest import few_slots
from tests.lab.transcript import snapshot
from tests.trees import put_all

BUILDERS = {"node01": hgx_h100, "node02": hgx_h200_roce, "node03": hgx_b200, "vm01": h200_vm}
# The others need a node that can run a benchmark.
SHOWN = [name for name, fault in FAULTS.items() if not fault.measured]
MEASURED = [name for name, fault in FAULTS.items() if fault.measured]
CONF = "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_SOCKET_IFNAME==eno1\n"


@pytest.fixture(scope="module")
def four_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lab") / "lab"
    started = time.perf_counter()
    store.create(directory, few_slots(BUILDERS))
    print(f"{len(BUILDERS)} nodes created in {time.perf_counter() - started:.2f} s")
    for node in BUILDERS:
        # Faults change what a run has written, and here none has run.
        put_all(directory / node / "sys", {"/etc/nccl.conf": CONF, **PROVISIONED})
    return directory


@pytest.fixture
def lab(four_nodes: Path) -> Iterator[Path]:
    """Four healthy, provisioned nodes; repaired after the test."""
    yield four_nodes
    store.repair_broken(four_nodes)


@cache
def machine_of(node: str) -> Machine:
    return BUILDERS[node](node)


def nodes_of(name: str) -> list[str]:
    return [node for node in BUILDERS if machine_of(node).platform in FAULTS[name].platforms]


PROVISIONED = {
    "/etc/modules-load.d/busbar-nvidia-peermem.conf": "nvidia_peermem\n",
    "/etc/systemd/system/multi-user.target.d/busbar-pcie-path.conf": "[Unit]\nWants=busbar-pcie-path.service\n",
    "/etc/modules-load.d/busbar-ib-umad.conf": "ib_umad\n",
    "/etc/systemd/system/busbar-roce-qos@.service": "[Service]\nExecStart=/usr/bin/python3\n",
    "/etc/udev/rules.d/90-busbar-roce-qos.rules": 'SUBSYSTEM=="net"\n',
    "/etc/sysctl.d/98-busbar-multirail.conf": "net/ipv4/conf/enp26s0np0/arp_ignore = 1\n",
    "/etc/systemd/network/10-rail5.network.d/90-busbar-mtu.conf": "[Link]\nMTUBytes=9000\n",
    "/etc/systemd/network/10-rail6.network.d/90-busbar-multirail.conf": "[RoutingPolicyRule]\n",
    "/run/busbar-roce-qos/0000:1a:00.0.json": '{"state": "ok"}\n',
    "/etc/apt/keyrings/busbar-mofed.asc": store.NO_KEY,
    "/etc/apt/sources.list.d/busbar-mofed.sources": (
        "Types: deb\nURIs: file:/top/doca/3.2.1/ubuntu24.04/x86_64/\nSuites: ./\n"
    ),
}


# What follows from the order of functions, and a record that has its time in it.
NUMBERED = re.compile(r"/iommu_groups/\d+/devices|/iommu_group$|/hwmon/|/health/last.json$")


def contents(machine: Machine) -> dict[str, str]:
    """Path -> text of all that shows a machine: its hardware root, and what nvidia-smi answers."""
    shown = tree.hardware(machine)
    found = {**shown.files, **{path: data.hex() for path, data in shown.binaries.items()}}
    found |= {path: f"-> {target}" for path, target in shown.links.items()}
    found |= {f"nvidia-smi {name}": text for name, text in nvidia_smi.answers(machine).items()}
    return {path: text for path, text in found.items() if not NUMBERED.search(path)}


@cache
def healthy(node: str) -> dict[str, str]:
    return contents(machine_of(node))


def directories(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:number]) + "/" for number in range(2, len(parts))]


def leaves(data: Any, name: str = "") -> list[str]:
    """Return a line for each value of JSON."""
    if not isinstance(data, (dict, list)) or not data:
        return [f"{name}: {json.dumps(data)}"]
    items = data.items() if isinstance(data, dict) else enumerate(data)
    return [line for key, value in items for line in leaves(value, f"{name}.{key}".lstrip("."))]


def difference(before: str, after: str) -> list[str]:
    """Return what is different: of JSON its values, of a configuration space a register, of anything else lines."""
    if {*before, *after} <= {*"0123456789abcdef"} and len(before) == len(after) > 100:
        place = next(number for number in range(0, len(before), 2) if before[number:][:2] != after[number:][:2])
        return [f"{place // 2:#x}: {before[place:][:4]} -> {after[place:][:4]}"]
    old, new = before.splitlines(), after.splitlines()
    if before[:1] == after[:1] == "{":
        with contextlib.suppress(ValueError):
            old, new = leaves(json.loads(before)), leaves(json.loads(after))
    lines = [line[:300] for line in difflib.unified_diff(old, new, n=0, lineterm="") if not line.startswith("@@")][2:]
    return lines if len(lines) < 9 else [*lines[:6], f"{len(lines) - 6} lines more"]


def changes(before: dict[str, str], after: dict[str, str]) -> list[list[str]]:
    """Return a row for each path that is otherwise, of a directory that has come or gone one, and of many alike one."""
    both = before.keys() & after.keys()
    rows = {path: difference(before[path], after[path]) for path in both if after[path] != before[path]}
    for mark, here, there in (("-", before, after), ("+", after, before)):
        left = {directory for path in there for directory in directories(path)}
        tops: dict[str, list[str]] = {}
        for path in here.keys() - there.keys():
            tops.setdefault(next((top for top in directories(path) if top not in left), path), []).append(path)
        for top, paths in tops.items():
            if len(paths) == 1:
                rows[paths[0]] = difference(*("", here[paths[0]])[:: 1 if mark == "+" else -1])
            else:
                rows[top] = [f"{mark}{len(paths)} files"]
    alike: dict[str, list[list[str]]] = {}
    for row in ([path, *rows[path]] for path in sorted(rows)):
        alike.setdefault(re.sub(r"\b[0-9a-f:.]+\b", "*", json.dumps(row)), []).append(row)
    return [[*found[0], *([f"and {len(found) - 1} alike"] if found[1:] else [])] for found in alike.values()]


@pytest.mark.golden
@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_changes(four_nodes: Path, name: str) -> None:
    fault, node = FAULTS[name], nodes_of(name)[0]
    machine = machine_of(node)
    broken = fault.apply(machine)
    rows = [] if broken == machine else changes(healthy(node), contents(broken))
    if file := fault.changed_file:
        path = four_nodes / node / "sys" / file.path[1:]
        before = path.read_text() if path.exists() else None
        text, mode = file.edit(machine, before), f" {file.mode:o}" if file.mode else ""
        lines = [] if NUMBERED.search(file.path) else difference(before or "", text or "")
        rows += [[file.path + mode, *lines, *(["no file"] if text is None else [])]]
    if isinstance(fault.change, CommandFault):
        rows += [list(command.argv) for command in (*fault.change.break_, *fault.change.repair)]
    assert from_dict(json.loads(json.dumps(to_dict(broken)))) == broken
    goldens.check("lab_faults", f"{node} {name}", rows)


@pytest.mark.parametrize("name", series.some(SHOWN, 12))
def test_a_fault_changes_the_node_and_repair_restores_every_byte(lab: Path, name: str) -> None:
    node = nodes_of(name)[-1]
    before = snapshot(lab / node)
    store.break_(lab, node, name)
    assert store.status(lab)[node] == [name]
    after = snapshot(lab / node)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    changed = {path for path in changed if path.split("/")[0] in ("hw", "sys")}
    assert changed
    fault, file = FAULTS[name].change, FAULTS[name].changed_file
    own = {f"sys{file.path}"} if file else set()
    if isinstance(fault, FileFault):
        assert changed == own
    elif not isinstance(fault, CommandFault):
        assert own <= changed
        # lldpad's process id is a file below /run.
        assert all(path.startswith(("hw/", "sys/usr/", f"sys/{LLDPAD_PID}")) for path in changed - own)
    assert store.repair(lab, node, name) == [name]
    restored = snapshot(lab / node)
    restored.pop("backup", None)
    before.pop("backup", None)
    assert restored == before


@pytest.mark.parametrize("seed", series.some(range(6), 2))
def test_five_faults_at_once_all_show_and_are_repaired_together(lab: Path, seed: int) -> None:
    node = ("node01", "node02")[seed % 2]
    machine = store.healthy(lab, node)
    names = draw(random.Random(seed), 5, machine.platform)
    before = snapshot(lab / node / "hw")
    for name in names:
        store.break_(lab, node, name)
    assert store.status(lab)[node] == names
    roots = [(e.check, e.subject) for e in expected(machine, names) if e.because is None]
    assert len(set(roots)) == 5
    assert store.repair(lab, node) == names
    assert snapshot(lab / node / "hw") == before


@pytest.mark.parametrize("platform", ALL)
def test_draws_are_compatible_apply_and_differ_from_seed_to_seed(platform: str) -> None:
    draws = [draw(random.Random(seed), 5, platform) for seed in range(200)]
    for names in draws:
        assert len(set(names)) == 5
        assert compatible(names)
        assert all(platform in FAULTS[name].platforms for name in names)
    assert draw(random.Random(3), 5, platform) == draws[3]
    assert {name for names in draws for name in names} == {n for n in SHOWN if platform in FAULTS[n].platforms}


def test_more_faults_than_go_together_cannot_be_drawn() -> None:
    with pytest.raises(LabError, match=f"no {len(FAULTS)} compatible faults"):
        draw(random.Random(1), len(FAULTS), "hgx-h100")
    with pytest.raises(LabError, match="no 1 compatible faults"):
        draw(random.Random(1), 1, "unheard-of")
    with pytest.raises(LabError, match="no rail 2"):
        expected(h200_vm(), ["port-down"])


@pytest.mark.parametrize(
    "names",
    [
        ("rail-missing", "nic-moved"),
        ("gpu-missing", "gpu-lost"),
        ("gpu-missing", "rail-missing"),
        ("smi-hang", "smi-garbage"),
        ("smi-missing", "nvlink-down"),
        ("smi-missing", "fabric-not-ready"),
        ("conf-edited", "conf-mode"),
        ("nic-moved", "conf-removed"),
        ("rate-low", "rate-low"),
        ("gpu-busy", "gpu-slow"),
        ("user-p2p-off", "user-conf"),
        ("wrong-sums", "fabric-not-ready"),
        ("collective-hang", "smi-hang"),
        ("acs-back-at-boot", "rail-missing"),
    ],
)
def test_faults_that_hide_each_other_are_not_compatible(names: tuple[str, str]) -> None:
    assert not compatible(names)
    assert not compatible(reversed(names))


def test_the_catalogue_speaks_of_faults_platforms_and_checks_that_can_exist() -> None:
    for fault in FAULTS.values():
        assert set(fault.excludes) <= set(FAULTS), fault.name
        assert set(fault.platforms) <= set(ALL), fault.name
        for check in (fault.check, *fault.consequences):
            assert check.startswith("nccl_perf.") == fault.measured, fault.name


# -- the store -------------------------------------------------------------------------------------------------------


def test_a_name_that_leads_out_of_the_lab_is_no_node(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cannot be a node"):
        store.create(tmp_path / "lab", {"../node": hgx_h100})


def test_a_fault_that_cannot_show_is_refused_and_leaves_no_trace(lab: Path) -> None:
    store.break_(lab, "node01", "rail-missing")
    before = snapshot(lab / "node01")
    for name, reason in {
        "rail-missing": "has rail-missing already",
        "nic-moved": "does not show beside rail-missing",
        "gid-missing": "only to hgx-h200",
    }.items():
        with pytest.raises(LabError, match=reason):
            store.break_(lab, "node01", name)
    assert snapshot(lab / "node01") == before


def test_a_fault_of_a_file_that_is_not_provisioned_says_so(tmp_path: Path) -> None:
    store.create(tmp_path / "lab", {"vm01": h200_vm})
    for name in ("conf-edited", "conf-removed", "conf-mode"):
        with pytest.raises(LabError, match=r"no /etc/nccl\.conf yet"):
            store.break_(tmp_path / "lab", "vm01", name)
    assert store.status(tmp_path / "lab") == {"vm01": []}


def test_repair_does_not_undo_what_somebody_mended(lab: Path) -> None:
    conf = lab / "node02/sys/etc/nccl.conf"
    store.break_(lab, "node02", "conf-edited")
    assert "NCCL_IB_HCA=mlx5_6," in conf.read_text()
    conf.write_text("# mended\n")
    assert store.repair(lab, "node02", "conf-edited") == ["conf-edited"]
    assert conf.read_text() == "# mended\n"
    conf.write_text(CONF)


def test_an_unreadable_state_file_is_named(tmp_path: Path) -> None:
    store.create(tmp_path / "lab", {"vm01": h200_vm})
    (tmp_path / "lab/vm01/faults.json").write_text("[")
    with pytest.raises(LabError, match=r"faults\.json cannot be used"):
        store.status(tmp_path / "lab")
