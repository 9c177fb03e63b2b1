"""Goldens of work over several nodes: fabric faults, searches for slow nodes, and the records and tables of both.

The modules: fabric_judge, localise, localise_judge, localise_record, localise_table, cluster_record, cluster_table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
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

from tests import goldens, localising
from tests.localising import KINDS, SLOW_GPU, UPLINK, Cluster, Fault

from . import sample_cluster_record, sample_localise_record
from .built_fabric import Built
from .test_cluster_table import TWO
from .test_fabric_judge import Change, Lines
from .test_fabric_situations import Situation, stranger
from .test_localise_table import DEAD, GOOD, GPUS, RAILS, SLOW

HOST = "node003"


def row(hosts: Iterable[str], finding: Finding) -> list[Any]:
    because = finding.because and finding.because.partition("@")[0]
    found = [finding.check, finding.aspect, finding.subject, finding.state, finding.severity, because]
    return [sorted(hosts), *found]


def host_off(built: Built) -> None:
    for rail in range(4):
        built.remove(built.rails[HOST, rail])


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
    "stranger": stranger("stray mlx5_0"),
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


RECORDS = {
    "cluster": lambda: cluster_record.to_dict(sample_cluster_record.RECORD),
    "cluster of two": lambda: cluster_record.to_dict(TWO),
    "localise": lambda: localise_record.to_dict(sample_localise_record.RECORD),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_as_it_is_stored(name: str) -> None:
    goldens.check("records", name, [[key, value] for key, value in RECORDS[name]().items()])


@pytest.mark.golden
def test_what_is_printed_of_records() -> None:
    rounds = "\n".join(localise_table.round_lines([GOOD, SLOW, DEAD, RAILS, GPUS]))
    goldens.text("localise", f"{rounds}\n--\n{localise_table.render(sample_localise_record.RECORD, 100)}\n")
    records = itertools.product((sample_cluster_record.RECORD, TWO), (60, 120))
    goldens.text("cluster", "\n--\n".join(itertools.starmap(cluster_table.render, records)) + "\n")
