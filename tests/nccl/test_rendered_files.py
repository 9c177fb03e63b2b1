"""The files that the suite renders mean to every real library what they were meant to say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import library as nccl_library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import plan as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import proof as nccl_proof
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.derive import Want, derive, render
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use

from lab import store

ROOT = Path(__file__).resolve().parent.parent.parent
WANTS = {
    "node01": [Want(), Want(gpudirect="off", extra={"NCCL_DEBUG": "WARN"})],
    "node02": [Want(dscp=26), Want(dscp=26, address_family="ipv6", management_interface="bond0")],
}
PROFILES = {"node01": ("hgx-h100", "infiniband"), "node02": ("hgx-h200", "ethernet")}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lab")
    store.create(directory)
    return directory


@pytest.mark.nccl
@pytest.mark.parametrize(("node", "index"), [(node, i) for node, wants in WANTS.items() for i in range(len(wants))])
def test_a_rendered_file_is_read_back_as_meant_and_lints_clean(lab: Path, library: str, node: str, index: int) -> None:
    name, fabric = PROFILES[node]
    data = yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text())
    want = profile.for_fabric(profile.parse(data, name), fabric)
    machine = topology.read(Host(str(lab / node / "hw"), str(lab / node / "sys")), ask_nvidia_smi=False)
    scanned = nccl_library.scan(library)
    derivation = derive(machine, want, WANTS[node][index], [scanned.version])
    if WANTS[node][index].address_family == "ipv6" and scanned.version < (2, 21, 0):
        # That library needs one index of an IPv6 GID, and the simulated rails have no IPv6 address.
        assert [finding.check for finding in derivation.blockers] == ["nccl_conf.gid_index"]
        return
    assert derivation.blockers == ()
    text = render(derivation.variables)
    proof = nccl_proof.prove(library, text, derivation.expected)
    assert (proof.outcome, proof.message if proof.outcome != "proven" else "") == ("proven", "")
    assert proof.values == derivation.expected
    assert ("NCCL_IB_GID_INDEX" in derivation.expected) is (node == "node02" and scanned.version < (2, 21, 0))
    hcas = [nic.rdma.name for nic in machine.nics if nic.rdma]
    found = nccl_conf.plan(nccl_conf.Have(text, 0o644), derivation, "/etc/nccl.conf", Use([scanned], hcas=hcas))
    assert [finding for finding in found.findings if not finding.ok] == []
    # The proof can fail: the same text with one blank in it is not what was meant.
    spoilt = nccl_proof.prove(library, text.replace("NCCL_SOCKET_IFNAME=", "NCCL_SOCKET_IFNAME ="), derivation.expected)
    assert spoilt.outcome == "mismatch"
    assert "NCCL_SOCKET_IFNAME" in spoilt.message
    assert spoilt.rc is not None
