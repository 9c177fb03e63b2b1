# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A guest with a flat PCI tree needs the cloud's topology file: named, there, and of these devices."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine.gpu import Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rails import match
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import plan as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import topo_file, topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.checks import TOPO_FILE
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.derive import Want, derive
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.topo_file import DEFAULT
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens, readings
from tests.trees import put_all

from . import conftest

CONF, FILE = "/etc/nccl.conf", "/opt/microsoft/ndv5-topo.xml"
NEW = (2, 27, 7)


@pytest.fixture
def guest(infiniband: Topology, edit: Any) -> Topology:
    """Eight virtual functions behind the host bridge, as a hypervisor shows them."""
    paths = {pair: "PHB" if was != "SYS" else was for pair, was in infiniband.paths.items()}
    found = replace(infiniband, paths=paths, virtualization=infiniband.virtualization._replace(is_vm=True))
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


def said(guest: Topology, profile: Profile, text: str) -> str:
    found = topo_file.differences(topology.parse(text), guest, profile, match(guest, profile))
    return f"drift: {'; '.join(found)}" if found else "ok"


def judged(
    root: Path, guest: Topology, slots: Profile, want: Want, files: dict[str, str]
) -> tuple[list[Finding], bool]:
    """What is said of the file, and whether nccl.conf would be written."""
    put_all(root, files)
    host = Host(str(root), str(root))
    derivation = derive(guest, slots, want, [NEW])
    have = nccl_conf.with_topo_file(nccl_conf.read(host, CONF), host, guest, slots, derivation)
    plan = nccl_conf.plan(have, derivation, CONF, use=Use(version=NEW))
    return [finding for finding in plan.findings if finding.check == TOPO_FILE.id], bool(plan.changes)


RATE = "400 Gbit/s"
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
        (Want(extra={"NCCL_TOPO_FILE": "topo.xml"}), None, "unknown", "is not an absolute path"),
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


def test_a_name_that_only_running_a_file_would_show_is_unknown(tmp_path: Path, guest: Topology, slots: Profile) -> None:
    files = {"/etc/profile.d/x.sh": "export NCCL_TOPO_FILE=$TOPO\n", FILE: xml(guest)}
    (finding,), _written = judged(tmp_path, guest, slots, NAMED, files)
    assert (finding.state, finding.source) == ("unknown", "/etc/profile.d/x.sh:1")


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
    real = replace(guest, virtualization=guest.virtualization._replace(is_vm=False))
    assert judged(tmp_path, real, slots, Want(), {})[0] == []


def test_a_link_that_the_file_makes_slower_than_it_is_slows_all(guest: Topology, slots: Profile) -> None:
    """GPUs are held to what they can, and rails to their rate: virtual functions show no link."""
    text = xml(guest)
    gpu, nic = guest.gpus[3], guest.nics[3]
    for pci, speed, width, says in (
        (gpu.pci, "32.0 GT/s PCIe", "16", "ok"),
        (gpu.pci, "16.0 GT/s PCIe", "16", f"drift: it has {gpu.pci} over 16 GT/s x16 where it can 32 GT/s x16"),
        (gpu.pci, "Unknown", "16", "ok"),
        (gpu.pci, "32 GT/s", "8", "drift"),
        (nic.pci, "32.0 GT/s PCIe", "16", "ok"),
        (nic.pci, "16.0 GT/s PCIe", "16", f"drift: it has {nic.label} over 16 GT/s x16, and the rail carries {RATE}"),
        (nic.pci, "16.0 GT/s PCIe", "x", "ok"),
        (nic.pci, "64.0 GT/s PCIe", "0", "ok"),
    ):
        link = f'busid="{pci}" link_speed="{speed}" link_width="{width}"'
        assert said(guest, slots, text.replace(f'busid="{pci}"', link)).startswith(says), (pci, speed, width)
    # Above both: the switch that the file makes up.
    above = text.replace('busid="ffff:ff:03.0"', 'busid="ffff:ff:03.0" link_speed="8.0 GT/s PCIe" link_width="16"')
    assert said(guest, slots, above) == f"drift: it has {gpu.pci} over 8 GT/s x16 where it can 32 GT/s x16 and 1 more"
    silent = replace(gpu, device=gpu.device._replace(max_width=None))
    gpus = tuple(silent if one is gpu else one for one in guest.gpus)
    slow = text.replace(f'busid="{gpu.pci}"', f'busid="{gpu.pci}" link_speed="2.5 GT/s PCIe" link_width="1"')
    assert said(replace(guest, gpus=gpus), slots, slow).startswith("ok")


def test_the_profile_that_names_the_file_says_what_lies_near_what(
    tmp_path: Path, guest: Topology, slots: Profile
) -> None:
    rails = tuple(replace(rail, paths={rail.number: "PIX"}) for rail in slots.rails)
    named = replace(slots, rails=rails, topology_file=FILE)
    assert said(guest, named, xml(guest)).startswith("ok")
    # Each NIC below the switch of another rail's GPU.
    crossed = replace(named, rails=tuple(replace(rail, paths={(rail.number + 1) % 8: "PIX"}) for rail in rails))
    assert said(guest, crossed, xml(guest)).startswith(f"drift: it has {guest.nics[0].label} PHB to GPU1, which")
    assert said(guest, replace(crossed, topology_file=""), xml(guest)).startswith("ok")
    (finding,), _written = judged(tmp_path, guest, named, Want(), {FILE: xml(guest)})
    assert (finding.state, finding.source) == ("ok", FILE)
    meant = derive(guest, named, Want(), [NEW]).expected
    assert meant["NCCL_TOPO_FILE"] == FILE
    assert derive(guest, named, NAMED, [NEW]).expected["NCCL_TOPO_FILE"] == FILE
    real = replace(guest, virtualization=guest.virtualization._replace(is_vm=False))
    assert "NCCL_TOPO_FILE" not in derive(real, named, Want(), [NEW]).expected


def test_a_file_that_the_site_names_for_a_machine_of_metal_is_judged_too(
    tmp_path: Path, guest: Topology, slots: Profile
) -> None:
    real = replace(guest, virtualization=guest.virtualization._replace(is_vm=False))
    real = replace(real, nics=tuple(nic._replace(role="compute") for nic in real.nics))
    (finding,), _written = judged(tmp_path, real, slots, NAMED, {FILE: xml(guest, other=True)})
    assert (finding.state, "it has no GPU" in str(finding.have)) == ("drift", True)


# -- NCCL's topology XML, dumped or handed out by a cloud, and where it differs from sysfs -----------------------------

A, B, C = "0000:1b:00.0", "0000:1d:00.0", "0000:9b:00.0"
# What they are read as lies beside them.
DUMP, CLOUD = (
    (readings.FOLDER / f"nccl_conf.topology.parse/synthetic-{name}.txt").read_text() for name in ("2.27-dump", "cloud")
)
NICS = {"mlx5_0": "0000:1c:00.0", "mlx5_1": "0000:9c:00.0"}


def gpu(index: int, pci: str, nvlinks: int | None) -> Gpu:
    return replace(conftest.gpu(index), pci=pci, nvlinks_active=nvlinks, nvlinks_total=nvlinks)


def nic(name: str, role: str = "compute") -> Nic:
    found = conftest.nic(0, "InfiniBand")
    rdma = found.rdma._replace(name=name, pci=NICS[name]) if found.rdma else None
    return found._replace(pci=NICS[name], role=role, reason="PIX to GPU0", rdma=rdma, netdevs=())


TOPOLOGY = replace(
    conftest.machine(),
    gpus=(gpu(0, A, 18), gpu(1, B, 0), gpu(2, C, None)),
    nics=(nic("mlx5_0"), nic("mlx5_1")),
    paths={
        (A, NICS["mlx5_0"]): "PIX",
        (B, NICS["mlx5_0"]): "PXB",
        (C, NICS["mlx5_0"]): "SYS",
        (A, NICS["mlx5_1"]): "SYS",
        (B, NICS["mlx5_1"]): "SYS",
        (C, NICS["mlx5_1"]): "NODE",
    },
)


@given(st.sampled_from([DUMP, CLOUD]), st.data())
def test_any_text_and_any_damage_gives_a_picture_or_a_parse_error(good: str, data: st.DataObject) -> None:
    tokens = good.split('"')
    where = data.draw(st.integers(0, len(tokens) - 1))
    put_in = data.draw(st.text(max_size=20) | st.sampled_from(["-1", "0x03", "gpu", "0000:1b:00.0"]))
    cut = data.draw(st.integers(0, len(good)))
    for text in ('"'.join([*tokens[:where], put_in, *tokens[where + 1 :]]), good[:cut] + put_in, put_in):
        with suppress(ParseError):
            topology.disagreements(topology.parse(text), TOPOLOGY)


def moved(pair: tuple[str, str], path: str) -> Topology:
    return replace(TOPOLOGY, paths={**TOPOLOGY.paths, pair: path})


WITHOUT_NIC = DUMP.replace('<nic><net name="mlx5_1" dev="1" speed="400000" gdr="1"/></nic>', "<nic/>").replace(
    "0000:9c:00.0", "0000:99:00.0"
)
FAR = replace(TOPOLOGY, paths={pair: "SYS" for pair in TOPOLOGY.paths if pair[1] == NICS["mlx5_0"]})
VF = "0101:00:00.1"
# Case -> NCCL's topology, and that of sysfs.
PICTURES: dict[str, tuple[str, Topology]] = {
    # NODE is PHB to NCCL.
    "agrees": (DUMP, TOPOLOGY),
    "another path": (DUMP, moved((C, NICS["mlx5_1"]), "PIX")),
    "a GPU that sysfs has not": (DUMP, replace(TOPOLOGY, gpus=TOPOLOGY.gpus[:2], paths={})),
    "an NVLink is down": (DUMP, replace(TOPOLOGY, gpus=(gpu(0, A, 17), *TOPOLOGY.gpus[1:]))),
    "a compute NIC is not listed": (WITHOUT_NIC, TOPOLOGY),
    "a storage NIC is not listed": (WITHOUT_NIC, replace(TOPOLOGY, nics=(nic("mlx5_0"), nic("mlx5_1", "storage")))),
    # A port is not listed because its neighbour on the card is.
    "a second port is not listed": (
        DUMP.replace('name="mlx5_1"', 'name="mlx5_7"'),
        replace(TOPOLOGY, nics=(nic("mlx5_0"), nic("mlx5_1")._replace(pci="0000:1c:00.1"))),
    ),
    # Their paths are left alone.
    "a fused name": (DUMP.replace('name="mlx5_0"', 'name="mlx5_0+mlx5_1"'), FAR),
    "a name of Data Direct": (DUMP.replace('name="mlx5_0"', 'name="mlx5_0_dma"'), FAR),
    # Matched by address whatever the function. What the hypervisor hides is what such a file is for.
    "a cloud's file": (
        CLOUD,
        replace(
            TOPOLOGY,
            gpus=(gpu(0, "0001:00:00.0", 18),),
            nics=(nic("mlx5_0")._replace(pci=VF),),
            paths={("0001:00:00.0", VF): "SYS"},
        ),
    ),
}


@pytest.mark.golden
def test_where_nccl_and_sysfs_disagree() -> None:
    parts = []
    for name, (text, machine) in PICTURES.items():
        parts += [f"== {name}", *topology.disagreements(topology.parse(text), machine)]
    goldens.text("nccl_topology", "\n".join(parts) + "\n")
