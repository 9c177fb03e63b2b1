"""Planner over hand-made ports; reader and module on a simulated node whose NICs are a small program of this file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.roce import qos as roce_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce.chain import resolve
from ansible_collections.busbar.fabric.plugins.module_utils.roce.nouns import (
    NOUNS,
    asked,
    parse_pause,
    parse_traffic_class,
)
from ansible_collections.busbar.fabric.plugins.module_utils.roce.port import Dcb, Pause, Port, State
from ansible_collections.busbar.fabric.plugins.module_utils.roce.qos import Have
from ansible_collections.busbar.fabric.plugins.module_utils.roce.want import Want

ROOT = Path(__file__).resolve().parent.parent.parent
CHAIN = resolve({"dscp": 26}, {"traffic_class": 106})
MAP = {dscp: dscp >> 3 for dscp in range(64)}
TSA = ("ets", "ets", "ets", "ets", "ets", "ets", "strict", "strict")
BANDWIDTH = (10, 10, 10, 50, 10, 10, 0, 0)
WANT = Want(
    chain=CHAIN,
    prio2tc=tuple(range(8)),
    tsa=TSA,
    bandwidth=BANDWIDTH,
    cable_length=30,
    prio2buffer=(0, 0, 0, 1, 0, 0, 0, 0),
    buffer_size=(20000, 200000, 0, 0, 0, 0, 0, 0),
    pause_off=True,
)
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
GOOD = State(
    port=PORT,
    tool="mlnx_qos",
    dcb=Dcb(
        owner="os",
        trust="dscp",
        dscp2prio=tuple(MAP.items()),
        pfc=(3,),
        prio2tc=tuple(range(8)),
        tsa=TSA,
        bandwidth=BANDWIDTH,
        cable_length=30,
        prio2buffer=(0, 0, 0, 1, 0, 0, 0, 0),
        buffer_size=(20000, 200000, 0, 0, 0, 0, 0, 0),
    ),
    numbers=NUMBERS,
    pause=Pause(False, False, False),
)


def planned(state: State, want: Want = WANT, lldpad: bool = False) -> Plan:
    return roce_qos.plan(Have(lldpad, (state,)), want)


def found(plan: Plan) -> dict[str, Finding]:
    return {finding.check.partition(".")[2]: finding for finding in plan.findings}


def commands(plan: Plan) -> list[str]:
    return [str(command) for command in plan.commands]


def with_dcb(**changed: Any) -> State:
    return replace(GOOD, dcb=replace(GOOD.dcb, **changed))


def with_number(path: str, value: int) -> State:
    return replace(GOOD, numbers={**NUMBERS, path: value})


# -- the plan --------------------------------------------------------------------------------------------------------


def test_a_port_that_is_as_wanted_has_a_good_answer_to_each_question_and_no_write() -> None:
    for backend in ("mlnx_qos", "dcb"):
        plan = planned(replace(GOOD, tool=backend))
        assert sorted(found(plan)) == sorted(NOUNS)
        assert ({finding.state for finding in plan.findings}, plan.changed) == ({"ok"}, False)


def test_what_is_not_asked_for_yields_nothing() -> None:
    assert planned(with_dcb(owner="firmware", pfc=(4,)), Want()) == Plan()
    lossy = planned(GOOD, Want(chain=resolve({"dscp": 26}, {"pfc": []}), pause_off=False))
    assert found(lossy)["pfc"].want == "off"
    assert "pause" not in found(lossy)


DRIFT = [
    (
        with_dcb(trust="pcp", dscp2prio=()),
        "trust",
        "pcp",
        "mlnx_qos -i eth1 --trust dscp",
        "dcb app replace dev eth1 dscp-prio " + " ".join(f"{dscp}:{dscp >> 3}" for dscp in range(64)),
    ),
    (
        with_dcb(dscp2prio=tuple({**MAP, 26: 4}.items())),
        "dscp2prio",
        "26:4, 48:6",
        "mlnx_qos -i eth1 --dscp2prio set,26,3",
        "dcb app replace dev eth1 dscp-prio 26:3",
    ),
    (
        with_dcb(dscp2prio=(*MAP.items(), (26, 4))),
        "dscp2prio",
        "26:3+4, 48:6",
        "mlnx_qos -i eth1 --dscp2prio set,26,3",
        "dcb app replace dev eth1 dscp-prio 26:3",
    ),
    (
        with_dcb(prio2tc=(1, 0, 2, 3, 4, 5, 6, 7)),
        "prio2tc",
        "1,0,2,3,4,5,6,7",
        "mlnx_qos -i eth1 -p 0,1,2,3,4,5,6,7",
        "dcb ets set dev eth1 prio-tc 0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7",
    ),
    (
        with_dcb(tsa=("vendor", *TSA[1:])),
        "ets",
        "0 vendor, 1 ets 10%, 2 ets 10%, 3 ets 50%, 4 ets 10%, 5 ets 10%, 6 strict, 7 strict",
        "mlnx_qos -i eth1 -s ets,ets,ets,ets,ets,ets,strict,strict -t 10,10,10,50,10,10,0,0",
        "dcb ets set dev eth1 tc-tsa 0:ets 1:ets 2:ets 3:ets 4:ets 5:ets 6:strict 7:strict"
        " tc-bw 0:10 1:10 2:10 3:50 4:10 5:10 6:0 7:0",
    ),
    (
        with_dcb(pfc=(4,)),
        "pfc",
        "on for 4",
        "mlnx_qos -i eth1 --pfc 0,0,0,1,0,0,0,0",
        "dcb pfc set dev eth1 prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off",
    ),
    (
        with_dcb(cable_length=7),
        "buffers",
        "cable 7 m; priorities 0,0,0,1,0,0,0,0; bytes 20000,200000,0,0,0,0,0,0",
        "mlnx_qos -i eth1 --cable_len 30",
        "dcb pfc set dev eth1 delay 30",
    ),
    (
        with_dcb(prio2buffer=(0,) * 8),
        "buffers",
        "cable 30 m; priorities 0,0,0,0,0,0,0,0; bytes 20000,200000,0,0,0,0,0,0",
        "mlnx_qos -i eth1 --prio2buffer 0,0,0,1,0,0,0,0",
        "dcb buffer set dev eth1 prio-buffer 0:0 1:0 2:0 3:1 4:0 5:0 6:0 7:0",
    ),
    (replace(GOOD, pause=Pause(False, True, False)), "pause", "RX on, TX off", "ethtool -A eth1 rx off tx off", ""),
    (
        replace(GOOD, pause=Pause(True, True, True)),
        "pause",
        "RX on, TX on",
        "ethtool -A eth1 autoneg off rx off tx off",
        "",
    ),
    (with_number(f"{SYSFS}/roce_rp/enable/3", 0), "ecn", "roce_rp off for 3", f"echo 1 > {SYSFS}/roce_rp/enable/3", ""),
    (
        with_number(f"{SYSFS}/roce_np/cnp_dscp", 4),
        "cnp",
        "DSCP 4, priority 6",
        f"echo 48 > {SYSFS}/roce_np/cnp_dscp",
        "",
    ),
    (
        with_number(TOS, 0),
        "tos",
        "0",
        f"echo 106 > {TOS}",
        "",
    ),
    (
        replace(GOOD, numbers={path: value for path, value in NUMBERS.items() if path != TOS}),
        "tos",
        "not shown: rdma_cm has no directory for the device; the kernel's default is 0",
        f"echo 106 > {TOS}",
        "",
    ),
    (
        with_number(FORCED, -1),
        "traffic_class",
        "none forced",
        f"echo 106 > {FORCED}",
        "",
    ),
]


@pytest.mark.parametrize(("state", "noun", "have", "by_mlnx_qos", "by_dcb"), DRIFT)
def test_what_differs_is_named_and_written_and_nothing_else(
    state: State, noun: str, have: str, by_mlnx_qos: str, by_dcb: str
) -> None:
    for backend, command in (("mlnx_qos", by_mlnx_qos), ("dcb", by_dcb or by_mlnx_qos)):
        plan = planned(replace(state, tool=backend))
        wrong = {name: finding for name, finding in found(plan).items() if not finding.ok}
        assert (wrong[noun].state, wrong[noun].have, wrong[noun].because) == ("drift", have, None)
        assert [f.because for name, f in wrong.items() if name != noun] in ([], [wrong[noun].id])
        assert commands(plan) == [command]
        assert [step.disruption for step in plan.commands] == ["link" if noun in ("pfc", "pause") else "none"]


def test_the_map_follows_from_trust_and_holds_what_is_not_the_default() -> None:
    want = Want(chain=resolve({"dscp": 26, "priority": 4}, {}))
    state = with_dcb(trust="pcp", dscp2prio=(), pfc=(4,))
    state = replace(state, numbers={**NUMBERS, **{f"{SYSFS}/roce_{side}/enable/4": 1 for side in ("np", "rp")}})
    plan = planned(state, want)
    assert found(plan)["dscp2prio"].because == found(plan)["trust"].id
    assert commands(plan) == ["mlnx_qos -i eth1 --trust dscp", "mlnx_qos -i eth1 --dscp2prio set,26,4"]
    (command,) = commands(planned(replace(state, tool="dcb"), want))
    assert " 26:4 27:3 " in command


def test_a_dscp_that_is_not_listed_has_priority_0() -> None:
    want = Want(chain=resolve({}, {"dscp2prio": {26: 0, 27: 3}}))
    plan = planned(with_dcb(dscp2prio=((48, 6),)), want)
    assert found(plan)["dscp2prio"].have == "26:0, 27:0"
    assert commands(plan) == ["mlnx_qos -i eth1 --dscp2prio set,27,3"]


def test_a_class_that_no_priority_uses_makes_no_difference() -> None:
    state = with_dcb(tsa=(None, *TSA[1:]), bandwidth=(None, *BANDWIDTH[1:]))
    assert not planned(state).changed
    assert found(planned(with_dcb(bandwidth=(10, 20, 10, 40, 10, 10, 0, 0))))["ets"].state == "drift"


def test_pause_goes_off_before_pfc_goes_on() -> None:
    plan = planned(replace(with_dcb(pfc=()), pause=Pause(False, True, True)))
    assert [command.split()[0] for command in commands(plan)] == ["ethtool", "mlnx_qos"]


def test_a_changed_mask_is_withheld_where_no_link_may_bounce() -> None:
    plan = planned(with_dcb(pfc=(), trust="pcp")).limit("none")
    assert found(plan)["pfc"].state == "withheld"
    assert "busbar_max_disruption=link" in found(plan)["pfc"].fix
    assert commands(plan) == ["mlnx_qos -i eth1 --trust dscp"]


WRONG = with_dcb(owner="firmware", trust="pcp", dscp2prio=(), pfc=())


def test_a_port_that_firmware_owns_is_reported_and_left_alone() -> None:
    plan = planned(replace(WRONG, numbers={**NUMBERS, TOS: 0}))
    owner = found(plan)["dcbx"]
    assert (owner.state, owner.have) == ("not_owned", "firmware and the switch own the port")
    for noun in ("trust", "dscp2prio", "pfc"):
        assert (found(plan)[noun].state, found(plan)[noun].because) == ("not_owned", owner.id)
    assert found(plan)["ets"].state == "ok"
    assert commands(plan) == [f"echo 106 > {TOS}"]


@pytest.mark.parametrize(
    ("backend", "command"), [("mlnx_qos", "mlnx_qos -i eth1 -d os"), ("dcb", "dcb dcbx set dev eth1 host cee ieee")]
)
def test_it_is_taken_over_first_where_that_is_asked_for(backend: str, command: str) -> None:
    plan = planned(replace(WRONG, tool=backend), replace(WANT, dcbx="os"))
    assert {f.state for f in plan.findings if not f.ok} == {"drift"}
    assert commands(plan)[0] == command
    assert len(plan.commands) == 3


def test_what_the_switch_is_to_set_is_judged_and_not_written() -> None:
    plan = planned(WRONG, replace(WANT, dcbx="firmware"), lldpad=True)
    assert found(plan)["dcbx"].ok
    assert (found(plan)["pfc"].state, found(plan)["pfc"].because) == ("not_owned", None)
    assert "on the switch" in found(plan)["pfc"].fix
    assert not plan.changed


def test_a_port_is_handed_over_by_mlnx_qos_only() -> None:
    want = replace(WANT, dcbx="firmware")
    assert commands(planned(GOOD, want)) == ["mlnx_qos -i eth1 -d fw"]
    plan = planned(replace(GOOD, tool="dcb"), want)
    assert (found(plan)["dcbx"].state, plan.changed) == ("unsupported", False)


@pytest.mark.parametrize("dcbx", ["", "os"])
@pytest.mark.parametrize("by_tool", [False, True])
def test_lldpad_owns_what_it_would_overwrite_whatever_is_asked_of_dcbx(by_tool: bool, dcbx: str) -> None:
    plan = planned(with_dcb(lldpad=by_tool, pfc=()), replace(WANT, dcbx=dcbx), lldpad=not by_tool)
    lldpad = plan.findings[0]
    assert (lldpad.subject, lldpad.state, plan.changed) == ("lldpad", "not_owned", False)
    assert "systemctl disable --now lldpad" in lldpad.fix
    assert (found(plan)["pfc"].state, found(plan)["pfc"].because) == ("not_owned", lldpad.id)
    assert found(plan)["dcbx"].ok


def test_a_port_is_not_taken_over_while_lldpad_runs() -> None:
    plan = planned(WRONG, replace(WANT, dcbx="os"), lldpad=True)
    assert (found(plan)["dcbx"].state, found(plan)["dcbx"].because) == ("not_owned", plan.findings[0].id)
    assert not any("-d os" in command for command in commands(plan))


def test_one_reason_on_eight_ports_is_told_once() -> None:
    states = [replace(GOOD, port=replace(PORT, label=f"0000:{n}b:00.0 mlx5_{n} eth{n}")) for n in range(8)]
    plan = roce_qos.plan(Have(True, tuple(states)), WANT)
    roots = [finding for finding in plan.findings if not finding.ok and finding.because is None]
    assert [finding.subject for finding in roots] == ["lldpad"]


def test_a_port_as_out_of_the_box_has_one_cause() -> None:
    new = replace(with_dcb(trust="pcp", pfc=()), pause=Pause(False, True, True))
    plan = planned(new)
    roots = [finding for finding in plan.findings if not finding.ok and finding.because is None]
    assert [(finding.check, finding.have) for finding in roots] == [
        ("roce_qos.trust", "pcp; the whole port has the driver's defaults")
    ]
    assert {f.check for f in plan.findings if f.because == roots[0].id} == {
        *("roce_qos.dscp2prio", "roce_qos.pfc", "roce_qos.pause")
    }
    # With one of the three set there is no such cause.
    kept = planned(replace(new, dcb=replace(new.dcb, pfc=(4,))))
    assert found(kept)["pfc"].because is None


def test_what_a_write_has_come_to_is_told() -> None:
    said = {(PORT.label, "trust"): "mlnx_qos -i eth1 --trust dscp succeeded, but the value has not changed"}
    plan = roce_qos.plan(Have(False, (with_dcb(trust="pcp"),)), WANT, said)
    assert found(plan)["trust"].have == "pcp; mlnx_qos -i eth1 --trust dscp succeeded, but the value has not changed"
    assert "dmesg" in found(plan)["trust"].fix


def test_the_difference_of_a_port_is_what_is_written() -> None:
    (one,) = roce_qos.diff(planned(with_dcb(pfc=(4,))))
    assert (one["before_header"], one["before"], one["after"]) == (
        PORT.label,
        "roce_qos.pfc: on for 4\n",
        "roce_qos.pfc: on for 3\n",
    )
    assert roce_qos.diff(planned(GOOD)) == []


# -- what is asked for -----------------------------------------------------------------------------------------------


def test_pause_matters_only_beside_pfc() -> None:
    assert Want.of(CHAIN, {"pause_off": True}).pause_off
    assert not Want.of(resolve({"dscp": 26}, {"pfc": []}), {"pause_off": True}).pause_off
    assert asked(Want.of(resolve({}, {}), {"pause_off": True})) == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prio2tc": [0] * 7}, "prio2tc is .* expected eight numbers from 0 to 7"),
        ({"prio2tc": [8] * 8}, "prio2tc"),
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
        Want.of(CHAIN, given)


# -- parsers ---------------------------------------------------------------------------------------------------------


def test_pause_is_what_is_configured_and_not_what_was_negotiated() -> None:
    text = "Pause parameters for eth1:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\nRX negotiated: off\n\n"
    assert parse_pause(text) == Pause(False, True, False)
    with pytest.raises(ParseError, match="names no Autonegotiate"):
        parse_pause("Pause parameters for eth1:\nCannot get device pause settings: Operation not supported\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Global tclass=106\n", 106),
        ("Global tclass=106\ntclass=32,dst_ip=10.0.0.1", 106),
        ("106", 106),
        ("", -1),
        ("tclass=32,dst_ip=10.0.0.1", -1),
    ],
)
def test_the_forced_class_stands_in_the_first_line(text: str, value: int) -> None:
    assert parse_traffic_class(text) == value


def test_a_forced_class_in_other_words_is_refused() -> None:
    with pytest.raises(ParseError, match="'Global tclass=none' is not a line"):
        parse_traffic_class("Global tclass=none")


# -- a simulated node ------------------------------------------------------------------------------------------------
