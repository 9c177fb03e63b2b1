"""Goldens of work over several nodes: fabric faults, searches for slow nodes, and the records and tables of both.

The modules: fabric_judge, localise, localise_judge, localise_record, localise_table, cluster_record, cluster_table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import (
    cluster_record,
    cluster_table,
    localise_judge,
    localise_record,
    localise_table,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import (
    GpuPair,
    HostFinding,
    MeasuredTest,
    Way,
)

from tests import goldens, localising
from tests.localising import KINDS, SLOW_GPU, UPLINK, Cluster, Fault

from . import sample_cluster_record
from .built_fabric import Built, guid
from .sample_localise_record import RECORD as LOCALISED
from .test_cluster_table import TWO
from .test_fabric_judge import Change, Lines
from .test_fabric_situations import Situation

HOST = "node003"


def row(hosts: Iterable[str], finding: Finding) -> list[Any]:
    because = finding.because and finding.because.partition("@")[0]
    found = [finding.check, finding.aspect, finding.subject, finding.state, finding.severity, because]
    return [sorted(hosts), *found]


def host_off(built: Built) -> None:
    for rail in range(4):
        built.remove(built.rails[HOST, rail])


def stranger(built: Built) -> None:
    node, leaf = guid(0xE000, 7), built.called("leaf01")
    built.names[node] = "stray mlx5_0"
    built.connect((node, 1), (leaf, built.sizes[leaf]), planned=False)


def counted(name: str, value: int) -> Change:
    return lambda built: built.count(built.nic(HOST, 1), name, value)


FAULTS: dict[str, Change] = {
    "healthy": lambda built: None,
    "one lane": lambda built: built.links.update({built.nic(HOST, 1): (1, "NDR")}),
    "half the speed": lambda built: built.links.update({built.nic(HOST, 1): (4, "HDR")}),
    "uplink with half the speed": lambda built: built.links.update(
        {built.uplinks(built.called("leaf02"))[0]: (4, "HDR")}
    ),
    "port in init": lambda built: built.states.update({built.leaf_port(HOST, 1): ("init", "LinkUp")}),
    "port switched off": lambda built: built.states.update({built.cut(built.nic(HOST, 1)): ("down", "Disabled")}),
    "cable out": lambda built: built.cut(built.nic(HOST, 1)),
    "uplink out": lambda built: built.cut(built.uplinks(built.called("leaf02"))[0]),
    "host off": host_off,
    "leaf gone": lambda built: built.remove(built.called("leaf03")),
    "spine gone": lambda built: built.remove(built.called("spine01")),
    "rails of two hosts exchanged": lambda built: built.swap(built.leaf_port(HOST, 1), built.leaf_port("node005", 1)),
    "rails of one host exchanged": lambda built: built.swap(built.leaf_port(HOST, 1), built.leaf_port(HOST, 2)),
    "symbol errors": counted("SymbolErrorCounter", 60000),
    "link went down": counted("LinkDownedCounter", 5),
    "receive errors": counted("PortRcvErrors", 5000),
    "discards": counted("PortXmitDiscards", 100000),
    "no manager": lambda built: built.managers.clear(),
    "no standby": lambda built: built.managers.pop(),
    "stranger": stranger,
}


def judged(fault: str, plan: bool, apart: bool) -> Lines:
    return Situation(FAULTS[fault], shape={"apart": apart}).judged(plan)


@pytest.mark.golden
@pytest.mark.parametrize("apart", [False, True], ids=["one plane", "a plane a rail"])
@pytest.mark.parametrize("plan", [True, False], ids=["plan", "no plan"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_fabric(fault: str, plan: bool, apart: bool) -> None:
    lines = judged(fault, plan, apart)
    rows = sorted((row(hosts, one) for hosts, one in lines if not one.ok), key=str)
    name = f"{fault}, {'plan' if plan else 'no plan'}, {'a plane a rail' if apart else 'one plane'}"
    goldens.check("fabric", name, [{"ok": sum(one.ok for _hosts, one in lines)}, *rows])


@pytest.mark.golden
def test_what_is_printed_of_a_fabric() -> None:
    parts = []
    for fault, plan in itertools.product(FAULTS, (True, False)):
        found = [one for _hosts, one in judged(fault, plan, False) if not one.ok]
        parts.append(f"== {fault}, {'plan' if plan else 'no plan'}")
        parts += [f"{one.check} {one.subject}: {one.have}; expected {one.want}; {one.fix}" for one in found]
    goldens.text("fabric", "\n".join(parts) + "\n")


@pytest.mark.golden
@pytest.mark.parametrize("kind", [*KINDS, SLOW_GPU, UPLINK, "none"])
def test_a_search_for_a_fault(kind: str) -> None:
    """simulated: a cluster of 128 nodes without noise."""
    fault = [Fault(kind, "leaf01" if kind == UPLINK else "n0037", 3)] if kind != "none" else []
    search = localising.searched(Cluster(128, fault, noise=False))
    verdicts = [one for one in localise_judge.verdicts(search) if not one.finding.ok]
    rows: list[Any] = [{"rounds": search.rounds, "tests": search.tests}]
    goldens.check("localise", kind, rows + [row(one.hosts, one.finding) for one in verdicts])


GOOD = MeasuredTest(number=2, kind="pair", hosts=("n1", "n2"), outcome="pass", figure=380.0, bar=345.6)
SLOW = replace(GOOD, hosts=("n3", "n4"), outcome="fail", figure=231.0)
DEAD = replace(GOOD, hosts=("n5", "n6"), outcome="silent", figure=None, said="\x1b[2J" * 200, lost={"n5": "gone"})
PARTS = replace(GOOD, hosts=("n3",), outcome="fail", figure=None)
WAYS = (Way(3, "n3", 20.0), Way(3, "n1", 48.0), Way(3, "n3", 21.0, True), Way(3, "n1", None, True))
NO_CLIENT = "rail 3 from n1: no client connected in time"
OF_RAILS = replace(PARTS, kind="rails", hosts=("n3", "n1"), bar=43.2, ways=WAYS, said=NO_CLIENT)
OF_GPUS = replace(PARTS, kind="gpus", bar=323.7, pairs=(GpuPair(0, 1, 180.0), GpuPair(2, 3, 360.0)))
FAST = localise_judge.NODE.judge("host", "ok", "x", "round 1: 380 GB/s", "tests")
NODE = HostFinding(hosts=("n1", "n2"), finding=FAST)
LEFT = localise_judge.MEMBER.judge("host", "unknown", "x", "left out: busy: a job", "tests")
UNPROVEN = localise_judge.NODE.judge("host", "unknown", "x", "no result", "tests")
BAR = localise_judge.BAR.judge("bar", "unknown", "x", "no pair was measured", "tests")
ALL_GOOD = replace(LOCALISED, findings=(NODE, HostFinding(hosts=("n3",), finding=LEFT)))
ENDS = {
    "good": ALL_GOOD,
    "good so far": replace(ALL_GOOD, complete=False),
    "cut off before the first round": replace(ALL_GOOD, tests=(), complete=False),
    "no verdict": replace(
        LOCALISED, findings=tuple(HostFinding(hosts=("n1",), finding=one) for one in (BAR, UNPROVEN))
    ),
}
RECORDS = {
    "cluster": lambda: cluster_record.to_dict(sample_cluster_record.RECORD),
    "cluster of two": lambda: cluster_record.to_dict(TWO),
    "localise": lambda: localise_record.to_dict(LOCALISED),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_as_it_is_stored(name: str) -> None:
    goldens.check("records", name, [[key, value] for key, value in RECORDS[name]().items()])


@pytest.mark.golden
def test_what_is_printed_of_records() -> None:
    rounds = "\n".join(localise_table.round_lines([GOOD, SLOW, DEAD, OF_RAILS, OF_GPUS]))
    goldens.text("localise", f"{rounds}\n--\n{localise_table.render(LOCALISED, 100)}\n")
    texts = [f"== {name}\n{localise_table.render(record, 100)}\n" for name, record in ENDS.items()]
    goldens.text("localise_table", "".join(texts))
    records = itertools.product((sample_cluster_record.RECORD, TWO), (60, 120))
    goldens.text("cluster", "\n--\n".join(itertools.starmap(cluster_table.render, records)) + "\n")


def test_good_rounds_are_a_line_and_of_many_slow_tests_some_are_named() -> None:
    assert localise_table.round_lines([GOOD]) == ["round 2, pairs: 1 of 1 pass"]
    for number, last in ((6, "  n[3-4]: 231 of 345.6 GB/s"), (500, "  and 494 more")):
        lines = localise_table.round_lines([SLOW] * number)
        assert (len(lines), lines[-1]) == (7 + (number > 6), last)
