"""Policies, sysctl files in the order of systemd, and a routing table for each rail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core import sysctl_files
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.core.sysctl_files import Assignment
from ansible_collections.busbar.fabric.plugins.module_utils.machine import netdev_routing
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev_address import Address
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev_routing import Route, Rule, Vrf
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import netplan
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.claim import (
    Addressing,
    Claim,
    parse_ifupdown,
    parse_keyfile,
)
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.ifupdown import Ifupdown
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.netplan import Netplan
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.networkd import Networkd
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.networkmanager import NetworkManager
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.owner import Owner
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import plan as multirail
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import read
from ansible_collections.busbar.fabric.plugins.module_utils.multirail.policy import POLICIES, MultirailConfig, policy
from ansible_collections.busbar.fabric.plugins.module_utils.multirail.read import MultirailState, Rail
from ansible_collections.busbar.fabric.plugins.modules import multirail as multirail_module
from hypothesis import given
from hypothesis import strategies as st

from lab import store
from tests import golden_rows, goldens
from tests.lab.conftest import few_slots
from tests.trees import put

from .conftest import converge

NVIDIA, OCI = MultirailConfig(POLICIES["nvidia"]), MultirailConfig(POLICIES["oci"])

# -- sysctl files ----------------------------------------------------------------------------------------------------


KEY = "net/ipv4/conf/ens1/rp_filter"


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ((), None),
        (("net.ipv4.conf.ens1.rp_filter = 1", "net.ipv4.conf.ens1.rp_filter=2"), "2"),
        (("net.ipv4.conf.ens1.rp_filter = 1", "net.ipv4.conf.*.rp_filter=2"), "1"),
        (("net.ipv4.conf.*.rp_filter=2", "net.ipv4.conf.e*.rp_filter=0"), "0"),
        (("net.ipv4.conf.e*.rp_filter=2", "net.ipv4.conf.*.rp_filter=0", "net.ipv4.conf.e*.rp_filter=2"), "0"),
        (("net.ipv4.conf.e*.rp_filter=2", "net.ipv4.conf.*.rp_filter=0", "net.ipv4.conf.e*.rp_filter=1"), "1"),
        (("net.ipv4.conf.*.rp_filter=2\n-net.ipv4.conf.ens1.rp_filter",), None),
        (("-net.ipv4.conf.ens1.rp_filter = 1",), "1"),
        (("net.ipv4.*.rp_filter=2",), None),  # an asterisk does not cross a slash
        (("# net.ipv4.conf.ens1.rp_filter=1\n;x\nnet.ipv4.conf.ens1.rp_filter 1\n= 3",), None),
    ],
)
def test_the_line_that_counts_is_found_as_systemd_does(files: tuple[str, ...], value: str | None) -> None:
    found = [one for n, text in enumerate(files) for one in told(text, f"/etc/sysctl.d/{n}.conf")]
    one = sysctl_files.effective(found, KEY)
    assert (one.value if one else None) == value


SYSCTL = ("net.ipv4.conf.ens1.rp_filter = 1", "net/ipv4/conf/*/rp_filter=2", "-net.ipv4.conf.ens1.rp_filter")
LINES = st.lists(st.sampled_from(SYSCTL) | st.text(st.sampled_from("net.=-*#; /1"), max_size=20), max_size=8)


@given(LINES)
def test_any_lines_are_read_and_named_by_their_number(lines: list[str]) -> None:
    found = sysctl_files.parse("\n".join(lines), "/x")
    for one in found:
        assert one.place == f"/x:{one.line}"
        assert lines[one.line - 1].strip()[:1] not in ("#", ";", "")
        assert sysctl_files.normalized(one.key) == one.key or "." in one.key.split("/")[0]
    counts = sysctl_files.effective(found, KEY)
    exact = [one for one in found if one.key == KEY]
    if exact:
        assert counts is None if exact[-1].value is None else counts is not None and counts.value == exact[-1].value


def test_sysctl_files_are_in_the_order_of_their_names_and_the_first_folder_wins(tmp_path: Path) -> None:
    names = ("usr/lib/sysctl.d/50-default.conf", "usr/lib/sysctl.d/99-sysctl.conf", "run/sysctl.d/50-default.conf")
    for path in (*names, "etc/sysctl.d/10-a.conf", "etc/sysctl.d/README", "etc/sysctl.conf"):
        put(tmp_path, path, f"a = /{path}\n")
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    host = Host(str(tmp_path), str(tmp_path))
    assert [(one.path, one.value) for one in sysctl_files.read(host)[0]] == [
        ("/etc/sysctl.d/10-a.conf", "/etc/sysctl.d/10-a.conf"),
        ("/run/sysctl.d/50-default.conf", "/run/sysctl.d/50-default.conf"),
        ("/etc/sysctl.d/99-sysctl.conf", "/etc/sysctl.conf"),
    ]
    assert sysctl_files.read(host)[1] == []
    for name in ("etc/sysctl.d/99-sysctl.conf", "usr/lib/sysctl.d/99-sysctl.conf"):
        (tmp_path / name).unlink()
    # A boot does not read it then.
    assert [one.path for one in sysctl_files.read(host)[1]] == ["/etc/sysctl.conf"]


def rail(number: int = 0, **changes: Any) -> Rail:
    name = f"ens{number + 1}"
    claim = Networkd(f"/etc/systemd/network/10-{name}.network", "")
    one = Rail(
        number,
        f"0000:{number + 1:02x}:00.0 mlx5_{number} {name}",
        name,
        {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 0},
        (Address(f"10.0.{number}.1", 24),),
        (Route(f"10.0.{number}.0/24", "", f"10.0.{number}.1", name),),
        Owner((claim,)),
    )
    one = replace(one, kept=claim.with_table(multirail.table_of(one, "none")))
    return replace(one, **changes)


def have(*rails: Rail, **changes: Any) -> MultirailState:
    """As the policy nvidia wants it."""
    text = multirail.render_sysctl(rails, POLICIES["nvidia"])
    rules = [Rule(one.table, one.addresses[0].address, str(one.table)) for one in rails if one.addresses]
    found = MultirailState(
        rails=rails,
        live_all={"arp_ignore": 0, "arp_announce": 0, "rp_filter": 0},
        assignments=tuple(sysctl_files.parse(text, read.SYSCTL_FILE)),
        rules=(Rule(0, "", "local"), *rules, Rule(32766, "", "main")),
        sysctl=text,
    )
    return replace(found, **changes)


ZERO = {"arp_ignore": 0, "arp_announce": 0, "rp_filter": 0}
ALL = "net.ipv4.conf.all.rp_filter = 2"
LATE = "net.ipv4.conf.ens1.arp_ignore=2"
# Of systemd: rp_filter of every interface but all.
DEFAULT = "net.ipv4.conf.default.rp_filter = 2\nnet.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n"
NO_GID = "platform.rail_gid[live]@0000:01:00.0"
CLAIM = rail().owner.claims[0]
OTHER = netdev_mtu.judge_address(
    "rail", "ens1", Owner((replace(CLAIM, addressing=Addressing(("10.0.0.1/16",))),)), rail().addresses
)
IDLE = Owner((replace(CLAIM, mtu=None, refused=("is masked", "systemctl unmask it")),))
TABLE = multirail.table_of(rail(), "")
VRF = Vrf("v0", "7", True, (4, 6), (Route("10.0.0.0/24", "", "10.0.0.1", "ens1"),))
BY_NETPLAN = Owner((Netplan("/run/systemd/network/10-netplan-a.network", "", ident="ethernets/a"),))


def told(text: str, path: str) -> tuple[Assignment, ...]:
    return tuple(sysctl_files.parse(text, path))


def beside(before: str = "", after: str = "", path: str = "/etc/sysctl.d/10-a.conf", **changes: Any) -> MultirailState:
    """A node as wanted, with these lines in a file that counts before or after ours."""
    there = have(rail(), **changes)
    return replace(there, assignments=(*told(before, path), *there.assignments, *told(after, path)))


def by_netplan() -> MultirailState:
    """The rules and routes are in netplan's files of the site."""
    given = yaml.safe_load(Netplan("", "", ident="ethernets/a").with_table(TABLE))["network"]["ethernets"]["a"]
    text = netplan.parse(yaml.safe_dump({"network": {"ethernets": {"a": given}}}))["ethernets", "a"]
    claim = Netplan("/a", "", ident="ethernets/a", addressing=netplan.addressing_of(text, "ens1"))
    return have(rail(owner=Owner((claim,)), kept=None))


def unkept(**changes: Any) -> tuple[MultirailState, MultirailConfig]:
    return have(rail(**changes)), NVIDIA


PLANS: dict[str, tuple[MultirailState, MultirailConfig]] = {
    "as wanted": (have(rail(0), rail(1)), NVIDIA),
    "a live value": (have(rail(live={"arp_ignore": 0, "arp_announce": 2, "rp_filter": 0})), NVIDIA),
    "all forces a value now": (have(rail(), live_all={**ZERO, "rp_filter": 2}), NVIDIA),
    "all brings the value": (have(rail(live=ZERO), live_all={**POLICIES["nvidia"].values}), NVIDIA),
    "a file forces all": (beside(f"# x\n{ALL}", live_all={**ZERO, "rp_filter": 2}), NVIDIA),
    "a file forces all at the next boot": (beside(f"# x\n{ALL}"), NVIDIA),
    "digits that are none": (beside(ALL.replace("2", "\u00b2")), NVIDIA),
    "more digits than the kernel has": (beside(ALL.replace("2", "9" * 5000)), NVIDIA),
    "ours mends a part": (have(rail(), assignments=told(ALL, "/etc/sysctl.d/99-zz.conf"), sysctl=None), NVIDIA),
    "an earlier line of the interface": (beside(LATE), NVIDIA),
    "a later line of the interface": (beside(after=LATE, path="/etc/sysctl.d/99-z.conf"), NVIDIA),
    "a line that boot does not read": (have(rail(), main=told(LATE, "/etc/sysctl.conf")), NVIDIA),
    "the distribution's line for every interface": (
        have(rail(), assignments=told(DEFAULT, "/usr/lib/sysctl.d/50-default.conf"), sysctl=None),
        NVIDIA,
    ),
    "the site's file has the same": (
        have(rail(), assignments=told(have(rail()).sysctl or "", "/etc/sysctl.d/99-site.conf"), sysctl=None),
        NVIDIA,
    ),
    "unreadable": (have(rail(live={**ZERO, "arp_ignore": None}), problems=(Problem("ip -j", "no"),)), NVIDIA),
    "oci has no routes": (have(rail(live=dict(POLICIES["oci"].values), routes=(), kept=None), rules=None), OCI),
    "a missing route, a stale rule": (
        have(rail(1, routes=(), addresses=(Address("10.0.1.7", 24),)), rules=(Rule(1001, "10.9.9.9", "1001"),)),
        MultirailConfig(POLICIES["nvidia"], "first"),
    ),
    "rules alone": (have(rail()), MultirailConfig(policy("custom", {}, True))),
    "an old file": (have(rail(kept="old\n")), NVIDIA),
    "no address, and no GID": (
        have(rail(addresses=(), no_gid=NO_GID), rules=(Rule(1000, "10.0.0.1", "1000"),)),
        NVIDIA,
    ),
    "no address: its file stays": (have(rail(addresses=()), rail(1)), NVIDIA),
    "another address at the next boot": (have(rail(other_address=OTHER, routes=(), kept=None), rail(1)), NVIDIA),
    "rules are unreadable": (have(rail(), rules=None), NVIDIA),
    "netplan's own files bring them": (by_netplan(), NVIDIA),
    "a file for netplan": (have(rail(owner=BY_NETPLAN, kept=None)), MultirailConfig(POLICIES["nvidia"], "last")),
    "an owner in doubt": unkept(owner=Owner(doubt="/x: cannot be read"), kept=None),
    "an owner in doubt, the MTU's finding": (
        have(rail(owner=Owner(doubt="/x: cannot be read"), kept=None)),
        NVIDIA._replace(mtu_judged=True),
    ),
    "an owner without effect": unkept(owner=IDLE, kept=None),
    "an owner without effect, the MTU's finding": (have(rail(owner=IDLE, kept=None)), NVIDIA._replace(mtu_judged=True)),
    "no owner": unkept(owner=Owner()),
    "a file of others, too": unkept(shared=("ens2", "eno1")),
    "ifupdown brings none": unkept(owner=Owner((Ifupdown("/etc/network/interfaces", ""),))),
    "NetworkManager brings none": unkept(owner=Owner((NetworkManager("/etc/a.nmconnection", ""),))),
    # The table and the rule are the VRF's; a file of ours from before goes.
    "in a VRF": (have(rail(vrf=VRF, kept=None)), NVIDIA),
    "in a VRF, by a policy without routes": (have(rail(vrf=VRF, kept=None, live=dict(POLICIES["oci"].values))), OCI),
    "a VRF that is down, without rule and route": (have(rail(vrf=Vrf("v0", "7", False))), NVIDIA),
    "a VRF with two rails of one subnet": (
        have(rail(vrf=VRF, kept=None), rail(1, addresses=(Address("10.0.0.2", 24),), vrf=VRF, kept=None)),
        NVIDIA,
    ),
    "in a VRF, without an address": (have(rail(addresses=(), no_gid=NO_GID, vrf=VRF, kept=None)), NVIDIA),
    "IPv6 alone": (have(rail(addresses=(), ipv6=(Address("fd02::5", 64, 6),), kept=None)), NVIDIA),
    "IPv6 alone, two rails with one prefix": (
        have(*(rail(n, addresses=(), ipv6=(Address(f"fd02::{n}", 64, 6),), kept=None) for n in range(2))),
        NVIDIA,
    ),
}


def mended(there: MultirailState, plan: Plan) -> MultirailState:
    """With the files of the plan."""
    texts = {change.path: change.after for change in plan.changes}
    if ours := texts.get(read.SYSCTL_FILE):
        lines = [*there.assignments, *told(ours, read.SYSCTL_FILE)]
        there = replace(there, sysctl=ours, assignments=tuple(sorted(lines, key=lambda one: Path(one.path).name)))
    return replace(there, rails=tuple(replace(one, kept=texts.get(one.file, one.kept)) for one in there.rails))


@pytest.mark.golden
@pytest.mark.parametrize("case", PLANS)
def test_what_is_planned_for_a_node(case: str) -> None:
    there, want = PLANS[case]
    plan = multirail.plan(there, want)
    rows = golden_rows.plan(plan, texts=True)
    if values := [
        f.have for f in plan.findings if f.check == "multirail.sysctl" and not (f.ok or f.state == "unknown")
    ]:
        rows.append({"values": values})
    if plan.changes:
        after = multirail.plan(mended(there, plan), want)
        assert after.changes == ()
        rows.append({"not ok after that": [f.id for f in after.findings if not f.ok and f.aspect == "persisted"]})
    goldens.check("multirail", case, rows)


@pytest.mark.golden
def test_what_is_said_of_a_plan() -> None:
    said = [
        line
        for case, (there, want) in PLANS.items()
        for line in golden_rows.sentences(case, multirail.plan(there, want))
    ]
    goldens.text("multirail", "\n".join(said) + "\n")


# -- source routing --------------------------------------------------------------------------------------------------


def test_files_with_rules_go_when_the_policy_asks_for_none(tmp_path: Path) -> None:
    dropin = "/etc/systemd/network/10-ens1.network.d/90-busbar-multirail.conf"
    netplan = "/etc/netplan/90-busbar-multirail-3.yaml"
    for path in (dropin, netplan, "/etc/netplan/50-site.yaml", "/etc/systemd/network/10-ens1.network.d/50-site.conf"):
        put(tmp_path, path, "x\n")
    there = read.read(Host(str(tmp_path), str(tmp_path)), {}, OCI.policy)
    plan = multirail.plan(there, OCI)
    assert [(change.path, change.after) for change in plan.changes] == [(netplan, None), (dropin, None)]
    assert [(f.subject, f.state) for f in plan.findings if f.check == "multirail.rules"] == [
        (netplan, "drift"),
        (dropin, "drift"),
    ]
    assert [command.argv for command in plan.commands] == [("netplan", "generate")]


def test_without_a_policy_nothing_is_judged_and_our_files_go_by_none_alone(tmp_path: Path) -> None:
    nothing = MultirailConfig(policy("none", {}, False))
    unset = MultirailConfig(policy("", None, None))
    host = Host(str(tmp_path), str(tmp_path))
    assert multirail.plan(read.read(host, {}, nothing.policy), nothing) == Plan()
    put(tmp_path, read.SYSCTL_FILE, "net/ipv4/conf/ens1/arp_ignore = 1\n")
    put(tmp_path, "/etc/netplan/90-busbar-multirail-3.yaml", "x\n")
    plan = multirail.plan(read.read(host, {}, unset.policy), unset)
    assert (plan.findings, plan.changes, len(plan.notes)) == ((), (), 2)
    plan = multirail.plan(read.read(host, {}, nothing.policy), nothing)
    assert [(f.check, f.state) for f in plan.findings] == [("multirail.sysctl", "drift"), ("multirail.rules", "drift")]
    apply.execute(host, Plan(plan.findings, plan.changes))
    assert multirail.plan(read.read(host, {}, nothing.policy), nothing) == Plan()


@pytest.mark.parametrize(
    ("rule", "subject"),
    [
        ('"src":"10.0.0.1","table":"main"', "rule 100 from 10.0.0.1"),
        ('"src":"10.0.0.0","srclen":24,"table":"main"', "rule 100 from 10.0.0.0/24"),
        ('"src":"all","table":"main","suppress_prefixlen":0', "rule 100 from all"),
        ('"src":"all","dst":"10.0.0.0","dstlen":8,"action":"blackhole"', "rule 100 from all"),
        # Others' packets, some packets only, and the kernel's own rule for virtual routers.
        ('"src":"10.0.9.0","srclen":24,"table":"main"', None),
        ('"src":"all","dst":"169.254.0.0","dstlen":16,"table":"main"', None),
        ('"src":"all","fwmark":"0x1","table":"main"', None),
        ('"src":"all","iif":"lo","dport":22,"table":"main"', None),
        ('"src":"all","action":"nop"', None),
    ],
)
def test_a_rule_of_others_that_comes_first_is_named(rule: str, subject: str | None) -> None:
    there = have(rail())
    theirs = netdev_routing.parse_rules('[{"priority":100,%s},{"priority":1000,"src":"all","l3mdev":null}]' % rule)
    expected = [] if subject is None else [("multirail.conflict", subject)]
    plan = multirail.plan(replace(there, rules=(*(there.rules or ()), *theirs)), NVIDIA)
    assert [(f.check, f.subject) for f in plan.findings if not f.ok] == expected
    assert plan.commands == ()
    plan = multirail.plan(replace(there, boot_rules=((theirs[0], "/etc/x.network"),)), NVIDIA)
    found = [(f.check, f.aspect) for f in plan.findings if not f.ok]
    assert found == [("multirail.conflict", "persisted")] * len(expected)


RULE, ROUTE = "from 10.0.0.1 table 1000 priority 1000", "10.0.0.0/24 src 10.0.0.1 table 1000"
KEYFILE = {"method": "manual", "routing-rule1": f"priority 1000 {RULE[:24]}", "route1": "10.0.0.0/24"}
STANZA = [("address", "10.0.0.1/24"), ("up", f"ip rule add {RULE}"), ("up", f"ip route add {ROUTE} dev ens1")]


@pytest.mark.parametrize(
    ("claim", "given"),
    [
        (NetworkManager, parse_keyfile({**KEYFILE, "route1_options": "table=1000,src=10.0.0.1"}, "ens1")),
        (NetworkManager, parse_keyfile({**KEYFILE, "route-table": "1000"}, "ens1")),
        (Ifupdown, parse_ifupdown([("static", STANZA)], "ens1")),
    ],
)
def test_rules_that_an_owner_brings_as_advised_are_read_back(claim: type[Claim], given: Addressing) -> None:
    owner = Owner((claim("/etc/x", "/etc/x", before="", addressing=given),))
    assert all(f.ok for f in multirail.plan(have(rail(owner=owner)), NVIDIA).findings)
    other = tuple(one._replace(other=True) for one in given.rules)
    later = tuple(one._replace(priority=1001) for one in given.rules)
    rows = [*(given._replace(rules=rules) for rules in ((), other, later)), given._replace(routes=())]
    for lacking in rows:
        owner = Owner((replace(owner.claims[0], addressing=lacking),))
        wrong = [f for f in multirail.plan(have(rail(owner=owner)), NVIDIA).findings if not f.ok]
        assert [(f.check, f.state) for f in wrong] == [("multirail.rules", "not_owned")]


LINE = "net.ipv4.conf.ens1.arp_ignore"
LATER = {
    "tuned, which does not give way": {"/etc/tuned/tuned-main.conf": "reapply_sysctl = 0\n"},
    "tuned, of a key that no file sets": {"/etc/sysctl.d/98-busbar-multirail.conf": ""},
    "ufw": {"/etc/ufw/ufw.conf": "ENABLED=yes\n", "/etc/ufw/sysctl.conf": f"{LINE.replace('.', '/')}=0\n"},
    "rc.local": {"/etc/rc.local": f"#!/bin/sh\nsysctl -w {LINE}=0\n"},
    "rc.local, as a file": {"/etc/rc.local": "echo 0 > /proc/sys/" + LINE.replace(".", "/") + "\n"},
}
EARLIER = {
    "tuned, which gives way": {},
    "tuned is disabled": {
        "/etc/tuned/tuned-main.conf": "reapply_sysctl=0\n",
        "/usr/lib/systemd/system/tuned.service": "[Install]\nWantedBy=multi-user.target\n",
    },
    "ufw is off": {"/etc/ufw/ufw.conf": "ENABLED=no\n", "/etc/ufw/sysctl.conf": f"{LINE}=0\n"},
}


@pytest.mark.parametrize("name", [*LATER, *EARLIER])
def test_what_sets_a_kernel_setting_after_systemd_counts(tmp_path: Path, name: str) -> None:
    files = {"/etc/sysctl.d/98-busbar-multirail.conf": f"{LINE} = 1\n", **(LATER | EARLIER)[name]}
    if "tuned" in name:
        files |= {"/etc/tuned/active_profile": "site\n", "/etc/tuned/site/tuned.conf": "[main]\ninclude=base\n"}
        files |= {"/usr/lib/tuned/base/tuned.conf": f"[sysctl]\n{LINE}=0\n", "/usr/sbin/tuned-adm": ""}
    for path, text in files.items():
        put(tmp_path, path, text, 0o755)
    found = sysctl_files.effective(sysctl_files.read(Host("/x", str(tmp_path)))[0], LINE.replace(".", "/"))
    assert found is not None
    assert found.value == ("0" if name in LATER else "1")


# -- the module ------------------------------------------------------------------------------------------------------

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A simulated hgx-h200 with RoCE."""
    store.create(tmp_path / "lab", few_slots({"node02": store.STANDARD["node02"]}))
    return tmp_path / "lab/node02"


@pytest.fixture
def call(lab: Path, call_module: Callable[..., Run]) -> Run:
    return call_module(multirail_module.main, lab, "hgx-h200", "ethernet")


def test_a_run_does_what_check_mode_foretells_and_a_second_one_nothing(call: Run, lab: Path) -> None:
    done = converge(call, lab, policy="oci")
    assert (len(done["commands"]), len(done["repaired"]), done["findings"]) == (8, 16, [])


def test_source_routing_is_set_now_and_for_the_boot_and_goes_with_the_policy(call: Run, lab: Path) -> None:
    # Routes that running traffic would take are withheld.
    done = call(check_mode=True, policy="custom", values={"arp_ignore": 2}, source_routing=True)
    assert {command.split()[0] for command in done["commands"]} == {"sysctl"}
    assert {name.partition("@")[0] for name in done["withheld"]} == {"multirail.rules[live]"}
    assert "arp_ignore is 9" in call(policy="custom", values={"arp_ignore": 9})["msg"]
    done = call(policy="nvidia", max_disruption="link")
    assert (len(done["repaired"]), done["findings"]) == (32, [])
    dropin = lab / "sys/etc/systemd/network/10-rail3.network.d/90-busbar-multirail.conf"
    assert "From=10.19.0.2\nTable=1003\n" in dropin.read_text()
    assert call(check_mode=True, policy="nvidia", max_disruption="link")["changed"] is False
    assert call()["changed"] is False
    gone = call(policy="none")
    assert (len(gone["diff"]), gone["findings"], dropin.exists()) == (9, [], False)
