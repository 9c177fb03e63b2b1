# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A guest with a flat PCI tree needs the cloud's topology file: named, there, and of these devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import conf as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.conf import Want
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.topo_file import DEFAULT, TOPO_FILE

from tests.trees import put_all

CONF, FILE = "/etc/nccl.conf", "/opt/microsoft/ndv5-topo.xml"
NEW = (2, 27, 7)


@pytest.fixture
def guest(infiniband: Topology, edit: Any) -> Topology:
    """Eight virtual functions behind the host bridge, as a hypervisor shows them."""
    paths = {pair: "PHB" if was != "SYS" else was for pair, was in infiniband.paths.items()}
    found = replace(infiniband, paths=paths, virtualization=replace(infiniband.virtualization, is_vm=True))
    for index in range(8):
        found = edit.nic(found, index, role="vf")
    return found


@pytest.fixture
def slots(guest: Topology, hgx_h100: Profile) -> Profile:
    rails = zip(hgx_h100.rails, guest.nics, strict=True)
    return replace(hgx_h100, rails=tuple(replace(rail, pci=nic.pci, paths={}) for rail, nic in rails))


def xml(topology: Topology, without: int | None = None, other: bool = False) -> str:
    rows = []
    for number, (gpu, nic) in enumerate(zip(topology.gpus, topology.nics, strict=True)):
        busid = "00ff:00:00.0" if other and number == 2 else gpu.pci
        rail = f'<pci busid="{nic.pci}" class="0x020700"/>' if number != without else ""
        bridge = f'<pci busid="ffff:ff:{number:02x}.0" class="0x060400">'
        rows.append(f'{bridge}<pci busid="{busid}" class="0x030200"/>{rail}</pci>')
    return f'<system version="1"><cpu numaid="0" arch="x86_64">{"".join(rows)}</cpu></system>'


def judged(
    root: Path, guest: Topology, slots: Profile, want: Want, files: dict[str, str]
) -> tuple[list[Finding], bool]:
    """What is said of the file, and whether nccl.conf would be written."""
    put_all(root, files)
    host = Host(str(root), str(root))
    derivation = nccl_conf.derive(guest, slots, want, [NEW])
    have = nccl_conf.with_topo_file(nccl_conf.read(host, CONF), host, guest, slots, derivation)
    plan = nccl_conf.plan(have, derivation, CONF, version=NEW)
    return [finding for finding in plan.findings if finding.check == TOPO_FILE.id], bool(plan.changes)


NAMED = Want(extra={"NCCL_TOPO_FILE": FILE})


@pytest.mark.parametrize(
    ("want", "file", "state", "says"),
    [
        (Want(), None, "drift", "no file is named"),
        (NAMED, None, "drift", "is not there"),
        (NAMED, "right", "ok", "names every GPU and rail"),
        (NAMED, "no rail", "drift", "it has no rail"),
        (NAMED, "another machine's", "drift", "it has no GPU"),
        (NAMED, "garbage", "unknown", FILE),
        (Want(extra={"NCCL_TOPO_FILE": "topo.xml"}), None, "unknown", "is no absolute path"),
        (Want(extra={"NCCL_NET_GDR_LEVEL": "SYS"}), None, None, ""),
        (Want(gpudirect="off"), None, None, ""),
    ],
)
def test_the_file_has_to_be_of_this_machine(
    tmp_path: Path, guest: Topology, slots: Profile, want: Want, file: str | None, state: str | None, says: str
) -> None:
    texts = {
        "right": xml(guest),
        "no rail": xml(guest, without=3),
        "another machine's": xml(guest, other=True),
        "garbage": "<system",
    }
    found, written = judged(tmp_path, guest, slots, want, {FILE: texts[file]} if file else {})
    assert [finding.state for finding in found] == ([state] if state else [])
    assert all(says in str(finding.have) for finding in found)
    assert all("verify.yml" in finding.why for finding in found)
    assert written  # the rest of nccl.conf is right whatever becomes of the file


@pytest.mark.parametrize("path", ["/etc/environment", DEFAULT])
def test_who_names_it_does_not_matter(tmp_path: Path, guest: Topology, slots: Profile, path: str) -> None:
    files = {path: xml(guest)} if path == DEFAULT else {path: f"NCCL_TOPO_FILE={FILE}\n", FILE: xml(guest)}
    found, _written = judged(tmp_path, guest, slots, Want(), files)
    assert [finding.state for finding in found] == ["ok"]


def test_what_the_images_maker_has_named_is_not_taken_away(tmp_path: Path, guest: Topology, slots: Profile) -> None:
    files = {CONF: f"NCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_TOPO_FILE={FILE}\n", FILE: xml(guest)}
    (finding,), written = judged(tmp_path, guest, slots, Want(), files)
    assert (finding.state, written) == ("drift", False)
    assert f"NCCL_TOPO_FILE={FILE}" in finding.fix
    (finding,), written = judged(tmp_path, guest, slots, NAMED, files)
    assert (finding.state, written) == ("ok", True)


def test_a_guest_that_shows_its_switches_needs_none(tmp_path: Path, guest: Topology, slots: Profile) -> None:
    gpu, nic = guest.gpus[0], guest.nics[0]
    shown = replace(guest, paths={**guest.paths, (gpu.pci, nic.pci): "PIX"})
    assert judged(tmp_path, shown, slots, Want(), {})[0] == []
    real = replace(guest, virtualization=replace(guest.virtualization, is_vm=False))
    assert judged(tmp_path, real, slots, Want(), {})[0] == []
