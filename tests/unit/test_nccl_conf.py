from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile, for_fabric, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import conf as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import grammar
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.conf import Have, Variable, Want, derive, render
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.environment import Environment, Setting
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.proof import Proof

PATH = "/etc/nccl.conf"
NEW = (2, 27, 7)
OLD = (2, 18, 3)
NOTHING = Have(text=None, mode=None)


def meant(topology: Topology, profile: Profile, want: Want, *versions: tuple[int, int, int]) -> dict[str, str]:
    derivation = derive(topology, profile, want, versions)
    assert derivation.blockers == ()
    return derivation.meant


def with_path(profile: Profile, topology: Topology, path: str) -> Profile:
    """A site profile: each rail in its slot, at that distance from its GPU."""
    slots = zip(profile.rails, topology.nics, strict=True)
    rails = tuple(replace(rail, pci=nic.pci, paths={rail.number: path}) for rail, nic in slots)
    return replace(profile, rails=rails)


def moved(topology: Topology, path: str) -> Topology:
    return replace(topology, paths={pair: path if was == "PIX" else was for pair, was in topology.paths.items()})


def test_infiniband_needs_the_rails_and_the_interface_and_nothing_else(infiniband: Topology, hgx_h100: Profile) -> None:
    names = [nic.rdma.name for nic in infiniband.nics if nic.rdma]
    assert meant(infiniband, hgx_h100, Want(), NEW) == {
        "NCCL_IB_HCA": "=" + ",".join(names),
        "NCCL_SOCKET_IFNAME": "=eno1",
    }


def test_rail_order_is_pci_order_whatever_the_names(infiniband: Topology, hgx_h100: Profile) -> None:
    names = [nic.rdma.name for nic in infiniband.nics if nic.rdma]
    assert names != sorted(names)
    shuffled = replace(infiniband, nics=tuple(reversed(infiniband.nics)))
    assert meant(shuffled, hgx_h100, Want(), NEW) == meant(infiniband, hgx_h100, Want(), NEW)


def test_the_traffic_class_belongs_to_ethernet(roce: Topology, hgx_h100_roce: Profile) -> None:
    assert meant(roce, hgx_h100_roce, Want(dscp=26), NEW)["NCCL_IB_TC"] == "104"
    assert "NCCL_IB_TC" not in meant(roce, hgx_h100_roce, Want(), NEW)


def test_a_gid_index_is_written_only_for_a_library_that_needs_it(roce: Topology, hgx_h100_roce: Profile) -> None:
    assert "NCCL_IB_GID_INDEX" not in meant(roce, hgx_h100_roce, Want(), NEW)
    assert "NCCL_IB_GID_INDEX" not in meant(roce, hgx_h100_roce, Want(), (2, 21, 5))
    assert meant(roce, hgx_h100_roce, Want(), NEW, OLD)["NCCL_IB_GID_INDEX"] == "3"


def test_gid_indexes_that_differ_block_an_old_library(roce: Topology, hgx_h100_roce: Profile, edit: Any) -> None:
    port = roce.nics[2].rdma.ports[0]  # type: ignore[union-attr]
    shifted = tuple(replace(gid, index=gid.index + 2) for gid in port.gids)
    derivation = derive(edit.nic(roce, 2, port_gids=shifted), hgx_h100_roce, Want(), [OLD])
    assert [finding.check for finding in derivation.blockers] == ["nccl_conf.gid_index"]
    assert "rail 2: 5" in str(derivation.blockers[0].have)


def test_infiniband_never_gets_a_gid_index(infiniband: Topology, hgx_h100: Profile) -> None:
    assert "NCCL_IB_GID_INDEX" not in meant(infiniband, hgx_h100, Want(), OLD)


@pytest.mark.parametrize(
    ("path", "mode", "level"),
    [
        ("PIX", "auto", None),
        ("PXB", "auto", None),
        ("PHB", "auto", "PHB"),
        ("NODE", "auto", "PHB"),  # NCCL knows no NODE
        ("SYS", "auto", None),
        ("SYS", "dmabuf", "SYS"),
        ("PIX", "off", "LOC"),
    ],
)
def test_the_gdr_level_is_written_only_where_the_path_needs_it(
    infiniband: Topology, hgx_h100: Profile, path: str, mode: str, level: str | None
) -> None:
    variables = meant(moved(infiniband, path), with_path(hgx_h100, infiniband, path), Want(gpudirect=mode), NEW)
    assert variables.get("NCCL_NET_GDR_LEVEL") == level


@pytest.mark.parametrize("path", ["PIX", "PHB", "NODE", "SYS"])
@pytest.mark.parametrize("mode", ["auto", "peermem", "off"])
def test_virtual_functions_get_a_level_only_where_the_site_asks(
    infiniband: Topology, hgx_h100: Profile, edit: Any, path: str, mode: str
) -> None:
    """LOC for every one of them switched GPUDirect RDMA off where it works, as in the guests of the largest clouds."""
    guest = moved(replace(infiniband, virtualization=replace(infiniband.virtualization, is_vm=True)), path)
    for index in range(8):
        guest = edit.nic(guest, index, role="vf")
    asked = {"off": "LOC", "peermem": {"PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}.get(path)}
    variables = meant(guest, with_path(hgx_h100, infiniband, path), Want(gpudirect=mode), NEW)
    assert variables.get("NCCL_NET_GDR_LEVEL") == asked.get(mode)


def test_the_sites_interface_comes_before_the_default_route(infiniband: Topology, hgx_h100: Profile) -> None:
    assert meant(infiniband, hgx_h100, Want(management_interface="bond0"), NEW)["NCCL_SOCKET_IFNAME"] == "=bond0"


def test_no_default_route_is_a_question_not_a_guess(infiniband: Topology, hgx_h100: Profile) -> None:
    derivation = derive(replace(infiniband, routes=()), hgx_h100, Want(), [NEW])
    assert derivation.variables == ()
    assert [finding.check for finding in derivation.blockers] == ["nccl_conf.socket_interface"]


def test_a_missing_rail_leaves_the_file_untouched_and_is_named(
    infiniband: Topology, hgx_h100: Profile, edit: Any
) -> None:
    derivation = derive(edit.without_nic(infiniband, 3), hgx_h100, Want(), [NEW])
    (blocker,) = derivation.blockers
    assert (blocker.check, blocker.subject, blocker.state) == ("nccl_conf.rails", "rail 3", "unknown")
    assert blocker.because == "platform.rail_device[live]@rail 3"
    plan = nccl_conf.plan(NOTHING, derivation, PATH, version=NEW)
    assert plan.changes == ()


def test_a_node_without_rails_gets_only_its_interface(infiniband: Topology) -> None:
    data = {"description": "no NIC", "gpus": {"count": 8, "models": ["NVIDIA H100 80GB HBM3"]}, "rails": []}
    profile = for_fabric(parse(data, "site"), None)
    assert list(meant(replace(infiniband, nics=(), paths={}), profile, Want(), NEW)) == ["NCCL_SOCKET_IFNAME"]


def test_a_port_is_named_only_where_a_device_has_several(infiniband: Topology, hgx_h100: Profile) -> None:
    nics = list(infiniband.nics)
    rdma = nics[0].rdma
    assert rdma is not None
    second = replace(rdma.ports[0], number=2)
    nics[0] = replace(nics[0], rdma=replace(rdma, ports=(replace(rdma.ports[0], state="DOWN"), second)))
    hca = meant(replace(infiniband, nics=tuple(nics)), hgx_h100, Want(), NEW)["NCCL_IB_HCA"]
    assert hca.startswith(f"={rdma.name}:2,")


def test_the_sites_own_variables_come_last_and_replace_derived_ones(infiniband: Topology, hgx_h100: Profile) -> None:
    want = Want(extra={"NCCL_DEBUG": "WARN", "NCCL_NET_GDR_LEVEL": "SYS"})
    variables = meant(moved(infiniband, "PHB"), with_path(hgx_h100, infiniband, "PHB"), want, NEW)
    assert list(variables)[-2:] == ["NCCL_DEBUG", "NCCL_NET_GDR_LEVEL"]
    assert variables["NCCL_NET_GDR_LEVEL"] == "SYS"


def test_the_rendered_file_is_canonical(roce: Topology, hgx_h100_roce: Profile) -> None:
    derivation = derive(roce, hgx_h100_roce, Want(dscp=26, gpudirect="off"), [OLD])
    text = render(derivation.variables)
    assert text.isascii()
    assert text.endswith("\n")
    for line in text.splitlines():
        assert line == line.strip()
        assert len(line.encode()) < 1000
        if line.startswith("#"):
            assert "=" not in line  # NCCL before 2.26 would take the comment for an assignment
        else:
            assert line.split("=", 1)[0] in derivation.meant
    assert grammar.settings(grammar.parse(text)) == derivation.meant


def good_plan(topology: Topology, profile: Profile, have: Have, **options: Any) -> Any:
    derivation = derive(topology, profile, Want(), [NEW])
    return nccl_conf.plan(have, derivation, PATH, version=NEW, **options)


def test_a_plan_of_its_own_result_is_empty(infiniband: Topology, hgx_h100: Profile) -> None:
    plan = good_plan(infiniband, hgx_h100, NOTHING)
    assert [finding.check for finding in plan.findings if not finding.ok] == ["nccl_conf.file"]
    (change,) = plan.changes
    again = good_plan(infiniband, hgx_h100, Have(change.after, change.mode))
    assert again.changes == ()
    assert [finding for finding in again.findings if not finding.ok] == []


def test_drift_names_the_variables_that_differ(infiniband: Topology, hgx_h100: Profile) -> None:
    text = good_plan(infiniband, hgx_h100, NOTHING).changes[0].after
    edited = text.replace("NCCL_IB_HCA==", "NCCL_IB_HCA=")
    finding = next(f for f in good_plan(infiniband, hgx_h100, Have(edited, 0o644)).findings if not f.ok)
    assert (finding.check, finding.have, finding.aspect) == ("nccl_conf.file", "differs in NCCL_IB_HCA", "persisted")
    comment = next(f for f in good_plan(infiniband, hgx_h100, Have("# mine\n" + text, 0o644)).findings if not f.ok)
    assert comment.have == "differs in comments or layout"


def test_a_mode_that_hides_the_file_is_its_own_finding(infiniband: Topology, hgx_h100: Profile) -> None:
    text = good_plan(infiniband, hgx_h100, NOTHING).changes[0].after
    plan = good_plan(infiniband, hgx_h100, Have(text, 0o600))
    assert [(f.check, f.have) for f in plan.findings if not f.ok] == [("nccl_conf.file_mode", "mode 0600")]
    assert plan.changes[0].diff()["before_header"].endswith("(mode 0600)")
    assert good_plan(infiniband, hgx_h100, Have(text, 0o444)).changes == ()
    plan = good_plan(infiniband, hgx_h100, Have(text, 0o644, open_to_all=False))
    assert ([f.check for f in plan.findings if not f.ok], len(plan.changes)) == (["nccl_conf.file_mode"], 1)


def test_a_file_that_is_read_earlier_and_says_otherwise_is_a_conflict(infiniband: Topology, hgx_h100: Profile) -> None:
    text = good_plan(infiniband, hgx_h100, NOTHING).changes[0].after
    setting = Setting("NCCL_IB_HCA", "mlx5_0", "/root/.nccl.conf", 3, "jobs of root")
    plan = good_plan(infiniband, hgx_h100, Have(text, 0o644, Environment((setting,))))
    (finding,) = [f for f in plan.findings if not f.ok]
    assert (finding.check, finding.source) == ("nccl_conf.conflict", "/root/.nccl.conf:3")
    assert plan.changes == ()
    accepted = {"NCCL_IB_HCA": "a node for tests"}
    assert all(
        f.ok
        for f in good_plan(infiniband, hgx_h100, Have(text, 0o644, Environment((setting,))), accepted=accepted).findings
    )


@pytest.mark.parametrize(
    ("outcome", "state", "written"),
    [("proven", "ok", True), ("mismatch", "drift", False), ("not_provable", "unknown", True)],
)
def test_what_the_library_reads_decides_whether_the_file_is_written(
    infiniband: Topology, hgx_h100: Profile, outcome: str, state: str, written: bool
) -> None:
    proof = Proof(outcome=outcome, values={}, rc=0, message="NCCL_IB_HCA: meant =a, library has b")
    plan = good_plan(infiniband, hgx_h100, NOTHING, proofs=[("/usr/lib/libnccl.so.2", proof)])
    assert [f.state for f in plan.findings if f.check == "nccl_conf.proof"] == [state]
    assert bool(plan.changes) is written


def test_a_variable_of_the_site_that_breaks_jobs_keeps_the_file_from_being_written(
    infiniband: Topology, hgx_h100: Profile
) -> None:
    derivation = derive(infiniband, hgx_h100, Want(extra={"NCCL_ALGO": "CollNet"}), [NEW])
    plan = nccl_conf.plan(NOTHING, derivation, PATH, version=NEW)
    assert any(f.check.startswith("nccl_conf.lint") and f.severity == "critical" for f in plan.findings)
    assert plan.changes == ()


def test_the_reader_sees_the_file_its_mode_and_what_is_read_before_it(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    (tmp_path / "etc/nccl.conf").chmod(0o600)
    (tmp_path / "etc/environment").write_text("PATH=\"/bin\"\nexport NCCL_DEBUG='INFO'\n")
    have = nccl_conf.read(Host(str(tmp_path), str(tmp_path)), PATH)
    assert (have.text, have.mode, have.open_to_all) == ("NCCL_DEBUG=WARN\n", 0o600, False)
    assert [(one.source, one.name, one.value) for one in have.environment.settings] == [
        ("/etc/environment", "NCCL_DEBUG", "INFO")
    ]


def test_an_unreadable_file_is_unknown_and_is_not_overwritten(
    tmp_path: Path, infiniband: Topology, hgx_h100: Profile
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_bytes(b"\xff\xfe")
    have = nccl_conf.read(Host(system_root=str(tmp_path)), PATH)
    plan = good_plan(infiniband, hgx_h100, have)
    assert plan.changes == ()
    assert ("nccl_conf.readable", "unknown") in [(f.check, f.state) for f in plan.findings]


def test_long_reasons_are_wrapped_into_whole_comment_lines() -> None:
    lines = render([Variable("A", "1", "because " * 40)]).splitlines()
    assert lines[-1] == "A=1"
    assert all(line.startswith("#") and len(line) <= 160 for line in lines[:-1])


@pytest.mark.parametrize(
    ("accepted", "wrong"),
    [
        ({"NCCL_DEBUG": "we read it", "NCCL_IB_TIMEOUT=22": "a bad cable"}, 0),
        ({"NCCL DEBUG": "x", "NCCL_DEBUG": ""}, 2),
        ({"NCCL_DEBUG": None}, 1),
        ({"NCCL_DEBUG": "two\nlines"}, 1),
    ],
)
def test_what_is_accepted_has_a_name_and_a_reason(accepted: dict[str, Any], wrong: int) -> None:
    assert len(nccl_conf.accepted_errors(accepted)) == wrong
