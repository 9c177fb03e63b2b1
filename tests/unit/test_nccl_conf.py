from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile, for_fabric, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import derive as conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import grammar
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import plan as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.derive import HEADER, Image, Want, derive, render
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.plan import Have
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.proof import Proof
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens
from tests.trees import put, put_all

from .conftest import Edit, built_in, machine

PATH = "/etc/nccl.conf"
NEW = (2, 27, 7)
OLD = (2, 18, 3)
NOTHING = Have(text=None, mode=None)


IB, ROCE = machine("InfiniBand"), machine("Ethernet")
H100, H100_ROCE = built_in("hgx-h100", "infiniband"), built_in("hgx-h100", "ethernet")


def with_path(path: str) -> Profile:
    """A site profile: each rail in its slot, at that distance from its GPU."""
    slots = zip(H100.rails, IB.nics, strict=True)
    rails = tuple(replace(rail, pci=nic.pci, paths={rail.number: path}) for rail, nic in slots)
    return replace(H100, rails=rails)


def moved(path: str) -> Topology:
    return replace(IB, paths={pair: path if was == "PIX" else was for pair, was in IB.paths.items()})


def guest(path: str) -> Topology:
    found = replace(moved(path), virtualization=IB.virtualization._replace(is_vm=True))
    return replace(found, nics=tuple(nic._replace(role="vf") for nic in found.nics))


def shifted() -> Topology:
    """One port has other GID indexes than the rest."""
    port = ROCE.nics[2].rdma.ports[0]  # type: ignore[union-attr]
    return Edit.nic(ROCE, 2, port_gids=tuple(replace(gid, index=gid.index + 2) for gid in port.gids))


def second_port() -> Topology:
    """The first port of a device is down, and its second one is up."""
    rdma = IB.nics[0].rdma
    assert rdma is not None
    ports = (rdma.ports[0]._replace(state="DOWN"), rdma.ports[0]._replace(number=2))
    return replace(IB, nics=(IB.nics[0]._replace(rdma=rdma._replace(ports=ports)), *IB.nics[1:]))


NO_RAILS = {"description": "no NIC", "gpus": {"count": 8, "models": ["NVIDIA H100 80GB HBM3"]}, "rails": []}
PLUGINS = ("spcx", "ofi", "gib", "ibext", "none", "", "/opt/amazon/ofi-nccl/lib/libnccl-net.so")
EXTRA = Want(extra={"NCCL_DEBUG": "WARN", "NCCL_NET_GDR_LEVEL": "SYS"})
Arguments = tuple[Topology, Profile, Want, list[tuple[int, int, int]]]
CASES: dict[str, Arguments] = {
    "infiniband": (IB, H100, Want(), [NEW]),
    # Rail order is that of PCI, whatever the names.
    "infiniband, NICs in another order": (replace(IB, nics=tuple(reversed(IB.nics))), H100, Want(), [NEW]),
    "infiniband, old library": (IB, H100, Want(), [OLD]),
    "ethernet": (ROCE, H100_ROCE, Want(), [NEW]),
    "ethernet, 2.21.5": (ROCE, H100_ROCE, Want(), [(2, 21, 5)]),
    "ethernet, two libraries": (ROCE, H100_ROCE, Want(), [NEW, OLD]),
    "ethernet, DSCP 26": (ROCE, H100_ROCE, Want(dscp=26), [NEW]),
    "ethernet, old library, DSCP 26, no GPUDirect": (ROCE, H100_ROCE, Want(dscp=26, gpudirect="off"), [OLD]),
    "ethernet, old library, other GID indexes on a rail": (shifted(), H100_ROCE, Want(), [OLD]),
    # NCCL knows no NODE.
    **{
        f"{path}, gpudirect {mode}": (moved(path), with_path(path), Want(gpudirect=mode), [NEW])
        for paths, mode in (("PIX PXB PHB NODE SYS", "auto"), ("SYS", "dmabuf"), ("PIX", "off"))
        for path in paths.split()
    },
    # LOC for every one of them would switch GPUDirect RDMA off where it works, as in the guests of the largest clouds.
    **{
        f"virtual functions, {path}, gpudirect {mode}": (guest(path), with_path(path), Want(gpudirect=mode), [NEW])
        for path in ("PIX", "PHB", "NODE", "SYS")
        for mode in ("auto", "peermem", "off")
    },
    "interface of the site": (IB, H100, Want(management_interface="bond0"), [NEW]),
    "no default route": (replace(IB, routes=()), H100, Want(), [NEW]),
    "a missing rail": (Edit.without_nic(IB, 3), H100, Want(), [NEW]),
    "no rails": (replace(IB, nics=(), paths={}), for_fabric(parse(NO_RAILS, "site"), None), Want(), [NEW]),
    "a device with two ports": (second_port(), H100, Want(), [NEW]),
    # What the plugin does not read is not written; gIB comes as libnccl-net.so, and is chosen by its network.
    **{f"plugin {name}": (ROCE, H100_ROCE, Want(dscp=26, net_plugin=name), [NEW]) for name in PLUGINS},
    "variables of the site": (moved("PHB"), with_path("PHB"), EXTRA, [NEW]),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_for_a_node(name: str) -> None:
    derivation = derive(*CASES[name])
    blockers = [[one.check, one.subject, one.state, one.severity, one.because] for one in derivation.blockers]
    goldens.check("rendered_nccl", name, [*(f"{key}={value}" for key, value in derivation.expected.items()), *blockers])
    # The file holds what is meant, or it is not written.
    text = render(derivation.variables)
    assert grammar.settings(grammar.parse(text)) == derivation.expected
    assert bool(nccl_conf.plan(NOTHING, derivation, PATH, use=Use(version=NEW)).changes) == (not blockers)
    for line in text.splitlines():
        assert line == line.strip()
        assert line.isascii()
        assert len(line.encode()) < 1000
        # NCCL before 2.26 would take such a comment for an assignment.
        assert "=" not in line or not line.startswith("#")


@pytest.mark.golden
def test_the_rendered_file_and_what_keeps_it_from_being_written() -> None:
    parts = []
    for name, arguments in CASES.items():
        derivation = derive(*arguments)
        parts += [f"== {name}: {one.check} {one.subject}: {one.have}; {one.fix}" for one in derivation.blockers]
        if "DSCP" in name or name.startswith("PHB"):
            # Its first line has the release and digests.
            parts += [f"== {name}", *render(derivation.variables).splitlines()[1:]]
    goldens.text("nccl_conf", "\n".join(parts) + "\n")


def good_plan(topology: Topology, profile: Profile, have: Have, **options: Any) -> Any:
    derivation = derive(topology, profile, Want(), [NEW])
    return nccl_conf.plan(have, derivation, PATH, use=Use(version=NEW), **options)


def bad(plan: Any) -> list[tuple[str, str, str]]:
    return [(f.check.partition(".")[2], f.aspect, f.have) for f in plan.findings if not f.ok]


def test_drift_names_the_variables_that_differ_or_the_mode(infiniband: Topology, hgx_h100: Profile) -> None:
    plan = good_plan(infiniband, hgx_h100, NOTHING)
    assert [check for check, *_rest in bad(plan)] == ["file"]
    text = plan.changes[0].after
    edited = text.replace("NCCL_IB_HCA==", "NCCL_IB_HCA=")
    for have, check, value, changes in (
        (Have(edited, 0o644), "file", "differs in NCCL_IB_HCA", 1),
        (Have("# mine\n" + text, 0o644), "file", "differs in comments or layout", 1),
        (Have(text, 0o600), "file_mode", "mode 0600", 1),
        (Have(text, 0o664), "file_mode", "mode 0664, others than root may write it", 1),
        (Have(text, 0o444), "", "", 0),
        (Have(text, 0o755), "", "", 0),
    ):
        plan = good_plan(infiniband, hgx_h100, have)
        assert bad(plan) == ([(check, "persisted", value)] if check else [])
        assert len(plan.changes) == changes
    plan = good_plan(infiniband, hgx_h100, Have(text, 0o600))
    assert plan.changes[0].diff()["before_header"].endswith("(mode 0600)")
    plan = good_plan(infiniband, hgx_h100, Have(text, 0o644, open_to_all=False))
    assert ([check for check, *_rest in bad(plan)], len(plan.changes)) == (["file_mode"], 1)


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
    plan = nccl_conf.plan(NOTHING, derivation, PATH, use=Use(version=NEW))
    assert any(f.check.startswith("nccl_conf.lint") and f.severity == "critical" for f in plan.findings)
    assert plan.changes == ()


def test_the_reader_sees_who_may_read_the_file(tmp_path: Path) -> None:
    put(tmp_path, PATH, "NCCL_DEBUG=WARN\n", 0o600)
    have = nccl_conf.read(Host(str(tmp_path), str(tmp_path)), PATH)
    assert (have.text, have.mode, have.open_to_all) == ("NCCL_DEBUG=WARN\n", 0o600, False)


def test_an_unreadable_file_is_unknown_and_is_not_overwritten(
    tmp_path: Path, infiniband: Topology, hgx_h100: Profile
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_bytes(b"\xff\xfe")
    have = nccl_conf.read(Host(system_root=str(tmp_path)), PATH)
    plan = good_plan(infiniband, hgx_h100, have)
    assert plan.changes == ()
    assert ("nccl_conf.readable", "unknown") in [(f.check, f.state) for f in plan.findings]


# -- the nccl.conf of a cloud's image ----------------------------------------------------------------------------------

AZURE = "NCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_IGNORE_CPU_AFFINITY=1\n"
KEPT = {"NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_IGNORE_CPU_AFFINITY": "1"}


def read_image(text: str | None, cloud: str = "Azure") -> Image:
    return conf.read_image(text, cloud, Use(version=NEW))


def rendered(topology: Topology, profile: Profile, want: Want) -> str:
    return conf.render(conf.derive(topology, profile, want, [NEW]).variables)


def test_what_nobody_declares_stays_run_after_run(infiniband: Topology, hgx_h100: Profile) -> None:
    image = read_image(AZURE)
    assert (image.kept, image.dropped) == (KEPT, {})
    text = rendered(infiniband, hgx_h100, Want(image=image))
    assert "Retained from the nccl.conf of the image (Azure)." in text
    assert {f"{name}={value}" for name, value in KEPT.items()} <= {*text.splitlines()}
    again = read_image(text)
    assert again.kept == KEPT
    assert rendered(infiniband, hgx_h100, Want(image=again)) == text
    # What the inventory declares is its own from then on.
    declared = Want(extra={"NCCL_IGNORE_CPU_AFFINITY": "0"}, image=again)
    mine = rendered(infiniband, hgx_h100, declared)
    assert "NCCL_IGNORE_CPU_AFFINITY=0" in mine
    assert read_image(mine).kept == {"NCCL_IB_PCI_RELAXED_ORDERING": "1"}


def test_what_the_profile_derives_is_not_the_images_to_say(infiniband: Topology, hgx_h100: Profile) -> None:
    image = read_image(AZURE + "NCCL_SOCKET_IFNAME=docker0\nNCCL_IB_HCA==mlx5_0\n")
    found = conf.derive(infiniband, hgx_h100, Want(image=image), [NEW]).expected
    assert found["NCCL_SOCKET_IFNAME"] == "=eno1"
    assert len(found["NCCL_IB_HCA"].split(",")) == 8


@pytest.mark.parametrize(
    ("text", "cloud"), [*((text, "Azure") for text in (None, "", "# nothing\n", "  \n")), (AZURE, "")]
)
def test_nothing_is_kept_of_an_empty_file_and_of_what_is_no_clouds(text: str | None, cloud: str) -> None:
    assert (read_image(text, cloud).kept, read_image(text, cloud).dropped) == ({}, {})


def test_an_edit_of_the_suites_own_file_does_not_become_the_images(infiniband: Topology, hgx_h100: Profile) -> None:
    text = rendered(infiniband, hgx_h100, Want(image=read_image(AZURE)))
    for edit in ("NCCL_DEBUG=INFO\n", "# Kept by me\nNCCL_DEBUG=INFO\n"):
        assert read_image(text + edit).kept == KEPT
        assert read_image(text.replace(HEADER[1], HEADER[1] + "\n" + edit.strip())).kept == KEPT


@pytest.mark.parametrize(
    "line",
    [
        *("NCCL_P2P_DISABLE=1", "NCCL_NET_GDR_LEVEL=LOC", "NCCL_IB_DISABEL=1", "NCCL_IB_TC=twelve"),
        *("export NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=/x\x1b[31m"),
    ],
)
def test_what_the_linter_speaks_against_is_named_and_goes(line: str) -> None:
    name = line.partition("=")[0]
    image = read_image(f"{line}\n{AZURE}")
    assert image.kept == KEPT
    assert list(image.dropped) == [name]
    (said, gone) = conf.image_notes(image, {}, KEPT)
    assert (
        "retains these lines of the image (Azure): NCCL_IB_PCI_RELAXED_ORDERING=1, NCCL_IGNORE_CPU_AFFINITY=1;" in said
    )
    assert gone.startswith(f"nccl.conf does not keep {name}, which the image (Azure) sets: ")
    assert conf.image_notes(replace(image, dropped={}), KEPT, KEPT) == []


@given(st.text(alphabet='NCCL_AB=1#\n\x00\x1b \u00e4"', max_size=60), st.booleans())
def test_any_file_keeps_only_what_can_be_written_again(text: str, ours: bool) -> None:
    image = read_image(f"{HEADER[0]}\n# {conf.MARK}\n{text}" if ours else text)
    assert conf.extra_errors(image.kept) == []
    variables = [conf.Variable(name, value, image.reason) for name, value in sorted(image.kept.items())]
    assert read_image(conf.render(variables)).kept == image.kept


def test_a_service_that_writes_the_file_at_boot_is_named(tmp_path: Path) -> None:
    unit, wants = "sku-customizations.service", "/etc/systemd/system/multi-user.target.wants"
    host = Host(str(tmp_path), str(tmp_path))
    assert [f.state for f in conf.judge_owner(host, "/etc/nccl.conf", "Azure")] == ["ok"]
    put_all(tmp_path, {f"/usr/lib/systemd/system/{unit}": "[Service]\n"})
    assert [f.state for f in conf.judge_owner(host, "/etc/nccl.conf", "Azure")] == ["ok"]
    put_all(tmp_path, {f"{wants}/{unit}": "[Service]\n"})
    (found,) = conf.judge_owner(host, "/etc/nccl.conf", "Azure")
    assert (found.state, found.severity, found.aspect) == ("not_owned", "minor", "persisted")
    assert f"systemctl disable {unit}" in found.fix
    for path, cloud in (("/etc/nccl.conf", ""), ("/opt/nccl.conf", "Azure")):
        assert conf.judge_owner(host, path, cloud) == ()
    (tmp_path / f"usr/lib/systemd/system/{unit}").write_bytes(b"\xff")
    assert [f.state for f in conf.judge_owner(host, "/etc/nccl.conf", "Azure")] == ["unknown"]
