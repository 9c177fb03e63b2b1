# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a slow node to one that is given back, by the real mpirun, ssh and Slurm, as an operator does it at night.

playbooks/localise.yml finds a fault; busbar drift asks the nodes what they can say of themselves; busbar remediate
mends what a role mends, keeps out what a person has to mend, and gives the node back once that is done.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_record

from lab.cluster_faults import named

from .repairable import One, Site

MENDED, KEPT_OUT, TOLD = "mended by a role", "kept out, given back once mended", "told to a person"


@dataclass(frozen=True)
class Case:
    """found: check and subject of what localise has to name.   asked: drift's check that names the cause, "" for none.

    why: what Slurm's reason of a node that is kept out has to name.
    """

    fault: str
    found: str
    outcome: str
    asked: str = ""
    why: str = ""


CASES = (
    Case("small-reads", "localise.rail rail 1", MENDED, "pcie_path.max_read_request"),
    Case("acs-redirect", "localise.node host", MENDED, "pcie_path.acs"),
    Case("peermem-gone", "localise.node host", MENDED, "gpudirect.path"),
    Case("bad-cable", "localise.rail rail 1", KEPT_OUT, "platform.rail_rate", "platform.rail_rate"),
    Case("narrow-slots", "localise.node host", KEPT_OUT, "platform.rail_pcie", "platform.rail_pcie"),
    Case("slow-rank", "localise.alone host", KEPT_OUT, "", "nccl_perf.busbw"),
    # Nothing on the node shows it: it is measured with good nodes again.
    Case("sends-slowly", "localise.rail rail 1", KEPT_OUT, "", "localise."),
    # No node's fault, so no node is kept out.
    Case("slow-uplink", "localise.uplink leaf leaf2", TOLD),
)
OF_NAME = {case.fault: case for case in CASES}
FOUR, TWO_LEAVES = ("node01", "node02", "node03", "node04"), ("node01", "node02", "node05", "node06")


@dataclass
class Watch:
    """Seconds of each step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - begin

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())


def repaired(site: Site, faults: Mapping[str, str], hosts: tuple[str, ...], **values: object) -> None:
    """The whole way. faults: node -> its fault.   hosts: of the inventory."""
    watch = Watch()
    site.write(hosts, **values)
    site.simulated.put({node: [named(fault)] for node, fault in faults.items()})
    with watch.step("localise"):
        found = site.localise(always="slow-rank" in faults.values())
    record = localise_record.read(site.results)
    rounds = max((one.number for one in record.tests), default=0)
    for node, fault in faults.items():
        assert OF_NAME[fault].found in found.of(node), found
    outcomes = {node: OF_NAME[fault].outcome for node, fault in faults.items()}
    accused = {node for node, told in found.hosts.items() if any(_accuses(one) for one in told)}
    assert accused == {node for node in faults if faults[node] != "slow-uplink"}, found
    with watch.step("drift"):
        asked = site.drift()
    for node, fault in faults.items():
        checks = {one.check for one in asked.hosts.get(node, ())}
        assert checks == ({OF_NAME[fault].asked} - {""}), asked
    with watch.step("remediate"):
        left = site.remediate()
    for node, outcome in outcomes.items():
        state = site.slurm(node)
        if outcome == KEPT_OUT:
            assert state.startswith("IDLE+DRAIN busbar: not resumed, "), state
            # Of several findings the reason names the first.
            assert any(name in state for name in (OF_NAME[faults[node]].why, "localise.")), state
        else:
            assert state == "IDLE"
        if outcome == TOLD:
            assert left.hosts[node], left
    if MENDED in outcomes.values():
        with watch.step("drift again"):
            again = site.drift()
        assert not any(again.hosts.get(node) for node, outcome in outcomes.items() if outcome == MENDED), again
    # Somebody has changed what no role mends.
    site.simulated.put({})
    if KEPT_OUT in outcomes.values():
        with watch.step("give back"):
            site.remediate()
    assert {site.slurm(node) for node in faults} == {"IDLE"}
    for node, fault in faults.items():
        print(f"{fault} on {node}: {OF_NAME[fault].found}, {rounds} rounds, {outcomes[node]}; {watch}")


@pytest.fixture(autouse=True)
def _each_for_itself(site: Site) -> Iterator[None]:
    """A case that failed leaves no fault; what one has mended is not back because the next one breaks it."""
    yield
    site.anew()


def _accuses(one: One) -> bool:
    return one.check in ("localise.node", "localise.rail", "localise.rank", "localise.alone")


@pytest.mark.parametrize("case", CASES, ids=[case.fault for case in CASES])
def test_a_fault_is_found_and_mended_or_kept_out_until_it_is(site: Site, case: Case) -> None:
    on_leaf = case.fault == "slow-uplink"
    repaired(site, {"node05" if on_leaf else "node03": case.fault}, TWO_LEAVES if on_leaf else FOUR)


def test_three_at_once_are_told_apart(site: Site) -> None:
    faults = {"node02": "small-reads", "node05": "bad-cable", "node07": "acs-redirect"}
    repaired(site, faults, site.names, busbar_remediate_max_share=0.5)


def test_at_last_every_node_is_fast_and_in_service(site: Site) -> None:
    site.write(site.names)
    site.simulated.put({})
    assert not any(site.localise().hosts.values())
    assert {site.slurm(node) for node in site.names} == {"IDLE"}
