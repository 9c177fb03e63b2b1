# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a first verdict asks, what it makes of the results, and that it fits one screen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, profile_doubts
from ansible_collections.busbar.fabric.plugins.plugin_utils import profile_files
from ansible_collections.busbar.fabric.plugins.plugin_utils.check import classes, hosts, infer, judge, question, render
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_results

from busbar import draft
from tests import documents, goldens

# As the module recognise answers.
FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "cases/check/recognition.json").read_text())
CHAIN = {"trust": "dscp", "pfc": [3], "ecn": [3], "cnp": [48, 6], "tos": 106, "traffic_class": -1}
FIRMWARE = {"psid": "MT_1", "firmware": "28.43.2026"}
ROCE = {**CHAIN, **FIRMWARE, "mtu": 9000, "dscp2prio": {str(dscp): dscp >> 3 for dscp in range(64)}}
SWITCH = {"pfc": [], "switch_pfc": [3], "switch_dscp": {"26": 3}}
SETTINGS = [
    {},
    {"busbar_mtu": 9000, "busbar_roce": {"dscp": 26, "priority": 3}, "multirail_policy": "nvidia"},
    {"mofed_version": "25.10-1.7.1.0", "busbar_nccl_version": "2.28.9", "host_limits_container_runtimes": ["docker"]},
]
NO_GPU: dict[str, Any] = {"gpus": [], "nvswitches": 0, "draft": None}
VM: dict[str, Any] = {"guest": True, "nvswitches": 0}
DECLARED = {one.check.id for one in documents.declared()}
ARGUMENTS = ["iommu.args[live]@a", "iommu.args[live]@b", "iommu.args[persisted]@b"]
LIVE = [f"netdev_mtu.live[live]@r{n}" for n in range(8)]


def finding(check: str, subject: str, state: str = "drift", **more: Any) -> dict[str, Any]:
    given = {"severity": "major", "want": "x", "have": "y", "source": "z", "why": "w", "fix": "f"}
    return Finding(check=check, subject=subject, state=state, **{**given, **more}).to_dict()


def verdict(
    findings: Sequence[dict[str, Any]], passed: Sequence[str] = ("iommu.args[live]@x",), host: str = "h", **facts: Any
) -> judge.Verdict:
    assumed = infer.assume({"recognition": {**FACTS, **facts}}, {})
    return judge.judge(host, asdict(assumed), ["platform"], [{"findings": [*findings], "passed": [*passed]}])


def test_every_check_has_one_class_and_every_entry_a_check() -> None:
    assert {check for check in DECLARED if not classes.entry_of(check)} == set()
    used = {classes.entry_of(check) for check in DECLARED}
    # The ids of a verdict's own findings are made of a role's name.
    assert set(classes.TABLE) - used <= {"run", "kubernetes", "nccl_benchmark", "drain", "nccl_log"}
    entries = [entry for entries in classes._CLASSES.values() for entry in entries.split()]
    assert len(entries) == len(set(entries))


SILENT = [finding("nccl_conf.readable", f"/home/{n}", "unknown", have="Permission denied") for n in range(13)]


@pytest.mark.golden
def test_the_first_verdict_as_it_is_printed() -> None:
    rail = finding("platform.rail_device", "rail 3", "drift", severity="critical")
    odd = finding("netdev_mtu.live", "r0")
    shown = {
        "good": [verdict([], LIVE)],
        "a fact, the platform and siblings": [verdict([finding("pcie_path.acs", "b"), rail, odd], LIVE[1:])],
        "undecided": [verdict([finding("ofed.packages", "doca-ofed")], LIVE)],
        "not read by another user": [verdict(SILENT, root=False)],
        "not read": [verdict(SILENT)],
        "no GPU": [verdict([finding("host_limits.login", "f")], **NO_GPU)],
        "a virtual machine": [verdict([], LIVE, **VM)],
        "two hosts": [verdict([], LIVE, host="h1"), verdict([rail], LIVE, host="h2")],
    }
    written = [f"== {name}\n{render.report(several, 1.0)['text']}\n" for name, several in shown.items()]
    goldens.text("check", "\n".join(written))


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_audit_asks_the_same(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    site = {"busbar_platform": "hgx-h200", "busbar_fabric": "ethernet", **settings}
    variables = {**site, "inventory_hostname": "node01"}
    names = [role.name for role in question.ROLES]
    asked = host_audit.question_of(names, variables, Templar(loader=DataLoader(), variables=variables)).steps[1:]
    mine = question.steps(site, profile_files.shipped()["hgx-h200"], "hgx-h200")
    for step in mine:
        step["arguments"] = {k: v for k, v in step["arguments"].items() if k not in ("record", "since_boot")}
    assert json.loads(json.dumps(mine)) == json.loads(json.dumps(asked))


def rails(*odd: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**ROCE, **(odd[n] if n < len(odd) else {})} for n in range(8)]


@pytest.mark.parametrize(
    ("odd", "name", "value"),
    [
        ([{"mtu": 1500}], "busbar_mtu", 9000),
        ([{"mtu": 1500}] * 2, "busbar_mtu", 9000),
        ([{"mtu": 1500}] * 3, "busbar_mtu", None),  # 5 of 8: two kinds, and nobody says which is right
        ([{"pfc": []}], "roce_qos_pfc", [3]),
        ([{"trust": "pcp"}], "roce_qos_trust", "dscp"),
        ([{"firmware": "28.39.1002"}], "busbar_firmware", {"MT_1": "28.43.2026"}),
        ([], "busbar_roce", {"dscp": 26, "priority": 3, "cnp_dscp": 48, "cnp_priority": 6}),
        ([{"pfc": []}] * 8, "busbar_roce", None),  # lossy, or not set up yet
        ([{"pfc": [3, 4]}] * 8, "busbar_roce", None),
        ([SWITCH] * 8, "busbar_roce", {"dscp": 26, "priority": 3}),  # the rails are not set up, the switches are
        ([SWITCH] * 4 + [{**SWITCH, "switch_pfc": []}] * 4, "busbar_roce", None),
        ([{"pfc": [], "family": "ipv6"}] * 8, "busbar_roce", {"address_family": "ipv6"}),
    ],
)
def test_what_most_rails_have_is_what_each_is_held_to(odd: list[dict[str, Any]], name: str, value: object) -> None:
    assumed = infer.assume({"recognition": {**FACTS, "rails": rails(*odd)}}, {})
    assert assumed.values.get(name) == value
    assert assumed.steps()


@pytest.mark.parametrize(
    ("cards", "given", "planes"), [(8, {}, 2), (7, {}, 2), (8, {"busbar_planes": 4}, 4), (2, {}, None)]
)
def test_planes_are_inferred_with_the_rails_of_the_profile(
    cards: int, given: dict[str, Any], planes: int | None
) -> None:
    places = [f"0000:{bus + 16:02x}:00" for bus in range(8)]
    board = [{"pci": f"{place}.0", "model": "NVIDIA B300 SXM6 AC", "device": 0x3182} for place in places]
    port = {"path": "PXB", "link_layer": "Ethernet", "rate_gbps": 400.0}
    nics = [{**port, "pci": f"{place}.{plane}"} for place in places[:cards] for plane in range(2)]
    assumed = infer.assume({"recognition": {**FACTS, "gpus": board, "nics": nics, "nvswitches": 0}}, given)
    assert (assumed.platform, assumed.values.get("busbar_planes")) == ("hgx-b300", planes)
    rails = profile.parse(assumed.profile, "hgx-b300").rails
    assert {rail.planes for rail in rails} <= {planes or 1}
    assert assumed.steps()


def test_what_the_inventory_sets_is_taken_as_it_is() -> None:
    # No rail has what it declares: nothing inferred may stand in for that.
    lossy = {"recognition": {**FACTS, "rails": rails(*[{"pfc": []}] * 8)}}
    values = infer.assume(lossy, {"busbar_roce": {"dscp": 26, "priority": 3}}).values
    assert not [name for name in values if name.startswith("roce_qos_")]
    assumed = infer.assume({"recognition": {**FACTS, "rails": rails()}}, {"busbar_mtu": 4200})
    assert assumed.values["busbar_mtu"] == 4200
    wrong = [finding("netdev_mtu.live", f"r{n}") for n in range(8)]
    found = judge.judge("h", asdict(assumed), ["mtu"], [{"findings": wrong, "passed": []}])
    assert [row.basis for row in found.rows] == ["intent"] * 8


@pytest.mark.parametrize(
    ("findings", "passed", "basis", "undecided", "code"),
    [
        ([], LIVE, [], 0, 0),
        ([finding("pcie_path.acs", "b")], [], ["fact"], 0, 2),
        ([finding("pcie_path.acs", "b", severity="minor")], [], ["fact"], 0, 0),
        ([finding("node_health.aer", "d")], [], ["fact"], 0, 0),
        ([finding("node_health.aer", "d", severity="critical")], [], ["fact"], 0, 2),
        ([finding("platform.rail_device", "rail 3")], [], ["platform"], 0, 2),
        ([finding("netdev_mtu.live", "r0")], LIVE[1:], ["siblings"], 0, 2),
        ([finding("netdev_mtu.live", f"r{n}") for n in range(3)], LIVE[3:], [], 1, 0),
        ([finding("netdev_mtu.live", f"r{n}") for n in range(8)], [], [], 1, 0),
        ([finding("nccl_conf.file", "/etc/nccl.conf", severity="critical")], [], [], 0, 0),
        ([finding("ofed.packages", "doca-ofed")], [], [], 1, 0),
        ([finding("platform.nvlinks", "g", "unknown")], [], ["platform"], 0, 3),
        ([finding("platform.gpu_tool", "nvidia-smi", "unknown")], [], ["fact"], 0, 2),
        # Right now, and lost at the next boot: where nothing is persisted, somebody else may see to it.
        ([finding("iommu.args", "iommu=pt", aspect="persisted")], ["iommu.args[live]@iommu=pt"], [], 1, 0),
        ([finding("gpudirect.persisted", "m", aspect="persisted")], ["gpudirect.path[live]@GPU"], [], 1, 0),
        ([finding("iommu.args", "a", aspect="persisted")], ARGUMENTS, ["fact"], 0, 0),
    ],
)
def test_what_counts(findings: list[Any], passed: list[str], basis: list[str], undecided: int, code: int) -> None:
    found = verdict(findings, passed)
    assert ([row.basis for row in found.rows], len(found.undecided), found.code) == (basis, undecided, code)


@pytest.mark.parametrize(
    "facts",
    [
        NO_GPU,
        {**NO_GPU, "bus": False},
        {"gpus": [], "draft": None},
        VM,
        {"nics": FACTS["nics"][:4]},
        {"gpus": [{"pci": "0000:10:00.0", "model": "NVIDIA GH200 480GB", "device": 0x2342}]},
    ],
)
def test_what_is_not_known_is_never_good(facts: dict[str, Any]) -> None:
    assert verdict([], **facts).code == 3


INFO: dict[str, Any] = {"product": "XE9680", "driver": "mlx5_core 25.10", "missing": {}, "gpus": ()}
LINK: dict[str, Any] = {"link_layer": "InfiniBand", "rate_gbps": 400.0, "address": None, "mtu": None}
RAIL = {**FIRMWARE, **LINK, "netdev": "", "qos": "", "gpu": "", "gpu_index": 0, "addresses": [], "guids": {}}


def host(name: str, number: int, **odd: Any) -> judge.Verdict:
    """A host with eight rails, of which ``odd`` may say otherwise."""
    every = [{**RAIL, "number": n, "pci": f"0000:2{n}:00.0", "device": f"mlx5_{n}", **odd} for n in range(number)]
    found = verdict([], host=name)
    missing = {str(n): "no NIC" for n in range(number, 8)}
    uuids = [f"GPU-{name}-{n}" for n in range(8)]
    info = {**INFO, "rails": every, "gpus": uuids, "missing": missing}
    found.results = role_results({"platform": {"findings": [], "passed": [], "rail_info": info}})
    return found


@pytest.mark.parametrize(
    ("number", "odd", "subject"),
    [(7, {}, "number of rails"), (8, {"rate_gbps": 200.0}, "rails"), (8, {"firmware": "28.39.1002"}, "rails")],
)
def test_hosts_that_are_checked_together_are_compared(number: int, odd: dict[str, Any], subject: str) -> None:
    several = [host(f"h{n}", 8) for n in range(4)] + [host("h4", number, **odd)]
    hosts.join(several, {})
    assert [one.code for one in several] == [0, 0, 0, 0, 2]
    assert {row.finding.subject for row in several[4].rows} == {subject}
    # Of two nobody says which is right.
    two = [host("h0", 8), host("h1", number, **odd)]
    hosts.join(two, {})
    assert [(len(one.rows), bool(one.undecided)) for one in two] == [(0, True), (0, True)]


def many(number: int, faults: int) -> list[judge.Verdict]:
    names = sorted(check for check in DECLARED if classes.class_of(check) == "fact")
    some = [finding(names[n % len(names)], f"part {n}", have="y" * 300) for n in range(faults)]
    first = verdict(some)
    return [replace(first, host=f"node{n:04d}") for n in range(number)]


@pytest.mark.parametrize(("number", "faults"), [(1000, 1), (1, 500), (40, 5), (4, 31), (1, 0), (50, 60)])
def test_the_first_screen_holds_any_number_of_hosts_and_findings(number: int, faults: int) -> None:
    for one in (several := many(number, faults)):
        one.undecided = [f"decision {n}" for n in range(30)]
    text = render.report(several, 1.0)["text"]
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 100
    assert " ".join(render.report(several[:1], 1.0, True)["text"].split()).count("part ") >= faults


UNLIKE = f"GPU 3: {profile_doubts.OWN_PARTS} 18 active, here it is 17 (platform.nvlinks)"
OWN: dict[str, Any] = {"description": "x", "rail_defaults": {"rate_gbps": 400, "link_layers": ["InfiniBand"]}}
OWN |= {"gpus": {"count": 2, "models": ["NVIDIA H200"]}, "rails": [{"pci": "0000:20:00.0", "paths": {"0": "PIX"}}]}


def drafted(
    folder: Path, faults: Sequence[str] = (), doubts: Sequence[str] = (), platform: str | None = None, **facts: Any
) -> dict[str, Any]:
    """Return the files of a draft, by name, as YAML."""
    found = [finding(check, "part") for check in faults]
    one = verdict(found, **facts)
    assert one.assumed is not None
    one.assumed = replace(one.assumed, draft=OWN, doubts=doubts)
    assert draft.write(folder, render.report([one], 1.0)["hosts"], None, platform)[1] == bool(doubts)
    return {str(path.relative_to(folder)): yaml.safe_load(path.read_text()) for path in folder.rglob("*.yml")}


def test_a_draft_takes_a_shipped_profile_whole_and_decides_nothing(tmp_path: Path) -> None:
    files = drafted(tmp_path / "new", ["platform.rail_device"], nics=FACTS["nics"][:7])
    assert {name: text for name, text in files.items() if name != "hosts.yml"} == {"group_vars/gpu_nodes.yml": None}
    assert files["hosts.yml"]["gpu_nodes"]["hosts"]["h"]["busbar_platform"] == "hgx-h200"
    before = {path: path.read_text() for path in (tmp_path / "new").rglob("*.yml")}
    with pytest.raises(ParseError, match="exists"):
        drafted(tmp_path / "new")
    assert {path: path.read_text() for path in before} == before


@pytest.mark.parametrize(
    ("faults", "doubts", "facts"),
    [
        (["platform.gpu_driver"], [], VM),
        (["pcie_path.acs"], [], VM),
        ([], ["there are 7 GPUs"], VM),
        ([], [UNLIKE], {**VM, "platform": "custom"}),
        (["platform.rail_device"], [], {"platform": "custom"}),
        ([], [], NO_GPU),
    ],
)
def test_no_fault_becomes_intent(faults: list[str], doubts: list[str], facts: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ParseError):
        drafted(tmp_path / "new", faults, doubts, **facts)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("doubts", "platform", "facts", "checks"),
    [
        ([], None, VM, []),
        (["profile hgx-h200, the nearest,\nhas 8"], "custom", {}, ["# CHECK: profile hgx-h200, the nearest, has 8"]),
    ],
)
def test_a_machine_that_no_profile_fits_gets_one_of_its_own_with_its_doubts_on_top(
    doubts: list[str], platform: str | None, facts: dict[str, Any], checks: list[str], tmp_path: Path
) -> None:
    files = drafted(tmp_path, ["host_limits.login"], doubts, platform, **facts)
    name = files["hosts.yml"]["gpu_nodes"]["hosts"]["h"]["busbar_platform"]
    assert name == (platform or name)
    assumed = infer.assume({"recognition": {**FACTS, **facts}}, {}).values
    assert assumed["busbar_platform"] == ("unknown" if facts else "hgx-h200")
    assert files[f"profiles/{name}.yml"]["rails"] == [{"pci": "0000:20:00.0", "paths": {0: "PIX"}}]
    lines = (tmp_path / f"profiles/{name}.yml").read_text().splitlines()
    assert [line for line in lines if "CHECK" in line] == checks
