from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import verdict as verdict_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.nodeset import expand
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import shipped
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import RoleResult, role_results
from ansible_collections.busbar.fabric.plugins.plugin_utils.verdict import judge, not_ok, render

from tests import goldens

ROOT = Finding(
    "platform.rail_device", "rail 3", "drift", "critical", "a NIC", "none", "/sys", "every node waits", "mend"
)
FOLLOWS = replace(ROOT, check="nccl_conf.rails", state="unknown", want="a device", because=ROOT.id)


GOOD = {"findings": [], "passed": ["a.b[live]@c"]}
LINTED = {"findings": [], "passed": ["nccl_conf.file[persisted]@/etc/nccl.conf"]}
EMPTY: dict[str, Any] = {"findings": [], "passed": []}


def typed(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, RoleResult]]:
    return {host: role_results(of_host) for host, of_host in results.items()}


def bad(*findings: Finding) -> dict[str, Any]:
    return {"findings": [finding.to_dict() for finding in findings], "passed": []}


def lost(said: str, count: int = 3, **more: Any) -> dict[str, Any]:
    """Return results of hosts without one. said: with {host} in place of the name of each."""
    hosts = [f"n{i}.example.org" for i in range(count)]
    return {host: {"x": {"msg": said.format(host=host), **more}} for host in hosts}


OF_HOST = dict(GOOD, repaired=["mtu.live[live]@0000:1b:00.0", "mtu.live[live]@0000:3c:00.0"], notes=["not proven"])
REPAIRED: dict[str, Any] = {f"node{i:04}": {"x": dict(OF_HOST)} for i in range(1, 1001)}
REPAIRED["node0500"] = {"x": dict(OF_HOST, repaired=["nccl_conf.file[persisted]@/etc/nccl.conf", "odd"])}
LISTS: dict[str, Any] = {
    "n1": {"nccl_conf": LINTED, "mtu": {"failed": True, "msg": "x"}, "gate": EMPTY},
    "n2": {"nccl_conf": LINTED, "mtu": GOOD, "lldp": {"failed": True, "msg": "x"}},
}
OFF = {"n1": {"gate": "gate_stages", "lldp": "busbar_lldp"}, "n2": {"gate": "gate_stages"}}
MINOR = replace(ROOT, check="a.minor", severity="minor")
SLOW = replace(FOLLOWS, have="slow with n0")
DEEP = replace(FOLLOWS, subject="deep", because=FOLLOWS.id)
NO_DATA = 'Task failed: Data could not be sent to remote host "h". Make sure this host can be reached over ssh: ssh: no'
MENDED = dict(GOOD, repaired=["nccl_conf.file[persisted]@/etc/nccl.conf"])
# What a full result holds.
WHOLE: list[tuple[str, dict[str, Any] | None, dict[str, str]]] = [
    ("platform", {}, {}),
    ("platform", {"passed": ["platform.rail_state[live]@rail 1"]}, {}),
    ("platform", {"passed": ["platform.gpu_count[live]@gpus"]}, {}),
    ("platform", {"findings": [ROOT.to_dict()]}, {}),
    ("mtu", {}, {"mtu": "busbar_mtu"}),
    ("mtu", None, {"mtu": "busbar_mtu"}),
    ("lldp", {}, {}),
    ("lldp", {"notes": ["no rail has an LLDP neighbour"]}, {}),
]
# results, roles, what else judge gets
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "all good": ({"n1": {"platform": GOOD, "nccl_conf": GOOD}}, "platform nccl_conf", {}),
    "no host": ({}, "platform", {}),
    "a host without a check": ({"n1": {"platform": EMPTY}}, "platform", {}),
    "a host without its role": ({"n1": {"x": GOOD}, "n2": {}}, "x", {}),
    "a role is skipped": ({"n1": {"x": {"skipped": True}}}, "x", {}),
    "ssh refuses": (lost("Failed to connect to the host via ssh: refused", unreachable=True), "x", {}),
    "ssh ends before data": (lost(NO_DATA, 1, unreachable=True), "x", {}),
    "ssh says nothing": (lost("Failed to connect to the host via ssh:", 1, unreachable=True), "x", {}),
    "ssh alone": (lost("ssh: timed out", 1, unreachable=True), "x", {}),
    "hosts that are unreachable alike": (lost("no route to {host}", 5, unreachable=True), "x", {}),
    "a list of hosts": (lost("all_reduce n0,n1,n2: no route to {host}, says {host}", failed=True), "x", {}),
    "a module fails": (lost("boom\nat line 3", 1, failed=True), "x", {}),
    "a result without findings": ({"n1": {"x": {"rc": 0}}}, "x", {}),
    "a finding without an aspect": ({"n1": {"x": {"findings": [{"check": "x"}], "passed": []}}}, "x", {}),
    "a finding that is text": ({"n1": {"x": {"findings": ["x"], "passed": []}}}, "x", {}),
    "ended": ({"n1": {"x": GOOD, "mtu": GOOD}, "n2": {"x": GOOD}, "n3": {}}, "x mtu", {"ended": True}),
    "ended when all was done": ({"n1": {"x": GOOD}}, "x", {"ended": True}),
    "tags that leave no role": ({"n1": {"node_lock": GOOD}}, "platform", {"partial": True}),
    "a role that ran nowhere": ({"n1": {"platform": GOOD}}, "platform nccl_conf", {}),
    "left out by tags": ({"n1": {"platform": GOOD}}, "platform nccl_conf", {"partial": True}),
    "what ran, is off, and could not run": (LISTS, "mtu lldp gate nccl_conf", {"off": OFF}),
    "one cause": ({"n1": {"platform": bad(ROOT), "nccl_conf": bad(FOLLOWS)}}, "platform nccl_conf", {}),
    "a consequence without its root": ({"n1": {"x": bad(FOLLOWS)}}, "x", {}),
    "a cause on another host": (
        {"n0": {"x": bad(ROOT, SLOW)}, "n1": {"x": bad(SLOW)}, "n2": {"x": bad(SLOW)}},
        "x",
        {},
    ),
    "the same words on many": (
        {f"n{i}": {"x": bad(replace(ROOT, have="n0 with n1: slow"))} for i in range(3)},
        "x",
        {},
    ),
    "consequences of consequences": ({"n1": {"x": bad(ROOT, FOLLOWS, DEEP)}}, "x", {}),
    "a loop of causes": ({"n1": {"x": bad(replace(ROOT, because=FOLLOWS.id), FOLLOWS)}}, "x", {}),
    "300 hosts": ({f"n{i:03}": {"x": bad(ROOT)} for i in range(300)}, "x", {}),
    "300 values": ({f"n{i:03}": {"x": bad(replace(ROOT, have=f"{i % 50} lost"))} for i in range(300)}, "x", {}),
    "the worst first": ({"n1": {"x": bad(MINOR, ROOT)}}, "x", {}),
    "an escape of the terminal": ({"n1": {"x": bad(replace(ROOT, have="\x1b[2Jgone"))}}, "x", {}),
    **{
        f"{role} has {str(result)[:60]}, off: {[*off]}": (
            {"n1": {"nccl_conf": LINTED, role: None if result is None else {**EMPTY, **result}}},
            f"{role} nccl_conf",
            {"off": {"n1": off}},
        )
        for role, result, off in WHOLE
    },
    "repaired": ({"n1": {"x": MENDED}}, "x", {"check_mode": False}),
    "repaired, verbose": ({"n1": {"x": MENDED}}, "x", {"check_mode": False, "verbose": True}),
    "1000 hosts to repair": (REPAIRED, "x", {}),
    "1000 hosts to repair, verbose": (REPAIRED, "x", {"verbose": True}),
}


@pytest.mark.golden
def test_the_verdict_as_it_is_printed() -> None:
    written = []
    for name, (results, roles, more) in CASES.items():
        of_render = {"check_mode": True, **{key: more[key] for key in ("check_mode", "verbose") if key in more}}
        judged = judge(
            typed(results), roles.split(), more.get("partial", False), more.get("ended", False), more.get("off")
        )
        shown = render(judged, **of_render)
        assert judged.ok == shown.startswith("VERDICT OK: ")
        written.append(f"== {name}\n{shown}\n")
    goldens.text("verdict", "\n".join(written))


def test_the_findings_file_holds_everything() -> None:
    results = {"n1": {"platform": GOOD, "nccl_conf": GOOD}, "n2": {"platform": GOOD, "nccl_conf": bad(ROOT)}}
    data = judge(typed(results), ["platform", "nccl_conf"], partial=False).to_dict()
    assert (data["ok"], data["hosts"]["n1"]["ok"], data["hosts"]["n2"]["ok"]) == (False, True, False)
    assert (data["hosts"]["n1"]["passed"], data["hosts"]["n1"]["passed_ids"]) == (2, ["a.b[live]@c", "a.b[live]@c"])
    assert data["hosts"]["n2"]["findings"] == [ROOT.to_dict()]


@pytest.mark.parametrize(("roles", "ok"), [(["verify"], False), (["verify", "mtu"], True)])
def test_what_verify_by_hand_did_not_test_is_unknown_whatever_busbar_verify_is(roles: list[str], ok: bool) -> None:
    lock = {"findings": [], "passed": ["lock.held[live]@the node"], "held": True}
    values = intent.read({"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband", "busbar_verify": False})
    wanted = {"values": values, "profile": shipped()["hgx-h100"], "profile_name": "hgx-h100", "benchmark_runs": []}
    raw: dict[str, Any] = {
        "busbar_intent": wanted,
        "node_lock_result": lock,
        "mtu_result": GOOD,
        "inventory_hostname": "n1",
    }
    found = verdict_action._Found()
    found.add("n1", raw, None, roles, {}, nightly=False)
    assert judge(found.results, roles, partial=False, off=found.off).ok is ok


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_host_is_named_with_verbose() -> None:
    for names in ([f"gpu-{i:04}" for i in range(0, 600, 3)], [f"{i * 7919 % 10007:05}-{i:05}" for i in range(2000)]):
        judged = judge(typed({name: {"x": bad(ROOT)} for name in names}), ["x"], partial=False)
        assert re.search(r" and \d+ more  rail 3", render(judged, check_mode=True))
        text = render(judged, check_mode=True, verbose=True)
        listed = text[text.index("on: ") + 4 : text.index("expected ")]
        assert sorted(expand("".join(listed.split()))) == sorted(names)
        assert words(not_ok(judged)).endswith("more; the verdict above names the findings")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    long = replace(
        ROOT,
        check="nccl_conf.variable_without_effect",
        subject="0000:1b:00.0 mlx5_0 ens1f0np0",
        want="a 400 Gbit/s Ethernet NIC at PIX of GPU 3",
        have="no NIC at PIX of GPU 3, and a word of its own for each of the others",
        fix="check lspci and dmesg for the NIC, reseat or replace it; then run site.yml --tags platform",
    )
    results: dict[str, Any] = {
        f"gpu-r{i // 9:02}-{i:03}": {
            "x": bad(long, ROOT),
            "y": dict(GOOD, repaired=[f"a.b[live]@{i}"], notes=["x " * 99]),
        }
        for i in range(0, 500, 7)
    }
    text = render(judge(typed(results), ["x", "y"], partial=False), check_mode=True, width=width, verbose=True)
    assert max(map(len, text.splitlines())) <= width
    for part in ("variable_without_effect", "mlx5_0", "reseat or replace it; then run"):
        assert part in words(text)


def test_a_host_whose_name_has_two_lines_is_named_in_one() -> None:
    assert not_ok(judge({"a\nb": {}}, ["iommu"], partial=False)).isprintable()
