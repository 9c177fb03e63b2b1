"""The planner over hand-made ports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import platform_facts
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import plan as roce_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import PortConfig, resolve
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Dcb, Pause, Port, PortState
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.read import QosState
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.settings import enabled

from tests import golden_rows, goldens

ROOT = Path(__file__).resolve().parent.parent.parent
CHAIN = resolve({"dscp": 26}, {"traffic_class": 106})
MAP = {dscp: dscp >> 3 for dscp in range(64)}
TSA = ("ets", "ets", "ets", "ets", "ets", "ets", "strict", "strict")
BANDWIDTH = (10, 10, 10, 50, 10, 10, 0, 0)
VALUES: dict[str, Any] = {
    "prio2tc": tuple(range(8)),
    "tsa": TSA,
    "bandwidth": BANDWIDTH,
    "cable_length": 30,
    "prio2buffer": (0, 0, 0, 1, 0, 0, 0, 0),
    "buffer_size": (20000, 200000, 0, 0, 0, 0, 0, 0),
}
WANT = PortConfig(chain=CHAIN, pause_off=True, **VALUES)
PORT = Port(label="0000:1b:00.0 mlx5_0 eth1", pci="0000:1b:00.0", netdev="eth1", rdma="mlx5_0")
SYSFS = "/sys/class/net/eth1/ecn"
TOS = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos"
FORCED = "/sys/class/infiniband/mlx5_0/tc/1/traffic_class"
NUMBERS = {
    f"{SYSFS}/roce_np/enable/3": 1,
    f"{SYSFS}/roce_rp/enable/3": 1,
    f"{SYSFS}/roce_np/cnp_dscp": 48,
    f"{SYSFS}/roce_np/cnp_802p_prio": 6,
    TOS: 106,
    FORCED: 106,
}
GOOD = PortState(
    port=PORT,
    dcb=Dcb(owner="os", trust="dscp", dscp2prio=tuple(MAP.items()), pfc=(3,), **VALUES),
    numbers=NUMBERS,
    pause=Pause(False, False, False),
)


def planned(state: PortState, want: PortConfig = WANT, lldpad: bool = False) -> Plan:
    return roce_qos.plan(QosState(lldpad, (state,)), want)


def with_dcb(**changed: Any) -> PortState:
    return replace(GOOD, dcb=replace(GOOD.dcb, **changed))


def with_number(path: str, value: int | None) -> PortState:
    """value: None where the file is not there."""
    numbers = {**NUMBERS, path: value}
    return replace(GOOD, numbers={path: number for path, number in numbers.items() if number is not None})


def test_settings_that_hosts_are_compared_by_are_whole_or_left_out() -> None:
    known = platform_facts._setting(GOOD)
    assert (known["cnp"], known["ecn"], known["tos"], known["trust"]) == ([48, 6], [3], 106, "dscp")
    assert platform_facts._setting(with_number(f"{SYSFS}/roce_np/cnp_dscp", None))["cnp"] is None
    assert platform_facts._setting(with_dcb(trust="pcp"))["dscp2prio"] is None


# -- the plan --------------------------------------------------------------------------------------------------------

WRONG = with_dcb(owner="firmware", trust="pcp", dscp2prio=(), pfc=())
PAUSED = Pause(False, True, True)
NEW = replace(with_dcb(trust="pcp", pfc=()), pause=PAUSED)
OS, FIRMWARE = replace(WANT, dcbx="os"), replace(WANT, dcbx="firmware")
PRIORITY_4 = PortConfig(chain=resolve({"dscp": 26, "priority": 4}, {}))
OF_4 = {f"{SYSFS}/roce_{side}/enable/4": 1 for side in ("np", "rp")}
PLANS: dict[str, tuple[PortState, PortConfig]] = {
    "as wanted": (GOOD, WANT),
    "nothing is asked for": (with_dcb(owner="firmware", pfc=(4,)), PortConfig()),
    "a lossy fabric": (GOOD, PortConfig(chain=resolve({"dscp": 26}, {"pfc": []}), pause_off=False)),
    "trust": (with_dcb(trust="pcp", dscp2prio=()), WANT),
    "trust in the PCP": (GOOD, PortConfig(chain=resolve({"priority": 3}, {"trust": "pcp"}))),
    "dscp2prio": (with_dcb(dscp2prio=tuple({**MAP, 26: 4}.items())), WANT),
    "dscp2prio, of data and notifications": (with_dcb(dscp2prio=tuple({**MAP, 26: 4, 48: 0}.items())), WANT),
    "dscp2prio, two priorities of one DSCP": (with_dcb(dscp2prio=(*MAP.items(), (26, 4))), WANT),
    "prio2tc": (with_dcb(prio2tc=(1, 0, 2, 3, 4, 5, 6, 7)), WANT),
    "ets": (with_dcb(tsa=("vendor", *TSA[1:])), WANT),
    "ets, the bandwidth": (with_dcb(bandwidth=(10, 20, 10, 40, 10, 10, 0, 0)), WANT),
    "ets, a class that no priority uses": (with_dcb(tsa=(None, *TSA[1:]), bandwidth=(None, *BANDWIDTH[1:])), WANT),
    "pfc": (with_dcb(pfc=(4,)), WANT),
    "buffers, the cable": (with_dcb(cable_length=7), WANT),
    "buffers, of priorities": (with_dcb(prio2buffer=(0,) * 8), WANT),
    "buffers, their sizes": (with_dcb(buffer_size=(9,) * 8), WANT),
    "pause": (replace(GOOD, pause=Pause(False, True, False)), WANT),
    "pause, negotiated": (replace(GOOD, pause=Pause(True, True, True)), WANT),
    "pause goes off before PFC goes on": (replace(with_dcb(pfc=()), pause=PAUSED), WANT),
    "ecn": (with_number(f"{SYSFS}/roce_rp/enable/3", 0), WANT),
    "cnp": (with_number(f"{SYSFS}/roce_np/cnp_dscp", 4), WANT),
    "tos": (with_number(TOS, 0), WANT),
    "tos, no directory of rdma_cm": (with_number(TOS, None), WANT),
    "traffic_class": (with_number(FORCED, -1), WANT),
    "a map that is not the default": (
        replace(with_dcb(trust="pcp", dscp2prio=(), pfc=(4,)), numbers={**NUMBERS, **OF_4}),
        PRIORITY_4,
    ),
    "a DSCP that is not listed has priority 0": (
        with_dcb(dscp2prio=((48, 6),)),
        PortConfig(chain=resolve({}, {"dscp2prio": {26: 0, 27: 3}})),
    ),
    "out of the box": (NEW, WANT),
    "out of the box but for PFC": (replace(NEW, dcb=replace(NEW.dcb, pfc=(4,))), WANT),
    "firmware owns the port": (replace(WRONG, numbers={**NUMBERS, TOS: 0}), WANT),
    "the port is taken over": (WRONG, OS),
    "the port is the switch's": (WRONG, FIRMWARE),
    "the port is handed over": (GOOD, FIRMWARE),
    "lldpad, by the tool": (with_dcb(lldpad=True, pfc=()), WANT),
    "lldpad, by the tool, the host's port": (with_dcb(lldpad=True, pfc=()), OS),
    "lldpad": (with_dcb(pfc=()), WANT),
    "lldpad, the host's port": (with_dcb(pfc=()), OS),
    "lldpad, the port is the switch's": (WRONG, FIRMWARE),
    "lldpad, the port would be taken over": (WRONG, OS),
}


def plan_of(case: str) -> Plan:
    state, want = PLANS[case]
    return planned(state, want, case.startswith("lldpad") and not state.dcb.lldpad)


@pytest.mark.golden
@pytest.mark.parametrize("case", PLANS)
def test_what_is_planned_for_a_port(case: str) -> None:
    goldens.check("roce_qos", case, golden_rows.plan(plan_of(case), texts=True))


@pytest.mark.golden
def test_what_is_said_of_a_port() -> None:
    said = [line for case in PLANS for line in golden_rows.sentences(case, plan_of(case))]
    goldens.text("roce_qos", "\n".join(said) + "\n")


def test_of_a_lossy_fabric_is_asked_that_pfc_is_off() -> None:
    lossy = {finding.check: finding for finding in planned(*PLANS["a lossy fabric"]).findings}
    assert (lossy["roce_qos.pfc"].want, "roce_qos.pause" in lossy) == ("off", False)


# -- what is asked for -----------------------------------------------------------------------------------------------


def test_pause_matters_only_beside_pfc() -> None:
    assert PortConfig.from_values(CHAIN, {"pause_off": True}).pause_off
    assert not PortConfig.from_values(resolve({"dscp": 26}, {"pfc": []}), {"pause_off": True}).pause_off
    assert enabled(PortConfig.from_values(resolve({}, {}), {"pause_off": True})) == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prio2tc": [0] * 7}, "prio2tc is .* expected eight numbers from 0 to 7"),
        ({"prio2tc": 3}, "prio2tc is 3, expected eight"),
        ({"tsa": ["ets"] * 8}, "tsa and tc_bandwidth go together"),
        ({"tsa": ["cbs"] * 8, "tc_bandwidth": [0] * 8}, "tsa is .* expected eight of strict, ets, vendor"),
        ({"tsa": ["ets"] * 8, "tc_bandwidth": [10] * 8}, "makes 80 per cent"),
        ({"tsa": ["strict"] * 8, "tc_bandwidth": [100] + [0] * 7}, "of class 0 is not 0, but its tsa is strict"),
        ({"cable_length": 1000}, "cable_length is 1000"),
        ({"buffer_size": [-1] * 8}, "buffer_size"),
        ({"dcbx": "lldpad"}, "dcbx is 'lldpad'"),
        ({"prio2tc": [9] * 8, "cable_length": 0}, "prio2tc.*; cable_length is 0"),
    ],
)
def test_a_value_that_cannot_be_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ParseError, match=says):
        PortConfig.from_values(CHAIN, given)
